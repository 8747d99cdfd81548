"""From ONNX Runtime's profile to times per task.

ONNX Runtime fuses nodes, lays tensors out anew and names the result after what was there; so a kernel is not a task:

    kernel       r9_nchwc (Conv)            fused n16 (FusedGemm)       ReorderOutput_token_7
    stands for   Conv -> Add -> Relu = r9   Gemm n16 -> Relu            nothing in the model

Kernels run one after another. Each covers the tasks above the one it is named after that no earlier kernel covered, and its
time goes to the first of them with its operator, else to the first; the others take nothing of their own. A kernel named after
nothing (a change of layout) counts with the kernel before it. So all time has a task, and every prefix of tasks takes about
what the session of that prefix takes. Reconstructed from the profiles of ONNX Runtime 1.31.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from partita.errors import CaptureError
from partita.nouns.graph import FloatArray
from partita.offload.capture.onnx_model import OnnxModel

_SUFFIX = "_kernel_time"


def kernels_of(path: Path, runs: int) -> list[list[tuple[str, str, float]]]:
    """[runs][kernels] (name, operator, seconds), in the order of execution. Raises CaptureError for a profile without them."""
    events = json.loads(path.read_text())
    nodes = [e for e in events if e.get("cat") == "Node" and str(e.get("name", "")).endswith(_SUFFIX)]
    each = len(nodes) // runs
    if each == 0 or each * runs != len(nodes):
        raise CaptureError(
            f"the profile has {len(nodes)} kernels for {runs} runs",
            hint="a model of constants has nothing to measure; otherwise this ONNX Runtime profiles in another way",
        )
    rows = [(str(e["name"]).removesuffix(_SUFFIX), str(e["args"]["op_name"]), float(e["dur"]) * 1e-6) for e in nodes]
    return [rows[k * each : (k + 1) * each] for k in range(runs)]


def task_of_kernels(model: OnnxModel, kernels: Sequence[tuple[str, str]]) -> list[int]:
    """[kernels] index of the task that a kernel's time goes to. O(tasks + edges + kernels)."""
    known = _names(model)
    covered: set[int] = set()
    tasks: list[int] = []
    for name, operator in kernels:
        end = _find(known, name)
        if end is None:
            tasks.append(tasks[-1] if tasks else int(model.graph.order[0]))
            continue
        region = _cover(model, end, covered)
        alike = [t for t in region if _alike(model, t, operator)]
        tasks.append((alike or region or [end])[0])
    return tasks


def _names(model: OnnxModel) -> Mapping[str, int]:
    """Name of a node or of a value it makes -> its task."""
    names: dict[str, int] = {}
    for task, nodes in enumerate(model.layout.nodes):
        for n in nodes:
            node = model.proto.graph.node[n]
            names |= {name: task for name in (node.name, *node.output) if name}
    return names


def _find(known: Mapping[str, int], name: str) -> int | None:
    """The task that a kernel is named after: its name less "fused " and what was added behind an underscore."""
    name = name.removeprefix("fused ")
    while name not in known and "_" in name:
        name = name.rpartition("_")[0]
    return known.get(name)


def _cover(model: OnnxModel, end: int, covered: set[int]) -> list[int]:
    """The task and those above it that are not covered yet, in topological order; they are from now on."""
    stack, region = [end], set[int]()
    while stack:
        t = stack.pop()
        if t not in covered:
            covered.add(t)
            region.add(t)
            stack += model.graph.predecessors.row(t).tolist()
    return sorted(region, key=model.rank.__getitem__)


def _alike(model: OnnxModel, task: int, operator: str) -> bool:
    return any(model.proto.graph.node[n].op_type in operator for n in model.layout.nodes[task])


def shares(model: OnnxModel, runs: Sequence[Sequence[tuple[str, str, float]]]) -> FloatArray:
    """[runs, tasks] seconds of each task in each run."""
    tasks = task_of_kernels(model, [(name, operator) for name, operator, _ in runs[0]])
    seconds = np.zeros((len(runs), len(model.graph)))
    for row, kernels in zip(seconds, runs, strict=True):
        np.add.at(row, tasks, [s for _, _, s in kernels])
    return seconds
