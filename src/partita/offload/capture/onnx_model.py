"""ONNX models: the task graph of one, and its two halves for any cut.

A node that computes is a task; what only makes constants (ConstantOfShape of a shape that is known, Identity of a weight)
belongs to the tasks that read it and lies on both sides where both do. Halves are ONNX models themselves.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Set
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

import onnx

from partita.errors import CaptureError, sentence_of
from partita.nouns.graph import TaskGraph
from partita.nouns.offload import OffloadJob
from partita.offload.capture import cut, onnx_canonical
from partita.offload.capture.onnx_tasks import Layout, layout_of
from partita.offload.capture.onnx_types import Value, types_of


@dataclass(frozen=True)
class Halves:
    """Two models that together compute what the whole one does."""

    device: bytes | None  #: from the model's inputs to what crosses, and to the outputs it makes itself; None: nothing
    server: (
        bytes | None
    )  #: from what crosses, and the model's inputs if it reads them, to the other outputs; None: nothing
    crossing: tuple[str, ...]  #: names of the tensors that go from the one to the other


@dataclass(frozen=True, eq=False)
class OnnxModel:
    """A model in canonical form."""

    name: str
    proto: onnx.ModelProto  #: canonical; not to be changed

    @staticmethod
    def read(path: str | Path) -> OnnxModel:
        """The model in a file. Raises CaptureError where it is missing, damaged or not to be used."""
        return OnnxModel(Path(path).stem, onnx_canonical.read(path))

    @staticmethod
    def from_bytes(data: bytes, name: str) -> OnnxModel:
        """The model in the bytes of a file. Raises CaptureError like `read`."""
        return OnnxModel(name, onnx_canonical.canonical(onnx_canonical.parse(data, name), name))

    @staticmethod
    def of(graph: onnx.GraphProto) -> OnnxModel:
        """A model that one of our own graphs makes, of ONNX's standard operators."""
        made = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
        return OnnxModel.from_bytes(made.SerializeToString(), graph.name)

    @property
    def data(self) -> bytes:
        """The canonical bytes: `from_bytes` of them gives this model again. Made anew each time, so that a model is held
        once. O(bytes). Raises CaptureError beyond 2 GB."""
        return _bytes(self.proto, self.name)

    @cached_property
    def hash(self) -> str:
        """sha256 of the canonical bytes."""
        return hashlib.sha256(self.data).hexdigest()

    @cached_property
    def types(self) -> Mapping[str, Value]:
        """Name -> shape and type of every value that ONNX can infer one for."""
        return types_of(self.proto, self.name)

    @cached_property
    def layout(self) -> Layout:
        """Which nodes each task runs, and which task makes and reads which values."""
        return layout_of(self.proto, self.name, self.types)

    @property
    def graph(self) -> TaskGraph:
        """Tasks and tensors, with bytes for one inference."""
        return self.layout.graph

    @property
    def shape(self) -> cut.Shape:
        """chain, tree or dag."""
        return cut.shape_of(self.graph)

    @property
    def tasks_topological(self) -> tuple[str, ...]:
        """Ids of the tasks, each after those whose tensors it reads."""
        return tuple(self.graph.tasks[i].id for i in self.graph.order.tolist())

    @cached_property
    def rank(self) -> dict[int, int]:
        """Index of a task -> its place in the topological order."""
        return {int(t): k for k, t in enumerate(self.graph.order)}

    @property
    def inputs(self) -> tuple[Value, ...]:
        """What a job brings."""
        return tuple(self._value(i.name) for i in self.proto.graph.input)

    @property
    def outputs(self) -> tuple[Value, ...]:
        """What a job wants."""
        return tuple(self._value(o.name) for o in self.proto.graph.output)

    def _value(self, name: str) -> Value:
        return self.types.get(name, Value(name, None, None))

    @property
    def input_bytes(self) -> float:
        """What a job's inputs weigh; those of unknown shape count nothing, their readers stay on the device."""
        return float(sum(v.size_bytes or 0 for v in self.inputs))

    def halves(self, device: Set[str]) -> Halves:
        """The two sides of a cut. Raises CaptureError where `device` is no downset of the tasks."""
        return Halves(self.half(device, "device"), self.half(device, "server"), self._crossing(device))

    def half(self, device: Set[str], side: Literal["device", "server"]) -> bytes | None:
        """One side of a cut, without the cost of the other. Raises CaptureError like `halves`."""
        crossing, here = self._crossing(device), side == "device"
        tasks = [k for k, t in enumerate(self.graph.tasks) if (t.id in device) == here]
        return self._half(tasks, () if here else crossing, crossing if here else ())

    def _crossing(self, device: Set[str]) -> tuple[str, ...]:
        return tuple(self.layout.values[k] for k in cut.crossing(self.graph, device).tolist())

    def _half(self, tasks: list[int], incoming: tuple[str, ...], outgoing: tuple[str, ...]) -> bytes | None:
        """The model of some tasks; each of the whole model's outputs that they make is one of its outputs."""
        if not tasks:
            return None
        source = self.proto.graph
        own = {n for k in tasks for n in self.layout.nodes[k]}
        made = {o for n in own for o in source.node[n].output}
        needed = {r for n in own for r in onnx_canonical.reads(source.node[n])}
        for n in reversed(self.layout.constants):
            if needed.intersection(source.node[n].output):
                own.add(n)
                needed.update(onnx_canonical.reads(source.node[n]))
        half = onnx.ModelProto(ir_version=self.proto.ir_version, opset_import=self.proto.opset_import)
        half.graph.name = source.name
        half.graph.node.extend(source.node[n] for n in sorted(own))
        half.graph.initializer.extend(t for t in source.initializer if t.name in needed)
        half.graph.sparse_initializer.extend(t for t in source.sparse_initializer if t.values.name in needed)
        half.graph.input.extend(i for i in source.input if i.name in needed)
        half.graph.input.extend(self.types[v].info() for v in incoming)
        answers = [o for o in source.output if o.name in made]
        half.graph.output.extend(answers)
        half.graph.output.extend(self.types[v].info() for v in outgoing if v not in {o.name for o in answers})
        return _bytes(half, self.name)

    def offload_job(self, device_s: Mapping[str, float], server_s: Mapping[str, float]) -> OffloadJob:
        """A job for the planner, from seconds per task on either side. Raises CaptureError where one is missing."""
        return cut.offload_job(self.graph, self.input_bytes, device_s, server_s, self.layout.pinned)


def _bytes(model: onnx.ModelProto, name: str) -> bytes:
    try:
        data: bytes = model.SerializeToString(deterministic=True)
    except Exception as error:  # protobuf's own errors have no common root beside Exception
        raise CaptureError(
            f"{name} does not fit one message: {sentence_of(error)}", hint="models are limited to 2 GB"
        ) from error
    return data
