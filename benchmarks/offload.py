r"""Offloading as it really runs, against the plans of others and against its own prediction.

    python benchmarks/offload.py [--quick] [--json] [--out benchmarks/results/offload.json]

Device and server are hosts of the test bed: the device a share of core 0, the server core 1, the link shaped both ways.
Models are those of the onnx wheel with random weights. What a plan has to know is measured as `partita offload measure` does,
inside the quota and over the shaped link: models in turn, the link and what messages take of both sides, then the halves that
the plans use, in each setting; how a model divides over its tasks once. Before every round the models take their turns again and all
plans are made anew, as `partita offload run` does before its run: from one setting's first round to its last, machines drift by a tenth.

    alexnet   6 jobs of one model    \  device at 10, 25, 100 % of its core, link of 5, 20, 100 Mbit/s:
    mixed     30 jobs of 5 models    /  auto, exact and all baselines

Plans run one after another, three rounds; those that are not far behind auto, up to nine; of short runs, three a round, the middle
one counts. Sessions are built and models sent with neither quota nor slow link, then both are set and the clock starts. A run that is
predicted to take longer than 20 s is not made. Wants root and two cores; CPU time and load stand beside every figure.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

import onnx
from harness import Json, Machine, order, parser, run_script, said
from intervals import WITHIN_ROUNDS, Claim, Interval, bootstrap, verdict

from partita.cli.talk import Talk
from partita.errors import BadInput
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
from partita.offload.run.both_sides import LOOPS, BothSides, as_now, measure_both_sides, with_plans
from partita.offload.run.client import Client
from partita.offload.run.credentials import ClientCredentials
from partita.offload.run.execute import RunSettings, execute
from partita.offload.run.record import MACHINES, busy_s, inferring_cpu_s
from partita.page.text import NOTHING
from partita.testbed.hosts import Testbed

PACKAGES = ("onnxruntime", "onnx")
LIGHT = Path(onnx.__file__).parent / "backend/test/data/light"
ALEXNET = "bvlc_alexnet"
MIXED = ("squeezenet", "resnet50", "inception_v1", "shufflenet", "densenet121")
PARTS = ("alexnet", "mixed")
SHARES, MBITS = (10, 25, 100), (5, 20, 100)
LONGEST_S = 20.0  #: a run predicted to take longer is not made
#: more rounds, of so many seconds together, for plans that take less than so many times what auto's does: a device's seconds differ by
#: a tenth, so three runs tell no plans apart that do
FAR, ENOUGH_S, MOST_ROUNDS = 2.0, 100.0, 9
#: a run that is predicted to take so long or less is made so many times a round, and the middle one counts: on some machines a core is
#: for seconds a quarter slower, and a tenth of a second sees either (six jobs of AlexNet took 94 or 123 ms)
SHORT_S, AGAIN = 0.5, 3
SETTLE_S = 0.3  #: between setting rate and quota and starting the clock
FAST = "2gbit"

#: What either kind of jobs is judged by; "at worst" is over all settings, plans and baselines, of medians over the rounds.
FORESEEN = Claim("the median error of predictions at run speed is at most 5 %", high=0.05, most_drift=math.inf)
NEAR = Claim("at worst a prediction at run speed is 12 % off", high=0.12, most_drift=math.inf)
NOT_WORSE = Claim("at worst auto takes 1.03 of the time of a baseline", high=1.03, most_drift=WITHIN_ROUNDS)
GOT = Claim("at worst the measured gain is 5 points off the promised one", high=0.05, most_drift=WITHIN_ROUNDS)


def models_of(names: Sequence[str]) -> dict[str, OnnxModel]:
    return {n: with_random_weights(OnnxModel.read(LIGHT / f"light_{n}.onnx")) for n in names}


# ---------------------------------------------------------------------------------------------------- the device


def device(server: str, names: Sequence[str]) -> None:
    """The process in the device's host: commands in, answers out, a line of JSON each."""
    models, key = (
        models_of(names),
        ClientCredentials.of(server.rpartition(":")[0], insecure=True, ca=None, token_file=None),
    )

    def connect() -> Client:
        return Client(server, key)

    found: BothSides | None = None
    tell({"pid": os.getpid()})
    for line in sys.stdin:
        asked = json.loads(line)
        if asked["do"] == "run":
            tell(carried_out(asked, models, connect))
            continue
        if asked["do"] == "prepare":
            prepare(models, connect, Path(asked["kept"]), asked["budget_s"])
            tell({})
            continue
        if asked["do"] == "during":
            assert found is not None
            tell(told(found.during(OffloadPlan.from_json(asked["plan"]))))
            continue
        before = found
        found = looked(asked, found, models, connect)
        tell({"known": True} if found is before and asked["do"] == "halves" else told(found))


