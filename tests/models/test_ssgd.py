"""The analytic model of synchronous SGD: agreement with the simulator, laws, and steps computed by hand."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_worlds import given_costs, training_chain

from partita.errors import BadInput, CostError
from partita.models.report.ssgd_text import predictions_text
from partita.models.ssgd import InputPath, Scaling, SsgdPrediction, Wish, predict_profile
from partita.nouns.cluster import Cluster, Device, Link
from partita.nouns.costs import CostTable
from partita.nouns.graph import SharedParameter, Task, TaskGraph
from partita.nouns.pipeline_plan import PipelinePlan, Stage
from partita.nouns.profile import Profile, Sample
from partita.nouns.program import Builder, Op, Piece, Program
from partita.nouns.timeline import Timeline
from partita.simulate.exchange import Exchange, Wires, partial_s, ring_s, server_s, tree_s
from partita.simulate.lower import lower
from partita.simulate.simulator import durations, simulate

SCHEMES = ("ring", "tree", "ps", "partial")
SIZE = 4  #: samples of the measured micro-batch
AT_THE_END = math.inf


@dataclasses.dataclass(frozen=True)
class World:
    """A chain of layers measured at one size, and machines."""

    profile: Profile
    layers: tuple[float, ...]  #: gradient bytes of each, without what it shares
    cluster: Cluster

    @property
    def devices(self) -> int:
        return len(self.cluster.devices)


seconds = st.floats(1e-4, 1.0)


@st.composite
def worlds(draw: st.DrawFn) -> World:
    """Up to six layers; devices of different speed; one hop slower than the others, or all on one medium."""
    n, layers = draw(st.integers(1, 5)), draw(st.integers(1, 6))
    sizes = [draw(st.floats(1, 1e6)), *draw(st.lists(st.floats(0, 1e6), min_size=layers - 1, max_size=layers - 1))]
    shared = []
    if layers > 1 and draw(st.booleans()):
        shared = [SharedParameter("w", min(sizes[0], sizes[-1]), ("f0", f"f{layers - 1}"))]
    graph = with_parameters(training_chain(layers, shared=shared, update=True), sizes)
    times = draw(st.lists(seconds, min_size=3 * layers, max_size=3 * layers))
    costs = spread(given_costs(graph, times), draw(st.floats(0.5, 1.0)), draw(st.floats(1.0, 2.0)))
    speeds = draw(st.lists(st.floats(0.5, 2.0), min_size=n, max_size=n))
    rate, latency = draw(st.floats(1e4, 1e9)), draw(st.floats(1e-6, 1e-2))
    medium = draw(st.sampled_from(["", "bus"]))
    slow = Link("cpu0", "cpu1", rate / 3, 2 * latency)
    cluster = Cluster(
        tuple(Device(f"cpu{i}", speed=s) for i, s in enumerate(speeds)),
        (slow,) if n > 1 and not medium and draw(st.booleans()) else (),
        Link("", "", rate, latency, medium),
    )
    profile = Profile("a.py:job", SIZE * draw(st.integers(n, 3 * n)), (Sample(SIZE, graph, costs),), cluster)
    return World(profile, tuple(sizes), cluster)


def with_parameters(graph: TaskGraph, sizes: Sequence[float]) -> TaskGraph:
    """Task f<i> reads sizes[i] bytes of parameters."""
    size = {f"f{i}": s for i, s in enumerate(sizes)}
    return dataclasses.replace(
        graph, tasks=tuple(dataclasses.replace(t, parameter_bytes=size.get(t.id, 0.0)) for t in graph.tasks)
    )


def spread(costs: CostTable, low: float, high: float) -> CostTable:
    return dataclasses.replace(costs, low=costs.seconds * low, high=costs.seconds * high)


def predicted(world: World, bucket_bytes: float) -> SsgdPrediction:
    """All devices of the world, micro-batch by micro-batch as the simulator does."""
    wish = Wish(micro_batch_size=SIZE, bucket_bytes=bucket_bytes)
    return predict_profile(world.profile, world.cluster, [world.devices], wish=wish)[0]


def data_parallel(world: World) -> Program:
    """One stage on all devices, lowered as any plan."""
    graph = world.profile.samples[0].graph
    tasks = tuple(t.id for t in graph.tasks if t.phase == "forward")
    stage = Stage(tasks, tuple(d.name for d in world.cluster.devices))
    micro_batches = world.profile.batch_size // SIZE
    plan = PipelinePlan(graph.fingerprint, (stage,), micro_batches, world.devices, "1f1b")
    return lower(graph, world.cluster, plan)


def simulated(world: World, program: Program) -> Timeline:
    sample = world.profile.samples[0]
    return simulate(program, durations(program, sample.graph, sample.costs, world.cluster))


def spent(program: Program, timeline: Timeline, phase: str) -> dict[str, float]:
    """Device -> seconds in a phase."""
    total = dict.fromkeys(program.queues[: program.devices], 0.0)
    for i in program:
        if i.piece.kind == phase and i.queue in total:
            total[i.queue] += float(timeline.end_s[i.id] - timeline.start_s[i.id])
    return total


# ------------------------------------------------------------------------------------------------ against the simulator


@given(worlds())
@settings(deadline=None, max_examples=60)
def test_every_term_agrees_with_the_simulator_on_the_same_program(world: World) -> None:
    program = data_parallel(world)
    timeline = simulated(world, program)
    found = predicted(world, AT_THE_END)
    forward, backward = spent(program, timeline, "forward"), spent(program, timeline, "backward")
    slowest = max(forward, key=lambda d: forward[d] + backward[d])
    update = spent(program, timeline, "update")
    computed = max(float(timeline.end_s[i.id]) for i in program if i.op == Op.COMPUTE)
    exchange = min(float(timeline.start_s[i.id]) for i in program if i.op == Op.UPDATE) - computed
    near = {"rel": 1e-9, "abs": 1e-12 * timeline.duration_s}
    assert found.forward.seconds == pytest.approx(forward[slowest], **near)
    assert found.backward.seconds == pytest.approx(backward[slowest], **near)
    assert found.exchange.seconds == pytest.approx(exchange, **near)
    assert found.exposed.seconds == pytest.approx(exchange, **near)
    assert found.update.seconds == pytest.approx(max(update.values()), **near)
    assert found.serial.seconds == pytest.approx(timeline.duration_s, rel=1e-9)
    assert found.overlapped.seconds == pytest.approx(timeline.duration_s, rel=1e-9)
    mean = sum(forward.values()) + sum(backward.values())
    assert found.imbalance == pytest.approx(computed / (mean / world.devices), rel=1e-9)


def wait_free(world: World, bucket_bytes: float) -> Program:
    """Every layer's backward alone, and a sum over the ring for each bucket, one after the other."""
    graph = world.profile.samples[0].graph
    names = [d.name for d in world.cluster.devices]
    build = Builder(names)
    forward = tuple(i for i, t in enumerate(graph.tasks) if t.phase == "forward")
    update = tuple(i for i, t in enumerate(graph.tasks) if t.phase == "update")
    micro_batches = world.profile.batch_size // SIZE
    last: dict[str, list[int]] = {}
    for m in range(micro_batches):
        device = names[m % len(names)]
        build.add(Op.COMPUTE, device, Piece("F0", "forward", 0, tasks=forward), m)
        last[device] = [  # of the last micro-batch, the backward of the last layer first
            build.add(Op.COMPUTE, device, Piece(f"B{k}", "backward", 0, tasks=(graph.index[f"b{k}"],)), m)
            for k in reversed(range(len(world.layers)))
        ]
    before: list[int] = []
    for b, (layers, size) in enumerate(buckets_of(world, bucket_bytes)):
        if len(names) == 1:
            break
        done = [last[d][layers - 1] for d in names]
        hops = list(zip(names, [*names[1:], names[0]], strict=True))
        share = 2 * (len(names) - 1) / len(names) * size
        before = [
            build.add(
                Op.REDUCE, world.cluster.link(*hop).queue, Piece(f"R{b}", "sum", route=hop, group=b), -1,
                [*done, *before], share,
            )
            for hop in hops
        ]  # fmt: skip
    for device in names:
        build.add(Op.UPDATE, device, Piece("U0", "update", 0, tasks=update), -1, before)
    return build.program()


