"""What a message costs the processors: sending on the device, receiving and answering on the server.

Jobs that are hardly more than a message, small ones and large ones, go through the real runner and the real server while the
device computes convolutions between them, as in a run: then each message wakes its threads anew and finds the caches full of
something else. A message's cost is what a process needs beside its inferences, more than without messages; medians over rounds of none,
small and large in turn. The inferences themselves are left out: they change more with the machine's speed than a message costs.
It counts where a device is slow: under a quota of a tenth of a core, a millisecond of Python and system calls a message is ten.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from partita.nouns.graph import FloatArray
from partita.nouns.offload import OffloadLink, OffloadPlan, OffloadProblem
from partita.offload.capture.onnx_inputs import random_inputs
from partita.offload.capture.onnx_model import OnnxModel
from partita.offload.onnx_session import Session
from partita.offload.run.client import Client
from partita.offload.run.execute import RunSettings, execute

JOBS, ROUNDS = 10, 4
SMALL, LARGE = 1_000, 150_000  #: floats of a job
ON_LINK_S = 0.15  #: of a large one
CHANNELS, SIDE, MOST_LAYERS = 64, 56, 100  #: of what is computed between messages


@dataclass(frozen=True)
class MessageCost:
    """CPU seconds of a job that crosses: (a message, a byte of it)."""

    device: tuple[float, float]
    server: tuple[float, float]


def message_cost(
    connect: Callable[[], Client],
    up_bytes_per_s: float,
    jobs: int = JOBS,
    rounds: int = ROUNDS,
) -> MessageCost:
    """Measured with `rounds` x 2 x `jobs` jobs; what is computed between them takes about as long as a large message is on the
    uplink. Raises Unreachable, Refused."""
    many = int(np.clip(ON_LINK_S * up_bytes_per_s / 4, 4 * SMALL, LARGE))
    between = _computing(int(np.clip(4 * many / up_bytes_per_s / _layer_s(), 1, MOST_LAYERS)))
    seen = [[_cpu_s(connect, between, n, jobs) for n in (0, SMALL, many)] for _ in range(rounds)]
    small, large = (np.median([row[k] - row[0] for row in seen], axis=0) / jobs for k in (1, 2))
    per_byte = np.maximum(0.0, (large - small) / (4 * (many - SMALL)))
    fixed = np.maximum(0.0, small - per_byte * 4 * SMALL)
    device, server = zip(fixed.tolist(), per_byte.tolist(), strict=True)
    return MessageCost(device, server)


def _cpu_s(connect: Callable[[], Client], between: OnnxModel, floats: int, jobs: int) -> FloatArray:
    """[device, server] CPU seconds beside `jobs` inferences here with a message of so many floats after each; 0: none."""
    models = [between, _nothing(floats)] if floats else [between]
    rows, cuts = [], []
    for m in models:
        tasks = m.tasks_topological
        rows.append(m.offload_job(dict.fromkeys(tasks, 1.0), dict.fromkeys(tasks, 0.0)))
        cuts.append(frozenset(tasks) if m is between else frozenset())
    n = jobs * len(models)
    named = tuple(replace(row, name=str(k)) for k, row in enumerate(rows * jobs))
    problem, plan = OffloadProblem(OffloadLink(1e9, 1e9), named), OffloadPlan(tuple(range(n)), tuple(cuts * jobs))
    feeds = [random_inputs(m) for m in models]
    before: list[float] = []
    with connect() as client:
        settings = RunSettings(begin=lambda: before.append(client.cpu_s()))
        done = execute(problem, plan, models * jobs, feeds * jobs, connect, settings)
        beside_s = done.cpu_s - sum(t.device_cpu_s for t in done.times)
        return np.array([beside_s, client.cpu_s() - before[0]])


def _layer_s() -> float:
    """Seconds that a layer takes here and now, on the clock."""
    model = _computing(8)
    session, feed = Session(model.data, model.name), random_inputs(model)
    session.run(feed)
    began = time.perf_counter()
    for _ in range(3):
        session.run(feed)
    return (time.perf_counter() - began) / 24


def _computing(layers: int) -> OnnxModel:
    """So many convolutions, each with 0.15 MB of weights and 0.8 MB of output."""
    shape, chance = [1, CHANNELS, SIDE, SIDE], np.random.default_rng(0)
    names = ["x", *(f"y{k}" for k in range(layers))]
    nodes = [
        helper.make_node("Conv", [a, f"w{k}"], [b], b, pads=[1, 1, 1, 1]) for k, (a, b) in enumerate(pairwise(names))
    ]
    spread = 1 / np.sqrt(9 * CHANNELS)
    weights = [
        numpy_helper.from_array(chance.normal(0, spread, (CHANNELS, CHANNELS, 3, 3)).astype(np.float32), f"w{k}")
        for k in range(layers)
    ]
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n in (names[0], names[-1])]
    graph = helper.make_graph(nodes, "computing", ends[:1], ends[1:], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return OnnxModel.from_bytes(model.SerializeToString(), "computing")


def _nothing(floats: int) -> OnnxModel:
    """One number of many: all the cost is in the message."""
    nodes = [helper.make_node("ReduceMax", ["x"], ["y"], name="max", keepdims=1)]
    graph = helper.make_graph(
        nodes,
        "nothing",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [floats])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return OnnxModel.from_bytes(model.SerializeToString(), "nothing")
