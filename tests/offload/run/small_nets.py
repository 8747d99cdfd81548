"""Small ONNX networks with random weights, and servers to run them on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from partita.nouns.offload import OffloadJob, OffloadLink, OffloadPlan, OffloadProblem
from partita.offload.capture.onnx_model import OnnxModel

Array = npt.NDArray[np.float32]


def net(name: str = "small", seed: int = 0, channels: int = 8, side: int = 24, outputs: int = 1) -> OnnxModel:
    """Convolution, two branches, concatenation, a head; with `outputs` 2 also the first layer's mean as an answer."""
    rng = np.random.default_rng(seed)
    weights: list[onnx.TensorProto] = []

    def weight(label: str, *shape: int) -> str:
        value = rng.normal(0, 1 / np.sqrt(np.prod(shape[1:])), shape).astype(np.float32)
        weights.append(numpy_helper.from_array(value, label))
        return label

    c = channels
    nodes = [
        helper.make_node("Conv", ["x", weight("w1", c, 3, 3, 3)], ["a"], "stem", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["b"], "relu"),
        helper.make_node("Conv", ["b", weight("w2", c, c, 1, 1)], ["l"], "left"),
        helper.make_node("Conv", ["b", weight("w3", c, c, 3, 3)], ["r"], "right", pads=[1, 1, 1, 1]),
        helper.make_node("Concat", ["l", "r"], ["j"], "join", axis=1),
        helper.make_node("MaxPool", ["j"], ["m"], "pool", kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Conv", ["m", weight("w4", c, 2 * c, 3, 3)], ["n"], "late"),
        helper.make_node("GlobalAveragePool", ["n"], ["g"], "mean"),
        helper.make_node("Flatten", ["g"], ["f"], "flat"),
        helper.make_node("Gemm", ["f", weight("w5", c, 10)], ["y"], "head"),
    ]
    answers = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 10])]
    if outputs == 2:
        nodes.append(helper.make_node("GlobalAveragePool", ["b"], ["early"], "early"))
        answers.append(helper.make_tensor_value_info("early", TensorProto.FLOAT, [1, c, 1, 1]))
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, side, side])]
    graph = helper.make_graph(nodes, name, inputs, answers, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return OnnxModel.from_bytes(model.SerializeToString(), name)


def image(seed: int, side: int = 24) -> dict[str, Array]:
    return {"x": np.random.default_rng(seed).normal(size=(1, 3, side, side)).astype(np.float32)}


def problem_of(models: Sequence[OnnxModel], rate: float = 1e8, threads: int = 1) -> OffloadProblem:
    jobs: list[OffloadJob] = []
    for k, m in enumerate(models):
        times = dict.fromkeys(m.tasks_topological, 1e-3)
        job = m.offload_job(times, times)
        jobs.append(OffloadJob(f"{m.name}-{k}", job.input_bytes, job.tasks))
    return OffloadProblem(OffloadLink(rate, rate, 1e-4), tuple(jobs), threads)


def plan_of(problem: OffloadProblem, kept: Sequence[int], order: Sequence[int] | None = None) -> OffloadPlan:
    """Of each job the first `kept` tasks in topological order stay on the device."""
    cuts = tuple(
        frozenset(t.id for t in job.tasks[: k if k >= 0 else len(job.tasks)])
        for job, k in zip(problem.jobs, kept, strict=True)
    )
    return OffloadPlan(tuple(order or range(len(kept))), cuts)


@contextmanager
def served(
    folder: Path, *flags: str, port: int = 0, popen: Callable[..., subprocess.Popen[str]] = subprocess.Popen
) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """`partita offload serve` in a process of its own, started by `popen`; ("127.0.0.1:port", process)."""
    process = start(folder, *flags, port=port, popen=popen)
    try:
        yield address(folder, process), process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        process.communicate(timeout=10)


def start(
    folder: Path, *flags: str, port: int = 0, popen: Callable[..., subprocess.Popen[str]] = subprocess.Popen
) -> subprocess.Popen[str]:
    (folder / "port").unlink(missing_ok=True)
    words = [
        sys.executable,
        "-m",
        "partita",
        "offload",
        "serve",
        "--port",
        str(port),
        "--port-file",
        str(folder / "port"),
    ]
    words += ["--threads", "1", "--json", *flags]
    return popen(
        words, env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def address(folder: Path, process: subprocess.Popen[str], patience_s: float = 60.0) -> str:
    until = time.monotonic() + patience_s
    while not (folder / "port").exists():
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < until
        time.sleep(0.02)
    return f"127.0.0.1:{int((folder / 'port').read_text())}"
