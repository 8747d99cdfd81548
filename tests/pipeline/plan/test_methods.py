"""What every method of planning a pipeline promises, and what the planner promises on top of it."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pipeline.plan.brute_force import Wishes, outcome
from pipeline.plan.planning_worlds import FEW, chain_profile, profiles

from partita.errors import BadInput, ClusterError, Infeasible
from partita.nouns.cluster import Cluster, Device, Link
from partita.nouns.costs import CostTable
from partita.nouns.graph import Task, TaskGraph
from partita.nouns.pipeline_plan import PipelinePlan
from partita.nouns.plan import PlanFile
from partita.nouns.probe import Probe, ProbePiece
from partita.nouns.profile import Profile, Sample
from partita.page.plan_rows import stage_rows
from partita.pipeline.plan.methods import METHODS
from partita.pipeline.plan.pipeline_task import PipelineTask, Wish
from partita.pipeline.plan.planner import plan_pipeline
from partita.simulate.predicted import predicted


def planned(profile: Profile, **wish) -> PlanFile | None:
    try:
        return plan_pipeline(profile, **wish)
    except Infeasible:
        return None


@pytest.mark.parametrize("method", METHODS)
@given(data=st.data())
@FEW
def test_contract(method, data):
    """Feasible, as fast as it says, bound <= value, the same again, and what is fast in a bench is fast in the simulator."""
    profile = data.draw(profiles(tight=data.draw(st.booleans())))
    if data.draw(st.booleans()):
        devices = tuple(replace(d, cold_s=0.1 + 0.1 * k) for k, d in enumerate(profile.cluster.devices))
        profile = replace(profile, cluster=replace(profile.cluster, devices=devices))
    file = planned(profile, method=method)
    if file is None:
        return
    plan, verdict = file.plan, file.verdict
    assert isinstance(plan, PipelinePlan)
    assert plan.check(file.graph, file.cluster) == []
    assert verdict.value_s == pytest.approx(predicted(file.problem, plan).duration_s, rel=1e-12)
    assert 0 < verdict.lower_bound_s <= verdict.value_s
    assert all(r.need_bytes <= r.memory_bytes * (1 + 1e-12) for r in stage_rows(file))
    again = plan_pipeline(profile, method=method).plan
    assert again == plan
    task = PipelineTask(profile, profile.cluster, Wish())
    for candidate in list(METHODS[method](task))[:40]:
        bench = task.bench(candidate)
        if bench.fits(candidate):
            problem = replace(
                file.problem,
                graph=bench.sample.graph,
                costs=bench.sample.costs,
                micro_batch_size=bench.sample.micro_batch_size,
            )
            exact = predicted(problem, bench.plan(candidate)).duration_s
            assert bench.step_s(candidate) == pytest.approx(
                exact, rel=1e-10
            )  # what a wait costs grows 500 times as fast


@given(profiles(), st.booleans())
@FEW
def test_no_claim_is_wrong_against_every_plan(profile, replicas):
    assert outcome(profile, Wishes(allow_replicas=replicas)).faults == ()


@given(profiles(equal=True), st.floats(1.0, 4.0))
@FEW
def test_laws(profile, faster):
    """Never above one device; a faster cluster and one more device never worsen the plan of a small graph."""
    file = plan_pipeline(profile)
    value = file.verdict.value_s
    assert value <= plan_pipeline(profile, method="single").verdict.value_s
    c = profile.cluster
    sped = replace(c, devices=tuple(replace(d, speed=d.speed * faster) for d in c.devices))
    assert plan_pipeline(profile, sped).verdict.value_s <= value * (1 + 1e-9)
    more = replace(c, devices=(*c.devices, replace(c.devices[0], name="one more")))
    assert plan_pipeline(profile, more).verdict.value_s <= value * (1 + 1e-9)


def test_two_equal_devices_share_a_chain_evenly():
    file = plan_pipeline(chain_profile(), allow_replicas=False)
    assert [len(s.tasks) for s in file.plan.stages] == [3, 3]
    assert file.plan.micro_batches == 8
    assert file.plan.devices == ("cpu0", "cpu1")
    assert file.verdict.compared_s["single"] == pytest.approx(8 * 18.0)
    assert file.verdict.value_s == pytest.approx(8 * 9.0 + 9.0, rel=1e-4)  # busy, fill and drain
    assert file.verdict.method in METHODS


def test_memory_moves_the_cut_or_is_named_when_nothing_fits():
    # a stage holds 4 bytes of weights and gradients a layer, and 1 byte a layer and micro-batch in flight
    free = plan_pipeline(chain_profile(memory=100.0), allow_replicas=False)
    assert [r.need_bytes for r in stage_rows(free)][1] == 3 * 4 + 3
    least = plan_pipeline(chain_profile(memory=17.0), allow_replicas=False)
    assert all(r.need_bytes <= 17 for r in stage_rows(least))
    with pytest.raises(Infeasible, match=r"Stage \d of 2 needs 13 bytes; its device has 8 bytes") as error:
        plan_pipeline(chain_profile(memory=8.0, kept=0.125))
    assert "memory" in error.value.constraint
    needed = float(error.value.relaxation.split()[3])
    assert planned(chain_profile(memory=needed, kept=0.125)) is not None
    assert planned(chain_profile(memory=needed - 1, kept=0.125)) is None
    devices = int(error.value.relaxation.split()[-2])
    assert planned(chain_profile(memory=8.0, kept=0.125, devices=devices)) is not None
    assert planned(chain_profile(memory=8.0, kept=0.125, devices=devices - 1)) is None


def test_recomputing_is_chosen_where_that_keeps_more_in_flight():
    profile = chain_profile(memory=26.0, kept=4.0)
    again = plan_pipeline(profile, allow_replicas=False)
    assert any(r.recompute for r in stage_rows(again))
    waiting = plan_pipeline(profile, allow_recompute=False, allow_replicas=False)  # one micro-batch at a time
    assert waiting.plan.in_flight == 1
    assert again.verdict.value_s < waiting.verdict.value_s
    with pytest.raises(Infeasible):
        plan_pipeline(profile, allow_recompute=False, allow_replicas=False, in_flight=2)


@pytest.mark.parametrize(
    ("wish", "kind", "fact"),
    [
        ({"method": "magic"}, BadInput, "unknown method 'magic'.*known: auto, single"),
        ({"micro_batches": 3}, BadInput, "3 micro-batches were not measured; measured: 8"),
        ({"stages": 0}, BadInput, "stages is 0"),
        ({"in_flight": -1}, BadInput, "in_flight is -1"),
        ({"stages": 3}, Infeasible, "3 stages asked for; the cluster has 2 devices.*at most 2"),
        ({"stages": 7}, Infeasible, "7 stages asked for; the model has 6 units.*at most 6"),
        ({"cluster": Cluster(())}, ClusterError, "no devices"),
    ],
)
def test_wishes_that_cannot_be_met_say_why(wish, kind, fact):
    with pytest.raises(kind) as error:
        plan_pipeline(chain_profile(), **wish)
    import re

    assert re.search(fact, str(error.value)), str(error.value)


def test_wishes_are_followed():
    profile = chain_profile(devices=3)
    assert len(plan_pipeline(profile, stages=2).plan.stages) == 2
    assert len(plan_pipeline(profile, stages=1, allow_replicas=False).plan.stages) == 1
    assert plan_pipeline(profile, stages=3, in_flight=5).plan.in_flight == 5
    gpipe = plan_pipeline(profile, stages=3, schedule="gpipe").plan
    assert (gpipe.schedule, gpipe.in_flight) == ("gpipe", 8)
    even = plan_pipeline(profile, method="even").plan
    assert [len(s.tasks) for s in even.stages] == [2, 2, 2]


def test_a_plan_file_makes_the_round_trip(tmp_path):
    file = plan_pipeline(chain_profile())
    back = PlanFile.read(file.write(tmp_path / "plan.json"))
    assert back.plan == file.plan
    assert stage_rows(back) == stage_rows(file)
    assert back.verdict.compared_s == file.verdict.compared_s


@pytest.mark.parametrize("schedule", [None, "auto"])
def test_without_gradients_nothing_is_updated(schedule) -> None:
    """Updates that a graph without backwards has are neither simulated nor in the bound."""
    tasks = [Task("a"), Task("b"), Task("ua", phase="update", of="a"), Task("ub", phase="update", of="b")]
    graph = TaskGraph.build("no backward", tasks, [("a", 1.0, ["b"])])
    costs = CostTable.given(("cpu",), [[1.0], [1.0], [5.0], [5.0]], [math.nan] * len(graph.producer))
    cluster = Cluster((Device("d0"), Device("d1")), (), Link("", "", 1e6))
    profile = Profile("j.py:j", 4, (Sample(1, graph, costs),), cluster)
    for method in ("auto", "single"):
        verdict = plan_pipeline(profile, schedule=schedule, method=method).verdict
        assert 3.999 <= verdict.lower_bound_s <= verdict.value_s <= 8.0


@pytest.mark.parametrize(("message_s", "devices"), [(0.0, 2), (3.0, 2), (4.5, 1)])
def test_what_is_saved_must_be_more_than_the_doubt_about_messages(message_s: float, devices: int) -> None:
    """Of a measured job. Messages of 4.5 s leave a sixth to save, if they take no longer than that."""
    profile = chain_profile()
    samples = (replace(profile.samples[0], probe=Probe((ProbePiece(("t0",), 1e-3),), 1)),)
    cluster = replace(profile.cluster, default_link=Link("", "", 1e6, message_s=message_s))
    wish = {"schedule": "1f1b", "allow_replicas": False}
    file = plan_pipeline(replace(profile, samples=samples, cluster=cluster), **wish)
    assert len(file.plan.devices) == devices
    sure = plan_pipeline(replace(profile, cluster=cluster), **wish).verdict.value_s
    assert sure < 0.86 * 144.0  # what is given is taken at its word
