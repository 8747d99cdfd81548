"""A search on live steps: no step is lost or repeated, and the losses are those of one process that searches nothing."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from mapping.worlds import problem_of
from safetensors.torch import load_file
from training.runtime import runs

from partita.cli import main
from partita.errors import BadInput, WorkerFailed
from partita.files import parse_json
from partita.mapping.plan.jobs import candidates
from partita.mapping.report import history
from partita.mapping.report.history import Following, History, text
from partita.mapping.run import search
from partita.mapping.run.search import expect_mapping, train_searching
from partita.nouns.plan import PlanFile, Verdict
from partita.training.job import load_job
from partita.training.runtime import checkpoint

pytest.importorskip("optuna")
pytest.importorskip("sklearn")
STEPS = 1500


def first(name: str) -> PlanFile:
    """The job on two devices whose cores are anybody's, begun with heft."""
    problem = problem_of(name, ("cpu0", "cpu1"))
    (begun,) = candidates(problem, "heft", 1.0, 0)
    return PlanFile(begun.plan, Verdict(begun.step_s, 0.0, "none", "heft", 0.0), problem)


@pytest.mark.slow
def test_losses_and_weights_are_those_of_an_unsearched_run(tmp_path: Path, capsys: Any) -> None:
    file, calm = first("towers"), {"lr": "0.001"}  # rounding grows little over the steps
    ended = train_searching(file, file.problem.job, calm, tmp_path, budget_s=6.0, steps=STEPS, adapt=True)
    assert not ended.interrupted
    losses = runs.losses(tmp_path)
    assert [*losses] == [*range(1, STEPS + 1)]  # whichever rank made them
    wanted, model = runs.alone(load_job(file.problem.job, calm), STEPS, file.problem.batch_size)
    assert [*losses.values()] == pytest.approx([*wanted.values()], rel=1e-5)
    saved = load_file(checkpoint.latest(tmp_path / "checkpoints") / "model.safetensors")
    for name, value in model.state_dict().items():
        assert float((saved[name] - value).abs().max()) <= 1e-5 * float(value.abs().max()), name
    found = History.read(tmp_path).to_json()
    assert found["settled"], found
    assert {"seeds", "bayes", "finals"} <= {p["phase"] for p in found["phases"]}
    assert found["steps"] < STEPS
    assert len(found["surrogates"]) == 6
    assert found["thinking_s"] + found["switching_s"] < found["wall_s"]
    assert PlanFile.read(tmp_path / "plan.json").verdict.method.startswith("hybrid (")
    said = text(found)
    assert "mappings tried" in said
    assert "rank correlation" in said
    assert Following(tmp_path).line() == ""
    for verb in ("compare", "report"):
        assert main([verb, str(tmp_path), "--json"]) == 0, capsys.readouterr().err
    page = (tmp_path / "report.html").read_text()
    assert "mappings tried" in page
    assert "rank correlation" in page
    assert "would fill and drain" not in page


@pytest.mark.slow
def test_training_may_end_before_the_search(tmp_path: Path) -> None:
    file = first("towers")
    train_searching(file, file.problem.job, {}, tmp_path, budget_s=60.0, steps=30)
    found = History.read(tmp_path).to_json()
    assert not found["settled"]
    assert "not finished" in text(found)
    assert "broken off" in PlanFile.read(tmp_path / "plan.json").verdict.method
    assert [*runs.losses(tmp_path)] == [*range(1, 31)]


@pytest.mark.slow
@pytest.mark.parametrize("dies_at", ["2 before", "3 after"])
def test_a_worker_killed_in_the_midst_of_a_switch_leaves_a_sound_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dies_at: str
) -> None:
    """Tensors were on their way. What was saved is what one process has after as many steps, and a run goes on from there."""
    file, calm = first("towers"), {"lr": "0.001"}
    monkeypatch.setattr(search, "WORKER", "mapping.run.dying_worker")
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
    )
    monkeypatch.setenv("DIES_AT", dies_at)
    with pytest.raises(WorkerFailed, match="killed by SIGKILL") as died:
        train_searching(
            file, file.problem.job, calm, tmp_path, budget_s=60.0, steps=200, checkpoint_every=3, timeout_s=30.0
        )
    assert died.value.rank == 1
    folder, progress = checkpoint.examine(tmp_path / "checkpoints")
    assert progress.step >= 3
    _, model = runs.alone(load_job(file.problem.job, calm), progress.step, file.problem.batch_size)
    saved = load_file(folder / "model.safetensors")
    for name, value in model.state_dict().items():
        assert float((saved[name] - value).abs().max()) <= 1e-5 * float(value.abs().max()), name
    monkeypatch.undo()
    last = progress.step + 6
    train_searching(
        file, file.problem.job, calm, tmp_path, budget_s=60.0, steps=last, resume=str(tmp_path / "checkpoints")
    )
    wanted, _ = runs.alone(load_job(file.problem.job, calm), last, file.problem.batch_size)
    losses = runs.losses(tmp_path)
    assert [losses[k] for k in wanted] == pytest.approx([*wanted.values()], rel=1e-5)


@pytest.mark.parametrize(
    ("words", "fact"),
    [
        (["--search-budget-s", "3"], "--search hybrid"),
        (["--search", "hybrid", "--search-budget-s", "-3"], "positive"),
        (["--search", "hybrid", "--engine", "torch"], "own engine"),
    ],
)
def test_bad_wishes(tmp_path: Path, capsys: Any, words: list[str], fact: str) -> None:
    assert main(["run", "job.py:job", "-o", str(tmp_path), *words]) == 2
    assert fact in capsys.readouterr().err


def test_a_plan_of_micro_batches_is_no_mapping() -> None:
    from training.runtime.helpers import plan_file

    with pytest.raises(BadInput, match="whole batch"):
        expect_mapping(plan_file("long_skip", stages=2))


def test_a_line_half_written_is_left_out(tmp_path: Path) -> None:
    row = {"tried": 1, "phase": "seeds", "name": "heft", "predicted_s": 0.1, "measured_s": 0.2}
    (tmp_path / "search.jsonl").write_text(json.dumps(row) + '\n{"tried": 2, "pha')
    assert len(History.read(tmp_path).rows) == 1


def test_what_is_said_of_a_search_reads_every_line_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said, path, parsed = Following(tmp_path), tmp_path / "search.jsonl", list[str]()
    monkeypatch.setattr(history, "parse_json", lambda line, *more: parsed.append(line) or parse_json(line, *more))
    assert said.line() == ""
    rows = [{"tried": k, "phase": "bayes", "name": f"n{k}", "predicted_s": 0.1, "measured_s": t} for k, t in enumerate([0.3, 0.2, 0.25], 1)]  # fmt: skip
    with path.open("w", buffering=1) as file:
        file.write(json.dumps(rows[0]) + "\n" + json.dumps(rows[1])[:9])
        file.flush()
        assert "1 mappings tried, best 300 ms (n1)" in said.line()
        file.write(json.dumps(rows[1])[9:] + "\n" + json.dumps(rows[2]) + "\n")
        for _ in range(20):
            assert "3 mappings tried, best 200 ms (n2), now bayes: 100 ms predicted, 250 ms measured" in said.line()
    assert len(parsed) == 3
    (tmp_path / "search.json").write_text("{}")
    path.write_text("damaged")
    assert said.line() == ""
