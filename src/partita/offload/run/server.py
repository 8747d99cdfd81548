"""The gRPC service: takes the server's part of jobs, answers them in the order in which they came.

One event loop talks to all clients (a client costs a task, not a thread); `threads` compute threads run the sessions,
each on one core. A client sends its jobs on one stream: their bytes travel in order, the next right behind the last,
as the model of the uplink has it. For each job the stream carries back first "received", with the server's clock, then
"answer" or "refused".
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import grpc

from partita import __version__
from partita.errors import BadInput, PartitaError
from partita.offload.capture.onnx_model import OnnxModel
from partita.offload.measure.inference import measure_model
from partita.offload.run.codec import decode
from partita.offload.run.credentials import Lock
from partita.offload.run.session import first_line
from partita.offload.run.store import NoRoom, Store, Unknown, resident_bytes
from partita.offload.run.tally import Tally
from partita.offload.run.wire import CHUNK_BYTES, HEALTH, MOST_MESSAGE_BYTES, PROTOCOL, SERVICE, WireError, pack, unpack

_MOST_MEASURE_S = 20.0  #: of one model
_MOST_LINK_BYTES = 64 << 20  #: of one measurement of the link
_SERVING, _NOT_SERVING = b"\x08\x01", b"\x08\x02"  #: grpc.health.v1.HealthCheckResponse
_Context = Any


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """How a server works; everything that a client can make it hold has a limit."""

    host: str = "127.0.0.1"
    port: int = 0  #: 0: any free one
    threads: int = 1  #: compute threads, one core each
    memory_bytes: float = 2e9  #: for models and their sessions
    message_bytes: int = MOST_MESSAGE_BYTES
    queue_jobs: int = 256  #: waiting or computing, of all clients together
    queue_bytes: float = 512e6
    clients: int = 64  #: streams at once
    grace_s: float = 10.0  #: after SIGTERM: for the jobs that are in
    lock: Lock = field(default_factory=Lock)


@dataclass(slots=True, eq=False)
class _Client:
    """One stream: its replies on their way, its jobs not yet answered."""

    replies: asyncio.Queue[tuple[dict[str, Any], dict[str, Any]] | None]
    open: set[asyncio.Task[None]]
    gone: bool = False


class Server:
    """A server; `start` it in a running event loop, `drain` it to stop."""

    def __init__(self, settings: ServerSettings) -> None:
        self.settings = settings
        self.store = Store(settings.memory_bytes)
        self.tally = Tally()
        self.jobs = 0
        self.job_bytes = 0.0
        self.streams = 0
        self._measured: dict[str, dict[str, Any]] = {}
        self._measuring = asyncio.Lock()
        self._compute = ThreadPoolExecutor(settings.threads, thread_name_prefix="partita-compute")
        self._files = ThreadPoolExecutor(1, thread_name_prefix="partita-models")
        self._draining = asyncio.Event()
        self._grpc = grpc.aio.server(options=_options(settings))
        self._grpc.add_generic_rpc_handlers((self._handlers(), self._health()))

    async def start(self) -> int:
        """Listen; returns the port. Raises BadInput where the address cannot be had."""
        s, locked = self.settings, self.settings.lock.credentials()
        where = f"{s.host}:{s.port}"
        try:
            port = self._grpc.add_insecure_port(where) if locked is None else self._grpc.add_secure_port(where, locked)
        except RuntimeError as error:
            raise BadInput(
                f"{where} cannot be listened on: {first_line(error)}", hint="choose another --port"
            ) from error
        await self._grpc.start()
        return int(port)

    async def drain(self) -> None:
        """Take no more jobs, answer those that are in for at most `grace_s`, stop."""
        self._draining.set()
        deadline = time.monotonic() + self.settings.grace_s
        while self.streams and time.monotonic() < deadline:
            await asyncio.sleep(0.02)
        await self._grpc.stop(max(0.0, min(1.0, deadline - time.monotonic())))
        self._compute.shutdown(wait=False, cancel_futures=True)
        self._files.shutdown(wait=False, cancel_futures=True)

    def metrics(self) -> str:
        """Prometheus text."""
        return self.tally.text(
            {
                "jobs_in": self.jobs,
                "clients": self.streams,
                "models": self.store.models(),
                "model_bytes": self.store.used_bytes,
                "evictions_total": self.store.evictions,
                "resident_bytes": resident_bytes(),
            }
        )

    # ---- methods ------------------------------------------------------------------------------------------------------

    def _handlers(self) -> grpc.GenericRpcHandler:
        unary = {"Hello": self._hello, "Have": self._have, "Prepare": self._prepare, "Measure": self._measure}
        unary |= {"Echo": self._echo, "Metrics": self._tell_metrics}
        handlers: dict[str, Any] = {
            name: grpc.unary_unary_rpc_method_handler(self._guarded(method)) for name, method in unary.items()
        }
        handlers["Put"] = grpc.stream_unary_rpc_method_handler(self._put)
        handlers["Sink"] = grpc.stream_unary_rpc_method_handler(self._sink)
        handlers["Source"] = grpc.unary_stream_rpc_method_handler(self._source)
        handlers["Work"] = grpc.stream_stream_rpc_method_handler(self._work)
        return grpc.method_handlers_generic_handler(SERVICE, handlers)

    def _health(self) -> grpc.GenericRpcHandler:
        async def check(_: bytes, context: _Context) -> bytes:
            return _NOT_SERVING if self._draining.is_set() else _SERVING

        return grpc.method_handlers_generic_handler(HEALTH, {"Check": grpc.unary_unary_rpc_method_handler(check)})

    async def _admit(self, context: _Context) -> None:
        said = dict(context.invocation_metadata() or ()).get("authorization", "")
        if not self.settings.lock.opens(str(said).removeprefix("Bearer ")):
            self.tally.add("refused_tokens_total")
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "the token is not this server's")

    def _guarded(
        self, method: Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]
    ) -> Callable[[bytes, _Context], Awaitable[bytes]]:
        """A method on heads, with the token checked first and errors as statuses with their sentence."""

        async def call(raw: bytes, context: _Context) -> bytes:
            await self._admit(context)
            try:
                return pack(await method(unpack(raw)[0]))
            except (KeyError, TypeError, ValueError) as error:
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"{type(error).__name__}: {first_line(error)}")
            except PartitaError as error:
                await context.abort(_status(error), str(error))
            raise AssertionError("abort returns never")

        return call

    async def _hello(self, head: dict[str, Any]) -> dict[str, Any]:
        s = self.settings
        return {
            "protocol": PROTOCOL,
            "partita": __version__,
            "threads": s.threads,
            "memory_bytes": s.memory_bytes,
            "message_bytes": s.message_bytes,
            "queue_jobs": s.queue_jobs,
            "draining": self._draining.is_set(),
        }

    async def _have(self, head: dict[str, Any]) -> dict[str, Any]:
        return {"have": self.store.holds(str(head["model"]))}

    async def _prepare(self, head: dict[str, Any]) -> dict[str, Any]:
        model, cut = str(head["model"]), self._named(head)
        session = await self._in_compute(lambda: self.store.session(model, cut))
        return {"cut": cut, "inputs": list(session.inputs), "outputs": list(session.outputs)}

    def _named(self, head: dict[str, Any]) -> str:
        """The id of the cut that a head names by its tasks, or has named before."""
        if "tasks" in head:
            return self.store.name_cut(str(head["model"]), frozenset(map(str, head["tasks"])))
        return str(head["cut"])

    async def _measure(self, head: dict[str, Any]) -> dict[str, Any]:
        """The server measures itself, task by task, one model at a time; kept by the model's hash."""
        model, budget_s = str(head["model"]), min(_MOST_MEASURE_S, float(head["budget_s"]))
        if model not in self._measured:
            held = self.store.model(model)
            async with self._measuring:
                found = await self._in_compute(lambda: measure_model(held, budget_s, "server"))
            self._measured[model] = found.to_json()
        return self._measured[model]

    async def _echo(self, head: dict[str, Any]) -> dict[str, Any]:
        return {"at": time.perf_counter(), "cpu_s": time.process_time()}

    async def _tell_metrics(self, head: dict[str, Any]) -> dict[str, Any]:
        return {"text": self.metrics()}

    async def _in_compute(self, work: Callable[[], Any]) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._compute, work)

    # ---- models -------------------------------------------------------------------------------------------------------

    async def _put(self, _: Any, context: _Context) -> bytes:
        """A head with hash, size and name, then the model's bytes in chunks; its hash is checked."""
        await self._admit(context)
        try:
            head, _tensors = unpack(await context.read())
            wanted, size, name = str(head["model"]), int(head["bytes"]), str(head["name"])
            self.store.expect(size)
        except (WireError, KeyError, TypeError, ValueError) as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, first_line(error))
        except NoRoom as error:
            await context.abort(_status(error), str(error))
        try:
            data = await self._chunks(context, size)
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(self._files, lambda: self._keep(data, name, wanted))
        except PartitaError as error:
            await context.abort(_status(error), str(error))
        finally:
            self.store.arrived(size)
        self.tally.add("models_put_total")
        return pack({"have": True})

    async def _chunks(self, context: _Context, size: int) -> bytes:
        data = bytearray()
        while (chunk := await context.read()) is not grpc.aio.EOF:
            if len(data) + len(chunk) > size:
                raise WireError(f"a model is larger than the {size} bytes that were announced")
            data += chunk
            self.tally.add("bytes_in_total", len(chunk))
        if len(data) != size:
            raise WireError(f"{len(data)} bytes of a model came, {size} were announced", hint="put it again")
        return bytes(data)

    def _keep(self, data: bytes, name: str, wanted: str) -> None:
        model = OnnxModel.from_bytes(data, name)
        if model.hash != wanted:
            raise WireError(f"model {name} arrived with hash {model.hash[:12]}, not {wanted[:12]}", hint="put it again")
        self.store.put(model, len(data))

    # ---- the link -----------------------------------------------------------------------------------------------------

    async def _sink(self, _: Any, context: _Context) -> bytes:
        """Takes chunks; tells when each was there."""
        await self._admit(context)
        stamps: list[tuple[int, float]] = []
        total = 0
        while (chunk := await context.read()) is not grpc.aio.EOF:
            stamps.append((len(chunk), time.perf_counter()))
            total += len(chunk)
            if total > _MOST_LINK_BYTES:
                await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"more than {_MOST_LINK_BYTES} bytes of echo")
        return pack({"stamps": stamps})

    async def _source(self, raw: bytes, context: _Context) -> None:
        """Sends zeros for at most `seconds`."""
        await self._admit(context)
        seconds = min(10.0, float(unpack(raw)[0]["seconds"]))
        chunk, until = bytes(CHUNK_BYTES), time.perf_counter() + seconds
        for _ in range(_MOST_LINK_BYTES // CHUNK_BYTES):
            await context.write(chunk)
            if time.perf_counter() > until:
                return

    # ---- jobs ---------------------------------------------------------------------------------------------------------

    async def _work(self, _: Any, context: _Context) -> None:
        await self._admit(context)
        if self.streams >= self.settings.clients or self._draining.is_set():
            why = "it stops" if self._draining.is_set() else f"{self.streams} clients are connected, its limit"
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"the server takes no more clients: {why}")
        client = _Client(asyncio.Queue(), set())
        self.streams += 1
        writer = asyncio.create_task(self._write(client, context))
        reader = asyncio.create_task(self._read(client, context))
        draining = asyncio.create_task(self._draining.wait())
        try:
            await asyncio.wait({reader, draining, writer}, return_when=asyncio.FIRST_COMPLETED)
            while client.open and not writer.done():
                await asyncio.wait({*client.open, writer}, return_when=asyncio.FIRST_COMPLETED)
            client.replies.put_nowait(None)
            await writer
        finally:
            client.gone = True
            self.streams -= 1
            for task in (reader, writer, draining, *client.open):
                task.cancel()
            await asyncio.gather(reader, writer, draining, *client.open, return_exceptions=True)

    async def _read(self, client: _Client, context: _Context) -> None:
        """Take jobs until the client has no more."""
        while (raw := await context.read()) is not grpc.aio.EOF:
            at = time.perf_counter()
            self.tally.add("bytes_in_total", len(raw))
            if self._draining.is_set():
                return
            task = asyncio.create_task(self._answer(client, raw, at))
            client.open.add(task)
            task.add_done_callback(client.open.discard)
            await asyncio.sleep(0)  # the job takes its place in the queue before the next is read

    async def _write(self, client: _Client, context: _Context) -> None:
        while (reply := await client.replies.get()) is not None:
            head, tensors = reply
            raw = pack({**head, "sent": time.perf_counter()}, tensors)
            self.tally.add("bytes_out_total", len(raw))
            await context.write(raw)

    async def _answer(self, client: _Client, raw: bytes, at: float) -> None:
        """One job, from its bytes to its reply."""
        try:
            head, tensors = unpack(raw)
            job = {"job": int(head["job"]), "attempt": int(head["attempt"]), "received": at}
        except (WireError, KeyError, TypeError, ValueError) as error:
            client.replies.put_nowait(({"kind": "refused", "job": -1, "code": "damaged", "why": first_line(error)}, {}))
            return
        client.replies.put_nowait(({"kind": "received", **job}, {}))
        if self.jobs >= self.settings.queue_jobs or self.job_bytes + len(raw) > self.settings.queue_bytes:
            self.tally.add("jobs_refused_total")
            why = f"{self.jobs} jobs with {self.job_bytes / 1e6:.1f} MB wait at the server, its limit"
            client.replies.put_nowait(({"kind": "refused", "code": "busy", "why": why, **job}, {}))
            return
        self.jobs += 1
        self.job_bytes += len(raw)
        try:
            times, answers = await self._in_compute(lambda: self._infer(client, head, tensors))
            client.replies.put_nowait(({"kind": "answer", **job, **times}, answers))
            self.tally.served(time.perf_counter() - at)
        except Exception as error:  # whatever a model or a tensor does: the client gets a sentence, the server goes on
            self.tally.add("jobs_failed_total")
            code = "unknown" if isinstance(error, Unknown) else "memory" if isinstance(error, NoRoom) else "failed"
            client.replies.put_nowait(({"kind": "refused", "code": code, "why": first_line(error), **job}, {}))
        finally:
            self.jobs -= 1
            self.job_bytes -= len(raw)

    def _infer(self, client: _Client, head: dict[str, Any], tensors: dict[str, Any]) -> tuple[dict[str, float], Any]:
        """On a compute thread."""
        if client.gone:
            raise Unknown("the client is gone")
        start = time.perf_counter()
        model, cut = str(head["model"]), self._named(head)
        whole = decode(head.get("coding", {}), tensors, self.settings.message_bytes)
        answers = self.store.session(model, cut).run(whole)
        return {"start": start, "end": time.perf_counter()}, answers


def _status(error: PartitaError) -> grpc.StatusCode:
    if isinstance(error, NoRoom):
        return grpc.StatusCode.RESOURCE_EXHAUSTED
    return grpc.StatusCode.NOT_FOUND if isinstance(error, Unknown) else grpc.StatusCode.INVALID_ARGUMENT


def _options(settings: ServerSettings) -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", settings.message_bytes),
        ("grpc.max_send_message_length", settings.message_bytes),
        ("grpc.so_reuseport", 0),  # a second server on the port is an error, not a silent partner
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 1000),
        ("grpc.http2.max_ping_strikes", 0),
    ]


def serve(settings: ServerSettings, ready: Callable[[Server, int], None]) -> Server:
    """Serve until SIGTERM or SIGINT, then drain. `ready` is told the server and its port."""

    async def main() -> Server:
        server = Server(settings)
        port = await server.start()
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        ready(server, port)
        await stop.wait()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)  # a second one ends the process at once
        await server.drain()
        return server

    return asyncio.run(main())
