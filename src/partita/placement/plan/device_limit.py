"""Clusters with more devices than a plan can use, and with more than can be planned for."""

from __future__ import annotations

from collections import Counter

from partita.errors import ClusterError
from partita.nouns.placement_problem import PlacementProblem

MOST_LINKED = 400  #: devices whose links differ: their pairs are looked at one by one
MOST_REPLICATING = 400  #: devices that stages with replicas are dealt: the work grows with their square


def useful(problem: PlacementProblem) -> PlacementProblem:
    """The problem with at most as many devices of a type as there are atoms: no placement uses more, and equal devices
    need not be told apart. Raises ClusterError where links differ between more than MOST_LINKED devices. O(devices + links).
    """
    if problem.links_differ:
        expect_at_most(problem, MOST_LINKED, "links of different rates", "give all links one rate")
        return problem
    atoms = int(problem.graph.atom.max()) + 1
    met: Counter[tuple[str, float, float]] = Counter()
    kept = []
    for d in problem.cluster.devices:
        met[d.kind, d.speed, d.memory_bytes] += 1
        if met[d.kind, d.speed, d.memory_bytes] <= atoms:
            kept.append(d)
    if len(kept) == len(problem.cluster.devices):
        return problem
    return problem.on(problem.cluster.only({d.name for d in kept}))


def expect_at_most(problem: PlacementProblem, most: int, what: str, hint: str) -> None:
    """Raise ClusterError where there are more devices than that."""
    devices = len(problem.cluster.devices)
    if devices > most:
        raise ClusterError(
            f"{what} are planned for at most {most} devices; there are {devices}",
            hint=f"say --devices {most}, or {hint}",
        )
