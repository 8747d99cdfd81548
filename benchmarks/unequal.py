"""Four unequal hosts: Partita's plan against the even split and against data parallelism with equal shares, on CIFAR-10.

    python benchmarks/unequal.py [--data DIR] [--shares 80,50,40,20] [--rate 100mbit] [--rounds 22] [--blocks 2] [--json]

Each host of the test bed has a share of a core (percent) and a link of that rate, shaped both ways; wants root. `partita measure` runs
on all of them at once, as inside torchrun: the plans are for the profile that it writes, with the speeds and links that it found.
DIR holds CIFAR-10's train.parquet as examples/cifar_resnet.py wants it; without it the CNN sees scikit-learn's digits.

    chosen        what `partita plan` finds
    even          a stage on every host, by a planner that takes them for equal
    equal shares  the whole model on every host, a quarter of the micro-batches each; likewise at the best number

All plans have a process on every host and take turns, round by round; one device, the first host, takes turns with the first of them.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from engines import WARMUP, add_turns, shares
from harness import Json, Machine, order, parser, run_script, said
from intervals import WITHIN_ROUNDS, Claim, Interval, over_median, ratio_within_rounds

from partita.cli.talk import Talk
from partita.errors import PartitaError
from partita.nouns.cluster import Cluster
from partita.nouns.pipeline_plan import PipelinePlan, Stage
from partita.nouns.plan import PlanFile, Verdict
from partita.nouns.probe import Readings
from partita.nouns.profile import Profile
from partita.page.text import table
from partita.pipeline.plan.planner import plan_pipeline
from partita.pipeline.run.loop import check_rounds
from partita.simulate.predicted import predicted
from partita.simulate.run_speed import RunSpeed, run_speed
from partita.spawn import last_line, threads_env
from partita.testbed.hosts import Testbed
from partita.training.runtime.baton import Ring
from partita.training.runtime.prepare import prepared
from partita.training.runtime.spec import Spec

JOBS = Path(__file__).with_name("schedule_jobs.py")
PORT = 29600  #: of the first plan's meeting point; each plan has one of its own
PATIENCE_S = 240.0  #: for a block of rounds
ALIKE = 1e-5  #: largest difference of gradients

CLAIMS = {
    "faster than the even split": Claim("the chosen plan is at least 1.3 times as fast as the even split", low=1.3, most_drift=WITHIN_ROUNDS),
    "faster than equal shares": Claim("the chosen plan is at least 1.15 times as fast as data parallelism with equal shares", low=1.15, most_drift=WITHIN_ROUNDS),
    "near the simulated step at the run's speed": Claim("the chosen plan reaches at least 0.92 of the speed simulated with the devices as fast as they were", low=0.92, most_drift=WITHIN_ROUNDS),
    "near the simulated step": Claim("the chosen plan reaches at least 0.92 of the simulated speed", low=0.92, most_drift=WITHIN_ROUNDS),
}  # fmt: skip


# ---- what is asked ------------------------------------------------------------------------------------------------------


def measured(bed: Testbed, settings: Mapping[str, str], folder: Path) -> Profile:
    """What `partita measure` finds on the bed's hosts, a rank on each. Raises PartitaError where a rank fails."""
    out = folder / "profile.json"
    said = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    words = [sys.executable, "-m", "partita", "measure", f"{JOBS}:cnn", *said, "-o", str(out)]
    _to_the_end(_ranks(bed, words, PORT - 1, folder))
    return Profile.read(out)


def taken_for_equal(profile: Profile, cluster: Cluster) -> PlanFile:
    """A stage on every device, by the speed that they have on average; its value is by their own."""
    mean = statistics.fmean(d.speed for d in cluster.devices)
    alike = replace(cluster, devices=tuple(replace(d, speed=mean) for d in cluster.devices))
    file = plan_pipeline(profile, alike, stages=len(cluster.devices), allow_replicas=False)
    problem = replace(file.problem, cluster=cluster)
    value = predicted(problem, file.plan).duration_s
    return PlanFile(file.plan, replace(file.verdict, value_s=value, lower_bound_s=0.0), problem)


def equal_shares(profile: Profile, cluster: Cluster) -> PlanFile:
    """Data parallelism: every device has the whole model and as many micro-batches, of the size that is predicted to be best."""
    devices = tuple(d.name for d in cluster.devices)
    found = []
    for sample in profile.samples:
        micro_batches, rest = divmod(profile.batch_size, sample.micro_batch_size)
        if rest or micro_batches % len(devices):
            continue
        one = plan_pipeline(profile, cluster, method="single", micro_batches=micro_batches)
        assert isinstance(one.plan, PipelinePlan)
        stage = Stage(one.plan.stages[0].tasks, devices)
        plan = replace(one.plan, stages=(stage,), in_flight=len(devices), schedule="1f1b", orders={})
        value = predicted(one.problem, plan).duration_s
        verdict = Verdict(value, min(value, one.verdict.lower_bound_s), one.verdict.bound, "equal shares", 0.0, "step")
        found.append(PlanFile(plan, verdict, one.problem))
    return min(found, key=lambda f: f.verdict.value_s)


