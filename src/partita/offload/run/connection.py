"""A connection to the server that comes back by itself: parcels in, events out.

A thread of its own keeps it: it connects, makes sure that the server has the models and the halves, listens, and
after a loss tries again with growing pauses. A model that the server turns out to lack goes up beside the jobs, in a thread of its
own. Everything that happens becomes an event in one queue, which the device reads between jobs; what the threads share besides,
parcels under way and what is known of the models, is under one lock.
"""

from __future__ import annotations

import math
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import grpc

from partita.errors import PartitaError, sentence_of
from partita.offload.capture.onnx_model import OnnxModel
from partita.offload.run.client import Client, NoMemory, Refused, Unreachable, Welcome, sentence
from partita.offload.run.codec import Codec, encode
from partita.offload.run.model_store import cut_id
from partita.offload.run.wire import Array, WireError, message_bytes, pack, unpack

_FIRST_PAUSE_S, _MOST_PAUSE_S = 0.05, 2.0
_CLOSE_S = 5.0
_FAR_S, _LEAST_LAP_S, _MOST_LAP_S = 86_400.0, 1e-9, 1e5  #: of what a server stamps, and says that it took
_HELLO_S = 5.0
_MOST_BROUGHT = 2  #: times that a model is brought up while jobs run; a server that drops it again has no room for it
_STAMPS: Mapping[Any, tuple[str, ...]] = MappingProxyType(
    {"received": ("received",), "answer": ("start", "end", "sent"), "refused": ()}
)  #: kinds of replies, and the times that each has
_LAPS = (
    "wall_s",
    "cpu_s",
    "received_s",
    "probe_s",
)  #: what an answer says of the server's inference and its speed; 0: nothing


@dataclass(frozen=True, slots=True)
class Event:
    """What happened on the connection: "up", "down", "sent", "received", "answer", "refused", "refused-model" or "trouble".

    Times are of this host's clock, also those that the server stamped.
    """

    kind: str
    epoch: int  #: number of the connection
    at_s: float
    head: Mapping[str, Any] = field(default_factory=dict)
    tensors: Mapping[str, Array] = field(default_factory=dict)
    welcome: Welcome | None = None
    why: str = ""


@dataclass(frozen=True, slots=True)
class Parcel:
    """The server's part of a job on its way up."""

    job: int
    attempt: int
    model: str  #: hash
    cut: frozenset[str]  #: tasks on the device
    tensors: Mapping[str, Array]
    behind_s: float = 0.0  #: CPU seconds of an inference behind which a probe of the server counts


