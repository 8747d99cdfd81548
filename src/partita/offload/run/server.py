"""The gRPC service: takes the server's part of jobs, answers them in the order in which they came.

One event loop talks to all clients (a client costs some tasks, no thread); `threads` compute threads run the sessions,
each on one core. A client sends its jobs on one stream: their bytes travel in order, the next right behind the last,
as the model of the uplink has it. For each job the stream carries back first "received", with the server's clock, then
"answer" or "refused".
"""

from __future__ import annotations

import asyncio
import signal
import time
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from typing import Any

import grpc

from partita import __version__
from partita.errors import BadInput, PartitaError
from partita.offload.capture.onnx_model import OnnxModel
from partita.offload.measure.in_turn import Turns, measure_in_turn
from partita.offload.measure.inference import InferenceTimes, measure_model
from partita.offload.onnx_session import Session, TimeLimit, TookTooLong, limit_memory
from partita.offload.run.counters import Counters
from partita.offload.run.job_streams import Compute, JobStreams
from partita.offload.run.model_store import ModelStore, NoRoom, Unknown, resident_bytes
from partita.offload.run.settings import ServerSettings
from partita.offload.run.wire import HEALTH, PROTOCOL, SERVICE, WireError, first_line, pack, unpack, zeros

_MOST_MEASURE_S = 20.0  #: of one model
_MOST_IN_TURN = 256  #: halves of models
_MOST_MEASURED = 256  #: measurements remembered
_CALLS = 128  #: calls at once beside the streams of jobs
_MOST_NAME, _MOST_SAID = 200, 1000  #: characters
_MOST_LINK_BYTES = 64 << 20  #: of one measurement of the link
_MOST_STAMPS = 4096
_RESTARTS, _RESTART_S = 40, 0.1  #: of the listening part: attempts, and the pause before each
_CALL_S = 600.0  #: as long as a client waits at most
_SERVING, _NOT_SERVING = b"\x08\x01", b"\x08\x02"  #: grpc.health.v1.HealthCheckResponse
_Context = Any


