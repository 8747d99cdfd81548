"""The service as a client sees it, an unfriendly one too."""

from __future__ import annotations

import asyncio
import gc
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import numpy as np
import pytest
from offload.run.small_nets import image, net, served

from partita.offload.onnx_session import Session, TimeLimit, TookTooLong
from partita.offload.run import client as clients
from partita.offload.run.client import Client, NoMemory, Refused, Unreachable
from partita.offload.run.codec import encode
from partita.offload.run.credentials import ClientCredentials
from partita.offload.run.job_streams import Compute
from partita.offload.run.model_store import Busy, ModelStore, NoRoom, Unknown, cut_id
from partita.offload.run.wire import HEALTH, SERVICE, pack, unpack

NET = net()
HALF = frozenset(NET.tasks_topological[:3])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with served(tmp_path_factory.mktemp("server"), "--message-mb", "2") as (where, _):
        yield where


def raw_job(number: int = 7, **more: object) -> bytes:
    """A job as the device sends it."""
    session = Session(NET.halves(HALF).device or b"", "half")
    coding, tensors = encode(session.run(image(0)), "raw")
    head = {"kind": "job", "job": number, "attempt": 1, "model": NET.hash, "tasks": sorted(HALF), "coding": coding}
    return pack({**head, **more}, tensors)


def replies(where: str, messages: list[bytes]) -> list[tuple[dict[str, object], dict[str, np.ndarray]]]:
    with Client(where) as client:
        return [unpack(raw) for raw in client.work(iter(messages))]


# ---- what it says ----------------------------------------------------------------------------------------------------------


def test_hello_tells_limits_and_a_clock(server: str) -> None:
    with Client(server) as client:
        welcome = client.hello()
    assert welcome.threads == 1
    assert welcome.message_bytes == 2 << 20
    assert abs(welcome.clock_ahead_s) <= welcome.round_trip_s / 2 + 1e-4  # one machine: one clock
    assert 0 < welcome.round_trip_s < 0.1


def test_health_as_grpc_defines_it(server: str) -> None:
    with grpc.insecure_channel(server) as channel:
        assert channel.unary_unary(f"/{HEALTH}/Check")(b"", timeout=5) == b"\x08\x01"


def test_a_model_goes_up_once(server: str) -> None:
    other = net("other", 9)
    with Client(server) as client:
        assert not client.have(other)
        assert client.put(other)
        assert client.have(other)
        assert not client.put(other)
        inputs, outputs = client.prepare(other, HALF)
    half = other.halves(HALF)
    assert set(inputs) == set(half.crossing)
    assert outputs == ("y",)


def test_clients_that_come_at_once_wait_for_the_one_thread(server: str) -> None:
    nets, failed = [net(f"one of many {k}", 12) for k in range(6)], list[Exception]()

    def prepare(k: int) -> None:
        try:
            with Client(server) as client:
                client.put(nets[k])
                client.prepare(nets[k], frozenset(nets[k].tasks_topological[:3]))
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=prepare, args=(k,)) for k in range(len(nets))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert failed == []


def test_the_link_is_measured(server: str) -> None:
    with Client(server) as client:
        link = client.link(0.2)
    assert link.up_bytes_per_s > 1e6
    assert link.down_bytes_per_s > 1e6
    assert 0 < link.round_trip_s < 0.1


def test_metrics_count_what_happened(tmp_path: Path) -> None:
    with served(tmp_path) as (where, process), Client(where) as client:
        client.put(NET)
        list(client.work(iter([raw_job(k) for k in range(3)])))
        text = client.metrics()
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=10)
    rows = dict(line.rsplit(" ", 1) for line in text.splitlines())
    assert rows["partita_offload_jobs_served_total"] == "3"
    assert rows["partita_offload_models"] == "1"
    assert rows["partita_offload_jobs_in"] == "0"
    p50, p99 = (float(rows[f'partita_offload_service_seconds{{quantile="{q}"}}']) for q in ("0.5", "0.99"))
    assert 0 < p50 <= p99
    assert float(rows["partita_offload_bytes_in_total"]) > 3 * len(raw_job())


