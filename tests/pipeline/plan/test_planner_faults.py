"""What was once wrong, each in its smallest form: bounds above plans, values that no simulation gives, budgets not kept."""

from __future__ import annotations

import itertools
import math
import time
from dataclasses import replace

import pytest
from pipeline.plan.brute_force import Wishes, outcome, simulated
from pipeline.plan.planning_worlds import training_graph

from partita.errors import BadInput, CostError
from partita.nouns.cluster import Cluster, Device, Link
from partita.nouns.costs import CostTable
from partita.nouns.graph import SharedParameter, Task, TaskGraph
from partita.nouns.pipeline_problem import Wish
from partita.nouns.probe import Probe, ProbePiece
from partita.nouns.profile import Profile, Sample
from partita.page.plan_rows import stage_rows
from partita.pipeline.plan.bench import Candidate
from partita.pipeline.plan.chain_dp import Segment
from partita.pipeline.plan.pipeline_task import PipelineTask
from partita.pipeline.plan.planner import plan_pipeline
from partita.pipeline.plan.proof import lower_bound
from partita.simulate.predicted import predicted

FAST = Link("", "")


def job(
    cluster: Cluster, *, n: int = 3, batch: int = 4, forward: float = 1.0, parameters: float = 1.0, kept: float = 0.0,
    sent: float = 0.0, transfer: float = math.nan,
) -> Profile:  # fmt: skip
    """A chain of equal tasks, backward as long as forward, updates that take no time, micro-batches of one."""
    graph = training_graph(n, [(i, i + 1) for i in range(n - 1)], [sent] * n, [parameters] * n, [kept] * n)
    times = [[forward]] * (2 * n) + [[0.0]] * n
    costs = CostTable.given(("cpu",), times, [transfer] * len(graph.producer))
    return Profile("job.py:job", batch, (Sample(1, graph, costs),), cluster)


def devices(*memory: float, speed: tuple[float, ...] = ()) -> tuple[Device, ...]:
    speeds = speed or (1.0,) * len(memory)
    return tuple(Device(f"d{i}", "cpu", m, s) for i, (m, s) in enumerate(zip(memory, speeds, strict=True)))


def test_devices_of_different_memory_are_replicas_of_one_stage():
    profile = job(Cluster(devices(100e9, 101e9), (), FAST), batch=12)
    file = plan_pipeline(profile)
    assert (len(file.plan.stages), file.plan.stages[0].replicas) == (1, 2)
    assert file.verdict.value_s == pytest.approx(36.0)
    assert file.verdict.lower_bound_s == pytest.approx(36.0)


def test_devices_of_different_speed_share_a_stage_and_the_bound_knows():
    profile = job(Cluster(devices(math.inf, math.inf, speed=(1.0, 1.25)), (), FAST), n=1, batch=8)
    file = plan_pipeline(profile)
    assert file.plan.stages[0].replicas == 2
    assert outcome(profile, Wishes()).faults == ()


def test_the_bound_counts_all_devices_at_one_stage_where_states_are_too_many():
    """The form for many states left out data parallelism over all devices."""
    heads = 12
    names = [f"t{i}" for i in range(heads)]
    tasks = [Task(t, parameter_bytes=1.0) for t in names] + [Task(f"b{t}", phase="backward", of=t) for t in names]
    graph = TaskGraph.build("wide", tasks, [(t, 0.0, [f"b{t}"]) for t in names])
    costs = CostTable.given(("cpu",), [[1.0]] * len(tasks), [math.nan] * heads)
    profile = Profile("job.py:job", 9, (Sample(1, graph, costs),), Cluster(devices(*[math.inf] * 3), (), FAST))
    task = PipelineTask(profile, profile.cluster, Wish())
    assert len(task.downsets) == 2**heads > len(task.states)
    bound, how = lower_bound(task)
    assert "last stage" in how
    value = plan_pipeline(profile).verdict.value_s
    assert bound <= value * (1 + 1e-9)
    assert value == pytest.approx(9 / 3 * 2 * heads)


