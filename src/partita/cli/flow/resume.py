"""partita flow resume DIR: go on with a run that was ended; what was finished comes from its folder."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from partita.cli.flow import run as flow_run
from partita.cli.talk import Talk
from partita.dataflow.flow import FlowError
from partita.files import damaged, read_json

text = flow_run.text


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="DIR", help="the folder of the run")


def run(options: argparse.Namespace, talk: Talk) -> dict[str, Any]:
    """Run the same flow with the same settings again, over the same store. Raises FlowError where DIR holds no run."""
    path = Path(options.folder) / "flow.json"
    told = read_json(path, FlowError, "partita-flow")
    with damaged(FlowError, str(path), hint="run the flow anew: partita flow run"):
        again = argparse.Namespace(
            flow=str(told["flow"]), workers=_whole(told["workers"]), scheduler=_word(told["scheduler"]), memory=_word(told["memory"]),
            stop_on_error=bool(told["stop_on_error"]), no_check=bool(told["no_check"]), dashboard=None, store=str(told["store"]), out=options.folder,
        )  # fmt: skip
    return flow_run.run(again, talk)


def _whole(value: Any) -> int | None:
    return None if value is None else int(value)


def _word(value: Any) -> str | None:
    return None if value is None else str(value)
