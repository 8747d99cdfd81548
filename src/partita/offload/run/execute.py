"""The device: job after job by a plan, over a connection to the server.

One thread computes and decides; the connection's threads send and receive meanwhile. All state is this one thread's: what the
others see comes as events, between jobs. A job is done when its first answer is there, from wherever; later ones are
dropped, so that no job is answered twice. When the connection is lost, the jobs under way go back in front and the
device computes them whole, until it is up again.

Sessions of all planned halves are built and run once before the clock starts, here and on the server.
"""

from __future__ import annotations

import contextlib
import os
import queue
import statistics
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from partita.errors import PartitaError, PlanError, refuse, sentence_of
from partita.nouns.offload import OffloadJob, OffloadLink, OffloadPlan, OffloadProblem, OffloadSpeeds
from partita.offload.capture.onnx_model import OnnxModel
from partita.offload.measure.speed import Sightings, Speedometer
from partita.offload.onnx_session import Session
from partita.offload.plan.lower import part_times, simulate_offload
from partita.offload.plan.online import Decision, State, Waiting
from partita.offload.run.client import Client
from partita.offload.run.codec import Codec
from partita.offload.run.connection import Connection, Event, Parcel
from partita.offload.run.corrections import Corrections
from partita.offload.run.link_rate import RateEstimate
from partita.offload.run.own_halves import OwnHalves
from partita.offload.run.record import Interval, JobTimes, OffloadRun, timeline_of
from partita.offload.run.wire import Array

Replan = Callable[[OffloadProblem], OffloadPlan]
Decide = Callable[[State], Decision | None]

_TICK_S = 0.25  #: how often the device looks up while it waits
_MOMENT_S = 5e-3
_SPARE = 3.0  #: times its expected duration that a transfer may take on top of the patience


@dataclass(frozen=True, slots=True)
class RunSettings:
    """How a run behaves."""

    codec: Codec = "raw"
    replan: Replan | None = None  #: None: the plan stays as it is
    policy: Callable[[OffloadProblem], Decide] | None = (
        None  #: made for a problem: which job is next; None: as the plan says
    )
    replan_share: float = (
        0.25  #: the distance of the rate, or of a side's speed, from the plan's that makes a new plan worth while
    )
    replan_s: float = 0.0  #: what a new plan takes on the clock: it is made where what is left takes ten times as long
    patience_s: float = 30.0  #: without a word from the server while it has jobs
    first_patience_s: float = 120.0  #: for the server to get ready at first
    say: Callable[[str], None] = field(default=lambda line: None)
    begin: Callable[[], None] = field(default=lambda: None)  #: called when all is ready, before the clock starts


@dataclass(slots=True)
class _Sent:
    """A job that the server has."""

    epoch: int
    attempt: int
    bytes: int = 0
    left_s: float | None = None  #: when its transfer began
    received: bool = False


def execute(
    problem: OffloadProblem,
    plan: OffloadPlan,
    models: Sequence[OnnxModel],
    inputs: Sequence[Mapping[str, Array]],
    connect: Callable[[], Client] | None,
    settings: RunSettings | None = None,
) -> OffloadRun:
    """Do all jobs; models and inputs are those of problem.jobs, one each. `connect` makes a client; None: no server.

    Raises PlanError where the plan is not for these jobs. Whatever happens to the server, every job is answered.
    """
    refuse(PlanError, plan.check(problem), "the plan", hint="plan again for these jobs")
    device = _Device(problem, plan, models, inputs, settings or RunSettings())
    try:
        device.get_ready(connect)
        device.settings.begin()
        return device.run()
    finally:
        device.close()


