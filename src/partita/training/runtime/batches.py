"""The batches of an epoch, the same ones in every rank and after every resume, also where the job draws random numbers.

A job that shuffles by torch's, numpy's or Python's own generator would see other numbers in every process: the stages draw
from torch's too. So a job's batches have generators of their own, seeded by the job's seed and the epoch.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from partita.training.job import Batch, TrainingJob, checked_batch, users_code

_END = object()


def epoch_batches(job: TrainingJob, epoch: int) -> Iterator[Batch]:
    """The job's batches of one epoch. Raises JobError where the job fails or yields something else."""
    data = _Generators.seeded(hash((job.seed, epoch)) & 0xFFFFFFFF)
    with users_code("its batches"):
        batches: Iterator[Any] = data.using(lambda: iter(job.batches(epoch)))
    while True:
        with users_code("its batches"):
            batch = data.using(lambda: next(batches, _END))
        if batch is _END:
            return
        yield checked_batch(batch)


class _Generators:
    """The states of torch's, numpy's and Python's global generators."""

    def __init__(self) -> None:
        self.note()

    def note(self) -> None:
        """Take over what the global ones are now."""
        self.torch, self.numpy, self.python = torch.get_rng_state(), np.random.get_state(), random.getstate()  # noqa: NPY002

    @staticmethod
    def seeded(seed: int) -> _Generators:
        """As they are after seeding; the global ones are left as they were."""
        before = _Generators()
        torch.manual_seed(seed)
        np.random.seed(seed)  # noqa: NPY002
        random.seed(seed)
        seeded = _Generators()
        before.put_back()
        return seeded

    def put_back(self) -> None:
        torch.set_rng_state(self.torch)
        np.random.set_state(self.numpy)  # noqa: NPY002
        random.setstate(self.python)

    def using(self, function: Callable[[], Any]) -> Any:
        """Call a function that draws from these; the global ones are left as they were."""
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
