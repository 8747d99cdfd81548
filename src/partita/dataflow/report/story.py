"""A run as the page tells it: the record read from its file, and what follows from it."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from partita.dataflow.run.record import FORMAT, ChoiceRow, RunRecord, ScoreRow, TaskRow
from partita.errors import BadInput, refuse
from partita.files import read_json
from partita.nouns.timeline import Timeline
from partita.records import record

MOST_S = 1e9  #: of a run: thirty years


def read_run(path: str | Path) -> RunRecord:
    """The record in a file that `flow run` wrote. Raises BadInput where it is another, or its numbers make no sense."""
    table = read_json(path, BadInput, FORMAT)
    found = record(RunRecord, {k: v for k, v in table.items() if k not in ("format", "version")}, BadInput, str(path))
    refuse(BadInput, _faults(found), str(path))
    return found


def _faults(run: RunRecord) -> list[str]:
    """Times that are none, ends before starts."""
    times = [("seconds", run.seconds), ("started_s", run.started_s), ("busy_s", run.busy_s), ("peak_bytes", run.peak_bytes), ("predicted_s", run.predicted_s)]  # fmt: skip
    times += [(f"predictions[{k}]", x) for k, p in enumerate(run.predictions) for x in p]
    times += [(f"memory[{k}]", x) for k, m in enumerate(run.memory) for x in (m.t_s, m.bytes / MOST_S)]
    times += [(f"tasks[{k}]", x) for k, t in enumerate(run.tasks) for x in (t.started_s, t.ended_s, t.bytes / MOST_S)]
    faults = [f"{name} is {x:g}" for name, x in times if x is not None and not (math.isfinite(x) and -1.0 <= x <= (1e15 if name == "peak_bytes" else MOST_S))]  # fmt: skip
    faults += [f"tasks[{k}] ends before it starts" for k, t in enumerate(run.tasks) if None not in (t.started_s, t.ended_s) and t.ended_s < t.started_s]  # type: ignore[operator]  # fmt: skip
    faults += [f"choices[{k}] has a score that is no number" for k, c in enumerate(run.choices) for s in c.scores if s.score is not None and math.isnan(s.score)]  # fmt: skip
    return faults


@dataclass(frozen=True)
class Branch:
    """One option of a choice, and the choices that were made below it."""

    row: ScoreRow
    names: str  #: its options, in words
    below: tuple[Tree, ...] = ()

    @property
    def run(self) -> bool:
        return self.row.score is not None


@dataclass(frozen=True)
class Tree:
    """A choice and its branches, the best first."""

    choice: ChoiceRow
    branches: tuple[Branch, ...]


@dataclass(frozen=True, slots=True)
class StepRow:
    """All tasks of one step."""

    label: str
    states: Mapping[str, int]
    seconds: float  #: of all together
    median_s: float | None  #: of those that were computed
    largest_bytes: float
    number: int


@dataclass(frozen=True)
class FlowStory:
    """All that the page shows."""

    title: str
    run: RunRecord

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """Steps, in the order of their first tasks."""
        return tuple(dict.fromkeys(t.label for t in self.run.tasks))

    @cached_property
    def steps(self) -> tuple[StepRow, ...]:
        rows: dict[str, list[TaskRow]] = defaultdict(list)
        for task in self.run.tasks:
            rows[task.label].append(task)
        return tuple(_step(k, label, rows[label]) for k, label in enumerate(self.labels))

    @cached_property
    def ran(self) -> tuple[TaskRow, ...]:
        """Tasks that took time on a worker, in the order of their starts; a score of an earlier run has neither."""
        there = [t for t in self.run.tasks if t.worker and t.started_s is not None and t.ended_s is not None]
        return tuple(sorted(there, key=lambda t: t.started_s or 0.0))

    @cached_property
    def timeline(self) -> Timeline:
        """A row a worker. O(n log n)."""
        workers = sorted({t.worker for t in self.ran}, key=lambda w: (len(w), w))
        number = {label: k for k, label in enumerate(self.labels)}
        return Timeline(
            tuple(_name(w, k) for k, w in enumerate(workers)),
            len(workers),
            np.arange(len(self.ran), dtype=np.int64),
            np.array([workers.index(t.worker) for t in self.ran], np.int32),
            tuple(t.label for t in self.ran),
            tuple("other" for _ in self.ran),
            np.array([number[t.label] for t in self.ran], np.int32),
            np.array([max(0.0, t.started_s or 0.0) for t in self.ran], np.float64),
            np.array([max(0.0, t.ended_s or 0.0) for t in self.ran], np.float64),
            "measured",
            {},
        )

    @cached_property
    def trees(self) -> tuple[Tree, ...]:
        """The choices that no other stands above, each with those below its branches. O(choices x branches)."""
        children: dict[frozenset[tuple[str, str]], list[ChoiceRow]] = defaultdict(list)
        for choice in self.run.choices:
            there = children[frozenset(choice.options.items())]
            if not any(_alike(choice, other) for other in there):
                there.append(choice)
        choices = [c for row in children.values() for c in row]
        placed: set[int] = set()
        trees = [_tree(c, children, placed, 0) for c in sorted(choices, key=lambda c: len(c.options)) if id(c) not in placed]  # fmt: skip
        return tuple(trees)

    @cached_property
    def scores(self) -> tuple[float, float]:
        """The lowest and the highest score there is; (0, 0) without any."""
        known = [s.score for c in self.run.choices for s in c.scores if s.score is not None and math.isfinite(s.score)]
        return (min(known), max(known)) if known else (0.0, 0.0)


def _alike(one: ChoiceRow, two: ChoiceRow) -> bool:
    """Whether two choices compared the same, as where a model and its data are chosen together."""
    return (one.over, one.select, one.scores) == (two.over, two.select, two.scores)


def _step(number: int, label: str, tasks: Sequence[TaskRow]) -> StepRow:
    states: dict[str, int] = defaultdict(int)
    for t in tasks:
        states[t.state] += 1
    times = [(t, t.ended_s - t.started_s) for t in tasks if t.started_s is not None and t.ended_s is not None]
    computed = [took for t, took in times if t.state == "run"]
    return StepRow(
        label,
        dict(states),
        sum(took for _, took in times),
        median(computed) if computed else None,
        max((t.bytes for t in tasks), default=0.0),
        number,
    )


def _name(worker: str, k: int) -> str:
    """ "worker 0" of an address or a number."""
    return worker if worker and len(worker) < 12 and "/" not in worker and not worker.isdigit() else f"worker {k}"


def _tree(choice: ChoiceRow, children: Mapping[frozenset[tuple[str, str]], list[ChoiceRow]], placed: set[int], level: int) -> Tree:  # fmt: skip
    placed.add(id(choice))
    rows = sorted(choice.scores, key=lambda s: (not s.kept, s.score is None, _worse(choice, s)))
    branches = []
    for row in rows:
        at = frozenset({**choice.options, **row.options}.items())
        below = [c for c in children.get(at, ()) if id(c) not in placed] if level < 20 and row.options else []
        branches.append(Branch(row, options_in_words(row.options), tuple(_tree(c, children, placed, level + 1) for c in below if id(c) not in placed)))  # fmt: skip
    return Tree(choice, tuple(branches))


def _worse(choice: ChoiceRow, row: ScoreRow) -> float:
    score = row.score if row.score is not None and not math.isnan(row.score) else 0.0
    return -score if choice.larger_is_better else score


def options_in_words(options: Mapping[str, str]) -> str:
    """ "scaling standard, C 0.1".

    >>> options_in_words({"scaling": "standard", "C": "0.1"})
    'scaling standard, C 0.1'
    """
    return ", ".join(f"{name} {option}" for name, option in options.items())


def stepped(points: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """The corners of a line that stays as it is until it changes.

    >>> stepped([(0, 1), (2, 3)])
    [(0, 1), (2, 1), (2, 3)]
    """
    found: list[tuple[float, float]] = []
    for t, value in points:
        if found:
            found.append((t, found[-1][1]))
        found.append((t, value))
    return found


def held(run: RunRecord) -> list[tuple[float, float]]:
    """(time, bytes of results in all workers together) whenever it changed. O(n)."""
    by_worker: dict[str, float] = defaultdict(float)
    total, found = 0.0, [(0.0, 0.0)]
    for row in sorted(run.memory, key=lambda m: m.t_s):
        total += row.bytes - by_worker[row.worker]
        by_worker[row.worker] = row.bytes
        found.append((max(0.0, row.t_s), max(0.0, total)))
    return found


def told(value: Any) -> str:
    """A chosen value in a few words; "" where it is none that can be said."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)[:80] if isinstance(value, int | str) else ""
