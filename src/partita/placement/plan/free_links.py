"""Free placement for throughput where links differ: searched as if they did not, then annealed by true loads."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Protocol

import numpy as np

from partita.nouns.placement_problem import PlacementProblem
from partita.nouns.plan import PlanFile
from partita.placement.plan.candidates import plan_file
from partita.placement.plan.from_arrays import device_numbers
from partita.placement.plan.load import load_model
from partita.placement.plan.makespan import CLOSED, compile_kernels, ordered, searched
from partita.placement.plan.unequal_links import at_one_rate, dealt_out, judged
from partita.simulate.makespan import facts_of


class Planner(Protocol):
    """plan_free, all but problem and budget given."""

    def __call__(self, problem: PlacementProblem, *, budget_s: float) -> PlanFile: ...


def free_over_unequal_links(problem: PlacementProblem, plan: Planner, budget_s: float, seed: int) -> PlanFile:
    """The best placement found, and the bound of best links. Deterministic and with errors as the planner."""
    model, cluster = load_model(problem), problem.cluster
    facts = facts_of(problem, "throughput")
    compile_kernels(facts, model)
    began = time.monotonic()
    rates = {cluster.best_rate_bytes_per_s: 0.4, cluster.worst_rate_bytes_per_s: 0.2}
    files = [plan(at_one_rate(problem, rate), budget_s=share * budget_s) for rate, share in rates.items()]
    starts = []
    for f in files:
        for device_of in (device_numbers(problem, f.plan), dealt_out(problem, f.plan)):
            where = np.zeros(model.atoms, np.int64)
            where[model.atom_of] = device_of
            starts += ordered(facts, where, f.verdict.method)
    best, said = min(starts, key=lambda m: m.value_s), files[0].verdict
    if best.value_s > said.lower_bound_s * (1 + CLOSED):
        best = searched(model, facts, best, seed=seed, budget_s=0.4 * budget_s)
    device_of = best.where[model.atom_of]
    value = float(problem.loads(device_of).max())
    verdict = judged(said, value, said.lower_bound_s, said.bound, time.monotonic() - began)
    method = best.name if best.name.startswith("free") else f"free ({best.name})"
    return plan_file(problem, device_of, replace(verdict, method=method))
