"""What messages cost the processors: sending on the device, receiving and answering on the server, and an open connection.

Messages, small ones and large ones, go through the real runner and the real server while both sides compute convolutions, as in a
run: then each message wakes its threads anew and finds the caches full of something else. A message's cost is what a process needs
beside its inferences, more than without messages; medians over rounds of none, small and large in turn. It counts where a device is
slow: under a quota of a tenth of a core, a millisecond of Python and system calls a message is ten. What a small message takes of the
inferences is less than what the machine's speed changes, and left out.

A byte takes of the inferences, too, for the packets' interrupts count as theirs. While the uplink was full, networks of 5 to 80 ms
took 1.11 times as long on the device at 20 Mbit/s, 1.07 at 100 (2 cores of an EPYC, 26 November 2026), 1.10 to 1.15 at 100 on a Xeon,
as do the convolutions here: it goes by how long bytes pass and not by how many they are, and of a quota it takes as large a part.
While this is measured few bytes pass on a slow link, and what they take drowns in what the inferences take by themselves: a price was
seen between -27 and 34 ns where messages four times as large said 7.2 to 8.1. So the mean over the rounds is drawn to what is usual,
as far as its standard error asks for.

An open connection takes of the device when nothing passes, too: gRPC's threads look up 30 times a second, in 3 ms; of a tenth of a core
that is a thirtieth.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable
from dataclasses import astuple, dataclass, replace

import numpy as np

from partita.nouns.graph import FloatArray
from partita.nouns.offload import OffloadLink, OffloadPlan, OffloadProblem
from partita.offload.capture.onnx_inputs import random_inputs
from partita.offload.capture.onnx_model import OnnxModel
from partita.offload.measure.speed import Lap, Speedometer
from partita.offload.onnx_session import Session
from partita.offload.run.client import Client, Refused, Unreachable
from partita.offload.run.connection import Connection
from partita.offload.run.execute import RunSettings, execute
from partita.offload.run.message_models import behind_a_message, computing
from partita.offload.run.record import inferring_cpu_s

JOBS, ROUNDS = 10, 4
SMALL, LARGE = 1_000, 150_000  #: floats of a job ...
LEAST = 400  #: ... and of a large one, on a link so slow that more would take long
ON_LINK_S = 0.15  #: of a large one
MOST_LAYERS = 100  #: of what is computed between messages
#: of the CPU time that a side has, what bytes on the link take: what was seen on two kinds of machines, and by how much they differed
TAKEN, SCATTER = (0.09, 0.05), (0.03, 0.025)
IDLE_S = 1.5  #: for which an open connection is watched
READY_S = 10.0


@dataclass(frozen=True)
class MessageCost:
    """CPU seconds of a job that crosses: (a message, a byte of it); and of a second, whatever crosses."""

    device: tuple[float, float]
    server: tuple[float, float]
    idle_s: float = 0.0  #: what an open connection takes of the device


def message_cost(
    connect: Callable[[], Client],
    up_bytes_per_s: float,
    jobs: int = JOBS,
    rounds: int = ROUNDS,
) -> MessageCost:
    """Measured with `rounds` x 2 x `jobs` jobs; what is computed between them takes about as long as a large message is on the
    uplink. Raises Unreachable, Refused."""
    many = int(np.clip(ON_LINK_S * up_bytes_per_s / 4, LEAST, LARGE))
    few = min(SMALL, many // 4)
    layer = _layer()
    on_link_s = 4 * many / up_bytes_per_s
    here, there = (computing(int(np.clip(on_link_s / s, 1, MOST_LAYERS))) for s in (layer.wall_s, layer.cpu_s))
    sent = [None, *(behind_a_message(there, floats) for floats in (few, many))]
    idle_s = _idle_s(connect)
    seen = np.array([[_cpu_s(connect, here, message, jobs, idle_s) for message in sent] for _ in range(rounds)])
    beside, inferring = np.moveaxis(seen, 2, 0)  # [rounds, sizes, sides]
    small = np.median(beside[:, 1] - beside[:, 0], axis=0) / jobs
    more = (beside[:, 2] - beside[:, 1] + inferring[:, 2] - inferring[:, 1]) / jobs / (4 * (many - few))
    # CPU seconds that a side has while a byte passes
    byte_s = np.array([layer.received_s / layer.wall_s, 1.0]) / up_bytes_per_s
    taken = [shrunk(*side) for side in zip((more / byte_s).T, TAKEN, SCATTER, strict=True)]
    per_byte = (byte_s * taken).tolist()
    device, server = ((max(0.0, s - 4 * few * b), b) for s, b in zip(small.tolist(), per_byte, strict=True))
    return MessageCost(device, server, idle_s)


def shrunk(seen: FloatArray, usual: float, unlike: float) -> float:
    """The mean of what was seen, drawn to what is usual; `unlike` is the standard deviation of machines. Not negative.

    With normal errors the mean of what is then believed; one number says nothing of its error and counts like its distance.

    >>> few, many = np.array([-20.0, 36.0]), np.array([19.0, 21.0, 20.0])
    >>> round(shrunk(few, 10.0, 4.0), 1), round(shrunk(many, 10.0, 4.0), 1)
    (10.0, 19.8)
    """
    error = np.std(seen, ddof=1) / np.sqrt(len(seen)) if len(seen) > 1 else abs(seen[0] - usual)
    trust = unlike**2 / (unlike**2 + error**2)
    return max(0.0, float(usual + trust * (np.mean(seen) - usual)))


def _idle_s(connect: Callable[[], Client]) -> float:
    """CPU seconds that an open connection takes of this process in a second. Raises Unreachable."""
    connection = Connection(connect, [], [])
    try:
        event = connection.events.get(timeout=READY_S)
        if event.kind != "up":
            raise Unreachable(event.why)
        began_s, used_s = time.perf_counter(), time.process_time()
        time.sleep(IDLE_S)
        return (time.process_time() - used_s) / (time.perf_counter() - began_s)
    except queue.Empty:
        raise Unreachable(f"the server was silent for {READY_S:.0f} s") from None
    finally:
        connection.close()


def _cpu_s(
    connect: Callable[[], Client],
    here: OnnxModel,
    message: OnnxModel | None,
    jobs: int,
    idle_s: float,
) -> FloatArray:
    """[beside inferences, in them][device, server] CPU seconds of `jobs` inferences here, each followed by a message that begins
    an inference there, without what the open connection takes; None: by no message, and no connection
    is opened."""
    models = [here, message] if message else [here]
    rows, cuts = [], []
    for m in models:
        tasks = m.tasks_topological
        rows.append(m.offload_job(dict.fromkeys(tasks, 1.0), dict.fromkeys(tasks, 0.0)))
        cuts.append(frozenset(tasks) if m is here else frozenset())
    n = jobs * len(models)
    named = tuple(replace(row, name=str(k)) for k, row in enumerate(rows * jobs))
    problem, plan = OffloadProblem(OffloadLink(1e9, 1e9), named), OffloadPlan(tuple(range(n)), tuple(cuts * jobs))
    feeds = [random_inputs(m) for m in models]
    before: list[float] = []
    with connect() as client:
        settings = RunSettings(begin=lambda: before.append(client.cpu_s()))
        done = execute(problem, plan, models * jobs, feeds * jobs, connect, settings)
        used = np.array([done.cpu_s, client.cpu_s() - before[0]])
    answered = sum(t.server is not None for t in done.times)
    if message and answered < jobs:
        raise Refused(
            f"the server did {answered} of {jobs} jobs while messages were priced",
            hint="measure when it has room, or start it with more --queue and --memory-mb",
        )
    inferring = np.array(list(inferring_cpu_s(done.times).values()))
    # the device probes behind its inferences with and without messages; the server infers, and probes, behind messages only
    others = np.array([idle_s * done.makespan_s if message else 0.0, sum(t.server_probe_s for t in done.times)])
    return np.array([used - inferring - others, inferring])


def _layer() -> Lap:
    """What a layer takes here and now."""
    layers, runs = 8, 3
    model = computing(layers)
    session, feed, meter = Session(model.data, model.name), random_inputs(model), Speedometer()
    session.run(feed)
    laps = [meter.infer(lambda: session.run(feed))[1] for _ in range(runs)]
    return Lap(*(sum(x) / (layers * runs) for x in zip(*map(astuple, laps), strict=True)))
