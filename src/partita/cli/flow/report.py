"""partita flow report DIR: one self-contained HTML file of a run."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from partita.cli.page_written import page_written
from partita.cli.page_written import text as text
from partita.cli.talk import Talk
from partita.dataflow.report.page import headline, lede, page
from partita.dataflow.report.story import read_run


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", metavar="DIR", help="what partita flow run wrote; or its run.json")
    parser.add_argument("-o", "--out", metavar="HTML", help="where to write it (default: DIR/report.html, or run.html beside run.json)")  # fmt: skip


def run(options: argparse.Namespace, talk: Talk) -> dict[str, Any]:
    """Read the record, write the page. Raises BadInput where there is none, or it is damaged."""
    given = Path(options.path)
    record = read_run(given / "run.json" if given.is_dir() else given)
    title = (given if given.is_dir() else given.parent).resolve().name
    return page_written(options.out, given, page(record, title), (headline(record), lede(record)), (), talk)
