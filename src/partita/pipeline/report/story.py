"""Story: everything that is known of one run of a plan, as one value; and the folder it lives in.

    DIR/plan.json         the plan and the problem it answers (PlanFile)
    DIR/predicted.json    the simulated timeline of one step     (Perfetto opens it)
    DIR/measured.json     the measured timeline of one step      (Perfetto opens it)
    DIR/metrics.jsonl     the training run: {"step": 1, "loss": 2.31, "step_s": 0.42} a line
    DIR/readings.json     what the probe said of every device meanwhile
    DIR/summary.json      title, engines compared, alternatives, facts (`Story.summary` shows the keys)

Any of them may be missing; `missing()` says which, and what would make it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from partita.errors import BadInput
from partita.files import damaged, dump_json, made_folder, read_json, write_whole
from partita.nouns.costs import MOST_SECONDS
from partita.nouns.metrics import Metric, number_from_json, number_to_json, read_metrics
from partita.nouns.pipeline_plan import PipelinePlan
from partita.nouns.plan import PlanFile
from partita.nouns.probe import Readings
from partita.nouns.timeline import Timeline
from partita.simulate.predicted import predicted
from partita.simulate.run_speed import RunSpeed, run_speed

SINGLE, PIPELINE, TORCH = "single", "pipeline", "torch"  #: the engines that the page knows by role
WARM_UP = 2  #: steps at the beginning of a run whose times do not count
NAMES = {SINGLE: "one process", PIPELINE: "pipeline", TORCH: "torch's own pipeline"}


@dataclass(frozen=True)
class Engine:
    """One way in which the job was run: its step times and its losses."""

    key: str  #: "single", "pipeline", "torch", or any other name
    predicted_s: float | None = None  #: seconds a step
    measured_s: float | None = None  #: median over the steps
    low_s: float | None = None  #: 10th percentile over the steps
    high_s: float | None = None  #: 90th percentile
    steps: int = 0  #: how many steps the median is of
    losses: tuple[tuple[int, float], ...] = ()  #: (step, loss)

    @property
    def name(self) -> str:
        return NAMES.get(self.key, self.key)

    @staticmethod
    def of(key: str, step_s: Sequence[float], losses: Iterable[tuple[int, float]] = ()) -> Engine:
        """An engine from the times of its steps (warm-up steps left out by the caller).

        >>> Engine.of("single", [0.4, 0.5, 0.6]).measured_s
        0.5
        """
        if not len(step_s):
            return Engine(key, losses=tuple(losses))
        low, median, high = (float(x) for x in np.percentile(np.asarray(step_s), [10, 50, 90]))
        return Engine(key, None, median, low, high, len(step_s), tuple(losses))


@dataclass(frozen=True)
class Story:
    """One run of one plan."""

    title: str
    plan: PlanFile | None = None
    predicted: Timeline | None = None
    measured: Timeline | None = None  #: of the same program: the same instruction ids
    engines: tuple[Engine, ...] = ()
    alternatives: Mapping[str, float] = field(default_factory=dict)  #: method -> predicted seconds a step
    facts: Mapping[str, Any] = field(default_factory=dict)  #: machine, versions, load, CPU seconds, date
    training: tuple[tuple[int, float], ...] = ()  #: (step, loss) of the training run by the plan
    readings: Readings | None = None  #: what the probe said of the devices meanwhile

    def engine(self, key: str) -> Engine:
        """The engine of that key; one that knows nothing where it was not run."""
        return next((e for e in self.engines if e.key == key), Engine(key))

    @property
    def predicted_step_s(self) -> float | None:
        """Seconds a step as predicted: the engine's, else the predicted timeline's."""
        known = self.engine(PIPELINE).predicted_s
        return known if known is not None else self.predicted.duration_s if self.predicted else None

    @property
    def measured_step_s(self) -> float | None:
        """Seconds a step as measured: the median over the steps, else the measured timeline's."""
        known = self.engine(PIPELINE).measured_s
        return known if known is not None else self.measured.duration_s if self.measured else None

    @cached_property
    def run_speed(self) -> RunSpeed | None:
        """The prediction at the speeds that the devices had."""
        return run_speed(self.plan, self.readings) if self.plan else None

    def missing(self) -> list[str]:
        """What is not there, and what would make it."""
        gaps = [
            (self.plan, "no plan.json: the stages and the cuts are not shown (partita plan -o DIR/plan.json)"),
            (self.predicted, "no predicted.json: nothing to compare with (partita simulate plan.json -o DIR/predicted.json)"),
            (self.measured, "no measured.json: prediction only (partita run JOB --plan plan.json -o DIR)"),
            (self.training or any(e.losses for e in self.engines), "no metrics.jsonl: no loss curve (partita run JOB -o DIR)"),
            (self.engine(SINGLE).measured_s, "no step time of one process: no speed-up (partita demo, or partita run JOB --devices 1)"),
        ]  # fmt: skip
        return [line for there, line in gaps if not there]

    def write(self, folder: str | Path) -> Path:
        """Write every part that is there into a folder, which is made where it is missing.

        A metrics.jsonl that is there stays: it is the training run's own record."""
        folder = made_folder(folder)
        for name, part in (("plan", self.plan), ("predicted", self.predicted), ("measured", self.measured)):
            if part is not None:
                part.write(folder / f"{name}.json")
        if self.readings is not None:
            self.readings.write(folder / "readings.json")
        metrics = folder / "metrics.jsonl"
        if self.training and not metrics.exists():
            write_whole(metrics, "".join(Metric(s, x).line() for s, x in self.training))
        write_whole(folder / "summary.json", dump_json(self.summary()))
        return folder

    def summary(self) -> dict[str, Any]:
        """The JSON values of summary.json."""
        numbers = ("predicted_s", "measured_s", "low_s", "high_s", "steps")
        return {
            "format": "partita-summary",
            "version": 1,
            "title": self.title,
            "engines": [
                {
                    "engine": e.key,
                    **{k: getattr(e, k) for k in numbers},
                    "losses": [[s, number_to_json(x)] for s, x in e.losses],
                }
                for e in self.engines
            ],
            "alternatives": dict(self.alternatives),
            "facts": dict(self.facts),
        }

    @staticmethod
    def read(folder: str | Path) -> Story:
        """The story in a folder. Raises BadInput where there is no such folder, nothing in it, or a damaged file."""
        folder = Path(folder)
        if not folder.is_dir():
            raise BadInput(f"{folder} is not a folder", hint="give the folder that partita run or partita demo wrote")
        paths = {name: folder / name for name in ("plan.json", "predicted.json", "measured.json", "metrics.jsonl", "summary.json")}  # fmt: skip
        there = {name for name, path in paths.items() if path.exists()}
        if not there:
            raise BadInput(f"{folder} has none of {', '.join(paths)}", hint="give the folder that partita run or partita demo wrote")  # fmt: skip
        plan = PlanFile.read(paths["plan.json"]) if "plan.json" in there else None
        predicted = Timeline.read(paths["predicted.json"]) if "predicted.json" in there else simulated(plan)
        measured = Timeline.read(paths["measured.json"]) if "measured.json" in there else None
        title = plan.graph.name if plan else folder.name
        readings = Readings.read(folder / "readings.json") if (folder / "readings.json").exists() else None
        story = Story(title, plan, predicted, measured, readings=readings)
        if "summary.json" in there:
            story = _with_summary(
                story, read_json(paths["summary.json"], BadInput, "partita-summary"), str(paths["summary.json"])
            )
        if "metrics.jsonl" in there:
            story = _with_metrics(story, read_metrics(paths["metrics.jsonl"]))
        return story


