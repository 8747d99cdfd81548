"""Schedules beyond 1F1B: chosen by simulated step time, within memory, with a bound that holds for all of them."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pipeline.plan.brute_force import NEAR, every_plan, problem, simulated
from pipeline.plan.planning_worlds import QUIET, chain_profile, profiles, training_graph

from partita.errors import BadInput, Infeasible
from partita.nouns.cluster import Cluster, Device, Link
from partita.nouns.costs import CostTable
from partita.nouns.pipeline_plan import Part, PipelinePlan, Schedule, Slot
from partita.nouns.pipeline_problem import Wish
from partita.nouns.plan import PlanFile
from partita.nouns.profile import Profile, Sample
from partita.nouns.stage_memory import stage_memory
from partita.pipeline.plan.bench import Candidate
from partita.pipeline.plan.chain_dp import Segment
from partita.pipeline.plan.methods import named
from partita.pipeline.plan.orders import NAMED, _Search
from partita.pipeline.plan.pipeline_task import PipelineTask
from partita.pipeline.plan.planner import SIMPLER, fastest, plan_pipeline, problem_of
from partita.pipeline.plan.proof import any_plan
from partita.pipeline.plan.shop import Parted, shop_of
from partita.simulate.lower import program_of
from partita.simulate.predicted import predicted
from partita.simulate.schedules import device_orders, held_of
from partita.simulate.schedules.searched import numbered, rewalked

SCHEDULES = ("auto", "interleaved", "zb-h1", "zb-h2", "zb-v", "searched")
WISH = {"allow_replicas": False, "allow_recompute": False, "budget_s": 0.3}


def priced(profile: Profile, parting: float = 0.0, share: float = 0.5) -> Profile:
    """A share of each backward can wait; splitting takes a share of it."""
    samples = []
    for s in profile.samples:
        backward = np.array([[float(t.phase == "backward")] for t in s.graph.tasks]) * np.ones(len(s.costs.kinds))
        finite = np.where(np.isfinite(s.costs.seconds), s.costs.seconds, 0.0)
        samples.append(
            replace(s, costs=replace(s.costs, weight_share=backward * share, parting_s=parting * backward * finite))
        )
    return replace(profile, samples=tuple(samples))


def most_bytes(file: PlanFile) -> dict[str, float]:
    """Device -> the most that it holds at once, counted slot by slot."""
    plan = file.plan
    assert isinstance(plan, PipelinePlan)
    needs = [stage_memory(file.graph, s.tasks, file.problem.optimizer_bytes_per_parameter_byte) for s in plan.stages]  # type: ignore[union-attr]
    found: dict[str, float] = defaultdict(float)
    for device, order in device_orders(plan).items():
        last = {(s.stage, s.micro_batch): i for i, s in enumerate(order)}
        held = sum(needs[k].weights for k in plan.stages_of(device))
        for i, s in enumerate(order):
            held += needs[s.stage].kept * (s.part == "F")
            found[device] = max(found[device], held)
            held -= needs[s.stage].kept * (last[s.stage, s.micro_batch] == i)
    return found


def slots_of(row: str) -> tuple[Slot, ...]:
    """An order as it is drawn."""
    parts: dict[str, Part] = {"F": "F", "B": "B", "W": "W"}
    return tuple(Slot(parts[w[0]], *map(int, w[1:].split("."))) for w in row.split())


@pytest.mark.parametrize("schedule", SCHEDULES)
@settings(max_examples=10, deadline=None, database=None, suppress_health_check=QUIET)
@given(data=st.data())
def test_contract_of_schedules(schedule: str, data: st.DataObject) -> None:
    """Sound, as fast as it says, above its bound, within memory, and the same again."""
    profile = priced(
        data.draw(profiles(most_tasks=5, tight=data.draw(st.booleans()))), data.draw(st.sampled_from([0.0, 0.2]))
    )
    try:
        file = plan_pipeline(profile, schedule=schedule, **WISH)  # type: ignore[arg-type]
    except Infeasible:
        return
    plan, verdict = file.plan, file.verdict
    assert plan.check(file.graph, file.cluster) == []
    assert verdict.value_s == pytest.approx(predicted(file.problem, plan).duration_s, rel=1e-12)
    assert 0 < verdict.lower_bound_s <= verdict.value_s
    for device, held in most_bytes(file).items():
        assert held <= file.cluster.by_name[device].memory_bytes * (1 + 1e-9)
    assert plan_pipeline(profile, schedule=schedule, **WISH).plan == plan  # type: ignore[arg-type]
    if schedule == "auto":
        simple = plan_pipeline(profile, schedule="1f1b", **WISH).verdict  # type: ignore[arg-type]
        assert verdict.value_s <= simple.value_s * (1 + 1e-12)
        assert verdict.value_s <= min(verdict.compared_s.values()) / (1 - SIMPLER) * (1 + 1e-12)


@pytest.mark.parametrize("seed", [*range(6), 146])
@pytest.mark.parametrize("share", [0.5, 1.0])
def test_the_bound_of_any_plan_is_below_backwards_in_two_parts(seed: int, share: float) -> None:
    profile, wishes = problem(seed)
    profile = priced(profile, share=share)
    raw = any_plan(PipelineTask(profile, profile.cluster, Wish(allow_replicas=False)))[0]
    parted: tuple[Schedule, ...] = ("zb-h1", "zb-h2")
    found = []
    for plan, sample in every_plan(profile, replace(wishes, schedule=None, in_flight=None, stages=None, allow_replicas=False)):  # fmt: skip
        sample = profile.sample(sample.micro_batch_size)
        for schedule in (plan.schedule, *(parted if len(plan.stages) > 1 else ())):
            found.append(simulated(replace(plan, schedule=schedule), sample, profile.cluster))
    assert raw <= min(found, default=math.inf) * (1 + NEAR)


def test_the_gradients_of_weights_are_not_on_the_longest_way() -> None:
    """More devices than micro-batches: one micro-batch through all tasks with its whole backwards would take 24 seconds."""
    verdict = plan_pipeline(priced(replace(chain_profile(8, 8), batch_size=2)), schedule="auto", **WISH).verdict  # type: ignore[arg-type]
    assert 8 + 8 + 1 <= verdict.lower_bound_s <= verdict.value_s < 24


def test_one_device_waits_for_no_message() -> None:
    """Where a message takes longer than all the work, one device is best, and the bound says so."""
    profile = chain_profile(2)
    far = replace(profile, cluster=replace(profile.cluster, default_link=Link("", "", 1e6, 1000.0)))
    verdict = plan_pipeline(far, schedule="auto", **WISH).verdict  # type: ignore[arg-type]
    assert verdict.lower_bound_s == verdict.value_s == 48.0


def test_a_wait_is_filled_and_the_file_says_by_which_schedule(tmp_path: Path) -> None:
    """Six equal layers on two devices, eight micro-batches: 1F1B waits, and something else waits less."""
    profile = priced(chain_profile())
    simple = plan_pipeline(profile, schedule="1f1b", **WISH).verdict  # type: ignore[arg-type]
    file = plan_pipeline(profile, schedule="auto", **WISH)  # type: ignore[arg-type]
    assert file.verdict.value_s < 0.97 * simple.value_s
    assert file.verdict.lower_bound_s <= file.verdict.value_s
    assert {"1f1b", "zb-h1", "interleaved", "zb-v", "searched"} <= file.verdict.compared_s.keys()
    again = PlanFile.read(file.write(tmp_path / "plan.json"))
    assert again.plan == file.plan
    assert again.verdict.compared_s == file.verdict.compared_s


@pytest.mark.parametrize("schedule", ["interleaved", "zb-h1", "zb-h2", "zb-v"])
def test_a_schedule_that_is_asked_for_is_the_plans(schedule: str) -> None:
    file = plan_pipeline(priced(chain_profile()), schedule=schedule, **WISH)  # type: ignore[arg-type]
    assert isinstance(file.plan, PipelinePlan)
    assert file.plan.schedule == schedule
    assert len(file.plan.devices) == 2


def test_what_parting_costs_decides() -> None:
    """Where it takes as much as the whole backward, no backward is parted."""
    file = plan_pipeline(priced(chain_profile(), 1.0), schedule="searched", **WISH)  # type: ignore[arg-type]
    assert isinstance(file.plan, PipelinePlan)
    assert not any(s.part == "W" for order in file.plan.orders.values() for s in order)


def test_one_device_has_one_schedule() -> None:
    profile = priced(chain_profile(devices=1))
    assert len(plan_pipeline(profile, schedule="auto", **WISH).plan.devices) == 1  # type: ignore[arg-type, union-attr]
    with pytest.raises(Infeasible, match="no plan of schedule zb-h1"):
        plan_pipeline(profile, schedule="zb-h1", **WISH)  # type: ignore[arg-type]


def test_memory_decides_too() -> None:
    """With room for less in flight the step takes longer, and still nobody holds more than there is."""
    free = plan_pipeline(priced(chain_profile(kept=1.0)), schedule="auto", **WISH).verdict.value_s  # type: ignore[arg-type]
    tight = plan_pipeline(priced(chain_profile(kept=1.0, memory=19.0)), schedule="auto", **WISH)  # type: ignore[arg-type]
    assert max(most_bytes(tight).values()) <= 19.0
    assert free <= tight.verdict.value_s < math.inf


@pytest.mark.parametrize("schedule", ["auto", "interleaved", "searched"])
@pytest.mark.parametrize(("frozen", "memory"), [(4, 34.0), (4, 46.0), (2, 42.0)])
def test_what_frozen_layers_keep_is_not_given_back_twice(schedule: str, frozen: int, memory: float) -> None:
    """They have no backward, at whose end a search would believe that a device holds less."""
    profile = replace(priced(chain_profile(12, memory=memory, frozen=frozen)), batch_size=16)
    try:
        file = plan_pipeline(profile, schedule=schedule, **WISH)  # type: ignore[arg-type]
    except Infeasible:
        assert schedule != "auto"
        return
    assert max(most_bytes(file).values()) <= memory


def test_a_wished_number_in_flight_holds() -> None:
    profile = priced(chain_profile())
    for schedule in ("1f1b", "zb-h1", "auto"):
        plan = plan_pipeline(profile, schedule=schedule, in_flight=2, **WISH).plan  # type: ignore[arg-type]
        assert isinstance(plan, PipelinePlan)
        assert max(held_of(plan)) <= 2
    for schedule in ("gpipe", "zb-h2", "zb-v", "interleaved", "searched"):
        with pytest.raises(BadInput, match="decides by itself how many micro-batches are in flight; 2 were asked for"):
            plan_pipeline(profile, schedule=schedule, in_flight=2, **WISH)  # type: ignore[arg-type]


@pytest.mark.parametrize("schedule", ["zb-h1", "zb-h2", "zb-v", "interleaved"])
def test_a_schedule_asked_for_by_name_needs_no_search(schedule: str) -> None:
    """Of 6,144 slots no orders are searched; the schedule is there all the same."""
    profile = replace(priced(chain_profile()), batch_size=1024)
    file = plan_pipeline(profile, schedule=schedule, **WISH)  # type: ignore[arg-type]
    assert isinstance(file.plan, PipelinePlan)
    assert (file.plan.schedule, len(file.plan.devices)) == (schedule, 2)
    with pytest.raises(Infeasible, match="6144 forwards and parts of backwards, and the orders of 6000 at most"):
        plan_pipeline(profile, schedule="searched", **WISH)  # type: ignore[arg-type]


def test_the_search_for_orders_keeps_its_share_of_the_budget() -> None:
    """But for what it has begun: a shop, and orders walked over as they are."""
    profile = replace(priced(chain_profile(24, 4)), batch_size=160)
    task = PipelineTask(profile, profile.cluster, Wish(allow_replicas=False, schedule="auto", budget_s=2.0))
    for propose in named("auto").values():
        fastest(task, propose)
    search = _Search(task)
    share, known = search.left, [a for s in NAMED for a in search.fastest(search.named(s))]
    assert search.fastest(search.searched([a.candidate for a in known]))
    assert -0.5 * share < search.left <= 0.1 * share


def test_who_found_a_plan_is_told() -> None:
    """A method's own value stays beside what other schedules made of its plan."""
    profile = priced(chain_profile())
    alone = plan_pipeline(profile, method="antichain-dp", **WISH).verdict  # type: ignore[arg-type]
    named = plan_pipeline(profile, schedule="zb-h1", **WISH).verdict  # type: ignore[arg-type]
    assert named.method == "zb-h1"
    assert named.compared_s["zb-h1"] == named.value_s
    assert named.compared_s["antichain-dp"] == pytest.approx(alone.value_s)
    asked = plan_pipeline(profile, schedule="zb-h1", method="antichain-dp", **WISH).verdict  # type: ignore[arg-type]
    assert asked.method == "antichain-dp"


