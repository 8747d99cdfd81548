"""Checkpoints on disk: whole or not there, and what is damaged is said to be."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from partita.cli import main
from partita.errors import CheckpointError
from partita.training.runtime import checkpoint
from partita.training.runtime.checkpoint import (
    Progress,
    examine,
    latest,
    read,
    write,
)
from partita.training.runtime.optimizer_state import Group, OptimizerState

NOTHING = OptimizerState()


def tensors(value: float) -> dict[str, Tensor]:
    return {"a.weight": torch.full((3, 2), value), "a.bias": torch.full((3,), value)}


def written(folder: Path, step: int, **more: Any) -> Path:
    return write(folder, Progress(step, 1, 2), tensors(step), {}, NOTHING, {}, **more)


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    model = {**tensors(1.5), "count": torch.tensor(7), "half": torch.ones(2, dtype=torch.bfloat16)}
    groups = (Group(("a.weight",), {"lr": 0.1}, {"base_lrs": 0.1}), Group(("a.bias",), {"lr": 0.2}, {"base_lrs": 0.2}))
    state = OptimizerState(
        "SGD", {"a.weight": {"m": torch.ones(3, 2)}}, {"a.weight": {"step": 3}}, groups, "StepLR", {"last_epoch": 4}
    )
    path = write(tmp_path / "c", Progress(3, 1, 2), model, {"a.weight": ("b.weight",)}, state, {"seed": 7})
    found = read(tmp_path / "c")
    assert path == tmp_path / "c" / "step-00000003"
    assert found.progress == Progress(3, 1, 2)
    assert found.model.keys() == {*model, "b.weight"}
    assert all(torch.equal(found.model[n], t) and found.model[n].dtype == t.dtype for n, t in model.items())
    assert torch.equal(found.model["b.weight"], model["a.weight"])
    assert found.optimizer.tensors["a.weight"]["m"].tolist() == torch.ones(3, 2).tolist()
    assert replace(found.optimizer, tensors={}) == replace(state, tensors={})
    assert found.facts["seed"] == 7
    assert read(path).progress == found.progress  # the checkpoint's own folder is taken too
    modes = {p.stat().st_mode & 0o777 for p in path.iterdir()}
    assert len(modes) == 1  # readable by whoever may read the folder's other files


def test_tensors_that_share_memory_are_written_apart(tmp_path: Path) -> None:
    whole = torch.arange(6.0)
    write(tmp_path, Progress(1), {"whole": whole, "part": whole[2:4]}, {}, NOTHING, {})
    assert read(tmp_path).model["part"].tolist() == [2, 3]


def test_only_names_of_the_state_dict_are_in_the_models_file(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    path = write(tmp_path, Progress(1), tensors(1), {}, NOTHING, {}, saved=("a.weight",))
    assert load_file(path / "model.safetensors").keys() == {"a.weight"}
    assert read(tmp_path).model.keys() == {"a.weight", "a.bias"}


def test_older_checkpoints_go_when_the_new_one_is_there(tmp_path: Path) -> None:
    """Also those of an earlier run that came further: they would be taken for the newest."""
    old = written(tmp_path, 100)
    first = written(tmp_path, 5)
    assert [p.name for p in tmp_path.iterdir()] == [first.name]
    written(tmp_path, 10, keep=[first])
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-00000005", "step-00000010"]
    assert not old.exists()


class Killed(BaseException):
    """Stands for the end of the process."""


CALLS: list[tuple[Any, str]] = [
    (checkpoint, "save_file"),
    (os, "replace"),
    (os, "fsync"),
    (shutil, "rmtree"),
    (json, "dumps"),
]


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_kill_at_any_moment_leaves_a_whole_checkpoint(
    after: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Die before, or right after, each call that touches the disk: what is visible can be read, and is old or new."""
    moments = 0
    for module, name in CALLS:
        for which in range(12):
            folder = tmp_path / f"{name}{which}"
            first, second = written(folder, 1), written(folder, 2, keep=[folder / "step-00000001"])
            seen = 0
            real: Callable[..., Any] = getattr(module, name)

            def dying(*args: Any, **kwargs: Any) -> Any:
                nonlocal seen
                seen += 1
                if seen == which + 1 and not after:  # noqa: B023
                    raise Killed
                result = real(*args, **kwargs)  # noqa: B023
                if seen == which + 1:  # noqa: B023
                    raise Killed
                return result

            with monkeypatch.context() as patched:
                patched.setattr(module, name, dying)
                try:
                    written(folder, 3, keep=[second])
                    died = False
                except Killed:
                    died = True
            moments += died
            for path in folder.glob("step-*"):
                assert read(path).model["a.bias"].tolist() == [int(path.name[-1])] * 3
            assert latest(folder).name in ("step-00000002", "step-00000003")
            written(folder, 4, keep=[second])  # the next one clears away what was left
            assert sorted(p.name for p in folder.iterdir()) == ["step-00000002", "step-00000004"]
            assert not first.exists()
            if not died:
                break
    assert moments >= 11


