"""The checks behind gpu.sh: what works on CPU workers has to work on GPUs, with the same losses and gradients.

    python benchmarks/gpu_checks.py DIR [--dry-run] [--only NAME,NAME]

Two kinds of run: a worker a GPU (NCCL), where there are two or more, and two workers that share the first GPU (gloo, staged
through pinned memory). A check is a process of its own with a time limit, so that a hang is a failure and stops nothing.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from partita.spawn import end

JOBS = Path(__file__).parent / "prediction_jobs.py"
WITHIN_S = 600.0  #: for one check; the longest takes a minute on two cores
GRADIENTS, LOSSES = 1e-3, 1e-3  #: relative to one process; TF32 is off by default in torch's matrix products


@dataclass(frozen=True)
class Setting:
    """What the checks run on."""

    out: Path
    kind: str  #: "cuda", or "cpu" in a dry run
    gpus: int

    def cluster(self, workers: int, *, shared: bool) -> Path:
        """A cluster file of so many workers, each with a device of its own or all on the first one."""
        path = self.out / f"{'shared' if shared else 'own'}{workers}.toml"
        names = [f"worker{i}:{0 if shared else i}" for i in range(workers)]
        devices = "".join(f'[[device]]\nname = "{n}"\nkind = "{self.kind}"\n' for n in names)
        path.write_text(f'source = "given"\n{devices}[link]\nrate_bytes_per_s = 5e9\nlatency_s = 50e-6\n')
        return path


class Failed(Exception):
    """A check's verdict, in a sentence."""


def expect(good: bool, fact: str) -> str:
    """The fact. Raises Failed with it where it is none."""
    if not good:
        raise Failed(fact)
    return fact


