"""The contract of the DAG shop in plain Python: problems at random, every order, the score of a schedule; shares no code with
the planner."""

from __future__ import annotations

import random
from typing import Any

Json = dict[str, Any]
KINDS = ("plain", "zeros", "far", "one-sided", "whole", "stars")


def instance(seed: int, most: int = 12, kind: str = "") -> Json:
    """A problem of 1 to `most` stages in 1 to 4 jobs."""
    dice = random.Random(seed)
    kind = kind or dice.choice(KINDS)
    n = dice.randint(1, most)
    jobs = [1] * min(n, dice.randint(1, 4))
    for _ in range(n - len(jobs)):
        jobs[dice.randrange(len(jobs))] += 1
    return {"jobs": [_job(size, kind, dice) for size in jobs]}


def _job(size: int, kind: str, dice: random.Random) -> Json:
    density = dice.choice((0.0, 0.2, 0.4, 0.8))
    stages = [{"network_s": _time(kind, dice, 0), "cpu_s": _time(kind, dice, 1), "parents": _parents(s, density, kind, dice)} for s in range(size)]  # fmt: skip
    release = {"far": dice.choice((0.0, 1e3, 1e6)), "zeros": dice.choice((0.0, 2.0))}.get(kind, dice.choice((0.0, 0.0, dice.uniform(0, 8))))  # fmt: skip
    return {"release_s": float(round(release)) if kind == "whole" else release, "stages": stages}


def _parents(stage: int, density: float, kind: str, dice: random.Random) -> list[int]:
    if kind == "stars" and stage:
        return [dice.randrange(max(1, stage // 2))]
    return [p for p in range(stage) if dice.random() < density]


def _time(kind: str, dice: random.Random, phase: int) -> float:
    if (kind == "zeros" and dice.random() < 0.4) or (kind == "one-sided" and phase == 0 and dice.random() < 0.8):
        return 0.0
    return (
        float(dice.randint(1, 6)) if kind == "whole" else dice.choice((dice.uniform(0.1, 9.0), dice.expovariate(0.5)))
    )


def layered(n: int, seed: int, jobs: int = 1, dense: bool = False) -> Json:
    """n stages in layers of 3 to 12; each has one to three parents in the layer before, or all of it."""
    dice = random.Random(seed)

    def job(size: int) -> Json:
        stages: list[Json] = []
        before: list[int] = []
        while len(stages) < size:
            layer = list(range(len(stages), min(size, len(stages) + dice.randint(3, 12))))
            for _ in layer:
                parents = before if dense else dice.sample(before, min(len(before), dice.randint(1, 3)))
                stages.append({"network_s": dice.uniform(0.5, 10), "cpu_s": dice.uniform(0.5, 10), "parents": sorted(parents)})  # fmt: skip
            before = layer
        return {"release_s": 0.0, "stages": stages}

    return {"jobs": [job(n // jobs) for _ in range(jobs)]}


def widened(problem: Json, seed: int) -> Json:
    """The problem with writes here and there, and one to three executors."""
    dice = random.Random(seed)
    for job in problem["jobs"]:
        for stage in job["stages"]:
            if dice.random() < 0.5:
                stage["write_s"] = dice.choice((dice.uniform(0.1, 5.0), float(dice.randint(1, 4))))
    return {**problem, "executors": dice.randint(1, 3)}


def least(problem: Json) -> tuple[float, float]:
    """(the least makespan, the least mean completion) over every order of the operations and every executor for each; idling
    is allowed, for a machine waits for the next operation of the order. For a few stages only."""
    jobs = problem["jobs"]
    lengths = ("network_s", "cpu_s", "write_s")
    phases = {(j, s): 3 if stage.get("write_s") else 2 for j, job in enumerate(jobs) for s, stage in enumerate(job["stages"])}  # fmt: skip
    ops = [(*at, phase) for at, count in phases.items() for phase in range(count)]
    best = [float("inf"), float("inf")]
    seen: dict[Any, list[tuple[float, ...]]] = {}
    release = [job.get("release_s", 0.0) for job in jobs]

    def grow(done: dict[Any, float], network: float, cpus: tuple[float, ...], mask: int) -> None:
        ends = [max(done.get((j, s, phases[j, s] - 1), 0.0) for s in range(len(job["stages"]))) for j, job in enumerate(jobs)]  # fmt: skip
        if max(ends) >= best[0] and sum(e - r for e, r in zip(ends, release, strict=True)) / len(jobs) >= best[1]:
            return
        if len(done) == len(ops):
            best[0] = min(best[0], max(ends))
            best[1] = min(best[1], sum(e - r for e, r in zip(ends, release, strict=True)) / len(jobs))
            return
        state = (network, *cpus, *(done.get(o, 0.0) for o in ops))
        if any(all(a <= b for a, b in zip(old, state, strict=True)) for old in seen.get(mask, [])):
            return
        seen.setdefault(mask, []).append(state)
        for k, (j, s, phase) in enumerate(ops):
            if mask >> k & 1:
                continue
            stage = jobs[j]["stages"][s]
            needs = [(j, s, phase - 1)] if phase else [(j, p, phases[j, p] - 1) for p in stage["parents"]]
            if any(o not in done for o in needs):
                continue
            ready, length = max([release[j], *(done[o] for o in needs)]), stage[lengths[phase]]
            if length <= 0:
                grow({**done, (j, s, phase): ready}, network, cpus, mask | 1 << k)
            elif phase != 1:
                end = max(ready, network) + length
                grow({**done, (j, s, phase): end}, end, cpus, mask | 1 << k)
            else:
                for lane in range(len(cpus)):
                    end = max(ready, cpus[lane]) + length
                    then = tuple(sorted((*cpus[:lane], end, *cpus[lane + 1 :])))
                    grow({**done, (j, s, phase): end}, network, then, mask | 1 << k)

    grow({}, 0.0, (0.0,) * problem.get("executors", 1), 0)
    return best[0], best[1]
