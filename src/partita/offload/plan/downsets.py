"""All cuts of a network: its downsets, and those of them that no other one beats on every machine.

A cut that takes no less time than another on any machine can be replaced by that other one in every plan, since
schedules in a given order are monotone in every time. What is left is the Pareto front over four machines.
"""

from __future__ import annotations

import numpy as np

from partita.nouns.graph import BoolArray, FloatArray, IntArray
from partita.offload.plan.network import Network
from partita.solve.compiled import compiled


def front(network: Network, most: int) -> tuple[BoolArray, FloatArray, bool]:
    """([cuts, tasks] the cuts that no other beats, [cuts, 4] their times, whether all downsets were looked at).

    Where there are more than `most` downsets, no cut at all. O(downsets x (tasks + edges + cuts)).
    """
    found, complete = _enumerate(
        network.device_s, network.up_s, network.server_s, network.down_s, network.input_up_s,
        network.reads.start, network.reads.items, most,
    )  # fmt: skip
    if not complete:
        return np.zeros((0, len(network)), np.bool_), found[:0], False
    found[1:, 0] += network.send_s + network.send_share * found[1:, 1]  # the first downset is the whole network
    found[1:, 2] += network.receive_s + network.receive_share * found[1:, 1]
    kept = np.sort(unbeaten(found))
    cuts = _recover(network.reads.start, network.reads.items, kept, len(network))
    return cuts, found[kept], complete


def unbeaten(times: FloatArray) -> IntArray:
    """Indices of the rows of times [n, m] that no other row equals or beats in all columns; of equal rows one stays.

    >>> unbeaten(np.array([[1.0, 2.0], [2.0, 2.0], [0.0, 3.0], [1.0, 2.0]])).tolist()
    [2, 0]
    """
    order = np.lexsort(times.T[::-1])
    return order[_front(np.ascontiguousarray(times[order], np.float64))]


@compiled
def _front(times: FloatArray) -> IntArray:
    """The rows, sorted lexicographically, that no earlier row equals or beats. O(rows x kept)."""
    n, m = times.shape
    kept = np.empty(n, np.int64)
    count = 0
    for i in range(n):
        beaten = False
        for k in range(count - 1, -1, -1):
            beaten = True
            for c in range(m):
                if times[kept[k], c] > times[i, c]:
                    beaten = False
                    break
            if beaten:
                break
        if not beaten:
            kept[count] = i
            count += 1
    return kept[:count]


@compiled
def _next(cut: BoolArray, start: IntArray, reads: IntArray) -> bool:
    """The next downset in descending lexicographic order, in place; False after the empty one."""
    n = len(cut)
    last = n - 1
    while last >= 0 and not cut[last]:
        last -= 1
    if last < 0:
        return False
    cut[last] = False
    for v in range(last + 1, n):
        cut[v] = True
        for k in range(start[v], start[v + 1]):
            if not cut[reads[k]]:
                cut[v] = False
                break
    return True


@compiled
def _enumerate(
    device: FloatArray,
    up: FloatArray,
    server: FloatArray,
    down: FloatArray,
    input_up: float,
    start: IntArray,
    reads: IntArray,
    most: int,
) -> tuple[FloatArray, bool]:
    """[downsets, 4] the times of every downset, the whole network first; and whether these are all."""
    n = len(device)
    times = np.empty((1024, 4))
    cut = np.ones(n, np.bool_)
    crosses = np.zeros(n, np.int64)  # the number of the last downset in which a task's output crosses
    count = 0
    while True:
        if count == len(times):
            more = np.empty((2 * count, 4))
            more[:count] = times
            times = more
        d, u, s, w = 0.0, 0.0, 0.0, 0.0
        asks = False
        for v in range(n):
            if cut[v]:
                d += device[v]
            else:
                s += server[v]
                w += down[v]
                if start[v] == start[v + 1]:
                    asks = True
                for k in range(start[v], start[v + 1]):
                    r = reads[k]
                    if cut[r] and crosses[r] <= count:
                        crosses[r] = count + 1
                        u += up[r]
        times[count] = d, u + (input_up if asks else 0.0), s, w
        count += 1
        if not _next(cut, start, reads):
            return times[:count], True
        if count >= most:
            return times[:count], False


@compiled
def _recover(start: IntArray, reads: IntArray, ranks: IntArray, n: int) -> BoolArray:
    """[ranks, n] the downsets of the given ascending ranks in the enumeration."""
    cuts = np.zeros((len(ranks), n), np.bool_)
    cut = np.ones(n, np.bool_)
    rank = 0
    for k in range(len(ranks)):
        while rank < ranks[k]:
            _next(cut, start, reads)
            rank += 1
        cuts[k] = cut
    return cuts
