"""Offloading as it really runs, against the plans of others and against its own prediction.

    python benchmarks/offload.py [--quick] [--json] [--out benchmarks/results/offload.json]

Device and server are hosts of the test bed: the device a share of core 0, the server core 1, the link shaped both ways.
Models are those of the onnx wheel with random weights. What a plan has to know is measured as `partita offload measure` does,
inside the quota and over the shaped link: the device's times once for each share of its core, the server's once, the link
and what messages take of both sides in each setting.

    alexnet   6 jobs at 20 Mbit/s, device at 25 and 10 %: auto, the best cut of a lone job, exact; medians of two runs
    mixed     30 jobs of 5 models, device at 10, 25, 100 %, link of 5, 20, 100 Mbit/s: auto and all baselines

Sessions are built and models sent with neither quota nor slow link, then both are set and the clock starts. A run that is
predicted to take longer than 20 s is not made. The plans of a setting are made first, then run in turn. Wants root and two cores; CPU time and load stand beside every figure.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, Any

import onnx
from harness import Json, Machine, in_turn, parser, run_script, said
from intervals import RESTLESS, RESTLESS_ALONE, Claim, Interval, bootstrap

from partita import __version__
from partita.cli.talk import Talk
from partita.nouns.offload import OffloadPlan, OffloadProblem
from partita.nouns.plan import OffloadFile
from partita.offload.capture.jobs import JobSpec
from partita.offload.capture.onnx_inputs import random_inputs
from partita.offload.capture.onnx_model import OnnxModel
from partita.offload.capture.onnx_weights import with_random_weights
from partita.offload.measure.cache import cached_times
from partita.offload.measure.inference import InferenceTimes
from partita.offload.plan.baselines import BASELINES
from partita.offload.plan.lower import part_times
from partita.offload.plan.planner import plan_offload
from partita.offload.run.both_sides import measure_both_sides
from partita.offload.run.client import Client
from partita.offload.run.credentials import ClientCredentials
from partita.offload.run.execute import RunSettings, execute
from partita.offload.run.record import MACHINES, busy_s
from partita.testbed import processors
from partita.testbed.hosts import Testbed

PACKAGES = ("onnxruntime", "onnx")
LIGHT = Path(onnx.__file__).parent / "backend/test/data/light"
ALEXNET = "bvlc_alexnet"
MIXED = ("squeezenet", "resnet50", "inception_v1", "shufflenet", "densenet121")
SHARES, MBITS = (10, 25, 100), (5, 20, 100)
LONGEST_S = 20.0  #: a run predicted to take longer is not made
SETTLE_S = 0.3  #: between setting rate and quota and starting the clock
FAST = "2gbit"

#: What each run is judged by; a round of the bootstrap is a setting.
FORESEEN = Claim("the median error of auto's predictions is at most 20 %", high=0.2, most_drift=RESTLESS_ALONE)
FASTER = Claim("auto is as fast as the better of single-cut and min-cut in most settings", low=0.0, most_drift=RESTLESS)


def models_of(names: Sequence[str]) -> dict[str, OnnxModel]:
    return {n: with_random_weights(OnnxModel.read(LIGHT / f"light_{n}.onnx")) for n in names}


# ---------------------------------------------------------------------------------------------------- the device


def device(server: str, names: Sequence[str]) -> None:
    """The process in the device's host: commands in, answers out, a line of JSON each."""
    models, key = (
        models_of(names),
        ClientCredentials.of(server.rpartition(":")[0], insecure=True, ca=None, token_file=None),
    )
    tell({"pid": os.getpid()})
    for line in sys.stdin:
        asked = json.loads(line)
        if asked["do"] == "measure":
            tell(measured(asked, models, server, key))
        else:
            tell(carried_out(asked, models, server, key))


def tell(value: Json) -> None:
    print(json.dumps(value), flush=True)


def measured(asked: Json, models: Mapping[str, OnnxModel], server: str, key: ClientCredentials) -> Json:
    """The problem of the jobs, one of each model; the device's times are kept in a folder, for this quota."""

    def here(model: OnnxModel, budget_s: float) -> InferenceTimes:
        return cached_times(model, Path(asked["kept"]), budget_s)[0]

    found = measure_both_sides(
        jobs_of(models, asked["models"]), lambda: Client(server, key), asked["budget_s"], here=here
    )
    sides = {"device": found.device, "server": found.server}
    whole = {
        n: {
            side: {"wall_s": t.whole.seconds, "cpu_s": t.cpu_s, "points": t.points}
            for side, x in sides.items()
            for t in [x[models[n].hash]]
        }
        for n in dict.fromkeys(asked["models"])
    }
    return {"problem": found.problem.to_json(), "models": whole, "messages": asdict(found.messages)}


