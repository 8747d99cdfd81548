"""Processes that help this one: started alike, ended with everything they started, and never left behind.

    spawn("partita.training.runtime.worker", spec, env=.., log=..)   runs  python -m partita.spawn MODULE SPEC

The child is tied to its parent before it imports anything: if the parent is killed, even during the child's imports, the
kernel kills the child.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import runpy
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from partita.interrupts import interrupts_wait

Process = subprocess.Popen[bytes]
PARENT = "PARTITA_LAUNCHER"  #: environment variable: the process that a child must not outlive
_PDEATHSIG = 1  # prctl(2)
_LOOK_S = 0.02  #: between two looks at processes that work


def spawn(
    module: str,
    told: Path,
    *,
    env: Mapping[str, str] | None = None,
    log: Path | None = None,
    pipes: bool = False,
    handles: Sequence[int] = (),
    append: bool = False,
) -> Process:
    """Run a module as a process of its own, in a session of its own: Ctrl-C is for the one who asks.

    It gets the path `told` as its argument. What it prints goes to `log` (None: nowhere; behind what
    stands there with `append`), or, with `pipes`, its stdin and
    stdout are pipes and only its stderr goes there. It inherits the open files `handles`, under the same numbers.
    """
    with open(log or os.devnull, "ab" if append else "wb") as out:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "partita.spawn", module, str(told)],
            env={**os.environ, PARENT: str(os.getpid()), "PYTHONUNBUFFERED": "1", **(env or {})},
            stdin=subprocess.PIPE if pipes else subprocess.DEVNULL,
            stdout=subprocess.PIPE if pipes else out,
            stderr=out,
            start_new_session=True,
            pass_fds=tuple(handles),
        )


def usable_cores() -> int:
    """How many cores this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def threads_env(threads: int) -> dict[str, str]:
    """Environment that holds every library's pool to so many threads."""
    return dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(threads))


def exit_codes(processes: Sequence[Process], timeout_s: float) -> list[int | None]:
    """Of processes that work together, when all have ended, the first has failed, or the time is up; None: goes on."""
    deadline = time.monotonic() + timeout_s
    while True:
        codes = [p.poll() for p in processes]
        if None not in codes or any(codes) or time.monotonic() > deadline:
            return codes
        time.sleep(_LOOK_S)


def end(processes: Sequence[Process], grace_s: float = 0.0) -> None:
    """End processes and whatever they have started: asked first if there is a grace, then killed. An interrupt waits; one that
    comes just as this begins leaves no grace."""
    try:
        with interrupts_wait():
            _end(processes, grace_s)
    except KeyboardInterrupt:
        with interrupts_wait():
            _end(processes, 0.0)
        raise


def _end(processes: Sequence[Process], grace_s: float) -> None:
    if grace_s:
        for p in processes:
            if p.poll() is None:
                p.terminate()
        deadline = time.monotonic() + grace_s
        for p in processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                p.wait(max(0.0, deadline - time.monotonic()))
    for p in processes:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(p.pid, signal.SIGKILL)  # its session's first process has its number
        p.wait()


def last_line(log: Path) -> str:
    """The last line of what a process printed; empty without one."""
    try:
        lines = log.read_text(errors="replace").strip().splitlines()
    except OSError:
        return ""
    return lines[-1].strip() if lines else ""


def ended_how(code: int) -> str:
    """
    >>> ended_how(-9), ended_how(1)
    ('was killed by SIGKILL', 'ended with exit code 1')
    """
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


def process_state(pid: int) -> str:
    """The kernel's letter for a process of this machine: R runs, S sleeps, T is stopped, Z ended, X is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][:1] or "X"
    except OSError:
        return "X"


def parent_is_gone() -> bool:
    """The process that started this one has ended. For systems that do not kill the child then."""
    return os.getppid() != int(os.environ.get(PARENT, os.getppid()))


def die_with_parent() -> None:
    """Let the kernel kill this process as soon as the one that started it is gone."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PDEATHSIG, signal.SIGKILL)
    if parent_is_gone():  # before that call
        os._exit(1)


if __name__ == "__main__":
    die_with_parent()
    module = sys.argv.pop(1)
    runpy.run_module(module, run_name="__main__", alter_sys=True)
