"""A run's record, made of what its course knows at the end and its engine noticed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from partita.dataflow.graph import FlowGraph
from partita.dataflow.plan.course import Course
from partita.dataflow.plan.events import State
from partita.dataflow.run.record import ChoiceRow, Chosen, ScoreRow, TaskRow, TaskState
from partita.dataflow.run.task import number_of
from partita.dataflow.select import larger_is_better
from partita.page.text import size

_MOST_LOST, _MOST_KINDS = 20, 5  #: notes of one kind


@dataclass
class Noticed:
    """What a person should know of a run beside its results."""

    changing: set[int] = field(default_factory=set)  #: steps that were seen to give something else the second time
    unkept: dict[str, str] = field(default_factory=dict)  #: why results could not be kept -> the first such step
    unread: dict[str, None] = field(default_factory=dict)  #: why kept results could not be read


def said(graph: FlowGraph, node: int) -> str:
    """A node in words: its label and its options."""
    return graph.nodes[node].label + _on(graph.nodes[node].options)


def tasks_told(course: Course) -> dict[str, Any]:
    """Of a record: its tasks, and how many came to what end."""
    graph = course.graph
    rows = tuple(_task_row(course, k) for k, n in enumerate(graph.nodes) if n.kind == "call")
    states = [r.state for r in rows]
    return {
        "tasks": rows,
        "tasks_run": states.count("run"),
        "tasks_shared": max(0, graph.applied - graph.tasks) + states.count("shared"),
        "tasks_cached": states.count("cached"),
        "tasks_pruned": states.count("pruned"),
        "tasks_cancelled": states.count("cancelled"),
        "tasks_failed": states.count("failed"),
    }


def choices_told(course: Course) -> dict[str, Any]:
    """Of a record: its choices, and how many branches there were."""
    rows = tuple(_choice_row(course, k) for k in course.judged)
    never = sum(len(r.scores) - len(j.scores.keys() | j.failed.keys()) for r, j in zip(rows, course.judged.values(), strict=True))  # fmt: skip
    graph = course.graph
    return {"choices": rows, "configurations": graph.configurations, "branches": graph.branches, "branches_pruned": never}  # fmt: skip


def chosen(course: Course, values: Sequence[Any]) -> tuple[Chosen, ...]:
    """What the flow's results are, and by which options; `values` in their order."""
    return tuple(_chosen(course, k, value) for k, value in enumerate(values))


def notes(course: Course, noticed: Noticed) -> Iterator[str]:
    """What a person should know."""
    graph = course.graph
    for s in sorted(noticed.changing):
        yield f"{graph.steps[s].name} is not deterministic: run twice, it gave two results; nothing that depends on it is kept for later"
    for why, label in list(noticed.unkept.items())[:_MOST_KINDS]:
        yield f"results of {label} and its like are not kept: {why}"
    for why in list(noticed.unread)[:_MOST_KINDS]:
        yield f"computed again: {why}"
    if course.peak_bytes > course.limits.memory_bytes:
        yield f"results took {size(course.peak_bytes)} at a time, more than the given {size(course.limits.memory_bytes)}: what one task reads and gives needs more, or it was not known what it would give"
    if course.stretch > 1:
        yield f"results were allowed {course.stretch:.2g} times the given memory: within it, what one task needs drove out what another one needs"
    for k, j in course.judged.items():
        if j.contradiction:
            yield f"{said(graph, k)}: {j.contradiction}; all options were run"
    raised = (k for k in course.reason if graph.nodes[k].kind == "call" and course.ran[k] is not None)
    lost = list(dict.fromkeys(f"lost: {said(graph, k)}: {course.reason[k]}" for k in raised))
    yield from lost[:_MOST_LOST]
    if len(lost) > _MOST_LOST:
        yield f"and {len(lost) - _MOST_LOST} more lost"


def _task_row(course: Course, k: int) -> TaskRow:
    node, event = course.graph.nodes[k], course.ran[k]
    readers = len(course.graph.consumers[k])
    short = (node.key, node.label, node.options)
    if k in course.twin or k in course.borrowed:
        return TaskRow(*short, "shared", reason="it is another task of this run", readers=readers)
    if event is None:
        if k in course.reason:
            return TaskRow(*short, "failed", reason=course.reason[k], readers=readers)
        if k in course.cancelled:
            return TaskRow(*short, "cancelled", reason="its branch lost while it ran", readers=readers)
        return TaskRow(*short, "pruned", reason="nobody needed it", readers=readers)
    cached = course.loaded[k] and not course.times_run[k]
    state: TaskState = "failed" if k in course.reason else "cached" if cached else "run"
    ran = event.worker != ""  # otherwise its number was known
    return TaskRow(
        *short, state, event.started_s if ran else None, event.ended_s if ran else None, event.worker, event.size_bytes,
        course.reason.get(k, ""), course.times_run[k], readers,
    )  # fmt: skip


def _choice_row(course: Course, k: int) -> ChoiceRow:
    node, j = course.graph.nodes[k], course.judged[k]
    c = course.choice(k)
    kept = j.kept or ()

    def why(i: int) -> str:
        return f"failed: {j.failed[i]}" if i in j.failed else "kept" if i in kept else j.lost.get(i, "not needed")

    scores = tuple(ScoreRow(one.options, j.scores.get(i), i in kept, why(i)) for i, one in enumerate(c.candidates))
    return ChoiceRow(
        c.name, node.options, c.over, str(c.select), c.shape, j.contradiction, scores, larger_is_better(c.select)
    )


def _chosen(course: Course, k: int, value: Any) -> Chosen:
    options, sink = course.graph.sinks[k]
    if course.state[sink] == State.FAILED:
        return Chosen(options, None, None, "", course.reason.get(sink, "failed"))
    number = number_of(value) if isinstance(value, bool | int | float) else None
    plain = value if number is not None and math.isfinite(number) else None
    shown = value[:200] if isinstance(value, str) else plain
    j = course.judged.get(sink)  # the outermost choose
    score = j.scores.get(j.kept[0]) if j is not None and j.kept else None
    return Chosen({**course.options_of(sink), **options}, score, shown, type(value).__name__)


def _on(options: Mapping[str, str]) -> str:
    told = ", ".join(f"{n}={v}" for n, v in options.items())
    return f" ({told})" if told else ""
