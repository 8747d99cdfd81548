"""Metrics: a training run's own record, a JSON object a line: {"step": 1, "loss": 2.31, "step_s": 0.42}.

After a resume a step may come twice: the later line counts. A run that was ended may leave half a line at the end.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from partita.errors import BadInput
from partita.files import damaged, parse_json, read_text
from partita.nouns.costs import MOST_SECONDS

METRICS = "metrics.jsonl"  #: its name in a run's folder


@dataclass(frozen=True)
class Metric:
    """One step of training."""

    step: int
    loss: float
    step_s: float | None = None  #: seconds; None where it is not known

    def line(self) -> str:
        return json.dumps({k: v for k, v in vars(self).items() if v is not None}) + "\n"


def read_metrics(path: str | Path) -> list[Metric]:
    """The rows of a file by ascending step, each step once; empty where there is no such file.

    Raises BadInput with the number of the line that is no row; half a line at the very end is left out.
    """
    if not Path(path).exists():
        return []
    lines = read_text(path, BadInput).split("\n")
    rows: dict[int, Metric] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = parse_metric(line, f"{path} line {number}")
        except BadInput:
            if not "".join(lines[number:]).strip():  # the last one: its writer was stopped
                break
            raise
        rows[row.step] = row
    return [rows[step] for step in sorted(rows)]


def parse_metric(line: str, what: str) -> Metric:
    """One row. Raises BadInput with what is wrong with it.

    >>> parse_metric('{"step": 3, "loss": 0.5}', "the line")
    Metric(step=3, loss=0.5, step_s=None)
    """
    with damaged(BadInput, what, hint='a row is {"step": 1, "loss": 2.3, "step_s": 0.4}'):
        value = parse_json(line, BadInput, what)  # a loss that is not finite is worth showing
        step, seconds = value["step"], value.get("step_s")
        if isinstance(step, bool) or not isinstance(step, int) or step < 0:
            raise ValueError(f"step is {step!r}")
        if seconds is not None and not 0 <= float(seconds) <= MOST_SECONDS:
            raise ValueError(f"{seconds} is no number of seconds")
        return Metric(step, float(value["loss"]), None if seconds is None else float(seconds))


def number_to_json(value: float) -> float | None:
    """A loss, or an error of one: JSON has no word for what is not finite: null."""
    return value if math.isfinite(value) else None


def number_from_json(value: Any) -> float:
    """What `number_to_json` made, back.

    >>> [number_from_json(number_to_json(x)) for x in (0.5, math.inf)]
    [0.5, nan]
    """
    return math.nan if value is None else float(value)


def without_steps_from(rows: Iterable[Metric], step: int) -> str:
    """The lines of the rows before a step, for a run that takes that step again."""
    return "".join(r.line() for r in rows if r.step < step)