def carried_out(asked: Json, models: Mapping[str, OnnxModel], server: str, key: ClientCredentials) -> Json:
    """Run a plan; between getting ready and the clock, wait for a line: quota and rate are set meanwhile."""
    problem = OffloadProblem.from_json(asked["problem"])
    plan = OffloadPlan.from_json(asked["plan"])
    of_job = [models[n] for n in asked["models"]]

    def begin() -> None:
        tell({"ready": True})
        sys.stdin.readline()
        time.sleep(SETTLE_S)

    inputs = [random_inputs(m, seed) for seed, m in enumerate(of_job)]
    done = execute(problem, plan, of_job, inputs, lambda: Client(server, key), RunSettings(begin=begin))
    whole = [sum(t.sent_bytes for t in done.times), sum(t.where == "device" for t in done.times)]
    return {
        "makespan_s": done.makespan_s,
        "cpu_s": done.cpu_s,
        "load": os.getloadavg()[0],
        "busy_s": busy_s(done.times),
        "sent_bytes": whole[0],
        "on_device": whole[1],
        "jobs": [[t.device, t.uplink, t.server, t.downlink] for t in done.times],
        "order": list(plan.order),
        "trouble": {k: done.facts[k] for k in ("lost", "refused", "late", "replans")},
    }


# ------------------------------------------------------------------------------------------------------ the bed


@dataclass(frozen=True)
class Stage:
    """The test bed with its two processes."""

    bed: Testbed
    process: subprocess.Popen[str]

    def ask(self, **asked: Any) -> Json:
        self._say(asked)
        return self._heard()

    def run(self, asked: Json, share: int, mbit: int) -> Json:
        """Ready without limits, run with them."""
        self._say(asked)
        self._heard()
        self.limit(share, f"{mbit}mbit")
        self._say({})
        try:
            return self._heard()
        finally:
            self.limit(100, FAST)

    def limit(self, share: float, rate: str) -> None:
        self.bed.rate("h0", rate)
        group = self.bed.hosts[0].group
        assert group is not None
        processors.controller().limit(Path(group).name, share)

    def _say(self, value: Json) -> None:
        print(json.dumps(value), file=_pipe(self.process.stdin), flush=True)

    def _heard(self) -> Json:
        line = _pipe(self.process.stdout).readline()
        if not line:
            raise SystemExit("the device's process ended")
        found: Json = json.loads(line)
        return found


