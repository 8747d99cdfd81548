"""A mapping as a plan that runs: neighbours on a device fused into segments, and the order in which each device runs them.

A segment starts when all it reads is there, and what it makes leaves when it ends, so it is cut where another device waits
or is waited for. Along a topological order of the forward tasks (capital letters: the segments of device 1):

    order      a b C D e f G        a makes what C reads, D what e reads, b what G reads
    device 0   [a] [b] [e f]
    device 1   [C D] [G]

Then neighbours on a device are joined wherever no circle of waiting arises and the predicted step gets no longer: a segment
costs a call, and a message leaves later. Backwards run in the reverse order, so that what fits together forwards fits
backwards. The plan is a pipeline of one micro-batch with orders of its own, which the runtime and the simulator know.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from partita.mapping.plan.limit import FREELY, Limit, simulation_s
from partita.nouns.graph import TaskGraph
from partita.nouns.pipeline_plan import PipelinePlan, Slot, Stage
from partita.nouns.pipeline_problem import PipelineProblem
from partita.simulate.predicted import predicted

SLACK = 1e-9  #: of a step; segments are joined where it gets no longer than by this share


@dataclass(frozen=True)
class Segments:
    """Segments in an order that waits for nothing in a circle; those of one device run in this order."""

    tasks: tuple[tuple[str, ...], ...]  #: [segments] forward tasks in order
    device: tuple[str, ...]  #: [segments]

    def __len__(self) -> int:
        return len(self.tasks)

    def plan(self, graph: TaskGraph) -> PipelinePlan:
        """One micro-batch: forwards in this order, backwards in reverse."""
        backward = {t.of for t in graph.tasks if t.phase == "backward"}
        trains = [not backward.isdisjoint(ts) for ts in self.tasks]
        orders: dict[str, list[Slot]] = {}
        for k, d in enumerate(self.device):
            orders.setdefault(d, []).append(Slot("F", k, 0))
        for k in reversed(range(len(self))):
            if trains[k]:
                orders[self.device[k]].append(Slot("B", k, 0))
        stages = tuple(Stage(ts, (d,)) for ts, d in zip(self.tasks, self.device, strict=True))
        return PipelinePlan(graph.fingerprint, stages, 1, 1, "given", {d: tuple(slots) for d, slots in orders.items()})


def runnable(
    problem: PipelineProblem, device_of: Mapping[str, str], order: Sequence[str], limit: Limit = FREELY
) -> PipelinePlan:
    """The plan of a mapping. `device_of`: forward task -> device; `order`: all forward tasks, topologically.

    O(segments) simulations of the whole step, as many as the limit is worth; what is not joined then stays apart.
    """
    graph = problem.graph
    edges = Edges.of(graph)
    fine = _cut(edges, device_of, order)
    return joined(edges, fine, lambda s: predicted(problem, s.plan(graph)).duration_s, limit).plan(graph)


def segments(graph: TaskGraph, device_of: Mapping[str, str], order: Sequence[str]) -> Segments:
    """The finest cut that messages ask for: a segment reads of others before its first task, and others read of its last.

    A task that reads of a segment which the open one has read of already opens none. O(tasks + edges).
    """
    return _cut(Edges.of(graph), device_of, order)


def _cut(edges: Edges, device_of: Mapping[str, str], order: Sequence[str]) -> Segments:
    cut = _Cut()
    for task in order:
        d = device_of[task]
        cut.place(task, d, {cut.at[u] for u in edges.reads.get(task, ()) if device_of[u] != d})
        if any(device_of[v] != d for v in edges.read_by.get(task, ())):
            cut.open.pop(d, None)
    return _sorted(edges, cut.tasks, cut.device)


@dataclass
class _Cut:
    """Segments in the making."""

    tasks: list[list[str]] = field(default_factory=list)
    device: list[str] = field(default_factory=list)
    sources: list[set[int]] = field(default_factory=list)  #: segments that each reads of before its first task
    at: dict[str, int] = field(default_factory=dict)  #: task -> segment
    open: dict[str, int] = field(default_factory=dict)  #: device -> segment that may go on

    def place(self, task: str, device: str, sources: set[int]) -> None:
        k = self.open.get(device)
        if k is None or not sources <= self.sources[k]:
            k = self.open[device] = len(self.tasks)
            self.tasks.append([])
            self.device.append(device)
            self.sources.append(sources)
        self.tasks[k].append(task)
        self.at[task] = k


@dataclass(frozen=True, eq=False)
class Edges:
    """Who reads of whom among forward tasks."""

    tasks: int  #: of the whole graph
    reads: Mapping[str, Sequence[str]]  #: forward task -> forward tasks it reads of
    read_by: Mapping[str, Sequence[str]]  #: forward task -> forward tasks that read of it

    @staticmethod
    def of(graph: TaskGraph) -> Edges:
        """O(tasks + edges)."""
        ids, forward = [t.id for t in graph.tasks], [t.phase in ("forward", "stage") for t in graph.tasks]
        reads: dict[str, list[str]] = {}
        read_by: dict[str, list[str]] = {}
        for u, v in graph.edges.tolist():
            if forward[u] and forward[v]:
                reads.setdefault(ids[v], []).append(ids[u])
                read_by.setdefault(ids[u], []).append(ids[v])
        return Edges(len(graph), reads, read_by)


def joined(edges: Edges, fine: Segments, step_s: Callable[[Segments], float], limit: Limit = FREELY) -> Segments:
    """Neighbours on a device joined, from the first to the last, where the step gets no longer; until the limit is spent."""
    best, value, left_s = fine, step_s(fine), limit.worth_s
    k = 0
    while k < len(best):
        later = next((j for j in range(k + 1, len(best)) if best.device[j] == best.device[k]), None)
        found = None
        if later is not None:
            left_s -= simulation_s(edges.tasks, len(best))
            if left_s < 0 or not limit.goes_on():
                break
            found = _with_joined(edges, best, k, later)
        if found is not None and (seconds := step_s(found)) <= value * (1 + SLACK):
            best, value = found, seconds
            k = 0 if k == 0 else k - 1
        else:
            k += 1
    return best


def _with_joined(edges: Edges, s: Segments, one: int, other: int) -> Segments | None:
    """Two neighbours of a device as one segment; None where devices would wait in a circle."""
    tasks: list[Sequence[str]] = [*s.tasks]
    tasks[one] = (*tasks[one], *tasks.pop(other))
    device = [*s.device]
    device.pop(other)
    found = _sorted(edges, tasks, device)
    return found if len(found) == len(tasks) else None


def _sorted(edges: Edges, tasks: Sequence[Sequence[str]], device: Sequence[str]) -> Segments:
    """The segments in the topological order of who reads of whom, and of their order on each device, that takes the first that
    is ready; fewer where there is a circle. O(tasks + edges + segments log segments)."""
    at = {t: k for k, ts in enumerate(tasks) for t in ts}
    before: list[set[int]] = [{at[u] for t in ts for u in edges.reads.get(t, ())} - {k} for k, ts in enumerate(tasks)]
    last: dict[str, int] = {}
    for k, d in enumerate(device):
        if d in last:
            before[k].add(last[d])
        last[d] = k
    behind: list[list[int]] = [[] for _ in tasks]
    for k, them in enumerate(before):
        for j in them:
            behind[j].append(k)
    waiting = [len(them) for them in before]
    ready = [k for k, n in enumerate(waiting) if n == 0]  # ascending, and so a heap
    order: list[int] = []
    while ready:
        order.append(k := heapq.heappop(ready))
        for j in behind[k]:
            waiting[j] -= 1
            if waiting[j] == 0:
                heapq.heappush(ready, j)
    return Segments(tuple(tuple(tasks[k]) for k in order), tuple(device[k] for k in order))
