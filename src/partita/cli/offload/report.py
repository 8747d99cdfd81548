"""partita offload report DIR: one self-contained HTML file, predicted above measured."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from partita.cli.page_written import page_written
from partita.cli.page_written import text as text
from partita.cli.talk import Talk
from partita.errors import BadInput
from partita.nouns.plan import OffloadFile
from partita.nouns.timeline import Timeline
from partita.offload.report.page import headline, page
from partita.offload.report.story import OffloadStory


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "path", metavar="DIR", help="what partita offload run -o wrote; or the plan.json of partita offload plan -o"
    )
    parser.add_argument(
        "-o", "--out", metavar="HTML", help="where to write it (default: DIR/report.html, or PLAN.html beside the plan)"
    )


def run(options: argparse.Namespace, talk: Talk) -> dict[str, Any]:
    """Read what is there, write the page. Raises BadInput where there is no plan, PlanError and its kin for damaged files."""
    given = Path(options.path)
    story = read_story(given)
    return page_written(options.out, given, page(story), headline(story), story.missing, talk)


def read_story(path: Path) -> OffloadStory:
    """The story of a run's folder, or of a plan alone. Raises BadInput, PlanError, CostError, TimelineError."""
    folder = path if path.is_dir() else None
    plan_file = path if folder is None else folder / "plan.json"
    if not plan_file.exists():
        raise BadInput(f"{plan_file} does not exist", hint="give a folder that partita offload run -o wrote, or a plan")
    file = OffloadFile.read(plan_file)
    title = path.resolve().name
    measured, executed = (folder / n if folder else None for n in ("timeline.json", "executed.json"))
    if measured is None or not measured.exists():
        return OffloadStory(title, file, missing=("Not measured: partita offload run -o DIR runs the jobs.",))
    done = OffloadFile.read(executed).plan if executed is not None and executed.exists() else None
    return OffloadStory(title, file, Timeline.read(measured), done)