def buckets_of(world: World, bucket_bytes: float) -> list[tuple[int, float]]:
    """(layers whose backward has run, bytes): layers from the last to the first, until there are enough bytes."""
    found, held = [], 0.0
    shared = world.profile.samples[0].graph.shared
    for k, size in enumerate(reversed(world.layers)):
        torn = bool(shared) and k == 0  # the last layer's tied parameter waits for the first layer's backward
        held += size - (shared[0].size_bytes if torn else 0.0)
        if held > 0 and (held >= bucket_bytes or k == len(world.layers) - 1):
            found.append((k + 1, held))
            held = 0.0
    return found


@given(worlds(), st.sampled_from([0.0, 1e4, 5e5, AT_THE_END]))
@settings(deadline=None, max_examples=60)
def test_the_wait_free_overlap_agrees_with_the_simulator(world: World, bucket_bytes: float) -> None:
    program = wait_free(world, bucket_bytes)
    timeline = simulated(world, program)
    found = predicted(world, bucket_bytes)
    assert found.overlapped.seconds == pytest.approx(timeline.duration_s, rel=1e-9)
    computed = max(float(timeline.end_s[i.id]) for i in program if i.op == Op.COMPUTE)
    begins = min(float(timeline.start_s[i.id]) for i in program if i.op == Op.UPDATE)
    assert found.exposed.seconds == pytest.approx(
        max(begins - computed, 0.0), rel=1e-9, abs=1e-12 * timeline.duration_s
    )
    assert found.buckets == (len(buckets_of(world, bucket_bytes)) if world.devices > 1 else 0)


