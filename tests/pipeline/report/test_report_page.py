from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest
from pipeline.report.sample_run import make_plan, make_story

from partita.nouns.placement_plan import PlacementPlan
from partita.nouns.placement_problem import PlacementProblem
from partita.nouns.plan import PlanFile, Verdict
from partita.pipeline.report import charts
from partita.pipeline.report.charts import loss_difference
from partita.pipeline.report.page import headline, page
from partita.pipeline.report.story import Engine, Story, simulated

VOID = {"meta", "br"}


class Checker(HTMLParser):
    """Refuses elements that do not close in order; collects what a browser would fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.fetched: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)
        self.fetched += [str(v) for k, v in attrs if k in ("src", "href", "srcset", "data", "action")]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not {"script", "style"} & set(self.open):
            self.text.append(data)


def checked(html: str) -> str:
    """The visible text of a page that is well formed and fetches nothing."""
    checker = Checker()
    checker.feed(html)
    checker.close()
    assert checker.open == []
    assert checker.fetched == []
    assert not re.search(r"url\(|@import|https?://(?!www\.w3\.org/2000/svg)", html)
    return " ".join(" ".join(checker.text).split())


def data_of(html: str) -> dict:  # type: ignore[type-arg]
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', html, re.S)
    assert found
    return json.loads(found[1])  # type: ignore[no-any-return]


def placed(story: Story) -> Story:
    assert story.plan is not None
    graph = story.plan.graph
    place = {t.id: f"cpu{i % 2}" for i, t in enumerate(graph.tasks)}
    plan = PlacementPlan(graph.fingerprint, place)
    old = story.plan
    problem = PlacementProblem(graph, old.cluster, old.costs, np.zeros(len(graph)))
    file = PlanFile(plan, old.verdict, problem)
    line = simulated(file)
    return replace(story, plan=file, predicted=line, measured=line)


def test_the_page_of_a_whole_run() -> None:
    story = make_story(2, 16)
    text = checked(page(story))
    for part in (
        "Step time",
        "One step, predicted and measured",
        "Where the cuts fall",
        "How busy",
        "How well",
        "How good",
        "Loss",
    ):
        assert part in text
    assert headline(story)[0] in text
    assert "torch's own pipeline" in text
    assert "layer3.3.conv" in text
    assert "Not in this report" not in text
    assert "AMD EPYC" in text


def test_the_headline_says_speed_up_and_error() -> None:
    story = make_story(2, 4)
    engines = (Engine("single", None, 0.772, 0.77, 0.78, 9), Engine("pipeline", 0.412, 0.420, 0.41, 0.43, 9))
    result, agreed = headline(replace(story, engines=engines))
    assert result == "1.84× faster than one process."
    assert agreed == "Predicted 412 ms a step, measured 420 ms: 1.9 % off."
    slower = (engines[0], replace(engines[1], measured_s=1.0))
    assert headline(replace(story, engines=slower))[0] == "1.30× slower than one process."
    assert headline(replace(story, engines=(), measured=None))[0].endswith("a step, predicted.")
    assert headline(Story("x")) == ("Not run yet.", "")


@pytest.mark.parametrize("gone", ["plan", "predicted", "measured", "engines", "alternatives", "facts", "all"])
def test_a_page_with_a_part_missing_is_still_a_page(gone: str) -> None:
    empty = {"engines": (), "alternatives": {}, "facts": {}}
    story = make_story(3, 4)
    story = Story(story.title) if gone == "all" else replace(story, **{gone: empty.get(gone)})
    text = checked(page(story))
    assert ("Not in this report" in text) == (gone not in ("alternatives", "facts"))


def test_every_instruction_is_drawn_once_a_timeline_with_its_times() -> None:
    story = make_story(4, 64, layers=48)
    html = page(story)
    checked(html)
    assert story.predicted is not None
    assert story.measured is not None
    data = data_of(html)
    assert len(data["rows"]) == len(story.predicted)
    drawn = [int(i) for i in re.findall(r'<rect class="[a-z]+" data-i="(\d+)"', html)]
    assert sorted(drawn) == sorted(2 * list(range(len(data["rows"]))))
    for k, t in enumerate((story.predicted, story.measured)):
        begin = float(t.start_s.min())
        row = data["rows"][7]
        assert row[3 + 2 * k] == pytest.approx(1e3 * (t.start_s[7] - begin), abs=1e-3)
        assert row[4 + 2 * k] == pytest.approx(1e3 * (t.end_s[7] - t.start_s[7]), abs=1e-3)
        assert data["panels"][k]["end"] == pytest.approx(1e3 * t.duration_s, abs=1e-3)
    assert len(html) < 1_500_000


def test_names_from_outside_cannot_become_markup() -> None:
    story = make_story(2, 4)
    evil = "</script><img src=x onerror=alert(1)>"
    assert story.predicted is not None
    line = replace(
        story.predicted,
        label=tuple(evil for _ in story.predicted.label),
        queues=tuple(evil + q for q in story.predicted.queues),
    )
    engines = (*story.engines, Engine(evil, 1.0, 1.0, 1.0, 1.0, 1, ((0, 1.0), (1, 9.0))))
    html = page(Story(evil, story.plan, line, line, engines, {evil: 1.0, "b": 2.0}, {evil: evil}))
    checked(html)
    assert "<img" not in html
    assert html.count("</script>") == 2


def test_a_placement_has_a_page_too() -> None:
    text = checked(page(placed(make_story(2, 4))))
    assert "72 tasks placed on 2 devices" in text
    assert "Where the cuts fall" not in text


def test_timelines_of_different_programs_are_shown_but_not_compared() -> None:
    one, other = make_story(2, 4), simulated(make_plan(3, 4))
    text = checked(page(replace(one, measured=other and replace(other, label=tuple("x" for _ in other.label)))))
    assert "How well each event" not in text


def test_losses_that_agree_are_said_to() -> None:
    a = Engine("single", losses=((0, 2.0), (1, 1.0)))
    assert loss_difference(a, Engine("pipeline", losses=((0, 2.0), (1, 1.0 + 1e-6)))) == pytest.approx(1e-6, rel=1e-3)
    assert loss_difference(a, Engine("pipeline", losses=((7, 2.0),))) == float("inf")
    same = Story("x", engines=(a, replace(a, key="pipeline")))
    assert "bit for bit" in checked(page(same))


def test_infinite_and_missing_losses_do_not_break_the_curve() -> None:
    e = Engine("pipeline", losses=((0, 2.0), (1, float("nan")), (2, float("inf")), (3, 1.0)))
    assert "nan" not in re.sub(r"<script.*?</script>|<style.*?</style>", "", page(Story("x", engines=(e,))), flags=re.S)


def test_the_alternatives_are_set_against_the_chosen_plan() -> None:
    """Also where they were planned without it, as the demo does."""
    verdict = Verdict(2.0, 1.0, "exact", "antichain-dp", 0.1)
    text = charts.alternatives({"even": 3.0, "single": 4.0}, verdict)
    rows = re.findall(r"<td><(?:b|span)>([\w-]+)</.*?([^<>]*)</td></tr>", text)
    assert rows == [("antichain-dp", "chosen"), ("even", "+50 %"), ("single", "+100 %")]
    assert charts.alternatives({}, verdict) == ""
    assert "0 %" in charts.alternatives({"even": 0.0, "single": 0.0}, None)