class _Device:
    """The state of one run."""

    def __init__(
        self,
        problem: OffloadProblem,
        plan: OffloadPlan,
        models: Sequence[OnnxModel],
        inputs: Sequence[Mapping[str, Array]],
        settings: RunSettings,
    ) -> None:
        n = len(problem.jobs)
        self.problem, self.plan, self.models, self.inputs, self.settings = problem, plan, models, inputs, settings
        self.todo = deque(plan.order)
        self.place = {j: k for k, j in enumerate(plan.order)}
        same: dict[frozenset[str], frozenset[str]] = {}  # equal cuts are one object: comparing them is quick then
        self.whole = [same.setdefault(w, w) for w in (frozenset(job.index) for job in problem.jobs)]
        self.cuts = [same.setdefault(c, c) for c in plan.cuts]
        self.wanted = [tuple(o.name for o in m.outputs) for m in models]
        self.halves = OwnHalves(problem, models)
        self.crossing: dict[int, dict[str, Array]] = {}  #: made by the device, kept until the job is answered
        self.made: dict[int, dict[str, Array]] = {}  #: outputs of the model that the device's half made
        self.sent: dict[int, _Sent] = {}
        self.outputs: dict[int, dict[str, Array]] = {}
        self.times = [JobTimes() for _ in range(n)]
        self.served: list[int] = []
        self.rate = RateEstimate(problem.link.up_bytes_per_s)
        self.round_trip_s = problem.link.round_trip_s
        self.uplink_free_s = self.downlink_free_s = 0.0
        self.heard_s = 0.0
        self.start_s = 0.0
        self.connection: Connection | None = None
        self.was_up = False
        self.said: set[str] = set()
        self.meter, self.here, self.there = Speedometer(), Sightings(), Sightings()
        speeds = problem.speeds
        #: CPU seconds of an inference behind which a probe counts
        self.behind_s, self.behind_there_s = (speeds.device.behind_s, speeds.server.behind_s) if speeds else (0.0, 0.0)
        self.corrections = Corrections()
        self.decide = settings.policy(problem) if settings.policy else None
        self.decided_by = problem  #: what the policy goes by
        self.counts = {"lost": 0, "refused": 0, "late": 0, "replans": 0, "connections": 0}

    # ---- before and after ---------------------------------------------------------------------------------------------

    def get_ready(self, connect: Callable[[], Client] | None) -> None:
        """Sessions here, the connection up and the server ready, or known to be out of reach."""
        for j, cut in enumerate(self.cuts):
            if not self._can_be_cut(j, cut):
                self.cuts[j] = self.whole[j]
            self.halves.planned_s(j, self.cuts[j])
        for j in {(m.hash, c): j for j, (m, c) in enumerate(zip(self.models, self.cuts, strict=True))}.values():
            session, _ = self.halves.of(j, self.cuts[j])
            if session is not None:
                session.run(self.inputs[j])
        halves = {
            (m.hash, c): (m, c) for m, c, all_ in zip(self.models, self.cuts, self.whole, strict=True) if c != all_
        }
        if connect is None or not (halves or self.settings.replan or self.settings.policy):
            return
        planned = {m.hash: m for m, _ in halves.values()}  # others go up where they are first wanted
        self.connection = Connection(connect, list(planned.values()), list(halves.values()), self.settings.codec)
        until = time.perf_counter() + self.settings.first_patience_s
        answered = False
        while not answered and time.perf_counter() < until:
            answered = self._hear(_TICK_S) in ("up", "down", "trouble")
        if not answered:
            self._say(f"the server was silent for {self.settings.first_patience_s:.0f} s: the device begins alone")

    def close(self) -> None:
        if self.connection is not None:
            self.connection.close()

    def run(self) -> OffloadRun:
        cpu_s, load = time.process_time(), os.getloadavg()[0]
        self.start_s = self.heard_s = time.perf_counter()
        while len(self.outputs) < len(self.cuts):
            self._hear_all()
            self._replan_if_drifted()
            j = self._next()
            if j is not None:
                self._do(j)
            else:
                self._hear(self._idle_s())
                self._watch()
        return self._result(time.process_time() - cpu_s, load)

    def _result(self, cpu_s: float, load: float) -> OffloadRun:
        jobs, order = self.problem.jobs, tuple(dict.fromkeys(self.served))
        facts: dict[str, Any] = {**self.counts, "cpu_s": cpu_s, "load": load, "up_bytes_per_s": self.rate.now}
        facts["round_trip_s"] = self.round_trip_s
        facts["corrections"] = self.corrections.facts({m.hash: m.name for m in self.models})
        facts |= self._at_speed()
        away = [t.server is not None for t in self.times]
        cuts = tuple(c if a else w for c, a, w in zip(self.cuts, away, self.whole, strict=True))
        plan = replace(self.plan, order=order, cuts=cuts)
        return OffloadRun(
            plan,
            timeline_of(self.problem, plan, self.times, facts),
            tuple(self.outputs[j] for j in range(len(jobs))),
            tuple(self.times),
            max(t.answered_s for t in self.times),
            tuple(t.answered_s - job.release_s for t, job in zip(self.times, jobs, strict=True)),
            cpu_s,
            facts,
        )

    def _at_speed(self) -> dict[str, Any]:
        """Both sides' speeds, and the makespan that the first plan has at them: what is off then is the model."""
        speeds, then = self._speeds(), self.problem.speeds
        expected_s = None
        if speeds and then:
            with contextlib.suppress(PartitaError):  # of speeds that no machine has: the jobs are answered all the same
                expected_s = simulate_offload(self.problem.at_speeds(speeds), self.plan).duration_s
        return {"speeds": asdict(speeds) if speeds else None, "predicted_at_run_speed_s": expected_s}

    def _speeds(self) -> OffloadSpeeds | None:
        """Of both sides during the run; what was not seen is as when the times were measured."""
        then = self.problem.speeds
        here = self.here.speed(then.device if then else None)
        there = self.there.speed(then.server if then else None)
        return OffloadSpeeds(here, there) if here and there else None

    # ---- computing ----------------------------------------------------------------------------------------------------

    def _now(self) -> float:
        return time.perf_counter() - self.start_s

    def _next(self) -> int | None:
        """The job to do now, taken from those to do; None while none has come, or the policy waits for the uplink."""
        seen = self.todo if self.decide else list(self.todo)[:1]
        come = [j for j in seen if self.problem.jobs[j].release_s <= self._now()]
        if not come:
            return None
        j = come[0]
        if self.decide is not None and self.connection is not None and self.connection.welcome is not None:
            begun = [k for k in come if k in self.crossing]
            if begun:
                j = begun[0]
            else:
                try:
                    decision = self.decide(self._state(come))
                    if decision is None and self.sent:
                        return None
                    if decision is not None:
                        j = come[decision.position]
                        self.cuts[j] = decision.cut
                except Exception as error:  # by the plan's cuts, as they come, all are answered, too
                    self._say(f"the policy failed: {sentence_of(error)}; the plan's cuts stay")
                    self.decide = None
        self.todo.remove(j)
        return j

    def _state(self, come: Sequence[int]) -> State:
        """What an online policy wants to know. The server's backlog is what it was sent and has not answered."""
        now, planned_rate = self._now(), self.decided_by.link.up_bytes_per_s
        rate = self.rate.now if self.rate.drifted(self.settings.replan_share) else self.rate.planned
        away = {j: self._asked(j) for j in self.sent}
        backlog_s = sum(server_s for _, server_s in away.values()) / self.problem.server_threads
        queued_s = sum(up_s for j, (up_s, _) in away.items() if not self.sent[j].received)
        return State(
            now,
            tuple(Waiting(j, self.problem.jobs[j].release_s) for j in come),
            now,
            now + queued_s * planned_rate / rate,
            (now + backlog_s,) * self.problem.server_threads,
            now,
            self._link(rate),
        )

    def _asked(self, j: int) -> tuple[float, float]:
        """What a job asks of uplink and server: seconds, as the policy has them."""
        one = replace(self.decided_by, jobs=(self.decided_by.jobs[j],))
        times, _ = part_times(one, replace(self.plan, order=(0,), cuts=(self.cuts[j],)))
        return float(times[0, 1]), float(times[0, 2])

    def _idle_s(self) -> float:
        """How long to wait for an event: until the next job comes, a moment where a policy waits for the uplink."""
        if not self.todo:
            return _TICK_S
        jobs = self.todo if self.decide else [self.todo[0]]
        left_s = min(self.problem.jobs[j].release_s for j in jobs) - self._now()
        return min(_TICK_S, left_s) if left_s > 0 else _MOMENT_S

    def _do(self, j: int) -> None:
        """The device's part of one job; the rest goes to the server where there is one."""
        self.served.append(j)
        there, cut = self.connection, self.cuts[j]
        if there is None or cut == self.whole[j] or not there.takes(self.models[j]):
            self._do_whole(j)
            return
        if j not in self.crossing:
            if not self._can_be_cut(j, cut):
                self._do_whole(j)
                return
            self._do_half(j, cut)
        if there.welcome is not None and not there.fits(self.crossing[j]):
            size = sum(t.nbytes for t in self.crossing[j].values())
            self._say(
                f"job {self.problem.jobs[j].name!r} would send {size} bytes, more than the server takes: the device does it"
            )
            self._do_whole(j)
            return
        self._send(there, j, cut)

    def _can_be_cut(self, j: int, cut: frozenset[str]) -> bool:
        why = self.halves.why_not(j, cut)
        if why:
            self._say(f"{why}; the device does those jobs whole")
        return why is None

    def _do_half(self, j: int, cut: frozenset[str]) -> None:
        session, names = self.halves.of(j, cut)
        made = self._infer(j, session, self.halves.planned_s(j, cut)[0]) if session is not None else {}
        there = {**self.inputs[j], **made}
        self.crossing[j] = {name: there[name] for name in names}
        self.made[j] = {name: made[name] for name in self.wanted[j] if name in made}

    def _do_whole(self, j: int) -> None:
        session, _ = self.halves.of(j, self.whole[j])
        if session is None:
            raise PlanError(f"job {self.problem.jobs[j].name!r} has nothing to compute")
        self.times[j] = JobTimes(attempts=self.times[j].attempts)
        made = self._infer(j, session, self.halves.planned_s(j, self.whole[j])[0])
        self._answered(j, {name: made[name] for name in self.wanted[j]}, self._now())

    def _infer(self, j: int, session: Session, planned_s: float) -> dict[str, Array]:
        start = self._now()
        made, lap = self.meter.infer(lambda: session.run(self.inputs[j]))
        self.times[j].device, self.times[j].device_cpu_s = (start, self._now()), lap.cpu_s
        self.here.add(lap.wall_s, lap.received_s)
        self.corrections.device.add(self.models[j].hash, lap.wall_s, planned_s)
        # before the next message is under way, which has a price of its own
        self.here.probes += self.meter.look(self.behind_s)
        return made

    def _send(self, connection: Connection, j: int, cut: frozenset[str]) -> None:
        attempt = self.times[j].attempts + 1
        epoch = connection.send(Parcel(j, attempt, self.models[j].hash, cut, self.crossing[j], self.behind_there_s))
        if epoch is None:  # it broke this moment: the next round decides anew
            self.todo.appendleft(j)
            return
        self.times[j].attempts = attempt
        if not self.sent:
            self.heard_s = time.perf_counter()
        self.sent[j] = _Sent(epoch, attempt)

    def _answered(self, j: int, outputs: dict[str, Array], at_s: float) -> None:
        self.outputs[j] = outputs
        self.times[j].answered_s = at_s
        for kept in (self.crossing, self.made, self.sent):
            kept.pop(j, None)

    # ---- hearing ------------------------------------------------------------------------------------------------------

    def _hear_all(self) -> None:
        for _ in range(self.connection.events.qsize() if self.connection else 0):  # what comes meanwhile waits its turn
            self._hear(0.0)

    def _hear(self, timeout_s: float) -> str:
        """Take one event; returns its kind, "" where there was none in time."""
        if self.connection is None:
            time.sleep(max(0.0, timeout_s))
            return ""
        try:
            event = (
                self.connection.events.get(timeout=timeout_s) if timeout_s > 0 else self.connection.events.get_nowait()
            )
        except queue.Empty:
            return ""
        self._take(event)
        return event.kind

    def _take(self, event: Event) -> None:
        if event.kind == "up" and event.welcome is not None:
            self.counts["connections"] += 1
            self.was_up, self.round_trip_s = True, event.welcome.round_trip_s
            if self.counts["connections"] > 1:
                self._say("the server is back")
        elif event.kind in ("down", "trouble"):
            self._lost(event)
        elif event.kind == "refused-model":
            self._say(f"{event.why}: the device does those jobs")
        else:
            self._take_reply(event)

    def _lost(self, event: Event) -> None:
        """Jobs under way go back in front, in the plan's order."""
        back = [j for j, s in self.sent.items() if s.epoch <= event.epoch]
        for j in back:
            del self.sent[j]
        self.counts["lost"] += len(back)
        self.todo = deque([*sorted(back, key=lambda j: self.place[j]), *self.todo])
        self.uplink_free_s = 0.0
        if self.was_up or self.counts["connections"] == 0:
            self._say(f"{event.why}; the device goes on alone", once=self.counts["connections"] == 0)
        self.was_up = False

    def _take_reply(self, event: Event) -> None:
        head = event.head
        j, sent = int(head["job"]), self.sent.get(int(head["job"]))
        if sent is None or sent.attempt != head["attempt"] or sent.epoch != event.epoch:
            self.counts["late"] += event.kind == "answer"
        elif event.kind == "sent":
            sent.bytes, sent.left_s = int(head["bytes"]), event.at_s
        elif event.kind != "received" or not sent.received:  # saying a thing again is no sign of life
            self.heard_s = max(self.heard_s, event.at_s)
            if event.kind == "received":
                self._uploaded(j, sent, float(head["received"]))
            elif event.kind == "answer":
                self._take_answer(j, event)
            elif event.kind == "refused":
                self._refused(j, str(head.get("code")), str(head.get("why")))

    def _refused(self, j: int, code: str, why: str) -> None:
        """The device does the job. A model that the server has dropped, or never had, goes up meanwhile."""
        self.counts["refused"] += 1
        self._say(f"the server refuses a job: {why}; the device does it")
        sent = self.sent.pop(j)
        if code == "unknown" and self.connection is not None:
            self.connection.bring(self.models[j], _left(sent))
        self._do_whole(j)

    def _uploaded(self, j: int, sent: _Sent, at_s: float) -> None:
        """The transfer left the device half a round trip before it was there, and began when the last had left."""
        start = max(sent.left_s or at_s, self.uplink_free_s)
        end = max(start, at_s - self.round_trip_s / 2)
        self.uplink_free_s, sent.received = end, True
        self.times[j].uplink, self.times[j].sent_bytes = self._since(start, end), sent.bytes
        if self._had_link(start):
            self.rate.saw(sent.bytes, end - start)

    def _had_link(self, since_s: float) -> bool:
        """Whether a transfer that began then had the link to itself, as far as this run uses it: no model went up beside it."""
        return self.connection is not None and since_s >= self.connection.alone_since_s()

    def _take_answer(self, j: int, event: Event) -> None:
        head, outputs = event.head, {**self.made.get(j, {}), **event.tensors}
        if not outputs.keys() >= set(self.wanted[j]):
            self._refused(j, "damaged", "an answer without all outputs came")
            return
        start = max(float(head["sent"]), self.downlink_free_s)
        end = max(start, event.at_s - self.round_trip_s / 2)
        self.downlink_free_s = end
        self.times[j].server = self._since(float(head["start"]), float(head["end"]))
        self.times[j].server_cpu_s = float(head["cpu_s"])
        self.there.add(float(head["wall_s"]), float(head["received_s"]))
        # not from start to end: the first job of a new cut waits for its session in there
        self.corrections.server.add(
            self.models[j].hash, float(head["wall_s"]), self.halves.planned_s(j, self.cuts[j])[1]
        )
        self.there.probes += [(head["probe_s"], head["cpu_s"])] if head["probe_s"] > 0 else []
        self.times[j].server_probe_s = float(head["probe_s"])
        self.times[j].downlink = self._since(start, end)
        self._answered(j, {name: outputs[name] for name in self.wanted[j]}, event.at_s - self.start_s)

    def _since(self, start: float, end: float) -> Interval:
        """An interval of this host's clock as seconds since the run began."""
        return start - self.start_s, max(start, end) - self.start_s

    # ---- judging ------------------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        """Give a silent server up."""
        if self.connection is None or not self.sent:
            return
        under_way = sum(s.bytes for s in self.sent.values() if not s.received)
        patience_s = self.settings.patience_s + _SPARE * under_way / self.rate.seen
        if time.perf_counter() - self.heard_s > patience_s:
            self.heard_s = time.perf_counter()
            self._say(f"the server was silent for {patience_s:.0f} s")
            self.connection.hang_up()

    def _replan_if_drifted(self) -> None:
        """Between jobs: a new plan for those not begun, where the link or a side is not what the plan took it for."""
        first = min((s for s in self.sent.values() if s.left_s and not s.received), key=_left, default=None)
        if first is not None:
            began = max(_left(first), self.uplink_free_s)
            if self._had_link(began):
                self.rate.still_waiting(first.bytes, time.perf_counter() - began)
        replan, share = self.settings.replan, self.settings.replan_share
        if replan is None or not (self.rate.drifted(share) or self.corrections.drifted(share)):
            return
        if self.settings.policy and self.decide is None:  # it has failed
            return
        rest = [j for j in self.todo if j not in self.crossing]
        if len(rest) < 2:
            return
        if 10 * self.settings.replan_s > self._left_s(rest):
            return
        self._say(self._why_anew(), once=False)
        self.rate.planned = self.rate.now
        try:
            self._plan_anew(replan, rest)
            self.counts["replans"] += 1
        except Exception as error:  # the plan at hand answers every job, too
            self._say(f"no new plan was found: {sentence_of(error)}; the one at hand stays", once=False)

    def _plan_anew(self, replan: Replan, rest: Sequence[int]) -> None:
        if self.settings.policy is not None:
            # for all jobs, with link and sides as they are
            now = replace(self.problem, link=self._link(self.rate.now))
            now = self.corrections.applied(now, [m.hash for m in self.models])
            self.decide, self.decided_by = self.settings.policy(now), now
            return
        left = self._rest(rest)
        plan = replan(left)
        refuse(PlanError, plan.check(left), "the plan", hint="this is a fault of the planner")
        begun = [j for j in self.todo if j in self.crossing]
        self.todo = deque([*begun, *(rest[k] for k in plan.order)])
        for k, j in enumerate(rest):
            self.cuts[j] = plan.cuts[k]
        behind = max(self.place.values()) + 1
        self.place.update({j: behind + k for k, j in enumerate(self.todo)})

    def _left_s(self, rest: Sequence[int]) -> float:
        """At least so long do jobs take that are not begun."""
        here = sum(self.halves.planned_s(j, self.cuts[j])[0] for j in rest) * self.corrections.device.slower
        there = sum(self.halves.planned_s(j, self.cuts[j])[1] for j in rest) * self.corrections.server.slower
        return max(here, there / self.problem.server_threads)

    def _why_anew(self) -> str:
        if self.rate.drifted(self.settings.replan_share):
            why = f"the uplink carries {self.rate.now / 1e6:.3g} MB/s, not {self.rate.planned / 1e6:.3g}"
        else:
            device, server = self.corrections.device.slower, self.corrections.server.slower
            why = f"jobs take {device:.2f} times as long as measured here, {server:.2f} times on the server"
        return f"{why}: planning the rest anew"

    def _rest(self, rest: Sequence[int]) -> OffloadProblem:
        """What is left to plan: link and sides as they are now, releases as seconds from now."""
        now, link = self._now(), self._link(self.rate.now)

        def left(job: OffloadJob) -> OffloadJob:
            return replace(job, release_s=max(0.0, job.release_s - now), deadline_s=max(0.0, job.deadline_s - now))

        problem = replace(self.problem, link=link, jobs=tuple(left(self.problem.jobs[j]) for j in rest))
        return self.corrections.applied(problem, [self.models[j].hash for j in rest])

    def _link(self, up_bytes_per_s: float) -> OffloadLink:
        """As it is now, at a rate of the uplink."""
        return replace(self.problem.link.carrying(up_bytes_per_s), round_trip_s=self.round_trip_s)

    def _say(self, line: str, once: bool = True) -> None:
        if not (once and line in self.said):
            self.said.add(line)
            self.settings.say(line)


def _left(sent: _Sent) -> float:
    return sent.left_s or 0.0


def facts_of(run: OffloadRun) -> dict[str, Any]:
    """The run's figures for a document."""
    return {
        "makespan_s": run.makespan_s,
        "latency_median_s": statistics.median(run.latency_s),
        "latency_worst_s": max(run.latency_s),
        "cpu_s": run.cpu_s,
        "load": run.facts["load"],
        "bytes_up": sum(t.sent_bytes for t in run.times),
        "made_on_device": sum(t.where == "device" for t in run.times),
        **{k: run.facts[k] for k in ("lost", "refused", "late", "replans", "connections")},
    }