class Server:
    """A server; `start` it in a running event loop, `drain` it to stop."""

    def __init__(self, settings: ServerSettings) -> None:
        self.settings = settings
        self.store = ModelStore(settings.memory_bytes)
        self.counters = Counters()
        self._measured: dict[str, dict[str, Any]] = {}
        self._measuring = asyncio.Lock()
        self._compute = Compute(settings.threads, settings.limit_s)
        self._files = ThreadPoolExecutor(1, thread_name_prefix="partita-models")
        self._draining = asyncio.Event()
        self._streams = JobStreams(settings, self.store, self._compute, self.counters, self._draining)
        self._port = settings.port
        self._loop = set[asyncio.Task[Any]]()  #: gRPC's own

    async def start(self) -> int:
        """Listen; returns the port. Raises BadInput where the address cannot be had."""
        s, locked = self.settings, self.settings.credentials.for_grpc()
        where = f"{s.host}:{self._port}"
        self._grpc = grpc.aio.server(options=_options(s), maximum_concurrent_rpcs=s.clients + _CALLS)
        self._grpc.add_generic_rpc_handlers((self._handlers(), self._health()))
        try:
            port = self._grpc.add_insecure_port(where) if locked is None else self._grpc.add_secure_port(where, locked)
        except RuntimeError as error:
            raise BadInput(
                f"{where} cannot be listened on: {first_line(error)}", hint="choose another --port"
            ) from error
        others = asyncio.all_tasks()
        await self._grpc.start()
        self._loop = asyncio.all_tasks() - others
        self._port = int(port)
        return self._port

    async def keep(self) -> None:
        """Listen until drained. Raises BadInput where the address cannot be had again.

        gRPC's loop ends at a request whose path is no text, before any of ours sees it, and refuses every later connection: then
        begin again, with the models as they are. That it has ended only its task tells: gRPC itself waits for calls that are open."""
        while not self._draining.is_set():
            await asyncio.wait(self._loop or {asyncio.ensure_future(self._grpc.wait_for_termination())})
            if not self._draining.is_set():
                self.counters.add("restarts_total")
                for _ in range(2):  # the first one raises what the loop raised, the second ends the calls
                    with suppress(Exception):
                        await self._grpc.stop(None)
                await self._start_again()

    async def _start_again(self) -> None:
        """Raises BadInput where the address cannot be had for some seconds."""
        for left in reversed(range(_RESTARTS)):
            await asyncio.sleep(_RESTART_S)
            if self._draining.is_set():
                return
            try:
                await self.start()
                return
            except BadInput:
                if not left:
                    raise

    async def drain(self) -> None:
        """Take no more jobs, answer those that are in for at most `grace_s`, stop."""
        self._draining.set()
        deadline = time.monotonic() + self.settings.grace_s
        while self._streams.clients and time.monotonic() < deadline:
            await asyncio.sleep(0.02)
        await self._grpc.stop(max(0.0, min(1.0, deadline - time.monotonic())))
        self._compute.close()
        self._files.shutdown(wait=False, cancel_futures=True)

    def metrics(self) -> str:
        """Prometheus text."""
        return self.counters.text(
            {
                "jobs_in": self._streams.jobs,
                "clients": self._streams.clients,
                "models": self.store.models(),
                "model_bytes": self.store.used_bytes,
                "evictions_total": self.store.evictions,
                "resident_bytes": resident_bytes(),
            }
        )

    # ---- methods ------------------------------------------------------------------------------------------------------

    def _handlers(self) -> grpc.GenericRpcHandler:
        unary = {"Hello": self._hello, "Have": self._have, "Prepare": self._prepare, "Measure": self._measure}
        unary |= {"Turns": self._turns, "Echo": self._echo, "Metrics": self._tell_metrics}
        handlers: dict[str, Any] = {
            name: grpc.unary_unary_rpc_method_handler(self._guarded(method)) for name, method in unary.items()
        }
        handlers["Put"] = grpc.stream_unary_rpc_method_handler(self._put)
        handlers["Sink"] = grpc.stream_unary_rpc_method_handler(self._sink)
        handlers["Source"] = grpc.unary_stream_rpc_method_handler(self._source)
        handlers["Work"] = grpc.stream_stream_rpc_method_handler(self._jobs)
        return grpc.method_handlers_generic_handler(SERVICE, handlers)

    def _health(self) -> grpc.GenericRpcHandler:
        async def check(_: bytes, context: _Context) -> bytes:
            return _NOT_SERVING if self._draining.is_set() else _SERVING

        return grpc.method_handlers_generic_handler(HEALTH, {"Check": grpc.unary_unary_rpc_method_handler(check)})

    async def _admit(self, context: _Context) -> None:
        said = dict(context.invocation_metadata() or ()).get("authorization", "")
        if not self.settings.credentials.accept(str(said).removeprefix("Bearer ")):
            self.counters.add("refused_tokens_total")
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "the token is not this server's")

    def _guarded(
        self, method: Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]
    ) -> Callable[[bytes, _Context], Awaitable[bytes]]:
        """A method on heads."""

        async def call(raw: bytes, context: _Context) -> bytes:
            async with self._answering(context):
                return pack(await method(unpack(raw)[0]))
            raise AssertionError("errors end the call")

        return call

    @asynccontextmanager
    async def _answering(self, context: _Context) -> AsyncIterator[None]:
        """The token checked first, whatever goes wrong said as a status with its sentence, and an end in time."""
        await self._admit(context)
        try:
            async with asyncio.timeout(_CALL_S):
                yield
        except TimeoutError:
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, f"the call took longer than {_CALL_S:g} s")
        except PartitaError as error:
            await context.abort(_status(error), _said(error))
        except Exception as error:  # whatever a message may hold: a sentence for this client, and the server goes on
            why = f"{type(error).__name__}: {first_line(error)}"
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, why)

    async def _hello(self, head: dict[str, Any]) -> dict[str, Any]:
        s = self.settings
        return {
            "protocol": PROTOCOL,
            "partita": __version__,
            "threads": s.threads,
            "message_bytes": s.message_bytes,
            "draining": self._draining.is_set(),
        }

    async def _have(self, head: dict[str, Any]) -> dict[str, Any]:
        return {"have": self.store.holds(str(head["model"]))}

    async def _prepare(self, head: dict[str, Any]) -> dict[str, Any]:
        model = str(head["model"])
        cut = self.store.name_cut(model, head["tasks"])

        def build(limit: TimeLimit) -> Session:
            return self.store.session(model, cut, limit)

        try:
            session = await self._compute.run(object(), build)
        except TookTooLong as error:
            self.store.refuse_slow(model, cut, str(error))
            raise
        return {"cut": cut, "inputs": list(session.inputs), "outputs": list(session.outputs)}

    async def _measure(self, head: dict[str, Any]) -> dict[str, Any]:
        """The server measures itself, task by task, one model at a time; kept by the model's hash."""
        model, budget_s = str(head["model"]), min(_MOST_MEASURE_S, float(head["budget_s"]))
        if model not in self._measured:
            held = self.store.model(model)

            def measure(limit: TimeLimit) -> InferenceTimes:
                return measure_model(held, budget_s, "server", limit)

            async with self._measuring:
                if model not in self._measured:  # nobody has measured it while this one waited
                    found = await self._compute.run(object(), measure, more_s=2 * budget_s)
                    if len(self._measured) >= _MOST_MEASURED:
                        self._measured.pop(next(iter(self._measured)))
                    self._measured[model] = found.to_json()
        return self._measured[model]

    async def _turns(self, head: dict[str, Any]) -> dict[str, Any]:
        """The server measures its halves in turn, now: what was kept would not tell how fast it is at the moment."""
        rows = [(str(model), frozenset(map(str, tasks))) for model, tasks in head["halves"]]
        if not 0 < len(rows) <= _MOST_IN_TURN:
            raise WireError(f"{len(rows)} halves to measure in turn; 1 to {_MOST_IN_TURN} are possible")
        items = [(self.store.model(model), tasks) for model, tasks in rows]
        budget_s = min(_MOST_MEASURE_S, float(head["budget_s"]))

        def measure(limit: TimeLimit) -> Turns:
            return measure_in_turn(items, "server", budget_s, limit, alone=self.settings.threads == 1)

        async with self._measuring:
            found = await self._compute.run(object(), measure, more_s=2 * budget_s)
        return found.to_json()

    async def _echo(self, head: dict[str, Any]) -> dict[str, Any]:
        return {"at": time.perf_counter(), "cpu_s": time.process_time()}

    async def _tell_metrics(self, head: dict[str, Any]) -> dict[str, Any]:
        return {"text": self.metrics()}

    async def _jobs(self, _: Any, context: _Context) -> None:
        await self._admit(context)
        await self._streams.serve(context)

    # ---- models -------------------------------------------------------------------------------------------------------

    async def _put(self, _: Any, context: _Context) -> bytes:
        """A head with hash, size and name, then the model's bytes in chunks; its hash is checked."""
        async with self._answering(context):
            await self._take_model(context)
        self.counters.add("models_put_total")
        return pack({"have": True})

    async def _take_model(self, context: _Context) -> None:
        """Raises WireError, NoRoom, CaptureError, and what a head without its fields raises."""
        first = await context.read()
        if first is grpc.aio.EOF:
            raise WireError("no model came")
        head, _tensors = unpack(first)
        wanted, size, name = str(head["model"]), int(head["bytes"]), str(head["name"])[:_MOST_NAME]
        if size < 1:
            raise WireError(f"a model of {size} bytes was announced")
        self.store.expect(size)
        try:
            data = await self._chunks(context, size)
            loop = asyncio.get_running_loop()
            model = await loop.run_in_executor(self._files, _checked_model, data, name, wanted)
        finally:
            self.store.arrived(size)
        self.store.put(model, size)

    async def _chunks(self, context: _Context, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            async with asyncio.timeout(self.settings.stall_s):
                chunk = await context.read()
            if chunk is grpc.aio.EOF:
                raise WireError(f"{len(data)} bytes of a model came, {size} were announced", hint="put it again")
            data += chunk
            self.counters.add("bytes_in_total", len(chunk))
        if len(data) > size or await context.read() is not grpc.aio.EOF:
            raise WireError(f"a model is larger than the {size} bytes that were announced")
        return bytes(data)

    # ---- the link -----------------------------------------------------------------------------------------------------

    async def _sink(self, _: Any, context: _Context) -> bytes:
        """Takes chunks; tells when each was there."""
        stamps: list[tuple[int, float]] = []
        total = 0
        async with self._answering(context):
            while (chunk := await context.read()) is not grpc.aio.EOF:
                stamps.append((len(chunk), time.perf_counter()))
                total += len(chunk)
                if total > _MOST_LINK_BYTES or len(stamps) > _MOST_STAMPS:
                    raise NoRoom(f"more than {_MOST_LINK_BYTES} bytes or {_MOST_STAMPS} pieces to measure the link")
        return pack({"stamps": stamps})

    async def _source(self, raw: bytes, context: _Context) -> None:
        """Sends so many bytes."""
        async with self._answering(context):
            for chunk in zeros(min(_MOST_LINK_BYTES, int(unpack(raw)[0]["bytes"]))):
                await context.write(chunk)


def _checked_model(data: bytes, name: str, wanted: str) -> OnnxModel:
    """Raises CaptureError, WireError where it is not the model that was announced."""
    model = OnnxModel.from_bytes(data, name)
    if model.hash != wanted:
        raise WireError(f"model {name} arrived with hash {model.hash[:12]}, not {wanted[:12]}", hint="put it again")
    return model


def _said(error: PartitaError) -> str:
    return str(error)[:_MOST_SAID].encode(errors="backslashreplace").decode()


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
        ("grpc.max_concurrent_streams", 32),  # of one connection
        ("grpc.max_connection_idle_ms", 600_000),
        ("grpc.server_handshake_timeout_ms", 10_000),
    ]


def _say_but_bad_paths(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """What ended gRPC's loop (see `Server.keep`) is counted, and no fault of ours."""
    error = context.get("exception")
    frames = traceback.extract_tb(error.__traceback__) if isinstance(error, UnicodeDecodeError) else []
    if not (frames and "grpc/_cython" in frames[-1].filename):
        loop.default_exception_handler(context)


def serve(settings: ServerSettings, ready: Callable[[Server, int], None]) -> Server:
    """Serve until SIGTERM or SIGINT, then drain. `ready` is told the server and its port."""

    limit_memory(settings.memory_bytes)

    async def main() -> Server:
        server = Server(settings)
        port = await server.start()
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(_say_but_bad_paths)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        ready(server, port)
        kept, stopped = asyncio.ensure_future(server.keep()), asyncio.ensure_future(stop.wait())
        await asyncio.wait((kept, stopped), return_when=asyncio.FIRST_COMPLETED)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)  # a second one ends the process at once
        await server.drain()
        await kept  # raises why it ended by itself
        return server

    return asyncio.run(main())
