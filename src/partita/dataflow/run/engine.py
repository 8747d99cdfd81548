"""Run a flow: the course says what to do, an engine does it, reports go back to the course.

    run(graph, engine, settings) -> Outcome

The loop keeps a window of tasks under way, as many as the workers need for a moment and not more: so a loser is seldom begun
in vain, and the scheduler knows of few tasks at any time however large the flow is.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from partita.dataflow.graph import FlowGraph
from partita.dataflow.plan.costs import Costs
from partita.dataflow.plan.course import Course
from partita.dataflow.plan.events import Done, Failure, Job, Limits, State, flat, mapped
from partita.dataflow.run.foresight import Foresight
from partita.dataflow.run.held import Held, thinned
from partita.dataflow.run.looks import Looks
from partita.dataflow.run.numbers import Numbers
from partita.dataflow.run.record import RunRecord
from partita.dataflow.run.task import Order, Report, Told
from partita.dataflow.run.telling import Noticed, choices_told, chosen, notes, said, tasks_told
from partita.dataflow.store import Store
from partita.errors import FlowError, InternalError, PartitaError

Progress = Callable[[str, int, int], None]
AHEAD_S = 1.0  #: work that a worker should always have before it
LEAST_WINDOW, MOST_WINDOW = 4, 400  #: tasks a worker
UNKNOWN_S = 0.1  #: of a task whose like never ran
CLOCKS_S = 2.0  #: clocks of machines that differ by less, or seem to since a report was late, are taken as they are
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

    def stop_keeping(self) -> None:
        """At the end: from now on no task keeps its result in the store, none that is under way either."""
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
    changed: tuple[int, dict[int, bool]] = (0, {})  #: how many steps it was found for, and what depends on them
    done: dict[int, float | None] = field(default_factory=dict)  #: node -> its number
    expected: dict[int, float] = field(default_factory=dict)  #: task handed out -> seconds
    #: worker -> seconds by which its clock is behind ours, at most
    behind: dict[str, float] = field(default_factory=dict)
    #: node handed out -> key under which its result, or number, may lie for later runs
    kept: dict[int, str] = field(default_factory=dict)
    reports: int = 0  #: that have come
    came: dict[int, int] = field(default_factory=dict)  #: node -> which report was its latest
    first: dict[int, int] = field(
        default_factory=dict
    )  #: step -> reports that had come when its first call was handed out
    spoiler: int | None = None  #: a task that changed what it was given
    noticed: Noticed = field(default_factory=Noticed)
    held: Held = field(default_factory=Held)

    def __post_init__(self) -> None:
        self.costs = Costs(self.graph)
        limits = Limits(max(2, self.engine.workers), self.settings.memory_bytes)
        self.began = time.time()
        self.course = Course(
            self.graph, self._known(), self.numbers.found if self.numbers else {}, limits, self.costs.worth
        )
        self.looks = Looks.of(self.graph, self.engine.workers)
        self.foresight = Foresight(self.course, self.costs, self.engine.workers)

    def _now(self) -> float:
        """Seconds since the run began."""
        return time.time() - self.began

    def _known(self) -> Container[str]:
        return frozenset() if self.store is None else self.store

    def to_the_end(self) -> Outcome:
        try:
            return self._outcome()
        finally:
            if self.noticed.changing:  # a task that was cancelled may have kept its result since
                self.engine.stop_keeping()
                self._withdraw([n for n in self.kept if self._changes(n)])

    def _outcome(self) -> Outcome:
        self._work()
        while (values := self._values()) is None:  # all workers died before the results were here
            self._listen(0.5)
            self._work()
        seconds = self._now()
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
            self.foresight.look(self._now(), self.done, self.busy_s)
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
                self.held.went(node, self._now())
                self.looks.ended(node, self.graph.nodes[node].step)
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
        if job.kind == "compute":
            self.kept |= {job.node: job.key} if keep else {}
            self.came.pop(job.node, None)
            self.first.setdefault(node.step, self.reports)
        told = Told(
            job.node, job.turn, node.step, job.kind, job.key, node.label, node.arguments, keep, self._look_s(job)
        )
        size_bytes = self.costs.mean(node.step)[1] or None
        return Order(told, job.inputs, job.place, self._brief(node.step), self._expects(job), size_bytes)

    def _brief(self, step: int) -> bool:
        seconds, size = self.costs.mean(step)
        return 0.0 < seconds < BRIEF_S and size < BRIEF_BYTES

    def _look_s(self, job: Job) -> float:
        """Seconds that a second look at a task may take."""
        if not self.settings.check or job.kind == "load":
            return 0.0
        step = self.graph.nodes[job.node].step
        return self.looks.begin_s(job.node, step, self.costs.mean(step)[0], self.busy_s)

    def _changes(self, node: int) -> bool:
        """Whether a step upstream, or its own, was seen to give something else the second time. O(upstream), then known."""
        if not self.noticed.changing:
            return False
        if self.changed[0] != len(self.noticed.changing):
            of: dict[int, bool] = {}
            for k, n in enumerate(self.graph.nodes):  # needs stand before those that need them
                of[k] = n.step in self.noticed.changing or any(of[m] for m in n.needs)
            self.changed = (len(self.noticed.changing), of)
        return self.changed[1][node]

    # ---- in ---------------------------------------------------------------------------------------------------------------

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
            kept = {
                r.node: r.value for r in fresh if r.sound and self.graph.lasting[r.node] and not self._changes(r.node)
            }
            self.numbers.add({self.course.key(n): value for n, value in kept.items() if value is not None})

    def _withdraw(self, wrong: Sequence[int]) -> None:
        """Results and numbers that this run may have kept, and that are wrong, are kept no longer."""
        keys = [self.kept[n] for n in wrong if n in self.kept]
        if self.store is not None:
            self.store.remove(keys)
        if self.numbers is not None:
            self.numbers.remove(keys)

    def _spoiled(self, node: int) -> FlowError:
        """Nobody can tell which tasks read what the step has changed: an earlier call of it, which was not looked at, may have changed
        something else, and results may share their memory. So all may be wrong that had not come when its first call was handed out.
        """
        self.engine.stop_keeping()
        first = self.first[self.graph.nodes[node].step]
        self._withdraw([n for n in self.kept if self.came.get(n, math.inf) > first])
        return FlowError(f"task {said(self.graph, node)}: the step changes what it is given, and others are given the same", hint="let it copy what it writes to")  # fmt: skip

    def _take(self, report: Report, worker: str) -> None:
        started, ended = max(0.0, report.started_s - self.began), max(0.0, report.ended_s - self.began)
        step = self.graph.nodes[report.node].step
        self.looks.ended(report.node, step)
        self.reports += 1
        self.came[report.node] = self.reports
        if report.state == "absent":
            self.noticed.unread[report.reason] = None
            self.course.absent(report.node, report.turn)
            return
        if report.state == "lost":
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
                raise FlowError(f"task {said(self.graph, report.node)}: {report.reason}", hint="leave out --stop-on-error to lose only its branch")  # fmt: skip
            self.course.failed(Failure(report.node, report.turn, report.reason, started, ended, worker))
            return
        took = ended - started
        self.busy_s += took
        self.looks.spent_s += report.look_s
        if not (report.stored and self.course.loaded[report.node]):
            self.costs.add(step, self.graph.nodes[report.node].options, took, report.size_bytes)
            self.foresight.ran(report.node, worker, started, ended + report.look_s)
        self.done[report.node] = report.value
        if report.reason:
            self.noticed.unkept.setdefault(report.reason, self.graph.nodes[report.node].label)
        if report.looked:
            self.looks.seen.add(step)
        if report.same is False:
            self.noticed.changing.add(step)
        self.course.done(Done(report.node, report.turn, started, ended, worker, report.size_bytes, report.value, report.stored))  # fmt: skip
        if report.same is False:
            self._withdraw([n for n in self.kept if self._changes(n)])
        elif self._changes(report.node):
            self._withdraw([report.node])
        if self.course.state[report.node] == State.HELD:
            self.held.came(report.node, worker, report.size_bytes, ended)

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
        told = {**tasks_told(self.course), **choices_told(self.course)}
        return RunRecord(
            seconds=seconds, started_s=self.settings.started_s, chosen=chosen(self.course, values),
            peak_bytes=self.course.peak_bytes, workers=self.engine.workers, dropped=self.course.dropped,
            predicted_s=self.foresight.first_s, predictions=tuple(self.foresight.predictions), busy_s=self.busy_s,
            notes=tuple(notes(self.course, self.noticed)), memory=thinned(self.held.rows), **told,
        )  # fmt: skip

    # ---- short ------------------------------------------------------------------------------------------------------------

    def _standing(self) -> str:
        left = [said(self.graph, k) for k, s in enumerate(self.course.state) if s == State.WAITING]
        return ", ".join(left[:5])
