"""The loop: measure -> plan -> predict -> run -> compare. The only module that closes it; every step is a value or a file.

A run's folder (`out`) ends up with plan.json, predicted.json, measured.json, metrics.jsonl and, after a comparison,
summary.json; `partita report` makes one page of them.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from partita.errors import BadInput, Infeasible
from partita.files import made_folder
from partita.nouns.metrics import METRICS, number_from_json
from partita.nouns.pipeline_plan import PipelinePlan
from partita.nouns.plan import PlanFile
from partita.nouns.probe import Readings
from partita.nouns.profile import Profile
from partita.nouns.timeline import Timeline
from partita.page.machine import machine_facts
from partita.pipeline.report.story import Engine, Story
from partita.pipeline.run.adapt import DRIFT, FIRST_PLAN, Adapts, Change
from partita.pipeline.run.watching import Shows, Watching
from partita.simulate.lower import program_of
from partita.simulate.predicted import predicted
from partita.training.runtime.elastic import FAILURES, Elastic, keep_going, world_of
from partita.training.runtime.folder import held, kept_if_refused
from partita.training.runtime.join import expect_cores, on_this_machine
from partita.training.runtime.launch import Ended, Watch, launch
from partita.training.runtime.prepare import forget_earlier, prepared, training_spec
from partita.training.runtime.spec import Spec


def alternatives(profile: Profile, **wishes: Any) -> dict[str, float]:
    """Method -> predicted seconds of a step, of the simple methods that find a plan at all."""
    from partita.pipeline.plan.planner import plan_pipeline  # its kernels take a second to load: not for every run

    found = {}
    for method in ("single", "even", "blocks"):
        try:
            found[method] = plan_pipeline(profile, method=method, **wishes).verdict.value_s
        except (BadInput, Infeasible):  # e.g. fewer tasks than stages, or a model too large for one device
            continue
    return found


@dataclass(frozen=True)
class Comparison:
    """Every engine's steps, taken in turn on the same batches."""

    step_s: Mapping[str, list[float]]  #: engine -> seconds of each counted step
    cpu_s: Mapping[str, list[float]]  #: engine -> CPU seconds of all ranks of each counted step
    losses: Mapping[str, list[float]]  #: engine -> loss of each step from the first; nan where it is not finite
    gradient_errors: Mapping[str, float]  #: engine -> largest relative difference from the single process's gradients
    load: float  #: load average of the machine before it began
    readings: Mapping[str, Readings] = field(default_factory=dict)  #: engine -> what the probe said meanwhile

    def median_s(self, engine: str) -> float:
        return statistics.median(self.step_s[engine])

    @property
    def largest_loss_error(self) -> float:
        """Largest relative difference of the pipeline's losses from the single process's."""
        pairs = zip(self.losses["pipeline"], self.losses["single"], strict=True)
        return max(abs(a - b) / max(abs(b), 1e-30) for a, b in pairs)


def check_rounds(rounds: int, warmup: int = 2) -> None:
    """Raise BadInput where a comparison would have no step to count."""
    if rounds <= warmup:
        raise BadInput(
            f"{rounds} rounds of which {warmup} only warm up leave nothing to count",
            hint=f"ask for at least {warmup + 1} rounds",
        )


def compare_engines(
    file: PlanFile,
    job: str,
    settings: Mapping[str, str],
    out: str | Path,
    *,
    engines: Sequence[str] = ("single", "pipeline", "torch"),
    rounds: int = 14,
    warmup: int = 2,
    in_a_row: int = 1,
    threads: int = 1,
    watch: Watch | None = None,
    ring: Sequence[str] = (),
) -> Comparison:
    """Let the engines take the same steps in turn, `rounds` times, of `in_a_row` steps of which the mean counts, without the
    first where there are several. `ring`: a place in a `Ring`, where other runs take turns with this one. Raises what a worker failed with."""
    check_rounds(rounds, warmup)
    if in_a_row < 1:
        raise BadInput(f"{in_a_row} steps in a row", hint="ask for at least 1")
    load = os.getloadavg()[0]
    with held(folder := made_folder(out)), kept_if_refused(folder):
        prepared(folder, file)
        spec = Spec(
            job, dict(settings), str(folder / "plan.json"), str(folder), task="compare", engine=",".join(engines), steps=rounds,
            warmup=warmup, in_a_row=in_a_row, threads=threads, facts=machine_facts(), ring=ring,
        )  # fmt: skip
        launch(spec, file, program_of(file.problem, file.plan), watch)
    value = json.loads((folder / "compare.json").read_text())
    readings = {name: Readings.from_json(r) for name, r in value["readings"].items()}
    losses = {name: [number_from_json(x) for x in found] for name, found in value["losses"].items()}
    errors = {name: number_from_json(e) for name, e in value["gradient_errors"].items()}
    return Comparison(value["step_s"], value["cpu_s"], losses, errors, load, readings)


