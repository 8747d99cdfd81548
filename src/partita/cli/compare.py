"""partita compare A B: how well two timelines agree, or a plan's prediction and a measured timeline."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from partita.cli.talk import Talk
from partita.errors import TimelineError
from partita.files import read_json
from partita.nouns.plan import PlanFile
from partita.nouns.probe import Readings
from partita.nouns.timeline import Timeline
from partita.page.agreement import Agreement, agreement, as_text
from partita.page.run_speed import sentences
from partita.pipeline.report.story import simulated
from partita.simulate.run_speed import RunSpeed, run_speed


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "predicted", metavar="A", help="a timeline, a plan (its prediction is compared), or a run's folder"
    )
    parser.add_argument(
        "measured", metavar="B", nargs="?", help="a timeline or a plan; left out when A is a run's folder"
    )


def run(options: argparse.Namespace, talk: Talk) -> dict[str, Any]:
    """Compare event by event. Raises TimelineError where the two are not of the same program, BadInput for a bad file."""
    a, b = _paths(options)
    one, two = _timeline(a), _timeline(b)
    agreed = agreement(one, two)
    document = {"a": str(a), "b": str(b), "names": _names(one, two), **agreed.to_json()}
    run = _run_speed(b.parent) if Path(options.predicted).is_dir() else None
    if run:
        said = sentences(run, agreed.predicted_step_s, agreed.measured_step_s)
        document |= {**run.to_json(), "machine": said}
    return document


def text(document: dict[str, Any]) -> str:
    one, two = document["names"]
    return "\n\n".join([as_text(Agreement.from_json(document), (one, two)), *document.get("machine", ())])


def _run_speed(folder: Path) -> RunSpeed | None:
    """The prediction at the speeds of the run in a folder, where it holds them."""
    plan, readings = folder / "plan.json", folder / "readings.json"
    return run_speed(PlanFile.read(plan), Readings.read(readings)) if plan.exists() and readings.exists() else None


def _paths(options: argparse.Namespace) -> tuple[Path, Path]:
    """The two files. A run's folder stands for its predicted (or its plan's) and its measured timeline."""
    first = Path(options.predicted)
    if first.is_dir() and options.measured is None:
        predicted = first / "predicted.json"
        measured = first / "measured.json"
        if not measured.exists():
            raise TimelineError(
                f"{first} holds no measured timeline",
                hint="partita run JOB -o DIR writes one at the end of a run by Partita's own engine",
            )
        return predicted if predicted.exists() else first / "plan.json", measured
    if options.measured is None:
        raise TimelineError(f"{first} has nothing to be compared with", hint="give a second file, or a run's folder")
    return first, Path(options.measured)


def _timeline(path: Path) -> Timeline:
    """The timeline in a file: as it stands, or as the plan in it predicts."""
    value = read_json(path, TimelineError)
    if value.get("format") == "partita-plan":
        predicted = simulated(PlanFile.read(path))
        assert predicted is not None
        return predicted
    return Timeline.from_perfetto(value, str(path))


def _names(one: Timeline, two: Timeline) -> tuple[str, str]:
    """What to call the two: predicted and measured, or A and B where both are of one kind."""
    names = {"simulated": "predicted"}
    a, b = (names.get(t.source, t.source) for t in (one, two))
    return (a, b) if a != b else ("A", "B")