# ----------------------------------------------------------------------------------------------------------------- laws


wishes = st.builds(
    Wish,
    exchange=st.builds(Exchange, st.sampled_from(SCHEMES), st.integers(1, 4), st.none(), st.integers(1, 4)),
    scaling=st.sampled_from(["strong", "weak"]),
    micro_batch_size=st.sampled_from([None, SIZE]),
    bucket_bytes=st.sampled_from([0.0, 1e5, AT_THE_END]),
    input=st.builds(InputPath, st.floats(10, 1e6), st.floats(0, 1e6), st.floats(1e6, 1e12)),
)


def ask(world: World, wish: Wish, n: int, **given: float) -> SsgdPrediction:
    return predict_profile(world.profile, world.cluster, [n], wish.exchange.scheme, wish=wish, **given)[0]


@given(worlds(), wishes, st.integers(1, 4))
@settings(deadline=None, max_examples=150)
def test_overlap_never_costs_and_hides_at_most_the_exchange(world: World, wish: Wish, n: int) -> None:
    p = ask(world, wish, min(n, world.devices))
    slack = 1 + 1e-12
    assert p.overlapped.seconds <= p.serial.seconds * slack
    assert -0.0 <= p.exposed.seconds <= p.exchange.seconds * slack + 1e-12 * p.serial.seconds
    assert p.serial.seconds == pytest.approx(sum(e.seconds for e in p.terms.values()), rel=1e-9)
    assert p.imbalance >= 1 - 1e-12
    for e in (*p.terms.values(), p.exposed, p.serial, p.overlapped):
        assert e.low <= e.seconds * slack
        assert e.seconds <= e.high * slack
    json.dumps(p.to_json())


@given(worlds(), wishes)
@settings(deadline=None, max_examples=100)
def test_one_device_exchanges_nothing(world: World, wish: Wish) -> None:
    p = ask(world, wish, 1)
    assert p.exchange.seconds == p.exposed.seconds == 0
    assert (p.speedup, p.efficiency, p.imbalance, p.buckets) == (pytest.approx(1), pytest.approx(1), 1.0, 0)


@given(worlds(), wishes, st.floats(1.0, 100.0))
@settings(deadline=None, max_examples=100)
def test_more_bandwidth_is_never_slower(world: World, wish: Wish, factor: float) -> None:
    slow, fast = (ask(world, wish, world.devices, bandwidth_bytes_per_s=r) for r in (1e6, 1e6 * factor))
    assert fast.overlapped.seconds <= slow.overlapped.seconds * (1 + 1e-12)
    assert fast.exchange.seconds <= slow.exchange.seconds * (1 + 1e-12)
    assert fast.samples_per_s >= slow.samples_per_s * (1 - 1e-12)


@given(worlds(), wishes, st.integers(1, 8))
@settings(deadline=None, max_examples=100)
def test_more_parts_or_servers_are_never_slower(world: World, wish: Wish, more: int) -> None:
    for scheme, one, many in (
        ("partial", Exchange(parts=1), Exchange(parts=more)),
        ("ps", Exchange(servers=1), Exchange(servers=more)),
    ):
        first, then = (
            predict_profile(
                world.profile, world.cluster, [world.devices], scheme, wish=dataclasses.replace(wish, exchange=x)
            )[0]
            for x in (one, many)
        )
        assert then.overlapped.seconds <= first.overlapped.seconds * (1 + 1e-12)


