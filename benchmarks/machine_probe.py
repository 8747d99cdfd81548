"""What each core is worth right now: three short pieces of work on each core alone, then on all cores at once.

    python benchmarks/machine_probe.py          one probe, as JSON

product   products of two matrices that fit into a core's own cache     arithmetic
memory    copies of an array larger than most caches                    memory
python    a loop of the interpreter                                     branches

Each piece is the same work every time; its wall-clock and its thread's CPU time are noted. CPU over wall is the share of the
core that the piece received: less than 1 where others had it. A virtual core that its host slows shows in the wall-clock
time alone.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from crew import GO, Crew, answer, crew, settle, words

TRIES = 5  #: of each piece in a probe; the median counts
MOST_CORES = 16  #: more are not probed: a probe takes about 0.15 s a core

Json = dict[str, Any]


def pieces() -> dict[str, Callable[[], object]]:
    """About 10 ms each on a core of 2026."""
    a = np.random.default_rng(0).normal(size=(192, 192)).astype(np.float32)
    product = np.empty_like(a)
    source = np.ones(2_000_000)  # 16 MB, and as many for the copy
    target = np.empty_like(source)

    def products() -> None:
        for _ in range(40):
            np.matmul(a, a, out=product)

    def copies() -> None:
        for _ in range(3):
            np.copyto(target, source)

    return {"product": products, "memory": copies, "python": lambda: sum(i & 7 for i in range(150_000))}


def tried(piece: Callable[[], object]) -> Json:
    """Wall-clock and CPU seconds of TRIES runs."""
    wall, cpu = [], []
    for _ in range(TRIES):
        began, used = time.perf_counter(), time.thread_time()
        piece()
        wall.append(time.perf_counter() - began)
        cpu.append(time.thread_time() - used)
    return {"wall_s": wall, "cpu_s": cpu}


def cores_to_probe() -> list[int]:
    return sorted(os.sched_getaffinity(0))[:MOST_CORES]


@contextlib.contextmanager
def probes(cores: Sequence[int]) -> Iterator[Callable[[str], Json]]:
    """A function that probes the cores now: `when` -> {when, load, alone: {core: {piece: tried}}, together: likewise}."""
    with crew("machine_probe", [{"cores": [c]} for c in cores]) as helpers:
        yield lambda when: _probe(helpers, cores, when)


def _probe(helpers: Crew, cores: Sequence[int], when: str) -> Json:
    load, at_s = os.getloadavg()[0], time.monotonic()
    alone = {}
    for k, core in enumerate(cores):
        helpers.say(k, GO)
        alone[str(core)] = helpers.heard(k)
    for k in range(len(cores)):
        helpers.say(k, GO)
    together = {str(core): helpers.heard(k) for k, core in enumerate(cores)}
    return {"when": when, "at_s": at_s, "load": load, "alone": alone, "together": together}


# ---- what probes say ----------------------------------------------------------------------------------------------------


def speed(core: Mapping[str, Any]) -> float:
    """Of one core in one probe: 1 over the geometric mean of the pieces' median times, so that each counts alike."""
    return math.exp(-statistics.mean(math.log(statistics.median(p["wall_s"])) for p in core.values()))


def share(core: Mapping[str, Any]) -> float:
    """CPU over wall-clock time of all pieces: the share of the core that was received."""
    return min(1.0, sum(sum(p["cpu_s"]) for p in core.values()) / sum(sum(p["wall_s"]) for p in core.values()))


def drift_of(found: Sequence[Mapping[str, Any]]) -> Json:
    """How restless the machine was over the probes of a run.

    spread        of a core's speed over the probes, (fastest - slowest) / median; of all cores, alone and together, the largest
    least_share   of a core that any probe received
    drift         the larger of the spread and what of a core was not received
    together      all cores at once, as a multiple of one alone; median over the probes
    """
    places = [(how, core) for how in ("alone", "together") for core in found[0][how]]
    speeds = {at: [speed(p[at[0]][at[1]]) for p in found] for at in places}
    spread = max((max(s) - min(s)) / statistics.median(s) for s in speeds.values())
    least = min(share(p[how][core]) for p in found for how, core in places)
    together = statistics.median(
        sum(map(speed, p["together"].values())) / statistics.mean(map(speed, p["alone"].values())) for p in found
    )
    return {"spread": spread, "least_share": least, "drift": max(spread, 1 - least), "together": together}


# ---- inside a helper ----------------------------------------------------------------------------------------------------


def _serve() -> None:
    _, answers = settle()
    work = pieces()
    for piece in work.values():
        piece()
    answer(answers, "ready")
    for _ in words():
        answer(answers, {name: tried(piece) for name, piece in work.items()})


if __name__ == "__main__":
    if len(sys.argv) > 1:
        _serve()
    else:
        with probes(cores_to_probe()) as probe:
            print(json.dumps(probe("now")))