def test_a_stage_that_recomputes_does_its_backward_in_one() -> None:
    """The second part would need everything that was recomputed, of every micro-batch that waits for it. The search and the
    simulator both count it so."""
    profile = priced(chain_profile())
    task = PipelineTask(profile, profile.cluster, Wish(schedule="zb-h1", budget_s=0.3))
    (bench,) = task.benches
    for recompute in (False, True):
        chain = (Segment(0, 3, (0,)), Segment(3, len(bench.costs.states) - 1, (1,), recompute))
        candidate = Candidate(bench.number, chain, 2, "zb-h1")
        plan, problem = bench.plan(candidate), problem_of(task, candidate)
        kinds = {p.kind for p in program_of(problem, plan).pieces if p.stage == 1}
        assert ("backward" if recompute else "input") in kinds
        assert ("weight" in kinds) != recompute
        orders = numbered(device_orders(plan), plan.devices, 2, plan.micro_batches)
        found = rewalked(shop_of(bench, Parted.of(task, bench), chain), orders)
        assert found.seconds == pytest.approx(predicted(problem, plan).duration_s, rel=1e-9)


def test_a_skip_that_two_chunks_of_a_device_read_is_priced_once() -> None:
    """The first task's tensor is read by both chunks of the other device: by the search's account and by the simulator's."""
    profile = priced(chain_profile(8, skips=[(0, 3), (0, 6)]))
    dear = Link("", "", 10.0, 0.01, send_s=0.02, send_s_per_byte=0.01, message_s=0.03, message_s_per_byte=0.02)
    profile = replace(profile, cluster=replace(profile.cluster, default_link=dear))
    task = PipelineTask(profile, profile.cluster, Wish(schedule="interleaved", budget_s=0.3))
    (bench,) = task.benches
    ends = [0, 2, 4, 6, len(bench.costs.states) - 1]
    chain = tuple(Segment(a, b, (k % 2,)) for k, (a, b) in enumerate(itertools.pairwise(ends)))
    candidate = Candidate(bench.number, chain, 2, "interleaved")
    plan, problem = bench.plan(candidate), problem_of(task, candidate)
    orders = numbered(device_orders(plan), plan.devices, 4, plan.micro_batches)
    found = rewalked(shop_of(bench, Parted.of(task, bench), chain), orders)
    assert found.seconds == pytest.approx(predicted(problem, plan).duration_s, rel=1e-9)


