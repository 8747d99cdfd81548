"""Run a flow: the course says what to do, an engine does it, reports go back to the course.

    run(graph, engine, settings) -> Outcome

The loop keeps a window of tasks under way, as many as the workers need for a moment and not more: so a loser is seldom begun
in vain, and the scheduler knows of few tasks at any time however large the flow is.
"""

from __future__ import annotations

import math
import statistics
import time
from collections import Counter
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

from partita.dataflow.graph import Candidate, FlowGraph
from partita.dataflow.plan.costs import Costs
from partita.dataflow.plan.course import Course
from partita.dataflow.plan.events import Done, Failure, Job, Limits, State, flat, mapped
from partita.dataflow.plan.simulate import simulate
from partita.dataflow.run.numbers import Numbers
from partita.dataflow.run.record import (
    ChoiceRow,
    Chosen,
    MemoryRow,
    Prediction,
    RunRecord,
    ScoreRow,
    TaskRow,
    TaskState,
)
from partita.dataflow.run.task import Order, Report, Told, number_of
from partita.dataflow.select import First, Halving, Threshold
from partita.dataflow.store import Store
from partita.errors import FlowError, InternalError, PartitaError

Progress = Callable[[str, int, int], None]
AHEAD_S = 1.0  #: work that a worker should always have before it
LEAST_WINDOW, MOST_WINDOW = 4, 400  #: tasks a worker
UNKNOWN_S = 0.1  #: of a task whose like never ran
FREE_LOOKS_S, LOOKS_SHARE = 0.05, 0.02  #: seconds, and part of the time, that running tasks twice may take in all
MEMORY_ROWS = 1000
#: parts of the tasks and of their time after which the rest is predicted; the first is the record's, unless it came too late
PREDICTED_AT, FIRST_AT = (0.1, 0.25, 0.5, 0.75), 0.15
GLANCE = 0.03  #: part of the tasks after which it is asked how much of the work is done
SIMULATED_S = 1.5e-4  #: what simulating a task takes (a shared core of 2026); nothing is handed out meanwhile
SIMULATED = 0.015  #: part of the time left that one simulation of it may take
CLOCKS_S = 2.0  #: clocks of machines that differ by less, or seem to since a report was late, are taken as they are
DRAIN_S = 30.0  #: how long tasks under way are waited for, where the run has failed and what they keep may be wrong
BRIEF_S, BRIEF_BYTES = 0.02, 100e3  #: tasks below both travel together


class AllLost(FlowError):
    """No result of a flow is there: every one failed."""


