"""A mapping that is searched while training, and again when a worker is slowed to 40 % 200 steps after the search has settled.

    python benchmarks/adapting.py [--only quiet|slowed] [--rounds 6] [--share 0.6] [--quiet-steps 2000] [--search-budget-s 20] [--json]

quiet     `partita run --search hybrid --adapt` on the idle machine, so many steps after the search: does the mapping change for nothing?
          Then the mapping that it found, run as it is: how much more wall-clock time did a second of steps take beside it?
slowed    the same run; 200 steps after the search a competitor takes a share of the last core. Then, with the competitor still
          there, a run by the mapping that was measured and searched for beside it: the new optimum.

The model is the Inception of tests/jobs/branchy.py as `mapping_run.py` has it.
"""

from __future__ import annotations

import argparse
import itertools
import os
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from harness import Json, Machine, parser, run_script, said
from intervals import Claim, Interval, bootstrap, ratio
from mapping_run import MODELS, measured, source_of
from slowed import competitor, part_of_core
from watched_runs import WatchedJob, WatchedRun, median, steps_until

from partita.cli.talk import Talk
from partita.nouns.metrics import read_metrics
from partita.page.text import table

MODEL = "inception"
BEFORE, AFTER = 200, 120  #: steps before the core is slowed, and behind that
EACH, PLAIN = 100, 600  #: quiet steps between two looks, and of the run beside it
LAST = 30  #: of these, whose median is the result
LONG = 1_000_000  #: steps and epochs: a run is ended when it has been watched for long enough
NOTICED = Claim("a slow worker is noticed within 10 steps", high=10.0)
SOON = Claim("within 60 steps the step is within 5 % of the new optimum", high=60.0)
BACK = Claim("after a slow-down the step is within 5 % of the new optimum", high=1.05)
CHEAP = Claim("once the search has ended, watching costs at most 5 % of the steps' time", high=1.05)
CALM = Claim("no change of mapping on a quiet run", high=0.0)


def benchmark(options: argparse.Namespace, machine: Machine, talk: Talk) -> Json:
    with tempfile.TemporaryDirectory() as folder:
        room = Path(folder)
        talk.step("measuring")
        plan = measured(MODEL, options, talk).write(room / "plan.json")
        document: Json = {"model": MODEL, "verdicts": {}}
        for name, part in (("quiet", quiet), ("slowed", slowed)):
            if options.only in (None, name):
                talk.step(name)
                with WatchedJob(source_of(MODEL), plan, room, MODELS[MODEL]) as job:
                    found = part(options, machine, talk, job)
                document["verdicts"] |= found.pop("verdicts")
                document[name] = found
    return document | {"machine_record": machine.finished()}


def searched(job: WatchedJob, options: argparse.Namespace, plan: Path | None = None) -> tuple[WatchedRun, int]:
    """(A run whose search has just settled, its steps so far)."""
    words = f"--epochs {LONG} --search hybrid --search-budget-s {options.search_budget_s} --adapt"
    run = job.start(LONG, *words.split(), plan=plan)
    while not (run.out / "search.json").exists():
        run.wait_for(run.steps + 1)
    return run, run.steps


def stopped(run: WatchedRun) -> list[float]:
    """[steps] seconds that they took, of a run that is ended between two of them."""
    run.process.send_signal(signal.SIGINT)
    run.ended()
    rows = read_metrics(run.out / "metrics.jsonl")
    assert [m.step for m in rows] == list(range(1, len(rows) + 1)), "a step was lost or done twice"
    return run.step_s


def quiet(options: argparse.Namespace, machine: Machine, talk: Talk, job: WatchedJob) -> Json:
    run, settled = searched(job, options)
    seen = watched(run, settled, options.quiet_steps, talk)
    times, events = stopped(run), run.rows("drift.jsonl")
    plain = job.start(LONG, "--epochs", str(LONG), plan=run.out / "plan.json")
    plain.wait_for(LAST)
    beside = walls(watched(plain, plain.steps, min(PLAIN, options.quiet_steps), talk), stopped(plain))
    walled = walls(seen, times)
    both = min(len(walled), len(beside))
    cost = ratio(walled[:both], beside[:both])
    switched = sum(e["event"] == "switched" for e in events)
    return {
        "settled_at": settled, "steps": len(times) - settled, "events": events, "switched": switched, "step_s": times,
        "wall_over_steps": {"watched": walled, "plain": beside}, "watching_costs": cost.value,
        "verdicts": machine.verdicts({"calm": (CALM, Interval.exact(float(switched))), "cheap": (CHEAP, cost)}),
    }  # fmt: skip


