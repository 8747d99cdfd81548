"""The stages of an RDD, read from its lineage before anything runs, as Spark's scheduler will cut them.

A shuffle ends a stage: RDDs that depend on each other narrowly are one stage, whose *entries* are the RDDs that read a
shuffle. Stages are numbered by the number of their last RDD: as the program made them, parents before children, the same
in every run of the program and in its event log.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from partita.errors import JobError

MOST_RDDS = 100_000


@dataclass(frozen=True)
class LineageStage:
    """One stage; Java objects are Spark's own."""

    name: str  #: where the program made it
    rdd: Any  #: its last RDD
    dependency: Any  #: the ShuffleDependency that it writes; None: its job's last stage
    parents: tuple[int, ...]
    reads: tuple[Any, ...]  #: its entries: RDDs that read a shuffle


def stages_of(rdd: Any) -> tuple[LineageStage, ...]:
    """The stages of a Java RDD's lineage, parents first. Raises JobError for a lineage beyond MOST_RDDS. O(RDDs)."""
    found: dict[
        int, tuple[Any, Any, list[int], list[Any]]
    ] = {}  # last RDD -> it, dependency, parents' last RDDs, entries
    waiting: list[tuple[Any, Any]] = [(rdd, None)]
    for last, dependency in waiting:  # grows
        if last.id() in found:
            continue
        rows = [(at, [d for d in deps if _is_shuffle(d)]) for at, deps in _narrow(last)]
        shuffles = [d for _, wide in rows for d in wide]
        found[last.id()] = (last, dependency, [d.rdd().id() for d in shuffles], [at for at, wide in rows if wide])
        waiting += [(d.rdd(), d) for d in shuffles]
    order = sorted(found)
    at = {number: k for k, number in enumerate(order)}
    return tuple(
        LineageStage(_name(r), r, d, tuple(sorted({at[p] for p in up})), tuple(reads))
        for r, d, up, reads in (found[number] for number in order)
    )


def entries(stage: LineageStage, cached: frozenset[int]) -> list[Any]:
    """The RDDs of a stage that read a shuffle and have to: what stands behind one that is `cached` (by number) need not."""
    return [rdd for rdd, deps in _narrow(stage.rdd, cached) if any(_is_shuffle(d) for d in deps)]


def _narrow(rdd: Any, stop: frozenset[int] = frozenset()) -> Iterator[tuple[Any, list[Any]]]:
    """(RDD, its dependencies) of every RDD of the stage that ends with `rdd`."""
    seen: set[int] = set()
    waiting = [rdd]
    while waiting:
        at = waiting.pop()
        if at.id() in seen or at.id() in stop:
            continue
        seen.add(at.id())
        if len(seen) > MOST_RDDS:
            raise JobError(
                f"a stage has more than {MOST_RDDS:,} RDDs", hint="cut the lineage: checkpoint an RDD on the way"
            )
        rows = at.dependencies()
        deps = [rows.apply(k) for k in range(rows.size())]
        yield at, deps
        waiting += [d.rdd() for d in deps if not _is_shuffle(d)]


def _is_shuffle(dependency: Any) -> bool:
    return str(dependency.getClass().getSimpleName()) == "ShuffleDependency"


def _name(rdd: Any) -> str:
    """Where the program made an RDD: "partitionBy at app.py:12"."""
    return str(rdd.getCreationSite())
