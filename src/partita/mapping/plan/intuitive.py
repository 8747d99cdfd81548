"""The mappings that come to mind: one device; the graph in a line, cut into balanced pieces, one a device.

The line is a topological order (breadth first, depth first, depth first from the end), the cuts are found by dynamic
programming over it: the largest load of a device, compute and what crosses, is least.
Source of the name: "Deep Learning Performance Optimization via Model Parallelization", UC Irvine (stage one).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from partita.mapping.plan.question import Mapped, Question
from partita.placement.plan.line_starts import starts


def single(question: Question) -> Iterator[Mapped]:
    """Everything on one device, the first of each class."""
    facts = question.facts
    for c in range(facts.seconds.shape[1]):
        where = np.full(question.model.atoms, int(np.flatnonzero(facts.class_of == c)[0]), np.int64)
        yield question.mapped(where, facts.topological, "single")


def intuitive(question: Question) -> Iterator[Mapped]:
    """Balanced cuts of three topological orders, each with the better of two orders of its tasks. O(cuts^2 devices)."""
    for where in starts(question.model, question.problem.graph):
        yield question.listed(where, "intuitive")