class Engine(Protocol):
    """Who runs tasks."""

    workers: int

    @property
    def idle(self) -> int:
        """Workers that have nothing to do."""
        ...

    def submit(self, orders: Sequence[Order]) -> None: ...
    def release(self, gone: Sequence[tuple[int, int]]) -> None: ...
    def wait(self, timeout_s: float) -> list[tuple[Report, str]]: ...

    def fetch(self, nodes: Sequence[int]) -> list[Any] | None:
        """Results; None where all are gone, which the next reports tell."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class Settings:
    """How to run."""

    memory_bytes: float = math.inf
    stop_on_error: bool = False
    check: bool = True  #: run a few tasks twice, to see whether steps give the same again
    started_s: float = 0.0  #: starting workers took


@dataclass(frozen=True)
class Outcome:
    """A run's record, and the results themselves, in the order of the record's `chosen`."""

    record: RunRecord
    values: tuple[Any, ...]

    @property
    def value(self) -> Any:
        """The one result. Raises FlowError where the flow has several."""
        if len(self.values) != 1:
            raise FlowError(
                f"the flow has {len(self.values)} results", hint="take .values, or choose over what is left"
            )
        return self.values[0]


def run(
    graph: FlowGraph,
    engine: Engine,
    settings: Settings = Settings(),
    store: Store | None = None,
    numbers: Numbers | None = None,
    progress: Progress | None = None,
) -> Outcome:
    """Run a flow to its end. `store`: where tasks keep results; `numbers`: scores of earlier runs.

    Raises FlowError where every result is lost, or, with `stop_on_error`, at the first task that raises.
    """
    return _Run(graph, engine, settings, store, numbers, progress).to_the_end()


@dataclass
class _Run:
    graph: FlowGraph
    engine: Engine
    settings: Settings
    store: Store | None
    numbers: Numbers | None
    progress: Progress | None
    busy_s: float = 0.0
    looked_s: float = 0.0
    checked: set[int] = field(default_factory=set)  #: steps whose tasks were run twice
    memory: list[MemoryRow] = field(default_factory=list)
    by_worker: dict[str, float] = field(default_factory=dict)
    lies: dict[int, tuple[str, float]] = field(default_factory=dict)  #: node -> (worker, bytes)
    predictions: list[Prediction] = field(default_factory=list)
    glanced: int = 0  #: tasks that were done when it was asked last how much is left
    changed: tuple[int, dict[int, bool]] = (0, {})  #: how many steps it was found for, and what depends on them
    unkept: dict[str, str] = field(default_factory=dict)  #: why results could not be kept -> the first such step
    next_prediction: int = 0  #: of PREDICTED_AT
    done: dict[int, float | None] = field(default_factory=dict)  #: node -> its number
    expected: dict[int, float] = field(default_factory=dict)  #: task handed out -> seconds
    ends: dict[str, float] = field(default_factory=dict)  #: worker -> when its last task ended
    gaps: list[float] = field(default_factory=list)
    #: worker -> seconds by which its clock is behind ours, at most
    behind: dict[str, float] = field(default_factory=dict)
    #: node -> key under which its result, or number, is kept for later
    kept: dict[int, str] = field(default_factory=dict)
    changing: set[int] = field(default_factory=set)  #: steps that were seen to give something else the second time
    spoiler: int | None = None  #: a task that changed what it was given
    unread: dict[str, None] = field(default_factory=dict)  #: why kept results could not be read

    def __post_init__(self) -> None:
        self.costs = Costs(self.graph)
        limits = Limits(max(2, self.engine.workers), self.settings.memory_bytes)
        self.began = time.time()
        self.course = Course(
            self.graph, self._known(), self.numbers.found if self.numbers else {}, limits, self.costs.worth
        )

    def _known(self) -> Container[str]:
        return frozenset() if self.store is None else self.store

    def to_the_end(self) -> Outcome:
        self._work()
        while (values := self._values()) is None:  # all workers died before the results were here
            self._listen(0.5)
            self._work()
        seconds = time.time() - self.began
        if self.progress is not None:
            self.progress("tasks", self.graph.tasks, self.graph.tasks)
        return Outcome(self._record(seconds, values), values)

    def _work(self) -> None:
        """Until every result is there, or lost, or was spoiled."""
        quiet = 0
        while not self.course.finished() and self.spoiler is None:
            self._hand_out()
            if self.course.finished():
                break
            heard = self._listen(0.5)
            quiet = 0 if heard or self.course.running else quiet + 1
            if quiet > 3:
                raise InternalError(f"the flow stands still: {self._standing()}")
            self._predict()
            if self.progress is not None and heard:
                self.progress("tasks", len(self.done), self.graph.tasks)

    def _listen(self, timeout_s: float) -> bool:
        """Take what is reported, if anything is."""
        reports = self.engine.wait(timeout_s)
        for report, worker in reports:
            self._take(self._by_our_clock(report, worker), worker)
        self._keep_numbers(reports)
        return bool(reports)

    # ---- out --------------------------------------------------------------------------------------------------------------

    def _hand_out(self) -> None:
        """Fill the window when it is half empty, and let nobody be idle; let go of what nobody needs."""
        jobs = self._window()
        gone = self.course.take_released()
        if gone:
            self.engine.release(gone)
            for node, _ in gone:
                self._moved(node, None)
        needless = set(gone)  # a score that was known may have cancelled what was handed out just before
        self._submit([j for j in jobs if (j.node, j.turn) not in needless])
        while (idle := self.engine.idle) and self.course.running < self.engine.workers * MOST_WINDOW:
            # what fills the window waits for what is under way, or lies with others: who is idle begins with what comes later
            more = self.course.next_jobs(idle, at_once=True)
            if not more:
                break
            self._submit(more)

    def _window(self) -> list[Job]:
        """What is missing of AHEAD_S a worker, where half of it is; of steps that never ran only little is handed out."""
        workers, state = self.engine.workers, self.course.state
        for node in [n for n in self.expected if state[n] != State.RUNNING]:
            del self.expected[node]
        room_s = AHEAD_S * workers - sum(self.expected.values())
        if 2 * room_s < AHEAD_S * workers and self.course.running >= LEAST_WINDOW * workers:
            return []
        most, least = workers * MOST_WINDOW, workers * LEAST_WINDOW
        jobs: list[Job] = []
        while (under := len(self.expected) + len(jobs)) < most and (room_s > 0 or under < least):
            more = self.course.next_jobs(min(LEAST_WINDOW, most - under))
            if not more:
                break
            jobs += more
            room_s -= sum(self._expects(job) for job in more)
        return jobs

    def _expects(self, job: Job) -> float:
        """Seconds that a task will take, about."""
        return self.costs.mean(self.graph.nodes[job.node].step)[0] or UNKNOWN_S

    def _submit(self, jobs: Sequence[Job]) -> None:
        self.expected |= {job.node: self._expects(job) for job in jobs}
        self.engine.submit([self._order(job) for job in jobs])

    def _order(self, job: Job) -> Order:
        node = self.graph.nodes[job.node]
        keep = self.graph.lasting[job.node] and not self._changes(job.node)
        told = Told(
            job.node, job.turn, node.step, job.kind, job.key, node.label, node.arguments, keep, self._look_again(job)
        )
        size_bytes = self.costs.mean(node.step)[1] or None
        return Order(told, job.inputs, job.place, self._brief(node.step), self._expects(job), size_bytes)

    def _brief(self, step: int) -> bool:
        seconds, size = self.costs.mean(step)
        return 0.0 < seconds < BRIEF_S and size < BRIEF_BYTES

    def _look_again(self, job: Job) -> float:
        """Seconds that a second look at a task may take: until one of its step was looked at, and where that is little against
        the time spent so far."""
        step = self.graph.nodes[job.node].step
        allowed = FREE_LOOKS_S + LOOKS_SHARE * self.busy_s - self.looked_s
        if not self.settings.check or job.kind == "load" or step in self.checked or self.costs.mean(step)[0] > allowed:
            return 0.0
        return allowed

    def _changes(self, node: int) -> bool:
        """Whether a step upstream, or its own, was seen to give something else the second time. O(upstream), then known."""
        if not self.changing:
            return False
        if self.changed[0] != len(self.changing):
            of: dict[int, bool] = {}
            for k, n in enumerate(self.graph.nodes):  # needs stand before those that need them
                of[k] = n.step in self.changing or any(of[m] for m in n.needs)
            self.changed = (len(self.changing), of)
        return self.changed[1][node]

    # ---- in ---------------------------------------------------------------------------------------------------------------

    def _gap(self, node: int, worker: str, started: float, ended: float) -> None:
        """What lies between two tasks of a worker, but for waiting until the inputs were there: what scheduling and moving costs.
        A second look is work, and `ended` its end."""
        before = self.ends.get(worker)
        if before is not None:
            needs = (m for n in self.graph.nodes[node].needs for m in flat(self.course.view(n)))
            inputs = [event.ended_s for n in needs if (event := self.course.ran[n]) is not None]
            self.gaps.append(max(0.0, started - max(before, *inputs)) if inputs else max(0.0, started - before))
        self.ends[worker] = ended

    def _predict(self) -> None:
        """Say how long the whole run will take, when so much of its work is done."""
        done = len(self.done)
        if self.next_prediction == len(PREDICTED_AT) or done < max(4, self.glanced + GLANCE * self.graph.tasks):
            return
        self.glanced = done
        each = statistics.median(
            self.gaps[len(self.gaps) // 2 :] or [0.0]
        )  # some wait for something else, the first ones are longer
        left_s = self._left_by_means(each)
        work_s = self.busy_s + each * done
        part = min(done / self.graph.tasks, work_s / (work_s + left_s) if work_s > 0 else 0.0)
        if part < PREDICTED_AT[self.next_prediction]:
            return
        self.next_prediction = sum(p <= part for p in PREDICTED_AT)
        elapsed = time.time() - self.began
        if self._uneven and SIMULATED_S * self.graph.tasks <= SIMULATED * left_s / self.engine.workers:
            known = self.numbers.found if self.numbers else {}
            left_s = simulate(self.graph, self.costs.worth, self.engine.workers, each, self.done, self._known(), known, self.settings.memory_bytes).seconds  # fmt: skip
        else:
            left_s = sum(each + self.costs.worth(node)[0] for node in self._open()) / self.engine.workers
        self.predictions.append(Prediction(elapsed, elapsed + left_s, part))

    @cached_property
    def _uneven(self) -> bool:
        """What is left may not run as a whole, or more than once: the sum of open tasks does not tell how much that is."""
        choices = [n.choice for n in self.graph.nodes if n.choice is not None]
        limited = math.isfinite(self.settings.memory_bytes)
        return limited or any(c.shape is not None or isinstance(c.select, First | Threshold | Halving) for c in choices)

    def _left_by_means(self, each_s: float) -> float:
        """Seconds that all open tasks take together, with what scheduling adds to each: by the mean of each step."""
        steps = Counter(self.graph.nodes[node].step for node in self._open())
        return sum(count * (each_s + self.costs.mean(step)[0]) for step, count in steps.items())

    def _open(self) -> Iterator[int]:
        """Calls that have not run."""
        open_ = (State.IDLE, State.WAITING, State.RUNNING)
        states = zip(self.graph.nodes, self.course.state, strict=True)
        return (k for k, (n, state) in enumerate(states) if n.kind == "call" and state in open_)

    def _by_our_clock(self, report: Report, worker: str) -> Report:
        """A report of another machine, whose clock may be wrong by more than messages take, in times of this one."""
        behind_s = self.behind[worker] = min(self.behind.get(worker, math.inf), time.time() - report.ended_s)
        if abs(behind_s) < CLOCKS_S:
            return report
        return report._replace(started_s=report.started_s + behind_s, ended_s=report.ended_s + behind_s)

    def _keep_numbers(self, reports: Sequence[tuple[Report, str]]) -> None:
        """Keep numbers for later runs, unless their step was seen to give others the second time."""
        if self.numbers is not None:
            fresh = [
                r for r, _ in reports if r.state == "done" and r.value is not None and not self.course.loaded[r.node]
            ]
            kept = {r.node: r.value for r in fresh if self.graph.lasting[r.node] and not self._changes(r.node)}
            self.numbers.add({self.course.key(n): value for n, value in kept.items() if value is not None})
            self.kept |= {n: self.course.key(n) for n in kept}

    def _withdraw(self, wrong: Callable[[int], bool]) -> None:
        """Results and numbers that this run kept, and that are wrong, are kept no longer."""
        keys = [self.kept.pop(n) for n in list(self.kept) if wrong(n)]
        if self.store is not None:
            self.store.remove(keys)
        if self.numbers is not None:
            self.numbers.remove(keys)

    def _spoiled(self, node: int) -> FlowError:
        """Nobody can tell which tasks read what the step has changed: all that this run kept of what it reads may be wrong.

        What is under way may read it too, and is waited for.
        """
        until = time.monotonic() + DRAIN_S
        while self.course.running and time.monotonic() < until:
            self._listen(0.5)
        spoiled: set[int] = set()
        waiting = [m for n in self.graph.nodes[node].needs for m in flat(self.course.view(n))]
        while waiting:
            fresh = [c for c in self.graph.consumers[waiting.pop()] if c not in spoiled]
            spoiled.update(fresh)
            waiting += fresh
        self._withdraw(lambda k: k in spoiled)
        return FlowError(f"task {self._said(node)}: the step changes what it is given, and others are given the same", hint="let it copy what it writes to")  # fmt: skip

    def _take(self, report: Report, worker: str) -> None:
        started, ended = max(0.0, report.started_s - self.began), max(0.0, report.ended_s - self.began)
        step = self.graph.nodes[report.node].step
        if report.state == "lost":
            if self.course.loaded[report.node]:
                self.unread[report.reason] = None
            self.course.lost(report.node, report.turn)
            return
        if report.state == "suspected":
            self.course.suspected(report.node, report.turn)
            return
        if report.state == "spoils":
            self.spoiler = report.node if self.spoiler is None else self.spoiler
            self.course.failed(Failure(report.node, report.turn, "it changes what it is given", started, ended, worker))
            return
        if report.state == "failed":
            if self.settings.stop_on_error and self.spoiler is None:
                raise FlowError(f"task {self._said(report.node)}: {report.reason}", hint="leave out --stop-on-error to lose only its branch")  # fmt: skip
            self.course.failed(Failure(report.node, report.turn, report.reason, started, ended, worker))
            return
        took = ended - started
        self.busy_s += took
        self.looked_s += report.look_s
        if not (report.stored and self.course.loaded[report.node]):
            self.costs.add(step, self.graph.nodes[report.node].options, took, report.size_bytes)
            self._gap(report.node, worker, started, ended + report.look_s)
        self.done[report.node] = report.value
        if report.stored and not self.course.loaded[report.node]:
            self.kept[report.node] = self.course.key(report.node)
        if report.reason:
            self.unkept.setdefault(report.reason, self.graph.nodes[report.node].label)
        if report.looked:
            self.checked.add(step)
        if report.same is False:
            self.changing.add(step)
        self.course.done(Done(report.node, report.turn, started, ended, worker, report.size_bytes, report.value, report.stored))  # fmt: skip
        if report.same is False:
            self._withdraw(self._changes)
        elif self._changes(report.node):
            self._withdraw(lambda n: n == report.node)
        if self.course.state[report.node] == State.HELD:
            self._moved(report.node, (worker, report.size_bytes), ended)

    def _moved(self, node: int, to: tuple[str, float] | None, when: float | None = None) -> None:
        """Keep account of which worker holds how much."""
        t = time.time() - self.began if when is None else when
        for place, sign in ((self.lies.pop(node, None), -1.0), (to, 1.0)):
            if place is not None:
                worker, size = place
                self.by_worker[worker] = max(0.0, self.by_worker.get(worker, 0.0) + sign * size)
                self.memory.append(MemoryRow(t, worker, self.by_worker[worker]))
        if to is not None:
            self.lies[node] = to

    # ---- the end ----------------------------------------------------------------------------------------------------------

    def _values(self) -> tuple[Any, ...] | None:
        """The results themselves; None where they were lost on the way. Raises FlowError where none is there, or any is wrong."""
        if self.spoiler is not None:
            raise self._spoiled(self.spoiler)
        course = self.course
        views = [None if course.state[s] == State.FAILED else course.view(s) for _, s in self.graph.sinks]
        if all(v is None for v in views):
            _, sink = self.graph.sinks[0]
            raise AllLost(f"every result of the flow is lost: {course.reason.get(sink, 'failed')}", hint="correct the step, or the options")  # fmt: skip
        nodes = list(dict.fromkeys(n for v in views if v is not None for n in flat(v)))
        try:
            brought = self.engine.fetch(nodes)
        except PartitaError:
            raise
        except Exception as error:
            raise PartitaError(f"the results cannot be fetched: {error}", hint="return something smaller") from error
        if brought is None:
            return None
        found = dict(zip(nodes, brought, strict=True))
        return tuple(None if v is None else mapped(v, found.__getitem__) for v in views)

    def _record(self, seconds: float, values: Sequence[Any]) -> RunRecord:
        course, graph = self.course, self.graph
        rows = tuple(self._task_row(k) for k, n in enumerate(graph.nodes) if n.kind == "call")
        states = [r.state for r in rows]
        choices = tuple(self._choice_row(k) for k in course.judged)
        never = sum(
            len(_candidates(graph, k)) - len(j.scores.keys() | j.failed.keys()) for k, j in course.judged.items()
        )
        return RunRecord(
            seconds=seconds, started_s=self.settings.started_s,
            tasks_run=states.count("run"), tasks_shared=max(0, graph.applied - graph.tasks) + states.count("shared"),
            tasks_cached=states.count("cached"), tasks_pruned=states.count("pruned"),
            tasks_cancelled=states.count("cancelled"), tasks_failed=states.count("failed"),
            configurations=graph.configurations, branches=graph.branches, branches_pruned=never,
            chosen=tuple(self._chosen(k, v) for k, v in enumerate(values)),
            peak_bytes=course.peak_bytes, workers=self.engine.workers, dropped=course.dropped,
            predicted_s=next((p.seconds for p in self.predictions[:1] if p.part <= FIRST_AT), None), predictions=tuple(self.predictions), busy_s=self.busy_s, notes=tuple(self._notes()),
            tasks=rows, choices=choices, memory=thinned(self.memory, MEMORY_ROWS),
        )  # fmt: skip

    def _task_row(self, k: int) -> TaskRow:
        course, node = self.course, self.graph.nodes[k]
        event = course.ran[k]
        readers = len(self.graph.consumers[k])
        if k in course.twin or k in course.borrowed:
            return TaskRow(node.key, node.label, node.options, "shared", reason="it is another task of this run", readers=readers)  # fmt: skip
        if event is None:
            if k in course.reason:
                return TaskRow(node.key, node.label, node.options, "failed", reason=course.reason[k], readers=readers)
            cut = k in course.cancelled
            why = "its branch lost while it ran" if cut else "nobody needed it"
            return TaskRow(
                node.key, node.label, node.options, "cancelled" if cut else "pruned", reason=why, readers=readers
            )
        state: TaskState = (
            "failed" if k in course.reason else "cached" if course.loaded[k] and not course.times_run[k] else "run"
        )
        ran = event.worker != ""  # otherwise its number was known
        return TaskRow(
            node.key, node.label, node.options, state, event.started_s if ran else None, event.ended_s if ran else None, event.worker, event.size_bytes,
            course.reason.get(k, ""), course.times_run[k], readers,
        )  # fmt: skip

    def _choice_row(self, k: int) -> ChoiceRow:
        node, j = self.graph.nodes[k], self.course.judged[k]
        assert node.choice is not None
        c = node.choice
        kept = j.kept or ()
        scores = tuple(
            ScoreRow(
                one.options, j.scores.get(i), i in kept,
                f"failed: {j.failed[i]}" if i in j.failed else "kept" if i in kept else j.lost.get(i, "not needed"),
            )
            for i, one in enumerate(c.candidates)
        )  # fmt: skip
        return ChoiceRow(c.name, node.options, c.over, str(c.select), c.shape, j.contradiction, scores)

    def _chosen(self, k: int, value: Any) -> Chosen:
        options, sink = self.graph.sinks[k]
        if self.course.state[sink] == State.FAILED:
            return Chosen(options, None, None, "", self.course.reason.get(sink, "failed"))
        number = number_of(value) if isinstance(value, bool | int | float) else None
        plain = value if number is not None and math.isfinite(number) else None
        shown = value[:200] if isinstance(value, str) else plain
        return Chosen({**self.course.options_of(sink), **options}, self._score_of(sink), shown, type(value).__name__)

    def _score_of(self, sink: int) -> float | None:
        """By which a result was chosen: the outermost choose's."""
        j = self.course.judged.get(sink)
        return j.scores.get(j.kept[0]) if j is not None and j.kept else None

    def _notes(self) -> list[str]:
        """What a person should know."""
        notes = [f"{self.graph.steps[s].name} is not deterministic: run twice, it gave two results; nothing that depends on it is kept for later" for s in sorted(self.changing)]  # fmt: skip
        notes += [
            f"results of {label} and its like are not kept: {why}" for why, label in list(self.unkept.items())[:5]
        ]
        notes += [f"computed again: {why}" for why in list(self.unread)[:5]]
        if self.course.stretch > 1:
            notes.append(
                f"results were allowed {self.course.stretch:.2g} times the given memory: within it, what one task needs drove out what another one needs"
            )
        for k, j in self.course.judged.items():
            if j.contradiction:
                name = self.graph.nodes[k].label
                notes.append(f"{name}{_on(self.graph.nodes[k].options)}: {j.contradiction}; all options were run")
        lost: dict[str, int] = {}
        for k, why in self.course.reason.items():
            if self.graph.nodes[k].kind == "call" and self.course.ran[k] is not None:
                told = f"{self._said(k)}: {why}"
                lost[told] = lost.get(told, 0) + 1
        notes += [f"lost: {told}" for told in list(lost)[:20]] + (
            [f"and {len(lost) - 20} more lost"] if len(lost) > 20 else []
        )
        return notes

    # ---- short ------------------------------------------------------------------------------------------------------------

    def _said(self, k: int) -> str:
        return self.graph.nodes[k].label + _on(self.graph.nodes[k].options)

    def _standing(self) -> str:
        left = [self._said(k) for k, s in enumerate(self.course.state) if s == State.WAITING]
        return ", ".join(left[:5])


def _candidates(graph: FlowGraph, choose: int) -> Sequence[Candidate]:
    choice = graph.nodes[choose].choice
    return choice.candidates if choice is not None else ()


def _on(options: Any) -> str:
    told = ", ".join(f"{n}={v}" for n, v in options.items())
    return f" ({told})" if told else ""


def thinned(rows: Sequence[MemoryRow], most: int) -> tuple[MemoryRow, ...]:
    """At most `most` rows and the peaks of each worker among them."""
    if len(rows) <= most:
        return tuple(rows)
    step = len(rows) / most
    chosen = {int(k * step) for k in range(most)} | {len(rows) - 1}
    for worker in {r.worker for r in rows}:
        chosen.add(max((k for k, r in enumerate(rows) if r.worker == worker), key=lambda k: rows[k].bytes))
    return tuple(rows[k] for k in sorted(chosen))
