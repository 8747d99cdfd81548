"""What a message costs the processors: sending on the device, receiving and answering on the server.

Jobs of next to no arithmetic, small ones and large ones, go through the real runner and the real server; the CPU time of
both processes is divided by the jobs. It counts where a device is slow: under a quota of a tenth of a core, a millisecond
of Python and system calls a message is ten.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from onnx import TensorProto, helper

from partita.nouns.offload import OffloadLink, OffloadPlan, OffloadProblem
from partita.offload.capture.onnx_model import OnnxModel
from partita.offload.run.client import Client
from partita.offload.run.execute import RunSettings, execute

JOBS = 24
APART_S = 0.02  #: so that each message wakes all threads, as it does between jobs that compute
SMALL, LARGE = 1_000, 150_000  #: floats of a job
ON_LINK_S = 0.1  #: of a large one


@dataclass(frozen=True)
class MessageCost:
    """CPU seconds of a job that crosses: (a message, a byte of it)."""

    device: tuple[float, float]
    server: tuple[float, float]


def message_cost(connect: Callable[[], Client], up_bytes_per_s: float, jobs: int = JOBS) -> MessageCost:
    """Measured with 2 x `jobs` jobs; large ones are such that the uplink is soon done. Raises Unreachable, Refused."""
    many = int(np.clip(ON_LINK_S * up_bytes_per_s / 4, 4 * SMALL, LARGE))
    small, large = (_cpu_s(connect, n, jobs) for n in (SMALL, many))
    per_byte = np.maximum(0.0, (large - small) / (4 * (many - SMALL)))
    fixed = np.maximum(0.0, small - per_byte * 4 * SMALL)
    device, server = zip(fixed.tolist(), per_byte.tolist(), strict=True)
    return MessageCost(device, server)


def _cpu_s(connect: Callable[[], Client], floats: int, jobs: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """[device, server] CPU seconds a job."""
    model = _nothing(floats)
    (task,) = model.tasks_topological
    job = model.offload_job({task: 1.0}, {task: 0.0})
    rows = tuple(replace(job, name=str(k), release_s=k * APART_S) for k in range(jobs))
    problem = OffloadProblem(OffloadLink(1e9, 1e9), rows)
    plan = OffloadPlan(tuple(range(jobs)), (frozenset(),) * jobs)
    feed = {"x": np.ones(floats, np.float32)}
    before: list[float] = []
    with connect() as client:
        settings = RunSettings(begin=lambda: before.append(client.cpu_s()))
        done = execute(problem, plan, [model] * jobs, [feed] * jobs, connect, settings)
        return np.array([done.cpu_s, client.cpu_s() - before[0]]) / jobs


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
