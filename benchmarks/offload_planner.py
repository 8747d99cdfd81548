"""The offload planner against brute force, and its time for many jobs.

    python benchmarks/offload_planner.py [--instances 500] [--json]

Random instances of tests/offload/plan/offload_brute.py (every cut, every order, no code shared with the planner) for chains,
trees, DAGs and equal chains; then 100 jobs of 5 models as large as the usual networks (one with 428 tasks of dense
concatenations). CPU seconds and load stand beside every wall-clock figure.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from offload.plan.offload_brute import instance, least_makespan, of_plan

from partita.nouns.offload import OffloadProblem
from partita.offload.plan.planner import plan_offload

Json = dict[str, Any]


def against_brute_force(shape: str, instances: int, *, equal: bool = False) -> Json:
    """Mean and worst gap to the optimum; how often the bound was above it."""
    gaps, above, spent = [], 0, 0.0
    for seed in range(instances):
        problem = instance(shape, seed, equal=equal)
        read = OffloadProblem.from_json(problem)
        began = time.process_time()
        file = plan_offload(read)
        spent += time.process_time() - began
        best = least_makespan(problem)
        gaps.append(of_plan(problem, file.plan.order, file.plan.to_json()["cuts"]) / best - 1 if best > 0 else 0.0)
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


def many_jobs() -> Json:
    """100 jobs of 5 models at 20 Mbit/s: reading aside, how long planning takes."""
    shapes = [dense(61), residual(16, 1), residual(9, 4), [[i - 1] if i else [] for i in range(24)], residual(8, 2)]
    models = [network(s, k, 602112.0) for k, s in enumerate(shapes)]
    link = {"up_bytes_per_s": 2.5e6, "down_bytes_per_s": 2.5e6, "round_trip_s": 0.005}
    problem = OffloadProblem.from_json(
        {"link": link, "jobs": [{**models[i % 5], "name": f"job{i}"} for i in range(100)]}
    )
    began, cpu = time.monotonic(), time.process_time()
    plan = plan_offload(problem).verdict
    return {
        "jobs": 100,
        "tasks": [len(s) for s in shapes],
        "wall_s": time.monotonic() - began,
        "cpu_s": time.process_time() - cpu,
        "makespan_s": plan.value_s,
        "gap": 1 - plan.lower_bound_s / plan.value_s,
        "load": os.getloadavg()[0],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--instances", type=int, default=500)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = [against_brute_force(s, options.instances) for s in ("chain", "tree", "dag")]
    rows.append(against_brute_force("chain", max(1, options.instances // 10), equal=True))
    document = {"against_brute_force": rows, "many_jobs": many_jobs()}
    if options.json:
        print(json.dumps(document, indent=1))
        return
    for r in rows:
        print(f"{r['kind']}: {r['instances']} instances, mean gap {r['mean_gap']:.2e}, worst {r['worst_gap']:.2e}")
    print(document["many_jobs"])


if __name__ == "__main__":
    main()
