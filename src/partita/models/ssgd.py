"""The analytic model of synchronous SGD: what a data-parallel step takes on any number of devices, term by term.

Each of n devices holds the whole model and runs its share of the batch; gradients are exchanged, then every device updates.

    t_io    reading and decoding the batch: samples of a host / its rate
    t_h2d   copying to the device:  samples x bytes / rate
    t_f     forward    } of the slowest device: sum over its micro-batches and tasks, divided by its speed
    t_b     backward   }
    t_c     exchange:  sum over buckets of the formula of its scheme (see `exchange`)
    t_u     update, of the slowest device

    serial      t_io + t_h2d + t_f + t_b + t_c + t_u
    overlapped  max( t_io + t_h2d,  t_f + t_b + t_exposed + t_u )

Overlapped, the next batch is read while this one is computed, and gradients travel while the backward still runs
(wait-free): buckets l = L .. 1 are filled in the order of the backward, and with tau_b(l) the time at which the last device
has the gradients of bucket l,

    end(l) = max( end(l + 1), tau_b(l) ) + t_c(l)         t_exposed = end(1) - (t_f + t_b)

With several micro-batches a step, gradients are exchanged during the backward of the last one. Load imbalance is the
slowest device's t_f + t_b over the mean of all. Every term carries the interval of the measured costs; since all formulas
grow with every task's time, they give the ends of the total's interval too. These are worst cases, all tasks low or all
high at once. Links are taken as exact, and what it costs a device to wait (`Device.cold_s`) is left out.

Reconstructed from Shi et al., arXiv 1805.03812, and the abstract of Kavarakuntla, "Performance modelling for scalable deep
learning", thesis, Manchester Metropolitan 2023.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, cast, get_args

import numpy as np

from partita.errors import BadInput, CostError, refuse
from partita.nouns.cluster import Cluster, Device
from partita.nouns.costs import CostTable, Estimate, Source
from partita.nouns.graph import FloatArray, IntArray, TaskGraph
from partita.nouns.profile import Profile, Sample
from partita.simulate.exchange import Exchange, Scheme, Wires
from partita.simulate.overheads import update_s

Scaling = Literal["strong", "weak"]

DDP_BUCKET_BYTES = 25.0 * 2**20  #: what torch's DistributedDataParallel fills a bucket with


@dataclass(frozen=True, slots=True)
class InputPath:
    """How samples reach the devices; the defaults take no time."""

    samples_per_s: float = math.inf  #: that one host reads and decodes
    sample_bytes: float = 0.0  #: copied to the device
    copy_bytes_per_s: float = math.inf  #: to one device

    def check(self) -> list[str]:
        """Every fault at once; empty when it is sound."""
        faults = [f"{n} is {v}" for n, v in asdict(self).items() if n != "sample_bytes" and not v > 0]
        sound = self.sample_bytes >= 0 and math.isfinite(self.sample_bytes)
        return faults + ([] if sound else [f"sample_bytes is {self.sample_bytes}"])


@dataclass(frozen=True, slots=True)
class Wish:
    """What is to be predicted of a profile."""

    exchange: Exchange = field(default_factory=Exchange)
    scaling: Scaling = "strong"  #: the global batch is split, or (weak) every device takes a batch of its own
    batch_size: int | None = None  #: global, or (weak) of a device; None: the profile's
    micro_batch_size: int | None = None  #: a device's share is worked off in parts of this measured size; None: at once
    bucket_bytes: float = (
        DDP_BUCKET_BYTES  #: a bucket is sent once it holds so much; 0: every layer, inf: all at the end
    )
    input: InputPath = field(default_factory=InputPath)

    def check(self) -> list[str]:
        """Every fault at once; empty when it is sound."""
        faults = [*self.exchange.check(), *self.input.check()]
        if self.scaling not in get_args(Scaling):
            faults.append(f"unknown scaling {self.scaling!r}")
        if self.batch_size is not None and self.batch_size < 1:
            faults.append(f"batch_size is {self.batch_size}")
        return faults + ([] if self.bucket_bytes >= 0 else [f"bucket_bytes is {self.bucket_bytes}"])


@dataclass(frozen=True)
class SsgdPrediction:
    """A step of synchronous SGD. Times are of one step; each has an interval."""

    devices: tuple[str, ...]
    assumed: int  #: devices that the cluster does not have, taken to be like its last
    scheme: Scheme
    scaling: Scaling
    batch_size: int  #: of all devices together
    buckets: int  #: that the gradient is exchanged in; 0: nothing is exchanged
    gradient_bytes: float
    io: Estimate
    host_to_device: Estimate
    forward: Estimate
    backward: Estimate
    exchange: Estimate
    exposed: Estimate  #: what of the exchange outlasts the backward
    update: Estimate
    serial: Estimate
    overlapped: Estimate
    imbalance: float  #: slowest device's forward and backward over the mean; 1: none waits
    samples_per_s: float  #: overlapped
    speedup: float  #: in samples a second, against the first device alone
    efficiency: float  #: samples a second over what all devices do, each alone
    limit: str  #: the sentence of what limits it

    @property
    def terms(self) -> dict[str, Estimate]:
        """Name -> estimate of the six terms of the serial sum, in its order."""
        names = ("io", "host_to_device", "forward", "backward", "exchange", "update")
        return {n: getattr(self, n) for n in names}

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def predict_profile(
    profile: Profile,
    cluster: Cluster | None,
    devices: Sequence[int],
    scheme: Scheme = "ring",
    *,
    bandwidth_bytes_per_s: float | None = None,
    wish: Wish | None = None,
) -> tuple[SsgdPrediction, ...]:
    """A prediction for each number of devices, from the profile of one device and a cluster (None: the profile's own).

    The first n devices of the cluster are taken; where it has fewer, the others are like its last one, on its default
    link, each on a host of its own. `bandwidth_bytes_per_s` replaces the rate of every link. `scheme` replaces that of
    the wish. Raises BadInput for a wish that cannot be, CostError for devices or micro-batches without measured costs.
    O(numbers x devices + samples x tasks).
    """
    wish = replace(wish or Wish(), exchange=replace((wish or Wish()).exchange, scheme=scheme))
    refuse(BadInput, wish.check(), "the prediction asked for")
    refuse(BadInput, [f"{n} devices" for n in devices if n < 1], "the prediction asked for", hint="say 1 or more")
    refuse(BadInput, (cluster or profile.cluster).check(), "the cluster")
    base = _with_rate(cluster or profile.cluster, bandwidth_bytes_per_s)
    model = _Model(profile, wish, _gradients(profile.samples[0].graph, wish.bucket_bytes))
    alone = {d: model.parts(Cluster((d,))).samples_per_s for d in {_nameless(d) for d in base.devices}}
    return tuple(_prediction(model, base, n, alone) for n in devices)


# ---------------------------------------------------------------------------------------------------------------------
# Devices


def _with_rate(cluster: Cluster, rate: float | None) -> Cluster:
    """The cluster with another rate on every link."""
    if rate is None:
        return cluster
    if not (rate > 0 and math.isfinite(rate)):
        raise BadInput(f"a bandwidth of {rate} bytes/s", hint="say e.g. 1.25e9 for 10 Gbit/s")
    return replace(
        cluster,
        links=tuple(replace(x, rate_bytes_per_s=rate) for x in cluster.links),
        default_link=replace(cluster.default_link, rate_bytes_per_s=rate),
    )


def _of_size(cluster: Cluster, n: int) -> Cluster:
    """Its first n devices; where it has fewer, with more of the last."""
    have = len(cluster.devices)
    if n <= have:
        return cluster.first(n)
    last = cluster.devices[-1]
    names = [f"{last.name}+{i}" for i in range(1, n - have + 1)]
    more = tuple(replace(last, name=name, host=name, cores=()) for name in names)
    return replace(cluster, devices=(*cluster.devices, *more))


def _nameless(device: Device) -> Device:
    """What matters of a device for its speed."""
    return Device("", device.kind, speed=device.speed, update_s=device.update_s)


# ---------------------------------------------------------------------------------------------------------------------
# Gradients


@dataclass(frozen=True)
class _Gradients:
    """When the backward has finished what is exchanged."""

    backward: IntArray  #: the backward tasks in the order they run
    ready: tuple[int, ...]  #: [buckets] how many backward tasks have run when a bucket is full; ascending
    size_bytes: tuple[float, ...]  #: [buckets]


def _gradients(graph: TaskGraph, bucket_bytes: float) -> _Gradients:
    """The buckets of a graph. Raises CostError where it has no backward.

    A layer's gradients are there when its backward has run, those of a parameter that several layers share when the last
    of them has, those of layers without a backward at the end. A bucket takes layers until it holds `bucket_bytes`.
    """
    backward = [i for i in graph.order.tolist() if graph.tasks[i].phase == "backward"]
    if not backward:
        raise CostError(
            f"graph {graph.name!r} has no backward tasks; synchronous SGD trains", hint="measure a training job"
        )
    done = {graph.tasks[i].of: k + 1 for k, i in enumerate(backward)}
    at = np.zeros(len(backward) + 1)  # [backward tasks run] gradient bytes that are there by then and not before
    for t in graph.tasks:
        if t.phase in ("forward", "stage"):
            at[done.get(t.id, len(backward))] += t.parameter_bytes
    for shared in graph.shared:
        when = sorted(done.get(t, len(backward)) for t in shared.tasks)
        for k in when[:-1]:
            at[k] -= shared.size_bytes
    ready: list[int] = []
    sizes: list[float] = []
    held = 0.0
    for k, size in enumerate(at.tolist()):
        held += max(size, 0.0)
        if held > 0 and (held >= bucket_bytes or k == len(backward)):
            ready.append(k)
            sizes.append(held)
            held = 0.0
    return _Gradients(np.array(backward, np.int64), tuple(ready), tuple(sizes))


# ---------------------------------------------------------------------------------------------------------------------
# Compute


def _tasks_at(samples: Sequence[Sample], kind: str, size: int) -> FloatArray:
    """[3, tasks] seconds, low and high of every task for a batch of this size on a kind of device.

    On the line between the nearest sizes measured. Beyond them on the line through the nearest two (through one: in
    proportion), never below what proportion gives for a smaller batch, nor above the smallest one measured, whose time is
    then the high end. The update takes as long for any size.
    """
    samples = sorted(samples, key=lambda s: s.micro_batch_size)
    sizes = np.array([s.micro_batch_size for s in samples], np.float64)
    tables = np.stack([_columns(s.costs, kind) for s in samples])
    right = int(np.clip(np.searchsorted(sizes, size), 1, max(1, len(sizes) - 1)))
    left = right - 1
    if len(sizes) == 1:
        found = tables[0] * (size / sizes[0])
    else:
        share = (size - sizes[left]) / (sizes[right] - sizes[left])
        found = tables[left] + share * (tables[right] - tables[left])
    if size < sizes[0]:
        found = np.clip(found, tables[0] * (size / sizes[0]), tables[0])
        found[2] = tables[0, 2]
    elif size > sizes[-1]:
        found = np.maximum(found, tables[-1])
        found[2] = np.maximum(found[2], tables[-1, 2] * (size / sizes[-1]))
    nearest = tables[int(np.abs(sizes - size).argmin())]
    update = np.array([t.phase == "update" for t in samples[0].graph.tasks], np.bool_)
    return cast(FloatArray, np.where(update, nearest, found))


def _columns(costs: CostTable, kind: str) -> FloatArray:
    """[3, tasks] seconds, low and high on a kind. Raises CostError where a task cannot run there."""
    k = costs.column(kind)
    if np.isinf(costs.seconds[:, k]).any():
        raise CostError(f"{int(np.isinf(costs.seconds[:, k]).sum())} tasks cannot run on devices of kind {kind!r}")
    return np.stack([costs.seconds[:, k], costs.low[:, k], costs.high[:, k]])


@dataclass(frozen=True, eq=False)
class _Local:
    """The compute of one device."""

    forward: FloatArray  #: [3] seconds, low, high, of all its micro-batches
    backward: FloatArray  #: [3]
    ready: FloatArray  #: [3, buckets] when its gradients of a bucket are there
    update: FloatArray  #: [3]


@dataclass(frozen=True, eq=False)
class _Parts:
    """One number of devices, worked out; every time is [3]: seconds, low, high."""

    terms: dict[str, FloatArray]
    serial: FloatArray
    overlapped: FloatArray
    imbalance: float
    batch_size: int
    latency_share: float  #: of the exchange, were it of no bytes
    source: Source  #: of the compute

    @property
    def samples_per_s(self) -> float:
        return self.batch_size / float(self.overlapped[0]) if self.overlapped[0] > 0 else math.inf


@dataclass(frozen=True, eq=False)
class _Model:
    """A profile and a wish, ready for any cluster."""

    profile: Profile
    wish: Wish
    gradients: _Gradients

    def parts(self, cluster: Cluster) -> _Parts:
        """The step on all devices of a cluster."""
        wires, wish = Wires.of(cluster), self.wish
        samples, turns = self._shares(len(cluster.devices))
        ranks = list(zip(map(_nameless, cluster.devices), samples, turns, strict=True))
        known = {key: self._local(*key) for key in dict.fromkeys(ranks)}
        compute = np.array([known[key].forward + known[key].backward for key in ranks])  # [ranks, 3]
        slowest = known[ranks[int(compute[:, 0].argmax())]]
        ready = np.max([x.ready for x in known.values()], axis=0)
        one_by_one = [wish.exchange.seconds(wires, size) for size in self.gradients.size_bytes]
        end = np.zeros(3)
        for k, seconds in enumerate(one_by_one):
            end = np.maximum(end, ready[:, k]) + seconds
        of_host: Counter[str] = Counter()
        for device, mine in zip(cluster.devices, samples, strict=True):
            of_host[device.host] += mine
        path, most = wish.input, compute.max(axis=0)
        exchange = sum(one_by_one)
        terms = {
            "io": np.full(3, max(of_host.values()) / path.samples_per_s),
            "host_to_device": np.full(3, max(samples) * path.sample_bytes / path.copy_bytes_per_s),
            "forward": slowest.forward,
            "backward": slowest.backward,
            "exchange": np.full(3, exchange),
            "update": np.max([x.update for x in known.values()], axis=0),
        }
        exposed = np.maximum(end - most, 0.0) if exchange > 0 else np.zeros(3)
        terms_s = terms["io"] + terms["host_to_device"]
        empty = sum(wish.exchange.seconds(wires, 0.0) for _ in one_by_one)
        return _Parts(
            {**terms, "exposed": np.array([exposed[0], exposed.min(), exposed.max()])},  # a longer backward hides more
            terms_s + most + terms["exchange"] + terms["update"],
            np.maximum(terms_s, most + exposed + terms["update"]),
            float(most[0] / compute[:, 0].mean()) if most[0] > 0 else 1.0,
            sum(samples),
            empty / exchange if exchange > 0 else 0.0,
            self._source(ranks),
        )

    def _shares(self, n: int) -> tuple[list[int], list[int]]:
        """([ranks] samples, [ranks] micro-batches) of each device. Raises BadInput for more devices than samples."""
        batch = self.wish.batch_size or self.profile.batch_size
        size = self.wish.micro_batch_size
        if self.wish.scaling == "weak":
            return [batch] * n, [1 if size is None else -(-batch // size)] * n
        if batch < n:
            raise BadInput(
                f"a batch of {batch} cannot be split over {n} devices", hint="a larger batch, or weak scaling"
            )
        if size is None:
            return [(batch + n - 1 - r) // n for r in range(n)], [1] * n
        parts = [min(size, batch - at) for at in range(0, batch, size)]  # dealt out in turn, as in a pipeline's stage
        return [sum(parts[r::n]) for r in range(n)], [len(parts[r::n]) for r in range(n)]

    def _local(self, device: Device, samples: int, turns: int) -> _Local:
        """What a device computes for its samples, in so many micro-batches."""
        size = self.wish.micro_batch_size
        if size is None:
            tasks = _tasks_at(self.profile.samples, device.kind, samples)
        else:
            tasks = _columns(self.profile.sample(size).costs, device.kind)
        tasks = tasks / device.speed
        phase = np.array([t.phase for t in self.profile.samples[0].graph.tasks])
        done = np.concatenate([np.zeros((3, 1)), tasks[:, self.gradients.backward].cumsum(axis=1)], axis=1)
        forward, backward = tasks[:, (phase != "backward") & (phase != "update")].sum(axis=1), done[:, -1]
        before = max(turns - 1, 0) * (forward + backward) + min(turns, 1) * forward
        ready = before[:, None] + min(turns, 1) * done[:, list(self.gradients.ready)]
        updates = phase == "update"
        update = tasks[:, updates].sum(axis=1) + updates.any() * update_s(device)
        return _Local(turns * forward, turns * backward, ready, update)

    def _source(self, ranks: Sequence[tuple[Device, int, int]]) -> Source:
        """ "measured" where every time is a measured one: a size that was measured, at the speed it was measured at."""
        sizes = {s.micro_batch_size for s in self.profile.samples}
        exact = self.wish.micro_batch_size is not None or {s for _, s, _ in ranks} <= sizes
        codes = np.concatenate([s.costs.source.ravel() for s in self.profile.samples])
        measured = bool((codes == get_args(Source).index("measured")).all())
        return "measured" if exact and measured and all(d.speed == 1 for d, _, _ in ranks) else "predicted"


# ---------------------------------------------------------------------------------------------------------------------
# Results


def _prediction(model: _Model, base: Cluster, n: int, alone: dict[Device, float]) -> SsgdPrediction:
    """The prediction for n devices of a cluster; `alone`: samples a second of one device of a kind and speed."""
    cluster = _of_size(base, n)
    parts = model.parts(cluster)
    source: dict[str, Source] = {
        "io": "given",
        "host_to_device": "given",
        "exchange": "predicted",
        "exposed": "predicted",
    }
    terms = {k: _estimate(v, source.get(k, parts.source)) for k, v in parts.terms.items()}
    rate, ideal = parts.samples_per_s, sum(alone[_nameless(d)] for d in cluster.devices)
    return SsgdPrediction(
        devices=tuple(d.name for d in cluster.devices),
        assumed=max(0, n - len(base.devices)),
        scheme=model.wish.exchange.scheme,
        scaling=model.wish.scaling,
        batch_size=parts.batch_size,
        buckets=len(model.gradients.size_bytes) if n > 1 else 0,
        gradient_bytes=sum(model.gradients.size_bytes),
        **terms,
        serial=_estimate(parts.serial, "predicted"),
        overlapped=_estimate(parts.overlapped, "predicted"),
        imbalance=parts.imbalance,
        samples_per_s=rate,
        speedup=rate / alone[_nameless(base.devices[0])],
        efficiency=rate / ideal,
        limit=_limit(parts, n, parts.batch_size / ideal),
    )


def _estimate(times: FloatArray, source: Source) -> Estimate:
    return Estimate(float(times[0]), float(times[1]), float(times[2]), source)


def _limit(parts: _Parts, n: int, ideal_s: float) -> str:
    """What takes the largest share of the step beyond `ideal_s`: what it would be, did every device work as it does alone."""
    step, terms = float(parts.overlapped[0]), {k: float(v[0]) for k, v in parts.terms.items()}
    compute = terms["forward"] + terms["backward"]
    if terms["io"] + terms["host_to_device"] >= step > 0:
        what = "reading" if terms["io"] >= terms["host_to_device"] else "copying to the devices"
        return f"the input: {what} takes as long as the whole step"
    if n == 1 or step == 0:
        return "the compute of one device"
    losses = {
        "exchange": terms["exposed"],
        "imbalance": compute * (1 - 1 / parts.imbalance),
        "small": compute / parts.imbalance + terms["update"] - ideal_s,
    }
    worst = max(losses, key=lambda k: losses[k])
    share = 100 * losses[worst] / step
    if share < 1:
        return "the compute, which splits evenly: less than 1 % of the step is lost to anything else"
    if worst == "exchange":
        kind = "latency" if parts.latency_share > 0.5 else "bandwidth"
        return f"the exchange: {share:.0f} % of the step is exchange that outlasts the backward, most of it {kind}"
    if worst == "imbalance":
        return f"the slowest device: the others wait for it {share:.0f} % of the step"
    return (
        f"what does not shrink with a device's batch: {share:.0f} % of the step is overhead of small batches and update"
    )
