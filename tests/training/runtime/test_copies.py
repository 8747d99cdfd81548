"""Copies of ranks' states in memory: always one that is whole, all of one step, and what comes back is what was there."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from partita.errors import BadInput, CheckpointError
from partita.training.runtime import copies
from partita.training.runtime.batches import Progress
from partita.training.runtime.copies import Copies, read
from partita.training.runtime.copy_files import CopyFiles, step_of
from partita.training.runtime.mailbox import PeerGone
from partita.training.runtime.optimizer_state import OptimizerState, optimizer_state, restore
from partita.training.runtime.worker_status import Board


class Rank:
    """Some parameters, a buffer, an optimizer that has taken steps, and where they are copied to."""

    def __init__(self, files: CopyFiles, rank: int, board: Board, patience_s: float = 5.0) -> None:
        torch.manual_seed(rank)
        self.tensors: dict[str, Tensor] = {
            f"r{rank}.w": nn.Parameter(torch.randn(3, 5)), f"r{rank}.b": nn.Parameter(torch.randn(7)), "mean": torch.full((4,), float(rank)),
            "count": torch.tensor(3 + rank),
        }  # fmt: skip
        self.parameters = [(n, t) for n, t in self.tensors.items() if isinstance(t, nn.Parameter)]
        self.optimizer = torch.optim.AdamW(self.parameters, lr=0.1)
        self.copies = Copies(files.handles[rank], rank, board, patience_s)

    def train(self) -> None:
        for _, p in self.parameters:
            p.grad = torch.randn_like(p)
        self.optimizer.step()

    @property
    def state(self) -> OptimizerState:
        return optimizer_state(self.optimizer, self.parameters)

    def copy(self, step: int) -> None:
        self.copies.write(Progress(step, 1, step), self.tensors, self.state, {"mean": 0.5})

    def values(self) -> dict[str, Tensor]:
        return {n: t.detach().clone() for n, t in self.tensors.items()}


@pytest.fixture
def files() -> Iterator[CopyFiles]:
    with closing(CopyFiles.create(2)) as made:
        yield made


@pytest.fixture
def ranks(files: CopyFiles, tmp_path: Path) -> list[Rank]:
    board = Board.create(tmp_path / "board", 2)
    return [Rank(files, r, board) for r in range(2)]


def copy_all(ranks: list[Rank], steps: range) -> None:
    for step in steps:
        for rank in ranks:
            rank.train()
            rank.copy(step)


def test_what_comes_back_is_what_was_there(files: CopyFiles, ranks: list[Rank]) -> None:
    copy_all(ranks, range(1, 4))
    kept = ranks[0].values() | ranks[1].values()
    states = [r.state for r in ranks]
    assert files.newest == 3
    found = read(files.handles, 3, kept)
    assert found.progress == Progress(3, 1, 3)
    for name, tensor in kept.items():
        if name != "mean":
            assert torch.equal(found.model[name], tensor if name != "count" else torch.tensor(3)), name
    assert torch.equal(found.model["mean"], torch.full((4,), 0.5))  # of replicas: their mean, each by its share
    for rank, state in zip(ranks, states, strict=True):
        fresh = torch.optim.AdamW(rank.parameters, lr=9.0)
        restore(fresh, rank.parameters, found.optimizer)
        assert fresh.param_groups[0]["lr"] == 0.1
        again = optimizer_state(fresh, rank.parameters)
        for name, fields in state.tensors.items():
            for key, tensor in fields.items():
                assert torch.equal(again.tensors[name][key], tensor), (name, key)


def test_only_what_is_wanted_is_taken(files: CopyFiles, ranks: list[Rank]) -> None:
    copy_all(ranks, range(1, 2))
    found = read(files.handles, 1, ["r1.w"])
    assert set(found.model) == {"r1.w"}
    assert set(found.optimizer.tensors) == {"r1.w"}


def test_a_copy_that_is_broken_off_leaves_the_one_before(
    files: CopyFiles, ranks: list[Rank], monkeypatch: pytest.MonkeyPatch
) -> None:
    """At any place: nothing is marked whole before all of it is written."""
    copy_all(ranks, range(1, 3))
    kept = ranks[0].values()
    for rank in ranks:
        rank.train()
    ranks[1].copy(3)

    def killed(views: list[Tensor], tensors: list[Tensor]) -> None:
        views[0].copy_(tensors[0])
        raise KeyboardInterrupt

    monkeypatch.setattr(torch, "_foreach_copy_", killed)
    with pytest.raises(KeyboardInterrupt):
        ranks[0].copy(3)
    assert sorted(step_of(h) for h in files.handles[0]) == [-1, 2]
    assert files.newest == 2
    assert torch.equal(read(files.handles, 2, kept).model["r0.w"], kept["r0.w"])
    with pytest.raises(CheckpointError, match="no copy of step 3"):
        read(files.handles, 3, kept)


def test_nothing_is_newest_before_all_have_copied(files: CopyFiles, ranks: list[Rank]) -> None:
    assert files.newest is None
    ranks[0].train()
    ranks[0].copy(1)
    assert files.newest is None


def test_a_rank_that_is_ahead_waits(files: CopyFiles, tmp_path: Path) -> None:
    """Otherwise it would overwrite what the others still lack."""
    board = Board.create(tmp_path / "board", 2)
    ahead, behind = Rank(files, 0, board, 0.2), Rank(files, 1, board)
    ahead.train()
    ahead.copy(1)
    with pytest.raises(PeerGone, match="has made no copy of step 1"):
        ahead.copy(2)
    assert files.newest is None
    behind.train()
    later = threading.Timer(0.05, behind.copy, [1])
    later.start()
    ahead.copy(2)
    later.join()
    assert files.newest == 1


def test_another_plan_has_other_tensors(files: CopyFiles, ranks: list[Rank]) -> None:
    copy_all(ranks, range(1, 3))
    ranks[0].tensors["more"] = nn.Parameter(torch.randn(50, 1000))
    ranks[0].parameters.append(("more", ranks[0].tensors["more"]))  # type: ignore[arg-type]
    ranks[0].optimizer.add_param_group({"params": [("more", ranks[0].tensors["more"])]})
    copy_all(ranks, range(3, 6))
    assert files.newest == 5
    found = read(files.handles, 5, ["more"])
    assert torch.equal(found.model["more"], ranks[0].tensors["more"])
    assert torch.equal(found.optimizer.tensors["more"]["exp_avg"], ranks[0].state.tensors["more"]["exp_avg"])


def test_text_that_grows_finds_room(files: CopyFiles, ranks: list[Rank]) -> None:
    copy_all(ranks, range(1, 2))
    kept = ranks[0].values()
    slot = ranks[0].copies._slots[0]
    slot.fill(2, {f"model/{n}": t.detach() for n, t in ranks[0].tensors.items()}, b"x" * 100_000)
    assert slot.views is not None
    assert all(torch.equal(v, t) for v, t in zip(slot.views, kept.values(), strict=True))


def test_a_rank_without_work_has_a_copy_too(files: CopyFiles, ranks: list[Rank]) -> None:
    """Of nothing: it may have work again by the next plan."""
    ranks[1].tensors, ranks[1].parameters = {}, []
    for step in (1, 2):
        ranks[0].copy(step)
        ranks[1].copies.write(Progress(step, 1, step), {}, OptimizerState(), {})
    assert files.newest == 2
    assert set(read(files.handles, 2, ["r0.w", "r1.w"]).model) == {"r0.w"}


def test_no_room_is_said(files: CopyFiles, ranks: list[Rank], monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: int) -> None:
        raise OSError(12, os.strerror(12))

    monkeypatch.setattr(copies.os, "posix_fallocate", full)
    with pytest.raises(BadInput, match=r"no room in memory for a copy of 0\.0 MB: Cannot allocate memory"):
        ranks[0].copy(1)
