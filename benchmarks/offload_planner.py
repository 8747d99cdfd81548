"""The offload planner against brute force, and its time for many jobs.

    python benchmarks/offload_planner.py [--instances 500] [--rounds 9] [--json]

Random instances of tests/offload/plan/offload_brute.py (every cut, every order, no code shared with the planner) for chains,
trees, DAGs and equal chains; then 100 jobs of 5 models as large as the usual networks (one with 428 tasks of dense
concatenations). CPU seconds and load stand beside every wall-clock figure.
"""

from __future__ import annotations

import os
import random
import sys
import time
from pathlib import Path

import numpy as np
from harness import Json, Machine, in_turn, loaded, parser, run_script, said
from intervals import MOST_DRIFT_ALONE, Claim, Interval, bootstrap

from partita.cli.talk import Talk
from partita.nouns.offload import OffloadProblem
from partita.offload.plan.planner import plan_offload

brute = loaded(Path(__file__).parents[1] / "tests" / "offload" / "plan" / "offload_brute.py")

#: What each run is judged by.
OPTIMAL = Claim("the worst gap to the optimum is rounding", high=1e-9, most_drift=float("inf"))
BELOW = Claim("no bound lies above its optimum", high=0.0, most_drift=float("inf"))
QUICK = Claim("100 jobs are planned within 1 s", high=1.0, most_drift=MOST_DRIFT_ALONE)


def against_brute_force(shape: str, instances: int, *, equal: bool = False) -> Json:
    """Mean and worst gap to the optimum; how often the bound was above it."""
    gaps, above, spent = [], 0, 0.0
    for seed in range(instances):
        problem = brute.instance(shape, seed, equal=equal)
        read = OffloadProblem.from_json(problem)
        began = time.process_time()
        file = plan_offload(read)
        spent += time.process_time() - began
        best = brute.least_makespan(problem)
        gaps.append(
            brute.of_plan(problem, file.plan.order, file.plan.to_json()["cuts"]) / best - 1 if best > 0 else 0.0
        )
        above += file.verdict.lower_bound_s > best * (1 + 1e-9)
    name = "equal chains" if equal else shape
    return {
        "kind": name,
        "instances": instances,
        "mean_gap": float(np.mean(gaps)),
        "worst_gap": max(gaps),
        "bound_above": above,
        "cpu_s_each": spent / instances,
    }


def network(inputs: list[list[int]], seed: int, input_bytes: float) -> Json:
    """Costs as convolutions have them: outputs shrink along the network, work is uneven."""
    chance, n = random.Random(seed), len(inputs)
    tasks = [
        {
            "id": f"n{i}",
            "device_s": 0.004 * chance.uniform(0.1, 2),
            "server_s": 0.0005 * chance.uniform(0.1, 2),
            "output_bytes": 3e6 * chance.uniform(0.3, 1) * 0.02 ** (i / n),
            "inputs": [f"n{k}" for k in reads],
        }
        for i, reads in enumerate(inputs)
    ]
    return {"input_bytes": input_bytes, "tasks": tasks}


def dense(layers: int) -> list[list[int]]:
    """A dense block: norm, activation, convolution twice, then all that came before is put together."""
    inputs: list[list[int]] = [[]]
    joined = 0
    for _ in range(layers):
        at = len(inputs)
        inputs += [[joined], [at], [at + 1], [at + 2], [at + 3], [at + 4], [joined, at + 5]]
        joined = at + 6
    return inputs


def residual(blocks: int, branches: int) -> list[list[int]]:
    """Blocks of parallel branches of three tasks that are added up."""
    inputs: list[list[int]] = [[]]
    for _ in range(blocks):
        start, ends = len(inputs) - 1, []
        for _ in range(branches):
            at = len(inputs)
            inputs += [[start], [at], [at + 1]]
            ends.append(at + 2)
        inputs.append([start, *ends])
    return inputs


def hundred_jobs() -> tuple[OffloadProblem, list[int]]:
    """100 jobs of 5 models at 20 Mbit/s, and the models' sizes in tasks."""
    shapes = [dense(61), residual(16, 1), residual(9, 4), [[i - 1] if i else [] for i in range(24)], residual(8, 2)]
    models = [network(s, k, 602112.0) for k, s in enumerate(shapes)]
    link = {"up_bytes_per_s": 2.5e6, "down_bytes_per_s": 2.5e6, "round_trip_s": 0.005}
    jobs = [{**models[i % 5], "name": f"job{i}"} for i in range(100)]
    return OffloadProblem.from_json({"link": link, "jobs": jobs}), [len(s) for s in shapes]


def many_jobs(rounds: int, machine: Machine) -> Json:
    """How long planning 100 jobs takes, reading aside; the median of some rounds, with a probe before each."""
    problem, tasks = hundred_jobs()
    load = os.getloadavg()[0]
    found = in_turn({"plan": lambda: plan_offload(problem).verdict}, rounds, warmup=1, between=machine.look_again)[
        "plan"
    ]
    plan = found.results[0]
    return {
        "jobs": 100,
        "tasks": tasks,
        "wall_s": found.median_s,
        "wall_interval_s": _wall(found.wall_s).ends,
        "cpu_s": float(np.median(found.cpu_s)),
        "makespan_s": plan.value_s,
        "gap": 1 - plan.lower_bound_s / plan.value_s,
        "load": load,
        "samples": found.to_json(),
    }


def _wall(samples: list[float]) -> Interval:
    return bootstrap(lambda s: s, samples)


def benchmark(instances: int, rounds: int, machine: Machine, talk: Talk) -> Json:
    rows = []
    for shape, n, equal in (
        *((s, instances, False) for s in ("chain", "tree", "dag")),
        ("chain", max(1, instances // 10), True),
    ):
        talk.progress("against brute force", len(rows), 4)
        rows.append(against_brute_force(shape, n, equal=equal))
        machine.look_again(20.0)
    many = many_jobs(rounds, machine)
    claims = {
        "worst_gap": (OPTIMAL, Interval.exact(max(r["worst_gap"] for r in rows))),
        "bound_above": (BELOW, Interval.exact(sum(r["bound_above"] for r in rows))),
        "many_jobs_wall_s": (QUICK, _wall(many["samples"]["wall_s"])),
    }
    record = machine.finished()
    return {
        "against_brute_force": rows,
        "many_jobs": many,
        "verdicts": machine.verdicts(claims),
        "machine_record": record,
    }


def text(document: Json) -> str:
    lines = [
        f"{r['kind']}: {r['instances']} instances, mean gap {r['mean_gap']:.2e}, worst {r['worst_gap']:.2e}"
        for r in document["against_brute_force"]
    ]
    many = {k: v for k, v in document["many_jobs"].items() if k != "samples"}
    return "\n".join([*lines, str(many), said(document)])


def main() -> int:
    options = parser(__doc__)
    options.add_argument("--instances", type=int, default=500)
    options.add_argument("--rounds", type=int, default=9, help="how often 100 jobs are planned; default: 9")
    given = options.parse_args()
    return run_script(given, lambda m, t: benchmark(given.instances, given.rounds, m, t), text)


if __name__ == "__main__":
    sys.exit(main())
