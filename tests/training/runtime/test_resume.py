"""Stopping and going on changes nothing: losses bit for bit, whatever was drawn at random, and the plain model loads the file."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from training.runtime.helpers import plan_file, source_of
from training.runtime.runs import JOBS, alone, losses, train

from partita.cli import main
from partita.training.job import load_job
from partita.training.runtime.checkpoint import examine, read
from partita.training.runtime.prepare import MEASURED


def trained(folder: Path, job: str, plan: Path, *options: str) -> dict[int, float]:
    """The losses of a run to its end."""
    run = train(folder, job, plan, *options)
    assert run.wait(120) == 0, run.stderr
    return losses(run.out)


@pytest.mark.slow
def test_resumed_losses_are_equal_bit_for_bit(tmp_path: Path) -> None:
    """Stopped in the middle of an epoch and at an epoch's end. Two inputs, dropout, Adam, a scheduler, batches of 10, 10
    and 4 that are shuffled by torch's global generator, the last micro-batch smaller."""
    plan_file("failing:shuffled", stages=2, size=3).write(tmp_path / "plan.json")

    def steps(name: str, last: int, *options: str) -> dict[int, float]:
        return trained(tmp_path / name, "failing:shuffled", tmp_path / "plan.json", "--steps", str(last), *options)

    whole = steps("whole", 7, "--checkpoint-every", "3")
    saved = tmp_path / "whole" / "run" / "checkpoints"
    assert [examine(saved / f"step-{k:08d}")[1].index for k in (6, 7)] == [3, 1]
    of_epoch = steps("epoch", 9, "--resume", str(saved / "step-00000006"))
    of_middle = steps("middle", 9, "--resume", str(saved))
    assert (sorted(whole), sorted(of_epoch), sorted(of_middle)) == ([*range(1, 8)], [7, 8, 9], [8, 9])
    assert of_epoch == {7: whole[7], **of_middle}


def test_another_plan_goes_on_with_the_same_model(tmp_path: Path) -> None:
    """Two stages, then three cut elsewhere, as in one process throughout: moments, rates and decay of AdamW's groups under a
    SequentialLR follow their parameter, a buffer that is in no state_dict goes along."""
    plan_file("failing:grouped", stages=2).write(tmp_path / "two.json")
    plan_file("failing:grouped", stages=3, shift=-3).write(tmp_path / "three.json")
    trained(tmp_path, "failing:grouped", tmp_path / "two.json", "--steps", "4")
    resume = ("--resume", str(tmp_path / "run" / "checkpoints"))
    found = trained(tmp_path, "failing:grouped", tmp_path / "three.json", "--steps", "9", *resume)
    wanted, model = alone(load_job(source_of("failing:grouped")), 9, 2)
    assert found == pytest.approx(wanted, rel=1e-5)
    path = examine(resume[1])[0]
    saved = load_file(path / "model.safetensors")
    fresh = load_job(source_of("failing:grouped")).build()
    fresh.load_state_dict(saved)  # strictly: every name, no other
    assert all(torch.allclose(saved[n], t, rtol=1e-5, atol=1e-7) for n, t in model.state_dict().items())
    assert float(read(path).model["warmth"]) == pytest.approx(float(model.warmth))  # type: ignore[arg-type]


def test_what_cannot_be_saved_is_told_after_the_first_step(tmp_path: Path) -> None:
    """And not after an hour. What an earlier run in the folder measured is not taken for this one's."""
    plan_file("failing:unkeepable", stages=2).write(tmp_path / "plan.json")
    (tmp_path / "run").mkdir()
    earlier = [tmp_path / "run" / name for name in MEASURED]
    for file in earlier:
        file.write_text("{}")
    run = train(tmp_path, "failing:unkeepable", tmp_path / "plan.json", "--steps", "1000000")
    assert run.wait() == 2, run.stderr
    assert "UnkeepableSgd's 'rule' of parameter group 0 is a builtin_function_or_method, which no checkpoint holds" in run.error()  # fmt: skip
    assert len(losses(run.out)) == 1
    assert not any(file.exists() for file in earlier)


@pytest.mark.slow
def test_tied_weights_load_into_the_plain_model(tmp_path: Path) -> None:
    """GPT-2 over two stages: its one matrix is in the file under both of its names, and trained as in one process."""
    pytest.importorskip("transformers")
    plan_file("gpt2", stages=2).write(tmp_path / "plan.json")
    found = trained(tmp_path, "small_models:gpt2", tmp_path / "plan.json", "--steps", "2")
    job = load_job(source_of("gpt2"))
    wanted, model = alone(job, 2, 2)
    assert found == pytest.approx(wanted, rel=1e-5)
    saved = load_file(examine(tmp_path / "run" / "checkpoints")[0] / "model.safetensors")
    fresh = job.build()
    fresh.load_state_dict(saved)
    assert torch.equal(saved["lm_head.weight"], saved["transformer.wte.weight"])
    assert all(torch.allclose(saved[n], t, rtol=1e-4, atol=1e-6) for n, t in model.state_dict().items())


@pytest.mark.slow
def test_killed_while_saving(tmp_path: Path) -> None:
    """The kill comes while a checkpoint is being written, again and again: what can be seen is whole."""
    plan_file("failing:good", stages=2).write(tmp_path / "plan.json")
    run = train(tmp_path, "failing:good", tmp_path / "plan.json", "--steps", "1000000", "--checkpoint-every", "1")
    run.wait_for_step(3)
    folder = run.out / "checkpoints"
    run.wait_until(lambda: any(folder.glob(".part-*")), "a checkpoint in the making")
    os.kill(run.workers()[0], signal.SIGKILL)
    assert run.wait(10) == 1
    assert "rank 0" in run.error()
    path, progress = examine(folder)
    assert read(folder).progress == progress
    assert path.name == f"step-{progress.step:08d}"


@pytest.mark.slow
def test_nothing_left_to_train_and_another_optimizer(tmp_path: Path) -> None:
    plan_file("failing:good", stages=1).write(tmp_path / "plan.json")
    trained(tmp_path, "failing:good", tmp_path / "plan.json", "--steps", "3")
    resume = ("--resume", str(tmp_path / "run" / "checkpoints"))
    run = train(tmp_path, "failing:good", tmp_path / "plan.json", "--steps", "3", *resume)
    assert run.wait() == 2
    assert "nothing to train" in run.error()
    run = train(tmp_path, "failing:by_adam", tmp_path / "plan.json", "--steps", "5", *resume)
    assert run.wait() == 2
    assert "the checkpoint's optimizer is SGD, the job's is Adam" in run.error()


def test_the_torch_engine_does_not_resume(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", f"{JOBS / 'failing.py'}:good", "--engine", "torch", "--resume", str(tmp_path)]) == 2
    assert "--engine torch cannot resume" in capsys.readouterr().err
