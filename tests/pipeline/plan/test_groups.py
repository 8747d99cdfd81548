"""Groups of unequal devices: the estimate is the simulation, shares are the best there are, clustering comes near exhaustive
grouping, and the bound is below every plan."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from benchmark_scripts import loaded
from hypothesis import given
from hypothesis import strategies as st
from pipeline.plan.brute_force import every_plan, problem, simulated
from pipeline.plan.planning_worlds import FEW, chain_profile

from partita.nouns.cluster import Cluster, Device, Link
from partita.nouns.pipeline_plan import PipelinePlan
from partita.nouns.pipeline_problem import Wish
from partita.nouns.profile import Profile
from partita.pipeline.plan.bench import Effort
from partita.pipeline.plan.groups.clusters import best_groupings
from partita.pipeline.plan.groups.crew import Crews, shares
from partita.pipeline.plan.groups.line import line_of
from partita.pipeline.plan.groups.written import written
from partita.pipeline.plan.pipeline_task import PipelineTask
from partita.pipeline.plan.planner import SIMPLER, plan_pipeline
from partita.pipeline.plan.proof import any_plan

worlds = loaded("groups")


def crews_of(profile: Profile, **more: int) -> tuple[PipelineTask, Crews]:
    task = PipelineTask(profile, profile.cluster, Wish())
    bench = task.benches[0]
    return task, Crews(line_of(task, bench), bench.costs.micro_batches, Effort(math.inf), **more)


@pytest.mark.parametrize("seed", [0, 1, 2, 25])
def test_what_is_estimated_is_what_the_simulator_says(seed: int) -> None:
    """On chains: where something passes a device by, the estimate sends it through."""
    profile = worlds.world(seed)
    task, crews = crews_of(profile)
    found = best_groupings(crews, 0, alone=False)
    for s in found[:5]:
        plan = written(task.benches[0], crews.line, s)
        assert plan.check(profile.samples[0].graph, profile.cluster) == []
        assert simulated(plan, profile.samples[0], profile.cluster) == pytest.approx(s.step_s, rel=1e-9)


@FEW
@given(st.lists(st.tuples(st.floats(0.1, 9), st.floats(0.1, 5)), min_size=1, max_size=4), st.integers(1, 9))
def test_shares_are_the_best_there_are(times: list[tuple[float, float]], batches: int) -> None:
    def end(numbers: tuple[int, ...]) -> float:
        return max(f + (n - 1) * e for (f, e), n in zip(times, numbers, strict=True) if n)

    first, each = [f for f, _ in times], [e for _, e in times]
    every = (c for c in itertools.product(range(batches + 1), repeat=len(times)) if sum(c) == batches)
    found = shares(first, each, batches)
    assert sum(found) == batches
    assert end(tuple(found)) <= min(map(end, every)) * (1 + 1e-9)


@pytest.mark.parametrize(
    ("first", "each", "numbers"),
    [
        ([1e12, 1e15, 0.0], [0.0, 0.0, 0.0], [0, 0, 8]),
        ([1e15, 1e-12], [1e15, 0.0], [0, 8]),
        ([0.9, 0.7, 0.2], [0.0, 0.2, 0.1], None),
    ],
)
def test_shares_of_times_far_apart_are_shares(first: list[float], each: list[float], numbers: list[int] | None) -> None:
    found = shares(first, each, 8)
    assert sum(found) == 8
    assert numbers is None or found == numbers


@pytest.mark.parametrize(
    "seed", [2, pytest.param(8, marks=pytest.mark.slow), pytest.param(11, marks=pytest.mark.slow), 25]
)
def test_clustering_comes_near_exhaustive_grouping(seed: int) -> None:
    """benchmarks/groups.py has 200 of these worlds."""
    row = worlds.row(seed)
    assert row["gap"] <= 0.05
    assert row["bound_s"] <= row["best_s"] * (1 + 1e-9)


@pytest.mark.parametrize("seed", range(12))
def test_the_bound_of_any_grouping_is_below_every_plan(seed: int) -> None:
    profile, wishes = problem(seed)
    task = PipelineTask(profile, profile.cluster, Wish())
    best = min((simulated(p, s, profile.cluster) for p, s in every_plan(profile, wishes)), default=math.inf)
    assert any_plan(task)[0] <= best * (1 + 1e-9)


@pytest.mark.parametrize("seed", range(6))
def test_the_bound_of_any_grouping_is_below_every_grouping(seed: int) -> None:
    profile = worlds.world(seed)
    task, crews = crews_of(profile)
    best = min(
        (s.step_s for g in worlds.partitions(crews.devices[:4]) if g and (s := crews.shared(g))), default=math.inf
    )
    assert any_plan(task)[0] <= best * (1 + 1e-9)


def unequal(*speeds: float, rate: float = 1e6, memory: float = math.inf) -> Profile:
    """The chain of six equal tasks on devices of these speeds."""
    base = chain_profile(6, len(speeds))
    devices = tuple(Device(f"cpu{i}", "cpu", memory, s) for i, s in enumerate(speeds))
    return Profile("job.py:job", 8, base.samples, Cluster(devices, (), Link("", "", rate)))


def test_groups_are_tried_whatever_the_schedule_may_be() -> None:
    """ "auto" is the command's default: the best grouping is among what it compares."""
    profile = unequal(1.0, 0.5, 0.5)
    alone = plan_pipeline(profile, method="groups").verdict
    assert plan_pipeline(profile, method="groups", schedule="auto").verdict.value_s == alone.value_s
    verdict = plan_pipeline(profile, schedule="auto").verdict
    assert verdict.compared_s["groups"] == alone.value_s
    assert verdict.value_s <= alone.value_s / (1 - SIMPLER)


