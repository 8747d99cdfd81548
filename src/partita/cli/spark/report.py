"""partita spark report DIR: one self-contained HTML file, predicted above measured."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from partita.cli.page_written import page_written
from partita.cli.page_written import text as text
from partita.cli.talk import Talk
from partita.errors import BadInput
from partita.nouns.timeline import Timeline
from partita.spark.report.page import SparkStory, headline, page
from partita.spark.schedule import ShopFile


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", metavar="DIR", help="what partita spark run --order -o wrote; or the plan.json of partita spark plan -o")  # fmt: skip
    parser.add_argument("-o", "--out", metavar="HTML", help="where to write it (default: DIR/report.html, or PLAN.html beside the plan)")  # fmt: skip


def run(options: argparse.Namespace, talk: Talk) -> dict[str, Any]:
    """Read what is there, write the page. Raises BadInput where there is no plan, PlanError and its kin for damaged files."""
    given = Path(options.path)
    story = read_story(given)
    return page_written(options.out, given, page(story), headline(story), story.missing, talk)


def read_story(path: Path) -> SparkStory:
    """The story of a run's folder, or of a plan alone. Raises BadInput, PlanError, TimelineError."""
    folder = path if path.is_dir() else None
    plan = path if folder is None else folder / "plan.json"
    if not plan.exists():
        raise BadInput(
            f"{plan} does not exist", hint="give a folder that partita spark run --order -o wrote, or a plan"
        )
    file, title = ShopFile.read(plan), path.resolve().name
    measured = None if folder is None else folder / "measured.json"
    if measured is None or not measured.exists():
        return SparkStory(title, file, missing=("Not measured: partita spark run --order PLAN -o DIR runs the jobs.",))
    return SparkStory(title, file, Timeline.read(measured))
