"""A run that survives: random kills, what it costs to be ready for them, and a core that is slowed to half in the middle.

    python benchmarks/elastic.py [--only kills|overhead|slowed] [--model bert] [--kills 20] [--rounds 8] [--steps 40] [--json]

kills     `partita run --on-failure replan|replace` in turn, a random worker killed (SIGKILL) at a random moment between the
          start and the expected end of the run: does it end, and with the losses of an undisturbed one?
overhead  seconds a step, all between two steps included, with copies in memory and watching, and without: two runs that take
          turns step by step
slowed    `partita run --adapt`; after a third of its steps a competitor takes half of the last core. Then, with the competitor
          still there, a run by the plan that was measured and made beside it: the optimum. Before that, the same run without
          a competitor: how often does it change its plan for nothing?
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from engines import all_done
from harness import Json, Machine, parser, run_script, said
from intervals import WITHIN_ROUNDS, Claim, Interval, bootstrap, ratio, ratio_within_rounds
from slowed import competitor, part_of_core
from watched_runs import WatchedJob, median, steps_until

from partita.cli.talk import Talk
from partita.nouns.metrics import read_metrics
from partita.nouns.plan import PlanFile
from partita.page.text import table
from partita.pipeline.plan.planner import plan_pipeline
from partita.pipeline.run.loop import train
from partita.training.measure.job import measure_job
from partita.training.runtime.baton import Baton, Ring
from partita.training.runtime.elastic import Elastic

JOBS = Path(__file__).parent / "prediction_jobs.py"
SIZES = (2,)  #: of micro-batches
CLOSE = 1e-5  #: of a loss, relative
WARM = 6  #: steps of a run that are not counted
LAST = 20  #: steps at the end of a slowed run whose median is its result
SURVIVES = Claim("every run ends after a kill, with the losses of an undisturbed one", low=1.0, most_drift=math.inf)
CHEAP = Claim("being ready for failures costs at most 3 % of a step", high=1.03, most_drift=WITHIN_ROUNDS)
BACK = Claim("after a slow-down the step is within 5 % of the new optimum", high=1.05)
SOON = Claim("within 40 steps", high=40.0)
CALM = Claim("no change of plan on a quiet run", high=0.0)


def benchmark(options: argparse.Namespace, machine: Machine, talk: Talk) -> Json:
    parts = {"kills": kills, "overhead": overhead, "slowed": slowed}
    source = f"{JOBS}:{options.model}"
    with tempfile.TemporaryDirectory() as folder:
        room = Path(folder)
        talk.step(f"measuring and planning {options.model}")
        profile = measure_job(source, devices=2, sizes=SIZES, progress=talk.progress)
        file = plan_pipeline(profile, stages=2, allow_replicas=False)
        plan = file.write(room / "plan.json")
        plan_pipeline(profile).write(room / "free.json")
        document: Json = {"model": options.model, "predicted_step_s": file.verdict.value_s, "verdicts": {}}
        for name in [options.only] if options.only else list(parts):
            talk.step(name)
            with WatchedJob(source, plan, room) as job:
                found = parts[name](options, machine, talk, job)
            document["verdicts"] |= found.pop("verdicts")
            document[name] = found
    return document | {"machine_record": machine.finished()}


# ---- kills --------------------------------------------------------------------------------------------------------------


def kills(options: argparse.Namespace, machine: Machine, talk: Talk, job: WatchedJob) -> Json:
    began = time.monotonic()
    quiet = job.start(options.steps)
    quiet.expect_done()
    whole_s = time.monotonic() - began
    wanted = {m.step: m.loss for m in read_metrics(quiet.out / "metrics.jsonl")}
    lots = random.Random(options.seed)
    rows = []
    for k in range(options.kills):
        talk.progress("kills", k, options.kills)
        how = ("replan", "replace")[k % 2]
        rows.append(_killed(job, options.steps, how, lots.uniform(0, whole_s), lots, wanted))
    good = sum(r["ended"] and r["each_step_once"] and r["worst_loss_error"] <= CLOSE for r in rows)
    share = Interval.exact(good / max(1, len(rows)))
    return {
        "runs": len(rows), "survived": good, "undisturbed_s": whole_s, "rows": rows,
        "verdicts": machine.verdicts({"survives": (SURVIVES, share)}),
    }  # fmt: skip


def _killed(
    job: WatchedJob, steps: int, how: str, after_s: float, lots: random.Random, wanted: dict[int, float]
) -> Json:
    """A run one of whose workers is killed after so many seconds, or as soon as there is one."""
    began = time.monotonic()
    run = job.start(steps, "--on-failure", how)
    time.sleep(after_s)
    while not (alive := run.workers()) and run.process.poll() is None:
        time.sleep(0.01)
    hit = None
    if alive:
        hit = lots.choice(alive)
        with contextlib.suppress(ProcessLookupError):
            os.kill(hit, signal.SIGKILL)
    code = run.ended()
    found = read_metrics(run.out / "metrics.jsonl")
    lines = [r["step"] for r in run.rows("metrics.jsonl")]
    worst = max((abs(m.loss - wanted[m.step]) / abs(wanted[m.step]) for m in found), default=float("inf"))
    return {
        "how": how, "after_s": after_s, "killed": hit is not None, "ended": code == 0, "each_step_once": lines == sorted(wanted),
        "worst_loss_error": worst, "failures": run.rows("failures.jsonl"), "wall_s": time.monotonic() - began,
        **({} if code == 0 else {"said": run.said}),
    }  # fmt: skip


# ---- overhead -----------------------------------------------------------------------------------------------------------


def overhead(options: argparse.Namespace, machine: Machine, talk: Talk, job: WatchedJob) -> Json:
    """Two runs at once that take turns step by step: one that is ready for failures, one that is not.

    Their launchers are threads of this process: what these do ten times a second falls on both alike, and is not in it."""
    steps, ready = WARM + options.rounds * options.steps, Elastic()
    ways: dict[str, dict[str, Any]] = {"without": {}, "with": {"elastic": ready, "adapt": lambda change: None}}
    with tempfile.TemporaryDirectory() as folder, Ring.started(Path(folder), 2 * len(ways)) as ring, ThreadPoolExecutor(len(ways) + 1) as pool:  # fmt: skip
        runs = [
            pool.submit(
                train, PlanFile.read(job.plan), job.source, {}, Path(folder) / name, steps=steps, ring=ring.place(2 * k), **how
            )
            for k, (name, how) in enumerate(ways.items())
        ]  # fmt: skip
        clock = pool.submit(clocked, [Baton.of(ring.place(2 * k + 1), 0) for k in range(len(ways))], steps)
        all_done(ring, [*runs, clock])
    times = {name: took[WARM:] for name, took in zip(ways, clock.result(), strict=True)}
    cost = ratio_within_rounds(times["with"], times["without"])
    return {
        "step_s": times, "with_over_without": cost.value, "ratio_interval": {"with/without": cost.ends},
        "verdicts": machine.verdicts({"cheap": (CHEAP, cost)}),
    }  # fmt: skip


def clocked(behind: Sequence[Baton], steps: int) -> list[list[float]]:
    """[runs][steps] seconds from the moment a run has the baton until it passes it on: with all that comes between two steps.

    Each of `behind` stands behind one of the runs in the ring."""
    took: list[list[float]] = [[] for _ in behind]
    for mine in behind:
        mine.ready()
    began = time.perf_counter()
    for _ in range(steps + 1):  # in the last one runs see that there are no batches left
        for mine, row in zip(behind, took, strict=True):
            mine.wait()
            row.append(time.perf_counter() - began)
            mine.give()
            began = time.perf_counter()
    return [row[:-1] for row in took]


# ---- slowed in the middle -----------------------------------------------------------------------------------------------


def slowed(options: argparse.Namespace, machine: Machine, talk: Talk, job: WatchedJob) -> Json:
    core = sorted(os.sched_getaffinity(0))[-1]
    steps = 3 * options.steps
    with competitor(core, options.share):
        profile = measure_job(job.source, devices=2, sizes=SIZES, progress=talk.progress)
        best = plan_pipeline(profile).write(job.room / "optimum.json")
    rows = []
    for k in range(options.rounds):
        talk.progress("slowed", k, options.rounds)
        machine.look_again(30.0)
        rows.append(_slowed(job, steps, core, options.share, best))
    after, optimum = ([r[k] for r in rows] for k in ("after_s", "optimum_s"))
    back = ratio(after, optimum)
    late = [float(r["back_after_steps"]) if r["back_after_steps"] is not None else float(steps) for r in rows]
    soon = bootstrap(lambda n: n, late)
    return {
        "rounds": rows, "after_over_optimum": back.value, "steps_until_back": late,
        "switches_when_quiet": [r["quiet_switches"] for r in rows],
        "verdicts": machine.verdicts(
            {
                "back": (BACK, back), "soon": (SOON, soon),
                "calm": (CALM, Interval.exact(float(sum(r["quiet_switches"] for r in rows)))),
            }
        ),
    }  # fmt: skip


def _slowed(job: WatchedJob, steps: int, core: int, share: float, best: Path) -> Json:
    free = job.room / "free.json"
    quiet = job.start(steps, "--adapt", plan=free)
    quiet.expect_done()
    run = job.start(steps, "--adapt", plan=free)
    run.wait_for(steps // 3)
    with competitor(core, share):
        since = len(run.rows("metrics.jsonl")) + 1
        code = run.ended()
        other = job.start(WARM + LAST, plan=best)
        other.expect_done()
    rows = read_metrics(run.out / "metrics.jsonl")
    times = run.step_s
    events = run.rows("drift.jsonl")
    optimum = median(other.step_s[-LAST:])
    switch = next((e["step"] for e in events if e["event"] == "switched" and e["step"] > since), None)
    return {
        "ended": code == 0, "no_step_lost": [m.step for m in rows] == list(range(1, steps + 1)), "slowed_since": since, "events": events,
        "before_s": median(times[WARM:since]), "slow_s": median(times[since : switch or since + 10]),
        "after_s": median(times[-LAST:]), "optimum_s": optimum, "back_after_steps": steps_until(times, since, 1.05 * optimum),
        "quiet_switches": sum(e["event"] == "switched" for e in quiet.rows("drift.jsonl")), "step_s": times,
    }  # fmt: skip


def text(found: Json) -> str:
    lines = []
    if "kills" in found:
        k = found["kills"]
        sources = [f["source"] for r in k["rows"] for f in r["failures"]]
        lines.append(
            f"{k['survived']} of {k['runs']} runs ended with the losses of an undisturbed one; went on from memory {sources.count('memory')} times, "
            f"from the start {sources.count('start')} times"
        )
    if "overhead" in found:
        o = found["overhead"]
        lines.append(f"with over without: {o['with_over_without']:.4f} {o['ratio_interval']['with/without']}")
    if "slowed" in found:
        columns = [("round", "count"), ("before", "s"), ("slow", "s"), ("after", "s"), ("optimum", "s"), ("steps until back", "text")]  # fmt: skip
        rows = [
            [i, r["before_s"], r["slow_s"], r["after_s"], r["optimum_s"], str(r["back_after_steps"])]
            for i, r in enumerate(found["slowed"]["rounds"])
        ]
        lines.append(table(columns, rows))  # type: ignore[arg-type]
    return "\n".join([*lines, said(found)])


def main() -> int:
    options = parser(__doc__)
    options.add_argument("--only", choices=("kills", "overhead", "slowed"), help="one part")
    options.add_argument("--model", default="bert", metavar="MODEL", help="of prediction_jobs.py; default: bert")
    options.add_argument("--kills", type=int, default=20, metavar="N", help="runs with a kill; default: 20")
    options.add_argument("--rounds", type=int, default=8, metavar="N", help="of the other parts; default: 8")
    options.add_argument("--steps", type=int, default=40, metavar="N", help="of a run; three times as many where a core is slowed; default: 40")  # fmt: skip
    options.add_argument("--share", type=part_of_core, default=0.5, help="of the last core that the competitor takes; default: 0.5")  # fmt: skip
    options.add_argument("--seed", type=int, default=0, metavar="N", help="of the kills' moments; default: 0")
    given = options.parse_args()
    return run_script(given, lambda m, t: benchmark(given, m, t), text)


if __name__ == "__main__":
    sys.exit(main())
