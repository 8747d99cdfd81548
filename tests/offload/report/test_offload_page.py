"""The page of offloading: what it says, what it leaves out, and that a browser runs it."""

from __future__ import annotations

import html
import json
import math
import re
import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from offload.report.sample_offload import make_offload_story, make_problem

from partita.errors import BadInput
from partita.nouns.offload import OffloadPlan
from partita.nouns.plan import OffloadFile, Verdict
from partita.offload.plan.lower import part_times, simulate_offload
from partita.offload.plan.planner import baselines, plan_offload
from partita.offload.report.page import bound_sentence, events, headline, page
from partita.offload.report.story import OffloadStory, Played
from partita.offload.report.text import bytes_up, cut_words
from partita.page.palette import colour, shade
from partita.page.text import seconds, size

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

VOID = {"meta", "br", "img", "line", "rect"}


class Reader(HTMLParser):
    """Text by section heading, tables as rows of cells; every element is closed in the order it was opened."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.heads: list[str] = []
        self.rows: list[list[str]] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if {"script", "style"} & set(self.open):
            return
        self.words.append(data)
        if self.open and self.open[-1] == "h2":
            self.heads.append(data)
        if {"td", "th"} & set(self.open):
            self.rows[-1][-1] += data


def data_of(text: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.S)
    assert found
    return json.loads(found[1])  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def story() -> OffloadStory:
    return make_offload_story()


def test_the_headline_has_both_makespans_and_the_best_single_cut(story: OffloadStory) -> None:
    result, compared = headline(story)
    assert story.measured_timeline is not None
    assert result == f"5 jobs in {seconds(float(story.measured_timeline.end_s.max()))}."
    assert f"Predicted {seconds(story.file.verdict.value_s)}" in compared
    assert seconds(baselines(story.problem)["single-cut"]) in compared
    assert "optimal" in bound_sentence(story) or seconds(story.file.verdict.lower_bound_s) in bound_sentence(story)


def test_busy_times_are_those_of_the_model(story: OffloadStory) -> None:
    played = Played.of(simulate_offload(story.problem, story.plan), 5)
    assert played.busy_s == pytest.approx(part_times(story.problem, story.plan)[0])
    assert played.makespan_s == pytest.approx(story.file.verdict.value_s)
    two = make_problem(threads=2)
    file = plan_offload(two, "server-only")
    share = Played.of(simulate_offload(two, file.plan), 5).share(2)
    assert share[2] == pytest.approx(part_times(two, file.plan)[0][:, 2].sum() / 2 / file.verdict.value_s)


def test_every_job_is_a_row_with_its_cut_bytes_and_times(story: OffloadStory) -> None:
    text = page(story)
    read = Reader(text)
    assert read.open == []
    done = story.executed
    assert done is not None
    by_name = {r[1]: r for r in read.rows if len(r) > 1 and re.fullmatch(r"(camera|radar)-\d", r[1])}
    assert list(by_name) == [story.problem.jobs[j].name for j in done.order]
    for j, job in enumerate(story.problem.jobs):
        row = by_name[job.name]
        assert row[0] == str(j)
        assert row[2].startswith(cut_words(job.tasks, done.cuts[j]))
        assert ("planned:" in row[2]) == (done.cuts[j] != story.plan.cuts[j])
        assert row[3] == f"{len(done.cuts[j])} of {len(job.tasks)}"
        sent = bytes_up(job, done.cuts[j])
        assert row[4] == (size(sent) if sent else "")
        assert " → " in row[9]


def test_bytes_up_are_what_the_uplink_is_paid_for() -> None:
    problem = make_problem()
    for method in ("device-only", "server-only", "single-cut", "exact"):
        plan = plan_offload(problem, method, budget_s=0.1).plan
        sent = [bytes_up(j, c) for j, c in zip(problem.jobs, plan.cuts, strict=True)]
        assert np.array(sent) / problem.link.up_bytes_per_s == pytest.approx(part_times(problem, plan)[0][:, 1])


def test_spans_of_a_job_share_its_number_and_the_colour_of_its_model(story: OffloadStory) -> None:
    text = page(story)
    boxes = re.findall(r'<rect class="(?:deep|pale)" style="(--c:[^"]*)" data-i="(\d+)"', text)
    drawn = 0
    for played in (story.predicted, story.measured):
        assert played is not None
        drawn += int((played.busy_s > 0).sum())
    assert len(boxes) == drawn
    colours = {int(j): c for c, j in boxes}
    assert colours[0] == colours[1] == colours[2]
    assert colours[3] == colours[4] != colours[0]
    data = data_of(text)
    assert [t[0] for t in data["tips"]] == [j.name for j in story.problem.jobs]
    assert [p["name"] for p in data["panels"]] == ["Predicted", "Measured"]
    tip = dict(data["tips"][0][1])
    assert tip["cut"] == cut_words(story.problem.jobs[0].tasks, story.done_cuts[0])
    assert tip["answer at"].count(" s") + tip["answer at"].count(" ms") == 2


@pytest.mark.parametrize("models", [1, 2, 4, 5, 9])
def test_every_model_has_a_colour_of_its_own(models: int) -> None:
    assert len({colour(k, models) for k in range(models)}) == models
    deep = [shade(k, models) == "deep" for k in range(models)]
    assert deep == sorted(deep, reverse=True)  # the scale ends pale
    assert deep[0]
    assert deep[-1] == (models == 1)


def test_what_happened_is_told_once_and_only_where_it_did(story: OffloadStory) -> None:
    told = " ".join(events(story))
    assert "planned anew 2 times: in the end the uplink carried 800 kB/s, not 1.00 MB/s" in told
    assert "connection broke, and answered all the same: 1 job" in told
    assert "Cut otherwise than planned at first: 1 job" in told
    assert "Refused" not in told
    assert story.measured_timeline is not None
    calm = replace(story, measured_timeline=replace(story.measured_timeline, facts={}), executed=story.plan)
    assert list(events(calm)) == []
    assert "What happened" not in Reader(page(calm)).heads


def test_a_plan_alone_leaves_no_holes(story: OffloadStory) -> None:
    alone = OffloadStory("plan", story.file, missing=("Not measured.",))
    read = Reader(page(alone))
    text = " ".join(read.words)
    assert "predicted" in headline(alone)[0]
    assert read.heads == ["Four machines", "How busy each machine is", "Against the baselines", "The jobs"]
    assert "Measured" not in text
    assert "→" not in text
    assert "nan" not in text
    assert "Not measured." in text


def test_the_cuts_of_a_run_without_an_executed_plan_are_told_by_its_timeline(story: OffloadStory) -> None:
    assert story.executed is not None
    assert replace(story, executed=None).done_cuts == story.executed.cuts


def test_a_device_that_was_alone_has_no_prediction(story: OffloadStory) -> None:
    whole = tuple(frozenset(j.index) for j in story.problem.jobs)
    plan, nothing = (
        OffloadPlan(tuple(range(5)), whole),
        Verdict(0.0, 0.0, "nothing to decide", "device-only", 0.0, "makespan"),
    )
    line = simulate_offload(story.problem, plan)
    alone = OffloadStory("alone", OffloadFile(plan, nothing, story.problem), line, plan)
    read = Reader(page(alone))
    assert headline(alone) == (f"5 jobs in {seconds(line.duration_s)}.", "")
    assert read.heads == ["Four machines", "How busy each machine is", "The jobs"]
    assert bound_sentence(alone) == ""
    assert "→" not in " ".join(read.words)


def test_arrivals_and_deadlines_have_columns_where_there_are_any(story: OffloadStory) -> None:
    jobs = tuple(
        replace(j, release_s=0.1 * k, deadline_s=0.001 if k == 2 else math.inf)
        for k, j in enumerate(story.problem.jobs)
    )
    problem = replace(story.problem, jobs=jobs)
    timed = OffloadStory("timed", plan_offload(problem, budget_s=0.1))
    rows = Reader(page(timed)).rows
    head = next(r for r in rows if r[:2] == ["#", "job"])
    assert head[5] == "comes"
    assert head[-1] == "wanted by"
    assert next(r for r in rows if r[1] == "camera-1")[5] == "100"
    assert next(r for r in rows if r[1] == "camera-2")[-1] == "1.00"
    assert any(line.startswith("camera-2 is planned to be") for line in events(timed))
    plain = next(r for r in Reader(page(story)).rows if r[:2] == ["#", "job"])
    assert "comes" not in plain
    assert "wanted by" not in plain


def test_names_from_files_are_escaped() -> None:
    nasty = "</script><script>alert(1)</script>"
    story = replace(make_offload_story(name=nasty), title="<img src=x onerror=alert(1)>")
    text = page(story)
    assert "alert(1)</script>" not in text
    assert "<img" not in text
    assert Reader(text).open == []
    assert data_of(text)["tips"][0][0] == f"{nasty}-0"


def test_a_timeline_of_other_jobs_is_refused(story: OffloadStory) -> None:
    problem = replace(story.problem, jobs=story.problem.jobs[:3])
    file = plan_offload(problem, budget_s=0.1)
    with pytest.raises(BadInput, match="of 5 jobs, the plan of 3"):
        page(OffloadStory("x", file, story.measured_timeline))


WATCH = """<script>window.faults = [];
addEventListener("error", (e) => faults.push(e.message));
addEventListener("securitypolicyviolation", (e) => faults.push("policy " + e.blockedURI));
window.requestAnimationFrame = (f) => setTimeout(f, 0);</script>"""
PROBE = """<script>
setTimeout(() => {
  const rect = document.querySelector(".spans rect[data-i='3']"), box = rect.getBoundingClientRect();
  rect.dispatchEvent(new PointerEvent("pointermove", { bubbles: true, clientX: box.left + 1, clientY: box.top + 1 }));
  const pre = document.createElement("pre");
  pre.id = "found";
  pre.textContent = JSON.stringify({ faults, tip: document.getElementById("tip").textContent, lit: document.querySelectorAll(".spans .on").length,
    numbers: document.querySelectorAll(".number").length, ends: [...document.querySelectorAll(".endlabel")].map((e) => e.textContent),
    wide: document.documentElement.scrollWidth <= innerWidth });
  document.body.append(pre);
}, 200);</script>"""


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not on PATH")
@pytest.mark.parametrize("width", [1280, 500])
def test_in_a_browser(story: OffloadStory, tmp_path: Path, width: int) -> None:
    path = tmp_path / "page.html"
    path.write_text(page(story).replace("<title>", WATCH + "<title>").replace("</body>", PROBE + "</body>"))
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--virtual-time-budget=4000", "--dump-dom"]  # fmt: skip
    done = subprocess.run(
        [str(CHROMIUM), *flags, f"--user-data-dir={tmp_path / 'profile'}", f"--window-size={width},2000", path.as_uri()],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    match = re.search(r'<pre id="found">(.*?)</pre>', done.stdout, re.S)
    assert match
    found = json.loads(html.unescape(match[1]))
    assert found["faults"] == []
    assert "radar-0" in found["tip"]
    assert story.predicted is not None
    assert story.measured is not None
    assert found["lit"] == int((story.predicted.busy_s[3] > 0).sum() + (story.measured.busy_s[3] > 0).sum())
    assert found["numbers"] > 5
    assert len(found["ends"]) == 2
    assert found["wide"]
