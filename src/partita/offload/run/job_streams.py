"""The server's side of the streams of jobs: who is let in, whose job is next, and how answers go back.

    reader    takes a client's jobs, one message at a time     | stops while the client does not read its replies
    workers   compute them, in their order                     | wait for a compute thread, which clients get in turn,
                                                               | and while the client has answers that it does not take
    writer    sends what there is to say                       | gives up a client that takes too long to read

So whatever a client does or leaves undone, it holds a bounded share of the server, and for a bounded time.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

import grpc

from partita.errors import PartitaError
from partita.offload.measure.speed import Speedometer
from partita.offload.onnx_session import TimeLimit, TookTooLong, Watchdog
from partita.offload.run.codec import decode
from partita.offload.run.counters import Counters
from partita.offload.run.model_store import ModelStore, NoRoom, Unknown
from partita.offload.run.settings import ServerSettings
from partita.offload.run.wire import Array, first_line, message_bytes, pack, unpack

_REPLIES = 64  #: of a client, waiting to be sent
_SLOWEST_BYTES_PER_S = 50e3  #: a reader slower than this is given up
_T = TypeVar("_T")
_Context = Any


class Turns:
    """Compute threads, given to those who wait for one in turn."""

    def __init__(self, threads: int) -> None:
        self._free = threads
        self._waiting: OrderedDict[object, deque[asyncio.Future[None]]] = OrderedDict()

    async def begin(self, who: object) -> None:
        """Wait for a thread. It is given back by `end`."""
        if self._free:
            self._free -= 1
            return
        mine = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(who, deque()).append(mine)
        try:
            await mine
        except asyncio.CancelledError:
            if mine.done() and not mine.cancelled():  # the turn came at the same moment
                self.end()
            raise

    def end(self) -> None:
        while self._waiting:
            who, queue = self._waiting.popitem(last=False)
            first = queue.popleft()
            if queue:
                self._waiting[who] = queue  # behind all others
            if not first.cancelled():
                first.set_result(None)
                return
        self._free += 1


class Compute:
    """Threads for sessions, one core each; every piece of work has a time limit."""

    def __init__(self, threads: int, limit_s: float) -> None:
        self.limit_s = limit_s
        self._turns = Turns(threads)
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="partita-compute")
        self._watchdog = Watchdog()

    async def run(self, who: object, work: Callable[[TimeLimit], _T], more_s: float = 0.0) -> _T:
        """`work` on a thread, when it is the turn of `who`. Raises TookTooLong after `limit_s` + `more_s`; one who no
        longer waits for the result ends it, and the next turn is when its thread is free."""
        limit = TimeLimit(self.limit_s + more_s)

        def within() -> _T:
            with self._watchdog.watching(limit):
                return work(limit)

        await self._turns.begin(who)
        try:
            done = asyncio.get_running_loop().run_in_executor(self._threads, within)
        except RuntimeError:  # closed meanwhile
            self._turns.end()
            raise
        done.add_done_callback(self._thread_is_free)
        try:
            return await asyncio.shield(done)
        except asyncio.CancelledError:
            limit.abandon()
            raise

    def _thread_is_free(self, done: asyncio.Future[Any]) -> None:
        self._turns.end()
        if not done.cancelled():
            done.exception()  # of one who waits no longer, nobody else looks at it

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._watchdog.close()


@dataclass(slots=True, eq=False)
class _Job:
    """A job that is in."""

    head: dict[str, Any]
    tensors: dict[str, Array]
    size_bytes: int
    said: dict[str, Any]  #: what each reply to it says: job, attempt, received

    @staticmethod
    def of(raw: bytes, at_s: float) -> _Job:
        """Raises WireError, KeyError, TypeError, ValueError, OverflowError for what is none."""
        head, tensors = unpack(raw)
        return _Job(
            head, tensors, len(raw), {"job": int(head["job"]), "attempt": int(head["attempt"]), "received": at_s}
        )


@dataclass(slots=True, eq=False)
class _Client:
    """One stream."""

    jobs: asyncio.Queue[_Job] = field(default_factory=asyncio.Queue)
    replies: asyncio.Queue[tuple[dict[str, Any], dict[str, Array]] | None] = field(
        default_factory=lambda: asyncio.Queue(_REPLIES)
    )
    written: asyncio.Event = field(default_factory=asyncio.Event)
    dropped: asyncio.Event = field(default_factory=asyncio.Event)  #: another client needs the place
    held: int = 0  #: jobs taken and not yet answered
    held_bytes: float = 0.0
    unsent_bytes: float = 0.0  #: of answers
    last_s: float = field(default_factory=time.monotonic)  #: when it last had a job here


class JobStreams:
    """All clients' streams."""

    def __init__(
        self, settings: ServerSettings, store: ModelStore, compute: Compute, counters: Counters, draining: asyncio.Event
    ) -> None:
        self._settings, self._store, self._compute = settings, store, compute
        self._counters, self._draining = counters, draining
        self._clients: set[_Client] = set()
        self._of_thread = threading.local()

    @property
    def clients(self) -> int:
        return len(self._clients)

    @property
    def jobs(self) -> int:
        return sum(c.held for c in self._clients)

    async def serve(self, context: _Context) -> None:
        """One client's stream, until it ends or the server stops."""
        if self._draining.is_set():
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "the server takes no more clients: it stops")
        if len(self._clients) >= self._settings.clients and not self._drop_idle():
            why = f"{len(self._clients)} clients are connected, its limit"
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"the server takes no more clients: {why}")
        client = _Client()
        self._clients.add(client)
        writer = asyncio.create_task(self._write(client, context))
        taking = [
            asyncio.create_task(w) for w in (self._read(client, context), self._draining.wait(), client.dropped.wait())
        ]
        workers = [asyncio.create_task(self._work(client)) for _ in range(self._settings.threads)]
        try:
            await asyncio.wait({*taking, writer}, return_when=asyncio.FIRST_COMPLETED)
            done = asyncio.create_task(client.jobs.join())
            taking.append(done)
            await asyncio.wait({done, writer}, return_when=asyncio.FIRST_COMPLETED)
            if not writer.done():
                end = asyncio.create_task(client.replies.put(None))
                taking.append(end)
                await asyncio.wait({end, writer}, return_when=asyncio.FIRST_COMPLETED)
            await writer
        finally:
            self._clients.discard(client)
            tasks = [writer, *taking, *workers]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _drop_idle(self) -> bool:
        """Make room by ending the stream that has had no job for longest, if that is long."""
        idle = [c for c in self._clients if not c.held and not c.dropped.is_set()]
        oldest = min(idle, key=lambda c: c.last_s, default=None)
        if oldest is None or time.monotonic() - oldest.last_s < self._settings.stall_s:
            return False
        oldest.dropped.set()
        self._clients.discard(oldest)
        self._counters.add("clients_dropped_total")
        return True

    # ---- in -------------------------------------------------------------------------------------------------------------

    async def _read(self, client: _Client, context: _Context) -> None:
        """Take jobs until the client has no more."""
        while (raw := await context.read()) is not grpc.aio.EOF:
            at = time.perf_counter()
            self._counters.add("bytes_in_total", len(raw))
            if self._draining.is_set():
                return
            try:
                job = _Job.of(raw, at)
            except (PartitaError, KeyError, TypeError, ValueError, OverflowError) as error:
                said = {"kind": "refused", "job": -1, "attempt": 0, "code": "damaged", "why": first_line(error)}
                await client.replies.put((said, {}))
                continue
            await client.replies.put(({"kind": "received", **job.said}, {}))
            why = self._no_room(client, job)
            if why:
                self._counters.add("jobs_refused_total")
                await client.replies.put(({"kind": "refused", "code": "busy", "why": why, **job.said}, {}))
                continue
            client.held += 1
            client.held_bytes += job.size_bytes
            client.jobs.put_nowait(job)

    def _no_room(self, client: _Client, job: _Job) -> str:
        """Why a job is not taken: all clients together fill the server, or this one its half of it; "" where it is."""
        s = self._settings
        jobs, size = self.jobs, sum(c.held_bytes for c in self._clients)
        if jobs >= s.queue_jobs or size + job.size_bytes > s.queue_bytes:
            return f"{jobs} jobs with {size / 1e6:.1f} MB wait at the server, its limit"
        most, most_bytes = math.ceil(s.queue_jobs / 2), max(s.message_bytes, s.queue_bytes / 2)
        if client.held >= most or client.held_bytes + job.size_bytes > most_bytes:
            return f"{client.held} jobs of this client with {client.held_bytes / 1e6:.1f} MB wait at the server, half its limit"
        return ""

    # ---- compute --------------------------------------------------------------------------------------------------------

    async def _work(self, client: _Client) -> None:
        while True:
            job = await client.jobs.get()
            while client.unsent_bytes > self._settings.queue_bytes / self._settings.clients:
                client.written.clear()
                await client.written.wait()
            head, answers = await self._answer(client, job)
            client.unsent_bytes += _size(answers)
            client.held -= 1
            client.held_bytes -= job.size_bytes
            client.last_s = time.monotonic()
            await client.replies.put((head, answers))
            client.jobs.task_done()

    async def _answer(self, client: _Client, job: _Job) -> tuple[dict[str, Any], dict[str, Array]]:
        """The reply to a job, whatever becomes of it."""
        try:
            times, answers = await self._compute.run(client, lambda limit: self._infer(job, limit))
            size = message_bytes(answers)
            if size > self._settings.message_bytes:
                raise NoRoom(f"the answer has {size} bytes, a message at most {self._settings.message_bytes}")
            self._counters.served(time.perf_counter() - job.said["received"])
            return {"kind": "answer", **job.said, **times}, answers
        except Exception as error:  # whatever a model or a tensor does: the client gets a sentence, the server goes on
            self._counters.add("jobs_failed_total")
            if isinstance(error, TookTooLong):
                self._store.refuse_slow(str(job.head.get("model")), str(job.head.get("cut")), first_line(error))
            code = next((c for kind, c in _CODES.items() if isinstance(error, kind)), "failed")
            return {"kind": "refused", "code": code, "why": first_line(error), **job.said}, {}

    def _infer(self, job: _Job, limit: TimeLimit) -> tuple[dict[str, float], dict[str, Array]]:
        """On a compute thread."""
        start = time.perf_counter()
        model = str(job.head["model"])
        if "tasks" in job.head:
            job.head["cut"] = self._store.name_cut(model, job.head["tasks"])
        whole = decode(job.head.get("coding", {}), job.tensors, self._settings.message_bytes)
        session, meter = self._store.session(model, str(job.head["cut"]), limit), self._meter()
        behind_s = float(job.head.get("behind_s", 0.0))
        answers, lap = meter.infer(lambda: session.run(whole, limit=limit))
        times = {"start": start, "end": time.perf_counter(), "wall_s": lap.wall_s, "received_s": lap.received_s}
        return {**times, "cpu_s": lap.cpu_s, "probe_s": sum(probe_s for probe_s, _ in meter.look(behind_s))}, answers

    def _meter(self) -> Speedometer:
        """This compute thread's."""
        if not hasattr(self._of_thread, "meter"):
            self._of_thread.meter = Speedometer(alone=self._settings.threads == 1)
        meter: Speedometer = self._of_thread.meter
        return meter

    # ---- out ------------------------------------------------------------------------------------------------------------

    async def _write(self, client: _Client, context: _Context) -> None:
        while (reply := await client.replies.get()) is not None:
            head, tensors = reply
            raw = pack({**head, "sent": time.perf_counter()}, tensors)
            self._counters.add("bytes_out_total", len(raw))
            try:
                async with asyncio.timeout(self._settings.stall_s + len(raw) / _SLOWEST_BYTES_PER_S):
                    await context.write(raw)
            except TimeoutError:
                self._counters.add("clients_stalled_total")
                return  # no word of farewell: it would have to wait for the client as well
            client.unsent_bytes -= _size(tensors)
            client.written.set()


def _size(tensors: Mapping[str, Array]) -> int:
    return sum(t.nbytes for t in tensors.values())


_CODES = {Unknown: "unknown", NoRoom: "memory", TookTooLong: "slow"}
