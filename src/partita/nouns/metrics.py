"""Metrics: a training run's own record, a JSON object a line: {"step": 1, "loss": 2.31, "step_s": 0.42}.

After a resume a step may come twice: the later line counts. A run that was ended may leave half a line at the end.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from partita.errors import BadInput
from partita.files import read_text

_MOST_STEPS = 1 << 53  #: a larger number is no longer exact in the JSON of other readers


@dataclass(frozen=True)
class Metric:
    """One step of training."""

    step: int
    loss: float
    step_s: float | None = None  #: seconds; None where it is not known

    def line(self) -> str:
        return json.dumps({k: v for k, v in asdict(self).items() if v is not None}) + "\n"


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
            row = parse_metric(line)
        except ValueError as error:
            if not "".join(lines[number:]).strip():  # the last one: its writer was stopped
                break
            raise BadInput(
                f"{path} line {number} is no row of metrics: {error}",
                hint='a row is {"step": 1, "loss": 2.3, "step_s": 0.4}',
            ) from error
        rows[row.step] = row
    return [rows[step] for step in sorted(rows)]


def parse_metric(line: str) -> Metric:
    """One row. Raises ValueError with what is wrong with it.

    >>> parse_metric('{"step": 3, "loss": 0.5}')
    Metric(step=3, loss=0.5, step_s=None)
    """
    try:
        value = json.loads(line)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(value, dict):
        raise ValueError(f"a {type(value).__name__}, not an object")
    step = value.get("step")
    if isinstance(step, bool) or not isinstance(step, int) or not 0 <= step < _MOST_STEPS:
        raise ValueError(f"step is {_short(step)}, not a number of steps")
    seconds = None if value.get("step_s") is None else _number(value["step_s"], "step_s")
    if seconds is not None and not 0 <= seconds < math.inf:
        raise ValueError(f"step_s is {seconds}, not a time")
    return Metric(step, _number(value.get("loss"), "loss"), seconds)


def without_steps_from(rows: Iterable[Metric], step: int) -> str:
    """The lines of the rows before a step, for a run that takes that step again."""
    return "".join(r.line() for r in rows if r.step < step)


def _number(value: Any, what: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{what} is {_short(value)}, not a number")
    try:
        return float(value)
    except OverflowError:
        raise ValueError(f"{what} is too large a number") from None


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."
