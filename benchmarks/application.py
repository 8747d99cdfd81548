"""A whole training job foreseen: run time, best batch size and number of workers before it runs; then it runs.

    python benchmarks/application.py --data DIR [--target 0.6] [--out DIR] [--json]

The job is examples/cifar_application.py: a CNN on CIFAR-10 that trains until it is good enough. In order:

    measure    one device's tasks at every size, as `partita measure` does: the plans come from it
    probe      a few steps of some batches on one worker and two: the time of a step, a judgement, start and end
    pilot      runs to the target at two batches, with other seeds: steps(B) = S_min (1 + B_noise / B)
    time       the skeleton of a training step (partita.models) fitted to probes and pilots; foretells all batches and workers
    predict    start + steps x step + judgements, with intervals, written to OUT/prediction.json
    run        the best with new seeds, and between them the best one of the other number of workers

No seed is used twice for a batch. A probe during which others had the cores is taken again; a run that is judged never is.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from convergence import Convergence, Spread, crossing, fit_convergence
from harness import Machine, cpu_seconds, parser, run_script, said
from intervals import MOST_DRIFT_ALONE, Claim, Interval

from partita.cli.talk import Talk
from partita.errors import Interrupted
from partita.files import dump_json, write_whole
from partita.models.capture.table import Table
from partita.models.fitting import Penalty
from partita.models.formula import Formula, fit_formula
from partita.models.model import Z
from partita.nouns.plan import PlanFile
from partita.nouns.profile import Profile
from partita.page.text import percent, seconds, table
from partita.pipeline.plan.planner import plan_pipeline
from partita.pipeline.run import loop
from partita.training.measure.job import measure_job

JOB = f"{Path(__file__).parents[1] / 'examples' / 'cifar_application.py'}:job"
EVERY = 2048  #: images between two judgements
BATCHES = (8, 16, 32, 64, 128)
WORKERS = (1, 2)
PROBES = ((8, 1), (8, 2), (32, 2), (32, 1), (128, 1), (128, 2))
PROBE_IMAGES = 5 * EVERY
PROBE_SEED = 100
PILOTS = ((16, 201), (64, 202), (16, 203), (64, 204))  #: batch, seed
PILOT_WORKERS = 2
DISTURBED = 0.15  #: a worker that waits for its core for so much of its time is no measure of what comes
TRIES = 3  #: at a probe, until it is undisturbed
FINAL_SEEDS = (1, 2)


@dataclass(frozen=True)
class Run:
    """What a run of the job took, and how it went."""

    batch: int
    workers: int
    seed: int
    wall_s: float
    cpu_s: float  #: of all its processes
    load: float  #: before it
    images: tuple[int, ...]  #: [judgements]
    accuracy: tuple[float, ...]
    judge_s: tuple[float, ...]
    queued: float  #: share of its time for which a worker was ready to run while others had its core
    step_s: tuple[float, ...]  #: [judgements - 1] mean step between two judgements, everything between them included

    @property
    def undisturbed(self) -> bool:
        return self.queued < DISTURBED

    @property
    def steps(self) -> int:
        return self.images[-1] // self.batch

    @property
    def fixed_s(self) -> float:
        """What is neither steps at their usual pace nor judgements: start, the first steps' surcharge, end."""
        return self.wall_s - sum(self.judge_s) - self.steps * statistics.median(self.step_s)