@given(worlds(), st.floats(1.0, 10.0))
@settings(deadline=None, max_examples=60)
def test_the_interval_is_what_the_low_and_the_high_costs_give(world: World, factor: float) -> None:
    p = predicted(world, 0.0)
    sample = world.profile.samples[0]
    for end, costs in (("low", sample.costs.low), ("high", sample.costs.high)):
        exact = dataclasses.replace(sample.costs, seconds=costs, low=costs, high=costs)
        at_end = dataclasses.replace(world.profile, samples=(dataclasses.replace(sample, costs=exact),))
        q = predicted(dataclasses.replace(world, profile=at_end), 0.0)
        assert getattr(p.overlapped, end) == pytest.approx(q.overlapped.seconds, rel=1e-9)
        assert getattr(p.serial, end) == pytest.approx(q.serial.seconds, rel=1e-9)


@given(st.integers(1, 64), st.floats(0, 1e9), st.floats(1e3, 1e10), st.floats(0, 1e-2))
def test_two_of_everything_are_the_same_and_the_full_partial_exchange_is_all_to_all(
    n: int, size: float, rate: float, latency: float
) -> None:
    assert ring_s(2, size, rate, latency) == pytest.approx(size / rate + 2 * latency)
    assert tree_s(2, size, rate, latency) == pytest.approx(2 * (size / rate + latency))
    messages = [size / rate] * (n - 1)  # one to each of the others
    assert partial_s(n, size, rate, latency, 1) == pytest.approx(sum(messages) + latency * bool(messages))
    assert ring_s(n, size, rate, latency) <= partial_s(n, size, rate, latency, 1) + 2 * n * latency + 1e-9
    many = server_s(n, size, rate, latency, 4 * n, rate)
    assert many == pytest.approx(0.0 if n == 1 else 2 * size / rate + 2 * latency)  # the workers' links are the limit


@pytest.mark.parametrize("n", [2, 3, 4, 7, 8])
def test_ring_and_tree_take_what_their_messages_take_one_by_one(n: int) -> None:
    """A ring and a binomial tree stepped through message by message, with vectors that are really summed."""
    size, rate, latency = 24.0 * n, 3.0, 0.5
    parts = [[float(r * n + c) for c in range(n)] for r in range(n)]  # [device][part]
    whole = [sum(parts[r][c] for r in range(n)) for c in range(n)]
    took = 0.0
    for step in range(2 * (n - 1)):
        sent = [(r, (r - step) % n, parts[r][(r - step) % n]) for r in range(n)]
        for r, c, value in sent:
            there = parts[(r + 1) % n]
            there[c] = there[c] + value if step < n - 1 else value
        took += size / n / rate + latency
    assert parts == [whole] * n
    assert ring_s(n, size, rate, latency) == pytest.approx(took)

    values, took = [float(r) for r in range(n)], 0.0
    strides = [2**k for k in range(n) if 2**k < n]
    for stride in strides:
        for r in range(0, n - stride, 2 * stride):
            values[r] += values[r + stride]
        took += size / rate + latency
    for stride in reversed(strides):
        for r in range(0, n - stride, 2 * stride):
            values[r + stride] = values[r]
        took += size / rate + latency
    assert values == [n * (n - 1) / 2] * n
    assert tree_s(n, size, rate, latency) == pytest.approx(took)


# -------------------------------------------------------------------------------------------------------------- by hand


def two_layers(
    batch: int = 8, samples: Sequence[tuple[int, float]] = ((4, 1.0),), rate: float = 2.0, latency_s: float = 0.5
) -> Profile:
    """f0 f1 take 1 and 2 s, b1 b0 3 and 4 s, u0 u1 0.5 s each, times a factor for each size; 4 and 8 bytes of gradients."""
    graph = with_parameters(training_chain(2, update=True), [4.0, 8.0])
    work = np.array([1.0, 2.0, 3.0, 4.0, 0.0, 0.0])
    update = np.array([0.0, 0.0, 0.0, 0.0, 0.5, 0.5])
    taken = tuple(Sample(size, graph, given_costs(graph, work * factor + update)) for size, factor in samples)
    cluster = Cluster.uniform(2, rate_bytes_per_s=rate, latency_s=latency_s)
    return Profile("a.py:job", batch, taken[::-1], cluster)


