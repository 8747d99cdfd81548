"""The workers of one framework and one worker count, seen from the process that asks them.

Questions and answers are JSON lines over pipes. A crew in which anyone died, erred or fell silent is ended as a whole: a
worker never waits for one that is gone longer than that takes.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from partita.errors import WorkerFailed
from partita.models.measure.networks import Configuration
from partita.spawn import Process, end, ended_how, last_line, spawn, threads_env
from partita.temporary import temporary_folder

Answer = dict[str, Any]
START_S = 180.0  #: TensorFlow takes 5 s to import on an idle core; a busy machine takes its time


@dataclass
class Crew:
    """Running workers; `close` ends them."""

    framework: str
    timeout_s: float
    folder: Path
    workers: list[Process]
    stack: contextlib.ExitStack  #: takes the folder away
    pending: list[bytes] = field(default_factory=list)  #: what each worker has said of a line so far

    @staticmethod
    def start(framework: str, workers: int, timeout_s: float) -> Crew:
        """Start and wait until all are ready. Raises WorkerFailed."""
        stack = contextlib.ExitStack()
        crew = Crew(framework, timeout_s, stack.enter_context(temporary_folder("campaign")), [], stack, [b""] * workers)
        try:
            for rank in range(workers):
                crew.workers.append(_start(crew.folder, framework, rank, workers, timeout_s))
            crew._listen(max(START_S, timeout_s))
        except BaseException:
            crew.close()
            raise
        return crew

    def visit(self, c: Configuration, visit_s: float) -> Answer:
        """One visit: the mean over the workers of a step's and the reference's seconds, the sum of their CPU seconds."""
        answers = self.ask({"do": "visit", "configuration": c.to_json(), "visit_s": visit_s})
        n = len(answers)
        return {
            "step_s": sum(a["step_s"] for a in answers) / n,
            "reference_s": sum(a["reference_s"] for a in answers) / n,
            "cpu_s": sum(a["cpu_s"] for a in answers),
            "steps": answers[0]["steps"],
        }

    def ask(self, question: Answer) -> list[Answer]:
        """Every worker's answer. Raises WorkerFailed when one errs, dies or takes longer than `timeout_s`."""
        line = (json.dumps(question) + "\n").encode()
        for rank, worker in enumerate(self.workers):
            assert worker.stdin is not None
            try:
                worker.stdin.write(line)
                worker.stdin.flush()
            except BrokenPipeError as error:
                raise self._died(rank) from error
        return self._listen(self.timeout_s)

    def close(self) -> None:
        """End every worker, whatever it does."""
        end(self.workers)
        for worker in self.workers:
            for pipe in (worker.stdin, worker.stdout):
                if pipe is not None:
                    try:
                        pipe.close()
                    except BrokenPipeError:  # a question that nobody read
                        continue
        self.stack.close()

    def _listen(self, within_s: float) -> list[Answer]:
        """A line of every worker."""
        answers: dict[int, Answer] = {}
        deadline = time.monotonic() + within_s
        while len(answers) < len(self.workers):
            waited = {_pipe(w): rank for rank, w in enumerate(self.workers) if rank not in answers}
            ready, _, _ = select.select(list(waited), [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise self._failed(min(waited.values()), f"gave no answer for {within_s:.0f} s")
            for pipe in ready:
                rank = waited[pipe]
                answer = self._line(rank, pipe)
                if answer is not None and "error" in answer:
                    raise self._failed(rank, f"failed: {answer['error']}")
                if answer is not None:
                    answers[rank] = answer
        return [answers[rank] for rank in sorted(answers)]

    def _line(self, rank: int, pipe: int) -> Answer | None:
        said = os.read(pipe, 1 << 16)
        if not said:
            raise self._died(rank)
        line, newline, rest = (self.pending[rank] + said).partition(b"\n")
        self.pending[rank] = rest if newline else line
        answer: Answer | None = json.loads(line) if newline else None
        return answer

    def _died(self, rank: int) -> WorkerFailed:
        code = self.workers[rank].wait(10)
        said = last_line(_log(self.folder, rank)) if code >= 0 else ""
        return self._failed(rank, ended_how(code) + (f": {said}" if said else ""))

    def _failed(self, rank: int, how: str) -> WorkerFailed:
        of = f" of {len(self.workers)}" if len(self.workers) > 1 else ""
        return WorkerFailed(f"{self.framework} worker {rank}{of} {how}", rank=rank, doing="a visit")


def _pipe(worker: Process) -> int:
    """Where a worker's answers come from."""
    assert worker.stdout is not None
    return worker.stdout.fileno()


def _log(folder: Path, rank: int) -> Path:
    return folder / f"worker-rank{rank}.log"


def _start(folder: Path, framework: str, rank: int, workers: int, timeout_s: float) -> Process:
    cores = sorted(os.sched_getaffinity(0))
    told = folder / f"spec{rank}.json"
    spec = {
        "framework": framework,
        "rank": rank,
        "workers": workers,
        "core": cores[rank % len(cores)],
        "timeout_s": timeout_s,
        "rendezvous": f"file://{folder}/rendezvous",
    }
    told.write_text(json.dumps(spec))
    return spawn("partita.models.measure.worker", told, env=environment(framework), log=_log(folder, rank), pipes=True)


def environment(framework: str) -> dict[str, str]:
    """What holds a framework to the CPU, to one thread, to loopback and to its own messages."""
    return threads_env(1) | {
        "NPROC": "1",
        "KERAS_BACKEND": framework,
        "GLOO_SOCKET_IFNAME": "lo",
        "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false",
        "JAX_PLATFORMS": "cpu",
        "CUDA_VISIBLE_DEVICES": "",
        "TF_CPP_MIN_LOG_LEVEL": "2",
    }


def installed(frameworks: Sequence[str]) -> tuple[str, ...]:
    """Those of the frameworks that can be imported here."""
    from importlib.util import find_spec

    return tuple(f for f in frameworks if find_spec(f) is not None)
