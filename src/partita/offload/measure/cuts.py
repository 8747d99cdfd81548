"""Halves as they really run: times of tasks that sum to what sessions of some prefixes and suffixes of a model take.

A half is faster or slower than the kernels of the whole model that it stands for: fusions end at the cut, layouts are
changed once more. So, at cut points that one tensor crosses, the real half is measured, and the tasks between neighbouring
points are scaled until they sum to it:

    tasks      a   b | c   d   e | f        | cut points
    profile    1   2 | 2   1   1 | 3
    prefixes       4           8   10       the device's halves, measured: its tasks then take 4, 4 and 2
    suffixes   10  7           2            the server's: its tasks then take 3, 5 and 2
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from partita.errors import CaptureError
from partita.nouns.graph import FloatArray
from partita.offload.capture.onnx_inputs import random_array
from partita.offload.capture.onnx_model import OnnxModel
from partita.offload.onnx_session import Session, TimeLimit

Side = Literal["device", "server"]

POINTS = 16  #: cut points measured at most
FEWEST, MOST = 3, 25  #: runs of a half
ZERO = 1e-9  #: a share of the whole that is no time
_SWEEPS = 30


def cut_points(model: OnnxModel, seconds: FloatArray, most: int = POINTS) -> list[int]:
    """Lengths of prefixes of the topological order after which one tensor of known type crosses, at most `most` of them.

    `seconds` [tasks] in topological order divides the model into as many slots of equal time; of each slot it is the
    prefix whose tensor is smallest, the longest of equals: there plans cut. O(tasks + edges).
    """
    crossing, size = _crossing(model)
    ends = np.cumsum(seconds)
    best: dict[int, int] = {}
    for k in np.flatnonzero(crossing == 1).tolist():
        slot = min(most - 1, int(most * ends[k - 1] / ends[-1])) if ends[-1] > 0 else 0
        if slot not in best or size[k] <= size[best[slot]]:
            best[slot] = k
    return sorted(best.values())


def _crossing(model: OnnxModel) -> tuple[FloatArray, FloatArray]:
    """[tasks + 1] tensors that cross after each prefix, and their bytes; the model's inputs count where they are read on."""
    graph, n = model.graph, len(model.graph)
    count, size = np.zeros(n + 2), np.zeros(n + 2)
    rank = np.array([model.rank[t] for t in range(n)], np.int64)
    for tensor, maker in enumerate(graph.producer.tolist()):
        readers = graph.readers.row(tensor)
        if len(readers):
            first, last = int(rank[maker]) + 1, int(rank[readers].max()) + 1
            usable = _usable(model, model.layout.values[tensor])
            count[[first, last]] += (1, -1) if usable else (2, -2)
            size[[first, last]] += (graph.size_bytes[tensor], -graph.size_bytes[tensor])
    return np.cumsum(count)[: n + 1], np.cumsum(size)[: n + 1]


def _usable(model: OnnxModel, name: str) -> bool:
    """Whether an input of this name can be made up."""
    value = model.types.get(name)
    return value is not None and value.shape is not None and (value.dtype or "").startswith("float")


def measured_halves(
    model: OnnxModel,
    points: Sequence[int],
    side: Side,
    feeds: Mapping[str, Any],
    whole: Session,
    budget_s: float,
    limit: TimeLimit | None = None,
) -> dict[int, float]:
    """Prefix length -> what the side's half takes, as a share of the whole model.

    A half and the whole run in turns, so that a change of the machine's speed meets both; CPU time, so that others on the
    machine and a quota do not count. Points are measured from the middle outwards until `budget_s` is spent; a half that
    ONNX Runtime refuses or cannot compute has no point.
    """
    began, found = time.perf_counter(), dict[int, float]()
    for k, point in enumerate(_spread(points)):
        left_s = budget_s - (time.perf_counter() - began)
        if left_s <= 0:
            break
        share = _share_of_half(model, point, side, feeds, whole, left_s / (len(points) - k), limit)
        if share is not None:
            found[point] = share
    return found


def _spread(points: Sequence[int]) -> list[int]:
    """The middle one, then the middles of what lies before and behind it, and so on: each start is spread over all."""
    order, parts = list[int](), [list(points)]
    while parts:
        part = parts.pop(0)
        if part:
            middle = len(part) // 2
            order.append(part[middle])
            parts += [part[:middle], part[middle + 1 :]]
    return order


