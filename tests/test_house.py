"""The house: no floor below the wings names one, and the picture of the house is drawn from the source as it is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from test_docs import ROOT, script

HOUSE = script(ROOT / "docs" / "images" / "make_house.py")
SOURCE = ROOT / "src" / "partita"
ROOF, WINGS, *_ = HOUSE.floors()
BELOW = [p for p in sorted(SOURCE.rglob("*.py")) if p.relative_to(SOURCE).parts[0] not in (*ROOF, *WINGS)]


@pytest.mark.parametrize("path", BELOW, ids=lambda p: str(p.relative_to(SOURCE)))
def test_nothing_below_the_wings_names_one(path: Path) -> None:
    """Neither imports it nor speaks of its folder: `partita.offload`, `offload/plan`."""
    rooms = "|".join(HOUSE.ROOMS)
    named = re.compile(rf"\bpartita[./]({'|'.join(WINGS)})\b|\b({'|'.join(WINGS)})/({rooms}|\w+\.py)\b")
    lines = path.read_text().splitlines()
    assert [line for line in lines if named.search(line)] == []


def test_every_part_of_the_house_stands_on_a_floor() -> None:
    parts = {
        p.stem if p.is_file() else p.name for p in SOURCE.iterdir() if (p / "__init__.py").exists() or p.suffix == ".py"
    }
    assert parts - {"__init__", "__main__"} == {part for floor in HOUSE.floors() for part in floor}


def test_no_import_climbs_a_floor_or_crosses_between_wings() -> None:
    """What import-linter holds too; here with the functions that draw the picture, so that its lines can be trusted."""
    floor = {part: k for k, parts in enumerate(HOUSE.floors()) for part in parts}
    climbs = {(a, b) for a, b in HOUSE.imports() if a in floor and b in floor and floor[a] >= floor[b]}
    assert climbs == HOUSE.exceptions()


def test_the_picture_is_current() -> None:
    drawn = (ROOT / "docs" / "images" / "house.svg").read_text()
    assert drawn == HOUSE.svg() + "\n", "draw it again: python docs/images/make_house.py"


def test_the_page_has_a_line_for_every_part() -> None:
    page = (ROOT / "docs" / "concepts" / "house.md").read_text()
    rows = {
        name for row in re.findall(r"^\| (`[^|]*) \|", page, re.MULTILINE) for name in re.findall(r"`(\w+)/?`", row)
    }
    assert rows == {part for floor in HOUSE.floors() for part in floor}
