"""partita testbed down: take the hosts away."""

from __future__ import annotations

import argparse
from typing import Any

from partita.cli.talk import Talk
from partita.testbed.hosts import Testbed, sweep


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--name", default="default", help="of the test bed")


def run(options: argparse.Namespace, talk: Talk) -> dict[str, Any]:
    """End the bed's processes and remove it, and beds whose owners are dead. Raises BadInput where there is none."""
    removed = sweep()
    if options.name not in removed:
        Testbed.open(options.name).down()
        removed.append(options.name)
    return {"removed": removed}


def text(document: dict[str, Any]) -> str:
    return "removed " + ", ".join(document["removed"])