def watched(run: WatchedRun, since: int, steps: int, talk: Talk) -> list[tuple[int, float]]:
    """(step, moment) every EACH steps. The machine is not probed meanwhile: a probe would be an alarm."""
    seen = [(run.steps, time.monotonic())]
    for done in range(0, steps, EACH):
        talk.progress("quiet steps", done, steps)
        run.wait_for(since + min(done + EACH, steps))
        seen.append((run.steps, time.monotonic()))
    return seen


def walls(seen: Sequence[tuple[int, float]], step_s: Sequence[float]) -> list[float]:
    """Wall-clock seconds that a second of steps took, between every two moments."""
    return [(t - s) / sum(step_s[a:b]) for (a, s), (b, t) in itertools.pairwise(seen)]


def slowed(options: argparse.Namespace, machine: Machine, talk: Talk, job: WatchedJob) -> Json:
    core = sorted(os.sched_getaffinity(0))[-1]
    with competitor(core, options.share):
        aware = measured(MODEL, options, talk).write(job.room / "aware.json")
        run, _ = searched(job, options, aware)
        run.wait_for(run.steps + LAST)
        stopped(run)
        best = run.out / "plan.json"
    rows = []
    for k in range(options.rounds):
        talk.progress("slowed", k, options.rounds)
        machine.look_again(30.0)
        rows.append(one_slowed(job, options, core, best))
    back = ratio([r["after_s"] for r in rows], [r["optimum_s"] for r in rows])
    claims = {
        "back": (BACK, back),
        **{
            name: (claim, bootstrap(lambda n: n, [float(AFTER if r[name] is None else r[name]) for r in rows]))
            for name, claim in (("noticed", NOTICED), ("soon", SOON))
        },
    }
    return {"rounds": rows, "after_over_optimum": back.value, "verdicts": machine.verdicts(claims)}


def one_slowed(job: WatchedJob, options: argparse.Namespace, core: int, best: Path) -> Json:
    run, settled = searched(job, options)
    run.wait_for(settled + BEFORE)
    with competitor(core, options.share):
        since = run.steps + 1
        run.wait_for(since + AFTER)
        times = stopped(run)
        other = job.start(2 * LAST, plan=best)
        other.expect_done()
    events = run.rows("drift.jsonl")
    optimum = median(other.step_s[-LAST:])
    noticed = next((e["step"] for e in events if e["event"] == "noticed" and e["step"] > since), None)
    early = [e for e in events if e["step"] <= since]
    return {
        "slowed_since": since, "events": events, "alarms_before": len(early), "before_s": median(times[since - 100 : since]),
        "noticed": None if noticed is None else noticed - since, "soon": steps_until(times, since, 1.05 * optimum),
        "after_s": median(times[-LAST:]), "optimum_s": optimum, "step_s": times,
    }  # fmt: skip


def text(found: Json) -> str:
    lines = []
    if "quiet" in found:
        q = found["quiet"]
        lines.append(
            f"quiet: {q['steps']} steps after the search, {len(q['events'])} events, {q['switched']} changes of mapping; wall-clock time "
            f"of a second of steps {q['watching_costs']:.4f} of that without a search"
        )
    if "slowed" in found:
        columns = [("round", "count"), ("before", "s"), ("after", "s"), ("optimum", "s"), ("noticed after", "text"), ("back after", "text")]  # fmt: skip
        rows = [
            [i, r["before_s"], r["after_s"], r["optimum_s"], f"{r['noticed']} steps", f"{r['soon']} steps"]
            for i, r in enumerate(found["slowed"]["rounds"])
        ]
        lines.append(table(columns, rows))  # type: ignore[arg-type]
    return "\n".join([*lines, said(found)])


def main() -> int:
    options = parser(__doc__)
    options.add_argument("--only", choices=("quiet", "slowed"), help="one part")
    options.add_argument("--rounds", type=int, default=6, metavar="N", help="slowed runs; default: 6")
    options.add_argument("--share", type=part_of_core, default=0.6, help="of the last core that the competitor takes; default: 0.6")  # fmt: skip
    options.add_argument("--quiet-steps", type=int, default=2000, metavar="N", help="default: 2000")
    options.add_argument("--search-budget-s", type=float, default=20.0, metavar="S", help="default: 20")
    options.add_argument("--devices", type=int, default=2)
    given = options.parse_args()
    if min(given.rounds, given.quiet_steps) < 1:
        options.error(f"--rounds {given.rounds} --quiet-steps {given.quiet_steps}: give at least 1")
    return run_script(given, lambda m, t: benchmark(given, m, t), text, ("torch",))


if __name__ == "__main__":
    sys.exit(main())
