"""What ranks tell each other beside tensors: bytes, values of JSON, and why one of them failed."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from partita.errors import PartitaError, WorkerFailed, place_of, sentence_of

T = TypeVar("T")


def told(value: Any) -> list[Any]:
    """[ranks] the value that each rank tells. Every rank of the process group calls it."""
    ranks, mine = dist.get_world_size(), _bytes(value)
    sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(ranks)]
    dist.all_gather(sizes, torch.tensor([len(mine)]))
    room = [torch.zeros(max(int(s) for s in sizes), dtype=torch.uint8) for _ in range(ranks)]
    room[dist.get_rank()][: len(mine)] = mine
    dist.all_gather(room, room[dist.get_rank()].clone())
    return [_value(r[: int(s)]) for r, s in zip(room, sizes, strict=True)]


def handed(value: Any, source: int, target: int) -> Any:
    """On rank `target` the value that rank `source` hands to it, None elsewhere. Both call it; others may."""
    rank = dist.get_rank()
    if source == target:
        return value if rank == target else None
    if rank == source:
        send_bytes(target, json.dumps(value).encode())
    return json.loads(received_bytes(source)) if rank == target else None


def send_bytes(target: int, blob: bytes) -> None:
    """To a rank that calls `received_bytes`."""
    dist.send(torch.tensor([len(blob)]), target)
    if blob:
        dist.send(torch.frombuffer(bytearray(blob), dtype=torch.uint8), target)


def received_bytes(source: int) -> bytes:
    """What a rank sends by `send_bytes`."""
    size = torch.zeros(1, dtype=torch.int64)
    dist.recv(size, source)
    blob = torch.empty(int(size), dtype=torch.uint8)
    if int(size):
        dist.recv(blob, source)
    return blob.numpy().tobytes()


def _bytes(value: Any) -> Tensor:
    return torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)


def _value(told: Tensor) -> Any:
    return json.loads(told.numpy().tobytes())


def on_all(work: Callable[[], T], doing: str) -> T:
    """What `work` returns, once it has gone well on every rank; it speaks to no other rank. Every rank calls it.

    Raises what it raises here; WorkerFailed with what it raised on another rank.
    """
    error: Exception | None = None
    try:
        found = work()
    except Exception as raised:
        error = raised
    words = told(_said(error) if error else "")
    if error:
        raise error
    failed = next((r for r, w in enumerate(words) if w), None)
    if failed is not None:
        raise WorkerFailed(f"rank {failed} failed while {doing}: {words[failed]}", rank=failed, doing=doing)
    return found


def _said(error: Exception) -> str:
    return error.message if isinstance(error, PartitaError) else sentence_of(error) + place_of(error)
