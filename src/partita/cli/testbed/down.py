"""partita testbed down: take the hosts away."""

from __future__ import annotations

import argparse
from typing import Any

from partita.cli.talk import Talk
from partita.testbed.hosts import Testbed, not_removed, sweep


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--name", default="default", help="of the test bed")


def run(options: argparse.Namespace, talk: Talk) -> dict[str, Any]:
    """End the bed's processes and remove it, and beds whose owners are dead. Raises BadInput where there is none, and where something
    of it is left."""
    swept = sweep()
    if swept.get(options.name):
        raise not_removed(options.name, swept[options.name])
    removed = [name for name, left in swept.items() if not left]
    if options.name not in removed:
        Testbed.open(options.name).down()
        removed.append(options.name)
    return {"removed": removed, "left": {name: left for name, left in swept.items() if left}}


def text(document: dict[str, Any]) -> str:
    lines = ["removed " + ", ".join(document["removed"])]
    lines += [f"of {name}, {', '.join(left)} could not be removed" for name, left in document["left"].items()]
    return "\n".join(lines)
