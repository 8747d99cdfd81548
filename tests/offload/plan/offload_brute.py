"""The contract of offloading in plain Python, every cut and every order; shares no code with the planner."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterable
from typing import Any

Json = dict[str, Any]
Parts = tuple[float, tuple[float, float, float] | None]
Value = tuple[float, float]  # (largest lateness, last end)


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
    server = sum(t["server_s"] for t in away)
    server += link.get("receive_s", 0.0) + link.get("receive_s_per_byte", 0.0) * sent
    return device, (sent / link["up_bytes_per_s"], server, back / link["down_bytes_per_s"])


def value(jobs: Iterable[tuple[Json, Parts]], round_trip_s: float, threads: int) -> Value:
    """The largest lateness and the last end of jobs in this order."""
    device = up = down = end = late = 0.0
    free = [0.0] * threads
    for job, (d, rest) in jobs:
        device = max(device, job.get("release_s", 0.0)) + d
        done = device
        if rest is not None:
            up = max(up, device) + rest[0]
            t = free.index(min(free))
            free[t] = max(free[t], up + round_trip_s / 2) + rest[1]
            down = max(down, free[t]) + rest[2]
            done = down + round_trip_s / 2
        end = max(end, done)
        late = max(late, done - job.get("deadline_s", math.inf))
    return late, end


def best_values(problem: Json) -> tuple[Value, float]:
    """(the least lateness with the least makespan among those, the least makespan of all) over all cuts and orders."""
    link, jobs = problem["link"], problem["jobs"]
    options = [[(j, p) for p in {parts(j, c, link): None for c in downsets(j["tasks"])}] for j in jobs]
    served: Iterable[Iterable[tuple[Json, Parts]]]
    if any("deadline_s" in j or "release_s" in j for j in jobs):
        served = (o for picked in itertools.product(*options) for o in itertools.permutations(picked))
    else:  # equal jobs may change places
        served = (
            [({}, p) for p in o]
            for picked in itertools.product(*options)
            for o in set(itertools.permutations(p for _, p in picked))
        )
    values = [value(o, link["round_trip_s"], problem["server_threads"]) for o in served]
    return min(values), min(end for _, end in values)


def least_makespan(problem: Json) -> float:
    """Over all cuts and orders."""
    return best_values(problem)[1]


def of_plan(problem: Json, order: Iterable[int], cuts: list[list[str]]) -> float:
    """The makespan of a printed plan."""
    return value_of_plan(problem, order, cuts)[1]


def value_of_plan(problem: Json, order: Iterable[int], cuts: list[list[str]]) -> Value:
    """The lateness and the makespan of a printed plan."""
    jobs = problem["jobs"]
    chosen = [(jobs[j], parts(jobs[j], frozenset(cuts[j]), problem["link"])) for j in order]
    return value(chosen, problem["link"]["round_trip_s"], problem["server_threads"])


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


def timed(shape: str, seed: int) -> Json:
    """A small problem with deadlines, tight and loose, and in every other one with release times."""
    problem, chance = instance(shape, seed), random.Random(f"timed {shape} {seed}")
    device = sum(t["device_s"] for j in problem["jobs"] for t in j["tasks"])
    for job in problem["jobs"]:
        if chance.random() < 0.7:
            job["deadline_s"] = device * chance.uniform(0, 1.2)
        if seed % 2 and chance.random() < 0.7:
            job["release_s"] = device * chance.uniform(0, 0.6)
    return problem
