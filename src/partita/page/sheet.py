"""The sheet that every page is written on: one HTML file that needs nothing else, with sections, columns and tables.

Style and script are inlined; a policy forbids the page the network.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from typing import Any

from partita import __version__
from partita.page.markup import tag, words
from partita.page.text import count

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"


def document(title: str, body: str, data: Mapping[str, Any], styles: Sequence[str] = ()) -> str:
    """The file, from markup and from what its script reads; `styles` are files beside this one.

    `data` may have "tips": for each number that an element bears as data-i, [heading, [[name, value], ..]]; they are shown
    where the pointer is.
    """
    # "<" is written as an escape, so that no label can end the script element
    values = json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    head = [
        '<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="color-scheme" content="light dark">',
        f'<meta name="generator" content="partita {__version__}">',
        tag("title", words(f"{title} · Partita")),
        tag("style", asset("page.css"), *styles),
    ]
    scripts = f'<script type="application/json" id="data">{values}</script><script>{asset("page.js")}</script>'
    tip = '<div id="tip" role="status" hidden></div>'
    return f'<!doctype html>\n<html lang="en"><head>{"".join(head)}</head>\n<body><main>{body}</main>{tip}\n{scripts}</body></html>\n'


def asset(name: str, package: str = "partita.page") -> str:
    """A style sheet or script that lies beside the code of a package."""
    return resources.files(package).joinpath(name).read_text("utf-8")


def header(about: str, result: str, lede: str = "", quiet: str = "") -> str:
    """What the page is about, its result as the heading, and up to two sentences below it; all plain text."""
    return tag(
        "header",
        tag("p", tag("b", "Partita"), " ", words(about), class_="brand"),
        tag("h1", words(result)),
        tag("p", words(lede), class_="lede") if lede else "",
        tag("p", words(quiet), class_="quiet") if quiet else "",
    )


def footer(facts: Iterable[tuple[str, str]], missing: Sequence[str], note: str = "") -> str:
    """Names and values, what the report lacks, and who made it; plain text, but for the note."""
    pairs = [tag("div", tag("dt", words(k)), tag("dd", words(v))) for k, v in facts]
    gaps = tag("div", tag("h3", "Not in this report"), tag("ul", *(tag("li", words(g)) for g in missing)), class_="missing")  # fmt: skip
    return tag("footer", tag("dl", *pairs) if pairs else "", gaps if missing else "", made(note))


def made(note: str = "") -> str:
    """Who made the page, and what else is to be said at its end."""
    return tag("p", f"Made by Partita {__version__}.{' ' if note else ''}{note}", class_="quiet")


def section(title: str, note: str, content: str) -> str:
    """A heading, a sentence and a picture; nothing where neither is there."""
    if not content and not note:
        return ""
    return tag("section", tag("h2", words(title)), tag("p", note, class_="note") if note else "", content)


def columns(*parts: str) -> str:
    """What is there side by side."""
    there = [tag("div", c) for c in parts if c]
    return tag("div", *there, class_="columns") if len(there) > 1 else "".join(there)


def cells(values: Sequence[str], classes: Sequence[str], element: str = "td") -> str:
    """A row of a table, from markup."""
    return tag("tr", *(tag(element, v, class_=c or None) for v, c in zip(values, classes, strict=True)))


def framed(heads: Sequence[str], classes: Sequence[str], rows: Sequence[str], name: str) -> str:
    """A table that scrolls sideways where it is too wide; heads are plain text, rows markup."""
    head = tag("thead", cells([words(h) for h in heads], classes, "th"))
    return tag("div", tag("table", head, tag("tbody", *rows), class_=name), class_="scroll")


def many(n: int, one: str, more: str = "") -> str:
    """How many of something.

    >>> many(1, "row"), many(1440, "row")
    ('1 row', '1,440 rows')
    """
    return f"{count(n)} {one if n == 1 else more or one + 's'}"
