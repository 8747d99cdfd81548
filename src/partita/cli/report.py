"""partita report DIR: one self-contained HTML file from a run's folder."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from partita.cli.page_written import page_written
from partita.cli.page_written import text as text
from partita.cli.talk import Talk
from partita.mapping.report.history import History
from partita.mapping.report.page import search_section
from partita.pipeline.report.page import headline, page
from partita.pipeline.report.story import Story


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="DIR", help="the folder that partita run or partita demo wrote")
    parser.add_argument("-o", "--out", metavar="HTML", help="where to write it (default: DIR/report.html)")


def run(options: argparse.Namespace, talk: Talk) -> dict[str, Any]:
    """Read what is in the folder, write the page. Raises BadInput where nothing is there, or a file is damaged."""
    story = Story.read(options.folder)
    more = [search_section(History.read(options.folder))]
    html = page(story, more)
    return page_written(options.out, Path(options.folder), html, headline(story), story.missing(), talk)
