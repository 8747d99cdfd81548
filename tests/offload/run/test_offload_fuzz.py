"""Whatever a file or a message holds: it is read, or it is one of our sentences. Seeded mutations, the same every time."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import numpy as np
import pytest
from offload.plan.offload_brute import instance, timed
from offload.run.small_nets import net

from partita.errors import CostError, PartitaError
from partita.files import read_json
from partita.nouns.offload import OffloadProblem
from partita.nouns.plan import OffloadFile
from partita.offload.capture import jobs as offload_jobs
from partita.offload.capture.jobs import read_jobs
from partita.offload.capture.onnx_model import OnnxModel
from partita.offload.measure.inference import InferenceTimes
from partita.offload.plan.planner import plan_offload
from partita.offload.run.client import Client
from partita.offload.run.codec import Codec, decode, encode
from partita.offload.run.wire import PROTOCOL, pack, unpack

MUTATIONS = 3000
ODD = (
    None, True, -1, 0, 1e308, -1e308, float("inf"), float("nan"), 10**18, 10**400, 2**63, "", "x", "\ud800", "1e999",
    [], [[]], {}, {"a": 1}, [1e308] * 3, "a" * 10_000,
)  # fmt: skip


def spoiled(chance: random.Random, value: Any) -> Any:
    """The value with something odd somewhere: another value, a key too many or too few, a list longer or shorter."""
    if isinstance(value, dict) and value and chance.random() < 0.85:
        key = chance.choice(list(value))
        kind = chance.random()
        if kind < 0.08:
            return {k: v for k, v in value.items() if k != key}
        if kind < 0.12:
            return {**value, chance.choice(["odd", "\udfff", "", "format"]): chance.choice(ODD)}
        return {**value, key: spoiled(chance, value[key])}
    if isinstance(value, list) and value and chance.random() < 0.85:
        at = chance.randrange(len(value))
        kind = chance.random()
        if kind < 0.1:
            return value[:at] + value[at + 1 :]
        if kind < 0.2:
            return value + value[at : at + 1]
        return [*value[:at], spoiled(chance, value[at]), *value[at + 1 :]]
    return chance.choice(ODD)


def scratched(chance: random.Random, raw: bytes) -> bytes:
    """The bytes with a few of them changed, cut out or doubled."""
    data = bytearray(raw)
    for _ in range(chance.randrange(1, 4)):
        i = chance.randrange(len(data))
        data[i : i + chance.choice([0, 1, 1, 9])] = chance.choice(
            [b"", b"9", b"-", b"e99", b'"', b"\xff", b"{", chance.randbytes(2)]
        )
    return bytes(data)


def survives(read: Callable[[], Any]) -> int:
    """1 where it was refused with a sentence, 0 where it was read; anything else is raised."""
    said = ""
    try:
        read()
    except PartitaError as error:
        said = str(error)
    return int(bool(said.encode(errors="backslashreplace")))


def test_the_codec() -> None:
    chance, rng = random.Random(1), np.random.default_rng(1)
    tensors = {"a": rng.normal(size=(4, 5)).astype(np.float32), "b": np.zeros(6, np.float32), "c": np.arange(3)}
    refused = 0
    for k in range(MUTATIONS):
        coding, sent = encode(tensors, get_args(Codec)[k % 3])
        sent["a"] = np.frombuffer(scratched(chance, sent["a"].tobytes()), np.uint8) if k % 2 else sent["a"]
        damaged = spoiled(chance, coding) if k % 4 else coding
        refused += survives(lambda d=damaged, s=sent: decode(d, s, 1 << 20))  # type: ignore[misc]
    assert refused > MUTATIONS / 4


def test_messages() -> None:
    chance = random.Random(2)
    head = {"kind": "job", "job": 1, "attempt": 1, "model": "ab", "tasks": ["a", "b"], "coding": {"x": {"shape": [1]}}}
    raw = pack(head, {"x": np.arange(6, dtype=np.float32)})
    refused = sum(survives(lambda: unpack(scratched(chance, raw))) for _ in range(MUTATIONS))
    assert refused > MUTATIONS / 4
    for odd in ODD:
        survives(lambda o=odd: pack({"odd": o}, {str(o): np.zeros(1)}))  # type: ignore[misc]
    assert survives(lambda: pack({}, {"x": np.array(["text"])}))


def test_jobs_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chance, model = random.Random(3), net(side=4)
    (tmp_path / "a.onnx").write_bytes(model.data)
    read = OnnxModel.read
    monkeypatch.setattr(offload_jobs, "MOST_JOBS", 20)
    monkeypatch.setattr(OnnxModel, "read", lambda path: model if path == tmp_path / "a.onnx" else read(path))
    good = (
        b'[[job]]\nmodel = "a.onnx"\ncount = 3\nname = "camera"\nrelease_s = 0.5\ndeadline_s = 2.5\n'
        b'[[job]]\nmodel = "a.onnx"\nrelease_s = 1e3\ncount = 0x7f\n'
    )
    numbers = (
        b"1e400",
        b"-1",
        b"inf",
        b"nan",
        b"9" * 30,
        b"0x" + b"f" * 5000,
        b"2024-01-01",
        b"[]",
        b"true",
        b'"\\u0000"',
    )
    path, refused = tmp_path / "jobs.toml", 0
    for _ in range(MUTATIONS):
        text = scratched(chance, good)
        for old in (b"0.5", b"2.5", b"1e3", b"3\n", b"0x7f"):
            if chance.random() < 0.2:
                text = text.replace(old, chance.choice(numbers) + b"\n")
        path.write_bytes(text)
        refused += survives(lambda: read_jobs(path))
    assert refused > MUTATIONS / 4


@pytest.mark.parametrize("what", ["costs", "plan", "measurement"])
def test_json_files(what: str, tmp_path: Path) -> None:
    chance, path = random.Random(f"4 {what}"), tmp_path / "file.json"
    problem = OffloadProblem.from_json(timed("dag", 3))
    read: Callable[[], Any] = {
        "costs": lambda: plan_offload(OffloadProblem.read(path), "single-cut"),
        "plan": lambda: OffloadFile.read(path),
        "measurement": lambda: InferenceTimes.from_json(read_json(path, CostError)),
    }[what]
    if what == "costs":
        good = instance("tree", 5)
    elif what == "plan":
        plan_offload(problem, "single-cut").write(path)
        good = json.loads(path.read_text())
    else:
        row = {"seconds": 1.0, "low": 0.5, "high": 2.0}
        good = {"format": "partita-inference", "version": 1, "model": "m", "whole": row, "cpu_s": 1.0, "windows": 3}
        good |= {"side": "server", "points": 3, "tasks": [{"id": "a", **row}, {"id": "b", **row}]}
    refused = 0
    for _ in range(MUTATIONS // 3):
        path.write_text(json.dumps(spoiled(chance, good)))
        refused += survives(read)
    assert refused > MUTATIONS / 30


def test_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    chance, model = random.Random(5), net(side=4)
    cut = frozenset(model.tasks_topological[:2])
    row = {"seconds": 1.0, "low": 0.5, "high": 2.0}
    good: dict[str, Any] = {
        "Hello": {"protocol": PROTOCOL, "threads": 2, "message_bytes": 1 << 20},
        "Echo": {"at": 1.0, "cpu_s": 1.0},
        "Have": {"have": True},
        "Prepare": {"inputs": ["a"], "outputs": ["b"]},
        "Metrics": {"text": "x 1"},
        "Turns": {"cpu_s": [[1.0, 2.0]], "speed": {"probe_s": 1e-3, "share": 0.5, "error": 0.1, "behind_s": 1.0}},
        "Measure": {"format": "partita-inference", "version": 1, "model": "m", "whole": row, "cpu_s": 1.0, "windows": 3}
        | {"tasks": [{"id": "a", **row}]},
    }
    asks: dict[str, Callable[[Client], Any]] = {
        "Hello": Client.hello,
        "Echo": Client.cpu_s,
        "Have": lambda c: c.have(model),
        "Prepare": lambda c: c.prepare(model, cut),
        "Metrics": Client.metrics,
        "Turns": lambda c: c.turns([(model, cut)]).seconds(0),
        "Measure": lambda c: c.measure(model),
    }
    for method, ask in asks.items():
        refused = 0
        with Client("127.0.0.1:1") as client:
            for _ in range(MUTATIONS // 10):
                found = spoiled(chance, good[method])
                answers = {**good, method: found if isinstance(found, dict) else {}}
                channel = SimpleNamespace(
                    unary_unary=lambda path, a=answers: lambda *_, **__: pack(a[path.rpartition("/")[2]]),
                    close=lambda: None,
                )
                monkeypatch.setattr(client, "_channel", channel)
                refused += survives(lambda a=ask, c=client: a(c))  # type: ignore[misc]
        assert refused > MUTATIONS / 100, method
