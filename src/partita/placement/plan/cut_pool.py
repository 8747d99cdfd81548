"""A pool of downsets, and the best chain of stages with replicas through some of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from partita.nouns.graph import BoolArray
from partita.placement.plan.replicated import ReplicatedStage, Replication
from partita.placement.plan.throughput import Work

MOST_CUTS = 20_000  #: kept; later ones are dropped
BETWEEN = 8  #: downsets between two, with these


@dataclass(eq=False)
class CutPool:
    """Downsets without order, each once."""

    work: Work
    replication: Replication
    cuts: dict[bytes, tuple[BoolArray, float]] = field(default_factory=dict)  #: [units], and what it sends
    seen: int = 0  #: how many there were when chains through them were last looked for

    @staticmethod
    def of(work: Work, replication: Replication, stages: Sequence[ReplicatedStage]) -> CutPool:
        """The pool of the cuts between given stages, and of nothing and everything."""
        pool, reached = CutPool(work, replication), np.zeros(len(work.units), np.bool_)
        pool.add(reached)
        for stage in stages:
            reached = reached.copy()
            reached[stage.units] = True
            pool.add(reached)
        return pool

    def __len__(self) -> int:
        return len(self.cuts)

    def sent_s(self, cut: BoolArray) -> float:
        """What a downset sends."""
        spans = self.work.spans
        held = np.add.reduceat(cut[spans.units.items].astype(np.int64), spans.units.start[:-1])
        return float(spans.weight[(held > 0) & (held < np.diff(spans.units.start))].sum())

    def add(self, cut: BoolArray) -> None:
        """Keep a downset, [units]."""
        key = np.packbits(cut).tobytes()
        if key not in self.cuts and len(self.cuts) < MOST_CUTS:
            self.cuts[key] = cut, self.sent_s(cut)

    def add_between(self, one: BoolArray, other: BoolArray) -> None:
        """Keep some downsets between two, if one is inside the other: units are added as they are numbered."""
        if not (one <= other).all():
            return
        units = np.flatnonzero(other & ~one)
        for part in np.array_split(units, min(len(units), BETWEEN))[:-1] if len(units) else ():
            one = one.copy()
            one[part] = True
            self.add(one)

    def best(self, below_s: float) -> tuple[float, list[ReplicatedStage]] | None:
        """(bottleneck, stages) of the best chain below a value; None: none is. O(pairs in the bands x devices)."""
        self.seen = len(self.cuts)
        cuts = np.stack([c for c, _ in self.cuts.values()])
        compute = cuts @ self.work.seconds[:, 0]
        order = np.lexsort((cuts.sum(axis=1), compute))  # of equal work the smaller first: what is inside comes before
        cuts, compute = cuts[order], compute[order]
        torn = np.array([t for _, t in self.cuts.values()])[order]
        units = cuts.shape[1]
        padded = np.zeros((len(cuts), -(-units // 64) * 64), np.bool_)
        padded[:, :units] = cuts
        members = np.packbits(padded, axis=1, bitorder="little").view(np.uint64)
        found = self.replication.cheapest(
            members, compute, cuts @ self.replication.weight_bytes, cuts @ self.work.memory_bytes, torn, below_s
        )
        if found is None:
            return None
        return found[0], [ReplicatedStage(np.flatnonzero(cuts[j] & ~cuts[i]), m) for i, j, m in found[1]]
