"""Traces of queries on a Spark cluster, in the form of the ones that Decima's simulator uses: a file for each size of data.

    {query: {"edges": [[parent stage, child stage], ..],
             "stages": [{"fresh_durations": {executors: [ms, ..]}, "first_wave": .., "rest_wave": ..}, ..]}}

A task's duration depends on how many executors its job had, and on what its executor did before: it came from another job
(fresh), it came from another stage of the job (first wave), or it has run this stage before (rest).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from partita.errors import CostError, refuse
from partita.files import read_json
from partita.nouns.graph import FloatArray
from partita.records import record
from partita.spark.problem import ShopStage, in_order

POINTS = (5, 10, 20, 40, 50, 60, 80, 100)  #: numbers of executors whose durations are drawn from
WARM_UP_S = 1.0  #: what a fresh executor needs more where no fresh one was measured
MOST_QUERIES, MOST_STAGES = 10_000, 10_000  #: of a file; of a query
LARGEST_MS = 1e12
Waves = tuple[FloatArray, FloatArray, FloatArray]  #: seconds: fresh, first, rest; none of them empty


@dataclass(frozen=True, slots=True)
class TraceStage:
    """Durations in ms by number of executors."""

    fresh_durations: Mapping[str, tuple[float, ...]]
    first_wave: Mapping[str, tuple[float, ...]]
    rest_wave: Mapping[str, tuple[float, ...]]


@dataclass(frozen=True, slots=True)
class TraceQuery:
    """One query as it stands in a file."""

    edges: tuple[tuple[int, int], ...]
    stages: tuple[TraceStage, ...]


@dataclass(frozen=True, eq=False)
class Query:
    """One query, ready to be drawn from; stages 0 .. n-1 parents first."""

    name: str  #: e.g. "2g 17"
    parents: tuple[tuple[int, ...], ...]  #: [stages]
    tasks: tuple[int, ...]  #: [stages]
    waves: tuple[tuple[Waves, ...], ...]  #: [stages, POINTS]


def read_traces(folder: str | Path) -> tuple[Query, ...]:
    """The queries of every .json file in a folder, files by name. Raises CostError."""
    files = sorted(Path(folder).glob("*.json"))
    if not files:
        raise CostError(f"{folder} has no .json files", hint="name the folder that holds 2g.json, 10g.json ..")
    return tuple(query for path in files for query in read_queries(path))


def read_queries(path: str | Path) -> tuple[Query, ...]:
    """The queries of one file. Raises CostError with every fault at once."""
    hint = "see docs/reference/spark.md for the form of traces"
    kind: Any = Mapping[str, TraceQuery]
    found: Mapping[str, TraceQuery] = record(kind, read_json(path, CostError), CostError, str(path), hint=hint)
    faults = [] if found else ["it has no queries"]
    if len(found) > MOST_QUERIES:
        faults = [f"it has {len(found):,} queries; at most {MOST_QUERIES:,} are read"]
    faults += [f"query {name!r}{fault}" for name, query in found.items() for fault in _faults(query)]
    refuse(CostError, faults, str(path), hint=hint)
    return tuple(_query(f"{Path(path).stem} {name}", query) for name, query in found.items())


def _faults(query: TraceQuery) -> list[str]:
    n = len(query.stages)
    if not 1 <= n <= MOST_STAGES:
        return [f" has {n:,} stages; 1 to {MOST_STAGES:,} are possible"]
    faults = [f" has an edge {a} -> {b}; its stages are 0 to {n - 1}" for a, b in query.edges if not (0 <= a < n and 0 <= b < n)]  # fmt: skip
    for s, stage in enumerate(query.stages):
        tables = (stage.fresh_durations, stage.first_wave, stage.rest_wave)
        keys = [sorted(t) for t in tables]
        if keys[0] != keys[1] or keys[1] != keys[2] or not keys[0] or not all(_is_count(k) for k in keys[0]):
            faults.append(f" stage {s} needs the same numbers of executors in all three tables, whole ones from 1 on")
            continue
        if not all(0 <= ms <= LARGEST_MS for t in tables for row in t.values() for ms in row):
            faults.append(f" stage {s} has a duration outside of 0 to {LARGEST_MS:g} ms")
        if any(not stage.first_wave[k] and not stage.fresh_durations[k] for k in keys[0]):
            faults.append(f" stage {s} has neither fresh durations nor a first wave for some number of executors")
        if not _tasks(stage):
            faults.append(f" stage {s} has no task: its first number of executors has neither a first wave nor a rest")
    if not faults and in_order(_as_stages(query))[1]:
        faults.append(f": stages {in_order(_as_stages(query))[1][:8]} wait for each other: a circle")
    return faults


def _is_count(key: str) -> bool:
    return key.isascii() and key.isdigit() and 1 <= len(key) <= 6 and int(key) > 0


def _as_stages(query: TraceQuery) -> tuple[ShopStage, ...]:
    parents: list[list[int]] = [[] for _ in query.stages]
    for a, b in query.edges:
        parents[b].append(a)
    return tuple(ShopStage(0.0, 0.0, tuple(sorted(set(p)))) for p in parents)


def _query(name: str, query: TraceQuery) -> Query:
    stages = _as_stages(query)
    order = in_order(stages)[0]
    at = {s: k for k, s in enumerate(order)}
    parents = tuple(tuple(sorted(at[p] for p in stages[s].parents)) for s in order)
    chosen = [query.stages[s] for s in order]
    return Query(name, parents, tuple(_tasks(s) for s in chosen), tuple(_waves(s) for s in chosen))


def _tasks(stage: TraceStage) -> int:
    """How many tasks the stage has: those of the first entry."""
    key = next(iter(stage.first_wave))
    return len(stage.first_wave[key]) + len(stage.rest_wave[key])


def _waves(stage: TraceStage) -> tuple[Waves, ...]:
    """[POINTS] what is drawn from at each number of executors; where that was not measured, at the largest that was.

    The tasks of the first wave whose executor was fresh are left out of it; where none is left, it is the one of fewer
    executors, then the fresh durations. Where no executor was fresh, it is the first wave and a warm-up.
    """
    first: dict[int, Sequence[float]] = {}
    before: Sequence[float] = ()
    keys = sorted(int(k) for k in stage.first_wave)
    name = {int(k): k for k in stage.first_wave}
    for k in keys:
        fresh = Counter(stage.fresh_durations[name[k]])
        left = list((Counter(stage.first_wave[name[k]]) - fresh).elements())
        first[k] = before = left or before
    rows = []
    for point in POINTS:
        k = point if point in first else keys[-1]
        fresh_s, rest_s = (np.array(t[name[k]], np.float64) / 1e3 for t in (stage.fresh_durations, stage.rest_wave))
        first_s = np.array(first[k], np.float64) / 1e3
        later = first_s if len(first_s) else fresh_s
        rows.append((fresh_s if len(fresh_s) else later + WARM_UP_S, later, rest_s if len(rest_s) else later))
    return tuple(rows)
