"""The simulator's inner loops as machine code; `simulate` is the way in.

Here a *line* is what runs its instructions one after another in ascending number: a device, a direction of a link, or,
on a fair queue, where nobody stands behind another, a single transfer.
"""

from __future__ import annotations

import heapq
import math
from typing import Any

import numpy as np
import numpy.typing as npt

from partita.nouns.graph import BoolArray, FloatArray, IntArray
from partita.solve.compiled import compiled

Int32Array = npt.NDArray[np.int32]
Places = npt.NDArray[np.uint32]
Nodes = tuple[Places, Places, Places, Places, Places]


@compiled
def lined_up(line: Int32Array, lines: int) -> tuple[Int32Array, Int32Array]:
    """Instructions grouped by line, ascending in each: (first [lines + 1], items [n])."""
    first = np.zeros(lines + 1, np.int32)
    for q in line:
        first[q + 1] += 1
    for q in range(lines):
        first[q + 1] += first[q]
    at = first[:-1].copy()
    items = np.empty(len(line), np.int32)
    for i in range(len(line)):
        q = line[i]
        items[at[q]] = i
        at[q] += 1
    return first, items


@compiled
def walk(
    line: Int32Array,
    lines: int,
    medium: Int32Array,
    first_need: IntArray,
    needs: IntArray,
    busy: FloatArray,
    lag: FloatArray,
) -> tuple[FloatArray, FloatArray, Int32Array, int]:
    """Start and end [n] of every instruction, the order in which they were found, and how many could run at all.

    Every line runs until its head needs something that is not done; that something wakes it when it is. So each
    instruction and each need is looked at once or twice.

    What happens on a fair queue depends on what else is under way there, so those transfers go by events in the order
    of time: all that can be known without them is walked first. Each fair queue has a service clock that counts the
    seconds of work every transfer under way has received; a transfer is through when the clock has advanced by its
    work (the virtual time of Parekh and Gallager, 1993).

    line: [n] the line of each instruction. medium: [lines] the fair queue behind a line, or -1.
    first_need, needs: Csr of what each instruction needs. What cannot run has a nan end.
    """
    n = len(line)
    first, items = lined_up(line, lines)
    start, end = np.full(n, np.nan), np.full(n, np.nan)
    order = np.empty(n, np.int32)
    sleeper = np.full(n, -1, np.int32)  # [n] the line that waits for an instruction ...
    next_sleeper = np.full(lines, -1, np.int32)  # [lines] ... and the next one that waits for the same
    head = first[:-1].copy()
    looked_at = np.full(lines, -1, np.int64)  # [lines] where among the needs of its head it stopped
    ready = np.zeros(lines)  # [lines] earliest start of its head by the needs it has looked at
    awake = np.empty(lines, np.int32)
    for q in range(lines):
        awake[q] = lines - 1 - q
    waking, done = lines, 0

    shared = max(0, medium.max() + 1)
    clock, clock_at = np.zeros(shared), np.zeros(shared)  # [queues] service clock, and the time it was read
    turn = np.zeros(shared, np.int64)  # [queues] grows with every change: older events of the queue are void
    under_way = [[(0.0, 0)] for _ in range(shared)]  # [queues] heap of (service clock when through, instruction)
    for q in range(shared):
        under_way[q].pop()
    events: list[Any] = [(0.0, 0, 0, 0)]  # heap of (time, 0 arrives / 1 through, instruction or queue, turn)
    events.pop()

    while True:
        while waking > 0:
            waking -= 1
            q = awake[waking]
            while head[q] < first[q + 1]:
                i = items[head[q]]
                k, at = looked_at[q], ready[q]
                if k < 0:
                    k = first_need[i]
                stop = first_need[i + 1]
                while k < stop:
                    j = needs[k]
                    if np.isnan(end[j]):
                        next_sleeper[q] = sleeper[j]
                        sleeper[j] = q
                        break
                    at = max(at, end[j] + lag[j])
                    k += 1
                ready[q] = at
                if k < stop:
                    looked_at[q] = k
                    break
                looked_at[q] = -1
                head[q] += 1
                start[i] = at
                if medium[q] >= 0:
                    heapq.heappush(events, (at, 0, np.int64(i), 0))
                    break
                at += busy[i]
                end[i] = at
                ready[q] = at
                order[done] = i
                done += 1
                s = sleeper[i]
                while s >= 0:
                    awake[waking] = s
                    waking += 1
                    s = next_sleeper[s]
        if len(events) == 0:
            break
        now, through, what, issued = heapq.heappop(events)
        if through == 1 and turn[what] != issued:
            continue
        if through == 1:
            q = what
            clock[q], i = heapq.heappop(under_way[q])
            end[i] = now
            order[done] = i
            done += 1
            s = sleeper[i]
            while s >= 0:
                awake[waking] = s
                waking += 1
                s = next_sleeper[s]
        else:
            q = medium[line[what]]
            if len(under_way[q]) > 0:
                clock[q] += (now - clock_at[q]) / len(under_way[q])
            else:
                clock[q] = 0.0
            heapq.heappush(under_way[q], (clock[q] + busy[what], what))
        clock_at[q] = now
        turn[q] += 1
        if len(under_way[q]) > 0:
            left = max(0.0, under_way[q][0][0] - clock[q]) * len(under_way[q])
            heapq.heappush(events, (now + left, 1, np.int64(q), turn[q]))
    return start, end, order, done


