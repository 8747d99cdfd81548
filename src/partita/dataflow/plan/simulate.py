"""How long a flow would take, and how much memory: the course of the run, driven by expected costs instead of processes.

List scheduling on w workers: whoever is free takes the first task in the order whose inputs are there, and it takes what is
expected and a share for scheduling. The decisions are the course's own, so what a run prunes, drops and loads is in it. What no
one can know are the scores to come: a choose with a declared shape is given scores of that shape with the best at the golden
section, a threshold is crossed in the middle, others are equal.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass

from partita.dataflow.graph import FlowGraph
from partita.dataflow.plan.course import Course
from partita.dataflow.plan.events import Done, Job, Limits, State, flat
from partita.dataflow.plan.keep import reload_s
from partita.dataflow.plan.search import GOLDEN
from partita.dataflow.select import First, Threshold, larger_is_better

AHEAD = 4  #: tasks a worker that may be handed out before they begin
MOST_RUNS = 3  #: times the tasks there are: where memory is far too small, a run goes in circles, and there is nothing to foretell


@dataclass(frozen=True, slots=True)
class Simulated:
    """A run that did not happen."""

    seconds: float
    peak_bytes: float
    tasks: int  #: that ran


def simulate(
    graph: FlowGraph,
    worth: Callable[[int], tuple[float, float]],
    workers: int,
    each_s: float = 0.0,
    done: Mapping[int, float | None] | None = None,
    known: Container[str] = frozenset(),
    numbers: Mapping[str, float] | None = None,
    memory_bytes: float = math.inf,
) -> Simulated:
    """Simulate what is left of a run of which `done` has run (node -> its number). O(nodes + edges) log nodes.

    `worth` says (seconds, bytes) of a task, `each_s` what scheduling adds to it.
    """
    done = done or {}
    course = Course(graph, known, numbers or {}, Limits(max(2, workers), memory_bytes), worth)
    guess = _guesses(graph)
    free = list(range(workers))
    pool: dict[tuple[int, int], Job] = {}
    running: list[tuple[float, int, int, int, float]] = []  #: (end, node, turn, worker, began)
    now = 0.0
    tasks = 0
    while not course.finished() and tasks <= MOST_RUNS * graph.tasks:
        for job in course.next_jobs(workers * (1 + AHEAD) - len(pool) - len(running)):
            pool[job.node, job.turn] = job
        for gone in course.take_released():
            pool.pop(gone, None)
        started = False
        for job in sorted(pool.values(), key=lambda j: j.place) if free else ():
            if not free:
                break
            if all(course.state[n] == State.HELD for n in flat(job.inputs)):
                del pool[job.node, job.turn]
                was = job.node in done and job.turn == 1
                took = 0.0 if was else each_s + (reload_s(worth(job.node)[1]) if job.kind == "load" else worth(job.node)[0])  # fmt: skip
                tasks += not was
                heapq.heappush(running, (now + took, job.node, job.turn, free.pop(), now))
                started = True
        if started and free and pool:
            continue
        if free and (more := course.next_jobs(len(free), at_once=True)):
            pool |= {
                (job.node, job.turn): job for job in more
            }  # what is ahead waits: who is free begins with what comes later
            continue
        if not running:
            break  # nothing can go on: what is left has failed
        now, node, turn, worker, began = heapq.heappop(running)
        free.append(worker)
        value = done.get(node)
        course.done(
            Done(node, turn, began, now, str(worker), worth(node)[1], guess.get(node, 0.0) if value is None else value)
        )
    return Simulated(now, course.peak_bytes, tasks)


def _guesses(graph: FlowGraph) -> dict[int, float]:
    """Call -> the score it is given. What may win a choose that is a score is given that choose's score."""
    found: dict[int, float] = {}
    for k in range(len(graph) - 1, -1, -1):  # a choose before those that it compares
        node = graph.nodes[k]
        if node.choice is None:
            continue
        select, n = node.choice.select, len(node.choice.candidates)
        sign = 1.0 if larger_is_better(select) else -1.0
        for i, c in enumerate(node.choice.candidates):
            if isinstance(select, Threshold | First):
                found[c.score] = select.at + sign * (i - n / 2 + 0.25)
            elif node.choice.shape == "convex":
                found[c.score] = -sign * abs(i - GOLDEN * (n - 1) - 0.1)
            else:
                found[c.score] = sign * i if node.choice.shape == "monotone" else found.get(c.score, 0.0)
            if k in found:
                found[c.value] = found[k]
    return found
