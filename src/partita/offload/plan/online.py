"""Jobs that come one by one: which of those that wait is next, and where it is cut.

    policy = Policy.of(problem)          one job of every model that may come
    policy.decide(state) -> Decision     between jobs; nothing is remembered, nothing is read or written

The policy plans the jobs that have waited longest together, from the moment at which each machine will be free and for
the link as it is believed to be now: it starts from the order of arrival and each job's fastest cut, and changes one cut
or exchanges two neighbours as long as the mean answer comes earlier. Only the first step is done; the next decision plans
anew. A job that needs the device is taken when the device is free, one that does not when the uplink is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType

import numpy as np

from partita.nouns.graph import FloatArray, IntArray
from partita.nouns.offload import OffloadLink, OffloadProblem
from partita.offload.plan.baselines import least
from partita.offload.plan.bounds import bound_of
from partita.offload.plan.kernel import Shop
from partita.offload.plan.local import Pool, pool_of
from partita.offload.plan.shop import Floor, alone_s
from partita.solve.compiled import compiled

MANY = 50
AHEAD = 8  #: jobs planned together
BEHIND = 1.0  #: jobs that are delayed by one, for each that waits


@dataclass(frozen=True, slots=True)
class Waiting:
    """A job that has come and is not begun."""

    model: int  #: index of a job of the problem that is like it
    arrived_s: float


@dataclass(frozen=True, slots=True)
class State:
    """What is known between two jobs; times on one clock."""

    now_s: float
    waiting: tuple[Waiting, ...]  #: in the order of their arrival
    device_free_s: float
    uplink_free_s: float
    server_free_s: tuple[float, ...]  #: [threads]
    downlink_free_s: float
    link: OffloadLink  #: as it is believed to be now


@dataclass(frozen=True, slots=True)
class Decision:
    """Take this job now."""

    position: int  #: in `waiting`
    cut: frozenset[str]  #: ids of its tasks on the device
    option: int  #: the cut, as the policy counts them


@dataclass(frozen=True, eq=False)
class Policy:
    """Models with their cuts, for one link; `at` changes the link."""

    floor: Floor
    shop: Shop
    pool: Pool
    weights: FloatArray  #: [5] how much each machine limits the throughput
    link: OffloadLink
    ahead: int = AHEAD

    @staticmethod
    def of(problem: OffloadProblem, ahead: int = AHEAD) -> Policy:
        """The policy for jobs like those of a problem."""
        floor = Floor.of(
            replace(problem, jobs=tuple(replace(j, release_s=0.0, deadline_s=np.inf) for j in problem.jobs))
        )
        # many of each: the weights of a long stream, not those of its two ends
        bound = bound_of(replace(floor, kinds=replace(floor.kinds, of_job=np.tile(floor.kinds.of_job, MANY))))
        shop = floor.shop()
        return Policy(floor, shop, pool_of(shop, bound.weights), bound.weights, problem.link, ahead)

    def at(self, link: OffloadLink) -> Policy:
        """The same for another link: the cuts worth looking at stay, the times of transfers change in proportion."""
        up, down = self.link.up_bytes_per_s / link.up_bytes_per_s, self.link.down_bytes_per_s / link.down_bytes_per_s
        shop = self.shop._replace(u=self.shop.u * up, w=self.shop.w * down, lag=link.round_trip_s / 2)
        return replace(self, shop=shop, link=link)

    def decide(self, state: State) -> Decision | None:
        """The next job and its cut; None: nothing can begin before something else happens."""
        if state.link != self.link:
            return self.at(state.link).decide(state)
        kinds = np.array([self.shop.kind[w.model] for w in state.waiting[: self.ahead]], np.int64)
        if not len(kinds):
            return None
        start = least(self.shop, alone_s(self.shop))
        picked = np.array([start[w.model] for w in state.waiting[: self.ahead]], np.int64)
        behind = BEHIND * len(state.waiting)
        order, choice = ahead(self.shop, *self.pool, kinds, picked, _machines(state), self.price, behind)
        return self._first(state, order.tolist(), choice.tolist())

    @cached_property
    def price(self) -> FloatArray:
        """[options] see `delay`."""
        shop, (w0, w1, w2, w3, w4) = self.shop, self.weights
        sent = (w0 + w1) * shop.d + w2 * shop.u + w3 * shop.s / shop.threads + w4 * shop.w
        return np.asarray(np.where(shop.local, w0 * shop.d, sent), np.float64)

    def _first(self, state: State, order: Sequence[int], choice: Sequence[int]) -> Decision | None:
        """The first job of an order whose first machine is free."""
        for position in order:
            option = choice[position]
            alone = self.shop.d[option] == 0 and not self.shop.local[option]
            if (state.uplink_free_s - self.shop.u[option] if alone else state.device_free_s) <= state.now_s:
                return Decision(position, self.cut(state.waiting[position].model, option), option)
        return None

    def fifo(self, state: State) -> Decision | None:
        """What one would do without thinking ahead: the oldest job, cut as if it were alone."""
        if state.link != self.link:
            return self.at(state.link).fifo(state)
        if not state.waiting:
            return None
        return self._first(state, [0], [int(least(self.shop, alone_s(self.shop))[state.waiting[0].model])])

    def cut(self, model: int, option: int) -> frozenset[str]:
        """The ids of the tasks on the device."""
        k = int(self.shop.kind[model])
        row = self.floor.cuts[int(self.floor.kinds.network[k])].cuts[option - int(self.shop.first[k])]
        tasks = self.floor.problem.jobs[model].tasks
        return frozenset(tasks[v].id for v in np.flatnonzero(row).tolist())


POLICIES: Mapping[str, Callable[[Policy, State], Decision | None]] = MappingProxyType(
    {"ahead": Policy.decide, "single-cut": Policy.fifo}
)


def _machines(state: State) -> FloatArray:
    """[3 + threads] when device, uplink, downlink and threads are free, counted from now."""
    free = (state.device_free_s, state.uplink_free_s, state.downlink_free_s, *state.server_free_s)
    return np.maximum(np.array(free) - state.now_s, 0.0)


@compiled
def ahead(
    shop: Shop,
    pool_first: IntArray,
    pool: IntArray,
    kinds: IntArray,
    choice: IntArray,
    machines: FloatArray,
    price: FloatArray,
    behind: float,
) -> tuple[IntArray, IntArray]:
    """([n], [n]) an order of the jobs `kinds` [n] and an option for each, a local optimum of the mean end.

    O(passes x n x options x n x threads).
    """
    n = len(kinds)
    order = np.arange(n)
    best = delay(shop, order, choice, machines, price, behind)
    better = True
    while better:
        better = False
        for i in range(n):
            kept = choice[i]
            for x in range(pool_first[kinds[i]], pool_first[kinds[i] + 1]):
                choice[i] = pool[x]
                value = delay(shop, order, choice, machines, price, behind)
                if value < best * (1 - 1e-9):
                    best, kept, better = value, pool[x], True
            choice[i] = kept
        for i in range(n - 1):
            order[i], order[i + 1] = order[i + 1], order[i]
            value = delay(shop, order, choice, machines, price, behind)
            if value < best * (1 - 1e-9):
                best, better = value, True
            else:
                order[i], order[i + 1] = order[i + 1], order[i]
    return order, choice


@compiled
def delay(
    shop: Shop, order: IntArray, choice: IntArray, machines: FloatArray, price: FloatArray, behind: float
) -> float:
    """The sum of the ends of these jobs, and what they cost `behind` later ones.

    `price` [options] is how much later all that follows ends: the seconds a job takes from each machine, weighted by how
    much that machine limits the throughput of such jobs.
    """
    free = machines.copy()
    total = 0.0
    for j in order:
        o = choice[j]
        total += serve(shop.d[o], shop.u[o], shop.s[o], shop.w[o], shop.local[o], shop.lag, free) + behind * price[o]
    return total


@compiled
def serve(d: float, u: float, s: float, w: float, local: bool, lag: float, free: FloatArray) -> float:
    """When one more job is answered; `free` [device, uplink, downlink, threads] moves on. No start of its own is waited
    for by a job without a device part."""
    done = float(free[0]) + d
    if d > 0 or local:
        free[0] = done
    else:
        done = 0.0
    if local:
        return done
    free[1] = max(free[1], done) + u
    t = 3
    for i in range(4, len(free)):
        if free[i] < free[t]:
            t = i
    free[t] = max(free[t], free[1] + lag) + s
    free[2] = max(free[2], free[t]) + w
    return float(free[2] + lag)


# ---------------------------------------------------------------------------------------------------------------------
# A stream of jobs


@dataclass(frozen=True)
class Stream:
    """What became of a stream."""

    response_s: tuple[float, ...]  #: of the jobs that were answered, in the order in which they were begun
    refused: int  #: came when the queue was full
    decisions: tuple[tuple[int, Decision], ...] = field(repr=False)  #: (arrival, decision)

    def summary(self) -> dict[str, float]:
        found = np.array(self.response_s)
        figures = {"mean_s": found.mean(), **{f"p{q}_s": np.percentile(found, q) for q in (50, 95, 99)}}
        return {"answered": len(found), "refused": self.refused, **{k: float(v) for k, v in figures.items()}}


def poisson(rate_per_s: float, count: int, models: int, seed: int = 0) -> list[Waiting]:
    """`count` arrivals at random times, of models at random."""
    random = np.random.default_rng(seed)
    at = np.cumsum(random.exponential(1 / rate_per_s, count))
    return [Waiting(m, t) for m, t in zip(random.integers(models, size=count).tolist(), at.tolist(), strict=True)]


def stream(problem: OffloadProblem, arrivals: Sequence[Waiting], policy: str, queue: int) -> Stream:
    """Serve a trace of arrivals, ascending in time, with a policy of POLICIES; a job that finds `queue` waiting is refused.

    O(arrivals x what a decision takes).
    """
    mind, decide = Policy.of(problem), POLICIES[policy]
    free = np.zeros(3 + problem.server_threads)
    waiting: list[tuple[int, Waiting]] = []
    response, decisions = [], []
    now, came, refused = 0.0, 0, 0
    while came < len(arrivals) or waiting:
        times = free.tolist()
        state = State(now, tuple(w for _, w in waiting), times[0], times[1], tuple(times[3:]), times[2], problem.link)
        decision = decide(mind, state)
        if decision is not None:
            number, job = waiting.pop(decision.position)
            response.append(_begun(mind.shop, decision.option, now, free) - job.arrived_s)
            decisions.append((number, decision))
            continue
        coming = arrivals[came].arrived_s if came < len(arrivals) else np.inf
        now = min([coming, *(t for t in times[:2] if t > now and waiting)])
        while came < len(arrivals) and arrivals[came].arrived_s <= now:
            if len(waiting) < queue:
                waiting.append((came, arrivals[came]))
            else:
                refused += 1
            came += 1
    return Stream(tuple(response), refused, tuple(decisions))


def _begun(shop: Shop, o: int, now: float, free: FloatArray) -> float:
    """When a job that begins now is answered; the machines move on."""
    np.maximum(free, now, out=free)
    return float(serve(shop.d[o], shop.u[o], shop.s[o], shop.w[o], shop.local[o], shop.lag, free))
