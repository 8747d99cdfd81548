"""The page in a real browser: its script runs without an error, numbers are drawn, pointing and zooming work."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from pipeline.report.sample_run import make_story

from partita.pipeline.report.page import headline, page

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not on PATH")

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--enable-logging=stderr",
    "--log-level=0",
    "--virtual-time-budget=4000",
    "--dump-dom",
]

# --dump-dom draws no frames, and a made-up pointer cannot be captured: both are replaced
WATCH = """<script>
window.faults = [];
addEventListener("error", (e) => faults.push(e.message));
addEventListener("securitypolicyviolation", (e) => faults.push("policy " + e.blockedURI));
window.requestAnimationFrame = (f) => setTimeout(f, 0);
Element.prototype.setPointerCapture = () => {};
</script>"""

PROBE = """<script>
requestAnimationFrame(() => requestAnimationFrame(() => {
  const plot = document.querySelector(".plot"), spans = plot.querySelector(".spans"), tip = document.getElementById("tip");
  const box = plot.getBoundingClientRect();
  const view = () => spans.getAttribute("viewBox").split(" ").map(Number);
  const found = { faults, ready: document.documentElement.dataset.ready, whole: view(), numbers: plot.querySelectorAll(".number").length, ends: [...plot.querySelectorAll(".endlabel")].map((e) => e.textContent) };
  const span = spans.querySelector("rect.forward[data-i]");
  span.dispatchEvent(new PointerEvent("pointermove", { bubbles: true, clientX: box.left + 40, clientY: box.top + 40 }));
  found.tip = tip.hidden ? null : tip.innerText || tip.textContent;
  found.lit = spans.querySelectorAll(".on").length;
  plot.dispatchEvent(new WheelEvent("wheel", { deltaY: -60, ctrlKey: true, clientX: box.left + box.width / 2, cancelable: true }));
  found.zoomed = view();
  requestAnimationFrame(() => requestAnimationFrame(() => {
    found.zoomed = view();
    plot.dispatchEvent(new PointerEvent("pointerdown", { button: 0, clientX: box.left + box.width * 0.25, pointerId: 1 }));
    plot.dispatchEvent(new PointerEvent("pointermove", { clientX: box.left + box.width * 0.5, pointerId: 1 }));
    plot.dispatchEvent(new PointerEvent("pointerup", { button: 0, clientX: box.left + box.width * 0.5, pointerId: 1 }));
    requestAnimationFrame(() => requestAnimationFrame(() => {
      found.brushed = view();
      plot.dispatchEvent(new MouseEvent("dblclick"));
      requestAnimationFrame(() => requestAnimationFrame(() => {
        found.back = view();
        const out = document.createElement("pre");
        out.id = "found";
        out.textContent = JSON.stringify(found);
        document.body.append(out);
      }));
    }));
  }));
}));
</script>"""


def dump(text: str, folder: Path) -> tuple[str, list[str]]:
    """The document after its scripts ran, and what they said on the console."""
    path = folder / "page.html"
    path.write_text(text)
    assert CHROMIUM is not None
    done = subprocess.run(
        [CHROMIUM, *FLAGS, f"--user-data-dir={folder / 'profile'}", "--window-size=1280,2000", path.as_uri()],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


def probed(dom: str) -> dict[str, Any]:
    found = re.search(r'<pre id="found">(.*?)</pre>', dom, re.S)
    assert found, "the probe did not finish"
    return json.loads(html.unescape(found[1]))  # type: ignore[no-any-return]


@needs_chromium
def test_the_page_in_a_browser(tmp_path: Path) -> None:
    story = make_story(4, 16)
    text = page(story).replace("<title>", WATCH + "<title>").replace("</body>", PROBE + "</body>")
    dom, console = dump(text, tmp_path)
    assert console == []
    found = probed(dom)
    assert found["faults"] == []
    assert found["ready"] == "yes"
    assert found["numbers"] > 4 * 16
    assert story.predicted is not None
    assert story.measured is not None
    assert found["ends"] == [f"{1e3 * t.duration_s:.0f} ms" for t in (story.predicted, story.measured)]
    assert headline(story)[0] in html.unescape(dom)
    assert "forward of stage" in found["tip"]
    assert "predicted" in found["tip"]
    assert "measured" in found["tip"]
    assert found["lit"] == 2  # the same instruction, in both timelines


@needs_chromium
def test_zoom_and_back(tmp_path: Path) -> None:
    text = page(make_story(2, 8)).replace("<title>", WATCH + "<title>").replace("</body>", PROBE + "</body>")
    found = probed(dump(text, tmp_path)[0])
    whole, zoomed, brushed = found["whole"], found["zoomed"], found["brushed"]
    assert zoomed[2] < 0.9 * whole[2]
    assert zoomed[0] + zoomed[2] / 2 == pytest.approx(whole[0] + whole[2] / 2, rel=1e-3)
    assert brushed[2] == pytest.approx(zoomed[2] / 4, rel=0.02)
    assert brushed[0] == pytest.approx(zoomed[0] + zoomed[2] / 4, rel=0.02)
    assert found["back"] == whole


@needs_chromium
def test_a_page_without_timelines_runs_its_script_too(tmp_path: Path) -> None:
    dom, console = dump(page(make_story(2, 4).__class__("nothing")).replace("<title>", WATCH + "<title>"), tmp_path)
    assert console == []
    assert 'data-ready="yes"' in dom
