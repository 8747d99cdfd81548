"""The next batch comes while a step runs, and everything else is as if it did not."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from partita.errors import JobError
from partita.training.job import Batch, TrainingJob, drawing
from partita.training.runtime.batches import Progress, ahead, turns


def job(samples: int = 4, many: int = 5) -> TrainingJob:
    """Batches drawn from all the global generators."""

    def batches(epoch: int) -> Iterator[Batch]:
        for _ in range(many):
            yield torch.randn(samples, 3) + float(np.random.rand()), torch.randint(0, 2, (samples,))  # noqa: NPY002

    return TrainingJob(lambda: nn.Linear(3, 2), F.cross_entropy, batches, lambda ps: torch.optim.SGD([p for _, p in ps], lr=0.1))  # fmt: skip


def test_one_is_made_ahead_and_no_more() -> None:
    made: list[int] = []

    def items() -> Iterator[int]:
        for i in range(10):
            made.append(i)
            yield i

    seen = []
    for i in ahead(items()):
        deadline = time.monotonic() + 5
        while len(made) < min(i + 2, 10) and time.monotonic() < deadline:
            time.sleep(0.001)
        time.sleep(0.01)
        assert len(made) == min(i + 2, 10)
        seen.append(i)
    assert seen == list(range(10))


def test_a_failing_batch_names_its_line_where_it_is_needed() -> None:
    def batches(epoch: int) -> Iterator[Batch]:
        yield torch.zeros(2, 3), torch.zeros(2, dtype=torch.long)
        raise OSError("disk on fire")

    failing = TrainingJob(lambda: nn.Linear(3, 2), F.cross_entropy, batches, lambda ps: torch.optim.SGD([p for _, p in ps], lr=0.1))  # fmt: skip
    coming = ahead(turns(failing, Progress(), steps=None, epochs=1))
    assert next(coming).done == Progress(1, 0, 1)
    with pytest.raises(
        JobError, match=rf"in its batches at {Path(__file__)}:\d+ \(raise OSError.*: OSError: disk on fire"
    ):
        next(coming)


def test_batches_are_the_same_whatever_is_drawn_meanwhile() -> None:
    """Stages draw from the same global generators while the thread makes a batch; both get what they would have got alone."""
    wanted = [t.batch for t in turns(job(), Progress(), steps=9, epochs=1)]

    def stage(seed: int) -> float:
        with drawing:
            torch.manual_seed(seed)
            return float(sum(torch.rand(3).sum() for _ in range(50)))

    alone = [stage(k) for k in range(9)]
    found, drawn = [], []
    for turn in ahead(turns(job(), Progress(), steps=9, epochs=1)):
        drawn.append(stage(len(drawn)))
        found.append(turn.batch)
    assert drawn == alone
    assert all(torch.equal(a[0], b[0]) and torch.equal(a[1], b[1]) for a, b in zip(found, wanted, strict=True))


def test_turns_go_on_in_the_middle_of_an_epoch() -> None:
    whole = list(turns(job(), Progress(), steps=None, epochs=2))
    assert [(t.done.step, t.done.epoch, t.done.index, t.first) for t in whole[3:7]] == [
        (4, 0, 4, False),
        (5, 0, 5, False),
        (6, 1, 1, True),
        (7, 1, 2, False),
    ]
    rest = list(turns(job(), whole[6].done, steps=None, epochs=2))
    assert [t.done for t in rest] == [t.done for t in whole[7:]]
    assert torch.equal(rest[0].batch[0], whole[7].batch[0])
    assert rest[0].first
    assert list(turns(job(), Progress(7), steps=7, epochs=1)) == []


def test_no_more_batches_are_made_than_steps_are_asked_for() -> None:
    made = []

    def batches(epoch: int) -> Iterator[Batch]:
        for i in range(5):
            made.append(i)
            yield torch.zeros(2, 3), torch.zeros(2)

    counted = TrainingJob(lambda: nn.Linear(3, 2), F.cross_entropy, batches, lambda ps: torch.optim.SGD([p for _, p in ps], lr=0.1))  # fmt: skip
    assert len(list(ahead(turns(counted, Progress(), steps=3, epochs=1)))) == 3
    assert made == [0, 0, 1, 2]  # the first once more as the example


def test_an_end_in_between_leaves_no_thread() -> None:
    coming = ahead(iter(range(100)))
    next(coming)
    coming.close()  # type: ignore[attr-defined]
    deadline = time.monotonic() + 5
    while any(t.name.startswith("next batch") for t in threading.enumerate()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
