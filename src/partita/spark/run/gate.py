"""The gate: phases begin in the order of a plan, each machine one at a time. Values only; nothing here knows Spark.

    gate = Gate(orders, parents)
    for phase in gate.begin(): ...      what may begin now
    gate.done(phase)                    then ask again

A phase begins when the one before it on its machine is done, and what it waits for: a fetch for its stage's parents, a
computation for its own fetch. What the plan lets wait, waits, although another phase could run.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple

from partita.errors import InternalError
from partita.spark.problem import ShopProblem, in_order
from partita.spark.schedule import Start

MachineName = Literal["network", "cpu"]


class Phase(NamedTuple):
    """The fetch or the computation of one stage of one job."""

    job: int
    stage: int
    machine: MachineName


def orders_of(schedule: Sequence[Start], problem: ShopProblem) -> dict[MachineName, list[Phase]]:
    """The phases of each machine as the plan serves them; of those that begin at one moment, parents first. O(n log n)."""
    places = [{s: k for k, s in enumerate(in_order(job.stages)[0])} for job in problem.jobs]
    net = sorted(schedule, key=lambda r: (r.network_start_s, r.cpu_start_s, r.job, places[r.job][r.stage]))
    cpu = sorted(schedule, key=lambda r: (r.cpu_start_s, r.network_start_s, r.job, places[r.job][r.stage]))
    return {
        "network": [Phase(r.job, r.stage, "network") for r in net],
        "cpu": [Phase(r.job, r.stage, "cpu") for r in cpu],
    }


def needs_of(problem: ShopProblem) -> dict[Phase, list[Phase]]:
    """What each phase waits for besides its machine."""
    needs: dict[Phase, list[Phase]] = {}
    for j, job in enumerate(problem.jobs):
        for s, stage in enumerate(job.stages):
            needs[Phase(j, s, "network")] = [Phase(j, p, "cpu") for p in stage.parents]
            needs[Phase(j, s, "cpu")] = [Phase(j, s, "network")]
    return needs


def one_by_one(problem: ShopProblem, stages: Sequence[Sequence[int]]) -> dict[Phase, list[Phase]]:
    """Needs that let no two phases run at once: job after job, stages [job] in the order given."""
    chain = [Phase(j, s, m) for j, row in enumerate(stages) for s in row for m in ("network", "cpu")]
    needs = needs_of(problem)
    for before, after in itertools.pairwise(chain):
        needs[after] = [*needs[after], before]
    return needs


class Gate:
    """Which phases may begin."""

    def __init__(
        self, orders: Mapping[MachineName, Sequence[Phase]], needs: Mapping[Phase, Sequence[Phase]], free: frozenset[Phase] = frozenset()
    ) -> None:  # fmt: skip
        """`free` phases need no machine (stages that fetch nothing): they begin as soon as what they wait for is done."""
        self._left = {m: [p for p in order if p not in free] for m, order in orders.items()}
        self._free = [p for order in orders.values() for p in order if p in free]
        self._needs = needs
        self._holds: dict[MachineName, Phase | None] = dict.fromkeys(orders)
        self._begun: set[Phase] = set()
        self._done: set[Phase] = set()
        self._count = sum(len(order) for order in orders.values())

    @property
    def over(self) -> bool:
        return len(self._done) == self._count

    def begin(self) -> list[Phase]:
        """The phases that begin now. Raises InternalError where nothing runs, nothing may begin and not all is done."""
        found = [p for p in self._free if self._may(p)]
        self._free = [p for p in self._free if p not in found]
        for machine, left in self._left.items():
            if self._holds[machine] is None and left and self._may(left[0]):
                self._holds[machine] = left[0]
                found.append(left.pop(0))
        self._begun.update(found)
        if not self.over and self._begun == self._done:
            raise InternalError("the order waits for itself", hint="make the plan again")
        return found

    def done(self, phase: Phase) -> None:
        self._done.add(phase)
        if self._holds[phase.machine] == phase:
            self._holds[phase.machine] = None

    def _may(self, phase: Phase) -> bool:
        return all(n in self._done for n in self._needs[phase])


def pass_through(gate: Gate, work: Callable[[Phase], None], thread: Callable[..., threading.Thread]) -> None:
    """Carry every phase out in a thread of its own when the gate lets it; return when all are done.

    A phase that fails lets no other begin, and its error is raised at once: the caller ends those that run.
    """
    changed = threading.Condition()
    ended: list[tuple[Phase, BaseException | None]] = []
    running: list[threading.Thread] = []

    def carry_out(phase: Phase) -> None:
        error: BaseException | None = None
        try:
            work(phase)
        except BaseException as raised:
            error = raised
        with changed:
            ended.append((phase, error))
            changed.notify()

    while not gate.over:
        for phase in gate.begin():
            running.append(thread(target=carry_out, args=(phase,), daemon=True))
            running[-1].start()
        with changed:
            while not ended:
                changed.wait()
            news, ended[:] = list(ended), []
        for phase, error in news:
            if error is not None:
                raise error
            gate.done(phase)
    for t in running:
        t.join()