def _pipe(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None
    return pipe


def insist(group: Path) -> None:
    """The host's processes go before all others on the machine; their own niceness counts in the group only."""
    for name, most in (("cpu.shares", "262144"), ("cpu.weight", "10000")):
        if (group / name).exists():
            (group / name).write_text(most)


@contextmanager
def stage(names: Sequence[str]) -> Any:
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder, Testbed.up(2, [FAST], [100, 100], cores=2) as bed:
        port = Path(folder) / "port"
        words = [sys.executable, "-m", "partita", "offload", "serve", "--host", bed.address("h1"), "--port", "0"]
        words += ["--insecure", "--threads", "1", "--memory-mb", "6000", "--port-file", str(port)]
        server = bed.popen("h1", words, env=env, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        while not port.exists():
            if server.poll() is not None:
                raise SystemExit("the server did not start")
            time.sleep(0.05)
        where = f"{bed.address('h1')}:{int(port.read_text())}"
        words = [sys.executable, __file__, "--device", where, "--models", ",".join(names)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        process = bed.popen("h0", words, env=env, **pipes)
        on = Stage(bed, process)
        for host in bed.hosts:
            insist(Path(host.group or ""))
        on._heard()
        yield on
        _pipe(process.stdin).close()
        process.wait(20)
        server.terminate()
        server.wait(20)


# -------------------------------------------------------------------------------------------------- the problems


def run_of(file: OffloadFile, runs: Sequence[Json]) -> Json:
    """One method's row: predicted, and measured where it ran; of several runs the median."""
    verdict = file.verdict
    expected = part_times(file.problem, file.plan)[0].sum(axis=0).tolist()
    row: Json = {
        "predicted_s": verdict.value_s,
        "bound_s": verdict.lower_bound_s,
        "bound": verdict.bound,
        "found_by": verdict.method,
        "busy_predicted_s": dict(zip(MACHINES, expected, strict=True)),
    }
    if runs:
        row["runs"] = list(runs)
        row["measured_s"] = statistics.median(r["makespan_s"] for r in runs)
        row["error"] = verdict.value_s / row["measured_s"] - 1
    return row


def runs_of(
    on: Stage, work: Sequence[str], files: Mapping[str, OffloadFile], share: int, mbit: int, rounds: int
) -> dict[str, list[Json]]:
    """Method -> its runs, of those that are not too long; all of them in turn."""

    def runner(file: OffloadFile) -> Callable[[], Json]:
        asked = {"do": "run", "problem": file.problem.to_json(), "plan": file.plan.to_json(), "models": list(work)}
        return lambda: on.run(asked, share, mbit)

    works = {m: runner(f) for m, f in files.items() if f.verdict.value_s <= LONGEST_S}
    return {m: s.results for m, s in in_turn(works, rounds).items()}


def setting(
    on: Stage,
    kept: Path,
    names: Sequence[str],
    share: int,
    mbit: int,
    methods: Sequence[str],
    budget_s: float,
    rounds: int = 1,
) -> Json:
    """One setting: measured, all methods planned, then run in turn."""
    on.limit(share, f"{mbit}mbit")
    found = on.ask(do="measure", models=sorted(set(names)), budget_s=budget_s, kept=str(kept / str(share)))
    on.limit(100, FAST)
    one = OffloadProblem.from_json(found["problem"])
    by_name = {j.name.partition(" ")[0]: j for j in one.jobs}
    problem = replace(one, jobs=tuple(replace(by_name[n], name=f"{n} {k}") for k, n in enumerate(names)))
    files = {m: plan_offload(problem, m) for m in methods}
    runs = runs_of(on, names, files, share, mbit, rounds)
    rows = {m: run_of(f, runs.get(m, [])) for m, f in files.items()}
    for method, row in rows.items():
        say(share, mbit, method, row)
    link = found["problem"]["link"]
    about = {"device_percent": share, "mbit_per_s": mbit, "link": link, "models": found["models"]}
    return {**about, "messages": found["messages"], "methods": rows}


def say(share: int, mbit: int, method: str, row: Json) -> None:
    real = f"{row['measured_s']:7.3f} s measured, {row['error']:+6.1%}" if "measured_s" in row else "not run"
    print(
        f"{time.monotonic() % 10000:7.1f}  {share:3} % {mbit:3} Mbit/s  {method:15} {row['predicted_s']:7.3f} s predicted, {real}",
        file=sys.stderr,
    )


def jobs_of(models: Mapping[str, OnnxModel], names: Sequence[str]) -> list[JobSpec]:
    return [JobSpec(f"{n} {k}", models[n], {}) for k, n in enumerate(names)]


# --------------------------------------------------------------------------------------------------- the figures


def alexnet_figures(rows: Sequence[Json]) -> list[Json]:
    """auto against the best single-job cut and against the exact plan."""
    return [
        {
            "device_percent": r["device_percent"],
            "auto_by_single_cut": _ratio(r, "auto", "single-cut"),
            "auto_by_exact": _ratio(r, "auto", "exact"),
            "predicted_auto_by_single_cut": _ratio(r, "auto", "single-cut", "predicted_s"),
            "predicted_auto_by_exact": _ratio(r, "auto", "exact", "predicted_s"),
        }
        for r in rows
    ]


def _ratio(row: Json, a: str, b: str, what: str = "measured_s") -> float:
    return float(row["methods"][a][what] / row["methods"][b][what])


def mixed_figures(rows: Sequence[Json]) -> Json:
    """How far below the better of single-cut and min-cut, whether ever worse than a baseline, errors of the prediction.

    A baseline that was not run counts by its prediction; so does the other side of such a comparison.
    """
    below, worst = [], []
    for r in rows:
        by = {b: _fair(r["methods"]["auto"], r["methods"][b]) for b in BASELINES}
        below.append(1 - max(by["single-cut"], by["min-cut"]))
        worst.append(max(by.values()) - 1)
    errors = sorted(abs(r["methods"]["auto"]["error"]) for r in rows if "error" in r["methods"]["auto"])
    every = sorted(abs(m["error"]) for r in rows for m in r["methods"].values() if "error" in m)
    return {
        "below_the_better": below,
        "settings_15_percent_below": sum(b >= 0.15 for b in below),
        "worst_against_any_baseline": max(worst),
        "error_median": statistics.median(errors),
        "error_worst": errors[-1],
        "error_median_all_runs": statistics.median(every),
        "error_worst_all_runs": every[-1],
    }


def _fair(ours: Json, theirs: Json) -> float:
    what = "measured_s" if "measured_s" in ours and "measured_s" in theirs else "predicted_s"
    return float(ours[what] / theirs[what])


def claimed(found: Json) -> dict[str, tuple[Claim, Interval]]:
    """What is claimed of the mixed jobs."""
    rows = [r["methods"]["auto"] for r in found["mixed"]["settings"]]
    claims = {"below_the_better": (FASTER, bootstrap(lambda b: b, found["mixed"]["figures"]["below_the_better"]))}
    errors = [abs(r["error"]) for r in rows if "error" in r]
    return claims | ({"error_median": (FORESEEN, bootstrap(lambda e: e, errors))} if errors else {})


def benchmark(quick: bool, out: Path | None, rounds: int | None, machine: Machine) -> Json:
    """All settings; `rounds` None: two of the alexnet part, one of the mixed part."""
    began = time.time()
    mix = MIXED[:2] if quick else MIXED
    settings = [(25, 20)] if quick else [(s, m) for s in SHARES for m in MBITS]
    found: Json = {
        "benchmark": "offload",
        "quick": quick,
        "machine": platform.platform(),
        "load": machine.facts["load"],
    }
    found["versions"] = {"partita": __version__, **{n: machine.facts[n] for n in PACKAGES}}
    found["time"] = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(began))
    with tempfile.TemporaryDirectory() as kept, stage([ALEXNET, *mix]) as on:
        rows: dict[str, list[Json]] = {"alexnet": [], "mixed": []}
        cases = [("alexnet", s, 20, [ALEXNET] * 6, ("auto", "single-cut", "exact"), 2) for s in (25, 10)[: 2 - quick]]
        cases += [("mixed", s, m, list(mix) * (3 if quick else 6), ("auto", *BASELINES), 1) for s, m in settings]
        for part, share, mbit, names, methods, usual in cases:
            budget_s = 3.0 if quick else 7.0
            machine.look_again()
            rows[part].append(setting(on, Path(kept), names, share, mbit, methods, budget_s, rounds or usual))
            found |= {p: {"settings": r, "figures": FIGURES[p](r)} for p, r in rows.items() if r}
            found["seconds"] = time.time() - began
            if out:
                out.write_text(json.dumps(found, indent=1) + "\n")
    record = machine.finished()
    found |= {"verdicts": machine.verdicts(claimed(found)), "machine_record": record}
    if out:
        out.write_text(json.dumps(found, indent=1) + "\n")
    return found


FIGURES: Mapping[str, Callable[[Sequence[Json]], Any]] = {"alexnet": alexnet_figures, "mixed": mixed_figures}


def main() -> int:
    options = parser((__doc__ or "").splitlines()[0])
    options.add_argument("--quick", action="store_true", help="two models, one setting")
    options.add_argument("--rounds", type=int, help="runs of each plan; default: 2 of alexnet, 1 of mixed")
    options.add_argument("--out", type=Path, help="write the JSON there too, after every setting")
    options.add_argument("--device", help=argparse.SUPPRESS)
    options.add_argument("--models", default="", help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.device:
        device(given.device, given.models.split(","))
        return 0

    def run(machine: Machine, _: Talk) -> Json:
        return benchmark(given.quick, given.out, given.rounds, machine)

    return run_script(given, run, text, packages=PACKAGES)


def text(found: Json) -> str:
    f = found["mixed"]["figures"]
    lines = [
        f"6 AlexNet, 20 Mbit/s, device {r['device_percent']} %: auto {r['auto_by_single_cut']:.2f}x the single cut, "
        f"{r['auto_by_exact']:.2f}x exact"
        for r in found["alexnet"]["figures"]
    ]
    lines += [
        f"mixed: >= 15 % below the better of single-cut and min-cut in {f['settings_15_percent_below']} settings; "
        f"at worst {f['worst_against_any_baseline']:+.1%} against any baseline",
        f"prediction of auto: error median {f['error_median']:.1%}, worst {f['error_worst']:.1%}; "
        f"of all runs {f['error_median_all_runs']:.1%} and {f['error_worst_all_runs']:.1%}",
        f"{found['seconds']:.0f} s",
    ]
    return "\n".join([*lines, said(found)])


if __name__ == "__main__":
    sys.exit(main())
