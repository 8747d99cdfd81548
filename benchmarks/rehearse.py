"""Rehearsed against simulated: VGG-16 and ResNet-50 of the PipeDream profiles on 4 and 8 emulated devices, links of 12 GB/s.

    python benchmarks/rehearse.py DIR [--rounds 8] [--micro-batches 16] [--only vgg16,resnet50] [--json]

DIR holds `vgg16.txt` and `resnet50.txt`. A step has so many micro-batches, each what the profile timed. Two plans for each number of
devices: `best`, the planner's choice, and `stages`, one device a stage. Each round rehearses every plan once, and one device.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import tempfile
from functools import partial
from pathlib import Path

from harness import Json, Machine, Samples, in_turn, parser, run_script, said
from intervals import Claim, Interval, bootstrap

from partita.cli.talk import Talk
from partita.errors import BadInput
from partita.nouns.plan import PlanFile
from partita.page.text import percent
from partita.pipeline.plan.planner import plan_pipeline
from partita.placement.capture.pipedream import read_profile
from partita.training.rehearsal.rehearse import rehearse

GRAPHS = ("vgg16", "resnet50")
RATE = 12e9
LEAST = {4: 3.7, 8: 7.0}  #: times one device
NEAR = 0.05  #: of the simulation


def plans(path: Path, micro_batches: int) -> dict[str, PlanFile]:
    """One device, and two plans for each number of them."""
    found = {"one": plan_pipeline(read_profile(path, micro_batches, 1, RATE)[0])}
    for n in LEAST:
        profile, _ = read_profile(path, micro_batches, n, RATE)
        found[f"best on {n}"] = plan_pipeline(profile)
        found[f"stages on {n}"] = plan_pipeline(profile, allow_replicas=False)
    return found


def rehearsed_s(file: PlanFile) -> float:
    with tempfile.TemporaryDirectory() as folder:
        return rehearse(file, folder, steps=1).step_s


def rows(options: argparse.Namespace, machine: Machine, talk: Talk) -> Json:
    """Every plan of every graph, and verdicts."""
    found, claims = [], {}
    for graph in options.only.split(","):
        files = plans(Path(options.folder) / f"{graph}.txt", options.micro_batches)
        talk.step(f"rehearsing {graph}: {', '.join(files)}")
        samples = in_turn(
            {n: partial(rehearsed_s, f) for n, f in files.items()},
            options.rounds,
            between=lambda: machine.look_again(30.0),
        )
        for name, file in files.items():
            steps = samples[name].results
            row = {
                "graph": graph, "plan": name, "simulated_s": file.verdict.value_s, "bound_s": file.verdict.lower_bound_s,
                "step_s": statistics.median(steps), "steps_s": steps,
                "error": statistics.median(steps) / file.verdict.value_s - 1,
                "speedup": statistics.median(samples["one"].results) / statistics.median(steps),
                "bound_allows": files["one"].verdict.value_s / file.verdict.lower_bound_s,
                "stages": [[len(s.tasks), s.replicas] for s in file.plan.stages],
            }  # fmt: skip
            found.append(row)
            # emulated devices wait, whatever the machine's own are worth
            near = Claim(
                f"{graph}, {name}: within {NEAR:.0%} of the simulation",
                low=1 - NEAR,
                high=1 + NEAR,
                most_drift=math.inf,
            )
            claims[f"{graph}, {name}: near"] = near, _over(steps, file.verdict.value_s)
            if name.startswith("best"):
                n = int(name.split()[-1])
                fast = Claim(f"{graph} on {n}: at least {LEAST[n]} times one device", low=LEAST[n], most_drift=math.inf)
                claims[f"{graph}, {name}: fast"] = fast, _ratio(samples["one"], samples[name])
    record = machine.finished()
    return {"rows": found, "verdicts": machine.verdicts(claims), "machine_record": record}


def _over(steps: list[float], value: float) -> Interval:
    return bootstrap(lambda s: s / value, steps)


def _ratio(one: Samples, other: Samples) -> Interval:
    return bootstrap(lambda a, b: a / b, one.results, other.results)


def text(d: Json) -> str:
    lines = [
        f"{r['graph']:10} {r['plan']:12} {r['step_s']:8.3f} s rehearsed, {percent(r['error'], signed=True):>7} off the simulation, "
        f"{r['speedup']:5.2f}x one device (the bound allows {r['bound_allows']:.2f}x)"
        for r in d["rows"]
    ]
    return "\n".join([*lines, said(d)])


def main() -> int:
    options = parser(__doc__)
    options.add_argument("folder", metavar="DIR")
    options.add_argument("--rounds", type=int, default=8)
    options.add_argument("--micro-batches", type=int, default=16, metavar="M")
    options.add_argument("--only", default=",".join(GRAPHS), metavar="NAMES")
    given = options.parse_args()
    if unknown := set(given.only.split(",")) - set(GRAPHS):
        raise BadInput(f"no graph {', '.join(sorted(unknown))}", hint=f"known: {', '.join(GRAPHS)}")
    return run_script(given, partial(rows, given), text, packages=("torch", "numba"))


if __name__ == "__main__":
    sys.exit(main())