def test_metrics_over_http_on_loopback(tmp_path: Path) -> None:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with (
        served(tmp_path, "--metrics-port", str(port)),
        urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as page,
    ):
        assert b"partita_offload_clients 0" in page.read()


# ---- jobs ------------------------------------------------------------------------------------------------------------------


def test_a_job_is_received_and_then_answered(server: str) -> None:
    with Client(server) as client:
        client.put(NET)
    (first, _), (second, tensors) = replies(server, [raw_job()])
    assert (first["kind"], second["kind"]) == ("received", "answer")
    assert first["job"] == second["job"] == 7
    assert float(str(second["received"])) <= float(str(second["start"])) <= float(str(second["end"]))
    np.testing.assert_allclose(tensors["y"], Session(NET.data, "net").run(image(0))["y"], atol=1e-5)


def test_jobs_of_one_client_are_answered_in_order(server: str) -> None:
    with Client(server) as client:
        client.put(NET)
    found = [head["job"] for head, _ in replies(server, [raw_job(k) for k in range(20)]) if head["kind"] == "answer"]
    assert found == list(range(20))


@pytest.mark.parametrize(
    ("change", "code", "why"),
    [
        ({"model": "0" * 64}, "unknown", "does not hold model"),
        ({"tasks": ["nonsense"]}, "failed", "unknown task"),
        ({"tasks": list(NET.tasks_topological)}, "unknown", "nothing for the server"),
        ({"tasks": []}, "failed", "'x'"),
        ({"coding": {"a": {"codec": "zip", "shape": [1]}}}, "failed", "cannot be decoded"),
        ({"coding": {"nowhere": {}}}, "failed", "cannot be decoded"),
    ],
)
def test_a_bad_job_is_refused_and_the_next_one_answered(
    server: str, change: dict[str, object], code: str, why: str
) -> None:
    with Client(server) as client:
        client.put(NET)
    heads = [head for head, _ in replies(server, [raw_job(1, **change), raw_job(2)])]
    (refused,) = [h for h in heads if h["kind"] == "refused"]
    assert refused["code"] == code
    assert why in str(refused["why"])
    assert [h["job"] for h in heads if h["kind"] == "answer"] == [2]


def test_noise_on_the_stream_is_refused_and_the_next_job_answered(server: str) -> None:
    with Client(server) as client:
        client.put(NET)
    heads = [head for head, _ in replies(server, [b"noise" * 100, raw_job(2)])]
    assert [h["kind"] for h in heads] == ["refused", "received", "answer"]


def test_a_message_above_the_limit_ends_only_that_stream(server: str) -> None:
    with Client(server) as client, pytest.raises(grpc.RpcError) as caught:
        list(client.work(iter([bytes(3 << 20)])))
    assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "arger than max" in str(caught.value.details())
    with Client(server) as client:
        client.hello()


# ---- models ----------------------------------------------------------------------------------------------------------------


def put_raw(where: str, head: dict[str, object], *chunks: bytes) -> None:
    with Client(where) as client:
        call = client._channel.stream_unary(f"/{SERVICE}/Put")
        client._called(lambda: call(iter([pack(head), *chunks]), timeout=10))


def test_a_model_must_be_what_it_says(server: str) -> None:
    data = net("third", 5).data
    said = {"model": "f" * 64, "bytes": len(data), "name": "third"}
    with pytest.raises(Refused, match="arrived with hash"):
        put_raw(server, said, data)
    with pytest.raises(Refused, match="larger than"):
        put_raw(server, {**said, "bytes": 10}, data)
    with pytest.raises(Refused, match="were announced"):
        put_raw(server, said, data[:-1])
    with pytest.raises(Refused, match="third"):
        put_raw(server, {**said, "bytes": 100}, b"\xff" * 100)
    with pytest.raises(NoMemory, match="does not fit"):
        put_raw(server, {**said, "bytes": 10**13})
    with pytest.raises(Refused):
        put_raw(server, {"bytes": "many"})


