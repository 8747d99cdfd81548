"""The course of a run: what happened goes in, what to do comes out. No clock, no processes, no files.

    course = Course(graph, known)
    course.next_jobs(room) -> jobs to submit, best first      course.done(event), course.failed(event)      what came of them
    course.take_released() -> results nobody needs any more

The real engines and the simulator drive the same course. Tasks run on demand: a result asked for asks for what it needs, a
choose asks for the scores that its judge wants, in the depth-first order of `order.py`; a task is handed out as soon as all it
needs has been handed out. So a branch that a choose never wants is never run.

A result is held while somebody may still read it: `refs` counts the readers left (calls not yet run, chooses it may win,
results asked for). Readers vanish when they have run, lost, or failed; at zero the result is released, a task under way
is cancelled, a task that never ran is pruned, and with it whatever only it would have read. Every event costs O(edges it
touches), the whole run O(nodes + edges) log nodes: a call that has to wait sleeps until a task ends. Where memory is limited,
a result that is dropped costs O(results held).

Where memory is limited, `keep.py` says which result goes first when another one needs its place. A result that was
dropped is asked for again when its next reader comes: loaded, if the store has it and that is quicker, or computed anew.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from partita.dataflow.graph import Choice, FlowGraph, Node, Slot
from partita.dataflow.keys import Memo, Ref, key_of
from partita.dataflow.plan.events import Done, Failure, Job, Limits, State, View, Worth, flat, mapped
from partita.dataflow.plan.judge import Judge, judging
from partita.dataflow.plan.keep import Holding, cheapest, recompute_s
from partita.dataflow.plan.order import depth_first
from partita.errors import InternalError

DROPS = 0.5  #: results dropped a task, before the limit of memory is widened
WIDER = 1.25
RESULTS = -1  #: stands for whoever reads the results of the flow


@dataclass
class Judged:
    """What is known of one choose, and what it still reads."""

    judge: Judge
    value_edges: set[int]  #: candidates that may still be kept
    score_edges: set[int]  #: candidates whose score it may still read
    failed: dict[int, str] = field(default_factory=dict)
    lost: dict[int, str] = field(default_factory=dict)
    kept: tuple[int, ...] | None = None
    contradiction: str = ""
    asked: bool = False
    outstanding: dict[int, None] = field(default_factory=dict)  #: candidates whose score was asked for and has not come
    anew: bool = False  #: whether those are to be asked for again

    @property
    def scores(self) -> Mapping[int, float]:
        return self.judge.scores


@dataclass
class Course:
    """The state of one run."""

    graph: FlowGraph
    known: Container[str] = ()  #: keys whose results the store has
    numbers: Mapping[str, float] = field(default_factory=dict)  #: keys whose results are these
    limits: Limits = field(default_factory=Limits)
    worth: Worth = lambda node: (0.0, 0.0)

    def __post_init__(self) -> None:
        n = len(self.graph)
        self.place: list[int] = depth_first(self.graph, scouts=math.isinf(self.limits.memory_bytes)).tolist()
        self.state = [State.IDLE] * n
        self.refs = [len(c) for c in self.graph.consumers]
        self.holds = [True] * n  #: whether it counts as a reader of what it needs
        self.turn = [0] * n
        self.urgency = list(self.place)  #: place in the order of who asked
        self.pins = [0] * n  #: tasks under way that read it
        self.size = [0.0] * n  #: bytes, where it is held
        self.ran: list[Done | None] = [None] * n
        self.loaded = [False] * n
        self.times_run = [0] * n
        self.reason: dict[int, str] = {}
        self.cancelled: set[int] = set()
        self.borrowed: set[int] = set()  #: calls whose number was known from another one
        self.twin: dict[int, int] = {}  #: a call that turned out to be another one
        self.twins: dict[int, list[int]] = {}
        self.judged = {
            k: Judged(
                judging(n.choice, self.limits.ahead),
                set(range(len(n.choice.candidates))),
                set(range(len(n.choice.candidates))),
            )
            for k, n in enumerate(self.graph.nodes)
            if n.choice
        }
        #: [n] of (choose, candidate, whether as its score)
        self.roles: list[list[tuple[int, int, bool]]] = [[] for _ in range(n)]
        for k in self.judged:
            for i, c in enumerate(self.choice(k).candidates):
                self.roles[c.value].append((k, i, False))
                self.roles[c.score].append((k, i, True))
        self.after_choice = self._after_choice()
        self.by_key = {node.key: k for k, node in enumerate(self.graph.nodes)}
        self.memo = Memo()
        self.queue: list[
            tuple[int, int]
        ] = []  #: heap of (urgency, call) to hand out; some no longer wanted, some twice
        self.queue_at_once: list[tuple[int, int]] = []  #: those whose inputs are there, or were not looked at yet
        self.asleep: dict[int, list[int]] = {}  #: task under way -> calls that wait for its end
        self.blocked: dict[int, list[int]] = {}  #: node -> calls that wait for it
        self.blockers: dict[int, Iterator[int]] = {}
        self.released: list[tuple[int, int]] = []
        self.held_bytes = 0.0
        self.peak_bytes = 0.0
        self.running = 0
        self.suspects: set[int] = set()  #: calls that may have killed their workers
        self.underway_bytes = 0.0
        self.promised = [0.0] * n  #: bytes that a task under way was expected to give
        self.sized: set[int] = set()  #: steps of which it was seen what their results take
        self.first: dict[int, int] = {}  #: step -> its task that is to show that
        self.unjudged: list[int] = []
        self.held: dict[int, None] = {}  #: calls whose result is in memory, the oldest first
        self.stretch = 1.0  #: by how much the limit of memory was widened, because nothing would have gone on within it
        self.seen_together: set[int] = set()  #: readers of which it is known how much they read at once
        self.forgets = False  #: whether some result was dropped or lost
        self.dropped = 0  #: results let go of for want of memory that were needed again
        self.stored: dict[str, bool] = {}  #: key -> whether the store had it when it was asked
        self.unstored: set[str] = set()  #: keys that the store turned out not to have
        self.resolved: dict[int, str] = {}  #: keys of calls after a decided choose
        self.open_sinks = [sink for _, sink in self.graph.sinks]
        self.is_sink = set(self.open_sinks)
        self.results: set[int] = set()  #: calls whose results the flow gives, as far as they were there: never dropped
        for _, sink in self.graph.sinks:
            self.refs[sink] += 1
        for _, sink in self.graph.sinks:
            self._demand(sink)
        self._judge_all()

    # ---- for the engine ---------------------------------------------------------------------------------------------------

    def finished(self) -> bool:
        """Every result asked for is there, or lost for good."""
        while self.open_sinks and (self.state[self.open_sinks[-1]] == State.FAILED or self._there(self.open_sinks[-1])):
            sink = self.open_sinks.pop()
            if self.state[sink] != State.FAILED:
                self.results.update(flat(self.view(sink)))
        return not self.open_sinks

    def next_jobs(self, room: int, at_once: bool = False) -> list[Job]:
        """Up to `room` tasks, the best first; fewer where memory does not allow more. `at_once`: only those whose inputs are there.

        What may kill its worker comes when there is nothing else to do, by itself: it could only take others with it.
        """
        if any(self.state[n] == State.RUNNING for n in self.suspects):
            return []
        queue = self.queue_at_once if at_once else self.queue
        jobs: list[Job] = []
        later: list[tuple[int, int]] = []
        while queue and len(jobs) < room:
            _, node = heapq.heappop(queue)
            if self.state[node] != State.WAITING or not self._unblocked(node):
                continue
            key = self.key(node)
            kind: Literal["compute", "load"] = "load" if self._better_loaded(node, key) else "compute"
            if kind == "compute" and self._is_twin(node, key):
                continue
            if node in self.suspects:
                later.append((self.urgency[node], node))
                continue
            underway = self._underway_first(node, at_once and kind == "compute")
            if underway is not None:
                self.asleep.setdefault(underway, []).append(node)
                continue
            if not self._fits(node, kind):
                later.append((self.urgency[node], node))
                break
            jobs.append(self._hand_out(node, kind, key))
        suspected = [entry for entry in later if entry[1] in self.suspects]
        if suspected and not jobs and not self.running:
            jobs.append(self._by_itself(min(suspected)[1]))
        for entry in later:
            heapq.heappush(queue, entry)
        return jobs

    def _by_itself(self, suspect: int) -> Job:
        key = self.key(suspect)
        kind: Literal["compute", "load"] = "load" if self._better_loaded(suspect, key) else "compute"
        self._fits(suspect, kind)
        return self._hand_out(suspect, kind, key)

    def _underway_first(self, node: int, inputs: bool) -> int | None:
        """A task under way that a ready call has to wait for: one of its `inputs`; or, where memory is limited, the first task
        of its step, which shows what its results take."""
        step = self.graph.nodes[node].step
        first = self.first.get(step)
        if first is not None and step not in self.sized and not math.isinf(self.limits.memory_bytes) and self.state[first] == State.RUNNING:  # fmt: skip
            return first
        needs = self.graph.nodes[node].needs if inputs else ()
        return next((n for need in needs for n in flat(self.view(need)) if self.state[n] != State.HELD), None)

    def done(self, event: Done) -> None:
        """A task has run. Events of tasks that were cancelled since, or came twice, change nothing."""
        node = event.node
        if event.turn != self.turn[node] or self.state[node] not in (State.RUNNING, State.HELD):
            return
        if self.state[node] == State.HELD:  # its worker died, and it was run again
            self.times_run[node] += not self.loaded[node]
            return
        self.ran[node] = event
        self.times_run[node] += not self.loaded[node]
        self.sized.add(self.graph.nodes[node].step)
        if event.stored:
            self.stored[self.key(node)] = True
        self._landed(node)
        self.state[node] = State.HELD
        self.held[node] = None
        self.size[node] = event.size_bytes
        self.held_bytes += event.size_bytes
        self.peak_bytes = max(self.peak_bytes, self.held_bytes)
        self._let_go_of_needs(node)
        self._arrived(node)
        if self.refs[node] == 0:
            self._unneeded(node)
        self._judge_all()

    def failed(self, event: Failure) -> None:
        """A task has raised: its branch is lost, the others go on. One that was there may have run again, its worker having died."""
        if event.turn != self.turn[event.node] or self.state[event.node] not in (State.RUNNING, State.HELD):
            return
        if self.state[event.node] == State.HELD:
            self._forget(event.node)
            self.released.append((event.node, event.turn))
            self.state[event.node] = State.IDLE
        self.ran[event.node] = Done(event.node, event.turn, event.started_s, event.ended_s, event.worker, 0.0)
        self._fail(event.node, event.reason)
        self._judge_all()

    def absent(self, node: int, turn: int) -> None:
        """A result cannot be loaded: the store's file is gone or damaged."""
        self.unstored.add(self.key(node))
        self.lost(node, turn)

    def lost(self, node: int, turn: int) -> None:
        """A task's result cannot be had after all: its worker died, or the scheduler forgot it."""
        if turn != self.turn[node] or self.state[node] not in (State.RUNNING, State.HELD):
            return
        self.forgets = True
        if node in self.results:  # it was there, and is to be brought again
            self.results.discard(node)
            self.open_sinks = [sink for _, sink in self.graph.sinks]
        if self.state[node] == State.RUNNING:
            self._landed(node)
        else:
            self._forget(node)
        self.released.append((node, turn))
        self.state[node] = State.IDLE
        self._hold_needs(node)
        self._demand(node)
        self._judge_all()

    def suspected(self, node: int, turn: int) -> None:
        """A task's worker died, again and again: it is lost, and it may be why."""
        self.suspects.add(node)
        self.lost(node, turn)

    def _forget(self, node: int) -> None:
        """A result is in memory no longer."""
        self.held_bytes -= self.size[node]
        self.held.pop(node, None)

    def take_released(self) -> list[tuple[int, int]]:
        """(node, turn) of results and tasks under way that nobody needs; each is told once."""
        told, self.released = self.released, []
        return told

    def view(self, node: int) -> View:
        """The calls that a node stands for; only where all chooses in it are decided."""
        node = self._real(node)
        found = self.graph.nodes[node]
        if found.kind == "call":
            return node
        if found.kind == "gather":
            return [self.view(n) for n in found.needs]
        kept = self.judged[node].kept
        assert kept is not None
        assert found.choice is not None
        winners = [self.view(found.choice.candidates[i].value) for i in kept]
        return winners[0] if found.choice.select.single else winners

    def options_of(self, node: int) -> dict[str, str]:
        """All options that led to a result, those of decided chooses with it: where a task is on several branches, those of the
        nearest choose. O(nodes it depends on)."""
        options: dict[str, str] = {}
        seen: set[int] = set()
        waiting = [node]
        while waiting:
            k = self._real(waiting.pop())
            if k in seen:
                continue
            seen.add(k)
            found = self.graph.nodes[k]
            if found.choice is None:
                options = options if found.kind == "gather" else {**found.options, **options}
                waiting += found.needs
                continue
            kept = self.judged[k].kept or ()
            options = {**found.options, **options}
            if len(kept) == 1:
                winner = found.choice.candidates[kept[0]]
                options = {**winner.options, **options}
                waiting.append(winner.value)
        return options

    # ---- demand -----------------------------------------------------------------------------------------------------------

    def _demand(self, node: int, urgency: int | None = None) -> None:
        """Ask for a result, and so for what it needs.

        What runs for the first time has its own place in the order; what has run and was dropped has that of who asks.
        """
        waiting = [(node, self.place[node] if urgency is None else urgency)]
        while waiting:
            k, asked = waiting.pop()
            k = self._real(k)
            if self.state[k] not in (State.IDLE, State.OUT):
                if self.forgets and self.state[k] == State.WAITING:
                    # what it stands for may have been dropped meanwhile
                    waiting += [(n, asked) for n in self._stands_for(k)]
                continue
            if self.state[k] == State.OUT:
                self._hold_needs(k)
            found = self.graph.nodes[k]
            self.state[k] = State.WAITING
            self.urgency[k] = max(asked, self.place[k]) if self.turn[k] else self.place[k]
            if found.choice is not None:
                self.judged[k].asked = True
                self.unjudged.append(k)
                if self.judged[k].kept is not None:
                    waiting += [(w, asked) for w in self._winners(k)]
                continue
            if found.kind == "call":
                if not self.after_choice[k] and self._number_known(k, found.key):
                    continue
                if not self.after_choice[k] and self._better_loaded(k, found.key):
                    self._let_go_of_needs(k)  # nothing upstream is read
                    self._ready(k)
                    continue
                self._retry(k, ask=False)
            waiting += [(n, self.urgency[k]) for n in reversed(found.needs)]

    def _stands_for(self, node: int) -> Sequence[int]:
        """The nodes in whose place a list or a decided choose stands."""
        found = self.graph.nodes[node]
        if found.kind == "gather":
            return found.needs
        return self._winners(node) if found.choice is not None else ()

    def _retry(self, call: int, ask: bool = True) -> None:
        """Look at what a call still waits for; hand it on when that is nothing. `ask` for it, where it was dropped meanwhile."""
        blockers = self.blockers.get(call)
        if blockers is None:
            blockers = self.blockers[call] = self._missing(call)
        for missing in blockers:
            self.blocked.setdefault(missing, []).append(call)
            if ask and self.state[missing] in (State.IDLE, State.OUT):
                self._demand(missing, self.urgency[call])
            return
        del self.blockers[call]
        self._ready(call)

    def _missing(self, call: int) -> Iterator[int]:
        """The nodes that keep a call from being handed out, one at a time, each until it does no longer."""
        for need in self.graph.nodes[call].needs:
            yield from self._missing_of(need)

    def _missing_of(self, need: int) -> Iterator[int]:
        while True:
            node = self._real(need)
            found = self.graph.nodes[node]
            if found.kind == "gather":
                for n in found.needs:
                    yield from self._missing_of(n)
                return
            if found.choice is not None:
                while self.judged[node].kept is None:
                    yield node
                for winner in self._winners(node):
                    yield from self._missing_of(winner)
                return
            if self.state[node] in (State.RUNNING, State.HELD):
                return
            yield node

    def _ready(self, node: int) -> None:
        heapq.heappush(self.queue, (self.urgency[node], node))
        heapq.heappush(self.queue_at_once, (self.urgency[node], node))

    def _wake(self, node: int) -> None:
        """Those that waited for a node look again."""
        for call in self.blocked.pop(node, ()):
            if self.state[call] == State.WAITING and call in self.blockers:
                self._retry(call)

    def _unblocked(self, node: int) -> bool:
        """Whether what a ready call needs is still there; asks for it again where it was dropped meanwhile."""
        if not self.holds[node]:
            return True  # to be loaded
        missing = next(self._missing(node), None)
        if missing is None:
            return True
        self._retry(node)
        for need in self.graph.nodes[node].needs:
            self._demand_view(need, self.urgency[node])
        self._judge_all()
        return False

    def _demand_view(self, node: int, urgency: int) -> None:
        """Ask for what a node stands for, through decided chooses and lists."""
        node = self._real(node)
        found = self.graph.nodes[node]
        if found.kind == "gather":
            for n in found.needs:
                self._demand_view(n, urgency)
        elif found.choice is not None and self.judged[node].kept is not None:
            for w in self._winners(node):
                self._demand_view(w, urgency)
        else:
            self._demand(node, urgency)

    def _hand_out(self, node: int, kind: Literal["compute", "load"], key: str) -> Job:
        found = self.graph.nodes[node]
        self.state[node] = State.RUNNING
        self.turn[node] += 1
        self.running += 1
        self.loaded[node] = kind == "load"
        if kind == "load":
            self._let_go_of_needs(node)
        inputs = tuple(self.view(n) for n in found.needs) if kind == "compute" else ()
        for n in flat(inputs):
            self.pins[n] += 1
        self.promised[node] = 0.0 if math.isinf(self.limits.memory_bytes) else self.worth(node)[1]
        if found.step not in self.sized:
            self.first[found.step] = node
        self.underway_bytes += self.promised[node]
        self._wake(node)
        for twin in self.twins.get(node, ()):
            self._wake(twin)
        return Job(node, self.turn[node], kind, key, inputs, self.urgency[node])

    def _landed(self, node: int) -> None:
        """A task is no longer under way."""
        self.running -= 1
        self.underway_bytes -= self.promised[node]
        if not self.loaded[node]:
            for n in flat(tuple(self.view(n) for n in self.graph.nodes[node].needs)):
                self.pins[n] -= 1
        for call in self.asleep.pop(node, ()):
            self._ready(call)

    # ---- readers ----------------------------------------------------------------------------------------------------------

    def _let_go_of_needs(self, node: int) -> None:
        if self.holds[node]:
            self.holds[node] = False
            for need in self.graph.nodes[node].needs:
                self._let_go(need)

    def _let_go(self, node: int) -> None:
        """One reader less."""
        self.refs[node] -= 1
        if self.refs[node] == 0:
            self._unneeded(node)

    def _unneeded(self, node: int) -> None:
        """Nobody will read it: release, cancel or prune it, and let go of what only it would have read."""
        waiting = [node]
        while waiting:
            k = waiting.pop()
            state = self.state[k]
            if self.refs[k] > 0 or state in (State.OUT, State.FAILED):
                continue
            if k in self.twin:
                self.state[k] = State.OUT
                waiting += self._one_less(self.twin[k])
                continue
            if state == State.RUNNING:
                self._landed(k)
                self.cancelled.add(k)
            if state == State.HELD:
                self._forget(k)
            if state in (State.RUNNING, State.HELD) and self.graph.nodes[k].kind == "call":
                self.released.append((k, self.turn[k]))
            self.state[k] = State.OUT
            for need in self._edges(k):
                waiting += self._one_less(need)
            self.holds[k] = False

    def _one_less(self, node: int) -> list[int]:
        self.refs[node] -= 1
        return [node] if self.refs[node] == 0 else []

    def _edges(self, node: int) -> list[int]:
        """What a node that is let go of was still a reader of."""
        found = self.graph.nodes[node]
        if not self.holds[node]:
            return []
        if found.choice is None:
            return list(found.needs)
        j, candidates = self.judged[node], found.choice.candidates
        return [candidates[i].value for i in j.value_edges] + [candidates[i].score for i in j.score_edges]

    def _hold_needs(self, node: int) -> None:
        """Become a reader of what it needs again, after its result was let go of; a choose, of what it still compares."""
        waiting = [node]
        while waiting:
            k = waiting.pop()
            if self.holds[k]:
                continue
            if k in self.judged:
                self.judged[k].anew = True
            self.holds[k] = True
            for need in self._edges(k):
                waiting += self._one_more(need)

    def _one_more(self, node: int) -> list[int]:
        """One reader more; the node, where it had been let go of and has to hold again what it needs."""
        self.refs[node] += 1
        if self.state[node] != State.OUT:
            return []
        self.state[node] = State.IDLE
        if node in self.twin:  # what it stood for may be gone too
            self.twins[self.twin.pop(node)].remove(node)
        return [node]

    # ---- what came --------------------------------------------------------------------------------------------------------

    def _arrived(self, node: int) -> None:
        """A result is there: its scores count, those that waited go on."""
        alike = [node, *self.twins.get(node, ())]
        for k in alike:
            self._wake(k)
        self._count_as_score(alike, node)

    def _count_as_score(self, stands: Sequence[int], call: int) -> None:
        """The number of a call that is there is the score wherever one of the nodes `stands`, which stand for it, is to be one; so
        it is where a decided choose whose winner they are is to be one."""
        event, waiting = self.ran[call], list(stands)
        while waiting and event is not None:
            for choose, i, as_score in self.roles[waiting.pop(0)]:
                if as_score:
                    self._score(choose, i, event.value)
                elif self.judged[choose].kept == (i,):
                    waiting.append(choose)

    def _there_for(self, node: int) -> int | None:
        """The one call that a node stands for, where that is decided and its result is there."""
        node = self._real(node)
        while self.graph.nodes[node].choice is not None and len(winners := self._winners(node)) == 1:
            node = self._real(winners[0])
        return node if self.graph.nodes[node].kind == "call" and self.state[node] == State.HELD else None

    def _score(self, choose: int, i: int, value: float | None) -> None:
        j = self.judged[choose]
        if i in j.scores or i in j.failed or self.state[choose] in (State.OUT, State.FAILED):
            return
        if value is None or not math.isfinite(value):
            self._fail_candidate(
                choose, i, f"its score is {'no number' if value is None else f'not finite ({value:g})'}"
            )
            return
        j.outstanding.pop(i, None)
        j.judge.add(i, value)
        self.unjudged.append(choose)
        self._let_go_of(choose, i, j.score_edges)

    def _lose(self, choose: int, i: int, why: str) -> None:
        """A candidate cannot be kept any more: its data, and what only it needs, go."""
        j = self.judged[choose]
        j.lost[i] = why
        j.outstanding.pop(i, None)
        self._let_go_of(choose, i, j.value_edges)
        self._let_go_of(choose, i, j.score_edges)

    def _take_back(self, choose: int, i: int) -> None:
        """A candidate that had lost is kept after all, since those before it failed."""
        j, value = self.judged[choose], self.choice(choose).candidates[i].value
        if i not in j.value_edges:
            j.value_edges.add(i)
            for k in self._one_more(value):
                self._hold_needs(k)

    def _let_go_of(self, choose: int, i: int, edges: set[int]) -> None:
        """A choose reads a candidate, or its score, no longer."""
        if i in edges:
            edges.remove(i)
            candidate, j = self.choice(choose).candidates[i], self.judged[choose]
            self._let_go(candidate.value if edges is j.value_edges else candidate.score)

    def _judge_all(self) -> None:
        """Judge every choose about which something new is known, until nothing follows from it any more."""
        while self.unjudged:
            choose = self.unjudged.pop()
            j = self.judged[choose]
            if self.state[choose] not in (State.OUT, State.FAILED) and j.kept is None:
                self._judge(choose)

    def _judge(self, choose: int) -> None:
        choice, j = self.choice(choose), self.judged[choose]
        verdict = j.judge.verdict()
        j.contradiction = verdict.contradiction
        for i, why in verdict.lost.items():
            self._lose(choose, i, why)
        j.outstanding |= dict.fromkeys(verdict.wanted)
        if not j.asked:
            j.anew = True
            return
        if verdict.kept is None:
            asked, j.anew = list(j.outstanding) if j.anew else verdict.wanted, False
            for i in asked:
                score = choice.candidates[i].score
                self._demand(score)
                if (call := self._there_for(score)) is not None and (event := self.ran[call]) is not None:
                    self._score(choose, i, event.value)
            return
        if not verdict.kept:
            told = next(iter(j.failed.values()), f"no score is {choice.select}")
            self._fail(choose, f"{choice.name}: nothing is kept: {told}")
            return
        j.kept = verdict.kept
        for i in verdict.kept:
            self._let_go_of(choose, i, j.score_edges)  # kept without a score
            self._take_back(choose, i)
        for w in self._winners(choose):
            self._demand_view(w, self.place[choose])
        self._wake(choose)
        if (call := self._there_for(choose)) is not None:
            self._count_as_score([choose], call)

    def _fail(self, node: int, reason: str) -> None:
        """A node is lost, and with it all calls that need it; a choose loses a candidate."""
        waiting, lost = [(node, reason)], list[tuple[int, str]]()
        while waiting:
            k, why = waiting.pop()
            state = self.state[k]
            if state in (State.FAILED, State.OUT) or (state == State.HELD and self.graph.nodes[k].kind == "call"):
                continue
            self.reason[k] = why
            if state == State.RUNNING:
                self._landed(k)
                self.released.append((k, self.turn[k]))
            edges = self._edges(k)
            self.state[k] = State.FAILED
            self.holds[k] = False
            for need in edges:
                self._let_go(need)
            self.blocked.pop(k, None)
            for t in self.twins.get(k, ()):
                waiting.append((t, why))
            lost.append((k, why))
            for consumer in self.graph.consumers[k]:
                if self.graph.nodes[consumer].choice is None:
                    waiting.append((consumer, why))
        for k, why in lost:  # last, since they let go of what failed with it
            for choose, i, _ in self.roles[k]:
                self._fail_candidate(choose, i, why)

    def _fail_candidate(self, choose: int, i: int, why: str) -> None:
        j = self.judged[choose]
        if i in j.failed or self.state[choose] in (State.OUT, State.FAILED):
            return
        j.failed[i] = why
        j.outstanding.pop(i, None)
        self._let_go_of(choose, i, j.value_edges)
        self._let_go_of(choose, i, j.score_edges)
        if j.kept is not None and i in j.kept:
            self._fail(choose, why)
        elif j.kept is None:
            j.judge.fail(i)
            self.unjudged.append(choose)

    # ---- keys and twins ---------------------------------------------------------------------------------------------------

    def _after_choice(self) -> list[bool]:
        """[n] whether a choose stands upstream, so that its key is known only when that is decided."""
        after = [False] * len(self.graph)
        for k, node in enumerate(self.graph.nodes):
            after[k] = any(after[n] or self.graph.nodes[n].choice is not None for n in node.needs)
        return after

    def key(self, node: int) -> str:
        """The key by content: a choose stands for its winner. Of a call that reads a winner it is known when that is."""
        found = self.graph.nodes[node]
        if not self.after_choice[node]:
            return found.key
        if node not in self.resolved:
            step = self.graph.steps[found.step]
            told = {n: self._told(a, found) for n, a in found.arguments}
            self.resolved[node] = key_of(step.function, told, step.version, self.memo)
        return self.resolved[node]

    def _told(self, argument: Any, node: Node) -> Any:
        if isinstance(argument, Slot):
            return self._ref(node.needs[argument.place])
        if type(argument) in (list, tuple):
            return type(argument)(self._told(x, node) for x in argument)
        if type(argument) is dict:
            return {k: self._told(x, node) for k, x in argument.items()}
        return argument

    def _ref(self, need: int) -> Any:
        found = self.graph.nodes[need]
        if not (self.after_choice[need] or found.choice):
            return Ref(found.key)
        return mapped(self.view(need), lambda n: Ref(self.key(n)))

    def _better_loaded(self, node: int, key: str) -> bool:
        if key not in self.stored:  # asking the store is asking the disk
            self.stored[key] = self.graph.lasting[node] and key in self.known
        return self.stored[key] and key not in self.unstored

    def _is_twin(self, node: int, key: str) -> bool:
        """Whether a call is one that runs elsewhere in the flow, now that its inputs are known; then it stands for that."""
        if not self.after_choice[node]:
            return False
        if self._number_known(node, key):
            self._judge_all()
            return True
        other = self.by_key.setdefault(key, node)
        if other == node or self.graph.nodes[other].kind != "call":
            return False
        event = self.ran[other]
        if (
            self.state[other] in (State.OUT, State.IDLE)
            and event is not None
            and self._only_scores(node)
            and other not in self.reason
        ):
            self.ran[node], self.state[node], self.size[node] = event, State.HELD, 0.0  # its number is known
            self.borrowed.add(node)
            self._let_go_of_needs(node)
            self._arrived(node)
            self._judge_all()
            return True
        if self.state[other] not in (State.HELD, State.RUNNING, State.WAITING):
            return False
        self.refs[other] += 1
        self.twin[node] = other
        self.twins.setdefault(other, []).append(node)
        self._let_go_of_needs(node)
        self.state[node] = State.WAITING
        if self.state[other] in (State.HELD, State.RUNNING):
            self._wake(node)
        if self.state[other] == State.HELD:
            self._count_as_score([node], other)
            self._judge_all()
        return True

    def _number_known(self, node: int, key: str) -> bool:
        """Whether all that anybody wants of a call is a number that an earlier run left; then it has arrived."""
        value = self.numbers.get(key)
        if value is None or not self._only_scores(node) or not self.graph.lasting[node]:
            return False
        self.ran[node], self.state[node], self.loaded[node] = Done(node, 0, 0.0, 0.0, "", 0.0, value), State.HELD, True
        self._let_go_of_needs(node)
        self._arrived(node)
        return True

    def _only_scores(self, node: int) -> bool:
        return node not in self.is_sink and bool(self.roles[node]) and len(self.graph.consumers[node]) == len(self.roles[node]) and all(s for *_, s in self.roles[node])  # fmt: skip

    def _real(self, node: int) -> int:
        while node in self.twin:
            node = self.twin[node]
        return node

    # ---- memory -----------------------------------------------------------------------------------------------------------

    def _fits(self, node: int, kind: str) -> bool:
        """Whether there is room for another result; drops what is worth least until there is. Something always runs."""
        limit = self.limits.memory_bytes * self.stretch
        if math.isinf(limit):
            return True
        if self.dropped > DROPS * self.stretch * (10 + self.graph.tasks):
            # too little for its widest tasks: it would go in circles
            self.stretch *= WIDER
        wanted = self.worth(node)[1]
        inputs = set(flat(tuple(self.view(n) for n in self.graph.nodes[node].needs))) if kind == "compute" else set()
        while self.held_bytes + self.underway_bytes + wanted > limit:
            held = [
                k
                for k in self.held
                if not self.pins[k] and self.size[k] > 0 and not (k in inputs or k in self.is_sink or k in self.results)
            ]
            later = [k for k in held if self._next_use(k) > self.urgency[node]]
            if not later and self.running:
                return False  # what is needed sooner stays; something will end
            victim = cheapest([self._holding(k) for k in later or held])
            if victim is None:
                return True  # it alone is too large
            together = self._together(victim)
            if together > limit:
                self.stretch = WIDER * together / self.limits.memory_bytes
                limit = WIDER * together
                continue
            self._drop(victim)
        return True

    def _together(self, node: int) -> float:
        """Bytes that must be in memory at once for one of those that read a result, at most: within less, what it reads would
        drive out each other. Each reader is looked at once, when all is known."""
        widest = 0.0
        for reader in self._read_by(node):
            reads = self.graph.nodes[reader].needs if reader != RESULTS else [s for _, s in self.graph.sinks]
            leaves = {leaf for n in reads for leaf in self._leaves(n)}
            widest = max(widest, sum(self.size[k] if self.state[k] == State.HELD else self.worth(k)[1] for k in leaves))
            if all(self.graph.nodes[k].kind == "call" and self.graph.nodes[k].step in self.sized for k in leaves):
                self.seen_together.add(reader)
        return widest

    def _read_by(self, node: int) -> set[int]:
        """The calls that read a result, directly or through lists and decided chooses, and were not looked at yet; or `RESULTS`."""
        found: set[int] = set()
        waiting = [node, *self.twins.get(node, ())]
        while waiting:
            k = waiting.pop()
            found |= {RESULTS} if k in self.is_sink else set()
            for c in self.graph.consumers[k]:
                if self.graph.nodes[c].kind == "call":
                    found.add(c)
                elif self.graph.nodes[c].choice is None or k in self._winners(c):
                    waiting.append(c)
        return found - self.seen_together

    def _leaves(self, node: int) -> Iterator[int]:
        """The calls in whose place a node stands, as far as that is decided; an undecided choose stands for itself."""
        node = self._real(node)
        stands_for = self._stands_for(node)
        if not stands_for:
            yield node
        for n in stands_for:
            yield from self._leaves(n)

    def _next_use(self, node: int) -> int:
        """The place in the order of the next one that reads it."""
        readers = [r for k in (node, *self.twins.get(node, ())) for r in self.graph.consumers[k]]
        return min(
            (self.place[r] for r in readers if self.state[r] in (State.IDLE, State.WAITING)), default=len(self.place)
        )

    def _holding(self, node: int) -> Holding:
        stored = self._better_loaded(node, self.key(node))
        needs = lambda k: (leaf for n in self.graph.nodes[k].needs for leaf in self._leaves(n))  # noqa: E731
        again = recompute_s(node, needs, lambda k: self.worth(k)[0], lambda k: self.state[k] == State.HELD)
        return Holding(node, self.size[node], self.refs[node], again, stored)

    def _drop(self, node: int) -> None:
        """Let go of a result that will be needed again."""
        self._forget(node)
        self.released.append((node, self.turn[node]))
        self.state[node] = State.IDLE
        self.dropped += 1
        self.forgets = True
        self._hold_needs(node)

    # ---- short ------------------------------------------------------------------------------------------------------------

    def choice(self, node: int) -> Choice:
        """Of a choose."""
        choice = self.graph.nodes[node].choice
        if choice is None:
            raise InternalError(f"node {node} is no choose")
        return choice

    def _winners(self, node: int) -> list[int]:
        return [self.choice(node).candidates[i].value for i in self.judged[node].kept or ()]

    def _there(self, node: int) -> bool:
        node = self._real(node)
        found = self.graph.nodes[node]
        if found.kind == "call":
            if self.state[node] in (State.IDLE, State.OUT):  # dropped for want of memory
                self._demand(node)
            return self.state[node] == State.HELD
        if found.kind == "gather":
            return all(self._there(n) for n in found.needs)
        return self.judged[node].kept is not None and all(self._there(w) for w in self._winners(node))
