"""A crew: one helper process a core, pinned, told what to do by single bytes, answering in lines of JSON.

A helper waits in a read while it has nothing to do and takes no time then. It ends when its pipe is closed.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from partita.errors import WorkerFailed
from partita.spawn import Process, end, last_line, spawn, threads_env
from partita.temporary import temporary_folder

GO, STOP = b"g", b"s"


@dataclass(frozen=True)
class Crew:
    """Helpers that run; number k has the k-th core."""

    processes: Sequence[Process]
    logs: Sequence[Path]

    def __len__(self) -> int:
        return len(self.processes)

    def say(self, k: int, word: bytes) -> None:
        """Raises WorkerFailed where the helper has ended."""
        try:
            os.write(_fileno(self.processes[k].stdin), word)
        except BrokenPipeError:
            raise self._ended(k) from None

    def heard(self, k: int) -> Any:
        """The next answer. Raises WorkerFailed where the helper has ended."""
        stdout = self.processes[k].stdout
        assert stdout is not None
        line = stdout.readline()
        if not line:
            raise self._ended(k)
        return json.loads(line)

    def _ended(self, k: int) -> WorkerFailed:
        said = last_line(self.logs[k]) or "without a word"
        return WorkerFailed(f"helper {k} of the benchmark ended: {said}", rank=k, doing="helping a benchmark")


def _fileno(pipe: IO[bytes] | None) -> int:
    assert pipe is not None
    return pipe.fileno()


@contextlib.contextmanager
def crew(module: str, told: Sequence[Mapping[str, Any]]) -> Iterator[Crew]:
    """A helper for each of `told`: `module` is a file of this folder, started with one thread. All have said they are ready."""
    here = str(Path(__file__).parent)
    path = os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH")]), here])
    with temporary_folder("crew") as folder:
        logs = [folder / f"{k}.log" for k in range(len(told))]
        started: list[Process] = []
        try:
            for k, what in enumerate(told):
                file = folder / f"{k}.json"
                file.write_text(json.dumps(what))
                started.append(spawn(module, file, env=threads_env(1) | {"PYTHONPATH": path}, log=logs[k], pipes=True))
            found = Crew(started, logs)
            for k in range(len(found)):
                found.heard(k)
            yield found
        finally:
            for p in started:
                for pipe in (p.stdin, p.stdout):
                    assert pipe is not None
                    pipe.close()
            end(started)


# ---- inside a helper ----------------------------------------------------------------------------------------------------


def settle() -> tuple[dict[str, Any], IO[str]]:
    """What this helper was told, and where its answers go; what anything else prints goes to its log. Pins it to `cores`."""
    told: dict[str, Any] = json.loads(Path(sys.argv[1]).read_text())
    cores = set(told["cores"]) & os.sched_getaffinity(0)
    if cores:
        os.sched_setaffinity(0, cores)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return told, answers


def answer(answers: IO[str], value: Any) -> None:
    answers.write(json.dumps(value) + "\n")
    answers.flush()


def words() -> Iterator[bytes]:
    """What the helper is told next, until its pipe is closed."""
    while word := os.read(0, 1):
        yield word


def is_told() -> bool:
    """A word, or the end, waits to be read."""
    return bool(select.select([0], [], [], 0)[0])
