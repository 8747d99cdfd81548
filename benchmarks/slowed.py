"""A core slowed before measuring: the plan that knows of it against the plan that takes the cores for equal.

    python benchmarks/slowed.py [--share 0.3] [--rounds 26] [--blocks 4] [--only MODEL] [--json]

A competing process takes a share of the last core all the time, while the job is measured and while both plans run in turn.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from engines import WARMUP, Compared, add_turns, plans_in_turn
from harness import Json, Machine, machine_line, parser, run_script
from intervals import WITHIN_ROUNDS, Claim, ratio_within_rounds, sentences

from partita.cli.talk import Talk
from partita.nouns.plan import PlanFile
from partita.nouns.profile import Profile
from partita.page.text import table
from partita.pipeline.plan.planner import plan_pipeline
from partita.pipeline.run.loop import check_rounds
from partita.training.measure.job import measure_job

JOBS = Path(__file__).parent / "prediction_jobs.py"
FASTER = Claim("the plan that knows of the slow core is at least 10 % faster", low=1.1, most_drift=WITHIN_ROUNDS)
_NAP_S = 1e-3
_COMPETITOR = """
import os, sys, time
core, share, nap = int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])
os.sched_setaffinity(0, {core})
parent, began = os.getppid(), time.monotonic()
while os.getppid() == parent:
    while time.thread_time() < share * (time.monotonic() - began):
        pass
    time.sleep(nap)
"""


def rows(options: argparse.Namespace, machine: Machine, talk: Talk) -> Json:
    check_rounds(options.rounds, WARMUP)
    source, core = f"{JOBS}:{options.only}", sorted(os.sched_getaffinity(0))[-1]
    with competitor(core, options.share):
        profile = measure_job(source, devices=2, sizes=(2,), progress=talk.progress)
        files = {"knows": planned(profile), "equal": planned(as_equals(profile))}
        found = plans_in_turn(
            machine,
            files,
            source,
            dict.fromkeys(files, ("pipeline",)),
            rounds=options.rounds,
            blocks=options.blocks,
            talk=talk,
        )
    record, gain = (
        machine.finished(),
        ratio_within_rounds(found["equal"].steps("pipeline"), found["knows"].steps("pipeline")),
    )
    return figures(profile, files, found) | {
        "equal_over_knows": gain.value, "ratio_interval": {"equal/knows": gain.ends},
        "verdicts": machine.verdicts({"faster": (FASTER, gain)}), "machine_record": record,
    }  # fmt: skip


@contextlib.contextmanager
def competitor(core: int, share: float) -> Iterator[None]:
    """Processes that take a share of a core, below 1, while the context lasts, whoever else wants it. The system deals it out evenly,
    so that one takes at most half of it from another, two take two thirds."""
    count = max(1, math.ceil(share / (1 - share) - 1e-9))
    words = [sys.executable, "-c", _COMPETITOR, str(core), str(share / count), str(_NAP_S)]
    taken = [subprocess.Popen(words) for _ in range(count)]
    try:
        yield
    finally:
        for t in taken:
            t.kill()
            t.wait()


def part_of_core(word: str) -> float:
    """What a competitor may be told to take. Raises ArgumentTypeError."""
    with contextlib.suppress(ValueError):
        if 0 <= float(word) < 1:
            return float(word)
    raise argparse.ArgumentTypeError(f"{word}: give a number from 0 to below 1")


def as_equals(profile: Profile) -> Profile:
    """As if nothing were known of the devices' speeds."""
    devices = tuple(replace(d, speed=1.0) for d in profile.cluster.devices)
    return replace(profile, cluster=replace(profile.cluster, devices=devices))


def planned(profile: Profile) -> PlanFile:
    return plan_pipeline(profile, stages=2, allow_replicas=False, allow_recompute=False)


def figures(profile: Profile, files: dict[str, PlanFile], found: dict[str, Compared]) -> Json:
    return {
        "speeds": {d.name: d.speed for d in profile.cluster.devices},
        "stages": {n: [[len(s.tasks), *s.devices] for s in getattr(f.plan, "stages", ())] for n, f in files.items()},
        "predicted_step_s": {n: f.verdict.value_s for n, f in files.items()},
        "predicted_at_run_speed_s": {n: c.at_run_speed_s for n, c in found.items()},
        "measured_step_s": {n: c.median_s("pipeline") for n, c in found.items()},
        "samples": {n: c.raw() for n, c in found.items()},
    }


def text(found: Json) -> str:
    columns = [("plan", "text"), ("tasks a stage", "text"), ("predicted", "s"), ("at the run's speed", "s"), ("measured", "s")]  # fmt: skip
    body = [
        [n, " ".join(f"{s[0]} on {s[1]}" for s in found["stages"][n]), *(found[k][n] for k in ("predicted_step_s", "predicted_at_run_speed_s", "measured_step_s"))]
        for n in ("knows", "equal")
    ]  # fmt: skip
    speeds = ", ".join(f"{d} {s:.2f}" for d, s in found["speeds"].items())
    return "\n".join(
        [
            table(columns, body),
            f"speeds measured: {speeds}",
            sentences(found["verdicts"]),
            machine_line(found["machine_record"]),
        ]  # type: ignore[arg-type]
    )


def main() -> int:
    options = parser(__doc__)
    options.add_argument(
        "--share", type=part_of_core, default=0.3, help="of the last core that the competitor takes; default: 0.3"
    )
    add_turns(options, 26, 4)
    options.add_argument("--only", default="resnet", metavar="MODEL", help="of prediction_jobs.py; default: resnet")
    given = options.parse_args()
    if not given.share:
        options.error("--share 0: give a number above 0")
    return run_script(given, lambda m, t: rows(given, m, t), text)


if __name__ == "__main__":
    sys.exit(main())
