"""Simulate: laws, closed formulas, cases computed by hand, and a naive simulator that must agree on any program."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_worlds import given_costs, placed, stage_plan, training_chain

from partita.errors import CostError, PlanError, ProgramError
from partita.nouns.cluster import Cluster, Device, Link
from partita.nouns.costs import CostTable
from partita.nouns.graph import SharedParameter, Task, TaskGraph
from partita.nouns.pipeline_plan import Schedule
from partita.nouns.plan import GraphPlan
from partita.nouns.program import Builder, Op, Piece, Program
from partita.nouns.timeline import Timeline
from partita.simulate.exchange import ring_s
from partita.simulate.lower import lower
from partita.simulate.simulator import Durations, Simulator, durations, simulate, times
from partita.solve.compiled import compiled

DEVICES = ("cpu0", "cpu1")
LINKS = ("link", "bus", "air")
Spans = list[tuple[float, float]]


def naive(program: Program, busy: Sequence[float], lag: Sequence[float]) -> Spans | None:
    """Start and end of every instruction by stepping from event to event; None where some never run.

    Nothing is shared with the simulator: at every event each queue looks whether its next instruction may start, and
    what is under way on a fair queue loses the time since the last event divided by how many were under way there.
    """
    n = len(program)
    start, left, end = [math.inf] * n, list(busy), [math.inf] * n
    fair = [program[i].queue in program.fair for i in range(n)]
    now = 0.0
    while True:
        moved = True
        while moved:
            moved = False
            for i in range(n):
                if start[i] < math.inf:
                    continue
                before = [j for j in range(i) if program[j].queue == program[i].queue and not fair[i]]
                if all(end[j] <= now for j in before) and all(end[j] + lag[j] <= now for j in program[i].needs):
                    start[i] = now
                    if not fair[i] or busy[i] == 0:
                        end[i] = now + busy[i]
                    moved = True
        under_way = [i for i in range(n) if fair[i] and start[i] <= now and end[i] == math.inf]
        load = {i: sum(program[j].queue == program[i].queue for j in under_way) for i in under_way}
        later = [t for i in range(n) for t in (end[i], end[i] + lag[i]) if now < t < math.inf]
        later += [now + left[i] * load[i] for i in under_way]
        if not later:
            break
        then = min(later)
        for i in under_way:
            if now + left[i] * load[i] <= then * (1 + 1e-12):
                end[i] = then
            left[i] -= (then - now) / load[i]
        now = then
    return None if math.inf in end else list(zip(start, end, strict=True))


@st.composite
def programs(draw: st.DrawFn, *, fair: Sequence[str] = ("air",), acyclic: bool = False) -> tuple[Program, Durations]:
    """Computations and transfers that need any others, numbered in any order (so that some wait in a circle)."""
    n = draw(st.integers(1, 12))
    build = Builder(DEVICES)
    queues = [draw(st.sampled_from(DEVICES + LINKS)) for _ in range(n)]
    for i, queue in enumerate(queues):
        build.add(Op.COMPUTE if queue in DEVICES else Op.SEND, queue, Piece(f"P{i}", "forward", 0), i)
    forward_only = acyclic or draw(st.booleans())
    pairs = [(i, j) for i in range(n) for j in range(n) if (j < i if forward_only else j != i)]
    for i, j in draw(st.lists(st.sampled_from(pairs), max_size=2 * n)) if pairs else []:
        build.need(i, j)
    size = st.sampled_from([0.0, 1.0, 2.0, 3.0]) | st.floats(0, 10)
    busy = draw(st.lists(size, min_size=n, max_size=n))
    lag = [draw(st.sampled_from([0.0, 0.5, 2.0])) if queue in LINKS else 0.0 for queue in queues]
    return build.program(fair=fair), Durations(np.array(busy), np.array(lag))


@settings(max_examples=400)
@given(programs())
def test_it_agrees_with_a_naive_simulator(made: tuple[Program, Durations]) -> None:
    program, d = made
    expected = naive(program, d.busy_s.tolist(), d.lag_s.tolist())
    if expected is None:
        with pytest.raises(ProgramError, match="the program cannot progress"):
            times(program, d)
        with pytest.raises(ProgramError, match="the program cannot progress"):
            Simulator(program)
        return
    start, end = times(program, d)
    np.testing.assert_allclose(start, [s for s, _ in expected], rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(end, [e for _, e in expected], rtol=1e-9, atol=1e-9)


@settings(max_examples=200)
@given(programs(), st.integers(1, 19))
def test_the_compiled_form_gives_the_same_makespans(made: tuple[Program, Durations], rows: int) -> None:
    program, d = made
    many = d.busy_s * np.random.default_rng(rows).uniform(0, 2, (rows, 1)) ** np.arange(len(program))
    try:
        expected = [times(program, Durations(busy, d.lag_s))[1].max() for busy in many]
    except ProgramError:
        return
    simulator = Simulator(program)
    np.testing.assert_allclose(simulator.evaluate_many(many, d.lag_s), expected, rtol=1e-12)
    assert simulator.evaluate(many[0], d.lag_s) == pytest.approx(expected[0], rel=1e-12)


def longest_path(program: Program, d: Durations) -> float:
    """The longest chain of needs, with latencies between; instructions need only earlier ones."""
    ready: list[float] = []
    for i in program:
        ready.append(max((ready[j] + d.lag_s[j] for j in i.needs), default=0.0) + d.busy_s[i.id])
    return max(ready)


@given(programs(acyclic=True))
def test_no_makespan_is_below_the_critical_path_or_the_work_of_a_queue(made: tuple[Program, Durations]) -> None:
    program, d = made
    makespan = simulate(program, d).duration_s * (1 + 1e-12)
    assert makespan >= longest_path(program, d)
    for q in range(len(program.queues)):
        assert makespan >= d.busy_s[program.queue == q].sum() * (1 - 1e-12)
    assert makespan <= (d.busy_s.sum() + d.lag_s.sum()) * (1 + 1e-12) + 1e-12


@given(programs())
def test_the_critical_path_of_a_simulated_timeline_has_no_gaps(made: tuple[Program, Durations]) -> None:
    program, d = made
    try:
        timeline = simulate(program, d)
    except ProgramError:
        return
    path = timeline.critical_path(program, d.lag_s)
    assert timeline.start_s[path[0]] == 0.0
    assert timeline.end_s[path[-1]] == timeline.end_s.max()
    for a, b in itertools.pairwise(path):
        latency = d.lag_s[a] if a in program.needs.row(b) else 0.0
        assert timeline.start_s[b] == pytest.approx(timeline.end_s[a] + latency, abs=1e-9)


@given(programs(fair=()), st.data())
def test_a_faster_device_never_worsens_a_program_in_order(made: tuple[Program, Durations], data: st.DataObject) -> None:
    program, d = made
    quicker = d.busy_s.copy()
    quicker[program.queue == data.draw(st.integers(0, len(program.queues) - 1))] *= data.draw(st.floats(0, 1))
    try:
        slow = times(program, d)[1]
    except ProgramError:
        return
    assert (times(program, Durations(quicker, d.lag_s))[1] <= slow).all()


@given(programs())
def test_an_in_order_queue_does_one_thing_at_a_time(made: tuple[Program, Durations]) -> None:
    program, d = made
    try:
        start, end = times(program, d)
    except ProgramError:
        return
    for q, items in enumerate(program.by_queue):
        if program.queues[q] not in program.fair:
            assert (start[items[1:]] >= end[items[:-1]]).all()
            np.testing.assert_allclose(end[items] - start[items], d.busy_s[items], atol=1e-9)


def run(
    graph: TaskGraph, cluster: Cluster, plan: GraphPlan, costs: CostTable | None = None
) -> tuple[Program, Timeline]:
    program = lower(graph, cluster, plan)
    return program, simulate(program, durations(program, graph, costs or given_costs(graph), cluster))


def ends(program: Program, timeline: Timeline) -> dict[str, float]:
    """E.g. "send F0>F1 micro-batch 0" -> its end."""
    return {str(i): float(timeline.end_s[i.id]) for i in program}


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
@given(
    stages=st.integers(1, 6), micro_batches=st.integers(1, 12), forward=st.floats(0.1, 5), backward=st.floats(0.1, 5)
)
def test_equal_stages_take_the_closed_formula(
    schedule: Schedule, stages: int, micro_batches: int, forward: float, backward: float
) -> None:
    graph = training_chain(stages)
    plan = stage_plan(graph, [1] * stages, micro_batches, stages, schedule)
    costs = given_costs(graph, [forward] * stages + [backward] * stages)
    _, timeline = run(graph, Cluster.uniform(stages), plan, costs)
    assert timeline.duration_s == pytest.approx((micro_batches + stages - 1) * (forward + backward))
    assert timeline.source == "simulated"


@given(st.integers(1, 4), st.integers(1, 10))
def test_one_micro_batch_in_flight_goes_through_the_whole_pipe_alone(stages: int, micro_batches: int) -> None:
    graph = training_chain(stages)
    _, timeline = run(graph, Cluster.uniform(stages), stage_plan(graph, [1] * stages, micro_batches, 1))
    assert timeline.duration_s == pytest.approx(2 * stages * micro_batches)


def test_more_in_flight_lets_messages_travel_behind_computation() -> None:
    graph = training_chain(3)
    cluster = Cluster.uniform(3, latency_s=1.0)
    taken = [run(graph, cluster, stage_plan(graph, [1, 1, 1], 12, w))[1].duration_s for w in (3, 5, 7)]
    assert taken[0] > taken[1] >= taken[2]
    assert (
        taken[1] == 2 * 12 + 4 + 4
    )  # the last stage never waits once it began: fill and drain of 2 computations, 2 messages


def test_a_replicated_stage_of_double_work_keeps_up() -> None:
    graph = training_chain(2)
    costs = given_costs(graph, [2.0, 1.0, 1.0, 2.0])  # f0 f1 b1 b0
    _, timeline = run(graph, Cluster.uniform(3), stage_plan(graph, [2, 1], 40, 3), costs)
    assert timeline.duration_s == 2 * 40 + 4  # the single stage is busy all the time between fill and drain
    _, alone = run(graph, Cluster.uniform(2), stage_plan(graph, [1, 1], 40, 2), costs)
    assert alone.duration_s == 4 * 40  # the first stage never waits


def test_times_of_a_pipeline_by_hand() -> None:
    """f0 | f1 on a device of double speed; 10 bytes at 5 bytes/s, latency 0.25 s, handling 0.125 s."""
    graph = training_chain(2, size_bytes=10.0)
    cluster = Cluster((Device("cpu0"), Device("cpu1", speed=2.0)), (), Link("", "", 5.0, 0.25, message_s=0.125))
    program, timeline = run(graph, cluster, stage_plan(graph, [1, 1], 1, 1), given_costs(graph, [1.0, 3.0, 4.0, 2.0]))
    assert ends(program, timeline) == {
        "compute F0 micro-batch 0": 1.0,
        "send F0>F1 micro-batch 0": 3.0,  # 10 bytes / 5 bytes/s
        "recv F0>F1 micro-batch 0": 3.375,  # latency, then handling
        "compute F1 micro-batch 0": 4.875,
        "compute B1 micro-batch 0": 6.875,
        "send B1>B0 micro-batch 0": 8.875,
        "recv B1>B0 micro-batch 0": 9.25,
        "compute B0 micro-batch 0": 11.25,
    }
    # what handling takes is not computing
    assert timeline.busy_share() == {"cpu0": pytest.approx(3 / 11.25), "cpu1": pytest.approx(3.5 / 11.25)}


def test_a_skip_overtakes_the_stage_between() -> None:
    """f0 -> f1 -> f2 and f0 -> f2, forwards only: the skip of 7 bytes takes 7 s, the way over f1 1 + 2 + 1 s."""
    tasks = [Task(f"f{i}") for i in range(3)]
    graph = TaskGraph.build("g", tasks, [("f0", 1.0, ["f1"]), ("f0", 7.0, ["f2"]), ("f1", 1.0, ["f2"])])
    cluster = Cluster.uniform(3, rate_bytes_per_s=1.0)
    program, timeline = run(graph, cluster, stage_plan(graph, [1, 1, 1], 2, 3), given_costs(graph, [1.0, 2.0, 1.0]))
    at = ends(program, timeline)
    assert at["send F0>F2 micro-batch 0"] == 8.0
    assert at["send F1>F2 micro-batch 0"] == 5.0
    assert at["compute F2 micro-batch 0"] == 9.0
    assert at["send F0>F2 micro-batch 1"] == 15.0  # one direction of a link serves in order
    assert timeline.duration_s == 16.0


def test_gradients_of_replicas_and_of_shared_parameters_take_the_links() -> None:
    """8 bytes over two replicas: each sends 8 bytes at 2 bytes/s, 4 s, in two messages of 0.5 s latency each, before the
    update of 1 s."""
    graph = training_chain(1, parameter_bytes=8.0, update=True)
    cluster = Cluster.uniform(2, rate_bytes_per_s=2.0, latency_s=0.5)
    program, timeline = run(graph, cluster, stage_plan(graph, [2], 2, 2))
    assert ends(program, timeline)["reduce R0"] == 6.0
    assert timeline.duration_s == 8.0

    tied = SharedParameter("w", 8.0, ("f0", "f1"))
    graph = training_chain(2, size_bytes=0.0, parameter_bytes=8.0, shared=[tied], update=True)
    program, timeline = run(graph, cluster, stage_plan(graph, [1, 1], 1, 1))
    assert [float(timeline.start_s[i.id]) for i in program if i.op == Op.REDUCE] == [
        5.0,
        5.0,
    ]  # after b0, with latencies
    assert timeline.duration_s == 5.0 + 4.0 + 1.0 + 1.0


@pytest.mark.parametrize("n", [2, 3, 5])
def test_a_sum_of_gradients_takes_what_the_formula_of_a_ring_says(n: int) -> None:
    graph = training_chain(1, parameter_bytes=12.0, update=True)
    cluster = Cluster.uniform(n, rate_bytes_per_s=3.0, latency_s=0.25)
    _, timeline = run(graph, cluster, stage_plan(graph, [n], n, n))
    assert timeline.duration_s == pytest.approx(2.0 + ring_s(n, 12.0, 3.0, 0.25) + 1.0, rel=1e-12)
    slow = dataclasses.replace(cluster, links=(Link("cpu0", "cpu1", 1.0, 0.5),))
    _, timeline = run(graph, slow, stage_plan(graph, [n], n, n))
    assert timeline.duration_s == pytest.approx(2.0 + ring_s(n, 12.0, 1.0, 0.5) + 1.0, rel=1e-12)  # its slowest hop
    adding = dataclasses.replace(cluster, default_link=Link("", "", 3.0, 0.25, sum_s_per_byte=2 / 3))
    _, timeline = run(graph, adding, stage_plan(graph, [n], n, n))
    assert timeline.duration_s == pytest.approx(2.0 + ring_s(n, 12.0, 1.0, 0.25) + 1.0, rel=1e-12)  # 1/3 + 2/3 s a byte


def test_a_given_transfer_time_replaces_what_the_link_would_take() -> None:
    tasks = [Task("a"), Task("b"), Task("c")]
    graph = TaskGraph.build("g", tasks, [("a", 6.0, ["c"]), ("b", 2.0, ["c"]), ("b", 4.0, ["c"])])
    cluster = Cluster.uniform(2, rate_bytes_per_s=2.0, latency_s=0.5)
    costs = CostTable.given(["cpu"], [[1.0], [1.0], [1.0]], [math.nan, 10.0, math.nan])
    program, timeline = run(graph, cluster, placed(graph, ["cpu0", "cpu0", "cpu1"]), costs)
    seconds = {i.piece.tensors[0]: timeline.end_s[i.id] - timeline.start_s[i.id] for i in program if i.op == Op.SEND}
    assert seconds == {0: 3.0, 1: 10.0, 2: 2.0}
    pair = stage_plan(training_chain(2, size_bytes=6.0), [1, 1], 1, 1)
    whole = training_chain(2, size_bytes=6.0)
    program = lower(whole, cluster, pair)
    costs = CostTable.given(["cpu"], np.ones((4, 1)), [7.0, math.nan, math.nan])
    busy = durations(program, whole, costs, cluster).busy_s
    assert [busy[i.id] for i in program if i.op == Op.SEND] == [7.0, 7.0]  # a gradient takes what its tensor takes
    double = Program(**{**vars_of(program), "size_bytes": program.size_bytes * 2})
    costs = CostTable.given(["cpu"], np.ones((4, 1)), [math.nan] * 3)
    assert durations(double, whole, costs, cluster).busy_s.max() == 6.0  # the bytes of the instruction count


def vars_of(program: Program) -> dict[str, object]:
    names = ("queues", "devices", "pieces", "op", "queue", "piece", "micro_batch", "size_bytes", "needs", "fair")
    return {k: getattr(program, k) for k in names}


def transfers(*rows: tuple[str, float, float], fair: bool = True) -> Spans:
    """Start and end of transfers (device, when it is ready, work) on one medium."""
    build = Builder(sorted({r[0] for r in rows}))
    busy: list[float] = []
    sends = []
    for k, (device, ready, work) in enumerate(rows):
        first = build.add(Op.COMPUTE, f"{device}", Piece(f"P{k}", "forward", 0), k)
        sends.append(build.add(Op.SEND, "air", Piece(f"P{k}>", "transfer", 0), k, [first]))
        busy += [ready - sum(r for d, r, _ in rows[:k] if d == device), work]
    start, end = times(build.program(fair=["air"] if fair else []), Durations(np.array(busy), np.zeros(len(busy))))
    return [(float(start[i]), float(end[i])) for i in sends]


def test_fair_links_share_their_rate() -> None:
    assert transfers(("a", 0.0, 4.0)) == [(0.0, 4.0)]
    assert transfers(("a", 0.0, 4.0), ("b", 0.0, 4.0)) == [(0.0, 8.0), (0.0, 8.0)]
    assert transfers(("a", 0.0, 4.0), ("b", 0.0, 2.0)) == [(0.0, 6.0), (0.0, 4.0)]
    # alone until 1 (3 left), half each until b's 2 s are through at 5 (1 left), alone again
    assert transfers(("a", 0.0, 4.0), ("b", 1.0, 2.0)) == [(0.0, 6.0), (1.0, 5.0)]
    # a: 1 alone, then 1/2 for 2 s, then 1/3: all three have 1 s of work left at 3
    assert transfers(("a", 0.0, 3.0), ("b", 1.0, 2.0), ("c", 3.0, 1.0)) == [(0.0, 6.0), (1.0, 6.0), (3.0, 6.0)]
    # a late one does not touch those that are through; one without work takes no time
    assert transfers(("a", 0.0, 1.0), ("b", 2.0, 1.0), ("c", 2.5, 0.0)) == [(0.0, 1.0), (2.0, 3.0), (2.5, 2.5)]
    # in order instead
    assert transfers(("a", 0.0, 4.0), ("b", 1.0, 2.0), fair=False) == [(0.0, 4.0), (4.0, 6.0)]
    assert transfers(("a", 2.0, 4.0), ("b", 1.0, 2.0), fair=False) == [(2.0, 6.0), (6.0, 8.0)]


def test_two_devices_on_the_air_through_a_plan() -> None:
    """a on cpu0 and b on cpu1, both read by c on cpu2: 4 and 2 bytes at 1 byte/s leave together at 1 s."""
    graph = TaskGraph.build("g", [Task("a"), Task("b"), Task("c")], [("a", 4.0, ["c"]), ("b", 2.0, ["c"])])
    devices = tuple(Device(f"cpu{i}") for i in range(3))
    for fair, last in ((True, 7.0), (False, 7.0)):
        cluster = Cluster(devices, (), Link("", "", 1.0, 0.5, "air", fair))
        program, timeline = run(graph, cluster, placed(graph, ["cpu0", "cpu1", "cpu2"]))
        at = ends(program, timeline)
        assert (at["send a>"], at["send b>"]) == ((7.0, 5.0) if fair else (5.0, 7.0))
        assert timeline.duration_s == last + 0.5 + 1.0


def test_a_circle_is_named() -> None:
    build = Builder(["cpu0", "cpu1"])
    there, back = Piece("F0>F1", "transfer", 0), Piece("B1>B0", "transfer", 1)
    b0 = build.add(Op.RECV, "cpu0", back, 3)
    f0 = build.add(Op.COMPUTE, "cpu0", Piece("F0", "forward", 0), 3)
    r1 = build.add(Op.RECV, "cpu1", there, 3)
    f1 = build.add(Op.COMPUTE, "cpu1", Piece("B1", "backward", 1), 3, [r1])
    build.need(r1, build.add(Op.SEND, "cpu0->cpu1", there, 3, [f0]))
    build.need(b0, build.add(Op.SEND, "cpu1->cpu0", back, 3, [f1]))
    build.add(Op.COMPUTE, "cpu1", Piece("X", "forward", 1))
    program = build.program()
    with pytest.raises(ProgramError) as caught:
        times(program, Durations(np.ones(7), np.zeros(7)))
    circle = [
        "recv B1>B0 micro-batch 3 on cpu0", "send B1>B0 micro-batch 3 on cpu1->cpu0",
        "compute B1 micro-batch 3 on cpu1", "recv F0>F1 micro-batch 3 on cpu1",
        "send F0>F1 micro-batch 3 on cpu0->cpu1", "compute F0 micro-batch 3 on cpu0",
    ]  # fmt: skip
    assert " -> ".join([*circle, circle[0]]) in str(caught.value)
    assert "7 of 7 instructions cannot run" in str(caught.value)
    assert "hint:" in str(caught.value)


def test_a_long_circle_is_shortened() -> None:
    build = Builder([f"d{i}" for i in range(40)])
    for i in range(40):
        build.add(Op.COMPUTE, f"d{i}", Piece(f"F{i}", "forward", 0))
    for i in range(40):
        build.need(i, (i + 1) % 40)
    with pytest.raises(ProgramError, match=r"compute F5 on d5 -> \(28 more\) -> compute F34 on d34") as caught:
        times(build.program(), Durations(np.ones(40), np.zeros(40)))
    assert len(str(caught.value)) < 600


def test_what_waits_for_itself_is_told() -> None:
    build = Builder(["a"])
    build.add(Op.COMPUTE, "a", Piece("F0", "forward", 0), needs=[0])
    with pytest.raises(ProgramError, match="compute F0 on a -> compute F0 on a"):
        times(build.program(), Durations(np.ones(1), np.zeros(1)))


@pytest.mark.parametrize(
    ("busy", "lag", "says"),
    [
        ([1.0, math.nan], [0.0, 0.0], "busy_s of send P> is nan s"),
        ([-1.0, 1.0], [0.0, 0.0], r"busy_s of compute P is -1\.0 s"),
        ([1.0, math.inf], [0.0, 0.0], "busy_s of send P> is inf s"),
        ([1.0, 1.0], [1.0, 0.0], r"lag_s of compute P is 1\.0 s; only what a link carries has a lag"),
        ([1.0], [0.0, 0.0], r"busy_s has shape \(1,\); the program has 2 instructions"),
    ],
)
def test_durations_that_make_no_sense_are_told(busy: list[float], lag: list[float], says: str) -> None:
    build = Builder(["a"])
    build.add(Op.SEND, "a->b", Piece("P>", "transfer", 0), needs=[build.add(Op.COMPUTE, "a", Piece("P", "forward", 0))])
    with pytest.raises(ProgramError, match=says):
        simulate(build.program(), Durations(np.array(busy), np.array(lag)))


def test_the_compiled_form_wants_durations_of_its_program() -> None:
    build = Builder(["a"])
    build.add(Op.COMPUTE, "a", Piece("P", "forward", 0))
    simulator = Simulator(build.program())
    assert simulator.evaluate_many(np.zeros((0, 1)), np.zeros(1)).shape == (0,)
    with pytest.raises(ProgramError, match=r"shapes \(3, 2\) and \(1,\) for 1 instructions"):
        simulator.evaluate_many(np.zeros((3, 2)), np.zeros(1))
    with pytest.raises(ProgramError, match="hint: give busy_s"):
        simulator.evaluate(np.zeros(1), np.zeros(2))


def test_what_cannot_be_costed_is_told() -> None:
    graph = TaskGraph.build("g", [Task("a"), Task("b")], [("a", 1.0, ["b"])])
    cluster = Cluster((Device("cpu0"), Device("gpu0", "gpu")))
    program = lower(graph, cluster, placed(graph, ["cpu0", "gpu0"]))
    no_gpu = CostTable.given(["cpu", "gpu"], [[1.0, 1.0], [1.0, math.inf]], [math.nan])
    with pytest.raises(PlanError, match="task 'b' cannot run on 'gpu0' of kind 'gpu'"):
        durations(program, graph, no_gpu, cluster)
    with pytest.raises(CostError, match="no costs for devices of kind 'gpu'"):
        durations(program, graph, given_costs(graph), cluster)
    with pytest.raises(CostError, match="the costs do not fit the graph"):
        durations(program, graph, given_costs(training_chain(2)), cluster)
    with pytest.raises(PlanError, match="unknown device 'gpu0'"):
        durations(program, graph, given_costs(graph), Cluster.uniform(1))


def test_machine_code_is_made_even_where_no_folder_can_keep_it() -> None:
    nowhere = compiled(eval("lambda x: x + 1"))  # text, not a file: numba finds no folder for its cache
    assert nowhere(1) == 2
