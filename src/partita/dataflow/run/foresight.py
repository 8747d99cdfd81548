"""How long the whole run of a flow will take, told while it is under way from what has run so far."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from partita.dataflow.graph import FlowGraph
from partita.dataflow.plan.costs import Costs
from partita.dataflow.plan.course import Course
from partita.dataflow.plan.events import State, flat
from partita.dataflow.plan.simulate import simulate
from partita.dataflow.run.record import Prediction
from partita.dataflow.select import First, Halving, Threshold

#: parts of the tasks and of their time after which the rest is predicted; the first is the record's, unless it came too late
PREDICTED_AT, FIRST_AT = (0.1, 0.25, 0.5, 0.75), 0.15
GLANCE = 0.03  #: part of the tasks after which it is asked how much of the work is done
SIMULATED_S = 1.5e-4  #: what simulating a task takes (a shared core of 2026); nothing is handed out meanwhile
SIMULATED = 0.015  #: part of the time left that one simulation of it may take


@dataclass
class Foresight:
    """What is foretold of one run."""

    course: Course
    costs: Costs
    workers: int
    predictions: list[Prediction] = field(default_factory=list)
    ends: dict[str, float] = field(default_factory=dict)  #: worker -> when its last task ended
    gaps: list[float] = field(default_factory=list)  #: seconds between tasks of a worker
    glanced: int = 0  #: tasks that were done when it was asked last how much is left
    next: int = 0  #: of PREDICTED_AT

    @property
    def graph(self) -> FlowGraph:
        return self.course.graph

    @property
    def first_s(self) -> float | None:
        """The whole run's seconds, as told after a tenth of it; None where that came too late, or never."""
        return next((p.seconds for p in self.predictions[:1] if p.part <= FIRST_AT), None)

    def ran(self, node: int, worker: str, started_s: float, ended_s: float) -> None:
        """A task has run: what lies between it and the one before it on its worker, but for waiting until the inputs were there,
        is what scheduling and moving costs. A second look is work, and `ended_s` its end."""
        before = self.ends.get(worker)
        if before is not None:
            needs = (m for n in self.graph.nodes[node].needs for m in flat(self.course.view(n)))
            inputs = [event.ended_s for n in needs if (event := self.course.ran[n]) is not None]
            self.gaps.append(max(0.0, started_s - max(before, *inputs)) if inputs else max(0.0, started_s - before))
        self.ends[worker] = ended_s

    def look(self, elapsed_s: float, done: Mapping[int, float | None], busy_s: float) -> None:
        """Say how long the whole run will take, when so much of its work is done; `done`: node -> its number."""
        count = len(done)
        if self.next == len(PREDICTED_AT) or count < max(4, self.glanced + GLANCE * self.graph.tasks):
            return
        self.glanced = count
        # some wait for something else, the first ones are longer
        each_s = statistics.median(self.gaps[len(self.gaps) // 2 :] or [0.0])
        left_s = self._left_by_means(each_s)
        work_s = busy_s + each_s * count
        part = min(count / self.graph.tasks, work_s / (work_s + left_s) if work_s > 0 else 0.0)
        if part < PREDICTED_AT[self.next]:
            return
        self.next = sum(p <= part for p in PREDICTED_AT)
        graph, course = self.graph, self.course
        if self._uneven and SIMULATED_S * graph.tasks <= SIMULATED * left_s / self.workers:
            limit = course.limits.memory_bytes
            left_s = simulate(graph, self.costs.worth, self.workers, each_s, done, course.known, course.numbers, limit).seconds  # fmt: skip
        else:
            left_s = sum(each_s + self.costs.worth(node)[0] for node in self._open()) / self.workers
        self.predictions.append(Prediction(elapsed_s, elapsed_s + left_s, part))

    @cached_property
    def _uneven(self) -> bool:
        """What is left may not run as a whole, or more than once: the sum of open tasks does not tell how much that is."""
        choices = [n.choice for n in self.graph.nodes if n.choice is not None]
        limited = math.isfinite(self.course.limits.memory_bytes)
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
