"""ZB-V: every device serves two chunks, from the first to the last device and back, backwards in two parts (Qi et al., ICLR
2024, section 6; Qi et al., "Pipeline Parallelism with Controllable Memory", NeurIPS 2024).

The first device holds the beginning and the end of the model, so that the first backward begins there, and a device keeps
no more than the first one in 1F1B. Two devices (stages 0 and 3, 1 and 2), four micro-batches; F, B and W take one unit each, a
message none. Stages 2 and 3 are written in small letters, and D is both parts in one:

    stage 0  F0 F1 F2 f0 b0 w0 f1 b1 w1 F3 D0 D0 f2 b2 w2 D1 D1 f3 b3 w3 D2 D2 D3 D3 ..
    stage 1  .. F0 f0 F1 f1 b0 w0 F2 B0 W0 f2 b1 w1 F3 B1 W1 f3 b2 w2 B2 b3 B3 W2 w3 W3
"""

from __future__ import annotations

from partita.nouns.pipeline_plan import Part


def order(device: int, devices: int, micro_batches: int) -> list[tuple[Part, int, int]]:
    """What a device does, [6 x micro_batches] (part, chunk 0 or 1, micro-batch).

    Forwards until the first micro-batch has come back, then a forward, a B and a W of either chunk in turn, and at the end the
    Ws that were left. Fewer than 2 P - 1 micro-batches do what is left of the order for so many: no slot waits for one left out.

    >>> [f"{part}{chunk}.{m}" for part, chunk, m in order(0, 1, 1)]
    ['F0.0', 'F1.0', 'B1.0', 'W1.0', 'B0.0', 'W0.0']
    """
    n, done = max(2 * devices - 1, micro_batches), {(part, c): 0 for part in "FBW" for c in (0, 1)}
    slots: list[tuple[Part, int, int]] = []

    def add(chunk: int, *parts: Part) -> None:
        for part in parts:
            slots.append((part, chunk, done[part, chunk]))
            done[part, chunk] += 1

    for _ in range(2 * (devices - device) - 1):
        add(0, "F")
    for _ in range(device):
        add(1, "F")
        add(0, "F")
    for _ in range(devices - device):
        add(1, "F", "B", "W")
    while done["F", 1] < n:
        if done["F", 0] < n:
            add(0, "F")
        add(0, "B", "W")
        add(1, "F", "B", "W")
    for _ in range(device):
        add(0, "B")
        add(1, "B")
    for _ in range(devices - device):
        add(0, "B", "W")
    for chunk in (1, 0):
        while done["W", chunk] < n:
            add(chunk, "W")
    return [s for s in slots if s[2] < micro_batches]
