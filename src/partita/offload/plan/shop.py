"""A problem, its candidate cuts, and the shop that the kernels see."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from partita.nouns.graph import FloatArray, IntArray
from partita.nouns.offload import OffloadProblem
from partita.offload.plan.cuts import Cuts, cuts_of
from partita.offload.plan.kernel import Shop, evaluate
from partita.offload.plan.network import Kinds, kinds_of


@dataclass(eq=False)
class Floor:
    """What the methods share: kinds of jobs and the cuts of every network; cuts may be added, options follow."""

    problem: OffloadProblem
    kinds: Kinds
    cuts: list[Cuts]  #: [networks]

    @staticmethod
    def of(problem: OffloadProblem) -> Floor:
        kinds = kinds_of(problem)
        return Floor(problem, kinds, [cuts_of(n) for n in kinds.networks])

    @property
    def lag_s(self) -> float:
        return self.problem.link.round_trip_s / 2

    @property
    def hurried(self) -> bool:
        """Some job has a deadline."""
        return any(np.isfinite(j.deadline_s) for j in self.problem.jobs)

    def without_deadlines(self) -> Floor:
        """The same jobs with the same cuts, wanted whenever: fewer kinds, and every plan of theirs is a plan here."""
        problem = replace(self.problem, jobs=tuple(replace(j, deadline_s=np.inf) for j in self.problem.jobs))
        return replace(self, problem=problem, kinds=kinds_of(problem))

    def shop(self) -> Shop:
        """The options as they are now."""
        kinds = self.kinds
        tables = [self.cuts[n].times for n in kinds.network]
        first = np.concatenate([[0], np.cumsum([len(t) for t in tables])]).astype(np.int64)
        d, u, s, w = np.ascontiguousarray(np.concatenate(tables).T)
        local = np.zeros(first[-1], np.bool_)
        local[first[:-1]] = True
        jobs = self.problem.jobs
        return Shop(
            d,
            u,
            s,
            w,
            local,
            first,
            kinds.of_job,
            np.array([jobs[j].release_s for j in kinds.example], np.float64),
            np.array([jobs[j].deadline_s for j in kinds.example], np.float64),
            self.lag_s,
            self.problem.server_threads,
            not (self.hurried or any(j.release_s > 0 for j in jobs)),
        )

    def ids(self, shop: Shop, choice: IntArray) -> tuple[frozenset[str], ...]:
        """[jobs] ids of the tasks on the device."""
        named: dict[int, frozenset[str]] = {}
        result = []
        for j, o in enumerate(choice.tolist()):
            if o not in named:
                k = int(shop.kind[j])
                cut = self.cuts[int(self.kinds.network[k])].cuts[o - int(shop.first[k])]
                tasks = self.problem.jobs[j].tasks
                named[o] = frozenset(tasks[v].id for v in np.flatnonzero(cut).tolist())
            result.append(named[o])
        return tuple(result)


@dataclass(frozen=True, eq=False)
class Found:
    """A plan as the kernels see it, and its value."""

    order: IntArray  #: [jobs]
    choice: IntArray  #: [jobs] option
    late_s: float
    makespan_s: float
    method: str

    @property
    def value(self) -> tuple[float, float]:
        """Smaller is better: lateness first."""
        return self.late_s, self.makespan_s


def found(shop: Shop, order: IntArray, choice: IntArray, method: str) -> Found:
    """The plan with its value; jobs wholly on the device go last where the shop says so. O(jobs x threads)."""
    if shop.last:
        order = order[np.argsort(shop.local[choice[order]], kind="stable")]
    order, choice = order.astype(np.int64), choice.astype(np.int64)
    return Found(order, choice, *evaluate(shop, order, choice), method)


def carried_over(source: Shop, plan: Found, shop: Shop) -> Found:
    """The plan of one shop in another one with the same jobs and cuts, of other kinds."""
    at = plan.choice - source.first[source.kind]
    return found(shop, plan.order, shop.first[shop.kind] + at, plan.method)


def best_of(plans: list[Found]) -> Found:
    """The plan of least value, the first of equals."""
    return min(plans, key=lambda p: p.value)


def alone_s(shop: Shop) -> FloatArray:
    """[options] how long a job takes that has all machines for itself."""
    away = shop.u + shop.s + shop.w + 2 * shop.lag
    return np.asarray(shop.d + np.where(shop.local, 0.0, away), np.float64)