@pytest.mark.parametrize("seed", range(4))
def test_branches_are_planned_on_a_shared_medium(seed: int) -> None:
    """A diamond, whose sides wait for nothing of each other: searched orders take one before the other, and links take turns."""
    chance = np.random.default_rng(seed)
    graph = training_graph(4, [(0, 1), (0, 2), (1, 3), (2, 3)], [1.0] * 4, [1.0] * 4, [1.0] * 4)
    seconds = [*chance.integers(1, 9, (8, 1)).astype(float), *np.zeros((4, 1))]
    costs = CostTable.given(("cpu",), np.array(seconds), np.full(len(graph.producer), np.nan))
    cluster = Cluster(tuple(Device(f"d{i}") for i in range(2)), (), Link("", "", 4.0, medium="bus"))
    file = plan_pipeline(Profile("j", 4, (Sample(1, graph, costs),), cluster), schedule="auto", budget_s=0.3)
    assert file.verdict.lower_bound_s <= file.verdict.value_s < math.inf


def test_what_two_chunks_read_waits_for_the_gradients_of_both() -> None:
    """The sides of a diamond on one device, its ends on the other: the first backward waits for both sides, in the search, too."""
    graph = training_graph(4, [(0, 1), (0, 2), (1, 3), (2, 3)], [1.0] * 4, [1.0] * 4, [1.0] * 4)
    seconds = np.array([[1.0], [2.0], [3.0], [1.0], [2.0], [4.0], [6.0], [2.0], [0.0], [0.0], [0.0], [0.0]])
    costs = CostTable.given(("cpu",), seconds, np.full(len(graph.producer), np.nan))
    cluster = Cluster((Device("d0"), Device("d1")), (), Link("", "", 1e9))
    profile = priced(Profile("j", 2, (Sample(1, graph, costs),), cluster))
    task = PipelineTask(profile, cluster, Wish(budget_s=0.3))
    (bench,) = task.benches
    inside = bench.costs.inside.sum(axis=1).tolist()
    states = [inside.index(n) for n in range(5)]
    chain = tuple(Segment(a, b, (d,)) for (a, b), d in zip(itertools.pairwise(states), (0, 1, 1, 0), strict=True))
    candidate = Candidate(bench.number, chain, 2, "1f1b")
    shop, problem = shop_of(bench, Parted.of(task, bench), chain), problem_of(task, candidate)
    sides = slots_of("F1.0 F2.0 F1.1 F2.1 B1.0 B1.1 B2.0 B2.1")
    orders = {"d0": slots_of("F0.0 F0.1 F3.0 B3.0 F3.1 B3.1 B0.0 B0.1"), "d1": sides}
    plan = replace(bench.plan(candidate), schedule="given", orders=orders)
    found = rewalked(shop, numbered(orders, plan.devices, 4, 2))
    assert found.seconds == pytest.approx(predicted(problem, plan).duration_s, rel=1e-6)
    # B0.0 waits for B2.0, that for B1.1, and that for B3.1
    early = {"d0": slots_of("F0.0 F0.1 F3.0 B3.0 F3.1 B0.0 B3.1 B0.1"), "d1": sides}
    assert math.isinf(rewalked(shop, numbered(early, plan.devices, 4, 2)).seconds)
