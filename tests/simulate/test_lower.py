"""Lower: who computes what in which order, what is sent to whom, and which gradients are summed."""

from __future__ import annotations

import dataclasses
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_worlds import graphs, placed, stage_plan, training_chain

from partita.errors import PlanError
from partita.nouns.cluster import Cluster, Device, Link
from partita.nouns.graph import SharedParameter, Task, TaskGraph
from partita.nouns.pipeline_plan import PipelinePlan, Slot, Stage
from partita.nouns.program import Instruction, Op, Program
from partita.simulate.lower import boundaries, lower


def lines(program: Program, queue: str) -> list[str]:
    return [str(i) for i in program if i.queue == queue]


def of(program: Program, op: Op) -> list[Instruction]:
    return [i for i in program if i.op == op]


def assert_sent_is_received(program: Program) -> None:
    """Every message is sent once, by the device that made it, and received once, where it goes."""
    sends = {i.id: i for i in of(program, Op.SEND)}
    received = Counter(j for i in of(program, Op.RECV) for j in i.needs)
    assert received == Counter(sends.keys())
    for receive in of(program, Op.RECV):
        send = sends[receive.needs[0]]
        assert (send.piece, send.micro_batch) == (receive.piece, receive.micro_batch)
        assert receive.queue == send.piece.route[1]
        assert {program[j].queue for j in send.needs} == {send.piece.route[0]}


def test_stages_that_read_nothing_of_each_other_do_not_wait_on_a_medium() -> None:
    """Two readers of one tensor on one device, the later stage first: sound, whoever serves the link."""
    graph = TaskGraph.build("fork", [Task("a"), Task("b"), Task("c")], [("a", 1.0, ["b", "c"])])
    stages = tuple(Stage((t,), (d,)) for t, d in (("a", "x"), ("b", "y"), ("c", "y")))
    orders = {"x": (Slot("F", 0, 0),), "y": (Slot("F", 2, 0), Slot("F", 1, 0))}
    plan = PipelinePlan(graph.fingerprint, stages, 1, 1, "given", orders)
    for medium in ("", "bus"):
        cluster = Cluster((Device("x"), Device("y")), (), Link("", "", 1.0, medium=medium))
        program = lower(graph, cluster, plan)
        assert_sent_is_received(program)
        assert [i.piece.name for i in of(program, Op.COMPUTE)] == ["F0", "F2", "F1"]


def test_two_stages_under_1f1b() -> None:
    graph = training_chain(2, size_bytes=8.0, update=True)
    program = lower(graph, Cluster.uniform(2), stage_plan(graph, [1, 1], 3, 3))
    assert lines(program, "cpu0") == [
        "compute F0 micro-batch 0", "compute F0 micro-batch 1", "compute F0 micro-batch 2",
        "recv B1>B0 micro-batch 0", "compute B0 micro-batch 0", "recv B1>B0 micro-batch 1", "compute B0 micro-batch 1",
        "recv B1>B0 micro-batch 2", "compute B0 micro-batch 2", "update U0",
    ]  # fmt: skip
    assert lines(program, "cpu1") == [
        "recv F0>F1 micro-batch 0", "compute F1 micro-batch 0", "compute B1 micro-batch 0",
        "recv F0>F1 micro-batch 1", "compute F1 micro-batch 1", "compute B1 micro-batch 1",
        "recv F0>F1 micro-batch 2", "compute F1 micro-batch 2", "compute B1 micro-batch 2", "update U1",
    ]  # fmt: skip
    assert lines(program, "cpu0->cpu1") == [f"send F0>F1 micro-batch {m}" for m in range(3)]
    assert lines(program, "cpu1->cpu0") == [f"send B1>B0 micro-batch {m}" for m in range(3)]
    assert {i.size_bytes for i in of(program, Op.SEND)} == {8.0}
    assert [graph.tasks[t].id for i in of(program, Op.UPDATE) for t in i.piece.tasks] == ["u0", "u1"]
    assert_sent_is_received(program)


def test_a_skip_goes_straight_over_the_stage_between() -> None:
    graph = training_chain(3, skips=[(0, 2)])
    plan = stage_plan(graph, [1, 1, 1], 2, 3)
    assert [(b.source, b.target, len(b.gradients)) for b in boundaries(graph, plan)] == [
        (0, 1, 1),
        (0, 2, 1),
        (1, 2, 1),
    ]
    program = lower(graph, Cluster.uniform(3), plan)
    assert lines(program, "cpu0->cpu2") == ["send F0>F2 micro-batch 0", "send F0>F2 micro-batch 1"]
    assert lines(program, "cpu2->cpu0") == ["send B2>B0 micro-batch 0", "send B2>B0 micro-batch 1"]
    assert_sent_is_received(program)


