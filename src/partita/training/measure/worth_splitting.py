"""Which operators to split: those asked for by name, or those on the critical path that gain more than their messages cost.

    critical path      a  B  C  d  e  F        capital letters: can be split by the batch
    runs               [B C]  [F]              each with what lies beside it and touches nothing else
    gain of a run      (1 - 1 / parts) of its time
    cost of a run      what goes in and comes out of it, less one part, there and back; the sum of its weights' gradients; a message
                       each way, there and back, for every norm whose parts tell each other their moments

Norms are split with the rest, or left whole, which ends a run, whichever gains more. Where the work of all devices is longer
than the critical path, mapping alone can use them, and nothing is split.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

from partita.errors import BadInput
from partita.nouns.cluster import Link
from partita.nouns.graph import TaskGraph
from partita.nouns.splits import AUTO, Dim, Split, asked_splits
from partita.training.capture.captured import Captured
from partita.training.capture.split import Tasks, matching, splittable

WORTH = 0.05  #: of a run's time: what splitting it has to save
BUSY = 1.05  #: times the work of each device: a critical path up to so long leaves nothing to gain


def is_automatic(words: Sequence[str]) -> bool:
    """Whether the operators are to be chosen. Raises BadInput where some are also named."""
    if len(words) > 1 and not {*words}.isdisjoint(AUTO):
        raise BadInput(f"--split {words[0]} beside --split {words[1]}", hint="name operators, or leave it to auto")
    return bool(words) and words[0] in AUTO


def named_splits(captured: Captured, words: Sequence[str]) -> tuple[Split, ...]:
    """The splits asked for. Raises BadInput, and CaptureError that says why an operator cannot be split."""
    return matching(captured.code, _tasks(captured), asked_splits(words))


def worthwhile_splits(
    captured: Captured, task_s: Sequence[float], link: Link, parts: int, *, ghosts: bool
) -> tuple[Split, ...]:
    """The operators to split by the batch, in the graph's order; `task_s` [forward tasks] seconds with their backwards.

    `ghosts`: parts of BatchNorm see their own statistics. O(tasks^2).
    """
    flow = _Flow.of(captured.graph, task_s)
    path = flow.critical_path()
    total = sum(flow.seconds.values())
    if parts < 2 or sum(flow.seconds[t] for t in path) * parts <= BUSY * total:
        return ()
    able = _able(captured, parts, "ghost" if ghosts else "batch")
    telling = {t for t, s in able.items() if s.change == "moments"}

    def gains(among: set[str]) -> dict[frozenset[str], float]:
        runs = flow.runs(flow.with_what_lies_beside({t for t in path if t in among}, among))
        found = {frozenset(run): flow.gain_s(run, link, parts, len(run & telling)) for run in runs}
        return {run: gain_s for run, gain_s in found.items() if gain_s > WORTH * flow.time_s(run)}

    kept = max(
        (gains({*able} - left_whole) for left_whole in (set[str](), telling)), key=lambda found: sum(found.values())
    )
    return tuple(able[t] for t in captured.task_nodes if any(t in run for run in kept))


def _tasks(captured: Captured) -> Tasks:
    return Tasks(captured.task_nodes, captured.meta)


def _able(captured: Captured, parts: int, dim: Dim) -> dict[str, Split]:
    """Task -> its split along the dim, where there is one."""
    found = {}
    for task in captured.task_nodes:
        split = splittable(captured.code, _tasks(captured), Split(task, dim, parts))
        if isinstance(split, Split):
            found[task] = split
    return found


@dataclass(frozen=True)
class _Flow:
    """Forward tasks in topological order, who reads of whom, and how much."""

    seconds: Mapping[str, float]  #: task -> of its forward and backward
    weights: Mapping[str, float]  #: task -> bytes of its parameters
    tensors: Sequence[tuple[str, float, tuple[str, ...]]]  #: producer, bytes, readers

    @staticmethod
    def of(graph: TaskGraph, task_s: Sequence[float]) -> _Flow:
        forward = [t for t in graph.tasks if t.phase == "forward"]
        known = {t.id for t in forward}
        tensors = [
            (graph.tasks[p].id, float(b), tuple(r for r in (graph.tasks[v].id for v in graph.readers.row(k)) if r in known))
            for k, (p, b) in enumerate(zip(graph.producer.tolist(), graph.size_bytes.tolist(), strict=True))
        ]  # fmt: skip
        seconds = dict(zip((t.id for t in forward), task_s, strict=True))
        order = [graph.tasks[i].id for i in graph.order if graph.tasks[i].id in known]
        weights = {t.id: t.parameter_bytes for t in forward}
        return _Flow({t: seconds[t] for t in order}, weights, [x for x in tensors if x[0] in known and x[2]])

    def critical_path(self) -> list[str]:
        """The tasks that take longest one after the other."""
        sources: dict[str, list[str]] = {t: [] for t in self.seconds}
        for p, _, readers in self.tensors:
            for r in readers:
                sources[r].append(p)
        ends: dict[str, float] = {}
        before: dict[str, str] = {}
        for t, s in self.seconds.items():
            last = max(sources[t], key=lambda u: ends[u], default=None)
            ends[t] = s + (ends[last] if last is not None else 0.0)
            if last is not None:
                before[t] = last
        path = [max(ends, key=lambda t: ends[t])]
        while path[-1] in before:
            path.append(before[path[-1]])
        return path[::-1]

    def with_what_lies_beside(self, chosen: set[str], able: set[str]) -> set[str]:
        """The chosen tasks, and runs of able ones all of whose neighbours are among them."""
        near: dict[str, set[str]] = {t: set() for t in self.seconds}
        for p, _, readers in self.tensors:
            for r in readers:
                near[p].add(r)
                near[r].add(p)
        found = set(chosen)
        for run in self.runs(able - chosen):
            around = set().union(*(near[t] for t in run)) - run
            found |= run if around and around <= chosen else set()
        return found

    def runs(self, chosen: set[str]) -> list[set[str]]:
        """The chosen tasks, those together that read of each other."""
        home = {t: {t} for t in chosen}
        for p, _, readers in self.tensors:
            for r in readers:
                if p in home and r in home and home[p] is not home[r]:
                    home[p] |= home[r]
                    for t in home[r]:
                        home[t] = home[p]
        return list({id(run): run for run in home.values()}.values())

    def time_s(self, run: Set[str]) -> float:
        return sum(self.seconds[t] for t in run)

    def gain_s(self, run: Set[str], link: Link, parts: int, telling: int = 0) -> float:
        """Seconds that a step gets shorter by splitting a run, whose parts run beside each other; `telling`: of its tasks, those
        whose parts wait for each other."""
        size, messages = 0.0, 0
        for p, b, readers in self.tensors:
            inside = {r in run for r in readers}
            if (p in run and False in inside) or (p not in run and True in inside):
                size, messages = size + b, messages + 1
        away = (parts - 1) / parts
        weights = sum(self.weights[t] for t in run)
        sent_s = 2 * (size + weights) * away / link.delivered_bytes_per_s
        call_s = 2 * (messages + telling) * (parts - 1) * (link.latency_s + link.send_s + link.message_s) + link.sum_s
        return self.time_s(run) * away - sent_s - call_s
