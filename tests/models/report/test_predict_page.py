from __future__ import annotations

import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from models.report.sample_prediction import sample
from pipeline.report.test_report_browser import WATCH, dump, probed

from partita.models.report.charts import Cloud, log_ticks, reach_of
from partita.models.report.page import page, typeset

needs_chromium = pytest.mark.skipif(
    not any(map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), reason="chromium is not on PATH"
)
HOSTILE = '</script><img src=x onerror="alert(1)">&amp;'


class Reader(HTMLParser):
    """Refuses elements that do not close in order; collects visible text, elements and what a browser would fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.started: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.started.append((tag, dict(attrs)))
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not {"script", "style"} & set(self.open):
            self.text.append(data)


def read(html: str) -> Reader:
    reader = Reader()
    reader.feed(html)
    reader.close()
    assert reader.open == []
    assert not re.search(r"url\(|@import|https?://(?!www\.w3\.org/2000/svg)", html)
    assert not [a for _, a in reader.started if {"src", "href", "srcset"} & set(a)]
    return reader


def words_of(html: str) -> str:
    return " ".join(" ".join(read(html).text).replace("\u200b", "").replace("\u00a0", " ").split())


def headings(html: str) -> list[str]:
    return re.findall(r"<h2>(.*?)</h2>", html)


def dots(html: str, picture: str) -> list[str]:
    svg = re.search(rf'<svg[^>]*id="{picture}".*?</svg>', html, re.S)
    assert svg
    return re.findall(r'<circle [^>]*data-i="(\d+)"', svg[0])


EVERY = ["The answer", "What if", "The formula", "Where the time goes", "The models", "Predicted and measured", "What is left over", "What each input does", "What more rows bring", "Corrections"]  # fmt: skip


def test_every_part_appears_with_its_numbers() -> None:
    html = page(sample())
    text = words_of(html)
    assert headings(html) == EVERY
    for said in (
        "The hybrid model predicts iteration time 8.6 % off, on average.",
        "Fitted to 240 rows with # GPUs up to 2, judged by the 1,200 rows above.",
        "88 % inside the 90 % intervals",
        "8 GPUs are cheapest.",
        "does not fit",
        "702 ms – 940 ms",
        "Over all rows, 51 % of the time is launch.",
        "gradient boosting",
        "1.80×",
        "adam 1.12×, sgd 0.89×",
        "hidden size × # layers",
        "0.91× – 1.12×",
        "the same in all rows (51200)",
        "the batch counts the samples of all devices",
        "1,440 rows of timings.csv.",
    ):
        assert said in text, said


def test_every_held_out_row_is_a_dot_in_both_pictures_and_has_a_tip() -> None:
    html = page(sample())
    every = [str(k) for k in range(40)]
    assert sorted(dots(html, "scatter"), key=int) == sorted(dots(html, "residuals"), key=int) == every
    data = re.search(r'id="data">(.*?)</script>', html, re.S)
    assert data
    tips = json.loads(data[1])["tips"]
    assert tips[3][0] == "row 503"
    assert dict(map(tuple, tips[3][1])) == {
        "measured": "160 ms", "predicted": "133 ms", "90 % interval": "113 ms – 156 ms", "error": "−17 %", "# GPUs": "8",
    }  # fmt: skip


def test_a_dot_lies_on_the_diagonal_where_the_prediction_is_right() -> None:
    document = sample()
    for p in document["points"]:
        p["predicted"] = p["measured"]
    svg = re.search(r'<svg[^>]*id="scatter".*?</svg>', page(document), re.S)
    assert svg
    places = re.findall(r'cx="([\d.]+)" cy="([\d.]+)"', svg[0])
    assert len(places) == 40
    sums = [float(x) + float(y) for x, y in places]
    assert max(sums) - min(sums) < 0.01


def test_the_stack_is_as_wide_as_the_shares() -> None:
    widths = [float(w) for w in re.findall(r"flex:([\d.]+) 1 0", page(sample()))]
    assert widths == [0.512, 0.347, 0.14, 0.001]


def test_hostile_text_is_escaped_everywhere() -> None:
    def poison(value: Any) -> Any:
        if isinstance(value, dict):
            return {(k + HOSTILE if k in ("# GPUs", "hidden size", "adam") else k): poison(v) for k, v in value.items()}
        if isinstance(value, list):
            return [poison(v) for v in value]
        return value + HOSTILE if isinstance(value, str) and value not in ("above", "hybrid") else value

    html = page(poison(sample()))
    reader = read(html)
    assert not [name for name, _ in reader.started if name == "img"]
    assert html.count("<script") == html.count("</script>") == 2
    assert not [a for _, a in reader.started if any(k.startswith("on") for k in a)]
    assert HOSTILE in "".join(reader.text)


@pytest.mark.parametrize(
    ("absent", "gone"),
    [
        ("advice", ["The answer"]),
        ("what_if", ["What if"]),
        ("explanation", ["The formula", "Where the time goes", "What each input does", "Corrections"]),
        ("points", ["Predicted and measured", "What is left over"]),
        ("learning_curve", ["What more rows bring"]),
    ],
)
@pytest.mark.parametrize("null", [True, False])
def test_what_is_absent_leaves_no_gap(absent: str, gone: list[str], null: bool) -> None:
    document = sample()
    if null:
        document[absent] = None
    else:
        del document[absent]
    html = page(document)
    read(html)
    assert headings(html) == [h for h in EVERY if h not in gone]
    assert not re.search(r"<(section|h2|p|div class=\"scroll\"|tbody|ul|svg[^>]*)></", html)


def test_a_question_to_a_saved_model() -> None:
    document = {k: sample()[k] for k in ("data", "target")} | {"models": [], "best_explainable": "hybrid"}
    html = page({**document, "what_if": sample()["what_if"][:1]})
    assert headings(html) == []
    assert "812 ms, between 702 ms and 940 ms. hidden size 4096, # GPUs 16" in words_of(html)
    assert "# GPUs 16 lies beyond the 8 that were measured" in words_of(html)
    html = page({**document, "advice": sample()["advice"]})
    assert words_of(html).count("8 GPUs are cheapest.") == 1
    assert "2.90 s" in words_of(html)


def test_a_formula_is_typeset() -> None:
    names = ["hidden size", "# GPUs"]
    assert typeset("2e-05 · hidden size~^1.86", names).replace("\u200b", "") == (
        '2<span class="times">·</span>10<sup>−5</sup><span class="times">·</span><span class="column">hidden size~</span><sup>1.86</sup>'
    )
    assert typeset("(T-1)/T", names) == "(<i>T</i>−1)/<i>T</i>"
    assert typeset("norm_3.7(a_i, launch)", names) == "norm<sub>3.7</sub>(<i>a</i><sub>i</sub>, launch)"
    k = "<i>k</i>"
    assert typeset("(a^k + b^k)^(1/k)", ()) == (f"(<i>a</i><sup>{k}</sup> + <i>b</i><sup>{k}</sup>)<sup>1/{k}</sup>")
    assert typeset("1.12[optimizer=adam]", names) == '1.12<sub class="level">optimizer=adam</sub>'
    assert typeset("<b> & a", ()) == "&lt;<i>b</i>&gt; &amp; <i>a</i>"


def test_rows_without_a_place_on_a_logarithmic_axis_are_left_out() -> None:
    rows = [{"measured": 0.0, "predicted": 1.0, "low": 0, "high": 2, "group": "2"}, *sample()["points"]]
    cloud = Cloud.of(rows)
    assert len(cloud.points) == 40
    assert cloud.groups == ("2", "4", "8")
    assert [p.tip for p in cloud.points] == list(range(1, 41))


def test_groups_are_in_the_order_of_their_numbers() -> None:
    rows = [{"measured": 1.0, "predicted": 1.0, "low": 1, "high": 1, "group": g} for g in ("16", "2", "other", "8")]
    assert Cloud.of(rows).groups == ("2", "8", "16", "other")


@pytest.mark.parametrize(("low", "high"), [(1.0, 2.0), (3e-7, 5e-6), (0.02, 9e8), (90.0, 1100.0)])
def test_ticks_are_few_ascending_and_inside(low: float, high: float) -> None:
    ticks = log_ticks(low, high, 6)
    assert 1 <= len(ticks) <= 6
    assert ticks == sorted(set(ticks))
    assert low <= ticks[0] <= ticks[-1] <= high


def test_the_error_axis_is_neither_too_short_nor_endless() -> None:
    assert reach_of([0.001, -0.002]) == 0.15
    assert reach_of([40.0] * 5) == 1.0


@needs_chromium
def test_the_page_in_a_browser(tmp_path: Path) -> None:
    probe = """<script>
    const dot = document.querySelector('#scatter circle[data-i="3"]'), tip = document.getElementById("tip");
    dot.dispatchEvent(new PointerEvent("pointermove", { bubbles: true, clientX: 40, clientY: 40 }));
    const out = document.createElement("pre");
    out.id = "found";
    out.textContent = JSON.stringify({ faults, tip: tip.hidden ? null : tip.textContent, lit: document.querySelectorAll(".on").length });
    document.body.append(out);
    </script>"""
    html = page(sample()).replace("<title>", WATCH + "<title>").replace("</body>", probe + "</body>")
    dom, console = dump(html, tmp_path)
    found = probed(dom)
    assert console == []
    assert found["faults"] == []
    assert found["lit"] == 2  # the same row, in both pictures
    assert found["tip"].startswith("row 503")
    assert "133 ms" in found["tip"]
