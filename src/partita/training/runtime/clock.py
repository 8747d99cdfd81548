"""Aligning the ranks' clocks: a rank's times as rank 0's clock would have told them.

Ranks of one machine read one clock, so nothing is to be corrected. Others compare clocks at the start and again later:
clocks drift by some 10 us a second, so between two comparisons the difference is taken to change evenly.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.distributed as dist

from partita.clock import clock_ahead
from partita.nouns.graph import FloatArray
from partita.training.runtime.worker_status import this_boot


@dataclass
class Clock:
    """One rank's clock beside rank 0's."""

    rank: int
    ranks: int
    at_s: list[float] = field(default_factory=list)  #: by this rank's clock, when they were compared
    ahead_s: list[float] = field(default_factory=list)  #: how far rank 0's was ahead of it then

    def compare(self, rounds: int = 20) -> None:
        """Compare with rank 0 once more. Every rank calls it."""
        boots = torch.zeros(self.ranks, dtype=torch.int64)
        boots[self.rank] = this_boot()
        dist.all_reduce(boots)
        ahead = 0.0
        for other in range(1, self.ranks):
            if int(boots[other]) != int(boots[0]):
                if self.rank == other:
                    ahead, _ = clock_ahead(_ask_rank_0, rounds)
                elif self.rank == 0:
                    _answer(other, rounds)
        self.at_s.append(time.perf_counter())
        self.ahead_s.append(ahead)

    def to_rank_0(self, times: FloatArray) -> FloatArray:
        """Times of this rank's clock as rank 0's would have told them.

        >>> Clock(1, 2, [0.0, 100.0], [5.0, 6.0]).to_rank_0(np.array([0.0, 50.0, 200.0])).tolist()
        [5.0, 55.5, 206.0]
        """
        return times + np.interp(times, self.at_s, self.ahead_s)


def _ask_rank_0() -> float:
    stamp = torch.zeros(1, dtype=torch.float64)
    dist.send(stamp, 0)
    dist.recv(stamp, 0)
    return float(stamp)


def _answer(other: int, rounds: int) -> None:
    stamp = torch.zeros(1, dtype=torch.float64)
    for _ in range(rounds):
        dist.recv(stamp, other)
        dist.send(torch.tensor([time.perf_counter()], dtype=torch.float64), other)
