"""What a planner has to know, measured: the models on either side, the link, and what messages take of both sides.

Inside whatever quota the device's process has. What is counted is CPU time: of every model by itself, task by task (kept, for it is the
same for long), then of all models in turn, now, then of messages. A side that has its core for a share of the time only (a quota,
neighbours, an open connection) takes so many times as long; the share is seen while the models take their turns, and the machines' speeds stand beside the problem.

Where both sides are hosts of one machine, with caches and memory in common, each disturbs the other: networks of a device with a tenth
of a core take 1.3 times as long while the server computes. So the models take their turns on both sides at once and on each alone, and
in what is predicted they take what lies between, by how much the other side computes for each second that this one does: a side that
waits for its quota finds its caches emptied by whatever ran meanwhile.

Plans are drawn to cuts that are priced too low. So the halves that plans use are measured too, in turn with the whole models,
and planning and measuring take turns until the plans' cuts have all been measured. In the minutes that this takes a machine drifts
by a tenth, so then the models take their turns again, and the plan is made for what they take now.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

from partita.errors import CaptureError
from partita.nouns.costs import Estimate
from partita.nouns.offload import OffloadPlan, OffloadProblem, OffloadSpeeds, Speed
from partita.offload.capture.jobs import JobSpec
from partita.offload.capture.onnx_model import OnnxModel
from partita.offload.measure.cuts import Side, proportioned
from partita.offload.measure.in_turn import Item, Turns, measure_in_turn
from partita.offload.measure.inference import InferenceTimes, measure_model
from partita.offload.measure.link import LinkTimes, measure_link
from partita.offload.plan.lower import part_times, simulate_offload
from partita.offload.run.client import Client, Refused
from partita.offload.run.message_cost import MessageCost, message_cost
from partita.offload.run.problem import problem_of

LOOPS = 3  #: of planning and measuring
NEAR = 0.05  #: of the time: shares that are told apart
_T = TypeVar("_T")
_U = TypeVar("_U")


@dataclass(frozen=True)
class SideTimes:
    """One side: its models in turn, and how each divides."""

    models: tuple[OnnxModel, ...]
    tasks: Mapping[str, Mapping[str, float]]  #: hash -> task -> seconds, of the model by itself
    turns: Turns  #: of the whole models, while the other side has its turns, too
    quiet: Turns  #: while it has not
    taken: float = 0.0  #: of a core: CPU seconds a second that go to an open connection
    #: (hash, tasks) -> share of the whole
    halves: Mapping[tuple[str, frozenset[str]], float] = field(default_factory=dict)
    beside: float = 0.5  #: where, from quiet (0) to beside (1), what is predicted lies

    def whole(self, model: int) -> Estimate:
        """On the clock, in company."""
        beside, quiet = ((t.seconds(model), t.speed.share / self.share) for t in (self.turns, self.quiet))

        def now(part: str) -> float:
            return self._between(*(getattr(e, part) * slower for e, slower in (beside, quiet)))

        return replace(beside[0], low=now("low"), seconds=now("seconds"), high=now("high"))

    def _between(self, beside: float, quiet: float) -> float:
        return (1 - self.beside) * quiet + self.beside * beside

    @property
    def speed(self) -> Speed:
        """Of the machine, in what is predicted."""
        a, b = self.turns.speed, self.quiet.speed
        return replace(a, probe_s=self._between(a.probe_s, b.probe_s), share=self._between(a.share, b.share))

    @property
    def share(self) -> float:
        """Of a core, left for inferences and messages: at the least half of what the process has."""
        return self.speed.share - min(self.taken, 0.5 * self.speed.share)

    def seconds(self) -> dict[str, dict[str, float]]:
        """Hash -> task -> seconds: in sum what the model takes in company, in parts what its halves do."""
        made = {}
        for k, m in enumerate(self.models):
            shares = {tasks: share for (h, tasks), share in self.halves.items() if h == m.hash}
            tasks = self.tasks[m.hash]
            alone = proportioned(
                tasks if any(tasks.values()) else dict.fromkeys(tasks, 1.0), shares
            )  # 0: too short to tell
            scale = self.whole(k).seconds / sum(alone.values())
            made[m.hash] = {t: s * scale for t, s in alone.items()}
        return made


@dataclass(frozen=True)
class BothSides:
    """A measured problem, and what it was made of."""

    jobs: tuple[JobSpec, ...]
    threads: int
    device: SideTimes
    server: SideTimes
    plain: LinkTimes  #: without what messages take of the sides
    messages: MessageCost

    @property
    def link(self) -> LinkTimes:
        """With what messages take of both sides, on the clock."""
        send, receive = (
            (each / side.share, byte / side.share)
            for (each, byte), side in ((self.messages.device, self.device), (self.messages.server, self.server))
        )
        return self.plain.with_messages(send, receive)

    @property
    def problem(self) -> OffloadProblem:
        """Raises CostError for what no planner can use."""
        made = problem_of(self.jobs, self.device.seconds(), self.server.seconds(), self.link.link, self.threads)
        return replace(made, speeds=OffloadSpeeds(self.device.speed, self.server.speed))

    def during(self, plan: OffloadPlan) -> BothSides:
        """As it is while the jobs are done by a plan; itself where that is nearly what it is for. O(jobs log jobs)."""
        problem = self.problem
        device_s, _, server_s, _ = part_times(problem, plan)[0].sum(axis=0).tolist()
        all_s = simulate_offload(problem, plan).duration_s or 1.0
        device = _disturbed(self.device, self.server, server_s / all_s)
        server = _disturbed(self.server, self.device, device_s / all_s)
        if max(abs(self.device.beside - device), abs(self.server.beside - server)) < NEAR:
            return self
        return replace(self, device=replace(self.device, beside=device), server=replace(self.server, beside=server))


def _disturbed(side: SideTimes, other: SideTimes, busy: float) -> float:
    """How much, as a share of what it was beside the other one's turns, where the other is busy for a share of the time.

    A side's caches are full of the other's once that has computed as long as the side itself.

    >>> eighth, whole = (SideTimes((), {}, t, t) for t in (Turns((), Speed(1.0, 0.125)), Turns((), Speed(1.0))))
    >>> [_disturbed(*sides, busy) for sides in ((eighth, whole), (whole, eighth)) for busy in (0.0625, 0.5)]
    [0.5, 1.0, 0.0625, 0.5]
    """
    own, its = side.turns.speed.share, other.turns.speed.share
    return min(1.0, min(own, busy * its) / min(own, its))


def measure_both_sides(
    jobs: Sequence[JobSpec],
    connect: Callable[[], Client],
    budget_s: float = 4.0,
    *,
    here: Callable[[OnnxModel, float], InferenceTimes] = measure_model,
    say: Callable[[str], None] = lambda what: None,
) -> BothSides:
    """Takes at most about 2 x `budget_s` a model and three times more for all, and some ten seconds for link and messages; `here` measures a model
    on this side. Raises CaptureError, Unreachable, Refused."""
    models = {j.model.hash: j.model for j in jobs}
    each = tuple(models.values())
    with connect() as client:
        threads = client.hello().threads
        alone_here, alone_there = dict[str, Mapping[str, float]](), dict[str, Mapping[str, float]]()
        for h, m in models.items():
            say(f"measuring {m.name} here and on {client.target}")
            client.put(m)  # first, for an upload would disturb what is kept
            own_tasks, its_tasks = _at_once(client, partial(here, m, budget_s), partial(client.measure, m, budget_s))
            alone_here[h], alone_there[h] = own_tasks.seconds, its_tasks.seconds
        say("measuring the models in turn, here and there")
        own, there = _in_turn(each, client, budget_s)
        say("measuring the link, and what messages take of both sides")
        plain = measure_link(lambda: client.link(0.4))
    cost = message_cost(connect, plain.link.up_bytes_per_s)
    device, server = SideTimes(each, alone_here, *own, cost.idle_s), SideTimes(each, alone_there, *there)
    return BothSides(tuple(jobs), threads, device, server, plain, cost)


def planned(
    found: BothSides,
    plan: Callable[[OffloadProblem], _T],
    plan_of: Callable[[_T], OffloadPlan],
    connect: Callable[[], Client],
    budget_s: float = 4.0,
    *,
    say: Callable[[str], None] = lambda what: None,
) -> tuple[BothSides, _T]:
    """What was measured with the halves that a plan uses, as the machines are now and while the jobs are done by it, and the last plan.

    A half that is refused keeps the price that it has. Raises Unreachable, Refused, CaptureError.
    """

    def settled(found: BothSides) -> tuple[BothSides, _T]:
        """Planned and measured in turn until the plan's halves are known, LOOPS times at most."""
        made = plan(found.problem)
        for _ in range(LOOPS):
            better = with_plans(found, [plan_of(made)], connect, budget_s, say=say).during(plan_of(made))
            if better is found:
                break
            found, made = better, plan(better.problem)
        return found, made

    say("measuring the halves that the plan uses")
    found, _ = settled(found)
    say("measuring the models in turn once more, for machines drift")
    return settled(as_now(found, connect, budget_s))


