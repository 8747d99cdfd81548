"""The limit of a machine, measured: w copies of a whole job side by side on w cores, one process and one thread each.

Nothing that splits the job over the cores can be faster than w copies that do not wait for each other at all. Where the
cores share caches, memory or the core itself, the limit is less than w:

    limit = w x (a step of one process alone) / side_by_side_step_s

A copy is the runtime's own engine for one process, with the job's data, batch and micro-batches, settled as a worker is.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any

from crew import GO, STOP, Crew, answer, crew, is_told, settle, words

WARMUP = 2  #: steps of a turn that are not counted


@dataclass(frozen=True)
class Steps:
    """One copy's counted steps, [steps] each."""

    wall_s: list[float]
    cpu_s: list[float]


@contextlib.contextmanager
def copies(job: str, settings: Mapping[str, str], micro_batch_size: int, cores: Sequence[int]) -> Iterator[Crew]:
    """A copy a core, built and waiting; it takes no time while it waits. Raises WorkerFailed where one cannot be built."""
    told = [{"job": job, "settings": dict(settings), "size": micro_batch_size, "cores": [c]} for c in cores]
    with crew("side_by_side", told) as found:
        yield found


def joined(turns: Sequence[Steps]) -> Steps:
    """Turns of one copy as one."""
    return Steps([s for t in turns for s in t.wall_s], [s for t in turns for s in t.cpu_s])


def mean(steps: Steps) -> Steps:
    """The mean step of a turn, as one."""
    return Steps([statistics.fmean(steps.wall_s)], [statistics.fmean(steps.cpu_s)])


def turn(found: Crew, steps: int, warmup: int = WARMUP) -> list[Steps]:
    """Let all copies step on a batch until each has done so many; every counted step ran while all the others ran, too."""
    wanted = warmup + steps
    for k in range(len(found)):
        found.say(k, GO)
    rows = [[found.heard(k) for _ in range(wanted)] for k in range(len(found))]
    for k in range(len(found)):
        found.say(k, STOP)
    for k in range(len(found)):
        while found.heard(k) is not None:
            pass
    counted = [r[warmup:] for r in rows]
    return [Steps([s["wall_s"] for s in c], [s["cpu_s"] for s in c]) for c in counted]


def step_s(medians: Sequence[Any]) -> Any:
    """Of each copy's median step: the time in which a copy of average speed makes a step; elementwise for arrays.

    >>> step_s([1.0, 1.0])
    1.0
    """
    return len(medians) / sum(1.0 / m for m in medians)


# ---- inside a copy ------------------------------------------------------------------------------------------------------


def _serve() -> None:
    from partita.memory import keep_freed_memory

    keep_freed_memory()
    told, answers = settle()
    import gc

    import torch

    from partita.training.job import load_job
    from partita.training.runtime.batches import Progress, ahead, turns
    from partita.training.runtime.single import SingleProcess

    torch.set_num_threads(1)
    job = load_job(told["job"], told["settings"])
    engine = SingleProcess(job, told["size"], torch.device("cpu"))
    batches = ahead(turns(job, Progress(), steps=1 << 40, epochs=1))
    gc.collect()
    gc.freeze()
    answer(answers, "ready")
    for word in words():
        if word == GO:
            _steps(engine, batches, answers)


def _steps(engine: Any, batches: Iterator[Any], answers: IO[str]) -> None:
    """Steps on one batch, as `compare` takes them, until a word comes."""
    turn = next(batches)
    while not is_told():
        began, used = time.perf_counter(), time.process_time()
        engine.step(turn.batch, turn.done.step - 1)
        answer(answers, {"wall_s": time.perf_counter() - began, "cpu_s": time.process_time() - used})
    answer(answers, None)


if __name__ == "__main__":
    _serve()