def _share_of_half(
    model: OnnxModel,
    point: int,
    side: Side,
    feeds: Mapping[str, Any],
    whole: Session,
    budget_s: float,
    limit: TimeLimit | None,
) -> float | None:
    began = time.perf_counter()
    try:
        cut = frozenset(model.tasks_topological[:point])
        half = Session(model.half(cut, side) or b"", model.name, limit)
        own = feeds_of(model, cut, half, feeds, limit)
        _cpu_s(half, own, limit)
    except CaptureError:
        return None
    shares: list[float] = []
    while len(shares) < FEWEST or (len(shares) < MOST and time.perf_counter() - began < budget_s):
        a, b, c = _cpu_s(whole, feeds, limit), _cpu_s(half, own, limit), _cpu_s(whole, feeds, limit)
        shares.append(2 * b / (a + c))
    return statistics.median(shares)


def feeds_of(
    model: OnnxModel, cut: frozenset[str], half: Session, feeds: Mapping[str, Any], limit: TimeLimit | None
) -> dict[str, Any]:
    """What a half reads: the model's inputs, and numbers for the tensors that cross; where integers are among them, which may be a
    shape, what the device's half makes. Raises CaptureError, TookTooLong."""
    crossing = [model.types[n] for n in half.inputs if n not in feeds]
    if any(not (v.dtype or "").startswith("float") for v in crossing):
        return {**feeds, **Session(model.half(cut, "device") or b"", model.name, limit).run(feeds, limit=limit)}
    chance = np.random.default_rng(0)
    return {**feeds, **{v.name: random_array(model.name, v, chance) for v in crossing}}


def _cpu_s(session: Session, feeds: Mapping[str, Any], limit: TimeLimit | None) -> float:
    before = time.thread_time()
    session.run(feeds, limit=limit)
    return time.thread_time() - before


def fitted(seconds: FloatArray, halves: Mapping[int, float], side: Side) -> FloatArray:
    """[tasks, topological] times scaled so that each half of `halves` (length of the prefix -> share of the whole) has its
    sum; the whole stays.

    A cut that another beats on either side and that contradicts it (a shorter prefix that takes longer, a longer suffix
    that is faster than a shorter one) is moved to it: no plan wants the worse of the two.

    >>> fitted(np.array([1.0, 2, 2, 1, 1, 3]), {2: 0.4, 5: 0.8}, "device").cumsum().round(3).tolist()
    [1.333, 4.0, 6.0, 7.0, 8.0, 10.0]
    >>> fitted(np.array([1.0, 2, 2, 1, 1, 3]), {2: 0.4, 5: 0.3}, "device").cumsum().round(3).tolist()
    [1.0, 3.0, 3.0, 3.0, 3.0, 10.0]
    """
    points = sorted(halves)
    ends = np.array([0, *points, len(seconds)])
    shares = np.array([0.0, *(halves[k] if side == "device" else 1 - halves[k] for k in points), 1.0]).clip(0, 1)
    rising = np.minimum.accumulate(shares[::-1])[::-1] if side == "device" else np.maximum.accumulate(shares)
    result = seconds.copy()
    for a, b, target in zip(ends[:-1], ends[1:], np.diff(rising) * seconds.sum(), strict=True):
        own = float(seconds[a:b].sum())
        if own > ZERO * seconds.sum():
            result[a:b] *= target / own
        else:
            result[a:b] = [target, *[0.0] * (b - a - 1)]
    return result


def proportioned(seconds: Mapping[str, float], halves: Mapping[frozenset[str], float]) -> dict[str, float]:
    """Task -> seconds scaled so that each of the sets of tasks has its share of the whole; the whole stays.

    Iterative proportional fitting: sets that contradict one another meet in between. A set that has no time, or all of it, keeps that.
    O(sweeps x sets x tasks).

    >>> found = proportioned({"a": 1.0, "b": 1.0, "c": 2.0}, {frozenset("a"): 0.5, frozenset("ab"): 0.6})
    >>> {task: round(seconds, 3) for task, seconds in found.items()}
    {'a': 2.0, 'b': 0.4, 'c': 1.6}
    """
    ids, whole = list(seconds), sum(seconds.values())
    times = np.array([seconds[t] for t in ids])
    rows = [(np.array([t in half for t in ids]), float(np.clip(share, 0.0, 1.0))) for half, share in halves.items()]
    for _ in range(_SWEEPS if whole > 0 else 0):
        for inside, share in rows:
            own, others = float(times[inside].sum()), float(times[~inside].sum())
            if min(own, others) > ZERO * whole:
                times[inside] *= share * whole / own
                times[~inside] *= (1 - share) * whole / others
    return dict(zip(ids, times.tolist(), strict=True))