def as_now(found: BothSides, connect: Callable[[], Client], budget_s: float) -> BothSides:
    """What was measured, with what whole models take now, in some 3 x `budget_s`. Raises Unreachable, Refused, CaptureError."""
    with connect() as client:
        own, there = _in_turn(found.device.models, client, budget_s)
    device, server = (
        replace(side, turns=beside, quiet=quiet)
        for side, (beside, quiet) in ((found.device, own), (found.server, there))
    )
    return replace(found, device=device, server=server)


def with_plans(
    found: BothSides,
    plans: Sequence[OffloadPlan],
    connect: Callable[[], Client],
    budget_s: float = 4.0,
    *,
    say: Callable[[str], None] = lambda what: None,
) -> BothSides:
    """What was measured, with the halves that these plans use; itself where all of them are known. Raises Unreachable."""
    cuts = {(j.model, cut) for p in plans for j, cut in zip(found.jobs, p.cuts, strict=True)}
    here, there = _unmeasured(found.device, cuts, "device"), _unmeasured(found.server, cuts, "server")
    if not here and not there:
        return found
    with connect() as client:
        device, server = _at_once(
            client,
            partial(_with_halves, found.device, here, "device", lambda i: measure_in_turn(i, "device", budget_s), say),
            partial(_with_halves, found.server, there, "server", lambda i: client.turns(i, budget_s), say),
        )
    same = device is found.device and server is found.server
    return found if same else replace(found, device=device, server=server)


