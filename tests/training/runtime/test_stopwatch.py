"""The stopwatch: what a rank had of its core, computing and woken."""

import math
import os
import subprocess
import sys
import threading
import time

import pytest
import torch

from partita.training.runtime import stopwatch
from partita.training.runtime.stopwatch import Stopwatch, stopwatch_for

CPU = torch.device("cpu")


def worked(watch: Stopwatch, seconds: float) -> None:
    watch.begin(0)
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass
    watch.finish(0)


def test_waiting_for_the_core_when_woken_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """2 ms of work, computed at one go, behind a message after which the core was somebody else's for 6 ms."""
    told = iter([1_000_000, 7_000_000])
    monkeypatch.setattr(stopwatch._CoreQueue, "waited_ns", lambda _: next(told))
    watch = stopwatch_for(CPU, [True, False], waits=True)
    watch.begin_step()
    worked(watch, 2e-3)
    assert watch.core_share() <= 0.26


def test_a_plan_of_one_device_asks_nobody() -> None:
    watch = stopwatch_for(CPU, [True], waits=False)
    watch.begin_step()
    worked(watch, 1e-3)
    assert 0 < watch.core_share() <= 1
    assert watch._queue is None


def test_a_core_that_is_shared_is_waited_for() -> None:
    """Two that never rest on one core: each waits for about half of the time."""
    found: list[int] = []

    def beside_another() -> None:
        core = min(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {core})  # of this thread only
        code = f"import os; os.sched_setaffinity(0, {{{core}}}); print(flush=True)\nwhile True: pass"
        with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as other:
            try:
                assert other.stdout is not None
                other.stdout.readline()
                queue, end = stopwatch._CoreQueue(), time.monotonic() + 0.3
                found.append(queue.waited_ns())
                while time.monotonic() < end:
                    pass
                found.append(queue.waited_ns())
            finally:
                other.kill()

    thread = threading.Thread(target=beside_another)
    thread.start()
    thread.join()
    assert found[1] - found[0] > 0.05e9


@pytest.mark.parametrize("threads", [1, 2])
def test_a_wait_is_no_computing(monkeypatch: pytest.MonkeyPatch, threads: int) -> None:
    """Neither by the thread's CPU time nor, with several threads, by the clock."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    watch = Stopwatch([True, False])
    watch.start, watch.end, watch.work = [0, 3_000_000], [2_000_000, 9_000_000], [1_000_000, 0]
    assert watch.worked_s() == pytest.approx({1: 1e-3, 2: 2e-3}[threads])
    assert math.isnan(Stopwatch([False]).worked_s())