def looked(
    asked: Json, found: BothSides | None, models: Mapping[str, OnnxModel], connect: Callable[[], Client]
) -> BothSides:
    """What was measured so far, and what is asked for: all of it, the models in turn once more, or the halves of plans."""
    if asked["do"] == "measure" or found is None:
        return measured(asked, models, connect)
    if asked["do"] == "again":
        return as_now(found, connect, asked["budget_s"])
    return with_plans(found, [OffloadPlan.from_json(p) for p in asked["plans"]], connect, asked["budget_s"])


def tell(value: Json) -> None:
    print(json.dumps(value), flush=True)


def prepare(models: Mapping[str, OnnxModel], connect: Callable[[], Client], kept: Path, budget_s: float) -> None:
    """The models sent, and how each divides over its tasks measured on both sides: neither is a matter of link and quota."""
    with connect() as client:
        for model in models.values():
            client.measure(model, budget_s)
            cached_times(model, kept, budget_s)


def measured(asked: Json, models: Mapping[str, OnnxModel], connect: Callable[[], Client]) -> BothSides:
    """The jobs measured; how each model divides over its tasks is kept in a folder, whatever the quota was."""

    def here(model: OnnxModel, budget_s: float) -> InferenceTimes:
        return cached_times(model, Path(asked["kept"]), budget_s)[0]

    return measure_both_sides(jobs_of(models, asked["models"]), connect, asked["budget_s"], here=here)


def told(found: BothSides) -> Json:
    """The problem, and what it was made of."""
    whole = {
        m.name: {
            name: {"wall_s": e.seconds, "cpu_s": e.seconds * side.share, "low_s": e.low, "high_s": e.high}
            for name, side in (("device", found.device), ("server", found.server))
            for e in [side.whole(k)]
        }
        for k, m in enumerate(found.device.models)
    }
    halves = {"device": len(found.device.halves), "server": len(found.server.halves)}
    return {"problem": found.problem.to_json(), "models": whole, "messages": asdict(found.messages), "halves": halves}