def _in_turn(
    models: Sequence[OnnxModel], client: Client, budget_s: float
) -> tuple[tuple[Turns, Turns], tuple[Turns, Turns]]:
    """Whole models, here and on the server: beside the other side's turns, and without."""
    own = partial(measure_in_turn, [(m, _all(m)) for m in models], "device", budget_s)
    there = partial(client.turns, [(m, frozenset()) for m in models], budget_s)
    beside = _at_once(client, own, there)
    return (beside[0], own()), (beside[1], there())


def _at_once(client: Client, here: Callable[[], _T], there: Callable[[], _U]) -> tuple[_T, _U]:
    """What both return; `there` only asks the server, by this client, and waits for it in a thread of its own."""
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(there)
        try:
            return here(), asked.result()
        except BaseException:
            client.close()  # or to leave would be to wait for the server's answer
            raise


def _all(model: OnnxModel) -> frozenset[str]:
    return frozenset(model.tasks_topological)


def _unmeasured(side: SideTimes, cuts: set[tuple[OnnxModel, frozenset[str]]], name: str) -> list[Item]:
    """Items whose half on this side is new, and neither the whole nor nothing."""
    real = ((m, cut) for m, cut in cuts if 0 < len(cut) < len(m.tasks_topological))
    new = ((m, cut) for m, cut in real if (m.hash, cut if name == "device" else _all(m) - cut) not in side.halves)
    return sorted(new, key=lambda item: (item[0].hash, sorted(item[1])))


def _with_halves(
    side: SideTimes,
    items: list[Item],
    name: Side,
    measure: Callable[[list[Item]], Turns],
    say: Callable[[str], None],
) -> SideTimes:
    """The side with what those halves take; itself where none can be measured. Where one is refused, each is tried alone."""
    if not items:
        return side
    try:
        return replace(side, halves={**side.halves, **_shares(side, items, name, measure)})
    except (CaptureError, Refused) as error:
        if len(items) == 1:
            say(f"   {error}")
            return side
    for item in items:
        side = _with_halves(side, [item], name, measure, say)
    return side


def _shares(
    side: SideTimes, items: list[Item], name: Side, measure: Callable[[list[Item]], Turns]
) -> dict[tuple[str, frozenset[str]], float]:
    """(hash, tasks) -> what those halves take as shares of their models, which run in the same turns."""
    own = {m.hash for m, _ in items}
    wholes: list[Item] = [(m, _all(m) if name == "device" else frozenset()) for m in side.models if m.hash in own]
    place = {m.hash: k for k, (m, _) in enumerate(wholes)}
    turns = measure([*wholes, *items])
    return {
        (m.hash, cut if name == "device" else _all(m) - cut): turns.ratio(len(wholes) + k, place[m.hash])
        for k, (m, cut) in enumerate(items)
    }
