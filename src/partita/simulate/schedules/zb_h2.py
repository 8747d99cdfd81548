"""ZB-H2: more forwards before the first backward, so that nobody waits once it has begun (Qi et al., ICLR 2024).

It is ZB-H1 with 2 K - 1 micro-batches in flight instead of K, and keeps as many on every stage. Three stages, six micro-batches;
F, B and W take one unit each, a message none, and D is both parts in one:

    stage 0  F0 F1 F2 F3 F4 D0 D0 F5 D1 D1 D2 D2 D3 D3 D4 D4 D5 D5 .. ..
    stage 1  .. F0 F1 F2 B0 F3 B1 F4 B2 W0 F5 B3 W1 B4 W2 B5 W3 W4 W5 ..
    stage 2  .. .. F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 W0 F5 B5 W1 W2 W3 W4 W5

Every stage works without a pause from its first forward on. One step after another with all gradients exact, the pause
that is left is that of the beginning and of the end.
"""

from __future__ import annotations


def in_flight(least: int, asked: int) -> int:
    """Micro-batches in flight on the first stage: `least` is what keeps all devices busy in 1F1B.

    >>> in_flight(3, 3)
    5
    """
    return max(asked, 2 * least - 1)
