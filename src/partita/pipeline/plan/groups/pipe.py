"""One group's pipeline: devices in an order, cuts, and how long it takes over some micro-batches.

    cut       the dynamic program over ordered devices: A(p, i) = min over j > i of max( t_p(i -> j), A(p + 1, j) )
    lasting   1F1B of its micro-batches, event by event

where t_p(i -> j) is what a micro-batch takes of device p, or of the link before it, whichever is more; inf where the segment does
not fit: weights + (devices from p to the end + what is in flight beyond) x kept. The state stands in the machine code's arrays;
both are checked against the simulator (tests/pipeline/plan/test_groups.py).
"""

from __future__ import annotations

import numpy as np

from partita.nouns.graph import FloatArray, IntArray
from partita.pipeline.plan.groups.line import Line
from partita.solve.compiled import compiled


@compiled
def cut(line: Line, order: IntArray, batches: int, slack: int) -> tuple[float, IntArray]:
    """(the least bottleneck, [devices + 1] places of the cuts); inf where it does not fit. O(devices x places^2)."""
    n, places = len(order), len(line.state)
    value = np.full((n + 1, places), np.inf)
    came = np.zeros((n, places), np.int64)
    value[n, places - 1] = 0.0
    for p in range(n - 1, -1, -1):
        d = order[p]
        held = min(batches, n - p + slack * (n - 1 - p))
        for i in range(places - 1):
            if (p == 0) != (i == 0):
                continue
            enter, inward = 0.0, 0.0
            if p > 0:
                e = order[p - 1]
                inward = line.there_bytes[i] * line.per_byte_s[e, d] + line.there_s[i]
                inward = max(inward, line.back_bytes[i] * line.per_byte_s[d, e] + line.back_s[i])
                enter = line.message_s[e, d]
                enter += line.there_bytes[i] * line.handle_byte_s[e, d] + line.back_bytes[i] * line.post_byte_s[d, e]
            for j in range(i + 1, places):
                if value[p + 1, j] >= value[p, i]:
                    continue
                if line.cannot[d, j] > line.cannot[d, i]:
                    break
                if line.weights[i, j] + held * (line.kept[j] - line.kept[i]) > line.room[d]:
                    break
                took = line.forward_s[d, j] - line.forward_s[d, i] + line.backward_s[d, j] - line.backward_s[d, i]
                took += enter + (2 * line.call_s[d] if n > 1 else 0.0)
                if p < n - 1:
                    e = order[p + 1]
                    took += line.message_s[e, d]
                    took += line.there_bytes[j] * line.post_byte_s[d, e] + line.back_bytes[j] * line.handle_byte_s[e, d]
                took = max(took, inward, value[p + 1, j])
                if took < value[p, i]:
                    value[p, i] = took
                    came[p, i] = j
    cuts = np.zeros(n + 1, np.int64)
    if np.isfinite(value[0, 0]):
        for p in range(n):
            cuts[p + 1] = came[p, cuts[p]]
    return value[0, 0], cuts


@compiled
def fits(line: Line, order: IntArray, cuts: IntArray, batches: int, slack: int) -> bool:
    """Every device runs its tasks and holds what it must."""
    n = len(order)
    for p in range(n):
        d, i, j = order[p], cuts[p], cuts[p + 1]
        held = min(batches, n - p + slack * (n - 1 - p))
        if j <= i or line.cannot[d, j] > line.cannot[d, i]:
            return False
        if line.weights[i, j] + held * (line.kept[j] - line.kept[i]) > line.room[d] * (1 + 1e-12):
            return False
    return True


@compiled
def lasting(line: Line, order: IntArray, cuts: IntArray, batches: int, slack: int) -> FloatArray:
    """[devices] when the last backward of each ends, with so many micro-batches. O(devices x micro-batches)."""
    n = len(order)
    f, b = np.zeros(n), np.zeros(n)
    for p in range(n):
        d = order[p]
        call = line.call_s[d] if n > 1 else 0.0
        f[p] = line.forward_s[d, cuts[p + 1]] - line.forward_s[d, cuts[p]] + call
        b[p] = line.backward_s[d, cuts[p + 1]] - line.backward_s[d, cuts[p]] + call
        if p > 0:
            e, k = order[p - 1], cuts[p]
            f[p] += line.there_bytes[k] * line.handle_byte_s[e, d]
            b[p] += line.back_bytes[k] * line.post_byte_s[d, e]
        if p < n - 1:
            e, k = order[p + 1], cuts[p + 1]
            f[p] += line.there_bytes[k] * line.post_byte_s[d, e]
            b[p] += line.back_bytes[k] * line.handle_byte_s[e, d]
    free = np.zeros(n)
    sent, turned = np.zeros(n), np.zeros(n)  # the link to the next device, and to the one before, is free again
    came = np.full((n, batches), np.inf)  # what a forward waits for
    back = np.full((n, batches), np.inf)  # what a backward waits for
    came[0, :] = 0.0
    forwards, backwards = np.zeros(n, np.int64), np.zeros(n, np.int64)
    left = 2 * n * batches
    while left > 0:
        before = left
        for q in range(2 * n):
            p = q if q < n else 2 * n - 1 - q
            d = order[p]
            window = min(batches, n - p + slack * (n - 1 - p))
            while True:
                x, y = forwards[p], backwards[p]
                if x < batches and x - y < window:
                    at = came[p, x]
                    if not np.isfinite(at):
                        break
                    end = max(free[p], at) + (line.message_s[order[p - 1], d] if p > 0 else 0.0) + f[p]
                    free[p] = end
                    forwards[p] = x + 1
                    if p < n - 1:
                        e, k = order[p + 1], cuts[p + 1]
                        sent[p] = max(sent[p], end) + line.there_bytes[k] * line.per_byte_s[d, e] + line.there_s[k]
                        came[p + 1, x] = sent[p] + line.latency_s[d, e]
                    else:
                        back[p, x] = end
                elif y < batches:
                    at = back[p, y]
                    if not np.isfinite(at):
                        break
                    end = max(free[p], at) + (line.message_s[order[p + 1], d] if p < n - 1 else 0.0) + b[p]
                    free[p] = end
                    backwards[p] = y + 1
                    if p > 0:
                        e, k = order[p - 1], cuts[p]
                        turned[p] = max(turned[p], end) + line.back_bytes[k] * line.per_byte_s[d, e] + line.back_s[k]
                        back[p - 1, y] = turned[p] + line.latency_s[d, e]
                else:
                    break
                left -= 1
        if left == before:
            break
    return free
