"""ZB-H1: 1F1B with every backward in two parts (Qi et al., "Zero Bubble Pipeline Parallelism", ICLR 2024).

The gradients of a stage's inputs (B) go to the stage before at once; those of its weights (W), which nobody waits for, come
later: stage k puts off k micro-batches of them, so that every stage keeps as many micro-batches as the first one does in 1F1B,
and fills with them the time in which the pipeline drains. The first stage has no one to send gradients to, and does both parts
in one (D). Three stages, four micro-batches; F, B and W take one unit each, a message none:

    stage 0  F0 F1 F2 .. .. D0 D0 F3 D1 D1 D2 D2 D3 D3
    stage 1  .. F0 F1 .. B0 F2 B1 W0 F3 B2 W1 B3 W2 W3
    stage 2  .. .. F0 B0 F1 B1 F2 B2 W0 F3 B3 W1 W2 W3

1F1B with two units a backward:

    stage 0  F0 F1 F2 .. .. .. .. B0 B0 F3 B1 B1 .. B2 B2 .. B3 B3
    stage 1  .. F0 F1 .. .. B0 B0 F2 B1 B1 F3 B2 B2 .. B3 B3 .. ..
    stage 2  .. .. F0 B0 B0 F1 B1 B1 F2 B2 B2 F3 B3 B3 .. .. .. ..
"""

from __future__ import annotations

from collections.abc import Sequence

from partita.simulate.schedules.gpipe import Step


def order(window: int, put_off: int, micro_batches: int) -> list[Step]:
    """What one stage does: `window` forwards, then in turn a B, the W of `put_off` micro-batches ago, and a forward.

    [3 x micro_batches] slots. It keeps window + put_off micro-batches at most.

    >>> " ".join(f"{part}{m}" for part, m in order(1, 1, 3))
    'F0 B0 F1 B1 W0 F2 B2 W1 W2'
    """
    slots: list[Step] = [("F", m) for m in range(min(window, micro_batches))]
    for m in range(micro_batches):
        slots.append(("B", m))
        if m >= put_off:
            slots.append(("W", m - put_off))
        if m + window < micro_batches:
            slots.append(("F", m + window))
    return slots + [("W", m) for m in range(max(0, micro_batches - put_off), micro_batches)]


def put_off(windows: Sequence[int]) -> list[int]:
    """[stages] how many micro-batches of weights' gradients each puts off, with these windows of 1F1B.

    >>> put_off([3, 2, 1])
    [0, 1, 2]
    """
    return [max(0, windows[0] - w) for w in windows]
