"""Interleaved 1F1B: every device serves several chunks of the model, so that a micro-batch comes round to it again and filling
the pipeline takes a chunk's time and not a stage's (Narayanan et al., Megatron-LM, SC 2021).

Two devices with two chunks each (stages 0, 2 and 1, 3), four micro-batches; a forward takes one unit, a backward two, a message
none. Stages 2 and 3 are written in small letters:

    stage 0  F0 F1 f0 f1 F2 .. b0 b0 F3 b1 b1 f2 B0 B0 f3 B1 B1 .. b2 b2 .. b3 b3 B2 B2 B3 B3
    stage 1  .. F0 F1 f0 b0 b0 f1 b1 b1 F2 B0 B0 F3 B1 B1 f2 b2 b2 f3 b3 b3 B2 B2 B3 B3 .. ..

The micro-batches go in groups of as many as there are devices: the group through the first chunk of every device, then through
the second. Device d of P begins with 2 (P - d - 1) + (chunks - 1) P forwards, then a forward and a backward take turns; a
device keeps one more than it begins with.
"""

from __future__ import annotations

from partita.nouns.pipeline_plan import Part


def order(device: int, devices: int, chunks: int, micro_batches: int) -> list[tuple[Part, int, int]]:
    """What a device does, [2 x chunks x micro_batches] (part, chunk, micro-batch).

    Where the last group is not full, it is what is left of the order for one that is: no slot waits for one left out.

    >>> [f"{part}{chunk}.{m}" for part, chunk, m in order(1, 2, 2, 2)]
    ['F0.0', 'F0.1', 'F1.0', 'B1.0', 'F1.1', 'B1.1', 'B0.0', 'B0.1']
    """
    groups = [range(g, g + devices) for g in range(0, micro_batches, devices)]
    forward = [(c, m) for group in groups for c in range(chunks) for m in group]
    backward = [(c, m) for group in groups for c in reversed(range(chunks)) for m in group]
    warm = min(len(forward), 2 * (devices - device - 1) + (chunks - 1) * devices)
    slots: list[tuple[Part, int, int]] = [("F", c, m) for c, m in forward[:warm]]
    for f, b in zip(forward[warm:], backward, strict=False):
        slots += [("F", *f), ("B", *b)]
    slots += [("B", c, m) for c, m in backward[len(forward) - warm :]]
    return [s for s in slots if s[2] < micro_batches]
