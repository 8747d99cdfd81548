"""A pool of downsets, and the best chain of stages with replicas through some of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from partita.placement.plan.replicated import ReplicatedStage, Replication
from partita.placement.plan.throughput import Bools, Work

MOST_CUTS = 20_000  #: kept; later ones are dropped


@dataclass(eq=False)
class CutPool:
    """Downsets without order, each once."""

    work: Work
    replication: Replication
    cuts: dict[bytes, Bools] = field(default_factory=dict)
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

    def add(self, cut: Bools) -> None:
        """Keep a downset, [units]."""
        if len(self.cuts) < MOST_CUTS:
            self.cuts.setdefault(np.packbits(cut).tobytes(), cut)

    def best(self, below_s: float) -> tuple[float, list[ReplicatedStage]] | None:
        """(bottleneck, stages) of the best chain below a value; None: none is. O(pairs in the bands x devices)."""
        self.seen = len(self.cuts)
        cuts = np.stack(list(self.cuts.values()))
        compute = cuts @ self.work.seconds[:, 0]
        order = np.argsort(compute, kind="stable")
        cuts, compute = cuts[order], compute[order]
        units, spans = cuts.shape[1], self.work.spans
        padded = np.zeros((len(cuts), -(-units // 64) * 64), np.bool_)
        padded[:, :units] = cuts
        members = np.packbits(padded, axis=1, bitorder="little").view(np.uint64)
        held = np.add.reduceat(cuts[:, spans.units.items].astype(np.int32), spans.units.start[:-1], axis=1)
        torn = ((held > 0) & (held < np.diff(spans.units.start))) @ spans.weight
        found = self.replication.cheapest(
            members, compute, cuts @ self.replication.weight_bytes, cuts @ self.work.memory_bytes, torn, below_s
        )
        if found is None:
            return None
        return found[0], [ReplicatedStage(np.flatnonzero(cuts[j] & ~cuts[i]), m) for i, j, m in found[1]]