@dataclass(frozen=True)
class Bench:
    """Where and with what the job runs."""

    profile: Profile
    data: str
    out: Path
    talk: Talk
    machine: Machine

    def plan(self, batch: int, workers: int) -> PlanFile:
        """One stage on so many workers, each with its share of the batch."""
        asked = replace(self.profile, batch_size=batch, cluster=self.profile.cluster.first(workers))
        return plan_pipeline(asked, micro_batches=workers, stages=1)

    def run(self, batch: int, workers: int, seed: int, target: float, steps: int | None = None) -> Run:
        """Train through Partita's own engine to the target, or for so many steps."""
        folder = self.out / f"batch{batch}-workers{workers}-seed{seed}"
        folder.mkdir(parents=True, exist_ok=True)
        course = folder / "course.jsonl"
        course.unlink(missing_ok=True)
        settings = _settings(self.data, batch, seed, target, str(course))
        self.machine.look_again(every_s=10.0)
        load, before = os.getloadavg()[0], cpu_seconds()
        began = time.monotonic()
        if loop.train(self.plan(batch, workers), JOB, settings, folder, steps=steps, epochs=1000).interrupted:
            raise Interrupted("the benchmark was stopped")
        wall = time.monotonic() - began
        rows = [json.loads(line) for line in course.read_text().splitlines()]
        found = Run(
            batch, workers, seed, wall, cpu_seconds() - before, load,
            tuple(r["images"] for r in rows), tuple(r["accuracy"] for r in rows),
            tuple(r["ended"] - r["began"] for r in rows),
            (rows[-1]["queued_s"] - rows[0]["queued_s"]) / (rows[-1]["began"] - rows[0]["began"]) / workers,
            tuple((b["began"] - a["ended"]) * batch / (b["images"] - a["images"]) for a, b in itertools.pairwise(rows)),
        )  # fmt: skip
        self.talk.say(
            f"   batch {batch}, {workers} worker{'s' * (workers > 1)}, seed {seed}: {seconds(wall)}, {found.steps} steps of "
            f"{seconds(statistics.median(found.step_s))}, accuracy {percent(found.accuracy[-1])}, load {load:.1f}, "
            f"kept waiting {percent(found.queued)} of the time"
        )
        return found

    def probe(self, batch: int, workers: int) -> Run:
        """A few steps, taken again while others have the cores; of several disturbed ones, the least disturbed."""
        found: list[Run] = []
        for attempt in range(TRIES):
            found.append(self.run(batch, workers, PROBE_SEED + attempt, 1.0, steps=PROBE_IMAGES // batch))
            if found[-1].undisturbed:
                break
        return min(found, key=lambda run: run.queued)


def _settings(data: str, batch: int, seed: int, target: float, course: str = "") -> dict[str, str]:
    given = {"data": data, "batch": batch, "seed": seed, "target": target, "every": EVERY, "course": course}
    return {k: str(v) for k, v in given.items()}


# ---- models -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Model:
    """What was learnt before the run."""

    step: Formula
    convergence: Convergence
    judge_s: Mapping[int, Spread]  #: workers -> seconds of a judgement, the mean of a run
    fixed_s: Mapping[int, Spread]  #: workers -> seconds of start and end

    def step_s(self, batch: int, workers: int) -> Spread:
        found = self.step.predict(Table.of([{"batch": batch, "workers": workers}]))
        return Spread(float(found.time[0]), math.log(float(found.high[0] / found.time[0])) / Z, math.inf)

    def predict(self, batch: int, workers: int) -> dict[str, Any]:
        """The run time of a configuration, its parts and its interval."""
        steps, step, fixed = self.convergence.steps(batch), self.step_s(batch, workers), self.fixed_s[workers]
        to_target = steps.middle * batch / EVERY  # judgements; the one after the target is reached ends the run
        taken = replace(steps, middle=(to_target + 0.5) * EVERY / batch)
        judging = replace(self.judge_s[workers], middle=(to_target + 0.5) * self.judge_s[workers].middle)
        run = fixed.plus(judging).plus(taken.times(step))
        return {
            "batch": batch, "workers": workers, "run_s": run.middle, "low_s": run.low, "high_s": run.high,
            "steps": steps.middle, "steps_low": steps.low, "steps_high": steps.high, "step_s": step.middle,
            "step_low_s": step.low, "step_high_s": step.high, "judging_s": judging.middle, "fixed_s": fixed.middle,
        }  # fmt: skip


def step_formula(runs: Sequence[Run]) -> Formula:
    """The skeleton, fitted to every interval between two judgements."""
    rows = [{"batch": r.batch, "workers": r.workers} for r in runs for _ in r.step_s]
    times = np.array([s for r in runs for s in r.step_s])
    return fit_formula("skeleton", Table.of(rows), times, {"batch": "batch", "workers": "devices"}, Penalty(), seed=0)


def learnt(probes: Sequence[Run], pilots: Sequence[Run], target: float) -> Model:
    """All that the prediction rests on."""
    reached = [_crossing(p, target) / p.batch for p in pilots]
    convergence = fit_convergence(np.array([float(p.batch) for p in pilots]), np.array(reached))
    of = {w: _timed([r for r in (*probes, *pilots) if r.workers == w]) for w in WORKERS}
    judge = {w: Spread.of(np.array([statistics.mean(r.judge_s) for r in rs])) for w, rs in of.items()}
    fixed = {w: Spread.of(np.array([r.fixed_s for r in rs])) for w, rs in of.items()}
    return Model(step_formula([r for rs in of.values() for r in rs]), convergence, judge, fixed)


def _timed(runs: Sequence[Run]) -> Sequence[Run]:
    """The runs whose times count: undisturbed ones, or, where they are fewer than two, all."""
    calm = [r for r in runs if r.undisturbed]
    return calm if len(calm) > 1 else runs


def _crossing(run: Run, target: float) -> float:
    return crossing(np.array(run.images, np.float64), np.array(run.accuracy), target)


# ---- the benchmark ------------------------------------------------------------------------------------------------------


def benchmark(data: str, target: float, out: Path, machine: Machine, talk: Talk) -> dict[str, Any]:
    """Measure, probe, pilot, predict; then run and compare."""
    began, facts = time.monotonic(), machine.facts
    talk.step("measuring one device")
    largest = max(BATCHES)
    sizes = sorted({b // w for b in BATCHES for w in WORKERS})
    profile = measure_job(
        JOB, _settings(data, largest, 0, target), devices=max(WORKERS), sizes=sizes, progress=talk.progress
    )
    bench = Bench(profile, data, out, talk, machine)
    talk.step("probing the time of a step")
    probes = [bench.probe(b, w) for b, w in PROBES]
    talk.step("pilot runs to the target")
    pilots = [bench.run(b, PILOT_WORKERS, seed, target) for b, seed in PILOTS]
    model = learnt(probes, pilots, target)
    predicted = sorted((model.predict(b, w) for b in BATCHES for w in WORKERS), key=lambda p: p["run_s"])
    best = predicted[0]
    other = next(p for p in predicted if p["workers"] != best["workers"])
    write_whole(out / "prediction.json", dump_json({"time": facts["time"], "target": target, "predicted": predicted}))
    talk.step(
        f"predicted: best is batch {best['batch']} on {best['workers']} workers, {seconds(best['run_s'])} "
        f"({seconds(best['low_s'])} to {seconds(best['high_s'])}); now it runs"
    )
    asked = [(best, FINAL_SEEDS[0]), (other, FINAL_SEEDS[0]), *((best, s) for s in FINAL_SEEDS[1:])]
    since = len(machine.probed)
    finals = [_judged(bench.run(p["batch"], p["workers"], s, target), p, target) for p, s in asked]
    record = machine.finished()
    return {
        "facts": facts, "target": target, "every": EVERY, "seconds_spent": time.monotonic() - began,
        "predicted": predicted, "runs": finals,
        "planned_step_s": [{"batch": b, "workers": w, "step_s": bench.plan(b, w).plan.verdict.value_s} for b in BATCHES for w in WORKERS],
        "convergence": {
            "fewest_steps": model.convergence.fewest_steps, "noise_batch": model.convergence.noise_batch,
            "noise": model.convergence.noise,
        },
        "probes": [asdict(p) for p in probes], "pilots": [asdict(p) for p in pilots],
        "verdicts": machine.verdicts(claimed(finals), since), "machine_record": record,
    }  # fmt: skip


def claimed(finals: Sequence[Mapping[str, Any]]) -> dict[str, tuple[Claim, Interval]]:
    """Each run lies in the interval that was predicted of it; the drift since the prediction counts."""
    found = {}
    for r in finals:
        low, high = r["predicted"]["low_s"], r["predicted"]["high_s"]
        what = f"batch {r['batch']} on {r['workers']} takes {seconds(low)} to {seconds(high)}"
        claim = Claim(what, low, high, most_drift=MOST_DRIFT_ALONE)
        found[f"batch{r['batch']}-workers{r['workers']}-seed{r['seed']}"] = (claim, Interval.exact(r["run_s"]))
    return found


def _judged(run: Run, predicted: Mapping[str, Any], target: float) -> dict[str, Any]:
    """A run beside what was predicted of it."""
    step_s = (run.wall_s - run.fixed_s - sum(run.judge_s)) / run.steps
    steps = _crossing(run, target) / run.batch
    return {
        **asdict(run), "run_s": run.wall_s, "steps_to_target": steps, "mean_step_s": step_s, "measured_fixed_s": run.fixed_s,
        "error": predicted["run_s"] / run.wall_s - 1,
        "steps_error": predicted["steps"] / steps - 1,
        "step_error": predicted["step_s"] / step_s - 1,
        "inside": predicted["low_s"] <= run.wall_s <= predicted["high_s"],
        "predicted": dict(predicted),
    }  # fmt: skip


def text(found: Mapping[str, Any]) -> str:
    """Both tables: what was predicted, and what came."""
    ahead = table(
        [("batch", "count"), ("workers", "count"), ("steps", "count"), ("a step", "s"), ("predicted run", "s"), ("from", "s"), ("to", "s")],
        [[p[k] for k in ("batch", "workers", "steps", "step_s", "run_s", "low_s", "high_s")] for p in found["predicted"]],
    )  # fmt: skip
    after = table(
        [("batch", "count"), ("workers", "count"), ("seed", "count"), ("predicted", "s"), ("measured", "s"), ("error", "error"),
         ("of the steps", "error"), ("of a step", "error"), ("CPU", "s"), ("kept waiting", "share"), ("load", "ratio")],
        [[r["batch"], r["workers"], r["seed"], r["predicted"]["run_s"], r["run_s"], r["error"], r["steps_error"], r["step_error"], r["cpu_s"], r["queued"], r["load"]]
         for r in found["runs"]],
    )  # fmt: skip
    return f"{ahead}\n\n{after}\n{said(found)}"


def main() -> int:
    options = parser(__doc__)
    options.add_argument("--data", required=True, metavar="DIR")
    options.add_argument("--target", type=float, default=0.6, help="accuracy on held-out images that ends training")
    options.add_argument("--out", metavar="DIR", help="keep the prediction, timelines and courses here")
    given = options.parse_args()
    data = str(Path(given.data).resolve())
    with tempfile.TemporaryDirectory() as folder:
        out = Path(given.out or folder)
        out.mkdir(parents=True, exist_ok=True)
        return run_script(given, lambda m, t: benchmark(data, given.target, out, m, t), text)


if __name__ == "__main__":
    sys.exit(main())