class Connection:
    """Open it with a function that makes a client; read `events`; close it (bounded in time)."""

    def __init__(
        self,
        connect: Callable[[], Client],
        models: Sequence[OnnxModel],
        halves: Sequence[tuple[OnnxModel, frozenset[str]]],
        codec: Codec = "raw",
    ) -> None:
        self.events: queue.Queue[Event] = queue.Queue()
        self._unwelcome: set[str] = set()  #: hashes of models that the server does not take
        self._coming: dict[str, threading.Thread] = {}  #: of those that go up meanwhile
        self._brought: Counter[str] = Counter()
        self._came_s: dict[str, float] = {}  #: when they were up
        self._connect, self._models, self._halves, self._codec = connect, models, halves, codec
        self._outbox: queue.Queue[Parcel | None] | None = None
        self._welcome: Welcome | None = None
        self._epoch = 0
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._client: Client | None = None
        self._thread = threading.Thread(target=self._keep, name="partita-connection", daemon=True)
        self._thread.start()

    @property
    def welcome(self) -> Welcome | None:
        """The server's words while the connection is up, None while it is down."""
        with self._lock:
            return self._welcome

    def takes(self, model: OnnxModel) -> bool:
        """Whether a job of the model may be sent now."""
        with self._lock:
            return self._welcome is not None and model.hash not in self._unwelcome | self._coming.keys()

    def bring(self, model: OnnxModel, sent_s: float) -> None:
        """Bring a model up in the background, for the server did not know it when a job came that was sent then: it does not take its
        jobs meanwhile, nor once it has dropped it too often."""
        with self._lock:
            h, client = model.hash, self._client
            if self._welcome is None or client is None or h in self._unwelcome or h in self._coming:
                return
            if sent_s < self._came_s.get(h, -math.inf):  # before it was there
                return
            self._brought[h] += 1
            if self._brought[h] > _MOST_BROUGHT:
                self._give_up(
                    h, f"the server does not keep {model.name}, which went up {_MOST_BROUGHT} times beside the jobs"
                )
                return
            thread = threading.Thread(target=self._bring, args=(model, client), name="partita-bringing", daemon=True)
            try:
                thread.start()
                self._coming[h] = thread  # it waits for the lock before it looks
            except RuntimeError as error:  # this process may have no more threads
                self._give_up(h, f"{model.name} cannot go up beside the jobs: {error}")

    def alone_since_s(self) -> float:
        """Since when the jobs have the link to themselves: the last model that went up beside them was up then."""
        with self._lock:
            return math.inf if self._coming else max(self._came_s.values(), default=-math.inf)

    def fits(self, tensors: Mapping[str, Array]) -> bool:
        """Whether a parcel is small enough for the server."""
        welcome = self.welcome
        return welcome is not None and message_bytes(tensors) <= welcome.message_bytes

    def send(self, parcel: Parcel) -> int | None:
        """Hand over a parcel; returns the connection it goes by, None while it is down."""
        with self._lock:
            if self._outbox is None:
                return None
            self._outbox.put(parcel)
            return self._epoch

    def hang_up(self) -> None:
        """Give this connection up, e.g. because the server has gone silent; another one is then tried."""
        client = self._client
        if client is not None:
            client.close()

    def close(self) -> None:
        """Ends the threads within a few seconds."""
        self._closing.set()
        self._put_down()
        self.hang_up()
        until_s = time.perf_counter() + _CLOSE_S
        with self._lock:
            threads = [self._thread, *self._coming.values()]
        for thread in threads:
            thread.join(max(0.0, until_s - time.perf_counter()))

    def _bring(self, model: OnnxModel, client: Client) -> None:
        refused, why = set[str](), ""
        try:
            refused = self._up(client, [model])
        except PartitaError as error:
            why = str(error)
        except Exception as error:  # a fault here must not leave the model coming for ever
            why = sentence_of(error)
        with self._lock:
            del self._coming[model.hash]
            if (
                client is not self._client or self._welcome is None
            ):  # what has ended that connection its own thread tells
                return
            self._came_s[model.hash] = time.perf_counter()
            self._unwelcome |= refused
            if why:
                self._give_up(model.hash, f"{model.name} did not get to the server: {why}")

    def _give_up(self, model: str, why: str) -> None:
        """The jobs of a model stay on the device while this connection lasts. The caller holds the lock."""
        self._unwelcome.add(model)
        self._tell("refused-model", why=why)

    # ---- the thread ---------------------------------------------------------------------------------------------------

    def _keep(self) -> None:
        """Connect, listen and connect again, whatever goes wrong; what went wrong is told once the connection is down."""
        pause = _FIRST_PAUSE_S
        while not self._closing.is_set():
            self._epoch += 1
            kind, why, was_up = "down", "", False
            try:
                self._client = self._connect()
                welcome = self._ready(self._client)
                was_up = True
                self._listen(self._client, welcome)
            except (Unreachable, NoMemory) as error:
                why = str(error)
            except PartitaError as error:
                kind, why = "trouble", str(error)
            except Exception as error:  # a fault here must not end the thread: nobody would hear of it
                why = f"the connection failed: {sentence_of(error)}"
            finally:
                self._put_down()
                if self._client is not None:
                    self._client.close()
            if not self._closing.is_set():
                self._tell(kind, why=why)
            if kind == "trouble":
                return
            pause = _FIRST_PAUSE_S if was_up else pause
            self._closing.wait(pause)
            pause = min(2 * pause, _MOST_PAUSE_S)

    def _ready(self, client: Client) -> Welcome:
        """Models up, halves built. A model that the server refuses stays on the device; the others are used."""
        client.hello(_HELLO_S)
        refused = self._up(client, self._models)
        with self._lock:
            self._unwelcome = refused
            self._brought.clear()
            self._came_s.clear()
        return client.hello(_HELLO_S)  # the clocks compared again, now that the way is warm

    def _up(self, client: Client, models: Sequence[OnnxModel]) -> set[str]:
        """Models on the server, their halves built; hashes of those that it refuses, which is told."""
        wanted, refused = {m.hash for m in models}, dict[str, str]()
        for model in models:
            try:
                client.put(model)
            except Refused as error:
                refused[model.hash] = str(error)
        for model, cut in self._halves:
            if model.hash in wanted and model.hash not in refused:
                try:
                    client.prepare(model, cut)
                except Refused as error:
                    refused[model.hash] = str(error)
        for why in refused.values():
            self._tell("refused-model", why=why)
        return set(refused)

    def _listen(self, client: Client, welcome: Welcome) -> None:
        outbox: queue.Queue[Parcel | None] = queue.Queue()
        replies = client.work(self._messages(outbox, self._epoch))
        with self._lock:
            if self._closing.is_set():
                outbox.put(None)
                return
            self._outbox, self._welcome = outbox, welcome
        self._tell("up", welcome=welcome)
        try:
            for raw in replies:
                self._reply(raw, welcome)
            raise Unreachable("the server has ended the connection")
        except grpc.RpcError as error:
            raise sentence(error, client.target) from error
        except WireError as error:
            raise Unreachable(f"{client.target}: {error.message}") from error
        finally:
            outbox.put(None)
            replies.cancel()

    def _reply(self, raw: bytes, welcome: Welcome) -> None:
        """Raises WireError for what is no reply: the connection is then given up."""
        at = time.perf_counter()
        head, tensors = unpack(raw)
        kind = head.get("kind")
        try:
            wanted = _STAMPS[kind]
            said: dict[str, Any] = {"job": int(head["job"]), "attempt": int(head["attempt"])}
            said |= {stamp: float(head[stamp]) - welcome.clock_ahead_s for stamp in wanted}
            if kind == "answer":
                said |= {what: float(head.get(what, 0.0)) for what in _LAPS}
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise WireError(f"the server sent what is no reply: {sentence_of(error)}") from error
        laps = [said[what] for what in _LAPS if what in said]
        if not all(abs(said[stamp] - at) < _FAR_S for stamp in wanted) or not all(map(_is_lap, laps)):
            raise WireError("the server sent a time that is none")
        said |= {what: str(head.get(what, "")) for what in ("code", "why")}
        self.events.put(Event(str(kind), self._epoch, at, said, tensors))

    def _messages(self, outbox: queue.Queue[Parcel | None], epoch: int) -> Iterator[bytes]:
        """Parcels as messages, one at a time: gRPC asks for the next when it has passed on the last."""
        while (parcel := outbox.get()) is not None:
            coding, tensors = encode(parcel.tensors, self._codec)
            raw = pack(
                {
                    "kind": "job",
                    "job": parcel.job,
                    "attempt": parcel.attempt,
                    "model": parcel.model,
                    "coding": coding,
                    "behind_s": parcel.behind_s,
                    **self._cut(parcel),
                },
                tensors,
            )
            now = time.perf_counter()
            self.events.put(
                Event("sent", epoch, now, {"job": parcel.job, "attempt": parcel.attempt, "bytes": len(raw)})
            )
            yield raw

    def _cut(self, parcel: Parcel) -> dict[str, Any]:
        """A cut that the server was told of by its id, another by its tasks."""
        known = any(m.hash == parcel.model and c == parcel.cut for m, c in self._halves)
        return {"cut": cut_id(parcel.cut)} if known else {"tasks": sorted(parcel.cut)}

    def _put_down(self) -> None:
        with self._lock:
            if self._outbox is not None:
                self._outbox.put(None)
            self._outbox = self._welcome = None

    def _tell(self, kind: str, *, welcome: Welcome | None = None, why: str = "") -> None:
        self.events.put(Event(kind, self._epoch, time.perf_counter(), welcome=welcome, why=why))


def _is_lap(seconds: float) -> bool:
    return seconds == 0 or _LEAST_LAP_S <= seconds <= _MOST_LAP_S
