"""Clients against one server: no job lost, memory flat, how long answers take.

    python benchmarks/offload_load.py [--clients 8] [--seconds 50] [--threads 1] [--json]

Each client is a thread with its own connection; it keeps a few jobs under way and checks every answer against the whole
model's. The server is `partita offload serve` in a process of its own; its memory is read from its own metrics, after a
warm-up of a tenth of the time and at the end.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from harness import Json, Machine, parser, run_script, said
from intervals import Claim, Interval, bootstrap
from onnx import TensorProto, helper, numpy_helper

from partita import __version__
from partita.offload.capture.onnx_model import OnnxModel
from partita.offload.onnx_session import Session, model_inputs
from partita.offload.run.client import Client
from partita.offload.run.codec import encode
from partita.offload.run.counters import quantile
from partita.offload.run.model_store import cut_id
from partita.offload.run.wire import pack, unpack

PACKAGES = ("onnxruntime", "onnx")
IMAGES = 4  #: different inputs of a client

#: What each run is judged by; no time is in them: they hold on any machine.
NONE_LOST = Claim("no job is lost, answered wrongly or ends in an error", high=0, most_drift=float("inf"))
FLAT = Claim("the server's memory grows by at most 5 % after the warm-up", high=0.05, most_drift=float("inf"))


def small_net(seed: int) -> OnnxModel:
    """A squeeze-and-expand network, 13 tasks, random weights."""
    rng = np.random.default_rng(seed)
    weights: list[onnx.TensorProto] = []
    nodes: list[onnx.NodeProto] = []

    def layer(operator: str, inputs: list[str], name: str, shape: tuple[int, ...] = (), **settings: Any) -> str:
        if shape:
            value = rng.normal(0, 1 / np.sqrt(np.prod(shape[1:])), shape).astype(np.float32)
            weights.append(numpy_helper.from_array(value, f"{name}.w"))
            inputs = [*inputs, f"{name}.w"]
        nodes.append(helper.make_node(operator, inputs, [f"{name}.y"], name, **settings))
        return f"{name}.y"

    x = layer("Conv", ["x"], "stem", (16, 3, 3, 3), strides=[2, 2])
    x = layer("Relu", [x], "relu")
    for k in (1, 2):
        squeezed = layer("Relu", [layer("Conv", [x], f"squeeze{k}", (8, 16, 1, 1))], f"relu{k}")
        one = layer("Conv", [squeezed], f"one{k}", (8, 8, 1, 1))
        three = layer("Conv", [squeezed], f"three{k}", (8, 8, 3, 3), pads=[1, 1, 1, 1])
        x = layer("Concat", [one, three], f"expand{k}", axis=1)
    x = layer("GlobalAveragePool", [x], "mean")
    graph = helper.make_graph(
        nodes,
        f"small{seed}",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 48, 48])],
        [helper.make_tensor_value_info(x, TensorProto.FLOAT, [1, 16, 1, 1])],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return OnnxModel.from_bytes(model.SerializeToString(), f"small{seed}")


@dataclass
class Tally:
    """What one client saw."""

    sent: int = 0
    answered: int = 0
    refused: int = 0
    wrong: int = 0
    seconds: list[float] = field(default_factory=list)  #: of each answer, until it came
    came_s: list[float] = field(default_factory=list)  #: when, on the common clock
    error: str = ""


class LoadClient:
    """Sends jobs until told to stop, `ahead` of them under way."""

    def __init__(self, where: str, seed: int, until_s: float, ahead: int) -> None:
        self.where, self.until_s, self.tally = where, until_s, Tally()
        self.model = small_net(seed % 3)
        tasks = self.model.tasks_topological
        self.cut = frozenset(tasks[: (2, 6, 0)[seed % 3]])
        self.slots = threading.Semaphore(ahead)
        self.sent_s: dict[int, float] = {}
        rng = np.random.default_rng(seed)
        inputs = [{"x": rng.normal(size=(1, 3, 48, 48)).astype(np.float32)} for _ in range(IMAGES)]
        halves = self.model.halves(self.cut)
        assert halves.server is not None
        names = model_inputs(halves.server)
        half = Session(halves.device, "half") if halves.device else None
        whole = Session(self.model.data, "whole")
        made = [{**i, **(half.run(i) if half else {})} for i in inputs]
        self.crossing = [{n: m[n] for n in names} for m in made]
        self.wanted = [whole.run(i) for i in inputs]

    def messages(self) -> Iterator[bytes]:
        while time.perf_counter() < self.until_s:
            if not self.slots.acquire(timeout=1.0):
                continue
            k = self.tally.sent
            coding, tensors = encode(self.crossing[k % IMAGES], "raw")
            head = {"kind": "job", "job": k, "attempt": 1, "model": self.model.hash, "cut": cut_id(self.cut)}
            self.sent_s[k] = time.perf_counter()
            self.tally.sent += 1
            yield pack({**head, "coding": coding}, tensors)

    def run(self) -> None:
        try:
            with Client(self.where) as client:
                client.put(self.model)
                client.prepare(self.model, self.cut)
                for raw in client.work(self.messages()):
                    self.take(*unpack(raw))
        except Exception as error:
            self.tally.error = f"{type(error).__name__}: {error}"

    def take(self, head: dict[str, Any], tensors: dict[str, Any]) -> None:
        if head["kind"] == "received":
            return
        k = int(head["job"])
        now = time.perf_counter()
        self.tally.seconds.append(now - self.sent_s.pop(k))
        self.tally.came_s.append(now)
        self.slots.release()
        if head["kind"] == "refused":
            self.tally.refused += 1
            return
        self.tally.answered += 1
        self.tally.wrong += not all(np.allclose(tensors[n], v, atol=1e-5) for n, v in self.wanted[k % IMAGES].items())


def start_server(folder: Path, threads: int) -> tuple[subprocess.Popen[str], str]:
    words = [sys.executable, "-m", "partita", "offload", "serve", "--port", "0", "--port-file", str(folder / "port")]
    words += ["--threads", str(threads), "--json"]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    server = subprocess.Popen(words, env=env, stdout=subprocess.PIPE, text=True)
    while not (folder / "port").exists():
        if server.poll() is not None:
            raise SystemExit("the server did not start")
        time.sleep(0.05)
    return server, f"127.0.0.1:{int((folder / 'port').read_text())}"


def resident(client: Client) -> float:
    rows = dict(line.rsplit(" ", 1) for line in client.metrics().splitlines())
    return float(rows["partita_offload_resident_bytes"])


def measure(clients: int, seconds: float, threads: int, ahead: int, machine: Machine) -> Json:
    with tempfile.TemporaryDirectory(prefix="partita-load-") as folder:
        server, where = start_server(Path(folder), threads)
        try:
            begun = time.perf_counter()
            crowd = [LoadClient(where, k, begun + seconds, ahead) for k in range(clients)]
            workers = [threading.Thread(target=c.run) for c in crowd]
            for w in workers:
                w.start()
            memory = []
            with Client(where) as watcher:
                for share in (0.1, 0.4, 0.7, 1.0):
                    time.sleep(max(0.0, begun + share * seconds - time.perf_counter()))
                    memory.append(resident(watcher))
            for w in workers:
                w.join(60)
            spent = time.perf_counter() - begun
        finally:
            server.terminate()
            ended_with = json.loads(server.communicate(timeout=30)[0] or "{}")
    found = _document([c.tally for c in crowd], memory, begun, spent, ended_with, clients, threads)
    record = machine.finished()
    return found | _about(record) | {"verdicts": machine.verdicts(claimed(found)), "machine_record": record}


def _document(
    tallies: list[Tally], memory: list[float], begun: float, spent: float, ended_with: Any, clients: int, threads: int
) -> Json:
    taken = sorted(s for t in tallies for s in t.seconds)
    sent, answered, refused = (sum(getattr(t, what) for t in tallies) for what in ("sent", "answered", "refused"))
    answers = sorted((c - begun, s) for t in tallies for c, s in zip(t.came_s, t.seconds, strict=True))
    return {
        "clients": clients,
        "threads": threads,
        "seconds": spent,
        "sent": sent,
        "answered": answered,
        "refused": refused,
        "lost": sent - answered - refused,
        "wrong": sum(t.wrong for t in tallies),
        "errors": [t.error for t in tallies if t.error],
        "jobs_per_s": answered / spent,
        "p50_s": quantile(taken, 0.5) if taken else None,
        "p99_s": quantile(taken, 0.99) if taken else None,
        **_by_second(answers),
        "resident_bytes": memory,
        "memory_growth": memory[-1] / memory[0] - 1,
        "server": ended_with,
        "samples": {"came_s": [round(c, 6) for c, _ in answers], "answer_s": [round(s, 6) for _, s in answers]},
    }


def _by_second(answers: list[tuple[float, float]]) -> Json:
    """Intervals of the rate and of the median answer: whole seconds are drawn, since answers in one second are alike."""
    seconds: dict[int, list[float]] = {}
    for came_s, taken_s in answers:
        seconds.setdefault(int(came_s), []).append(taken_s)
    whole = [seconds[k] for k in sorted(seconds)[1:-1]]  # the first and the last one are none
    if not whole:
        return {"jobs_per_s_interval": None, "p50_interval_s": None}
    rate = bootstrap(lambda n: n, [float(len(s)) for s in whole])
    middle = bootstrap(lambda t: t, [statistics.median(s) for s in whole])
    return {"jobs_per_s_interval": rate.ends, "p50_interval_s": middle.ends}


def _about(record: Json) -> Json:
    """What stood in the document before there was a record."""
    facts = record["facts"]
    versions = {"partita": __version__, **{name: facts[name] for name in PACKAGES if name in facts}}
    return {"load": facts["load"], "versions": versions, "time": facts["time"]}


def claimed(found: Json) -> dict[str, tuple[Claim, Interval]]:
    bad = found["lost"] + found["wrong"] + len(found["errors"])
    return {
        "none_lost": (NONE_LOST, Interval.exact(bad)),
        "memory": (FLAT, Interval.exact(found["memory_growth"])),
    }


def text(found: Json) -> str:
    return (
        f"{found['answered']} answers in {found['seconds']:.1f} s ({found['jobs_per_s']:.0f}/s), "
        f"{found['lost']} lost, {found['wrong']} wrong, {found['refused']} refused; "
        f"p50 {found['p50_s'] * 1e3:.1f} ms, p99 {found['p99_s'] * 1e3:.1f} ms; "
        f"server memory {found['resident_bytes'][0] / 1e6:.1f} -> {found['resident_bytes'][-1] / 1e6:.1f} MB\n{said(found)}"
    )


def main() -> int:
    options = parser((__doc__ or "").splitlines()[0])
    options.add_argument("--clients", type=int, default=8)
    options.add_argument("--seconds", type=float, default=50.0)
    options.add_argument("--threads", type=int, default=1, help="of the server")
    options.add_argument("--ahead", type=int, default=4, help="jobs of a client under way at once")
    given = options.parse_args()
    return run_script(
        given,
        lambda m, _: measure(given.clients, given.seconds, given.threads, given.ahead, m),
        text,
        packages=PACKAGES,
        failed=lambda found: bool(found["lost"] or found["wrong"] or found["errors"]),
    )


if __name__ == "__main__":
    sys.exit(main())
