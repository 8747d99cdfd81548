"""1F1B: fill the pipeline, then a backward and a forward in turn (PipeDream, SOSP 2019; drained after every batch).

Three stages, four micro-batches, three in flight; a forward and a backward take one unit each, a message none:

    stage 0  F0 F1 F2 .. .. B0 F3 B1 .. B2 .. B3
    stage 1  .. F0 F1 .. B0 F2 B1 F3 B2 .. B3 ..
    stage 2  .. .. F0 B0 F1 B1 F2 B2 F3 B3 .. ..

It takes as long as GPipe, but stage k of K keeps K - k micro-batches instead of all. Two stages, two in flight, where a
message takes a unit too: both stages wait for messages.

    stage 0  F0 F1 .. .. .. B0 F2 B1 F3 .. .. B2 .. B3
    stage 1  .. .. F0 B0 F1 B1 .. .. F2 B2 F3 B3 .. ..

With four in flight the messages travel behind computation, and the last stage never waits:

    stage 0  F0 F1 F2 F3 .. B0 .. B1 .. B2 .. B3
    stage 1  .. .. F0 B0 F1 B1 F2 B2 F3 B3 .. ..

Two replicas of the first stage, whose forward and backward take two units, and one of the second, a message none:

    stage 0  F0 F0 F2 F2 B0 B0 F4 F4 B2 B2 .. .. B4 B4 .. ..
    stage 0  F1 F1 F3 F3 .. .. B1 B1 F5 F5 B3 B3 .. .. B5 B5
    stage 1  .. .. F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 .. ..
"""

from __future__ import annotations

from collections.abc import Sequence

from partita.simulate.schedules.gpipe import Step


def windows(replicas: Sequence[int], micro_batches: int, in_flight: int, whole: Sequence[int] = ()) -> tuple[int, ...]:
    """[stages] micro-batches in flight on each stage, over all of its replicas.

    To keep all devices busy where messages take no time, a stage needs one micro-batch for each device from itself to
    the end of the pipeline: w[k] = w[k+1] + replicas[k]. What `in_flight` asks for beyond w[0] is spread over the hops
    behind a stage; what it asks for less is taken from all stages. Every replica holds the same number n[k], at least
    one, so a stage's number is rounded up to a multiple of its replicas; none holds more than there are micro-batches.

    Such a program always runs through. Where not all fit, B(x) on stage k waits, over the last forward before it on
    its replica, for F(x + (n[k] - 1) replicas[k]) on an earlier stage i, and that for the backward there which made
    room for it: B(x + (n[k] - 1) replicas[k] - n[i] replicas[i]). Since n[i] replicas[i] >= w[i] >= w[k] >
    (n[k] - 1) replicas[k], this is a backward of an earlier micro-batch, so that no chain of waits returns to its start.

    Where shares are unequal, `replicas` is the length of a turn and nothing is rounded (`whole` is 1): B(x) then waits for
    F(y) with y < x + w[k] at most, and that for B(z) with z <= y - w[i] < x.

    >>> windows([1, 1, 1], 8, 3)
    (3, 2, 1)
    >>> windows([1, 1, 1], 8, 5)
    (5, 3, 1)
    >>> windows([1, 1, 1], 8, 1)
    (1, 1, 1)
    >>> windows([2, 1], 8, 3)
    (4, 1)
    """
    last = len(replicas) - 1
    least = [sum(replicas[k:]) for k in range(last + 1)]
    slack = max(0, in_flight - least[0])
    a_hop = -(-slack // last) if last else 0
    wanted = [min(w, max(1, in_flight)) + min(slack, (last - k) * a_hop) for k, w in enumerate(least)]
    return tuple(min(-(-w // m) * m, micro_batches) for w, m in zip(wanted, whole or replicas, strict=True))


def order(window: int, micro_batches: int) -> list[Step]:
    """What one stage does: `window` forwards, then a backward and a forward in turn: [2 x micro_batches] slots.

    >>> order(2, 3)
    [('F', 0), ('F', 1), ('B', 0), ('F', 2), ('B', 1), ('B', 2)]
    """
    slots: list[Step] = [("F", m) for m in range(min(window, micro_batches))]
    for m in range(micro_batches):
        slots.append(("B", m))
        if m + window < micro_batches:
            slots.append(("F", m + window))
    return slots
