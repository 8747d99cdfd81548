"""A server among clients that mean harm: it stays up, its memory bounded, and honest clients are served."""

from __future__ import annotations

import random
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import grpc
import numpy as np
import onnx
import pytest
from offload.hostile_models import endless, gluttonous, reads_a_file, talkative
from offload.run.small_nets import image, net, served

from partita.offload.capture.onnx_model import OnnxModel
from partita.offload.onnx_session import Session
from partita.offload.run.client import Client, Refused, Unreachable
from partita.offload.run.wire import SERVICE, pack, unpack

NET = net()
MEMORY_MB = 100
FLAGS = ["--limit-s", "1", "--stall-s", "1", "--queue", "16", "--clients", "6", "--message-mb", "4"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with served(tmp_path_factory.mktemp("server"), *FLAGS, "--memory-mb", str(MEMORY_MB)) as (where, process):
        yield where
        assert process.poll() is None


@pytest.fixture(autouse=True)
def unharmed(server: str) -> Iterator[None]:
    """Before and after every attack an honest client gets its answer; the server has not grown out of its limits."""
    before = honest(server)
    yield
    grown = honest(server) - before
    assert grown < 3.5 * MEMORY_MB * 1e6, f"{grown / 1e6:.0f} MB"  # models, sessions, and what comes and goes


def honest(where: str, patience_s: float = 20.0) -> float:
    """One job done within the patience, other clients or not; returns the server's memory."""
    until = time.monotonic() + patience_s
    while True:
        with Client(where) as client, suppress(grpc.RpcError, Refused, Unreachable):
            client.put(NET)
            heads = [unpack(raw) for raw in client.work(iter([job(NET)]))]
            if heads[-1][0]["kind"] == "answer":
                np.testing.assert_allclose(heads[-1][1]["y"], Session(NET.data, "net").run(image(0))["y"], atol=1e-5)
                rows = dict(line.rsplit(" ", 1) for line in client.metrics().splitlines())
                return float(rows["partita_offload_resident_bytes"])
        assert time.monotonic() < until, "an honest client was not served"
        time.sleep(0.1)


def job(model: OnnxModel, number: int = 0, feeds: dict[str, np.ndarray] | None = None, **more: object) -> bytes:
    """The whole model for the server."""
    head = {"kind": "job", "job": number, "attempt": 1, "model": model.hash, "tasks": [], "coding": {}}
    return pack({**head, **more}, image(0) if feeds is None else feeds)


def put(where: str, model: onnx.ModelProto) -> None:
    """As it is, not in canonical form, which would refuse it here already."""
    data = model.SerializeToString(deterministic=True)
    with Client(where) as client:
        call = client._channel.stream_unary(f"/{SERVICE}/Put")
        head = pack({"model": "0" * 64, "bytes": len(data), "name": "hostile"})
        client._called(lambda: call(iter([head, data]), timeout=20))


def number(where: str, name: str) -> float:
    with Client(where) as client:
        rows = dict(line.rsplit(" ", 1) for line in client.metrics().splitlines())
    return float(rows.get(f"partita_offload_{name}", 0))


# ---- models ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", reads_a_file(""))
def test_no_model_reads_the_servers_files(place: str, server: str, tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(np.array([42.0], np.float32).tobytes())
    for path in (str(tmp_path / "secret"), "/etc/hostname", "../secret", "*/_ORT_MEM_ADDR_/*"):
        with pytest.raises(Refused, match="in another file"):
            put(server, reads_a_file(path)[place])


def test_a_model_that_runs_for_ever_is_ended_and_not_tried_again(server: str) -> None:
    models = [OnnxModel.from_bytes(endless(f"n{k}").SerializeToString(), "endless") for k in range(3)]
    x = {"x": np.ones(1, np.float32)}
    replies: list[dict[str, object]] = []

    def attack(model: OnnxModel) -> None:
        with Client(server) as client:
            client.put(model)
            messages = iter([job(model, k, x) for k in range(5)])
            replies.extend(unpack(raw)[0] for raw in client.work(messages))

    threads = [threading.Thread(target=attack, args=(m,)) for m in models]
    for t in threads:
        t.start()
    honest(server, 10.0)  # while they run
    for t in threads:
        t.join(30)
    refused = [str(r["why"]) for r in replies if r["kind"] == "refused"]
    assert len(refused) == 15
    assert all("longer than 1 s" in why for why in refused)
    with Client(server) as client:
        with pytest.raises(Refused, match="longer than"):
            client.prepare(models[0], frozenset())
        with pytest.raises(Refused, match="longer than"):
            client.measure(models[1], 0.2)


@pytest.mark.parametrize("numbers", [10**8, 10**10, 2**62])
def test_a_model_that_eats_memory_is_refused(numbers: int, server: str) -> None:
    model = OnnxModel.from_bytes(gluttonous(numbers).SerializeToString(), "gluttonous")
    with Client(server) as client:
        client.put(model)
        heads = [unpack(raw)[0] for raw in client.work(iter([job(model, 0, {"x": np.ones(1, np.float32)})]))]
    assert heads[-1]["kind"] == "refused"


def test_models_are_announced_with_a_size_that_is_one(server: str) -> None:
    with Client(server) as client:
        call = client._channel.stream_unary(f"/{SERVICE}/Put")
        for size in (-(10**12), 0, -1, 10**30, float("inf"), float("nan"), "many", None, [1]):
            with pytest.raises(Refused):
                client._called(lambda s=size: call(iter([pack({"model": "0", "bytes": s, "name": ""})]), timeout=10))
        with pytest.raises(Refused):
            client._called(lambda: call(iter([]), timeout=10))


def test_many_models_and_cuts_stay_within_the_memory(server: str) -> None:
    with Client(server) as client:
        for k in range(12):
            model = net(f"m{k}", k, channels=256)  # 7.5 MB of weights, and as much for the session
            client.put(model)
            client.prepare(model, frozenset(model.tasks_topological[: k % 5]))
    assert number(server, "model_bytes") <= MEMORY_MB * 1e6


# ---- messages --------------------------------------------------------------------------------------------------------------


def test_mutated_messages(server: str) -> None:
    chance = random.Random(1)
    with Client(server) as client:
        client.put(NET)
        good = job(NET)
        heads = [unpack(raw)[0]["kind"] for raw in client.work(mutated(chance, good) for _ in range(300))]
        assert "refused" in heads
        for name in ("Hello", "Have", "Prepare", "Measure", "Turns", "Echo", "Metrics"):
            for head in ({}, {"model": 3, "tasks": 3}, {"model": NET.hash, "tasks": [[]], "budget_s": 10**400}):
                with suppress(Refused):
                    client._asked(name, head, dict)


def mutated(chance: random.Random, raw: bytes) -> bytes:
    """A byte changed, a piece cut out, the end cut off, or pieces exchanged."""
    data, i, j = bytearray(raw), chance.randrange(min(400, len(raw))), chance.randrange(len(raw))
    kind = chance.randrange(4)
    if kind == 0:
        data[i] = chance.randrange(256)
    elif kind == 1:
        del data[i : i + chance.randrange(1, 20)]
    elif kind == 2:
        del data[j:]
    else:
        data[i : i + 4] = raw[j : j + 4]
    return bytes(data)


def test_many_coded_tensors_are_not_unpacked_together(server: str) -> None:
    """Each is below the limit; all of them together are 3 GB."""
    import zlib

    packed = np.frombuffer(zlib.compress(bytes(3_000_000), 9), np.uint8)
    coding = {f"t{k}": {"codec": "lossless", "shape": [750_000]} for k in range(1000)}
    with Client(server) as client:
        client.put(NET)
        head = {"kind": "job", "job": 1, "attempt": 1, "model": NET.hash, "tasks": [], "coding": coding}
        (_, last) = (unpack(raw)[0] for raw in client.work(iter([pack(head, dict.fromkeys(coding, packed))])))
    assert "cannot be decoded" in last["why"]


# ---- connections -----------------------------------------------------------------------------------------------------------


def test_noise_half_greetings_and_giant_headers(server: str) -> None:
    host, _, port = server.rpartition(":")
    chance = random.Random(2)
    greeting = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9)
    with ExitStack() as stack:
        for k in range(60):
            end = stack.enter_context(socket.create_connection((host, int(port)), timeout=5))
            with suppress(OSError):
                end.sendall((chance.randbytes(2000), greeting[:10], greeting + chance.randbytes(500), b"")[k % 4])
        honest(server)
        with Client(server) as client:
            call = client._channel.unary_unary(f"/{SERVICE}/Hello")
            with pytest.raises(grpc.RpcError):
                call(pack({}), metadata=(("x", "y" * 1_000_000),), timeout=5)


def test_a_path_that_is_no_text(server: str) -> None:
    """It ends gRPC's own loop, before the token is looked at; the server begins another one on its port, and lets go of the clients
    that it had."""
    before, gate = number(server, "restarts_total"), threading.Event()

    def silent() -> Iterator[bytes]:
        gate.wait(30)
        yield from ()

    for k in range(3):
        with Client(server) as streaming, Client(server) as client:
            call = streaming.work(silent())
            with pytest.raises(grpc.RpcError):
                client._channel.unary_unary(b"/\xff")(b"", timeout=5)
            honest(server)
            call.cancel()
        assert number(server, "restarts_total") == before + k + 1
    assert number(server, "clients") == 0
    gate.set()


def test_clients_that_do_not_read_are_given_up(server: str) -> None:
    """Each asks for answers of 200 kB with 200 bytes each, again and again, and takes none.

    One whose jobs find the queue full is refused them, with a few bytes each; it goes on asking until there is room.
    """
    model = OnnxModel.from_bytes(talkative(50_000).SerializeToString(), "talkative")
    before = number(server, "clients_stalled_total")
    enough = threading.Event()

    def greedy() -> Iterator[bytes]:
        for n in range(100_000):
            yield job(model, n, {"x": np.ones(1, np.float32)})
            if n >= 16 and enough.wait(0.01):
                return

    with ExitStack() as stack:
        calls = []  # held, and never read
        for _ in range(3):
            client = stack.enter_context(Client(server))
            client.put(model)
            calls.append(client.work(greedy()))
        stack.callback(enough.set)
        honest(server)
        until = time.monotonic() + 40
        while number(server, "clients_stalled_total") - before < 3 and time.monotonic() < until:
            time.sleep(0.2)
        assert number(server, "clients_stalled_total") - before == 3
        assert number(server, "jobs_in") == 0


def test_idle_streams_make_room(server: str) -> None:
    """Six streams that say nothing fill the server; after a while the next client takes the place of one."""
    gate = threading.Event()

    def silent() -> Iterator[bytes]:
        gate.wait(30)
        yield from ()

    with ExitStack() as stack:
        calls = [stack.enter_context(Client(server)).work(silent()) for _ in range(6)]
        until = time.monotonic() + 10
        while number(server, "clients") < 6 and time.monotonic() < until:
            time.sleep(0.05)
        assert number(server, "clients") == len(calls)
        honest(server)
        gate.set()


def test_calls_without_end_do_not_lock_others_out(server: str) -> None:
    """Uploads that never go on."""
    gate = threading.Event()

    def stuck() -> Iterator[bytes]:
        yield pack({"model": "0" * 64, "bytes": 1000, "name": "stuck"})
        gate.wait(30)

    def call(client: Client) -> None:
        with suppress(grpc.RpcError):
            client._channel.stream_unary(f"/{SERVICE}/Put")(stuck(), timeout=20)

    with ExitStack() as stack:
        clients = [stack.enter_context(Client(server)) for _ in range(50)]
        threads = [threading.Thread(target=call, args=(c,)) for c in clients]
        for t in threads:
            t.start()
        honest(server)
        gate.set()
        for t in threads:
            t.join(20)
