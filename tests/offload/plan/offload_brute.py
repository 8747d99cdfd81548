"""The contract of offloading in plain Python, every cut and every order; shares no code with the planner."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable
from typing import Any

Json = dict[str, Any]
Parts = tuple[float, tuple[float, float, float] | None]


def downsets(tasks: list[Json]) -> list[frozenset[str]]:
    """Every set of tasks that holds what its tasks read."""
    ids = [t["id"] for t in tasks]
    sets = (frozenset(i for k, i in enumerate(ids) if mask >> k & 1) for mask in range(1 << len(ids)))
    return [s for s in sets if all(set(t["inputs"]) <= s for t in tasks if t["id"] in s)]


def parts(job: Json, cut: frozenset[str], link: Json) -> Parts:
    """Seconds on the device, and on uplink, server and downlink where the job is cut."""
    tasks = {t["id"]: t for t in job["tasks"]}
    away = [t for t in job["tasks"] if t["id"] not in cut]
    device = sum(t["device_s"] for t in job["tasks"] if t["id"] in cut)
    if not away:
        return device, None
    crossing = {i for t in away for i in t["inputs"] if i in cut}
    sent = sum(tasks[i]["output_bytes"] for i in crossing)
    sent += job["input_bytes"] if any(not t["inputs"] for t in away) else 0.0
    read = {i for t in job["tasks"] for i in t["inputs"]}
    back = sum(t["output_bytes"] for t in away if t["id"] not in read)
    device += link.get("send_s", 0.0) + link.get("send_s_per_byte", 0.0) * sent
    return device, (sent / link["up_bytes_per_s"], sum(t["server_s"] for t in away), back / link["down_bytes_per_s"])


def makespan(jobs: Iterable[Parts], round_trip_s: float, threads: int) -> float:
    """The last end of jobs in this order."""
    device = up = down = end = 0.0
    free = [0.0] * threads
    for d, rest in jobs:
        device += d
        end = max(end, device)
        if rest is not None:
            up = max(up, device) + rest[0]
            t = free.index(min(free))
            free[t] = max(free[t], up + round_trip_s / 2) + rest[1]
            down = max(down, free[t]) + rest[2]
            end = max(end, down + round_trip_s / 2)
    return end


def least_makespan(problem: Json) -> float:
    """Over all cuts and orders."""
    link = problem["link"]
    options = [list({parts(j, c, link): None for c in downsets(j["tasks"])}) for j in problem["jobs"]]
    orders = (o for picked in itertools.product(*options) for o in set(itertools.permutations(picked)))
    return min(makespan(o, link["round_trip_s"], problem["server_threads"]) for o in orders)


def of_plan(problem: Json, order: Iterable[int], cuts: list[list[str]]) -> float:
    """The makespan of a printed plan."""
    chosen = [parts(problem["jobs"][j], frozenset(cuts[j]), problem["link"]) for j in order]
    return makespan(chosen, problem["link"]["round_trip_s"], problem["server_threads"])


def amount(chance: random.Random, scale: float) -> float:
    return chance.choice([0.0, scale, *(chance.uniform(0, 2 * scale) for _ in range(6)), chance.expovariate(1 / scale)])


def inputs_of(chance: random.Random, shape: str, n: int) -> list[list[int]]:
    """[n] what each task reads: a chain, a tree towards or from its root, or a DAG with several sources and sinks."""
    if shape == "chain":
        return [[i - 1] if i else [] for i in range(n)]
    if shape == "dag":
        few = [min(i, chance.choice([0, 1, 1, 2, 3])) for i in range(n)]
        return [sorted(chance.sample(range(i), k)) for i, k in enumerate(few)]
    out: list[list[int]] = [[chance.randrange(i)] if i else [] for i in range(n)]
    if chance.random() < 0.5:
        return out
    return [sorted(n - 1 - v for v in range(n) if n - 1 - i in out[v]) for i in range(n)]


def instance(shape: str, seed: int, *, equal: bool = False) -> Json:
    """A small problem with its own cost structure: round trips and servers of every kind, costs of zero, answers on both sides."""
    chance = random.Random(f"{shape} {seed}")
    jobs = chance.choice([3, 4, 5]) if equal else chance.choice([1, 2, 3, 4])
    device, server, size = (10 ** chance.uniform(*r) for r in ((-0.3, 1), (-1.3, 0.8), (-0.7, 1.2)))

    def job() -> Json:
        n = 4 if equal else chance.randint(1, {1: 8, 2: 6, 3: 4, 4: 3}[jobs])
        tasks = [
            {
                "id": f"t{i}",
                "device_s": amount(chance, device),
                "server_s": amount(chance, server),
                "output_bytes": amount(chance, size) * 0.8**i,
                "inputs": [f"t{k}" for k in reads],
            }
            for i, reads in enumerate(inputs_of(chance, shape, n))
        ]
        return {"input_bytes": amount(chance, 2 * size), "tasks": tasks}

    models = [job()] * jobs if equal else [job() for _ in range(jobs)]
    return {
        "link": {
            "up_bytes_per_s": chance.choice([0.5, 1.0, 4.0]),
            "down_bytes_per_s": chance.choice([0.5, 4.0, 20.0]),
            "round_trip_s": chance.choice([0.0, 0.01, 1.0, 8.0]),
        },
        "server_threads": chance.choice([1, 1, 2, 3]),
        "jobs": [{"name": f"job{k}", **m} for k, m in enumerate(models)],
    }
