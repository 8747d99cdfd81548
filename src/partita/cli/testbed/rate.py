"""partita testbed rate HOST RATE: change a host's rate while it is used."""

from __future__ import annotations

import argparse
from typing import Any

from partita.cli.talk import Talk
from partita.testbed.hosts import Testbed
from partita.testbed.units import parse_rate, rate_text


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("host", metavar="HOST", help="h0, h1, ...")
    parser.add_argument("rate", metavar="RATE", help="5mbit, 500kbit, 1gbit; a bare number is in Mbit/s")
    parser.add_argument("--name", default="default", help="of the test bed")


def run(options: argparse.Namespace, talk: Talk) -> dict[str, Any]:
    """Change it in both directions. Raises BadInput where the bed or the host does not exist, or the rate is none."""
    bits = parse_rate(options.rate)
    Testbed.open(options.name).rate(options.host, options.rate)
    return {"name": options.name, "host": options.host, "rate": rate_text(bits), "rate_bytes_per_s": bits / 8}


def text(document: dict[str, Any]) -> str:
    return f"{document['host']} sends and receives at {document['rate']}"
