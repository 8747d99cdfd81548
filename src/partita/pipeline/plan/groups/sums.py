"""When a step of several groups ends: after their last backwards, the gradients of what they all hold are summed.

Where the groups cut differently, the union of their cuts parts the model into stages that one device of each group holds; each
has a ring of its own through the groups, begun when the last backward of that stage has run in all of them.
"""

from __future__ import annotations

import numpy as np

from partita.nouns.graph import FloatArray, IntArray
from partita.pipeline.plan.groups.line import Line
from partita.solve.compiled import compiled


@compiled
def step_s(line: Line, order: IntArray, cuts: IntArray, first: IntArray, ends: FloatArray) -> float:
    """The end of the step. Group g has the devices order[first[g]:first[g + 1]], device x of all holds the places from cuts[x]
    to the next one's, to the end of the line for a group's last; its last backward ends at ends[x]. O(devices^2)."""
    groups, last = len(first) - 1, len(line.state) - 1
    done = ends.copy()
    if groups > 1:
        at = first[1:] - 1  # [groups] the device that holds what is before `high`
        free = np.zeros((len(order), len(order)))  # [devices, devices] the link from one to another
        high = last
        share, steps = 2.0 * (groups - 1) / groups, 2.0 * (groups - 1)
        while high > 0:
            low, begin = 0, 0.0
            for g in range(groups):
                low = max(low, cuts[at[g]])
            for g in range(groups):  # what of the device's last backward comes after that of this stage
                x = at[g]
                d = order[x]
                begin = max(begin, ends[x] - (line.backward_s[d, low] - line.backward_s[d, cuts[x]]))
            size = line.gradient[high] - line.gradient[low]
            if size > 0:
                end = 0.0
                for g in range(groups):
                    x, y = at[g], at[(g + 1) % groups]
                    d, e = order[x], order[y]
                    free[x, y] = max(free[x, y], begin) + share * size * line.sum_byte_s[d, e]
                    end = max(end, free[x, y] + steps * line.latency_s[d, e] + line.sum_s[d, e])
                for g in range(groups):
                    done[at[g]] = max(done[at[g]], end)
            for g in range(groups):
                if cuts[at[g]] == low and at[g] > first[g]:
                    at[g] -= 1
            high = low
    end = 0.0
    for g in range(groups):
        for x in range(first[g], first[g + 1]):
            d = order[x]
            high = cuts[x + 1] if x + 1 < first[g + 1] else last
            end = max(end, done[x] + line.update_s[d, high] - line.update_s[d, cuts[x]])
    return end
