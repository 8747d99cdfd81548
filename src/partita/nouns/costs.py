"""CostTable: how long every task takes on every kind of device, and what is known of each transfer.

The source of every number is kept: "measured" here, "predicted" by a model, "given" by a file.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from partita.errors import CostError, refuse
from partita.files import damaged
from partita.nouns.graph import FloatArray, TaskGraph

MOST_SECONDS = 1e15  #: a time beyond it (30 million years) is damage; below, sums and pictures of times stay finite
Source = Literal["measured", "predicted", "given"]


@dataclass(frozen=True, slots=True)
class Estimate:
    """A time and the interval it is believed to lie in; infinite seconds: cannot run there."""

    seconds: float
    low: float
    high: float
    source: Source

    @staticmethod
    def given(seconds: float) -> Estimate:
        return Estimate(seconds, seconds, seconds, "given")


@dataclass(frozen=True, eq=False)
class CostTable:
    """Times of one micro-batch, in the order of the graph's tasks and tensors."""

    kinds: tuple[str, ...]  #: the columns
    seconds: FloatArray  #: [tasks, kinds]; inf where a task cannot run on a kind
    low: FloatArray  #: [tasks, kinds]
    high: FloatArray  #: [tasks, kinds]
    source: npt.NDArray[np.uint8]  #: [tasks, kinds] position in `Source`
    transfer_s: FloatArray  #: [tensors] given time of a transfer; nan: bytes / rate of the link it takes
    weight_share: FloatArray | None = (
        None  #: [tasks, kinds] of a backward's seconds, what makes the gradients of weights
    )
    parting_s: FloatArray | None = None  #: [tasks, kinds] that a backward in two parts takes beyond one, at the first

    @staticmethod
    def given(kinds: Sequence[str], seconds: npt.ArrayLike, transfer_s: npt.ArrayLike) -> CostTable:
        """A table of exact times, as a file gives them."""
        times = np.array(seconds, np.float64)
        code = np.full(times.shape, get_args(Source).index("given"), np.uint8)
        return CostTable(tuple(kinds), times, times, times, code, np.array(transfer_s, np.float64))

    @staticmethod
    def of(kinds: Sequence[str], rows: Sequence[Sequence[Estimate]], tensors: int) -> CostTable:
        """A table from rows of estimates, its transfers left to the links."""
        names = get_args(Source)
        grid = [[(e.seconds, e.low, e.high, names.index(e.source)) for e in row] for row in rows]
        a = np.array(grid, np.float64).reshape(len(rows), len(kinds), 4)
        return CostTable(
            tuple(kinds),
            a[..., 0].copy(),
            a[..., 1].copy(),
            a[..., 2].copy(),
            a[..., 3].astype(np.uint8),
            np.full(tensors, math.nan),
        )

    def column(self, kind: str) -> int:
        """The column of a kind. Raises CostError where there is none."""
        if kind not in self.kinds:
            raise CostError(
                f"no costs for devices of kind {kind!r}; there are costs for {', '.join(self.kinds)}",
                hint="measure on that device, or change its kind in the cluster file",
            )
        return self.kinds.index(kind)

    def scaled(self, factor: float) -> CostTable:
        """The same table with every compute time multiplied."""
        return CostTable(
            self.kinds,
            self.seconds * factor,
            self.low * factor,
            self.high * factor,
            self.source,
            self.transfer_s,
            self.weight_share,
            None if self.parting_s is None else self.parting_s * factor,
        )

    @property
    def shares_of_weights(self) -> FloatArray:
        """[tasks, kinds] `weight_share`; a half where it is not known: two products of matrices of one size."""
        return np.full(self.seconds.shape, 0.5) if self.weight_share is None else self.weight_share

    @property
    def partings_s(self) -> FloatArray:
        """[tasks, kinds] `parting_s`; nothing where it is not known."""
        return np.zeros(self.seconds.shape) if self.parting_s is None else self.parting_s

    def check(self, graph: TaskGraph) -> list[str]:
        """Every fault at once; empty when the table is sound and fits the graph."""
        if self.seconds.shape != (len(graph), len(self.kinds)):
            return [
                f"it has times for {self.seconds.shape[0]} tasks and {self.seconds.shape[1]} kinds; the graph has {len(graph)} tasks, the table {len(self.kinds)} kinds"
            ]
        if self.transfer_s.shape != graph.producer.shape:
            return [f"it has {len(self.transfer_s)} transfer times for {len(graph.producer)} tensors"]
        if {self.low.shape, self.high.shape, self.source.shape} != {self.seconds.shape}:
            return [
                f"its times, bounds and sources have shapes {self.seconds.shape}, {self.low.shape}, {self.high.shape}, {self.source.shape}"
            ]
        share = self.shares_of_weights
        if share.shape != self.seconds.shape or not bool(np.all((share >= 0) & (share <= 1))):
            return [f"its shares of weights have shape {share.shape}, from {share.min()} to {share.max()}"]
        parting = self.partings_s
        if parting.shape != self.seconds.shape or not bool(np.all((parting >= 0) & (parting <= MOST_SECONDS))):
            return [f"its seconds of parting have shape {parting.shape}, from {parting.min()} to {parting.max()}"]
        ids = [t.id for t in graph.tasks]
        faults = [
            f"kind {k!r} has {self.kinds.count(k)} columns" for k in sorted({*self.kinds}) if self.kinds.count(k) > 1
        ]
        faults += [
            f"task {ids[i]!r} has the unknown source {self.source[i, k]} on {self.kinds[k]!r}"
            for i, k in np.argwhere(self.source >= len(get_args(Source)))
        ]
        faults += [
            f"task {ids[i]!r} takes {self.seconds[i, k]} s on {self.kinds[k]!r}"
            for i, k in np.argwhere(~((self.seconds >= 0) & ((self.seconds <= MOST_SECONDS) | np.isinf(self.seconds))))
        ]
        rounded = 1e-9 * np.where(
            np.isfinite(self.seconds), self.seconds, 0.0
        )  # what scaling an interval may shift it by
        inside = (self.low >= 0) & (self.low <= self.seconds + rounded) & (self.seconds <= self.high + rounded)
        apart = np.isfinite(self.seconds) & ~inside
        faults += [
            f"task {ids[i]!r} takes {self.seconds[i, k]} s on {self.kinds[k]!r}, from {self.low[i, k]} to {self.high[i, k]}"
            for i, k in np.argwhere(apart)
        ]
        faults += [
            f"task {ids[i]!r} can run on no kind of device" for i in np.flatnonzero(np.isinf(self.seconds).all(axis=1))
        ]
        faults += [
            f"a tensor of {ids[graph.producer[k]]!r} takes {self.transfer_s[k]} s to send"
            for k in np.flatnonzero((self.transfer_s < 0) | (self.transfer_s > MOST_SECONDS))
        ]
        return faults

    def to_json(self) -> dict[str, Any]:
        """JSON values; an infinite time is null, a transfer left to the links is null."""

        def grid(a: FloatArray) -> list[list[float | None]]:
            return [[x if math.isfinite(x) else None for x in row] for row in a.tolist()]

        return {
            "kinds": list(self.kinds),
            "seconds": grid(self.seconds),
            "low": grid(self.low),
            "high": grid(self.high),
            "source": self.source.tolist(),
            "transfer_s": [x if math.isfinite(x) else None for x in self.transfer_s.tolist()],
            **({} if self.weight_share is None else {"weight_share": self.weight_share.tolist()}),
            **({} if self.parting_s is None else {"parting_s": self.parting_s.tolist()}),
        }

    @staticmethod
    def from_json(value: Mapping[str, Any], graph: TaskGraph, what: str = "costs") -> CostTable:
        """The table in a parsed JSON object. Raises CostError with every fault at once."""

        def grid(rows: Any) -> FloatArray:
            return np.array([[math.inf if x is None else float(x) for x in row] for row in rows], np.float64).reshape(
                len(graph), -1
            )

        with damaged(CostError, what, hint="measure again"):
            kinds = tuple(str(k) for k in value["kinds"])
            source = np.array(value["source"], np.uint8).reshape(len(graph), -1)
            transfer = np.array([math.nan if x is None else float(x) for x in value["transfer_s"]], np.float64)
            share = grid(value["weight_share"]) if "weight_share" in value else None
            parting = grid(value["parting_s"]) if "parting_s" in value else None
            seconds, low, high = (grid(value[k]) for k in ("seconds", "low", "high"))
            table = CostTable(kinds, seconds, low, high, source, transfer, share, parting)
        refuse(CostError, table.check(graph), what)
        return table
