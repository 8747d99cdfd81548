"""The documentation holds: links lead somewhere, every verb has a page with all its flags, code blocks run."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

from partita.cli import VERBS
from partita.training.job import TrainingJob, call, load_job

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "benchmarks").glob("*.md")])
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def without_code(text: str) -> str:
    return re.sub(r"`[^`\n]*`", "", FENCE.sub("", text))


def anchors(page: Path) -> set[str]:
    """What a heading is linked by: lower case, spaces to dashes, other signs dropped."""
    heads = re.findall(r"^#+ +(.*)$", FENCE.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in heads}


def links(page: Path) -> Iterator[str]:
    return (link for link in LINK.findall(without_code(page.read_text())) if "://" not in link)


def code_blocks(page: Path, language: str) -> list[str]:
    return [code for kind, code in FENCE.findall(page.read_text()) if kind == language]


# ---- links and pages --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page: Path) -> None:
    lost = []
    for link in links(page):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            lost.append(link)
    assert lost == []


def test_every_page_can_be_reached_from_the_readme() -> None:
    seen: set[Path] = set()
    waiting = [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        if page in seen or page.suffix != ".md" or not page.is_file():
            continue
        seen.add(page)
        waiting += [(page.parent / link.partition("#")[0]).resolve() for link in links(page)]
    assert {name(p) for p in PAGES} - {name(p) for p in seen} == {"CHANGELOG.md"} - {name(p) for p in seen}


def every_verb() -> list[str]:
    """The words of every verb that does something: "plan", "offload plan"."""
    inner = {name: getattr(importlib.import_module(f"partita.cli.{name}"), "VERBS", None) for name in VERBS}
    return [
        words for name in VERBS for words in ([name] if inner[name] is None else [f"{name} {i}" for i in inner[name]])
    ]


def parser_of(words: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser()
    importlib.import_module(".".join(["partita.cli", *words.split()])).arguments(parser)
    return parser


@pytest.mark.parametrize("words", every_verb())
def test_every_verb_has_a_page_with_all_its_flags(words: str) -> None:
    """A verb with verbs of its own may have several pages: docs/reference/VERB.md, VERB-INNER.md there and among the guides."""
    verb, _, inner = words.partition(" ")
    docs = ROOT / "docs"
    pages = [docs / "reference" / f"{verb}.md", *(sorted(docs.glob(f"*/{verb}-*.md")) if inner else [])]
    text = "\n".join(page.read_text() for page in pages)
    flags = [a.option_strings for a in parser_of(words)._actions if a.option_strings and a.dest != "help"]
    assert text.startswith(f"# partita {verb}\n")
    assert f"partita {words}" in text
    assert [names for names in flags if not any(n in text for n in names)] == []
    assert "--json" in text
    assert "xit code" in text or "nds with" in text


def test_no_page_is_unfinished() -> None:
    marks = re.compile(r"\b(TODO|FIXME|TBD|XXX)\b|<!-- output:")
    assert [name(p) for p in PAGES if marks.search(p.read_text())] == []


# ---- code -------------------------------------------------------------------------------------------------------------------


def jobs() -> list[tuple[str, str]]:
    """(page, code) of every block that defines a job."""
    return [(name(p), code) for p in PAGES for code in code_blocks(p, "python") if "def job(" in code]


@pytest.mark.parametrize(("page", "code"), jobs(), ids=[p for p, _ in jobs()])
def test_a_job_on_a_page_is_one(page: str, code: str, tmp_path: Path) -> None:
    """It loads, gives the same model every time, and its first batch goes forward and backward."""
    (tmp_path / "shown.py").write_text(code)
    job = load_job(f"{tmp_path / 'shown.py'}:job")
    assert isinstance(job, TrainingJob)
    one, other = job.build(), job.build()
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))
    inputs, target = job.example()
    loss = job.loss(call(one, inputs), target)
    loss.backward()  # type: ignore[no-untyped-call]
    assert all(p.grad is not None for p in one.parameters())
    job.optimizer(list(one.named_parameters())).step()


def test_the_readme_has_a_job_and_few_lines() -> None:
    (code,) = code_blocks(ROOT / "README.md", "python")
    lines = [line for line in code.splitlines() if line.strip() and not line.startswith(("#", "import", "from"))]
    assert len(lines) <= 12


@pytest.mark.slow
def test_the_readmes_commands_run_as_they_stand(tmp_path: Path) -> None:
    readme = ROOT / "README.md"
    (code,), (shell,) = code_blocks(readme, "python"), code_blocks(readme, "sh")
    (tmp_path / "digits.py").write_text(code)
    commands = [line.partition("#")[0].split() for line in shell.splitlines() if line.startswith("partita ")]
    assert [c[1] for c in commands] == ["measure", "plan", "run", "report"]
    for words in commands:
        done = subprocess.run([sys.executable, "-m", *words], cwd=tmp_path, capture_output=True, text=True, timeout=200)
        assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "report.html").is_file()


def test_commands_on_pages_exist() -> None:
    """Every `partita VERB --flag` in a block of code is one that the parser knows."""
    verbs, unknown = set(every_verb()), []
    for page in PAGES:
        for line in re.findall(r"^ *(?:\$ )?partita ([^#\n]*)", page.read_text(), re.MULTILINE):
            words = line.partition(" -- ")[0].replace("[", " ").replace("]", " ").replace("|", " ").split()
            verb = next((v for v in (" ".join(words[:2]), *words[:1]) if v in verbs), None)
            if verb is None:
                continue
            known = {o for a in parser_of(verb)._actions for o in a.option_strings} | {"--json"}
            unknown += [(name(page), verb, w) for w in words if re.fullmatch(r"--?[a-z][a-z-]*", w) and w not in known]
    assert unknown == []


def test_make_targets_on_pages_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {t for p in PAGES for t in re.findall(r"(?:^ {4}|`)make ([a-z-]+)", p.read_text(), re.MULTILINE)}
    assert named <= targets


# ---- pictures and tables ------------------------------------------------------------------------------------------------------


def script(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"docs_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look themselves up there
    spec.loader.exec_module(module)
    return module


def test_the_timeline_picture_stands_alone() -> None:
    root = ET.parse(ROOT / "docs" / "images" / "timeline.svg").getroot()
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    words = {"".join(e.itertext()) for e in root.iter("{http://www.w3.org/2000/svg}text")}
    assert {"Predicted", "Measured"} <= words
    assert not [e for e in root.iter() if e.tag.endswith(("script", "image", "style"))]


def test_the_picture_has_every_span_of_both_timelines() -> None:
    from pipeline.report.sample_run import make_story

    story = make_story(2, 6)
    root = ET.fromstring(script(ROOT / "docs" / "images" / "make_timeline.py").svg(story))
    painted = [e for e in root.iter("{http://www.w3.org/2000/svg}rect") if not (e.get("fill") or "").endswith("18")]
    assert story.predicted is not None
    assert story.measured is not None
    assert len(painted) == len(story.predicted) + len(story.measured) + 4  # four in the legend


def test_tables_are_written_from_raw_results(tmp_path: Path) -> None:
    tables = script(ROOT / "benchmarks" / "tables.py")
    (tmp_path / "prediction.json").write_text(
        '[{"model": "vit", "plan": "best", "predicted_step_s": 0.4, "measured_step_s": 0.5, "load": 0.1},'
        ' {"model": "vit", "plan": "even", "predicted_step_s": 0.55, "measured_step_s": 0.5, "load": 0.2}]'
    )
    before = (ROOT / "README.md").read_text()
    after = tables.filled(before, tmp_path)
    assert "| vit, best plan | 400 ms | 500 ms | -20 % |" in after
    assert "| vit, even plan | 550 ms | 500 ms | +10 % |" in after
    assert "Median error 15 %, worst 20 %." in after
    assert tables.filled(after, tmp_path) == after
    assert tables.filled(after, tmp_path / "nowhere") == after
    marked = [name for file in tables.DOCUMENTS for _, name, _ in tables.MARK.findall(file.read_text())]
    assert sorted(marked) == sorted(tables.TABLES)


def test_tables_are_what_the_results_say() -> None:
    tables = script(ROOT / "benchmarks" / "tables.py")
    for file in tables.DOCUMENTS:
        text = file.read_text()
        assert tables.filled(text, ROOT / "benchmarks" / "results") == text
