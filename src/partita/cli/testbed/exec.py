"""partita testbed exec HOST -- COMMAND: run a command on a host."""

from __future__ import annotations

import argparse
import os
import sys
import time
from typing import Any

from partita.cli.talk import Talk
from partita.testbed.hosts import Testbed


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--name", default="default", help="of the test bed")
    parser.add_argument("host", metavar="HOST", help="h0, h1, ...; options of this verb come before it")
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="-- COMMAND", help="the command and its words")


def run(options: argparse.Namespace, talk: Talk) -> dict[str, Any]:
    """Become the command: its input, output, signals and exit status are this process's own. With --json, run it to its
    end and tell what it printed. Raises BadInput where the bed, the host or the command does not exist."""
    words = options.command[1:] if options.command[:1] == ["--"] else options.command
    bed = Testbed.open(options.name)
    if not options.json:
        launched = bed.command(options.host, words)
        sys.stdout.flush()
        sys.stderr.flush()
        os.execvp(launched[0], launched)
    start = time.monotonic()
    done = bed.exec(options.host, words, check=False)
    return {
        "host": options.host,
        "command": words,
        "exit_status": done.returncode,
        "stdout": done.stdout,
        "stderr": done.stderr,
        "wall_s": time.monotonic() - start,
    }


def text(document: dict[str, Any]) -> str:
    """Only called for a document, which only --json makes."""
    return str(document["stdout"])