def test_what_two_stages_of_a_device_read_goes_there_once_and_its_gradients_come_back_summed() -> None:
    graph = training_chain(4, skips=[(0, 3)])
    plan = stage_plan(graph, [1, 1, 1, 1], 1, 4)
    places = ("cpu0", "cpu1", "cpu0", "cpu1")
    plan = dataclasses.replace(
        plan, stages=tuple(dataclasses.replace(s, devices=(d,)) for s, d in zip(plan.stages, places, strict=True))
    )
    program = lower(graph, Cluster.uniform(2), plan)
    assert lines(program, "cpu0->cpu1") == [
        "send F0>F1 micro-batch 0",
        "send F2>F3 micro-batch 0",
        "send B2>B1 micro-batch 0",
    ]
    assert lines(program, "cpu1->cpu0") == [
        "send F1>F2 micro-batch 0",
        "send B3>B2 micro-batch 0",
        "send B1>B0 micro-batch 0",
    ]
    last = next(i for i in program if str(i) == "compute F3 micro-batch 0")
    assert {str(program[j]) for j in last.needs} == {"recv F0>F1 micro-batch 0", "recv F2>F3 micro-batch 0"}
    assert_sent_is_received(program)


def test_a_message_carries_all_that_one_stage_reads_of_another() -> None:
    tasks = [Task(i) for i in "abcd"]
    graph = TaskGraph.build(
        "g", tasks, [("a", 1.0, ["c", "d"]), ("b", 2.0, ["d"]), ("b", 4.0, ["c"]), ("a", 8.0, ["b"])]
    )
    plan = PipelinePlan(graph.fingerprint, (Stage(("a", "b"), ("cpu0",)), Stage(("c", "d"), ("cpu1",))), 1, 1, "1f1b")
    (send,) = of(lower(graph, Cluster.uniform(2), plan), Op.SEND)
    assert (send.piece.tensors, send.size_bytes) == ((0, 1, 2), 7.0)  # once, however many read it; not what stays


def test_without_backwards_there_are_only_forwards() -> None:
    graph = TaskGraph.build("g", [Task("f0"), Task("f1")], [("f0", 1.0, ["f1"])])
    program = lower(graph, Cluster.uniform(3), stage_plan(graph, [2, 1], 4, 2))
    assert {i.op for i in program} == {Op.COMPUTE, Op.SEND, Op.RECV, Op.FREE}
    assert {i.piece.kind for i in of(program, Op.COMPUTE)} == {"forward"}


def test_replicas_take_micro_batches_in_turn() -> None:
    graph = training_chain(2)
    program = lower(graph, Cluster.uniform(5), stage_plan(graph, [2, 3], 6, 5))
    where = {(i.piece.name, i.micro_batch): i.queue for i in of(program, Op.COMPUTE)}
    assert where == {
        (f"{p}{k}", m): f"cpu{2 * k + m % (2, 3)[k]}" for p in "FB" for k in range(2) for m in range(6)
    }  # fmt: skip
    routes = {i.micro_batch: i.piece.route for i in of(program, Op.SEND) if i.piece.name == "F0>F1"}
    assert routes == {m: (f"cpu{m % 2}", f"cpu{2 + m % 3}") for m in range(6)}
    assert_sent_is_received(program)


def test_recomputing_runs_the_forward_again_before_the_backward() -> None:
    graph = training_chain(2)
    program = lower(graph, Cluster.uniform(2), stage_plan(graph, [1, 1], 1, 1, recompute=True))
    tasks = {i.piece.name: [graph.tasks[t].id for t in i.piece.tasks] for i in of(program, Op.COMPUTE)}
    assert tasks == {"F0": ["f0"], "F1": ["f1"], "B0": ["f0", "b0"], "B1": ["f1", "b1"]}


@pytest.mark.parametrize("update", [False, True])
def test_gradients_of_replicas_are_summed_in_a_ring_before_the_update(update: bool) -> None:
    graph = training_chain(2, parameter_bytes=6.0, update=update)
    program = lower(graph, Cluster.uniform(4), stage_plan(graph, [3, 1], 6, 6))
    reduces = of(program, Op.REDUCE)
    assert [(i.queue, i.piece.name) for i in reduces] == [
        ("cpu0->cpu1", "R0"), ("cpu1->cpu2", "R0"), ("cpu2->cpu0", "R0")
    ]  # fmt: skip
    assert {i.size_bytes for i in reduces} == {2 * 2 / 3 * 6.0}  # each member sends 2 (m - 1) / m of the gradient
    last = {d: max(i.id for i in of(program, Op.COMPUTE) if i.queue == d) for d in ("cpu0", "cpu1", "cpu2")}
    assert all(set(i.needs) == set(last.values()) for i in reduces)
    updates = of(program, Op.UPDATE)
    assert [i.queue for i in updates] == ["cpu0", "cpu1", "cpu2", "cpu3"]  # without any, they end what was summed
    assert all({r.id for r in reduces} <= set(i.needs) for i in updates[:3])


