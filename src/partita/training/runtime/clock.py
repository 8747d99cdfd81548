"""Aligning the ranks' clocks: how far a rank's time.perf_counter() is ahead of rank 0's.

Ranks of one machine read one clock, so their offset is 0. Others exchange stamps: of the round trips, the shortest
bounds the error by half its length (as NTP does).
"""

from __future__ import annotations

import time

import torch
import torch.distributed as dist

from partita.training.runtime.worker_status import this_boot


def clock_offset(rank: int, ranks: int, rounds: int = 20) -> float:
    """Seconds to subtract from this rank's clock to read rank 0's. Every rank calls it."""
    boots = torch.zeros(ranks, dtype=torch.int64)
    boots[rank] = this_boot()
    dist.all_reduce(boots)
    offset = 0.0
    for other in range(1, ranks):
        if int(boots[other]) != int(boots[0]) and rank in (0, other):
            found = _exchange(rank, other, rounds)
            offset = found if rank == other else offset
    return offset


def _exchange(rank: int, other: int, rounds: int) -> float:
    """Rank 0 and `other` exchange stamps; returns `other`'s offset on `other`, 0 on rank 0."""
    stamp = torch.zeros(1, dtype=torch.float64)
    best, offset = float("inf"), 0.0
    for _ in range(rounds):
        if rank == 0:
            dist.recv(stamp, other)
            dist.send(torch.tensor([time.perf_counter()], dtype=torch.float64), other)
            continue
        before = time.perf_counter()
        dist.send(stamp, 0)
        dist.recv(stamp, 0)
        after = time.perf_counter()
        if after - before < best:
            best, offset = after - before, (before + after) / 2 - float(stamp)
    return offset
