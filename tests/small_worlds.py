"""Small graphs, clusters, plans and damaged values that the tests of the nouns, of lower and of simulate share."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
from hypothesis import strategies as st

from partita.errors import BadInput
from partita.nouns.cluster import Cluster, Device, Link
from partita.nouns.costs import CostTable
from partita.nouns.graph import Phase, SharedParameter, Task, TaskGraph
from partita.nouns.pipeline_plan import PipelinePlan, Schedule, Stage
from partita.nouns.placement_plan import PlacementPlan
from partita.nouns.plan import Verdict

VERDICT = Verdict(2.0, 1.0, "critical path", "by hand", 0.5)


def training_chain(
    stages: int,
    *,
    size_bytes: float = 1.0,
    skips: Sequence[tuple[int, int]] = (),
    parameter_bytes: float = 0.0,
    shared: Sequence[SharedParameter] = (),
    update: bool = False,
) -> TaskGraph:
    """f0 -> f1 -> ... and back b.. -> b0, with skips (i, j): fj reads fi too, and its gradient returns to bi."""
    forward = [Task(f"f{i}", parameter_bytes=parameter_bytes) for i in range(stages)]
    backward = [Task(f"b{i}", phase="backward", of=f"f{i}") for i in reversed(range(stages))]
    updates = [Task(f"u{i}", phase="update", of=f"f{i}") for i in range(stages)] if update else []
    pairs = [(i, i + 1) for i in range(stages - 1)] + list(skips)
    tensors = [
        (f"f{i}", size_bytes, [*(f"f{b}" for a, b in pairs if a == i), f"b{i}"])  # the backward keeps it
        for i in range(stages)
    ]
    tensors += [(f"b{j}", size_bytes, [f"b{i}"]) for i, j in pairs]
    tensors += [(f"b{i}", 0.0, [f"u{i}"]) for i in range(stages) if update]
    return TaskGraph.build("chain", [*forward, *backward, *updates], tensors, shared)


def given_costs(graph: TaskGraph, seconds: Sequence[float] | float = 1.0, kinds: Sequence[str] = ("cpu",)) -> CostTable:
    """The same seconds on every kind (one a task, or one for all); transfers left to the links."""
    column = np.broadcast_to(np.array(seconds, np.float64), (len(graph),))
    return CostTable.given(kinds, np.stack([column] * len(kinds), axis=1), np.full(len(graph.producer), math.nan))


def stage_plan(
    graph: TaskGraph,
    replicas: Sequence[int],
    micro_batches: int,
    in_flight: int,
    schedule: Schedule = "1f1b",
    *,
    recompute: bool = False,
) -> PipelinePlan:
    """Task f<k> alone on stage k; devices cpu0, cpu1, ... in order of stage and replica."""
    first = [sum(replicas[:k]) for k in range(len(replicas))]
    stages = tuple(
        Stage((f"f{k}",), tuple(f"cpu{first[k] + r}" for r in range(m)), recompute) for k, m in enumerate(replicas)
    )
    return PipelinePlan(graph.fingerprint, stages, micro_batches, in_flight, schedule)


def placed(graph: TaskGraph, where: Sequence[str]) -> PlacementPlan:
    """Task i on device where[i]."""
    return PlacementPlan(graph.fingerprint, {t.id: d for t, d in zip(graph.tasks, where, strict=True)})


names = st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=8)
amounts = st.floats(0, 1e12, allow_nan=False)


@st.composite
def graphs(draw: st.DrawFn, most: int = 8) -> TaskGraph:
    """Any acyclic graph of up to `most` tasks whose numbers are not in topological order."""
    n = draw(st.integers(1, most))
    ids = draw(st.lists(names, min_size=n, max_size=n, unique=True))
    rank = draw(st.permutations(range(n)))
    phase: dict[str, Phase] = {i: draw(st.sampled_from(["forward", "backward", "update", "stage"])) for i in ids}
    forward = [i for i in ids if phase[i] in ("forward", "stage")]
    owners = st.none() | st.sampled_from(forward) if forward else st.none()
    tasks = [
        Task(
            i,
            draw(names),
            phase[i],
            draw(st.none() | st.sampled_from(["g", "h"])),
            draw(owners),
            draw(amounts),
            draw(amounts),
        )
        for i in ids
    ]
    tensors = []
    for u in range(n):
        later = [v for v in range(n) if rank[v] > rank[u]]
        for _ in range(draw(st.integers(0, 2))):
            readers = draw(st.lists(st.sampled_from(later), unique=True)) if later else []
            tensors.append((ids[u], draw(amounts), [ids[v] for v in readers]))
    readers = tuple(draw(st.lists(st.sampled_from(forward), unique=True))) if forward else ()
    shared = [SharedParameter(draw(names), draw(amounts), readers)]
    return TaskGraph.build(draw(names), tasks, tensors, shared if draw(st.booleans()) else [])


@st.composite
def clusters(draw: st.DrawFn, most: int = 4) -> Cluster:
    """Any sound cluster of up to `most` devices."""
    device_names = draw(st.lists(names, min_size=1, max_size=most, unique=True))
    positive = st.floats(1e-9, 1e12)
    devices = tuple(
        Device(
            n, draw(names), draw(positive | st.just(math.inf)), draw(positive), draw(names),
            tuple(draw(st.lists(st.integers(0, 63), max_size=3))),
        )
        for n in device_names
    )  # fmt: skip
    fair = draw(st.booleans())

    def link(a: str, b: str) -> Link:
        medium = draw(st.sampled_from(["", "the bus", "the air"]))
        rate = draw(positive | st.just(math.inf))
        return Link(a, b, rate, draw(st.floats(0, 10)), medium, fair, draw(st.floats(0, 10)), draw(st.floats(0, 1)))

    pairs = [(a, b) for a in device_names for b in device_names if a != b]
    chosen = draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else []
    return Cluster(devices, tuple(link(a, b) for a, b in chosen), link("", ""), draw(names))


T = TypeVar("T")


def refused_or(read: Callable[[], T], kind: type[BadInput], mention: str = "") -> T | None:
    """What `read` gives, or None where it raises an error of the kind that mentions what it should."""
    try:
        return read()
    except kind as error:
        if mention not in str(error):
            raise AssertionError(f"{mention!r} is not in {error}") from error
        return None


JUNK = (None, -1, 10**400, math.nan, math.inf, -math.inf, "", "a", "🎻", True, [], {}, [[]], {"a": 1}, [None], 2.5)


def places_in(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of every value inside a JSON value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [p for k, v in items for p in [(*at, k), *places_in(v, (*at, k))]]


@st.composite
def damaged(draw: st.DrawFn, sound: dict[str, Any]) -> dict[str, Any]:
    """The JSON value with one of its places replaced by junk, removed, or (a row of a list) doubled."""
    value = copy.deepcopy(sound)
    *way, last = draw(st.sampled_from(places_in(value)))
    inner: Any = value
    for k in way:
        inner = inner[k]
    how = draw(st.sampled_from(["replace", "remove", "add"]))
    if how == "replace":
        inner[last] = draw(st.sampled_from(JUNK))
    elif how == "remove":
        del inner[last]
    elif isinstance(inner, list):
        inner.append(copy.deepcopy(inner[last]))
    else:
        inner["unheard of"] = draw(st.sampled_from(JUNK))
    return value
