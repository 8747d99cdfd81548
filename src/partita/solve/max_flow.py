"""Maximum flow, and with it the minimum cut, on whole capacities: Dinic's algorithm (Soviet Math. Dokl. 11, 1970)."""

from __future__ import annotations

import numpy as np

from partita.nouns.graph import BoolArray, IntArray
from partita.solve.compiled import compiled

GRAIN = 1e12  # capacities are whole numbers, this many to the total: rounded down, so that bounds stay bounds


ENDLESS = 1 << 60


@compiled
def max_flow(
    start: IntArray, arcs: IntArray, head: IntArray, capacity: IntArray, s: int, t: int, limit: int, spent: IntArray
) -> tuple[int, BoolArray]:
    """Dinic's algorithm; returns the flow (stopped once it reaches the limit) and the source side of the cut."""
    n = len(start) - 1
    level = np.full(n, -1, np.int64)
    at = np.zeros(n, np.int64)
    queue = np.empty(n, np.int64)
    path = np.empty(n, np.int64)
    flow = 0
    while flow < limit:
        level[:] = -1
        level[s] = 0
        queue[0] = s
        first, last = 0, 1
        while first < last and level[t] < 0:
            x = queue[first]
            first += 1
            at[x] = start[x]
            for j in range(start[x], start[x + 1]):
                spent[0] += 1
                i = arcs[j]
                y = head[i]
                if capacity[i] > 0 and level[y] < 0:
                    level[y] = level[x] + 1
                    at[y] = start[y]
                    queue[last] = y
                    last += 1
        if level[t] < 0:
            break
        depth = 0
        x = s
        while flow < limit:
            if x == t:
                push = ENDLESS
                for k in range(depth):
                    push = min(push, int(capacity[path[k]]))
                cut = 0
                for k in range(depth - 1, -1, -1):
                    capacity[path[k]] -= push
                    capacity[path[k] ^ 1] += push
                    if capacity[path[k]] == 0:
                        cut = k
                flow += push
                depth = cut
                x = head[path[cut] ^ 1]
                continue
            went = False
            while at[x] < start[x + 1]:
                spent[0] += 1
                i = arcs[at[x]]
                y = head[i]
                if capacity[i] > 0 and level[y] == level[x] + 1:
                    path[depth] = i
                    depth += 1
                    x = y
                    went = True
                    break
                at[x] += 1
            if not went:
                if x == s:
                    break
                level[x] = -1
                depth -= 1
                x = head[path[depth] ^ 1]
                at[x] += 1
    return flow, level >= 0
