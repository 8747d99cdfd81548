"""Method `blocks`: block partition of the layer times, as torchgpipe balances (Barany and Grinberg, "Block partitions of
sequences", Israel J. Math. 206, 2015; Kim et al., torchgpipe, 2020).

It ends with blocks of which no two differ by more than the largest task; it does not look at what is sent.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from partita.nouns.graph import FloatArray
from partita.pipeline.plan.bench import Candidate
from partita.pipeline.plan.linear_cuts import prefixes, through
from partita.pipeline.plan.pipeline_task import PipelineTask


def propose(task: PipelineTask) -> Iterator[Candidate]:
    """One stage a device, cut at each micro-batch size by the times measured there."""
    line = prefixes(task.states, task.units)
    stages = min(task.wish.stages or len(task.cluster.devices), len(line) - 1)
    for bench in task.benches:
        done = (bench.costs.forward_s + bench.costs.backward_s)[line, 0]
        ends = block_partition(np.diff(done), stages)
        yield from through(task, line[np.array(ends[:-1], np.int64)], (bench,))


def block_partition(times: FloatArray | Sequence[float], blocks: int) -> list[int]:
    """The end of each block of a sequence, so that the sums of two blocks differ by at most its spread.

    Raises ValueError for fewer items than blocks. O(blocks n^3) in the worst case, near-linear in practice.

    >>> block_partition([1, 2, 3, 4, 5, 6], 3)
    [3, 5, 6]
    """
    n = len(times)
    if not 1 <= blocks <= n:
        raise ValueError(f"{n} items in {blocks} blocks")
    spread = float(np.max(times) - np.min(times)) or 1.0
    total = np.concatenate([[0.0], np.cumsum((np.asarray(times, np.float64) - np.min(times)) / spread)])
    ends = np.array([n // blocks * (k + 1) for k in range(blocks - 1)] + [n])
    for _ in range(blocks * n**2):
        sizes = total[ends] - total[np.concatenate([[0], ends[:-1]])]
        p = int(np.argmax(sizes))  # a largest block ...
        smallest = np.flatnonzero(sizes <= sizes.min())
        q = int(smallest[np.argmin(np.abs(smallest - p))])  # ... and the smallest one nearest to it
        if sizes[p] <= sizes[q] + 1:
            break
        if p < q:
            ends[q - 1] -= 1  # the last item of the block before q goes to q
        else:
            ends[q] += 1  # the first item of the block after q goes to q
    return [int(e) for e in ends]