def test_a_step_by_hand() -> None:
    """Of b1's gradients 8 bytes at 2 bytes/s take 4 s and 1 s of latency, from 6 to 11; those of b0, there at 10, take
    from 11 to 14."""
    (p,) = predict_profile(two_layers(), None, [2], wish=Wish(bucket_bytes=0.0))
    assert {k: e.seconds for k, e in p.terms.items()} == {
        "io": 0.0, "host_to_device": 0.0, "forward": 3.0, "backward": 7.0, "exchange": 8.0, "update": 1.0,
    }  # fmt: skip
    assert (p.exposed.seconds, p.serial.seconds, p.overlapped.seconds) == (4.0, 19.0, 15.0)
    assert (p.batch_size, p.buckets, p.gradient_bytes) == (8, 2, 12.0)
    assert p.samples_per_s == 8 / 15
    assert p.speedup == pytest.approx((8 / 15) / (8 / 21))  # alone, 8 samples take twice 10 s, and 1 s of update
    assert p.efficiency == pytest.approx(p.speedup / 2)
    assert p.limit == "the exchange: 27 % of the step is exchange that outlasts the backward, most of it bandwidth"
    (whole,) = predict_profile(two_layers(), None, [2], wish=Wish(bucket_bytes=AT_THE_END))
    assert (whole.exchange.seconds, whole.exposed.seconds, whole.buckets) == (7.0, 7.0, 1)
    (hidden,) = predict_profile(two_layers(), None, [2], wish=Wish(bucket_bytes=0.0), bandwidth_bytes_per_s=8.0)
    assert hidden.exposed.seconds == 1.5  # what is left: the first layer's 4 bytes, 0.5 s and 1 s of latency


def test_input_is_hidden_until_it_takes_longer_than_all_else() -> None:
    cheap, dear = (
        predict_profile(two_layers(), None, [2], wish=Wish(input=InputPath(rate, 100.0, 200.0))) for rate in (4.0, 0.25)
    )
    assert cheap[0].io.seconds == 2.0  # both devices are on one host: 8 samples at 4 a second
    assert cheap[0].host_to_device.seconds == 2.0  # 4 samples of 100 bytes at 200 bytes/s
    assert cheap[0].overlapped.seconds == predict_profile(two_layers(), None, [2])[0].overlapped.seconds
    assert cheap[0].serial.seconds == cheap[0].overlapped.seconds + 4.0
    assert dear[0].overlapped.seconds == 34.0
    assert dear[0].limit == "the input: reading takes as long as the whole step"


def test_the_slowest_device_sets_the_pace() -> None:
    devices = (Device("a"), Device("b", speed=0.5))
    cluster = Cluster(devices, (), Link("", "", math.inf, 1e-9))
    (p,) = predict_profile(two_layers(), cluster, [2])
    assert (p.forward.seconds, p.backward.seconds, p.update.seconds) == (6.0, 14.0, 2.0)
    assert p.imbalance == pytest.approx(20 / 15)
    assert p.limit == "the slowest device: the others wait for it 23 % of the step"


def test_times_between_measured_sizes_lie_on_the_line_and_beyond_them_within_bounds() -> None:
    profile = two_layers(8, [(2, 1.0), (4, 1.5), (8, 2.5)])
    forward = {
        size: predict_profile(profile, None, [1], wish=Wish(batch_size=size))[0].forward
        for size in (1, 2, 3, 4, 6, 8, 16)
    }
    exact = {size: f.seconds / 3.0 for size, f in forward.items()}
    assert exact == pytest.approx({1: 0.75, 2: 1.0, 3: 1.25, 4: 1.5, 6: 2.0, 8: 2.5, 16: 4.5})
    assert (forward[1].low, forward[1].high) == (2.25, 3.0)
    assert (forward[16].low, forward[16].high) == (13.5, 15.0)
    (one,) = predict_profile(two_layers(), None, [1], wish=Wish(batch_size=1))
    assert (one.forward.seconds, one.forward.high, one.update.seconds) == (0.75, 3.0, 1.0)


def test_weak_scaling_keeps_the_batch_of_a_device() -> None:
    one, four = predict_profile(two_layers(), None, [1, 4], wish=Wish(scaling="weak"))
    assert (one.batch_size, four.batch_size) == (8, 32)
    assert (one.forward.seconds, four.forward.seconds) == (6.0, 6.0)
    assert (four.assumed, four.devices) == (2, ("cpu0", "cpu1", "cpu1+1", "cpu1+2"))
    assert four.efficiency == pytest.approx(one.overlapped.seconds / four.overlapped.seconds)


