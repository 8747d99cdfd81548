"""A worker of a campaign: one framework, one rank; it serves one configuration after another.

    python -m partita.models.measure.worker SPEC.json       (started by `crew`)

One JSON line in, one JSON line out:

    {"do": "visit", "configuration": {..}, "visit_s": 0.4}  ->  {"step_s": .., "steps": .., "cpu_s": .., "reference_s": ..}
    {"do": "drop"}                                          ->  {}
    whatever goes wrong                                     ->  {"error": "a sentence"}

A configuration is built and compiled at its first visit and kept until it is dropped.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, TextIO

from partita.errors import sentence_of
from partita.models.measure.networks import Configuration
from partita.models.measure.step import Average, Step, average_over, build_step

WARM_UP_STEPS = 3
FEWEST_STEPS, MOST_STEPS = 7, 400
REFERENCE_PARTS = 12  #: timings before a visit, and as many after it: about 20 ms each time


def serve(spec: dict[str, Any], answers: TextIO) -> None:
    """Answer until the questions end."""
    average = _join(spec)
    _hold_to_one_thread(spec["framework"])
    reference, built = reference_work(), dict[Configuration, Step]()
    answers.write(json.dumps({}) + "\n")
    answers.flush()
    for line in sys.stdin:
        try:
            answer = _answer(json.loads(line), built, average, reference, spec["rank"])
        except Exception as error:
            answer = {"error": sentence_of(error)}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def _answer(
    asked: dict[str, Any],
    built: dict[Configuration, Step],
    average: Average | None,
    reference: Callable[[], float],
    rank: int,
) -> dict[str, Any]:
    if asked["do"] == "drop":
        built.clear()
        _forget_compiled()
        gc.collect()
        return {}
    c = Configuration(**asked["configuration"])
    if c not in built:
        built[c] = build_step(c, rank)
    return visit(built[c], average, reference, asked["visit_s"])


def visit(step: Step, average: Average | None, reference: Callable[[], float], visit_s: float) -> dict[str, Any]:
    """Warm up, then time steps for about `visit_s`: the median of a step, with the reference work timed on either side."""
    for _ in range(WARM_UP_STEPS):
        began = time.perf_counter()
        step.take(average)
        one = time.perf_counter() - began
    steps = _agreed(max(FEWEST_STEPS, min(MOST_STEPS, round(visit_s / one))), average)
    with _uncollected():
        before = [reference() for _ in range(REFERENCE_PARTS)]
        _agreed(steps, average)  # the workers start together
        cpu, ends = time.process_time(), [time.perf_counter()]
        for _ in range(steps):
            step.take(average)
            ends.append(time.perf_counter())
        cpu = time.process_time() - cpu
        after = [reference() for _ in range(REFERENCE_PARTS)]
    return {
        "step_s": statistics.median(b - a for a, b in itertools.pairwise(ends)),
        "steps": steps,
        "cpu_s": cpu / steps,
        "reference_s": (min(before) + min(after)) / 2,  # the shortest: a part is interrupted or it is not
    }


def _agreed(steps: int, average: Average | None) -> int:
    """All workers take the same number of steps: the mean of what they would like."""
    import numpy as np

    return steps if average is None else round(float(average(np.array([steps], np.float32))[0]))


@contextlib.contextmanager
def _uncollected() -> Any:
    """Python's garbage collector waits: it would walk through every model that is kept."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def reference_work() -> Callable[[], float]:
    """A function that does a fixed piece of work, multiplying and copying, and returns its seconds (about 1.8 ms)."""
    import torch

    a = torch.ones(384, 384)
    b, source, target = torch.empty(384, 384), torch.ones(1 << 20), torch.empty(1 << 20)

    def work() -> float:
        began = time.perf_counter()
        for _ in range(2):
            torch.mm(a, a, out=b)
            target.copy_(source)
        return time.perf_counter() - began

    return work


def _forget_compiled() -> None:
    """What the framework keeps of compiled functions."""
    import keras

    keras.backend.clear_session()
    if keras.backend.backend() == "jax":
        import jax

        jax.clear_caches()


def _join(spec: dict[str, Any]) -> Average | None:
    """Meet the other workers; None for a worker alone."""
    if spec["workers"] == 1:
        return None
    import torch.distributed as dist

    dist.init_process_group(
        "gloo",
        init_method=spec["rendezvous"],
        rank=spec["rank"],
        world_size=spec["workers"],
        timeout=timedelta(seconds=spec["timeout_s"]),
    )
    return average_over(spec["workers"])


def _hold_to_one_thread(framework: str) -> None:
    import torch

    torch.set_num_threads(1)
    if framework == "tensorflow":
        import tensorflow as tf

        tf.config.threading.set_intra_op_parallelism_threads(1)
        tf.config.threading.set_inter_op_parallelism_threads(1)
    import keras

    assert keras.backend.backend() == framework


if __name__ == "__main__":
    told = json.loads(Path(sys.argv[1]).read_text())
    if told["core"] is not None:
        os.sched_setaffinity(0, {told["core"]})
    from partita.memory import keep_freed_memory

    keep_freed_memory()
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a framework prints must not come between the answers
    serve(told, out)
    os._exit(0)
