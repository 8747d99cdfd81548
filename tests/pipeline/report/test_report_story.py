from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from pipeline.report.sample_run import make_story

from partita.errors import BadInput, PartitaError
from partita.pipeline.report.stages import stage_rows
from partita.pipeline.report.story import PIPELINE, SINGLE, Engine, Story


def test_a_story_survives_its_folder(tmp_path: Path) -> None:
    story = make_story(2, 4)
    back = Story.read(story.write(tmp_path / "run"))
    assert back.title == story.title
    assert back.engines == story.engines
    assert back.alternatives == dict(story.alternatives)
    assert back.facts == dict(story.facts)
    assert back.training == story.training
    assert back.plan is not None
    assert story.plan is not None
    assert back.plan.plan == story.plan.plan
    for name in ("predicted", "measured"):
        one, two = getattr(story, name), getattr(back, name)
        assert np.allclose(one.start_s, two.start_s, atol=1e-12)
        assert one.label == two.label
    assert back.missing() == []


def test_a_loss_that_is_not_finite_is_null_in_the_file(tmp_path: Path) -> None:
    engine = Engine(PIPELINE, losses=((1, 0.5), (2, math.nan)))
    back = Story.read(Story("x", engines=(engine,)).write(tmp_path)).engine(PIPELINE)
    assert json.loads((tmp_path / "summary.json").read_text())["engines"][0]["losses"] == [[1, 0.5], [2, None]]
    assert back.losses[0] == (1, 0.5)
    assert math.isnan(back.losses[1][1])


@pytest.mark.parametrize("gone", ["plan", "measured", "predicted"])
def test_what_is_missing_is_said_and_the_rest_is_read(tmp_path: Path, gone: str) -> None:
    folder = make_story(2, 4).write(tmp_path)
    name = f"{gone}.json"
    (folder / name).unlink()
    story = Story.read(folder)
    if gone == "predicted":  # the plan predicts it
        assert story.missing() == []
        assert story.predicted is not None
    else:
        assert [name in line for line in story.missing()] == [True]


def test_a_plan_alone_is_a_story(tmp_path: Path) -> None:
    story = make_story(2, 4)
    assert story.plan is not None
    story.plan.write(tmp_path / "plan.json")
    alone = Story.read(tmp_path)
    assert alone.predicted_step_s == pytest.approx(story.plan.verdict.value_s)
    assert alone.measured_step_s is None
    assert len(alone.missing()) == 3


def test_rows_of_metrics_make_an_engine_and_the_first_two_steps_only_warm_up(tmp_path: Path) -> None:
    rows = [{"step": s, "loss": 2.0 - s / 10, "step_s": 9.0 if s < 2 else 0.4} for s in range(5)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows) + '{"step": 5, "lo')
    engine = Story.read(tmp_path).engine(PIPELINE)
    assert engine.measured_s == engine.high_s == 0.4
    assert engine.steps == 3
    assert Story.read(tmp_path).training[-1] == (4, 1.6)


def test_writing_a_story_leaves_the_record_of_the_training_alone(tmp_path: Path) -> None:
    record = '{"step": 1, "loss": 2.0, "step_s": 0.5}\n'
    (tmp_path / "metrics.jsonl").write_text(record)
    make_story(2, 4).write(tmp_path)
    assert (tmp_path / "metrics.jsonl").read_text() == record


def test_a_resumed_step_counts_once(tmp_path: Path) -> None:
    rows = [(0, 2.0), (1, 1.5), (1, 1.25), (2, 1.0)]
    (tmp_path / "metrics.jsonl").write_text(
        "".join(json.dumps({"step": s, "loss": x, "step_s": 1.0}) + "\n" for s, x in rows)
    )
    assert Story.read(tmp_path).training == ((0, 2.0), (1, 1.25), (2, 1.0))


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("metrics.jsonl", '{"step": 0}\n{"step": 1, "loss": 2}\n', "line 1"),
        ("metrics.jsonl", '[1]\n{"step": 1, "loss": 2}\n', "line 1"),
        ("summary.json", '{"format": "partita-summary", "version": 1, "engines": [{"steps": 3}]}', "KeyError"),
        (
            "summary.json",
            '{"format": "partita-summary", "version": 1, "engines": [{"engine": "single", "measured_s": "fast"}]}',
            "ValueError",
        ),
        ("summary.json", '{"format": "partita-summary", "version": 1, "facts": [1]}', "AttributeError"),
        ("summary.json", "{", "line 1"),
        ("summary.json", "{}", "partita-summary"),
        ("plan.json", "{}", "partita-plan"),
        ("measured.json", '{"traceEvents": []}', "is damaged"),
        ("predicted.json", "\0", "not JSON"),
    ],
)
def test_a_damaged_file_is_named_with_its_fault(tmp_path: Path, name: str, content: str, words: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(PartitaError, match=words) as caught:
        Story.read(tmp_path)
    assert name in caught.value.message
    assert caught.value.exit_code == 2


def test_no_folder_and_an_empty_one_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="not a folder"):
        Story.read(tmp_path / "nowhere")
    with pytest.raises(BadInput, match="has none of"):
        Story.read(tmp_path)


def test_engine_of_no_steps_knows_nothing() -> None:
    assert Engine.of(SINGLE, []).measured_s is None


def test_stage_rows_add_up_to_the_graph() -> None:
    story = make_story(4, 4)
    assert story.plan is not None
    file, rows = story.plan, stage_rows(story.plan, story.predicted, story.measured)
    assert sum(r.tasks for r in rows) == sum(t.phase == "forward" for t in file.graph.tasks)
    assert sum(r.parameter_bytes for r in rows) == pytest.approx(sum(t.parameter_bytes for t in file.graph.tasks))
    work = [i for i, t in enumerate(file.graph.tasks) if t.phase in ("forward", "backward")]
    assert sum(sum(r.task_s) for r in rows) == pytest.approx(float(file.costs.seconds[work].sum()))
    for r in rows:
        assert r.forward[0] is not None
        assert r.backward[0] is not None
        assert r.forward[0] + r.backward[0] == pytest.approx(sum(r.task_s))
    # the skip over all stages crosses every cut, and is sent once, by stage 0
    chain = [
        float(file.graph.size_bytes[file.graph.tensors_of.row(file.graph.index[s.tasks[-1]])[0]])
        for s in file.plan.stages
    ]  # type: ignore[union-attr]
    skip = float(file.graph.size_bytes[file.graph.tensors_of.row(1)[0]])
    assert [r.crossing_bytes for r in rows] == pytest.approx([0.0, *(b + skip for b in chain[:-1])])
    assert [r.sends_bytes for r in rows] == pytest.approx([chain[0] + skip, *chain[1:-1], 0.0])
