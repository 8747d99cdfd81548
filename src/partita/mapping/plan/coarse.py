"""Groups of atoms that belong together: what would cost most to send is joined first.

Heavy-edge matching, as in multilevel graph partitioning: the heaviest edges first, two groups become one while neither has
more than its share of the work. Source: Karypis and Kumar, "A Fast and High Quality Multilevel Scheme for Partitioning
Irregular Graphs", SIAM J. Sci. Comput. 20(1), 1998.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from partita.mapping.plan.question import Question
from partita.nouns.graph import IntArray

LARGEST_SHARE = 1.5  #: times the work of an even share that a group may hold


def groups(question: Question, most: int) -> IntArray:
    """[atoms] the number of its group, 0 .. at most `most` - 1, numbered along the topological order. O(edges log edges)."""
    f, atoms = question.facts, question.model.atoms
    work = np.bincount(f.atom_of, question.mean_s, atoms).tolist()
    label = list(range(atoms))
    limit = LARGEST_SHARE * sum(work) / most

    def root(a: int) -> int:
        while label[a] != a:
            label[a] = label[label[a]]
            a = label[a]
        return a

    left = atoms
    edges = _edges(question)
    while left > most:
        joined = False
        for a, b in edges:
            u, v = root(a), root(b)
            if u != v and left > most and work[u] + work[v] <= limit:
                label[max(u, v)] = min(u, v)
                work[min(u, v)] += work[max(u, v)]
                left, joined = left - 1, True
        limit *= 2
        if not joined and limit > 4 * sum(work) + 1:
            break
    roots = np.array([root(a) for a in range(atoms)], np.int64)
    if left > most:  # pieces without an edge between them: neighbours in the topological order are joined
        seen: dict[int, int] = {}
        for a in question.by_place.tolist():
            seen.setdefault(int(roots[a]), len(seen))
        return np.array([seen[int(r)] * most // len(seen) for r in roots], np.int64)
    first: dict[int, int] = {}
    for a in question.by_place.tolist():
        first.setdefault(int(roots[a]), len(first))
    return np.array([first[int(r)] for r in roots], np.int64)


def _edges(question: Question) -> list[tuple[int, int]]:
    """Pairs of atoms, the heaviest sending first."""
    f = question.facts
    weight: dict[tuple[int, int], float] = defaultdict(float)
    for k, u in enumerate(f.producer.tolist()):
        a = int(f.atom_of[u])
        for b in {int(f.atom_of[v]) for v in f.reader[f.reader_start[k] : f.reader_start[k + 1]].tolist()} - {a}:
            weight[min(a, b), max(a, b)] += float(question.mean_transfer_s[k])
    return sorted(weight, key=lambda e: (-weight[e], e))
