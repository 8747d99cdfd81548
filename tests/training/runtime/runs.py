"""`partita run` as a process of its own: start it, watch it, hurt it, and see what it says."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from partita.testbed.hosts import Testbed
from partita.training.job import TrainingJob, batch_size, call, micro_batches
from partita.training.runtime.batches import epoch_batches

JOBS = Path(__file__).parents[2] / "jobs"


@dataclass
class Run:
    """A running command."""

    process: subprocess.Popen[bytes]
    folder: Path  #: where its stdout and stderr go
    out: Path  #: its -o

    @property
    def stderr(self) -> str:
        return (self.folder / "stderr").read_text()

    @property
    def stdout(self) -> str:
        return (self.folder / "stdout").read_text()

    def wait(self, timeout_s: float = 120) -> int:
        try:
            return self.process.wait(timeout_s)
        finally:
            self.end()

    def end(self) -> None:
        """Whatever a test did, nothing of it goes on."""
        for pid in [*self.workers().values(), self.process.pid]:
            try:
                os.kill(pid, signal.SIGCONT)
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self.process.wait()

    def workers(self) -> dict[int, int]:
        """Rank -> process of its workers."""
        return {rank: pid for pid, rank in workers_of(self.process.pid).items()}

    def wait_for_step(self, step: int, timeout_s: float = 120) -> None:
        self.wait_until(lambda: len(metrics(self.out)) >= step, f"step {step}", timeout_s)

    def wait_until(self, there: Callable[[], bool], what: str, timeout_s: float = 120) -> None:
        deadline = time.monotonic() + timeout_s
        while not there():
            assert self.process.poll() is None, f"ended before {what}: {self.stderr}"
            if time.monotonic() > deadline:
                self.end()
                raise AssertionError(f"no {what} in {timeout_s} s: {self.stderr}")
            time.sleep(0.02)

    def error(self) -> str:
        """The one sentence it ends with; fails where there is more than one, or a traceback."""
        lines = self.stderr.splitlines()
        assert not any("Traceback" in line for line in lines), self.stderr
        said = [line for line in lines if line.startswith("partita:")]
        assert len(said) == 1, self.stderr
        assert lines[-1] == said[0], self.stderr
        return said[0].removeprefix("partita: ")


def start(folder: Path, words: Sequence[str | Path], env: Mapping[str, str] | None = None) -> Run:
    """`partita WORDS`; its output goes to files in the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    out = Path(words[list(words).index("-o") + 1]) if "-o" in words else folder / "run"
    with open(folder / "stdout", "wb") as stdout, open(folder / "stderr", "wb") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", "partita", *map(str, words)],
            stdout=stdout,
            stderr=stderr,
            stdin=subprocess.DEVNULL,
            env={**os.environ, **(env or {})},
        )
    return Run(process, folder, out)


def ranks_on(bed: Testbed, words: Sequence[str], hosts: Sequence[str] = ("h0", "h1")) -> list[subprocess.Popen[str]]:
    """`partita WORDS --json` on hosts of a test bed, a rank on each in this order; both outputs are pipes."""
    place = {"WORLD_SIZE": str(len(hosts)), "MASTER_ADDR": bed.address(hosts[0]), "MASTER_PORT": "29577"}
    return [
        bed.popen(
            host, [sys.executable, "-m", "partita", *words, "--json"],
            env={**os.environ, **place, "GLOO_SOCKET_IFNAME": "eth0", "RANK": str(r)},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for r, host in enumerate(hosts)
    ]  # fmt: skip


def train(folder: Path, job: str, plan: Path, *options: str, env: Mapping[str, str] | None = None) -> Run:
    """`partita run FILE:JOB --plan PLAN -o FOLDER/run OPTIONS`."""
    file, _, name = job.partition(":")
    return start(folder, ["run", f"{JOBS / file}.py:{name}", "--plan", plan, "-o", folder / "run", *options], env)


def metrics(out: Path) -> list[dict[str, Any]]:
    path = out / "metrics.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("}")]


def losses(out: Path) -> dict[int, float]:
    return {row["step"]: row["loss"] for row in metrics(out)}


def workers_of(launcher: int) -> dict[int, int]:
    """Process -> rank of the workers that a launcher started and that still exist."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            env = (entry / "environ").read_bytes().split(b"\0")
            command = (entry / "cmdline").read_bytes()
        except OSError:
            continue
        if b"partita.training.runtime.worker" in command and f"PARTITA_LAUNCHER={launcher}".encode() in env:
            found[int(entry.name)] = next(int(v[5:]) for v in env if v.startswith(b"RANK="))
    return found


def listening(pid: int) -> set[str]:
    """Addresses at which a process of this machine listens for TCP connections, as the kernel writes them."""
    own = set()
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = os.readlink(fd)
        except OSError:
            continue
        if target.startswith("socket:["):
            own.add(target[8:-1])
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            row = line.split()
            if row[3] == "0A" and row[9] in own:  # 0A: LISTEN
                found.add(row[1].rpartition(":")[0])
    return found


LOOPBACK = {"0100007F", "00000000000000000000000001000000", "0000000000000000FFFF00000100007F"}


def alone(job: TrainingJob, steps: int, size: int) -> tuple[dict[int, float], torch.nn.Module]:
    """(losses, model) of a plain training loop in this process, gradients gathered over the same micro-batches."""
    model = job.build()
    optimizer = job.optimizer(list(model.named_parameters()))
    scheduler = job.scheduler(optimizer) if job.scheduler else None
    found: dict[int, float] = {}
    epoch = 0
    while True:
        for batch in epoch_batches(job, epoch):
            if len(found) == steps:
                return found, model
            optimizer.zero_grad()
            total = 0.0
            for part in micro_batches(batch, size):
                share = batch_size(part) / batch_size(batch)
                loss = job.loss(call(model, part[0]), part[1])
                (loss * share).backward()
                total += float(loss.detach()) * share
            optimizer.step()
            if scheduler:
                scheduler.step()
            found[len(found) + 1] = total
        epoch += 1
