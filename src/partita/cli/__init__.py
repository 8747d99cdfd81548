"""The command line: one file a verb. stdout is data, stderr is talk.

A verb is a module with `arguments(parser)`, `run(options, talk) -> document` and `text(document) -> str`. The document is
printed as one JSON object with --json, as text otherwise. Verbs are imported when they are called, so that planning
never waits for torch.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
from collections.abc import Sequence

from partita import __version__
from partita.cli.talk import Talk
from partita.errors import PartitaError

VERBS = {
    "demo": "the main job on bundled real data: measure, plan, predict, train, compare, report",
    "measure": "measure a training job and this machine",
    "plan": "find a plan, with a bound that says how good it is",
    "explain": "why this plan: the bound, the gap, the bottleneck, what one more device would bring",
    "simulate": "predict a plan's timeline",
    "run": "train for real, by a plan",
    "compare": "two timelines, or predicted against measured",
    "report": "one self-contained HTML file from a run's folder",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb; returns the exit code: 0, 2 bad input, 3 infeasible, 130 interrupted, 1 anything else."""
    words = list(sys.argv[1:] if argv is None else argv)
    verb = next((w for w in words if not w.startswith("-")), None)
    options = _parser(verb).parse_args(words)
    talk = Talk.to_stderr()
    try:
        module = importlib.import_module(f"partita.cli.{options.verb}")
        document = module.run(options, talk)
        sys.stdout.write(json.dumps(document) + "\n" if options.json else module.text(document).rstrip("\n") + "\n")
        sys.stdout.flush()
    except PartitaError as error:
        talk.error(str(error))
        return error.exit_code
    except KeyboardInterrupt:
        talk.error("interrupted")
        return 130
    except BrokenPipeError:  # the reader of stdout went away: nobody is left to tell
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return 0


def _parser(verb: str | None) -> argparse.ArgumentParser:
    """The parser; only the verb that is called gets its own arguments, the others only a line of help."""
    parser = argparse.ArgumentParser(
        prog="partita", description="Split deep-learning work over machines, provably well."
    )
    parser.add_argument("--version", action="version", version=f"partita {__version__}")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    for name, line in VERBS.items():
        sub = verbs.add_parser(name, help=line, description=line[0].upper() + line[1:] + ".")
        if name == verb:
            importlib.import_module(f"partita.cli.{name}").arguments(sub)
        sub.add_argument("--json", action="store_true", help="print one JSON document")
    return parser
