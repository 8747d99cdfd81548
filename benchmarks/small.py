"""Small steps: predicted against measured where a step takes milliseconds; ten models, one worker and two.

    python benchmarks/small.py [--rounds 130] [--blocks 5] [--only MODEL,MODEL] [--json]

Each model is measured once. Plans are made of it for one device and for two in a row, and the planner's own choice where it is another.
They are run in turn with one process (the user's model called eagerly, with as many micro-batches as the plan for one device has), and the
prediction at the speed of the run stands beside. A turn takes a tenth of a second.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import sys
from collections.abc import Mapping
from pathlib import Path

from engines import (
    WARMUP,
    Compared,
    add_turns,
    figures,
    figures_table,
    foretold,
    plans_in_turn,
    verdict_lines,
    with_models,
)
from harness import Json, Machine, machine_line, parser, run_script
from intervals import WITHIN_ROUNDS, Claim, ratio_within_rounds
from small_jobs import MODELS

from partita.cli.talk import Talk
from partita.errors import Infeasible
from partita.nouns.pipeline_plan import PipelinePlan
from partita.nouns.plan import PlanFile
from partita.nouns.profile import Profile
from partita.pipeline.plan.planner import plan_pipeline
from partita.pipeline.run.loop import check_rounds
from partita.training.measure.job import measure_job

JOBS = Path(__file__).parent / "small_jobs.py"
PAYS = Claim("the chosen plan takes at most 1.03 of a step of one process", high=1.03, most_drift=WITHIN_ROUNDS)
FORESEEN = Claim(
    "the prediction at the speed of the run is within 15 % of a step", low=0.85, high=1.15, most_drift=math.inf
)
#: Of an engine: a run does not sleep, and a core that has slept while others had their turn may be slow for 14 ms, two of them more often
#: than one (an EPYC, 2026-11-28). Turns had eight steps before: results of then and now are not comparable row by row.
SHORT_TURN_S = 0.1


def rows(options: argparse.Namespace, machine: Machine, talk: Talk) -> list[Json]:
    """A row a model and plan."""
    check_rounds(options.rounds, WARMUP)
    found = []
    for model in options.only:
        since = len(machine.probed)
        machine.look_again()
        profile = measure_job(f"{JOBS}:{model}", devices=2, budget_s=options.budget_s)
        files, chosen = plans(profile)
        engines = {n: ("pipeline",) if n != "one" else ("single", "pipeline") for n in files}
        runs = plans_in_turn(
            machine, files, f"{JOBS}:{model}", engines,
            rounds=options.rounds, blocks=options.blocks, talk=talk,
            in_a_row=math.ceil(SHORT_TURN_S / files["one"].verdict.value_s),
        )  # fmt: skip
        for name, file in files.items():
            found.append(row(machine, since, model, name, name == chosen, file, runs))
            talk.say(sentence(found[-1]))
    return found


def plans(profile: Profile) -> tuple[dict[str, PlanFile], str]:
    """(one for one device, one for two stages where the model can be cut, what the planner chooses, where it is another; which it chooses)."""
    found = {"one": plan_pipeline(profile, stages=1, allow_replicas=False)}
    with contextlib.suppress(Infeasible):  # a model of one task
        found["two"] = plan_pipeline(profile, stages=2, allow_replicas=False)
    chosen = plan_pipeline(profile)
    same = [name for name, file in found.items() if file.plan == chosen.plan]
    return (found, same[0]) if same else ({**found, "chosen": chosen}, "chosen")


def row(
    machine: Machine, since: int, model: str, name: str, chosen: bool, file: PlanFile, runs: Mapping[str, Compared]
) -> Json:
    """All about one plan; its verdicts go by the probes of its model. One process is that of the row `one`: the plan's own number of micro-batches may not suit it."""
    assert isinstance(file.plan, PipelinePlan)
    run, one = runs[name], runs["one"]
    of_one = ratio_within_rounds(run.steps("pipeline"), one.steps("single"))
    claims = {}
    if at_run_speed := run.at_run_speed:
        claims["foreseen"] = (FORESEEN, at_run_speed)
    if chosen:
        claims["pays"] = (PAYS, of_one)
    return {
        "model": model,
        "plan": name,
        "chosen": chosen,
        "devices": len(file.plan.devices),
        "stages": len(file.plan.stages),
        "micro_batches": file.plan.micro_batches,
        **figures(file, run, one),
        "of_one_process": of_one.value,
        "ratio_interval": {"pipeline/single": of_one.ends},
        "verdicts": machine.verdicts(claims, since),
        "machine_record": machine.record(since),
    }


def sentence(row: Json) -> str:
    chosen = ", chosen" * (row["chosen"] and row["plan"] != "chosen")
    return (
        f"   {row['model']}, {row['plan']}{chosen} ({row['devices']} devices, {row['micro_batches']} micro-batches): "
        f"{foretold(row, 2)}; one process {row['single_step_s'] * 1e3:.2f} ms"
    )


def text(found: list[Json]) -> str:
    return "\n".join([figures_table(found), *verdict_lines(found), machine_line(found[-1]["machine_record"])])


def main() -> int:
    options = parser(__doc__)
    add_turns(options, 130, 5)
    options.add_argument(
        "--budget-s", type=float, default=15.0, help="for measuring a model; default: 15, as that of `partita measure`"
    )
    given = with_models(options, MODELS)
    return run_script(given, lambda m, t: rows(given, m, t), text)


if __name__ == "__main__":
    sys.exit(main())