def partita(*words: str | Path) -> dict[str, Any]:
    """What `partita WORDS --json` prints. Raises Failed with its last words."""
    command = [sys.executable, "-m", "partita", *map(str, words), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Failed(
            f"partita {words[0]} ended with {done.returncode}: {(done.stderr.strip().splitlines() or [''])[-1]}"
        )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


# ---- the checks: each returns its figure, or raises ----------------------------------------------------------------------


def clocks(s: Setting) -> str:
    """Events on a stream read as the host's clock does, to 0.2 ms."""
    import time

    import torch

    from partita.training.runtime.stopwatch import stopwatch_for

    watch = stopwatch_for(torch.device(s.kind), [True])
    a = torch.ones(2048 if s.kind == "cuda" else 256, 2048, device=s.kind)
    for _ in range(3):
        began = time.perf_counter()
        watch.begin(0)
        for _ in range(20):
            a = a @ a.T @ a / 1e6
        watch.finish(0)
        if s.kind == "cuda":
            torch.cuda.synchronize()
        ended = time.perf_counter()
        start, end = watch.read()
    off = max(abs(float(start[0]) - began), abs(float(end[0]) - ended))
    return expect(off < 2e-4 or s.kind == "cpu", f"events are {off * 1e3:.3f} ms off the host's clock")


def measured(s: Setting, model: str) -> Path:
    """A profile of a job on this machine's devices."""
    path = s.out / f"{model}.profile.json"
    if not path.exists():
        partita(
            "measure", f"{JOBS}:{model}", "--devices", max(1, min(s.gpus, 2)), "--micro-batch-sizes", "4", "-o", path
        )
    return path


def measure(s: Setting) -> str:
    """A job is captured and timed on the device itself; its whole model's time is one of a plain step."""
    from partita.nouns.profile import Profile

    profile = Profile.read(measured(s, "resnet"))
    kinds = {d.kind for d in profile.cluster.devices}
    return expect(
        kinds == {s.kind}, f"a step takes {profile.samples[0].single_step_s * 1e3:.1f} ms, on {', '.join(kinds)}"
    )


def links(s: Setting) -> str:
    """The link between two devices is measured, not assumed."""
    from partita.training.measure.links import Pace, link_between
    from partita.training.measure.machine import local_devices

    a, b = local_devices(2)
    link = link_between(a, b, Pace())
    return expect(
        1e6 < link.rate_bytes_per_s < 1e13, f"{link.rate_bytes_per_s / 1e9:.2f} GB/s, {link.latency_s * 1e6:.0f} us"
    )


def planned(s: Setting, model: str, workers: int, *, shared: bool, **wishes: bool) -> Path:
    path = s.out / f"{model}.{'shared' if shared else 'own'}{workers}{''.join(wishes)}.plan.json"
    words = ["plan", measured(s, model), "--cluster", s.cluster(workers, shared=shared), "-o", path]
    partita(*words, *(["--stages", "1"] if wishes.get("replicas") else ["--stages", str(workers), "--no-replicas"]))
    return path


def equal(s: Setting, model: str, workers: int, *, shared: bool, **wishes: bool) -> str:
    """Losses and gradients of a pipeline are those of one process, on the same batches in turn."""
    from partita.nouns.plan import PlanFile
    from partita.pipeline.run.loop import compare_engines

    file = PlanFile.read(planned(s, model, workers, shared=shared, **wishes))
    out = s.out / f"compare-{model}-{workers}{'-shared' if shared else ''}{''.join(wishes)}"
    run = compare_engines(file, f"{JOBS}:{model}", {}, out, engines=("single", "pipeline"), rounds=6)
    pairs = list(zip(run.losses["pipeline"], run.losses["single"], strict=True))[:3]  # BatchNorm over 4 samples makes
    gradient, loss = (
        run.gradient_errors["pipeline"],
        max(abs(a - b) / abs(b) for a, b in pairs),
    )  # 1e-8 into 1e-3 in 5 steps
    good = gradient <= GRADIENTS and loss <= LOSSES and (out / "measured.json").exists()
    ratio = run.median_s("single") / run.median_s("pipeline")
    return expect(good, f"gradients {gradient:.1e}, losses {loss:.1e} off one process; {ratio:.2f}x its speed")


def resumed(s: Setting) -> str:
    """Eight steps in one go, and four and four under another plan, give the same losses."""
    from partita.nouns.metrics import read_metrics

    workers, shared = (2, s.gpus < 2)
    two, one = planned(s, "bert", workers, shared=shared), planned(s, "bert", 1, shared=True)
    job = f"{JOBS}:bert"
    partita("run", job, "--plan", two, "--steps", "8", "-o", s.out / "whole")
    partita("run", job, "--plan", two, "--steps", "4", "-o", s.out / "pieces")
    partita("run", job, "--plan", one, "--steps", "8", "--resume", s.out / "pieces/checkpoints", "-o", s.out / "pieces")
    rows = [read_metrics(s.out / d / "metrics.jsonl") for d in ("whole", "pieces")]
    off = max(abs(a.loss - b.loss) / abs(a.loss) for a, b in zip(*rows, strict=True))
    return expect(off <= LOSSES, f"losses {off:.1e} off after a resume under another plan")


def predicted(s: Setting) -> str:
    """How far the predicted step is from the measured one: a figure, no verdict."""
    found = partita("run", f"{JOBS}:resnet", "--plan", planned(s, "resnet", min(max(s.gpus, 1), 2), shared=s.gpus < 2), "--steps", "30", "-o", s.out / "predicted")  # fmt: skip
    return f"{found['predicted_step_s'] * 1e3:.1f} ms predicted, {found['measured_step_s'] * 1e3:.1f} measured ({found['error']:+.0%})"


Check = Callable[[Setting], str]


def checks(s: Setting) -> Mapping[str, Check]:
    """Those that this machine's devices allow. gpt2 makes positions itself and ties two weights; bert has dropout."""
    several = s.gpus >= 2
    found: dict[str, Check] = {"clocks": clocks, "measure": measure}
    for model in ("resnet", "gpt2", "bert"):
        found[f"shared-{model}"] = lambda s, m=model: equal(s, m, 2, shared=True)  # type: ignore[misc]
        if several:
            found[f"own-{model}"] = lambda s, m=model: equal(s, m, 2, shared=False)  # type: ignore[misc]
    if several:
        found["links"] = links
        found["replicas"] = lambda s: equal(s, "gpt2", 2, shared=False, replicas=True)
    if s.gpus >= 4:
        found["own-4"] = lambda s: equal(s, "gpt2", 4, shared=False)
    return found | {"resume": resumed, "prediction": predicted}


# ---- running them --------------------------------------------------------------------------------------------------------


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description="Check Partita on this machine's GPUs.")
    parser.add_argument("out", metavar="DIR", type=Path, help="where files, output and summary.json go")
    parser.add_argument("--dry-run", action="store_true", help="on CPU workers instead")
    parser.add_argument("--only", metavar="NAME,NAME", default="", help="these checks only")
    parser.add_argument("--one", metavar="NAME", help=argparse.SUPPRESS)  # inside a check's own process
    options = parser.parse_args(words)
    options.out.mkdir(parents=True, exist_ok=True)
    import torch

    gpus = 2 if options.dry_run else torch.cuda.device_count()
    if not gpus:
        print("no GPU here: torch.cuda.device_count() is 0. hint: install a CUDA build of torch, and look at nvidia-smi; or give --dry-run", file=sys.stderr)  # fmt: skip
        return 2
    setting = Setting(options.out, "cpu" if options.dry_run else "cuda", gpus)
    known = checks(setting)
    if options.one:
        return _one(known[options.one], setting)
    chosen = [n for n in options.only.split(",") if n] or list(known)
    unknown = [n for n in chosen if n not in known]
    if unknown:
        print(f"no check {unknown[0]!r}. hint: there are {', '.join(known)}", file=sys.stderr)
        return 2
    verdicts = [_verdict(name, words, options.out) for name in chosen]
    _summarise(verdicts, options.out)
    return int(not all(v["ok"] for v in verdicts))


def _one(check: Check, setting: Setting) -> int:
    """A check's own process: its last line is its figure or what went wrong."""
    from partita.errors import PartitaError

    try:
        print(check(setting))
    except (Failed, PartitaError) as error:
        print(error)
        return 1
    return 0


def _verdict(name: str, words: Sequence[str], out: Path) -> dict[str, Any]:
    with open(out / f"{name}.log", "w") as log:
        command = [sys.executable, __file__, *words, "--one", name]
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        try:
            code = process.wait(WITHIN_S)
        except subprocess.TimeoutExpired:
            code = -1
        finally:
            end([process])
    lines = [line for line in (out / f"{name}.log").read_text().splitlines() if line.strip()]
    fact = f"no end within {WITHIN_S:.0f} s" if code == -1 else lines[-1] if lines else f"exit code {code}"
    print(f"{'ok  ' if code == 0 else 'FAIL'}  {name:14}  {fact}", flush=True)
    return {"name": name, "ok": code == 0, "fact": fact}


def _summarise(verdicts: list[dict[str, Any]], out: Path) -> None:
    from partita.page.machine import machine_facts

    (out / "summary.json").write_text(json.dumps({"machine": machine_facts(), "checks": verdicts}, indent=1) + "\n")
    good = sum(v["ok"] for v in verdicts)
    print(f"{good} of {len(verdicts)} checks passed; files in {out}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