def test_what_only_passes_by_is_not_kept_for_recomputation():
    """A stage between the maker and the reader of a large tensor does not hold it."""
    graph = training_graph(3, [(0, 1), (1, 2), (0, 2)], [1.0, 1.0, 0.0], [0.0] * 3, [0.0, 30.0, 0.0])
    big = graph.size_bytes.copy()
    skip = TaskGraph.build(
        "skip", [Task(t.id, phase=t.phase, of=t.of, activation_bytes=t.activation_bytes) for t in graph.tasks],
        [("t0", 1.0, ["t1", "b0"]), ("t0", 20.0, ["t2"]), ("t1", 1.0, ["t2", "b1"]), ("b2", 1.0, ["b1"]),
         ("b2", 20.0, ["b0"]), ("b1", 1.0, ["b0"])],
    )  # fmt: skip
    assert len(big) == len(graph.producer)
    costs = CostTable.given(("cpu",), [[1.0]] * len(skip), [math.nan] * len(skip.producer))
    cluster = Cluster(devices(200.0, 37.0, 200.0), (), FAST)
    profile = Profile("job.py:job", 8, (Sample(1, skip, costs),), cluster)
    found = outcome(profile, Wishes(allow_replicas=False))
    assert found.faults == ()
    file = plan_pipeline(profile, allow_replicas=False)
    assert all(r.need_bytes <= r.memory_bytes for r in stage_rows(file))
    middle = next(r for r in stage_rows(file) if r.devices == ("d1",))
    assert middle.need_bytes <= 37.0


def test_given_transfer_times_bound_instead_of_the_links():
    slow = Link("", "", 1.0)
    profile = job(Cluster(devices(math.inf, math.inf), (), slow), sent=50.0, transfer=0.25, n=4)
    found = outcome(profile, Wishes(allow_replicas=False))
    assert found.faults == ()
    assert found.value_s < 4 * 8.0


@pytest.mark.parametrize("updates", [False, True])
def test_gradients_are_summed_whether_or_not_something_is_updated(updates):
    graph = training_graph(2, [(0, 1)], [1.0, 1.0], [40.0, 40.0], [0.0, 0.0])
    kept = [t for t in graph.tasks if updates or t.phase != "update"]
    tensors = [
        (graph.tasks[p].id, float(graph.size_bytes[k]), [graph.tasks[r].id for r in graph.readers.row(k)])
        for k, p in enumerate(graph.producer.tolist())
    ]
    ids = {t.id for t in kept}
    tensors = [(p, b, [r for r in rs if r in ids]) for p, b, rs in tensors]
    graph = TaskGraph.build("sum", kept, tensors, [SharedParameter("w", 10.0, ("t0", "t1"))])
    costs = CostTable.given(("cpu",), [[1.0]] * len(graph), [math.nan] * len(graph.producer))
    cluster = Cluster(devices(math.inf, math.inf), (), Link("", "", 4.0, 0.5))
    profile = Profile("job.py:job", 4, (Sample(1, graph, costs),), cluster)
    file = plan_pipeline(profile)
    assert file.verdict.value_s == pytest.approx(simulated(file.plan, profile.samples[0], cluster))
    assert outcome(profile, Wishes()).faults == ()


def test_tasks_of_phase_transfer_are_refused():
    graph = TaskGraph.build(
        "t", [Task("a"), Task("move", phase="transfer"), Task("b")], [("a", 1.0, ["move"]), ("move", 1.0, ["b"])]
    )
    costs = CostTable.given(("cpu",), [[1.0], [5.0], [1.0]], [math.nan] * 2)
    profile = Profile("job.py:job", 2, (Sample(1, graph, costs),), Cluster.uniform(2))
    with pytest.raises(CostError, match=r"task 'move' .* phase 'transfer'"):
        plan_pipeline(profile)


def test_one_micro_batch_in_flight_fits_where_more_do_not():
    profile = job(Cluster(devices(12.0, 12.0), (), FAST), n=2, parameters=1.0, kept=8.0)
    file = plan_pipeline(profile, allow_recompute=False, allow_replicas=False)
    assert (len(file.plan.stages), file.plan.in_flight) == (2, 1)
    assert outcome(profile, Wishes(allow_recompute=False, allow_replicas=False)).faults == ()


def distinct(n: int) -> Cluster:
    """Devices no two of which are alike."""
    return Cluster(
        devices(*[math.inf] * n, speed=tuple(1.0 + 3.0 * (37 * i % n) / n for i in range(n))), (), Link("", "", 100.0)
    )


@pytest.mark.machine
@pytest.mark.parametrize(("n", "most_s"), [(14, 3.0), (60, 6.0), (2_000, 9.0), (10_000, 9.0)])
def test_devices_that_all_differ_are_planned_within_the_budget(n, most_s):
    """The CPU's time, which other processes do not take; twice the budget, for slow machines and compiling."""
    profile = job(Cluster.uniform(1), n=20, batch=16, parameters=1.0, sent=1.0)
    began = time.process_time()
    file = plan_pipeline(profile, distinct(n), budget_s=1.0)
    assert time.process_time() - began < most_s
    alone = plan_pipeline(profile, distinct(n), method="single").verdict.value_s
    assert file.verdict.lower_bound_s <= file.verdict.value_s < alone / 4