@pytest.mark.parametrize(
    ("damage", "fact"),
    [
        (lambda p: (p / "state.json").write_text("garbage"), "is not JSON: line 1 column 1"),
        (lambda p: (p / "state.json").write_text('{"format": "partita-plan", "version": 1}'), "not 'partita-checkpoint'"),
        (lambda p: edit(p, step=-3), "step is -3"),
        (lambda p: edit(p, index=500), "it is not what was written"),
        (lambda p: edit(p, epoch="one"), "epoch is 'one', not a whole number"),
        (lambda p: edit(p, without="digest", optimizer=[1]), "optimizer is [1]"),
        (lambda p: edit(p, without="digest", groups=None), "groups is None"),
        (lambda p: (p / "state.json").unlink(), "No such file"),
        (lambda p: truncate(p / "model.safetensors"), "is damaged"),
        (lambda p: truncate(p / "optimizer.safetensors"), "is damaged"),
        (lambda p: (p / "model.safetensors").write_bytes(b"\xff" * 64), "is damaged"),
        (lambda p: (p / "model.safetensors").unlink(), "is damaged"),
        (lambda p: shutil.rmtree(p), "holds no checkpoint"),
    ],
)  # fmt: skip
def test_damage_is_told_before_anything_starts(
    damage: Callable[[Path], object], fact: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By `partita run --resume` too, with exit code 2 and one sentence."""
    path = written(tmp_path / "c", 7)
    assert examine(tmp_path / "c") == (path, Progress(7, 1, 2))
    damage(path)
    for look in (examine, read):
        with pytest.raises(CheckpointError) as caught:
            look(tmp_path / "c")
        assert fact in caught.value.message
        assert caught.value.hint
    code = main(["run", "job.py:job", "--resume", str(tmp_path / "c"), "-o", str(tmp_path / "run")])
    out, err = capsys.readouterr()
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert fact in err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["model", "optimizer"])
def test_content_that_was_changed_is_not_resumed(name: str, tmp_path: Path) -> None:
    """Whatever its names, types and shapes: a sound file of other values, too."""
    state = OptimizerState("SGD", {"a.bias": {"momentum_buffer": torch.ones(3)}}, {}, (), "", {})
    path = write(tmp_path, Progress(7), tensors(1), {}, state, {})
    assert read(tmp_path).progress == Progress(7)
    file = path / f"{name}.safetensors"
    raw = bytearray(file.read_bytes())
    raw[-2] ^= 1
    file.write_bytes(raw)
    with pytest.raises(CheckpointError, match=rf"{name}\.safetensors is not what was written"):
        read(tmp_path)
    save_file({"other": torch.ones(2)}, file)
    with pytest.raises(CheckpointError, match=rf"{name}\.safetensors is not what was written"):
        read(tmp_path)


def test_a_checkpoint_of_before_there_were_digests_is_read(tmp_path: Path) -> None:
    path = written(tmp_path, 7)
    state = json.loads((path / "state.json").read_text())
    old = {k: v for k, v in state.items() if k not in ("files", "digest")}
    (path / "state.json").write_text(json.dumps(old))
    assert read(tmp_path).progress == Progress(7, 1, 2)


def edit(path: Path, without: str = "", **values: Any) -> None:
    """`without` "digest": as one from before there were digests."""
    state = json.loads((path / "state.json").read_text())
    state.pop(without, None)
    (path / "state.json").write_text(json.dumps({**state, **values}))


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5])


def test_a_checkpoint_of_another_model_is_refused(tmp_path: Path) -> None:
    written(tmp_path, 1)
    found = read(tmp_path)
    with pytest.raises(CheckpointError, match="lacks 1 of 2 tensors, first 'b'"):
        found.restore({"a.bias": torch.zeros(3), "b": torch.zeros(1)})
    found.restore({"a.bias": torch.zeros(3), "b": torch.zeros(1)}, saved=("a.bias",))
    with pytest.raises(CheckpointError, match=r"a\.bias has shape \(3,\) in the checkpoint, \(4,\) in the model"):
        found.restore({"a.bias": torch.zeros(4)})


def test_nowhere_to_write(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="cannot be written"):
        written(tmp_path / "file" / "c", 1)