# ---- how it is run ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Block:
    """All plans at once on their hosts, a round of one of them at a time."""

    bed: Testbed
    settings: Mapping[str, str]
    counted: int

    def run(self, files: Mapping[str, PlanFile], number: int) -> dict[str, Json]:
        """Plan -> what its ranks wrote down."""
        with tempfile.TemporaryDirectory() as folder, Ring.started(Path(folder), len(files)) as ring:
            names = order(list(files), number)
            ranks = [
                p for k, n in enumerate(names) for p in self._ranks(files[n], Path(folder) / n, k, ring, n == "chosen")
            ]
            try:
                _to_the_end(ranks)
            except BaseException:
                ring.end()
                raise
            return {n: json.loads((Path(folder) / n / "compare.json").read_text()) for n in names}

    def _ranks(self, file: PlanFile, out: Path, k: int, ring: Ring, beside_single: bool) -> list[Rank]:
        """The ranks of the k-th plan, each the device that its host was measured as."""
        folder = prepared(out, file)
        spec = Spec(
            f"{JOBS}:cnn", dict(self.settings), str(folder / "plan.json"), str(folder), task="compare",
            engine="single,pipeline" if beside_single else "pipeline", steps=WARMUP + self.counted, warmup=WARMUP,
            check_gradients=beside_single, ring=ring.place(k),
        )  # fmt: skip
        told = folder / "spec.json"
        told.write_text(json.dumps(asdict(spec)))
        words = [sys.executable, str(Path(__file__).resolve()), "--rank", str(told)]
        return _ranks(self.bed, words, PORT + k, folder)


@dataclass(frozen=True)
class Rank:
    """A process on a host."""

    host: str
    process: subprocess.Popen[bytes]
    log: Path


def _ranks(bed: Testbed, words: Sequence[str], port: int, folder: Path) -> list[Rank]:
    """A rank on every host, in the order of the hosts; what it says goes to a file in the folder."""
    place = {"WORLD_SIZE": str(len(bed.hosts)), "MASTER_ADDR": bed.hosts[0].address, "MASTER_PORT": str(port)}
    env = {**os.environ, **threads_env(1), "GLOO_SOCKET_IFNAME": "eth0", **place}
    ranks = []
    for r, host in enumerate(bed.hosts):
        log = folder / f"rank-{r}.txt"
        with open(log, "wb") as out:
            process = bed.popen(
                host.name, words, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env={**env, "RANK": str(r)}
            )
        ranks.append(Rank(host.name, process, log))
    return ranks


def _to_the_end(ranks: Sequence[Rank]) -> None:
    """Wait for all; where one fails the others are ended. Raises PartitaError with what it said."""
    deadline = time.monotonic() + PATIENCE_S
    try:
        while any(r.process.poll() is None for r in ranks):
            failed = [r for r in ranks if r.process.poll() not in (None, 0)]
            if failed or time.monotonic() > deadline:
                who = failed[0] if failed else next(r for r in ranks if r.process.poll() is None)
                why = f"ended with {who.process.poll()}" if failed else f"was not done within {PATIENCE_S:g} s"
                raise PartitaError(f"a rank on {who.host} {why}: {last_line(who.log)}")
            time.sleep(0.1)
    finally:
        for r in ranks:
            if r.process.poll() is None:
                r.process.kill()
            r.process.wait()


