"""Rank 0's desk without ranks: what becomes of the plan where a search fails, or training ends first."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from mapping.large import large_problem
from mapping.worlds import problem_of

from partita.mapping.plan import bayes
from partita.mapping.plan import live as searching
from partita.mapping.plan.jobs import candidates
from partita.mapping.report.history import Following, History, text
from partita.mapping.run import steered
from partita.mapping.run.search import first_mapping
from partita.mapping.run.steered import _Desk
from partita.nouns.cluster import Link
from partita.nouns.pipeline_plan import PipelinePlan
from partita.nouns.plan import PlanFile, Verdict
from partita.nouns.profile import Profile, Sample
from partita.nouns.timeline import Timeline
from partita.simulate.adapting import Seen
from partita.simulate.predicted import computing_s, predicted

pytest.importorskip("optuna")
pytest.importorskip("sklearn")


class Run:
    """Steps that take what the simulator says, by a clock that counts nothing else: a search that thinks long has no fewer trials."""

    def __init__(self, out: Path, *, adapt: bool = False, budget_s: float = 20.0, name: str = "towers") -> None:
        self.problem = problem_of(name, ("cpu0", "cpu1"))
        (begun,) = candidates(self.problem, "heft", 1.0, 0)
        self.out, self.plan, self.tried = out, begun.plan, list[tuple[float, PipelinePlan]]()
        file = PlanFile(begun.plan, Verdict(begun.step_s, 0.0, "none", "heft", 0.0), self.problem)
        told = {"budget_s": budget_s, "seed": 1, "by_lot": (0, 0), "adapt": adapt}
        self.desk = _Desk(file, out, told, clock=lambda: sum(step_s for step_s, _ in self.tried))
        self.over, self.step = False, 0

    def go(self, steps: int, slowed: Callable[[PipelinePlan], float] = lambda plan: 1.0) -> Run:
        for _ in range(steps):
            if self.over:
                break
            self.step += 1
            step_s = predicted(self.problem, self.plan).duration_s * slowed(self.plan)
            self.tried.append((step_s, self.plan))
            said = self.desk.decided(self.step, Seen(step_s, computing_s(self.problem, self.plan)))
            said = json.loads(json.dumps(said))
            self.over = said["over"]
            self.plan = PipelinePlan.from_json(said["plan"]) if said["plan"] else self.plan
        return self


def test_training_that_ends_first_leaves_the_best_that_was_measured(tmp_path: Path) -> None:
    run = Run(tmp_path, budget_s=60.0).go(90)
    run.desk.end(run.step)
    file, found = PlanFile.read(tmp_path / "plan.json"), History.read(tmp_path).to_json()
    best_s = min(h["measured_s"] for h in found["history"])
    assert predicted(run.problem, file.plan).duration_s == pytest.approx(best_s)
    assert found["best"] in file.verdict.method
    assert "broken off" in file.verdict.method
    assert not found["settled"]
    assert Timeline.read(tmp_path / "predicted.json").duration_s == pytest.approx(run.tried[-1][0])


def failing(*_: Any, **__: Any) -> Any:
    raise ValueError("the sampler fell over")


@pytest.mark.parametrize("where", ["bayes", "surrogates", "at once"])
def test_a_search_that_fails_does_not_end_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    if where == "bayes":
        monkeypatch.setattr(bayes.Encoding, "suggested", failing)
    elif where == "surrogates":
        monkeypatch.setattr(searching.surrogates, "compared", failing)
    else:
        monkeypatch.setattr(steered, "live", lambda *_: (failing() for _ in range(3)))
    run = Run(tmp_path).go(5000)
    assert run.over
    file, found = PlanFile.read(tmp_path / "plan.json"), History.read(tmp_path).to_json()
    assert run.plan == file.plan
    assert found["why"] == "ValueError: the sampler fell over"
    assert "given up" in file.verdict.method
    assert "the sampler fell over" in text(found)
    if found["history"]:
        best_s = min(h["measured_s"] for h in found["history"])
        assert predicted(run.problem, file.plan).duration_s == pytest.approx(best_s)
    run.desk.end(run.step)  # changes nothing
    assert PlanFile.read(tmp_path / "plan.json").verdict == file.verdict
    assert Following(tmp_path).line() == ""


def test_an_adaptive_part_that_fails_does_not_end_training(tmp_path: Path) -> None:
    run = Run(tmp_path, adapt=True, budget_s=1.0).go(400)
    assert run.desk.adapts is not None
    run.desk.adapts = SimpleNamespace(send=failing)  # type: ignore[assignment]
    plan = run.plan
    run.go(1)
    assert run.over
    assert run.plan == plan
    row = json.loads((tmp_path / "drift.jsonl").read_text().splitlines()[-1])
    assert (row["event"], row["why"]) == ("gave up", "ValueError: the sampler fell over")


@pytest.mark.parametrize(("seed", "first"), [(0, "single"), (1, "heft")])
def test_a_run_begins_with_the_better_of_heft_and_one_device(seed: int, first: str) -> None:
    problem = large_problem(20, seed)
    cluster = replace(problem.cluster, default_link=Link("", "", 1e7, 1e-4))
    sample = Sample(problem.batch_size, problem.graph, problem.costs)
    file = first_mapping(Profile("job.py:job", problem.batch_size, (sample,), cluster, 1.0))
    values = {c.name: c.step_s for m in ("heft", "single") for c in candidates(problem.on(cluster), m, 1.0, 0)}
    assert min(values, key=lambda m: values[m]) == first
    assert file.verdict.method == first
    assert file.verdict.value_s == values[first]
