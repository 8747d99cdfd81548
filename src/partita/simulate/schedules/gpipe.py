"""GPipe: every forward, then every backward (Huang et al., NeurIPS 2019).

Three stages, four micro-batches, a forward and a backward take one unit each, a message none:

    stage 0  F0 F1 F2 F3 .. .. .. .. B0 B1 B2 B3
    stage 1  .. F0 F1 F2 F3 .. .. B0 B1 B2 B3 ..
    stage 2  .. .. F0 F1 F2 F3 B0 B1 B2 B3 .. ..

Every stage keeps all micro-batches. The backwards run in ascending order, although the last forward is the freshest:
gradients are then summed over the micro-batches in the order in which one process, and 1F1B, would sum them, so that
all three agree bit for bit; and since the last stage has all its forwards when it begins, no order is faster.
"""

from __future__ import annotations

from partita.nouns.pipeline_plan import Part

Step = tuple[Part, int]  #: a part of a stage on a micro-batch


def order(micro_batches: int) -> list[Step]:
    """What one stage does: [2 x micro_batches] slots.

    >>> order(2)
    [('F', 0), ('F', 1), ('B', 0), ('B', 1)]
    """
    return [("F", m) for m in range(micro_batches)] + [("B", m) for m in range(micro_batches)]