def train(
    file: PlanFile,
    job: str,
    settings: Mapping[str, str],
    out: str | Path,
    *,
    engine: str = "pipeline",
    steps: int | None = None,
    epochs: int = 1,
    checkpoint_every: int = 0,
    resume: str = "",
    threads: int = 1,
    timeout_s: float = 300.0,
    watch: Watch | None = None,
    elastic: Elastic | None = None,
    adapt: Callable[[Change], None] | None = None,
    shows: Sequence[Shows] = (),
    ring: Sequence[str] = (),
) -> Ended:
    """Train by a plan on this machine's devices; checkpoints go to out/checkpoints. Raises what a worker failed with.

    With `elastic` the run goes on when workers die; with `adapt`, which hears of it, the plan changes when a device has
    become slower or faster; `shows` are told of every step. `ring`: a place in a `Ring`, where other runs take turns with this one.
    """
    if isinstance(file.plan, PipelinePlan):
        expect_cores(file, file.plan.devices)
        file = on_this_machine(file) if adapt or elastic else file
    with held(folder := made_folder(out)), kept_if_refused(folder):
        prepared(folder, file)
        forget_earlier(folder, FAILURES, DRIFT, FIRST_PLAN, *([] if resume else [METRICS]))
        spec = training_spec(
            folder, job, settings, engine=engine, steps=steps, epochs=epochs, checkpoint_every=checkpoint_every,
            resume=resume, threads=threads, timeout_s=timeout_s, ring=ring,
        )  # fmt: skip
        watched = adapt is not None or bool(shows)
        spec = replace(spec, watched=watched)
        with contextlib.ExitStack() as stack:

            def mind(file: PlanFile) -> Watching:
                adapts = None
                if adapt:
                    adapts = Adapts(file, folder, adapt, steps, lambda new: _tell(shows, new))
                    stack.enter_context(contextlib.closing(adapts))
                _tell(shows, file)
                return Watching(world_of(file, len(file.cluster.devices) if adapt else 0), shows, adapts)

            if elastic:
                return keep_going(
                    spec, file, elastic, watch, mind=mind if watched else None, all_devices=adapt is not None
                )
            ranks = len(file.cluster.devices) if adapt else 0
            return launch(spec, file, None, watch, ranks=ranks, mind=mind(file) if watched else None)


def _tell(shows: Sequence[Shows], file: PlanFile) -> None:
    for show in shows:
        show.plan(file)


def story_of(title: str, file: PlanFile, out: str | Path, comparison: Comparison, others: Mapping[str, float]) -> Story:
    """Everything about a comparison as one story, written into its folder."""
    folder = Path(out)
    foreseen = predicted(file.problem, file.plan)
    engines = []
    for name, steps in comparison.step_s.items():
        engine = Engine.of(name, steps, tuple(enumerate(comparison.losses[name], 1)))
        known = foreseen.duration_s if name == "pipeline" else others.get("single") if name == "single" else None
        engines.append(replace(engine, predicted_s=known))
    measured = Timeline.read(folder / "measured.json") if (folder / "measured.json").exists() else None
    cpu = {f"{n} CPU s a step": round(statistics.median(c), 4) for n, c in comparison.cpu_s.items()}
    facts = {**machine_facts(), **cpu, "load before": comparison.load}
    story = Story(
        title, file, foreseen, measured, tuple(engines), others, facts, readings=comparison.readings.get("pipeline")
    )
    story.write(folder)
    return Story.read(folder)