def test_a_parameter_shared_by_stages_has_its_gradient_summed_over_them() -> None:
    tied = SharedParameter("embedding", 4.0, ("f0", "f2"))
    graph = training_chain(3, parameter_bytes=10.0, shared=[tied], update=True)
    program = lower(graph, Cluster.uniform(3), stage_plan(graph, [1, 1, 1], 2, 3))
    reduces = of(program, Op.REDUCE)
    assert [(i.piece.name, i.piece.route, i.size_bytes) for i in reduces] == [
        ("R0+2", ("cpu0", "cpu2"), 4.0), ("R0+2", ("cpu2", "cpu0"), 4.0)
    ]  # fmt: skip
    needs = {i.queue: set(i.needs) & {r.id for r in reduces} for i in of(program, Op.UPDATE)}
    assert needs == {"cpu0": {r.id for r in reduces}, "cpu1": set(), "cpu2": {r.id for r in reduces}}


def test_a_parameter_shared_within_a_stage_is_summed_once_and_only_over_replicas() -> None:
    tasks = [Task("f0", parameter_bytes=10.0), Task("f1", parameter_bytes=10.0)]
    tasks += [Task(f"b{i}", phase="backward", of=f"f{i}") for i in (1, 0)]
    tensors = [("f0", 1.0, ["f1"]), ("f1", 1.0, ["b1"]), ("b1", 1.0, ["b0"])]
    graph = TaskGraph.build("g", tasks, tensors, [SharedParameter("w", 4.0, ("f0", "f1"))])
    stage = Stage(("f0", "f1"), ("cpu0", "cpu1"))
    program = lower(graph, Cluster.uniform(2), PipelinePlan(graph.fingerprint, (stage,), 2, 2, "1f1b"))
    assert [(i.piece.name, i.size_bytes) for i in of(program, Op.REDUCE)] == [("R0", 16.0), ("R0", 16.0)]


@given(graphs(), st.data())
def test_a_placement_runs_every_task_once_after_all_it_reads(graph: TaskGraph, data: st.DataObject) -> None:
    graph = TaskGraph.build(
        "g",
        [dataclasses.replace(t, group=None) for t in graph.tasks],
        [
            (graph.tasks[p].id, float(b), [graph.tasks[r].id for r in graph.readers.row(k)])
            for k, (p, b) in enumerate(zip(graph.producer, graph.size_bytes, strict=True))
        ],
    )
    where = [data.draw(st.sampled_from(["cpu0", "cpu1", "cpu2"])) for _ in graph.tasks]
    program = lower(graph, Cluster.uniform(3), placed(graph, where))
    runs = {i.piece.tasks[0]: i for i in program if i.op in (Op.COMPUTE, Op.UPDATE)}
    assert len(runs) == len(of(program, Op.COMPUTE)) + len(of(program, Op.UPDATE)) == len(graph)
    assert [runs[t].queue for t in range(len(graph))] == where
    assert_sent_is_received(program)
    wanted = Counter(
        (k, where[r])
        for k, p in enumerate(graph.producer.tolist())
        for r in set(graph.readers.row(k).tolist())
        if where[r] != where[p]
    )
    assert {(i.piece.tensors[0], i.piece.route[1]) for i in of(program, Op.SEND)} == set(wanted)
    assert {i.size_bytes == graph.size_bytes[i.piece.tensors[0]] for i in of(program, Op.SEND)} <= {True}
    for t, run in runs.items():
        before = {j for i in run.needs for j in (i, *(s for r in program[i].needs for s in program[r].needs))}
        assert {runs[int(u)].id for u in graph.predecessors.row(t)} <= before | set(run.needs)


def test_links_of_one_medium_are_one_queue_and_may_be_fair() -> None:
    graph = training_chain(2)
    devices = (Device("cpu0"), Device("cpu1"))
    links = (Link("cpu0", "cpu1", medium="air", fair=True), Link("cpu1", "cpu0", medium="air", fair=True))
    plan = stage_plan(graph, [1, 1], 2, 2)
    program = lower(graph, Cluster(devices, links), plan)
    assert program.queues == ("cpu0", "cpu1", "air")
    assert program.fair == {"air"}
    assert lower(graph, Cluster(devices, (), Link("", "", fair=True)), plan).fair == {"cpu0->cpu1", "cpu1->cpu0"}
    assert lower(graph, Cluster(devices), plan).fair == frozenset()


def test_a_plan_that_does_not_fit_is_refused() -> None:
    graph = training_chain(2)
    plan = stage_plan(graph, [1, 2], 2, 2)
    with pytest.raises(PlanError, match=r"the plan does not fit: unknown device 'cpu2'.* hint: plan again"):
        lower(graph, Cluster.uniform(2), plan)
    with pytest.raises(PlanError, match="it was made for graph"):
        lower(training_chain(3), Cluster.uniform(3), plan)


def test_a_program_too_large_is_refused_before_it_is_made() -> None:
    graph = training_chain(2)
    with pytest.raises(
        PlanError, match=r"1000000000 micro-batches over 2 stages make 8000000000 instructions; at most"
    ):
        lower(graph, Cluster.uniform(2), stage_plan(graph, [1, 1], 10**9, 2))
