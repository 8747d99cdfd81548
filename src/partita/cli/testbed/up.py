"""partita testbed up: make hosts with shaped links and slowed processors."""

from __future__ import annotations

import argparse
from typing import Any

from partita.cli.talk import Talk
from partita.page.text import table
from partita.testbed.hosts import Testbed
from partita.testbed.units import percent_text, rate_text


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--hosts", type=int, metavar="N", help="how many hosts (default: as many as --rates, or 2)")
    speed = parser.add_mutually_exclusive_group()
    speed.add_argument(
        "--rate", default="100mbit", help="what every host sends and receives at: 20mbit, 500kbit, 1gbit"
    )
    speed.add_argument("--rates", metavar="R,R,...", help="one rate for each host; a bare number is in Mbit/s")
    parser.add_argument("--cpu", metavar="P,P,...", default="max", help="percent of one core for each host, or for all")
    parser.add_argument("--cores", type=int, metavar="N", help="pin host i to core i mod N")
    parser.add_argument("--name", default="default", help="several test beds may be up side by side")


def run(options: argparse.Namespace, talk: Talk) -> dict[str, Any]:
    """Make the bed and leave it up. Raises BadInput for bad numbers, a name in use, no root; MissingDependency."""
    rates = [options.rate] if options.rates is None else options.rates.split(",")
    hosts = (2 if options.rates is None else len(rates)) if options.hosts is None else options.hosts
    bed = Testbed.up(hosts, rates, options.cpu.split(","), cores=options.cores, name=options.name, keep=True)
    rows = [
        {
            "name": h.name,
            "address": h.address,
            "rate_bytes_per_s": h.rate_bit_per_s / 8,
            "rate": rate_text(h.rate_bit_per_s),
            "cpu_percent": h.cpu_percent,
            "core": h.core,
            "namespace": h.namespace,
        }
        for h in bed.hosts
    ]
    return {"name": bed.name, "hosts": rows}


def text(document: dict[str, Any]) -> str:
    rows = [
        [
            h["name"],
            h["address"],
            h["rate"],
            percent_text(h["cpu_percent"]),
            "any" if h["core"] is None else str(h["core"]),
        ]
        for h in document["hosts"]
    ]
    return table([(title, "text") for title in ("host", "address", "rate", "cpu", "core")], rows)
