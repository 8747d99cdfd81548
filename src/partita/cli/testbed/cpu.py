"""partita testbed cpu HOST PERCENT: change a host's share of a core while it is used."""

from __future__ import annotations

import argparse
from typing import Any

from partita.cli.talk import Talk
from partita.testbed.hosts import Testbed
from partita.testbed.units import parse_percent, percent_text


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("host", metavar="HOST", help="h0, h1, ...; made with --cpu")
    parser.add_argument("percent", metavar="PERCENT", help="of one core: 25, 200 for two cores, max for no limit")
    parser.add_argument("--name", default="default", help="of the test bed")


def run(options: argparse.Namespace, talk: Talk) -> dict[str, Any]:
    """Change it for all that runs there. Raises BadInput where the bed or the host does not exist, has no cpu group, or the share is
    none."""
    Testbed.open(options.name).cpu(options.host, options.percent)
    return {"name": options.name, "host": options.host, "cpu_percent": parse_percent(options.percent)}


def text(document: dict[str, Any]) -> str:
    share = document["cpu_percent"]
    return f"{document['host']} has " + ("no limit" if share is None else f"{percent_text(share)} of a core")
