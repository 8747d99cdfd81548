"""Calls to a server, each with a deadline and each failure a sentence."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, TypeVar

import grpc
import numpy as np

from partita.clock import clock_ahead
from partita.errors import PartitaError, sentence_of
from partita.nouns.offload import LARGEST, OffloadLink
from partita.offload.capture.onnx_model import OnnxModel
from partita.offload.measure.in_turn import Item, Turns
from partita.offload.measure.inference import InferenceTimes
from partita.offload.run.credentials import ClientCredentials
from partita.offload.run.wire import (
    CHUNK_BYTES,
    MOST_MESSAGE_BYTES,
    PROTOCOL,
    SERVICE,
    Head,
    pack,
    unpack,
    zeros,
)

_T = TypeVar("_T")
_CALL_S = 10.0  #: for a small call
_MODEL_S = 600.0  #: for a model on its way up, or measured
_SLOW_S = 60.0  #: for a little on a slow link
_ECHOES = 10
_LEAST_LINK_BYTES, _MOST_LINK_BYTES = 32 << 10, 48_000_000  #: of a measurement of the link
_PART_BYTES = 32 << 10  #: of it, about, or frames come in now one more and now one less
_TICK_S = 1e-9  #: what takes less was not timed
_SINK_SHARE = 0.25  #: of its bytes left out, the first ones: a shaped link lets a burst through
_CHANNEL: tuple[tuple[str, int | str], ...] = (
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 20_000),  # a ping waits behind what is already on a slow link
    ("grpc.use_local_subchannel_pool", 1),  # a channel of one's own: closing it closes the connection
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1000),
    ("grpc.max_reconnect_backoff_ms", 2000),
    ("grpc.enable_retries", 0),
)


class Unreachable(PartitaError):
    """No server answers, or the connection broke: worth trying again."""


class Refused(PartitaError):
    """The server answers, and says no: trying again will not help."""


class NoMemory(Refused):
    """The server has no room, for a model or for another client."""


@dataclass(frozen=True, slots=True)
class Welcome:
    """What a server says of itself, and how far its clock is ahead of ours."""

    threads: int
    message_bytes: int
    clock_ahead_s: float
    round_trip_s: float


class Client:
    """A connection to one server. Close it; closing is bounded in time. Safe to use from several threads."""

    def __init__(self, target: str, credentials: ClientCredentials | None = None) -> None:
        self.target = target
        self._credentials = credentials or ClientCredentials()
        self._channel = self._credentials.channel(
            target,
            (
                *_CHANNEL,
                ("grpc.max_receive_message_length", MOST_MESSAGE_BYTES),
                ("grpc.max_send_message_length", -1),
            ),
        )

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._channel.close()

    def hello(self, timeout_s: float = _CALL_S) -> Welcome:
        """Raises Unreachable; Refused where the server speaks another protocol or does not know the token."""
        said = self._asked("Hello", {"protocol": PROTOCOL}, lambda said: said, timeout_s)
        if said.get("protocol") != PROTOCOL:
            raise Refused(
                f"{self.target} runs Partita {said.get('partita')} with protocol {said.get('protocol')}; "
                f"this one speaks protocol {PROTOCOL}",
                hint="install the same Partita on both sides",
            )
        if said.get("draining"):
            raise Unreachable(f"{self.target} is about to stop")
        threads, most = self._read("Hello", said, lambda said: (int(said["threads"]), int(said["message_bytes"])))
        if min(threads, most) < 1:
            raise self._strange("Hello", f"{threads} threads, messages of {most} bytes")
        return Welcome(threads, most, *clock_ahead(partial(self._echo, "at", timeout_s), _ECHOES))

    def cpu_s(self) -> float:
        """CPU seconds that the server's process has used."""
        return self._echo("cpu_s")

    def have(self, model: OnnxModel) -> bool:
        return self._asked("Have", {"model": model.hash}, lambda said: bool(said["have"]))

    def put(self, model: OnnxModel) -> bool:
        """Make the server have a model; returns whether it had to go up. Raises NoMemory, Refused, Unreachable."""
        if self.have(model):
            return False
        call = self._channel.stream_unary(f"/{SERVICE}/Put")
        self._called(lambda: call(_model_chunks(model), timeout=_MODEL_S, metadata=self._credentials.metadata()))
        return True

    def prepare(self, model: OnnxModel, device_tasks: frozenset[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Have the server build and warm its half; returns the names it reads and makes. The model must be there."""
        asked = {"model": model.hash, "tasks": sorted(device_tasks)}
        return self._asked("Prepare", asked, lambda said: (_names(said["inputs"]), _names(said["outputs"])), _MODEL_S)

    def measure(self, model: OnnxModel, budget_s: float = 4.0) -> InferenceTimes:
        """The tasks' times on the server, which measures itself once a model."""
        self.put(model)
        asked, what = {"model": model.hash, "budget_s": budget_s}, f"what {self.target} measured"
        return self._asked("Measure", asked, lambda said: InferenceTimes.from_json(said, what), _MODEL_S)

    def turns(self, items: Sequence[Item], budget_s: float = 4.0) -> Turns:
        """What the server's halves take one after the other, measured now; the models must be there."""
        halves = [[model.hash, sorted(cut)] for model, cut in items]
        asked, what = {"halves": halves, "budget_s": budget_s}, f"what {self.target} measured"
        return self._asked("Turns", asked, lambda said: Turns.from_json(said, len(items), what), _MODEL_S)

    def metrics(self) -> str:
        """Prometheus text."""
        return self._asked("Metrics", {}, lambda said: str(said["text"]))

    def link(self, seconds: float = 1.0) -> OffloadLink:
        """Rates and round trip, measured with up to about `seconds` of traffic each way; medians over parts of it. Raises Unreachable."""
        welcome = self.hello()
        sink = self._channel.stream_unary(f"/{SERVICE}/Sink")
        source = self._channel.unary_stream(f"/{SERVICE}/Source")

        def send(size: int) -> list[tuple[int, float]]:
            raw = sink(zeros(size), timeout=longest_s, metadata=self._credentials.metadata())
            return _checked_stamps(unpack(raw)[0].get("stamps"), self.target)

        def fetch(size: int) -> list[tuple[int, float]]:
            answers = source(pack({"bytes": size}), timeout=longest_s, metadata=self._credentials.metadata())
            stamps, left = list[tuple[int, float]](), size
            for chunk in answers:
                stamps.append((len(chunk), time.perf_counter()))
                left -= len(chunk)
                if left < 0:
                    answers.cancel()
                    raise _no_link(self.target)
            return stamps

        enough_s = max(seconds / 2, 4 * welcome.round_trip_s)  # or it would tell of the round trip
        longest_s = _SLOW_S + 8 * enough_s
        up, down = (_rate(self._called(partial(_long_enough, way, enough_s))) for way in (send, fetch))
        link = OffloadLink(up, down, welcome.round_trip_s)
        if link.check():
            raise _no_link(self.target)
        return link

    def work(self, messages: Iterator[bytes]) -> Any:
        """The stream of jobs: an iterator over replies that can be cancelled."""
        return self._channel.stream_stream(f"/{SERVICE}/Work")(messages, metadata=self._credentials.metadata())

    def _echo(self, what: str, timeout_s: float = _CALL_S) -> float:
        found = self._asked("Echo", {}, lambda said: float(said[what]), timeout_s)
        if not math.isfinite(found):
            raise self._strange("Echo", f"{what} = {found}")
        return found

    def _asked(self, method: str, head: Head, read: Callable[[Head], _T], timeout_s: float = _CALL_S) -> _T:
        """What `read` makes of the answer. Raises Refused where it can make nothing of it."""
        call = self._channel.unary_unary(f"/{SERVICE}/{method}")
        raw = self._called(lambda: call(pack(head), timeout=timeout_s, metadata=self._credentials.metadata()))
        return self._read(method, unpack(raw)[0], read)

    def _read(self, method: str, said: Head, read: Callable[[Head], _T]) -> _T:
        try:
            return read(said)
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise self._strange(method, sentence_of(error)) from error

    def _strange(self, method: str, what: str) -> Refused:
        return Refused(
            f"{self.target} answers {method} as no server of this version does: {what}",
            hint="install the same Partita on both sides",
        )

    def _called(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except grpc.RpcError as error:
            raise sentence(error, self.target) from error
        except ValueError as error:  # the channel was closed meanwhile
            raise Unreachable(f"{self.target}: {error}") from error


def sentence(error: grpc.RpcError, target: str) -> PartitaError:
    """What a failed call means."""
    code, said = error.code(), str(error.details() or "")
    fact, _, hint = said.partition(" hint: ")
    if code == grpc.StatusCode.UNAUTHENTICATED:
        return Refused(f"{target}: {fact}", hint="give --token-file with the token that the server wrote")
    if code == grpc.StatusCode.RESOURCE_EXHAUSTED:
        return NoMemory(f"{target}: {fact}", hint=hint)
    if code == grpc.StatusCode.UNIMPLEMENTED:
        return Refused(f"{target} is no Partita server of this version", hint="install the same Partita on both sides")
    if code in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND):
        return Refused(f"{target}: {fact}", hint=hint)
    if any(sign in fact for sign in ("erif", "ertificate", "SSL", "Hostname")):
        return Unreachable(
            f"{target} cannot be trusted: {fact.rpartition('last error: ')[2][:200]}",
            hint="give --ca with its certificate or its authority's, and --server-name with a name in its own certificate",
        )
    fact = fact.rpartition("last error: ")[2].rpartition(": ")[2] or code.name
    return Unreachable(f"{target} cannot be reached: {fact}", hint="start partita offload serve there")


def _names(said: Any) -> tuple[str, ...]:
    """Raises TypeError for what is no list of names."""
    if not (isinstance(said, list) and all(isinstance(name, str) for name in said)):
        raise TypeError(f"{said!r:.100} is no list of names")
    return tuple(said)


def _model_chunks(model: OnnxModel) -> Iterator[bytes]:
    data = model.data
    yield pack({"model": model.hash, "bytes": len(data), "name": model.name})
    for at in range(0, len(data), CHUNK_BYTES):
        yield data[at : at + CHUNK_BYTES]


def _checked_stamps(said: Any, target: str) -> list[tuple[int, float]]:
    """Sizes and times of chunks. Raises Unreachable for what is none."""
    try:
        stamps = [(int(n), float(at_s)) for n, at_s in said]
        fair = all(0 < n <= CHUNK_BYTES and abs(at_s) <= LARGEST for n, at_s in stamps)
        fair = fair and all(a <= b for (_, a), (_, b) in pairwise(stamps))
    except (TypeError, ValueError, OverflowError):
        fair = False
    if not fair:
        raise _no_link(target)
    return stamps


def _no_link(target: str) -> Unreachable:
    return Unreachable(f"{target} measures no link", hint="install the same Partita on both sides")


def _long_enough(move: Callable[[int], list[tuple[int, float]]], enough_s: float) -> list[tuple[int, float]]:
    """Sizes and times of the chunks of a transfer that took so long: of a small one, and of larger ones while they are too short. What is
    under way is little more than the link carries in a few times that, for whoever else uses it waits behind that."""
    size = _LEAST_LINK_BYTES
    while True:
        began_s = time.perf_counter()
        stamps = move(size)
        waited_s = time.perf_counter() - began_s
        spent_s = stamps[-1][1] - stamps[0][1] if stamps else 0.0
        if spent_s >= enough_s or waited_s >= 8 * enough_s or size >= _MOST_LINK_BYTES:
            return stamps
        size = min(_MOST_LINK_BYTES, int(size * min(2 * enough_s / max(spent_s, _TICK_S), 8)))


def _rate(stamps: Sequence[Sequence[float]]) -> float:
    """Bytes a second: the median over eighths of the later bytes, or larger parts, of how fast each came in. Raises Unreachable."""
    came, at_s = np.cumsum([n for n, _ in stamps]), np.array([t for _, t in stamps])
    total = sum(n for n, _ in stamps)
    marks = np.linspace(_SINK_SHARE, 1.0, int(np.clip(total / _PART_BYTES, 1, 8)) + 1) * total
    ends = np.unique(np.searchsorted(came, marks)) if total else np.empty(0, np.int64)
    spent_s = np.diff(at_s[ends])
    rates = np.diff(came[ends])[spent_s > _TICK_S] / spent_s[spent_s > _TICK_S]
    if not len(rates):
        raise Unreachable("the link carried too little to measure its rate", hint="check the link")
    return float(np.median(rates))
