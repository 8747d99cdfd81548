"""In which order tasks would best run: depth first from the results asked for, branch by branch.

A branch is run to its choose before the next one begins, and branches that share most stand side by side (a choose's
candidates are sorted that way when the flow is unfolded): so few intermediate results live at once, and losers are known
early. This is what a depth-first walk gives: each node stands right behind the last of those it needs.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from partita.dataflow.graph import FlowGraph, Node
from partita.nouns.graph import IntArray


def depth_first(graph: FlowGraph, scouts: bool = True) -> IntArray:
    """[n] the place of each node in the order; O(nodes + needs).

    With `scouts`, candidates that together show every option once stand first: after them something is known about every
    step with every option, and what is left can be predicted.
    """
    place = np.full(len(graph), -1, np.int64)
    count = 0
    first = [n for k in range(len(graph)) for n in _scouts(graph.nodes[k])] if scouts else []
    for root in [*first, *(node for _, node in graph.sinks)]:
        waiting: list[tuple[int, int]] = [(root, 0)]
        while waiting:
            node, k = waiting.pop()
            if place[node] >= 0:
                continue
            needs = graph.nodes[node].needs
            while k < len(needs) and place[needs[k]] >= 0:
                k += 1
            if k < len(needs):
                waiting += [(node, k + 1), (needs[k], 0)]
                continue
            place[node] = count
            count += 1
    return place


def _scouts(node: Node) -> Sequence[int]:
    """Score nodes of a few candidates of a choice that show every option at least once: as many as the longest explore."""
    if node.choice is None or node.choice.shape is not None or len(node.choice.candidates) < 8:
        return ()
    seen: set[tuple[str, str]] = set()
    chosen = []
    cs = node.choice.candidates
    options = {n: list(dict.fromkeys(c.options[n] for c in cs if n in c.options)) for n in node.choice.over}
    longest = max(map(len, options.values()))
    if longest * 4 > len(cs):
        return ()  # they would be a large part of all
    at = {tuple(sorted(c.options.items())): c for c in cs}
    for k in range(longest):  # a diagonal through the options
        found = at.get(tuple(sorted((n, o[k % len(o)]) for n, o in options.items())))
        if found is not None and not seen >= set(found.options.items()):
            seen |= set(found.options.items())
            chosen.append(found.score)
    for c in cs:  # names that exist only with some option of another one
        if not seen >= set(c.options.items()):
            seen |= set(c.options.items())
            chosen.append(c.score)
    return chosen