def test_the_same_seed_gives_the_same_plan_and_more_budget_no_worse_one():
    profile = job(Cluster.uniform(1), n=20, batch=16, parameters=1.0, sent=1.0)
    first, again = (plan_pipeline(profile, distinct(14), budget_s=0.2, seed=3) for _ in range(2))
    assert first.plan == again.plan
    assert plan_pipeline(profile, distinct(14), budget_s=0.8, seed=3).verdict.value_s <= first.verdict.value_s


def test_a_batch_of_too_many_micro_batches_is_refused_at_once():
    profile = replace(job(Cluster.uniform(2)), batch_size=10**9)
    began = time.process_time()
    with pytest.raises(BadInput, match=r"1000000000 micro-batches .* can be planned in a budget of 10.0 s"):
        plan_pipeline(profile)
    assert time.process_time() - began < 5


def test_the_value_counts_the_sum_of_the_norm_that_clipping_needs():
    profile = replace(job(Cluster(devices(math.inf, math.inf), (), Link("", "", latency_s=0.5)), batch=16), clips=True)
    file = plan_pipeline(profile)
    assert len(file.plan.devices) == 2
    assert file.verdict.value_s == predicted(file.problem, file.plan).duration_s
    assert file.verdict.value_s == pytest.approx(file.verdict.compared_s[file.verdict.method])


def test_large_clusters_are_checked_and_searched_in_linear_time():
    n = 50_000
    names = [f"d{i}" for i in range(n)]
    links = tuple(Link(a, b) for a, b in itertools.pairwise(names))
    began = time.process_time()
    cluster = Cluster(tuple(Device(x) for x in names), links)
    assert cluster.check() == []
    assert len(cluster.links_in_use()) == n
    assert len(cluster.first(10).links) == 9
    assert time.process_time() - began < 10


def test_a_program_kept_from_next_to_nothing_serves_cuts_that_send_much():
    graph = training_graph(3, [(0, 1), (1, 2)], [5e-324, 8.0, 0.0], [1.0] * 3, [0.0] * 3)
    costs = CostTable.given(("cpu",), [[1.0]] * len(graph), [math.nan] * len(graph.producer))
    cluster = Cluster(devices(math.inf, math.inf), (), Link("", "", 4.0))
    profile = Profile("job.py:job", 4, (Sample(1, graph, costs),), cluster)
    bench = PipelineTask(profile, cluster, Wish()).benches[0]
    for cut in (1, 2):  # the second takes the program that was made for the first
        candidate = Candidate(0, (Segment(0, cut, (0,)), Segment(cut, 3, (1,))), 2)
        exact = simulated(bench.plan(candidate), profile.samples[0], cluster)
        assert bench.step_s(candidate) == pytest.approx(exact, rel=1e-12)


@pytest.mark.parametrize(
    ("schedule", "message_s", "measured", "used"),
    [(None, 0.6, True, 1), (None, 0.6, False, 2), (None, 0.0, True, 2), ("auto", 0.95, True, 1), ("auto", 0.95, False, 2), ("auto", 0.8, True, 1), ("auto", 0.4, True, 2)],
)  # fmt: skip
def test_measured_jobs_take_further_devices_only_where_they_save_what_predictions_miss(
    schedule, message_s, measured, used
):
    """Deep perceptrons were planned on two devices for 0.2 % and then ran 12 % slower."""
    profile = job(Cluster(devices(math.inf, math.inf), (), Link("", "", message_s=message_s)), n=2, batch=2)
    if measured:
        probed = replace(profile.samples[0], probe=Probe((ProbePiece(("t0",), 1e-3),), 1))
        profile = replace(profile, samples=(probed,))
    file = plan_pipeline(profile, allow_replicas=False, schedule=schedule)
    values = file.verdict.compared_s
    assert len(file.plan.devices) == used
    assert (file.verdict.method == "single") == (used == 1)
    assert values["single"] == pytest.approx(8.0)
    assert values[file.verdict.method] == pytest.approx(file.verdict.value_s)
    assert min(values.values()) < 8.0
    assert len(plan_pipeline(profile, allow_replicas=False, schedule=schedule, pays=0.0).plan.devices) == 2
