"""Draw the house: wings above the ground floor, a line for the imports of one part by another, read from the source.

    python docs/images/make_house.py [-o docs/images/house.svg]

Which floor a part stands on is the layers contract of pyproject.toml; what it imports is what its files say. Lines grow
with the number of imports, in two steps, so that the picture changes when the house does and not with every import. `cli` may import everything: its lines to the ground floor are left out, and so are all to the foundation.
"""

from __future__ import annotations

import argparse
import ast
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from partita.page.markup import tag, words

ROOT = Path(__file__).parents[2]
WIDTH, BASE = 1000.0, 590.0  #: pixels: of the picture; where the lowest of the ground floor begins
ROOMS = ("capture", "measure", "plan", "run", "runtime", "report")  #: in the order of flow
PAINT = {"roof": "#8a63d2", "wing": "#3f7cc4", "ground": "#5c7a99", "foundation": "#7d8590"}
FONT = "-apple-system,'Segoe UI',Helvetica,Arial,sans-serif"
LINE = "#8793a1"
THICKER = (8, 32)  #: so many imports, and a line is thicker


@dataclass(frozen=True)
class Box:
    """One part of the house, where it is drawn."""

    name: str
    kind: str  #: a key of PAINT
    x: float
    y: float
    width: float
    height: float
    rooms: tuple[str, ...] = ()

    @property
    def bottom(self) -> float:
        return self.y + self.height


def floors() -> list[list[str]]:
    """Parts by floor, from the roof down, as the contract names them."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = next(c["layers"] for c in contracts if c["type"] == "layers")
    return [[part.strip().removeprefix("partita.") for part in layer.split("|")] for layer in layers]


def exceptions() -> set[tuple[str, str]]:
    """(wing, wing that it may import), as the contract says."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    said = next(c.get("ignore_imports", []) for c in contracts if c["type"] == "layers")
    pairs = [[path.strip().split(".")[1] for path in line.split("->")] for line in said]
    return {(a, b) for a, b in pairs}


def imports() -> Counter[tuple[str, str]]:
    """(part, part that it imports) -> import statements."""
    source = ROOT / "src" / "partita"
    found: Counter[tuple[str, str]] = Counter()
    for path in sorted(source.rglob("*.py")):
        part = path.relative_to(source).parts[0].removesuffix(".py")
        found.update((part, other) for other in _imported(path) if other != part)
    return found


