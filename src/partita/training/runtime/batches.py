"""The batches of an epoch, the same ones in every rank and after every resume, also where the job draws random numbers.

A job that shuffles by torch's, numpy's or Python's own generator would see other numbers in every process: the stages draw
from torch's too. So a job's batches have generators of their own, seeded by the job's seed and the epoch.

The next batch is made by a thread while a step runs. Whoever draws from the process's global generators meanwhile, a stage
with dropout, holds `drawing`: the thread puts the job's generators in their place while it makes a batch.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.random.mtrand import get_bit_generator, set_bit_generator
from torch import Tensor
from torch.utils import _pytree as pytree

from partita.training.job import Batch, TrainingJob, check_alike, checked_batch, drawing, users_code

T = TypeVar("T")
_END: Any = object()


@dataclass(frozen=True)
class Progress:
    """How far training has come: `step` steps done; the next batch is number `index` of `epoch`."""

    step: int = 0
    epoch: int = 0
    index: int = 0


@dataclass(frozen=True)
class Turn:
    """A batch and where training stands once it is done."""

    done: Progress
    batch: Batch
    first: bool  #: the first one that is taken of its epoch


def turns(job: TrainingJob, progress: Progress, *, steps: int | None, epochs: int) -> Iterator[Turn]:
    """The batches from where training stands until the asked-for step, or else epoch.

    Raises JobError where the job fails, or for a batch that is unlike its first one.
    """
    step, epoch, skip = progress.step, progress.epoch, progress.index
    example = job.example()
    while step < steps if steps is not None else epoch < epochs:
        index = -1
        for index, batch in enumerate(epoch_batches(job, epoch)):
            if index < skip:
                continue
            check_alike(batch, example, f"batch {index} of epoch {epoch}")
            step += 1
            yield Turn(Progress(step, epoch, index + 1), batch, index == skip)
            if step == steps:
                return
        if index < 0:
            return
        epoch, skip = epoch + 1, 0


def ahead(items: Iterator[T]) -> Iterator[T]:
    """The same items, the next one made by a thread while one is in use. What the thread raises is raised here, as it was.

    >>> list(ahead(iter("abc")))
    ['a', 'b', 'c']
    """
    device = torch.cuda.current_device() if torch.cuda.is_initialized() else None  # type: ignore[no-untyped-call]

    def settle() -> None:
        if device is not None:  # a thread begins on GPU 0
            torch.cuda.set_device(device)

    thread = ThreadPoolExecutor(1, "next batch", settle)
    try:
        coming = thread.submit(next, items, _END)
        while (item := coming.result()) is not _END:
            coming = thread.submit(next, items, _END)
            yield item
    finally:
        thread.shutdown(wait=False, cancel_futures=True)


def epoch_batches(job: TrainingJob, epoch: int) -> Iterator[Batch]:
    """The job's batches of one epoch. Raises JobError where the job fails or yields something else."""
    data = _Generators.seeded(hash((job.seed, epoch)) & 0xFFFFFFFF)
    with users_code("its batches"):
        batches: Iterator[Any] = data.using(lambda: iter(job.batches(epoch)))
        while (batch := data.using(lambda: next(batches, _END))) is not _END:
            yield checked_batch(batch)


class _Generators:
    """The states of torch's and Python's global generators, and numpy's itself: reading and writing its state takes 80 us, which
    is a tenth of a small model's step. (The second of two normal numbers that it makes at once is dropped when it is exchanged.)"""

    def __init__(self) -> None:
        self.note()

    def note(self) -> None:
        """Take over what the global ones are now."""
        self.torch, self.numpy, self.python = torch.get_rng_state(), get_bit_generator(), random.getstate()

    @staticmethod
    def seeded(seed: int) -> _Generators:
        """As they are after seeding; the global ones are left as they were."""
        with drawing:
            before = _Generators()
            torch.manual_seed(seed)
            set_bit_generator(np.random.MT19937())
            np.random.seed(seed)  # noqa: NPY002
            random.seed(seed)
            seeded = _Generators()
            before.put_back()
            return seeded

    def put_back(self) -> None:
        torch.set_rng_state(self.torch)
        set_bit_generator(self.numpy)
        random.setstate(self.python)

    def using(self, function: Callable[[], Any]) -> Any:
        """Call a function that draws from these; the global ones are left as they were."""
        with drawing:
            before = _Generators()
            self.put_back()
            try:
                return function()
            finally:
                self.note()
                before.put_back()


def batch_digest(batch: Batch) -> int:
    """A number for the content of a batch, the same in every process. O(bytes)."""
    digest = 0
    for leaf in pytree.tree_leaves(batch):
        digest = zlib.crc32(_bytes(leaf) if isinstance(leaf, Tensor) else repr(leaf).encode(), digest)
    return digest


def _bytes(tensor: Tensor) -> bytes:
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