def simulated(plan: PlanFile | None) -> Timeline | None:
    """The predicted timeline of a plan: what predicted.json would hold."""
    return None if plan is None else predicted(plan.problem, plan.plan)


def devices_used(story: Story) -> int:
    """How many devices the plan uses; 0 where that is unknown."""
    if story.plan and isinstance(story.plan.plan, PipelinePlan):
        return len(story.plan.plan.devices)
    timeline = story.measured or story.predicted
    return len(set(timeline.queue.tolist()) & set(range(timeline.devices))) if timeline else 0


def _with_summary(story: Story, value: Mapping[str, Any], what: str) -> Story:
    """Add what summary.json says."""
    with damaged(BadInput, what, hint="run again"):
        engines = tuple(
            Engine(
                str(e["engine"]),
                _time(e.get("predicted_s")),
                _time(e.get("measured_s")),
                _time(e.get("low_s")),
                _time(e.get("high_s")),
                int(e.get("steps") or 0),
                tuple((int(step), number_from_json(loss)) for step, loss in e.get("losses", ())),
            )
            for e in value.get("engines", ())
        )
        times = {str(k): _time(v) for k, v in value.get("alternatives", {}).items()}
        alternatives = {k: v for k, v in times.items() if v is not None}
        facts = {str(k): v for k, v in value.get("facts", {}).items()}
        title = str(value.get("title", story.title))
    return replace(story, title=title, engines=engines, alternatives=alternatives, facts=facts)


def _with_metrics(story: Story, rows: Sequence[Metric]) -> Story:
    """Add the training's losses, and its step times where the summary gives none (its first steps left out)."""
    story = replace(story, training=tuple((r.step, r.loss) for r in rows))
    times = [r.step_s for r in rows if r.step_s is not None]
    known = story.engine(PIPELINE)
    if known.measured_s is not None or not times:
        return story
    found = replace(Engine.of(PIPELINE, times[WARM_UP:] or times, known.losses), predicted_s=known.predicted_s)
    return replace(story, engines=(*(e for e in story.engines if e.key != PIPELINE), found))


def _time(value: Any) -> float | None:
    """Seconds, None where they are unknown. Raises ValueError for what is no time."""
    if value is None or math.isnan(time_s := float(value)):
        return None
    if not 0 <= time_s <= MOST_SECONDS:
        raise ValueError(f"{time_s} is no number of seconds")
    return time_s