def carried_out(asked: Json, models: Mapping[str, OnnxModel], connect: Callable[[], Client]) -> Json:
    """Run a plan; between getting ready and the clock, wait for a line: quota and rate are set meanwhile."""
    problem = OffloadProblem.from_json(asked["problem"])
    plan = OffloadPlan.from_json(asked["plan"])
    of_job = [models[n] for n in asked["models"]]

    def begin() -> None:
        tell({"ready": True})
        sys.stdin.readline()
        time.sleep(SETTLE_S)

    inputs = [random_inputs(m, seed) for seed, m in enumerate(of_job)]
    done = execute(problem, plan, of_job, inputs, connect, RunSettings(begin=begin))
    return {
        "makespan_s": done.makespan_s,
        "at_run_speed_s": done.facts["predicted_at_run_speed_s"],
        "speeds": done.facts["speeds"],
        "cpu_s": done.cpu_s,
        "inferring_cpu_s": inferring_cpu_s(done.times),
        "corrections": done.facts["corrections"],
        "load": os.getloadavg()[0],
        "busy_s": busy_s(done.times),
        "sent_bytes": sum(t.sent_bytes for t in done.times),
        "on_device": sum(t.where == "device" for t in done.times),
        "trouble": {k: done.facts[k] for k in ("lost", "refused", "late")},
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
        self.bed.cpu("h0", share)

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


def predicted_of(file: OffloadFile) -> Json:
    """One method's row before it has run."""
    verdict = file.verdict
    expected = part_times(file.problem, file.plan)[0].sum(axis=0).tolist()
    return {
        "predicted_s": verdict.value_s,
        "bound_s": verdict.lower_bound_s,
        "bound": verdict.bound,
        "found_by": verdict.method,
        "busy_predicted_s": dict(zip(MACHINES, expected, strict=True)),
    }


def planned(on: Stage, methods: Sequence[str], budget_s: float, **asked: Any) -> tuple[Json, dict[str, OffloadFile]]:
    """Measured as asked, and all methods' plans, with the halves that they use measured too; the bed is left without limits."""

    def plans(found: Json) -> dict[str, OffloadFile]:
        return {m: plan_offload(OffloadProblem.from_json(found["problem"]), m) for m in methods}

    found = on.ask(budget_s=budget_s, **asked)
    files = plans(found)
    for _ in range(LOOPS):
        better = on.ask(do="halves", plans=[f.plan.to_json() for f in files.values()], budget_s=budget_s)
        if "known" in better:
            break
        found, files = better, plans(better)
    on.limit(100, FAST)  # what follows is arithmetic
    known: dict[OffloadPlan, OffloadProblem] = {}
    return found, {m: during(on, m, f, known) for m, f in files.items()}


def during(on: Stage, method: str, file: OffloadFile, known: dict[OffloadPlan, OffloadProblem]) -> OffloadFile:
    """A method's plan for sides that are as busy as it has them; `known` keeps what they take then, by plan."""
    for _ in range(LOOPS):
        problem = known.get(file.plan)
        if problem is None:
            problem = OffloadProblem.from_json(on.ask(do="during", plan=file.plan.to_json())["problem"])
            known[file.plan] = problem
        if problem == file.problem:
            break
        file = plan_offload(problem, method)
    return file


def run_once(
    on: Stage, work: Sequence[str], files: Mapping[str, OffloadFile], share: int, mbit: int
) -> dict[str, Json]:
    """Method -> its run; of short runs, made AGAIN times in turn, the middle one, with all their makespans. Methods of one plan,
    foreseen alike, share it."""
    each = {(f.plan, f.problem): f for f in files.values()}
    ran: dict[tuple[OffloadPlan, OffloadProblem], list[Json]] = {key: [] for key in each}
    for turn in range(AGAIN):
        for key, f in each.items():
            if turn == 0 or f.verdict.value_s <= SHORT_S:
                asked = {"do": "run", "problem": f.problem.to_json(), "plan": f.plan.to_json(), "models": list(work)}
                ran[key].append(on.run(asked, share, mbit))
    middle = {key: median_run(runs) for key, runs in ran.items()}
    return {m: middle[f.plan, f.problem] for m, f in files.items()}


def median_run(runs: Sequence[Json]) -> Json:
    """The one whose makespan is the median of an odd number of them."""
    in_order = sorted(runs, key=lambda r: float(r["makespan_s"]))
    return {**in_order[len(runs) // 2], "makespans_s": [r["makespan_s"] for r in runs]}


def row_of(rounds: Sequence[OffloadFile], runs: Sequence[Json]) -> Json:
    """One method's row: of its plan in every round, and of its runs in the first of them; medians."""
    predicted_s = [f.verdict.value_s for f in rounds]
    of_runs = predicted_s[: len(runs)] or predicted_s
    row = {**predicted_of(rounds[0]), "predicted_s": statistics.median(of_runs), "predicted_each_s": predicted_s}
    if not runs:
        return row
    runs = [{"predicted_s": s, **r} for s, r in zip(of_runs, runs, strict=True)]
    off = {
        name: statistics.median(r[what] / r["makespan_s"] - 1 for r in runs)
        for name, what in (("error", "predicted_s"), ("error_at_run_speed", "at_run_speed_s"))
    }
    medians = {"measured_s": "makespan_s", "at_run_speed_s": "at_run_speed_s"}
    return {**row, "runs": runs, **{n: statistics.median(r[what] for r in runs) for n, what in medians.items()}, **off}


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
    """One setting: measured, then in every round all methods planned for the machines as they are, and run."""
    on.limit(share, f"{mbit}mbit")
    found, files = planned(on, methods, budget_s, do="measure", models=list(names), kept=str(kept))
    short = [m for m, f in files.items() if f.verdict.value_s <= LONGEST_S]
    near = [m for m in short if files[m].verdict.value_s <= FAR * files["auto"].verdict.value_s]
    round_s = sum({files[m].plan: files[m].verdict.value_s for m in near}.values())
    more = min(MOST_ROUNDS, math.ceil(ENOUGH_S / round_s)) if near else 0
    made: list[dict[str, OffloadFile]] = []
    ran: list[dict[str, Json]] = []
    for turn in range(max(rounds, more)):
        on.limit(share, f"{mbit}mbit")
        found, files = planned(on, methods, budget_s / 3, do="again")
        made.append(files)
        run = order(short if turn < rounds else near, turn)
        ran.append(run_once(on, names, {m: files[m] for m in run}, share, mbit))
    rows = {m: row_of([f[m] for f in made], [r[m] for r in ran if m in r]) for m in methods}
    for method, row in rows.items():
        say(share, mbit, method, row)
    link = found["problem"]["link"]
    about = {"device_percent": share, "mbit_per_s": mbit, "link": link, "models": found["models"]}
    about |= {"halves": found["halves"]}
    return {**about, "messages": found["messages"], "speeds": found["problem"].get("speeds"), "methods": rows}


def say(share: int, mbit: int, method: str, row: Json) -> None:
    real = (
        f"{row['measured_s']:7.3f} s measured, {row['error']:+6.1%}, {row['error_at_run_speed']:+6.1%} at run speed"
        if "measured_s" in row
        else "not run"
    )
    print(
        f"{time.monotonic() % 10000:7.1f}  {share:3} % {mbit:3} Mbit/s  {method:15} {row['predicted_s']:7.3f} s predicted, {real}",
        file=sys.stderr,
    )


def jobs_of(models: Mapping[str, OnnxModel], names: Sequence[str]) -> list[JobSpec]:
    return [JobSpec(f"{n} {k}", models[n], {}) for k, n in enumerate(names)]


# --------------------------------------------------------------------------------------------------- the figures


def figures(rows: Sequence[Json]) -> Json:
    """What the prediction missed, raw and at the speed of the machines in each run; what the plans gain.

    The gain is that over the better of the best cut of a lone job and the minimum cut of each: measured in turn, and again with
    every run brought to the speed that the plans took the machines for; beside each the one that the exact plan promises.
    """
    gains = [{"device_percent": r["device_percent"], "mbit_per_s": r["mbit_per_s"], **gain(r["methods"])} for r in rows]
    found: Json = {
        "gains": gains,
        "runs": sum(
            len({s for m in plans_that_ran(r["methods"]) for run in m["runs"] for s in run["makespans_s"]})
            for r in rows
        ),
    }
    for how in ("measured", "at_one_speed"):
        found[f"gain_off_worst_{how}"] = max((abs(g[how]["off"]) for g in gains if how in g), default=0.0)
        worst = max((against(r["methods"], BASELINES, how) or 0.0 for r in rows), default=0.0)
        found[f"worst_against_any_baseline_{how}"] = worst - 1
    for what in ("error", "error_at_run_speed"):
        sizes = [abs(e) for e in errors(rows, what)]
        found |= {f"{what}_median": statistics.median(sizes), f"{what}_worst": max(sizes)}
    return found


def plans_that_ran(methods: Json) -> list[Json]:
    """A row for all methods that had the same plans: they share their runs."""
    return list({which_runs(m): m for m in methods.values() if "runs" in m}.values())


def which_runs(method: Json) -> tuple[float, ...]:
    """What tells its runs from all others: no two take equally long to the nanosecond."""
    return tuple(r["makespan_s"] for r in method["runs"])


def errors(rows: Sequence[Json], what: str) -> list[float]:
    return [m[what] for r in rows for m in plans_that_ran(r["methods"])]


def gain(methods: Json) -> Json:
    """Over the one of the others that auto leaves behind least: auto's gain, measured, the exact plan's, predicted, and what the first is
    off the second. Medians over the rounds in which both ran, round by round, for what a device has left differs from one to the next
    and the best cut of a lone job with it. As measured and at one speed; empty where none ran."""
    found: Json = {}
    for how in ("measured", "at_one_speed"):
        ours = gains_over(methods, ("single-cut", "min-cut"), how)
        if ours:
            got, promised = zip(*min(ours, key=lambda pairs: statistics.median(got for got, _ in pairs)), strict=True)
            off = statistics.median(a - b for a, b in zip(got, promised, strict=True))
            found[how] = {"got": statistics.median(got), "promised": statistics.median(promised), "off": off}
    return found


def gains_over(methods: Json, others: Sequence[str], how: str) -> list[list[tuple[float, float]]]:
    """Of every other that ran: of each round what auto gained over it, and what the exact plan promised."""
    ours, exact_s = methods["auto"].get("runs", []), methods["exact"]["predicted_each_s"]
    return [
        [
            (1 - took_s(a, how) / took_s(b, how), 1 - exact / b["predicted_s"])
            for a, b, exact in zip(ours, methods[o]["runs"], exact_s, strict=False)
        ]
        for o in others
        if ours and "runs" in methods[o]
    ]


def against(methods: Json, others: Sequence[str], how: str) -> float | None:
    """Auto's makespan by that of the best of the others that ran; None where none did."""
    return max(
        (1 - statistics.median(got for got, _ in each) for each in gains_over(methods, others, how)), default=None
    )


def took_s(run: Json, how: str) -> float:
    """As measured, or brought to the speed that was planned for."""
    at_one_speed = run["predicted_s"] / run["at_run_speed_s"] if how == "at_one_speed" else 1.0
    return float(run["makespan_s"] * at_one_speed)


def cases_of(quick: bool, only: str) -> list[tuple[str, int, int]]:
    """(part, device's share in percent, link in Mbit/s); `only` names some of them, as "mixed:10:5,alexnet:25:20"."""
    if only:
        words = [w.split(":") for w in only.split(",")]
        return [(part, int(share), int(mbit)) for part, share, mbit in words]
    if quick:
        return [("alexnet", 25, 20), ("mixed", 25, 20)]
    return [(part, s, m) for part in PARTS for s in SHARES for m in MBITS]


def kept_rows(out: Path | None, only: str) -> dict[str, list[Json]]:
    """Where only some settings are run: the others, from the file to be written. Raises BadInput where it is damaged, or an older
    benchmark wrote it."""
    rows: dict[str, list[Json]] = {part: [] for part in PARTS}
    if out is None or not only or not out.exists():
        return rows
    again = cases_of(False, only)
    try:
        old = json.loads(out.read_text())
        for part in rows:
            found = old.get(part, {}).get("settings", [])
            rows[part] = [r for r in found if (part, r["device_percent"], r["mbit_per_s"]) not in again]
        sound = all({"facts", "drift", "methods"} <= r.keys() for of_part in rows.values() for r in of_part)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        sound = False
    if not sound:
        raise BadInput(f"{out} is damaged, or of an older form", hint="give another --out, or run them all")
    return rows


def claimed(found: Json) -> dict[str, tuple[Claim, Interval]]:
    """What is claimed of each kind of jobs."""
    claims: dict[str, tuple[Claim, Interval]] = {}
    for part in (p for p in PARTS if p in found):
        f, sizes = found[part]["figures"], [abs(e) for e in errors(found[part]["settings"], "error_at_run_speed")]
        claims |= {
            f"{part}: error": (FORESEEN, bootstrap(lambda e: e, sizes)),
            f"{part}: worst error": (NEAR, Interval.exact(max(sizes))),
            f"{part}: against baselines": (NOT_WORSE, Interval.exact(1 + f["worst_against_any_baseline_measured"])),
            f"{part}: gain": (GOT, Interval.exact(f["gain_off_worst_measured"])),
        }
    return claims


def benchmark(machine: Machine, quick: bool, out: Path | None, rounds: int, only: str, budget_s: float) -> Json:
    """All settings, or those named; written to `out` after each."""
    mix = MIXED[:2] if quick else MIXED
    found: Json = {"benchmark": "offload", "quick": quick}
    rows = kept_rows(out, only)
    with tempfile.TemporaryDirectory() as kept, stage([ALEXNET, *mix]) as on:
        on.ask(do="prepare", kept=kept, budget_s=budget_s)
        for part, share, mbit in cases_of(quick, only):
            since, load = len(machine.probed), list(os.getloadavg())
            at = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime())
            machine.look_again()
            names = [ALEXNET] * 6 if part == "alexnet" else list(mix) * (3 if quick else 6)
            row = setting(on, Path(kept), names, share, mbit, ("auto", "exact", *BASELINES), budget_s, rounds)
            machine.look_again()
            row |= {"time": at, "load": load, "facts": machine.facts}
            row |= {"drift": machine.drift(since), "probes": machine.probed[since:]}
            rows[part] = sorted([*rows[part], row], key=lambda r: (r["device_percent"], r["mbit_per_s"]))
            found |= {p: {"settings": r, "figures": figures(r)} for p, r in rows.items() if r}
            if out:
                out.write_text(json.dumps(found, indent=1) + "\n")
    found["machine_record"] = machine.finished()
    drift = max(r["drift"]["drift"] for of_part in rows.values() for r in of_part)
    found["verdicts"] = {name: verdict(claim, value, drift) for name, (claim, value) in claimed(found).items()}
    if out:
        out.write_text(json.dumps(found, indent=1) + "\n")
    return found


def main() -> int:
    options = parser((__doc__ or "").splitlines()[0])
    options.add_argument("--quick", action="store_true", help="two models, one setting")
    options.add_argument("--out", type=Path, help="write the JSON there too, after every setting")
    options.add_argument(
        "--settings", default="", help="only these, e.g. mixed:10:5,alexnet:25:20; others stay in --out"
    )
    options.add_argument("--rounds", type=int, default=3, help="runs of every plan, in turn, at least; default 3")
    options.add_argument("--budget-s", type=float, default=7.0, help="to measure a model on a side; default 7")
    options.add_argument("--device", help=argparse.SUPPRESS)
    options.add_argument("--models", default="", help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.device:
        device(given.device, given.models.split(","))
        return 0

    def run(machine: Machine, _: Talk) -> Json:
        return benchmark(machine, given.quick, given.out, given.rounds, given.settings, given.budget_s)

    return run_script(given, run, text, packages=PACKAGES)


def text(found: Json) -> str:
    lines = []
    for part in PARTS:
        f = found.get(part, {}).get("figures")
        if f is None:
            continue
        for g in f["gains"]:
            got, at_one_speed = (
                f"{g[how]['got']:+.1%} (promised {g[how]['promised']:+.1%})" if how in g else NOTHING
                for how in ("measured", "at_one_speed")
            )
            lines.append(
                f"{part} at {g['device_percent']:3} % and {g['mbit_per_s']:3} Mbit/s: {got} below the better of single-cut and "
                f"min-cut, {at_one_speed} at one speed"
            )
        lines += [
            f"{part}: prediction off by {f['error_at_run_speed_median']:.1%} in the median, {f['error_at_run_speed_worst']:.1%} "
            f"at worst at run speed; {f['error_median']:.1%} and {f['error_worst']:.1%} as predicted",
            f"{part}: at worst {f['worst_against_any_baseline_measured']:+.1%} against any baseline, "
            f"{f['worst_against_any_baseline_at_one_speed']:+.1%} at one speed; {f['runs']} runs",
        ]
    return "\n".join([*lines, said(found)])


if __name__ == "__main__":
    sys.exit(main())
