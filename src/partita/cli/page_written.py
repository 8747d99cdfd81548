"""What every verb does with a report: write the page, say what is missing in it, print its headline."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from partita.cli.talk import Talk
from partita.files import write_whole


def page_written(
    out: str | None, given: Path, html: str, headline: Sequence[str], missing: Sequence[str], talk: Talk
) -> dict[str, Any]:
    """The document of a report. Without `out` it goes into the folder given, or beside the file given."""
    path = write_whole(out or (given / "report.html" if given.is_dir() else given.with_suffix(".html")), html)
    for line in missing:
        talk.say(f"   {line}")
    return {"report": str(path), "headline": " ".join(headline).strip(), "missing": list(missing)}


def text(document: dict[str, Any]) -> str:
    return f"{document['headline']}\n{document['report']}"