def _imported(path: Path) -> Iterator[str]:
    """The part that each import of Partita in a file names."""
    for node in ast.walk(ast.parse(path.read_text())):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module == "partita":
            names = [f"partita.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        yield from (name.split(".")[1] for name in names if name.startswith("partita."))


def rooms_of(part: str) -> tuple[str, ...]:
    """Its rooms: packages inside of it."""
    folder = ROOT / "src" / "partita" / part
    inside = {p.parent.name for p in folder.glob("*/__init__.py")}
    return tuple(sorted(inside & set(ROOMS), key=ROOMS.index))


def boxes() -> dict[str, Box]:
    """The roof, the wings side by side, the ground floor as stairs down to the nouns, the foundation."""
    (roof,), wings, *ground = floors()
    foundation = [name for layer in ground[-2:] for name in layer]
    *stairs, nouns = [name for layer in ground[:-2] for name in layer]
    wide, step = (WIDTH + 16) / len(wings), WIDTH / len(stairs)
    found = [Box(roof, "roof", 0, 0, WIDTH, 36)]
    found += [Box(w, "wing", k * wide, 90, wide - 16, 78, rooms_of(w)) for k, w in enumerate(wings)]
    found += [
        Box(s, "ground", k * step, 230 + 66 * k, step - 24, 62 if rooms_of(s) else 40, rooms_of(s))
        for k, s in enumerate(stairs)
    ]
    found += [
        Box(nouns, "ground", 0, BASE, WIDTH, 36),
        Box(" · ".join(foundation), "foundation", 0, BASE + 42, WIDTH, 24),
    ]
    return {box.name: box for box in found}


def lines(house: Mapping[str, Box], used: Mapping[tuple[str, str], int]) -> Iterator[str]:
    """A line for every pair that imports: out of the bottom of one box, each from a place of its own, into another's top."""
    for box in house.values():
        targets = sorted(
            (
                house[b]
                for a, b in used
                if a == box.name and b in house and (box.kind != "roof" or house[b].kind == "wing")
            ),
            key=lambda b: (b.x + b.width / 2, b.y),
        )
        if box.kind == "roof":
            starts = [t.x + t.width / 2 for t in targets]
        else:
            starts = [box.x + box.width * (k + 1) / (len(targets) + 1) for k in range(len(targets))]
        for x, target in zip(starts, targets, strict=True):
            end = min(max(x, target.x + 12), target.x + target.width - 12)
            if target.y > box.bottom:
                yield _line(x, box.bottom, end, target.y, used[box.name, target.name])
            else:
                yield _beside(box, target, used[box.name, target.name])


def _line(x: float, y: float, end_x: float, end_y: float, number: int) -> str:
    """Down, across, down."""
    thick = 1.0 + sum(number >= step for step in THICKER)
    bend = (end_y - y) / 2
    path = f"M{x:.1f} {y:.1f}C{x:.1f} {y + bend:.1f} {end_x:.1f} {end_y - bend:.1f} {end_x:.1f} {end_y - 7:.1f}"
    head = f"M{end_x:.1f} {end_y - 1:.1f}l-4.5 -7h9z"
    return tag("path", d=path, stroke=LINE, stroke_width=thick, fill="none") + tag("path", d=head, fill=LINE)


def _beside(box: Box, target: Box, number: int) -> str:
    """From one wing to another: out of the bottom, below those between, into the other's bottom."""
    x, end_x, y = box.x + 8, target.x + target.width - 8, box.bottom
    path = f"M{x:.1f} {y:.1f}C{x:.1f} {y + 24:.1f} {end_x:.1f} {y + 24:.1f} {end_x:.1f} {y + 7:.1f}"
    thick = 1.0 + sum(number >= step for step in THICKER)
    head = f"M{end_x:.1f} {y + 1:.1f}l-4.5 7h9z"
    return tag("path", d=path, stroke=LINE, stroke_width=thick, fill="none") + tag("path", d=head, fill=LINE)


def _drawn(box: Box) -> str:
    middle = box.x + box.width / 2
    small = box.kind == "foundation"
    y = box.y + (24 if box.rooms else box.height / 2 + 5)
    parts = [
        tag("rect", x=box.x, y=box.y, width=box.width, height=box.height, rx=4, fill=PAINT[box.kind]),
        tag(
            "text", words(box.name), x=middle, y=y, font_size=12 if small else 16, font_weight=600, text_anchor="middle"
        ),
    ]
    wide = (box.width - 12) / len(box.rooms) if box.rooms else 0.0
    for k, room in enumerate(box.rooms):
        x = box.x + 6 + k * wide
        top = box.bottom - 28
        parts.append(tag("rect", x=x + 2, y=top, width=wide - 4, height=22.0, rx=3, fill="#ffffff", fill_opacity=0.18))
        parts.append(tag("text", room, x=x + wide / 2, y=top + 15, font_size=11, text_anchor="middle"))
    return "".join(parts)


def svg() -> str:
    """The whole picture."""
    house = boxes()
    height = max(box.bottom for box in house.values())
    title = "The parts of Partita and which imports which: cli, the wings, the ground floor, the foundation"
    return tag(
        "svg", tag("title", title), *lines(house, imports()), *map(_drawn, house.values()), xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {WIDTH:g} {height:g}", role="img", font_family=FONT, fill="#ffffff",
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--out", default=str(Path(__file__).parent / "house.svg"), metavar="SVG")
    Path(parser.parse_args().out).write_text(svg() + "\n")


if __name__ == "__main__":
    main()
