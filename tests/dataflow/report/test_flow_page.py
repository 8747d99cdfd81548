"""The page of a flow's run: everything of the record is on it, and nothing of it is markup."""

from __future__ import annotations

import json
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from dataflow.flow_record import small_record

from partita.dataflow.report.charts import prediction
from partita.dataflow.report.page import headline, lede, page
from partita.dataflow.report.story import FlowStory, held, read_run
from partita.dataflow.run.record import ChoiceRow, ScoreRow, TaskRow
from partita.dataflow.select import Select, at_least, at_most, first_under, halving, larger_is_better, largest, smallest
from partita.errors import BadInput
from partita.files import dump_json, write_whole


class Words(HTMLParser):
    """The text of a page, and its elements, which must close."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.words: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not {"style", "script"} & set(self.open[-1:]):
            self.words.append(data)


def test_the_page_tells_the_run() -> None:
    text = page(small_record(), "digits")
    words = " ".join(Words(text).words)
    for part in (
        "6 configurations in 400 ms.",
        "scaling",
        "standard",
        "0.93",
        "<10>",
        "cannot win: convex",
        "ValueError: <C>",
        "step <scale> differs",
        "cached",
        "pruned",
        "+5.0 %",
        "1 branch never ran",
    ):
        assert part in words, part
    assert "<scale>" not in text
    assert "://" not in text.replace("http://www.w3.org/2000/svg", "")


def test_choices_stand_below_the_branches_they_were_made_on() -> None:
    story = FlowStory("x", small_record())
    (top,) = story.trees
    assert top.choice.name == "choose scaling"
    assert [b.names for b in top.branches] == ["scaling standard", "scaling none"]  # the kept one first
    assert [[t.choice.options["scaling"] for t in b.below] for b in top.branches] == [["standard"], ["none"]]
    assert [b.row.score for b in top.branches[0].below[0].branches] == [pytest.approx(0.93), pytest.approx(0.92), None]


@pytest.mark.parametrize(
    ("select", "small"),
    [
        (largest(), False),
        (smallest(), True),
        (at_least(0.0), False),
        (at_most(1.0), True),
        (first_under(1.0), True),
        (halving("epochs"), False),
        (halving("epochs", largest=False), True),
        (halving("at most smallest"), False),
    ],
)
def test_the_best_branch_stands_first(select: Select, small: bool) -> None:
    scores = tuple(ScoreRow({"C": str(k)}, k / 10, False, "") for k in (2, 1, 3))
    choice = ChoiceRow("choose C", {}, ("C",), str(select), None, "", scores, larger_is_better(select))
    (tree,) = FlowStory("x", replace(small_record(), choices=(choice,))).trees
    assert [b.names for b in tree.branches] == [f"C {k}" for k in ((1, 2, 3) if small else (3, 2, 1))]


def test_scores_of_earlier_runs_took_no_time_and_no_worker() -> None:
    """Neither as they are now, without times, nor as earlier records have them, at 0."""
    one = small_record()
    known = [TaskRow(f"n{k}", "fit & score", {"C": str(k)}, "cached", *times) for k, times in enumerate([(None, None), (0.0, 0.0)] * 10)]  # fmt: skip
    story, before = FlowStory("x", replace(one, tasks=(*one.tasks, *known))), FlowStory("x", one)
    assert story.timeline.queues == before.timeline.queues == ("worker 0", "worker 1")
    assert [s.median_s for s in story.steps] == [s.median_s for s in before.steps]
    assert [s.median_s for s in story.steps] == [None, pytest.approx(0.05), pytest.approx(0.025)]
    Words(page(story.run))


def test_predictions_may_say_how_much_was_done() -> None:
    told = tuple((when, whole, 0.1 * k) for k, (when, whole, *_) in enumerate(small_record().predictions))
    assert prediction(FlowStory("x", replace(small_record(), predictions=told))) == prediction(FlowStory("x", small_record()))  # type: ignore[arg-type]  # fmt: skip


def test_a_record_without_anything_is_a_page() -> None:
    empty = replace(
        small_record(), tasks=(), choices=(), memory=(), chosen=(), predictions=(), notes=(), predicted_s=None, seconds=0.0, tasks_run=0, tasks_shared=0,
        tasks_cached=0, tasks_pruned=0, tasks_failed=0, workers=0,
    )  # fmt: skip
    Words(page(empty))


def test_headline_and_lede_count() -> None:
    assert headline(small_record()) == "6 configurations in 400 ms."
    assert lede(small_record()) == "One after another they are 19 calls; 6 ran: 68 % of them did not have to."


def test_memory_is_summed_over_workers() -> None:
    points = held(small_record())
    assert points[0] == (0.0, 0.0)
    assert max(b for _, b in points) == 7e6  # 4 MB at one, 3 MB at the other
    assert [t for t, _ in points] == sorted(t for t, _ in points)


def test_a_record_goes_to_its_file_and_back(tmp_path: Path) -> None:
    path = write_whole(tmp_path / "run.json", dump_json(small_record().to_json()))
    assert read_run(path) == small_record()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"format": "other"}, "not 'partita-flow-run'"),
        ({"seconds": float("nan")}, "seconds is nan"),
        ({"workers": "two"}, "workers is 'two'"),
        ({"memory": [{"t_s": 1e300, "worker": "a", "bytes": 1.0}]}, "memory\\[0\\] is 1e\\+300"),
        (
            {"tasks": [{"key": "a", "label": "b", "options": {}, "state": "run", "started_s": 2.0, "ended_s": 1.0}]},
            "ends before it starts",
        ),
        ({"tasks": [{"key": "a", "label": "b", "options": {}, "state": "lost"}]}, "not one of 'run'"),
    ],
)
def test_a_record_that_makes_no_sense_is_refused(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    path = tmp_path / "run.json"
    path.write_text(json.dumps({**small_record().to_json(), **change}))
    with pytest.raises(BadInput, match=said):
        read_run(path)
