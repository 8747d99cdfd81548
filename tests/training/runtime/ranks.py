"""Ranks as processes of a test: a process group over a file, a function on every rank, what rank 0 returns."""

from __future__ import annotations

import contextlib
import multiprocessing
import tempfile
import traceback
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from partita.training.runtime.mailbox import open_mailboxes
from partita.training.runtime.pipeline import Assignment, Pipeline
from partita.training.runtime.transport import Transport


@contextlib.contextmanager
def joined(store: str, rank: int, ranks: int) -> Iterator[None]:
    dist.init_process_group("gloo", f"file://{store}", timedelta(seconds=120), ranks, rank)
    try:
        yield
    finally:
        dist.destroy_process_group()


def pipeline(job: Any, assignment: Assignment) -> Pipeline:
    """The engine of a rank that has joined."""
    boxes = open_mailboxes(assignment.rank, len(assignment.world))
    return Pipeline(job, assignment, Transport(torch.device("cpu"), "gloo", mailboxes=boxes), np.zeros(1, np.int64))


def on_ranks(function: Callable[..., Any], ranks: int, *arguments: Any) -> Any:
    """What `function(rank, ranks, *arguments)` returns on rank 0. Raises AssertionError with what any rank failed with."""
    # a process that has torch loaded, which takes three seconds a rank; it keeps the environment that it had at the first call
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["partita.training.runtime.pipeline", "partita.training.runtime.session"])
    with tempfile.TemporaryDirectory() as folder:
        answers = context.Queue()
        store = str(Path(folder) / "store")
        crew = [
            context.Process(target=_run, args=(function, store, rank, ranks, arguments, answers), daemon=True)
            for rank in range(ranks)
        ]
        for process in crew:
            process.start()
        try:
            found = dict(answers.get(timeout=240) for _ in crew)
        finally:
            for process in crew:
                process.join(5)
                process.kill()
    failed = [value for value in found.values() if isinstance(value, str) and value.startswith("Traceback")]
    assert not failed, failed[0]
    return found[0]


def _run(
    function: Callable[..., Any], store: str, rank: int, ranks: int, arguments: tuple[Any, ...], answers: Any
) -> None:
    torch.set_num_threads(1)
    try:
        with joined(store, rank, ranks):
            value = function(rank, ranks, *arguments)
    except BaseException:
        value = traceback.format_exc()
    answers.put((rank, value))
