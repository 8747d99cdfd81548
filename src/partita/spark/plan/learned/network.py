"""The network of the learned policies: a graph network over the DAGs, and a weighted sum of what it and plain features say.

    e_s = tanh(A x_s + B mean of e_c over the children c)       EMBEDDED features of a stage s with facts x_s, whatever its DAG
    score = sum_i a_i f_i                                       f: plain features, e_s, the sum of e over the job's stages left

It is so small that plain loops in machine code are faster than any library. A layer of 8 bent sums (ReLU) between features and score
gained nothing in the shop within 100 s of training, and less than a percent on executors (November 2026), so there is none.
"""

from __future__ import annotations

import numpy as np

from partita.nouns.graph import FloatArray, IntArray
from partita.solve.compiled import compiled

EMBEDDED = 3


def weights_of_graph(facts: int) -> int:
    """How many numbers A and B have for stages with so many facts."""
    return EMBEDDED * (facts + EMBEDDED)


@compiled
def score(features: FloatArray, weights: FloatArray) -> float:
    """Their weighted sum. O(features)."""
    value = 0.0
    for i in range(len(features)):
        value += weights[i] * features[i]
    return value


@compiled
def embed(
    facts: FloatArray,
    child_first: IntArray,
    child: IntArray,
    weights: FloatArray,
    found: FloatArray,
    low: int,
    high: int,
) -> None:
    """Write found: [stages, EMBEDDED] of the stages low to high - 1, whole jobs with facts: [stages, facts], parents before
    children. weights: [weights_of_graph] row by row of A and B. O(stages + edges)."""
    n = facts.shape[1]
    below = np.zeros(EMBEDDED)
    for s in range(high - 1, low - 1, -1):
        below[:] = 0.0
        children = child_first[s + 1] - child_first[s]
        for e in range(child_first[s], child_first[s + 1]):
            for k in range(EMBEDDED):
                below[k] += found[child[e], k]
        for k in range(EMBEDDED):
            inner, at = 0.0, k * (n + EMBEDDED)
            for i in range(n):
                inner += weights[at + i] * facts[s, i]
            for i in range(EMBEDDED):
                inner += weights[at + n + i] * below[i] / max(1, children)
            found[s, k] = np.tanh(inner)