def one_rank(told: Path) -> int:
    """This process is a rank on a host."""
    from partita.training.runtime.worker import run_rank_alone

    run_rank_alone(Spec(**json.loads(told.read_text())), int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
    return 0


# ---- what came out ------------------------------------------------------------------------------------------------------


def benchmark(options: Any, machine: Machine, talk: Talk) -> Json:
    check_rounds(options.rounds, WARMUP)
    settings = {"data": str(Path(options.data).resolve())} if options.data else {}
    with (
        tempfile.TemporaryDirectory() as folder,
        Testbed.up(len(options.shares), [options.rate], options.shares) as bed,
    ):
        talk.progress("measuring the hosts", 0, 1)
        profile = measured(bed, settings, Path(folder))
        cluster, blocks = profile.cluster, []
        files = {
            "chosen": plan_pipeline(profile, schedule="auto"),
            "even": taken_for_equal(profile, cluster),
            "equal shares": equal_shares(profile, cluster),
        }
        for k, counted in enumerate(shares(options.rounds - WARMUP, options.blocks)):
            machine.look_again(every_s=5.0)
            talk.progress(f"block {k + 1} of {options.blocks}", 0, 1)
            blocks.append(Block(bed, settings, counted).run(files, k))
    steps = {n: [s for b in blocks for s in b[n]["step_s"]["pipeline"]] for n in files}
    one = [s for b in blocks for s in b["chosen"]["step_s"]["single"]]
    ratios = {n: ratio_within_rounds(steps[n], steps["chosen"]) for n in files if n != "chosen"}
    ratios["one device"] = ratio_within_rounds(one, steps["chosen"])
    near = over_median(files["chosen"].verdict.value_s, steps["chosen"])
    near_then = over_median(1.0, [s for b in blocks for s in _of_run_speed(files["chosen"], b["chosen"])])
    readings = {n: Readings.from_json(blocks[-1][n]["readings"]["pipeline"]) for n in files}
    claims: dict[str, tuple[Claim, Interval]] = {
        "even": (CLAIMS["faster than the even split"], ratios["even"]),
        "equal_shares": (CLAIMS["faster than equal shares"], ratios["equal shares"]),
        "near": (CLAIMS["near the simulated step"], near),
        "near_at_run_speed": (CLAIMS["near the simulated step at the run's speed"], near_then),
    }
    record = machine.finished()
    return {
        "shares": options.shares, "rate": options.rate, "link": asdict(cluster.links[0]),
        "speeds": {d.name: d.speed for d in cluster.devices}, "single_step_s": statistics.median(one),
        "plans": {n: _told(f, steps[n], run_speed(f, readings[n])) for n, f in files.items()},
        "ratio": {n: [r.value, *(r.ends or [])] for n, r in ratios.items()},
        "gradient_error": max(b["chosen"]["gradient_errors"]["pipeline"] for b in blocks),
        "samples": blocks, "verdicts": machine.verdicts(claims), "machine_record": record,
    }  # fmt: skip


def _of_run_speed(file: PlanFile, block: Json) -> list[float]:
    """[steps of a block] each over the step that is predicted with the devices as fast as they were in it."""
    ran = run_speed(file, Readings.from_json(block["readings"]["pipeline"]))
    return [s / (ran.step_s if ran else file.verdict.value_s) for s in block["step_s"]["pipeline"]]


def _told(file: PlanFile, steps: Sequence[float], ran: RunSpeed | None) -> Json:
    plan = file.plan
    assert isinstance(plan, PipelinePlan)
    return {
        "predicted_s": file.verdict.value_s, "bound_s": file.verdict.lower_bound_s, "measured_s": statistics.median(steps),
        "predicted_at_run_speed_s": ran.step_s if ran else None,
        "method": file.verdict.method, "schedule": plan.schedule, "micro_batches": plan.micro_batches, "in_flight": plan.in_flight,
        "stages": [{"tasks": len(s.tasks), "devices": list(s.devices), "shares": list(s.shares)} for s in plan.stages],
    }  # fmt: skip


def text(document: Json) -> str:
    rows = []
    for name, p in document["plans"].items():
        value, *ends = document["ratio"].get(name, [1.0])
        where = "; ".join(f"{s['tasks']} on {' '.join(s['devices'])}" for s in p["stages"])
        rows.append(
            [
                name,
                p["measured_s"],
                p["predicted_s"],
                p["predicted_at_run_speed_s"],
                value,
                f"{ends[0]:.3f} to {ends[1]:.3f}" if ends else "",
                f"{p['micro_batches']} micro-batches, {where}",
            ]
        )
    rows.append(
        [
            "one device",
            document["single_step_s"],
            None,
            None,
            document["ratio"]["one device"][0],
            "",
            next(iter(document["speeds"])),
        ]
    )
    columns = [("plan", "text"), ("a step", "s"), ("predicted", "s"), ("at the run's speed", "s"), ("of the chosen", "ratio"), ("interval", "text"), ("", "text")]  # fmt: skip
    hosts = f"hosts with {', '.join(f'{s:g}' for s in document['shares'])} % of a core, links of {document['rate']}"
    speeds = ", ".join(f"{name} {speed:.2f}" for name, speed in document["speeds"].items())
    return f"{hosts}; speeds measured: {speeds}; largest difference of gradients {document['gradient_error']:.1e}\n{table(columns, rows)}\n\n{said(document)}"  # type: ignore[arg-type]


def main() -> int:
    if sys.argv[1:2] == ["--rank"]:
        return one_rank(Path(sys.argv[2]))
    options = parser(__doc__)
    options.add_argument("--data", default="", metavar="DIR", help="CIFAR-10; default: digits")
    options.add_argument(
        "--shares", type=lambda s: [float(p) for p in s.split(",")], default=[80.0, 50.0, 40.0, 20.0], metavar="P,P,..",
        help="percent of a core that each host has; default: 80,50,40,20",
    )  # fmt: skip
    options.add_argument("--rate", default="100mbit", help="of every host's link; default: 100mbit")
    add_turns(options, 22, 2)
    given = options.parse_args()
    return run_script(
        given, lambda m, t: benchmark(given, m, t), text, ("torch",), lambda d: d["gradient_error"] > ALIKE
    )


if __name__ == "__main__":
    sys.exit(main())
