"""Measure a model on this machine: seconds per task, through ONNX Runtime, with intervals.

Three looks at the model, all with the options of every session here (`onnx_session`):

    plain      whole runs on the clock: what an inference takes
    profiled   which share of it each task has; the profiler's own cost cancels out
    cut        what real halves take, at up to 16 cut points: a device's tasks sum to its prefixes, a server's to its suffixes

Time is counted in windows of a quarter of a second. A device with a CPU quota stands still for most of each period (10 or 100
ms), so single kernels see no pause or a whole one; over a window, wall-clock time is what a stream of jobs experiences, and every
task gets its share of the pauses. The estimate is the median over windows, the interval its 10 % and 90 % quantiles.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from partita.errors import CostError, sentence_of
from partita.files import expect_format
from partita.nouns.costs import Estimate
from partita.nouns.graph import FloatArray
from partita.nouns.offload import LARGEST
from partita.offload.capture.onnx_inputs import random_inputs
from partita.offload.capture.onnx_model import OnnxModel
from partita.offload.measure.cuts import Side, cut_points, fitted, measured_halves
from partita.offload.measure.profile import kernels_of, shares
from partita.offload.onnx_session import Session, TimeLimit
from partita.temporary import temporary_folder

WINDOW_S = 0.25  #: some periods of any usual CPU quota
FEWEST, STEADY = 5, 0.02  #: windows; quit when the middle half of them lies within this share of the median
MOST_KERNELS = 60_000  #: events of a profile, some 40 MB of JSON


@dataclass(frozen=True)
class InferenceTimes:
    """What one inference takes on one machine."""

    model: str  #: hash
    whole: Estimate  #: the whole model
    tasks: Mapping[str, Estimate]  #: by task id; they sum to `whole.seconds`, those of a half to what it takes
    cpu_s: float  #: CPU time of the whole: less than `whole` on a machine that is shared or has a quota
    windows: int
    side: Side = "device"  #: whose halves they were fitted to: a device does the first tasks, a server the last
    points: int = 0  #: halves measured

    @property
    def seconds(self) -> dict[str, float]:
        """Task id -> seconds."""
        return {t: e.seconds for t, e in self.tasks.items()}

    def to_json(self) -> dict[str, Any]:
        return {
            "format": "partita-inference",
            "version": 1,
            "model": self.model,
            "whole": _row(self.whole),
            "cpu_s": self.cpu_s,
            "windows": self.windows,
            "side": self.side,
            "points": self.points,
            "tasks": [{"id": t, **_row(e)} for t, e in self.tasks.items()],
        }

    @staticmethod
    def from_json(value: Mapping[str, Any], what: str = "measurement") -> InferenceTimes:
        """The times in a parsed JSON object. Raises CostError."""
        expect_format(value, "partita-inference", CostError, what)
        try:
            return InferenceTimes(
                str(value["model"]),
                _estimate(value["whole"]),
                {str(t["id"]): _estimate(t) for t in value["tasks"]},
                float(value["cpu_s"]),
                int(value["windows"]),
                "server" if value.get("side") == "server" else "device",
                int(value.get("points", 0)),
            )
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise CostError(f"{what} is damaged: {sentence_of(error)}", hint="delete it and measure again") from error


def _row(e: Estimate) -> dict[str, float]:
    return {"seconds": e.seconds, "low": e.low, "high": e.high}


def _estimate(row: Mapping[str, Any]) -> Estimate:
    seconds, low, high = float(row["seconds"]), float(row["low"]), float(row["high"])
    if not 0 <= seconds <= LARGEST:
        raise ValueError(f"{seconds:g} seconds")
    return Estimate(seconds, low, high, "measured")


def measure_model(
    model: OnnxModel, budget_s: float = 4.0, side: Side = "device", limit: TimeLimit | None = None
) -> InferenceTimes:
    """Seconds per task on this machine, for the half that `side` does. Takes about `budget_s` or less, and loading the model
    twice and a half a few times.

    With a `limit` it ends, with TookTooLong, when that is over. Raises CaptureError where an input's shape is not known or ONNX Runtime refuses the model or cannot compute it.
    """
    order, feeds = model.graph.order, random_inputs(model)
    session = _warm(Session(model.data, model.name, limit), feeds, limit)
    plain = _windows(lambda: session.run(feeds, limit=limit), budget_s / 4)
    walls, cpus = (np.array([getattr(w, what) / w.runs for w in plain]) for what in ("wall_s", "cpu_s"))
    share = _shares(model, feeds, budget_s / 4, limit)
    whole = float(np.median(walls))
    middle = np.median(share, axis=0)
    points = cut_points(model, middle[order])
    halves = measured_halves(model, points, side, feeds, session, budget_s / 2, limit)
    seconds = np.empty_like(middle)
    seconds[order] = fitted(middle[order] * whole / middle.sum(), halves, side)
    scale = np.divide(seconds, middle, out=np.ones_like(middle), where=middle > 0)
    low, high = np.quantile(share, (0.1, 0.9), axis=0) * scale
    ids = [t.id for t in model.graph.tasks]
    rows = zip(ids, seconds, np.minimum(low, seconds), np.maximum(high, seconds), strict=True)
    return InferenceTimes(
        model.hash,
        Estimate(whole, float(np.quantile(walls, 0.1)), float(np.quantile(walls, 0.9)), "measured"),
        {t: Estimate(float(s), float(a), float(b), "measured") for t, s, a, b in rows},
        float(np.median(cpus)),
        len(plain),
        side,
        len(halves),
    )


@dataclass(frozen=True, slots=True)
class _Window:
    runs: int
    wall_s: float
    cpu_s: float


def _warm(session: Session, feeds: Mapping[str, Any], limit: TimeLimit | None) -> Session:
    session.run(feeds, limit=limit)  # the first run asks for memory
    return session


def _windows(run: Callable[[], object], budget_s: float, most_runs: int = 1 << 30) -> list[_Window]:
    """Run again and again; windows of WINDOW_S, until they are steady or time or runs are spent; at least one."""
    windows: list[_Window] = []
    began = time.perf_counter()
    while not windows or (
        time.perf_counter() - began < budget_s and sum(w.runs for w in windows) < most_runs and not _steady(windows)
    ):
        runs, start, cpu = 0, time.perf_counter(), time.thread_time()
        while runs == 0 or (time.perf_counter() - start < WINDOW_S and runs < most_runs):
            run()
            runs += 1
        windows.append(_Window(runs, time.perf_counter() - start, time.thread_time() - cpu))
    return windows


def _steady(windows: list[_Window]) -> bool:
    if len(windows) < FEWEST:
        return False
    low, middle, high = np.quantile([w.wall_s / w.runs for w in windows], (0.25, 0.5, 0.75))
    return bool(high - low <= STEADY * middle)


def _shares(model: OnnxModel, feeds: Mapping[str, Any], budget_s: float, limit: TimeLimit | None) -> FloatArray:
    """[windows, tasks] seconds of each task as the profiler sees them, averaged over the runs of a window."""
    with temporary_folder("profile") as folder:
        session = _warm(Session(model.data, model.name, limit, folder / "run"), feeds, limit)
        most = max(1, MOST_KERNELS // max(1, len(model.graph)))
        windows = _windows(lambda: session.run(feeds, limit=limit), budget_s, most)
        runs = shares(model, kernels_of(session.profiled(), 1 + sum(w.runs for w in windows)))[1:]
    ends = np.cumsum([w.runs for w in windows])
    return np.array([part.mean(axis=0) for part in np.split(runs, ends[:-1])])
