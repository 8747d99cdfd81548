"""partita flow resume DIR: go on with a run that was ended; what was finished comes from its folder."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from partita.cli.flow import run as flow_run
from partita.cli.talk import Talk
from partita.errors import FlowError
from partita.files import damaged, read_json

text = flow_run.text


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="DIR", help="the folder of the run")


def run(options: argparse.Namespace, talk: Talk) -> dict[str, Any]:
    """Run the same flow with the same settings again, over the same store. Raises FlowError where DIR holds no run."""
    return flow_run.run(
        argparse.Namespace(**asked(Path(options.folder) / "flow.json"), dashboard=None, out=options.folder), talk
    )


def asked(path: Path) -> dict[str, Any]:
    """What a run was asked for. Raises FlowError where the file does not say it."""
    told = read_json(path, FlowError, "partita-flow")
    with damaged(FlowError, str(path), hint="run the flow anew: partita flow run"):
        flow, store, workers = told["flow"], told["store"], told["workers"]
        words = [told["scheduler"], told["memory"]]
        switches = [told["stop_on_error"], told["no_check"]]
        sound = isinstance(flow, str) and isinstance(store, str) and all(w is None or isinstance(w, str) for w in words)
        if not (sound and type(workers) in (int, type(None)) and all(isinstance(x, bool) for x in switches)):
            raise ValueError("a setting is of another kind")
    return {k: told[k] for k in ("flow", "store", "workers", "scheduler", "memory", "stop_on_error", "no_check")}