def test_a_fast_device_beside_two_slow_ones_gets_its_share_and_the_whole_model() -> None:
    file = plan_pipeline(unequal(1.0, 0.5, 0.5), method="groups")
    plan = file.plan
    assert isinstance(plan, PipelinePlan)
    assert file.verdict.value_s == pytest.approx(4 * 18.0, rel=0.01)  # 8 micro-batches of 18 s on a speed of 2
    by_device = np.zeros(3)
    for d, order in plan.orders.items():
        by_device[int(d[-1])] = len({s.micro_batch for s in order})
    assert by_device[0] == 4
    assert file.verdict.lower_bound_s <= file.verdict.value_s


def test_a_device_too_slow_to_help_is_left_out() -> None:
    plan = plan_pipeline(unequal(1.0, 1.0, 0.01), method="groups").plan
    assert isinstance(plan, PipelinePlan)
    assert "cpu2" not in plan.devices


def test_slow_links_leave_one_device() -> None:
    plan = plan_pipeline(unequal(1.0, 0.5, rate=1e-3), method="groups").plan
    assert plan.devices == ("cpu0",)  # type: ignore[union-attr]


def test_devices_that_hold_only_a_part_make_a_pipeline() -> None:
    """Weights 24 and 6 kept a micro-batch: no device holds the model."""
    file = plan_pipeline(unequal(1.0, 1.0, 1.0, memory=20.0), method="groups", allow_recompute=False)
    plan = file.plan
    assert isinstance(plan, PipelinePlan)
    assert all(len(s.devices) == 1 for s in plan.stages)
    assert len(plan.stages) > 1


def test_the_same_seed_gives_the_same_groups() -> None:
    one, other = (plan_pipeline(worlds.world(3), method="groups", seed=5) for _ in range(2))
    assert one.plan == other.plan
    assert one.verdict.value_s == other.verdict.value_s


def test_sums_travel_behind_earlier_backwards_where_the_devices_do_not_copy_themselves() -> None:
    """Two equal devices, 8 micro-batches, 12 bytes of parameters over links of 1 byte/s: 12 s of sums after 72 s of work; half of
    them behind the backwards of the first three layers."""
    file = plan_pipeline(unequal(1.0, 1.0, rate=1.0), method="groups")
    assert file.verdict.value_s == pytest.approx(4 * 18.0 + 6.0)
    assert len(file.plan.stages) > 1  # type: ignore[union-attr]
    slow = Cluster(file.cluster.devices, (), Link("", "", 1.0, sum_s_per_byte=1e-9))
    whole = plan_pipeline(file.problem.profile, slow, method="groups")  # type: ignore[union-attr]
    assert whole.verdict.value_s > file.verdict.value_s + 4.0


def test_groups_are_among_auto_and_never_worse() -> None:
    file = plan_pipeline(unequal(1.0, 0.5, 0.5))
    assert file.verdict.value_s == min(file.verdict.compared_s.values())
    assert file.verdict.method == "groups"