def test_the_store_forgets_the_least_recently_used() -> None:
    one, two, three = (net(f"n{k}", k) for k in range(3))
    store = ModelStore(2e6)
    for m in (one, two):
        store.put(m, 8e5)
    store.model(one.hash)
    store.put(three, 8e5)
    assert [store.holds(m.hash) for m in (one, two, three)] == [True, False, True]
    assert store.used_bytes == 1.6e6
    assert store.evictions == 1
    with pytest.raises(Unknown, match="does not hold"):
        store.session(two.hash, "0")
    with pytest.raises(Unknown, match="does not know the cut"):
        store.session(one.hash, "0")
    with pytest.raises(NoRoom, match=r"3\.0 MB"):
        store.put(two, 3e6)
    assert store.holds(one.hash)


def test_the_store_builds_a_session_once_and_from_many_threads() -> None:
    store = ModelStore(1e9)
    store.put(NET, len(NET.data))
    cut = store.name_cut(NET.hash, HALF)
    assert cut == cut_id(sorted(HALF, reverse=True))
    found: list[Session] = []
    threads = [threading.Thread(target=lambda: found.append(store.session(NET.hash, cut))) for _ in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(found) == 6
    assert len(set(map(id, found))) == 1


def test_a_half_that_waits_for_others_to_be_built_is_not_called_slow() -> None:
    """A server of several threads builds one session at a time."""
    store = ModelStore(1e9)
    store.put(NET, len(NET.data))
    cut = store.name_cut(NET.hash, HALF)
    limit = TimeLimit(0.2)
    with store._building, pytest.raises(Busy, match="of others"):
        store.session(NET.hash, cut, limit)
    limit.end()  # its time is over meanwhile, through no fault of its own
    assert store.session(NET.hash, cut, limit) is store.session(NET.hash, cut)


def test_a_half_that_nobody_waits_for_any_more_is_not_built() -> None:
    store = ModelStore(1e9)
    store.put(NET, len(NET.data))
    cut, limit = store.name_cut(NET.hash, HALF), TimeLimit(30.0)
    with ThreadPoolExecutor(1) as thread:
        with store._building:
            building = thread.submit(store.session, NET.hash, cut, limit)
            time.sleep(0.1)
            limit.abandon()
        with pytest.raises(TookTooLong):
            building.result(10.0)
    assert store._find(NET.hash, cut) is None


def test_a_thread_that_is_still_at_work_for_one_who_left_takes_no_time_of_the_next() -> None:
    began = threading.Event()

    def deaf(limit: TimeLimit) -> None:
        began.set()
        time.sleep(1.0)
        raise limit.error()

    def short(limit: TimeLimit) -> bool:
        return limit.over

    async def both() -> None:
        compute, complaints = Compute(1, limit_s=0.4), []
        asyncio.get_running_loop().set_exception_handler(lambda _, said: complaints.append(said))
        gone = asyncio.create_task(compute.run("gone", deaf))
        await asyncio.to_thread(began.wait)
        gone.cancel()
        assert not await compute.run("next", short)
        with pytest.raises(asyncio.CancelledError):
            await gone
        compute.close()
        del gone
        gc.collect()
        assert complaints == []

    asyncio.run(both())


def test_models_on_their_way_up_are_counted() -> None:
    store = ModelStore(1e6)
    store.expect(6e5)
    with pytest.raises(NoRoom, match="coming up now"):
        store.expect(6e5)
    store.arrived(6e5)
    store.expect(6e5)


# ---- credentials --------------------------------------------------------------------------------------------------------------


def test_tls_with_a_token(tmp_path: Path) -> None:
    """As beyond loopback: certificate and token are made, and nobody gets in without them."""
    keys = tmp_path / "keys"
    with served(tmp_path, "--host", "0.0.0.0", "--keys", str(keys)) as (where, _):
        ca, token = (keys / "cert.pem").read_bytes(), (keys / "token").read_text().strip()
        with Client(where, ClientCredentials(token, ca)) as client:
            client.hello()
            client.put(NET)
            assert len(list(client.work(iter([raw_job()])))) == 2
        with Client(where, ClientCredentials("wrong", ca)) as client:
            for call in (client.hello, lambda: client.put(NET), client.metrics, lambda: client.link(0.1)):
                with pytest.raises(Refused, match="token is not this server's"):
                    call()
            with pytest.raises(grpc.RpcError, match="token"):
                list(client.work(iter([raw_job()])))
        with Client(where, ClientCredentials(token)) as client, pytest.raises(Unreachable):
            client.hello(2.0)  # plain text to a TLS port
        other = tmp_path / "other"
        with served(tmp_path, "--host", "0.0.0.0", "--keys", str(other)):
            stranger = ClientCredentials(token, (other / "cert.pem").read_bytes())
        with Client(where, stranger) as client, pytest.raises(Unreachable):
            client.hello(2.0)  # not the certificate that was pinned


def test_another_protocol_is_a_sentence(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "PROTOCOL", 99)
    with Client(server) as client, pytest.raises(Refused, match="speaks protocol 99"):
        client.hello()


def test_another_service_is_a_sentence() -> None:
    from concurrent.futures import ThreadPoolExecutor

    stranger = grpc.server(ThreadPoolExecutor(1))
    port = stranger.add_insecure_port("127.0.0.1:0")
    stranger.start()
    try:
        with Client(f"127.0.0.1:{port}") as client, pytest.raises(Refused, match="no Partita server"):
            client.hello()
    finally:
        stranger.stop(0).wait()


# ---- coming and going ------------------------------------------------------------------------------------------------------


def test_more_clients_than_it_takes(tmp_path: Path) -> None:
    gate = threading.Event()

    def waiting() -> Iterator[bytes]:
        gate.wait(20)
        yield from ()

    with served(tmp_path, "--clients", "1") as (where, _), Client(where) as one, Client(where) as two:
        first = one.work(waiting())
        until = time.monotonic() + 10
        while "partita_offload_clients 1" not in two.metrics() and time.monotonic() < until:
            time.sleep(0.02)
        with pytest.raises(grpc.RpcError, match="takes no more clients"):
            list(two.work(iter([])))
        gate.set()
        assert list(first) == []


def test_a_client_that_vanishes_leaves_nothing_behind(tmp_path: Path) -> None:
    with served(tmp_path) as (where, _), Client(where) as watcher:
        watcher.put(NET)
        with Client(where) as client:
            call = client.work(iter([raw_job(k) for k in range(50)]))
            next(iter(call))
        until = time.monotonic() + 10
        while time.monotonic() < until:
            text = watcher.metrics()
            if "jobs_in 0" in text and "clients 0" in text:
                break
            time.sleep(0.05)
        assert "partita_offload_jobs_in 0" in text
        assert "partita_offload_clients 0" in text
        assert len(list(watcher.work(iter([raw_job()])))) == 2


def test_two_servers_on_one_port_are_a_sentence(tmp_path: Path, server: str) -> None:
    words = [sys.executable, "-m", "partita", "offload", "serve", "--port", server.rpartition(":")[2]]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "cannot be listened on" in done.stderr
    assert "hint: choose another --port" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_stops_in_good_order_and_soon(tmp_path: Path, number: signal.Signals) -> None:
    with served(tmp_path) as (where, process), Client(where) as client:
        client.hello()
        began = time.monotonic()
        process.send_signal(number)
        _out, err = process.communicate(timeout=20)
        assert process.returncode == 0
        assert time.monotonic() - began < 5
        assert "Traceback" not in err