def test_a_medium_is_shared_by_all_who_send() -> None:
    cluster = Cluster.uniform(4, rate_bytes_per_s=8.0, latency_s=0.5)
    shared = dataclasses.replace(cluster, default_link=dataclasses.replace(cluster.default_link, medium="bus"))
    assert Wires.of(cluster) == Wires(4, ((8.0, 0.5),), 8.0, 0.5)
    assert Wires.of(shared) == Wires(4, ((2.0, 0.5),), 2.0, 0.5)


def test_a_gradient_shared_by_two_layers_is_exchanged_once() -> None:
    tied = SharedParameter("w", 4.0, ("f0", "f1"))
    graph = with_parameters(training_chain(2, update=True, shared=[tied]), [4.0, 8.0])
    profile = dataclasses.replace(two_layers(), samples=(Sample(4, graph, given_costs(graph)),))
    (p,) = predict_profile(profile, None, [2], wish=Wish(bucket_bytes=0.0))
    assert (p.gradient_bytes, p.buckets) == (8.0, 2)


# ------------------------------------------------------------------------------------------------------------ bad input


@pytest.mark.parametrize(
    ("wish", "n", "said"),
    [
        (Wish(), 0, "0 devices"),
        (Wish(), 9, "a batch of 8 cannot be split over 9 devices"),
        (Wish(batch_size=0), 1, "batch_size is 0"),
        (Wish(bucket_bytes=-1.0), 1, "bucket_bytes is -1.0"),
        (Wish(bucket_bytes=math.nan), 1, "bucket_bytes is nan"),
        (Wish(exchange=Exchange(parts=0)), 1, "parts is 0"),
        (Wish(exchange=Exchange(server_rate_bytes_per_s=0.0)), 1, "the servers' rate is 0.0"),
        (Wish(input=InputPath(samples_per_s=0.0)), 1, "samples_per_s is 0.0"),
        (Wish(input=InputPath(sample_bytes=-1.0)), 1, "sample_bytes is -1.0"),
        (Wish(micro_batch_size=3), 1, "no measurement at micro-batch size 3"),
    ],
)
def test_a_wish_that_cannot_be_is_refused(wish: Wish, n: int, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        predict_profile(two_layers(), None, [n], wish=wish)


def test_what_is_not_known_is_refused() -> None:
    profile = two_layers()
    with pytest.raises(BadInput, match="nothing is known of the link cpu0 -> cpu1"):
        predict_profile(profile, Cluster.uniform(2), [1, 2])
    named = dataclasses.replace(Cluster.uniform(2), links=(Link("cpu0", "cpu1", 1e9), Link("cpu1", "cpu0", 1e9)))
    assert len(predict_profile(profile, named, [2])) == 1
    with pytest.raises(BadInput, match=r"nothing is known of the link cpu1 -> cpu1\+1"):
        predict_profile(profile, named, [3])
    with pytest.raises(CostError, match="no costs for devices of kind 'cuda'"):
        predict_profile(profile, Cluster.uniform(2, kind="cuda"), [1])
    with pytest.raises(BadInput, match="a bandwidth of -1"):
        predict_profile(profile, None, [2], bandwidth_bytes_per_s=-1.0)
    with pytest.raises(BadInput, match="unknown scheme 'mesh'"):
        predict_profile(profile, None, [2], "mesh")  # type: ignore[arg-type]
    graph = TaskGraph.build("g", [Task("f0")], [])
    serving = dataclasses.replace(profile, samples=(Sample(4, graph, given_costs(graph)),))
    with pytest.raises(CostError, match="no backward"):
        predict_profile(serving, None, [1])


@pytest.mark.parametrize("scaling", ["strong", "weak"])
def test_the_text_has_a_row_of_terms_for_every_number_of_devices(scaling: Scaling) -> None:
    found = predict_profile(two_layers(), None, [1, 2, 4], wish=Wish(scaling=scaling, bucket_bytes=0.0))
    lines = predictions_text(found).splitlines()
    heads = [i for i, line in enumerate(lines) if line.startswith("devices")]
    assert len(heads) == 2
    for head in heads:
        assert [line.split()[0] for line in lines[head + 2 : head + 5]] == ["1", "2", "4"]
    assert "2 devices more than the cluster has, like its last" in "\n".join(lines)
    assert sum(p.limit in line for p in found for line in lines) >= 3