@compiled
def chill(wait: float, cools: float) -> float:
    """The part of what a long wait costs that is due behind one of so long."""
    return 1.0 - math.exp(-wait / cools)


@compiled
def behind_waits(
    line: Int32Array,
    first_need: IntArray,
    needs: IntArray,
    order: Int32Array,
    busy: FloatArray,
    lag: FloatArray,
    works: BoolArray,
    most: FloatArray,
    since: FloatArray,
    cools: float,
) -> tuple[FloatArray, FloatArray]:
    """([n] what instructions that work take longer for what their line has waited since the last one that did, [n] ends).

    most: [lines] what a long wait costs. since: [lines] from when each has waited. order: [n] each after all it waits for.
    """
    n = len(line)
    free, idle, waited = np.zeros(len(most)), since.copy(), np.zeros(len(most))
    end, longer = np.zeros(n), np.zeros(n)
    for i in order:
        q = line[i]
        at = free[q]
        for k in range(first_need[i], first_need[i + 1]):
            at = max(at, end[needs[k]] + lag[needs[k]])
        waited[q] += at - idle[q]
        if works[i]:
            longer[i] = most[q] * chill(waited[q], cools)
            waited[q] = 0.0
        end[i] = free[q] = idle[q] = at + busy[i] + longer[i]
    return longer, end


@compiled
def nodes(
    line: Int32Array, lines: int, devices: int, first_need: IntArray, needs: IntArray, order: Int32Array
) -> Nodes:
    """The program as nodes with two predecessors: (a, b, work, carrier [nodes], tails [lines]).

    Node p ends at max(end[a], end[b] + lag[carrier]) + busy[work]; predecessor 0 is the beginning, and node p is stored
    at p + 1. `a` is what stood before it in its line, `b` something it needs; where it needs more, nodes without work
    precede it. What a device did before on the same line is implied by the line and needs no edge: nothing on a device
    has a lag. `order`: [n] each instruction after all it waits for.
    """
    n = len(line)
    size = 0
    for i in range(n):
        kept = 0
        for k in range(first_need[i], first_need[i + 1]):
            if line[needs[k]] != line[i] or line[i] >= devices:
                kept += 1
        size += max(1, kept)
    a, b = np.zeros(size, np.uint32), np.zeros(size, np.uint32)
    work, carrier = np.full(size, n, np.uint32), np.full(size, n, np.uint32)
    place = np.empty(n, np.uint32)
    tails = np.zeros(lines, np.uint32)
    p = 0
    for i in order:
        a[p] = tails[line[i]]
        kept = 0
        for k in range(first_need[i], first_need[i + 1]):
            j = needs[k]
            if line[j] != line[i] or line[i] >= devices:
                if kept > 0:
                    p += 1
                    a[p] = p
                b[p] = place[j]
                carrier[p] = j
                kept += 1
        work[p] = i
        p += 1
        place[i] = p
        tails[line[i]] = p
    return a, b, work, carrier, tails


@compiled
def makespans(
    a: Places, b: Places, work: Places, carrier: Places, tails: Places, busy: FloatArray, lag: FloatArray
) -> FloatArray:
    """[k] the last end with each row of busy [k, n]; eight rows side by side fill the machine's vector registers."""
    rows, n, size = busy.shape[0], busy.shape[1], len(a)
    wait = np.zeros(size)
    for p in range(size):
        if carrier[p] < n:
            wait[p] = lag[carrier[p]]
    result = np.zeros(rows)
    full = rows - rows % 8
    if full > 0:
        ends = np.zeros((size + 1, 8))
        for row in range(0, full, 8):
            for p in range(size):
                ap, bp, wp, i = a[p], b[p], wait[p], work[p]
                for x in range(8):
                    u, v = ends[ap, x], ends[bp, x] + wp
                    ends[p + 1, x] = u if u > v else v
                if i < n:
                    for x in range(8):
                        ends[p + 1, x] += busy[row + x, i]
            for t in tails:
                for x in range(8):
                    result[row + x] = max(result[row + x], ends[t, x])
    end = np.zeros(size + 1)
    for row in range(full, rows):
        for p in range(size):
            u, v = end[a[p]], end[b[p]] + wait[p]
            at = u if u > v else v
            end[p + 1] = at + busy[row, work[p]] if work[p] < n else at
        for t in tails:
            result[row] = max(result[row], end[t])
    return result
