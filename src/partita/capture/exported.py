"""Exported PyTorch models for inference: the task graph of one, and its two halves for any cut, like those of ONNX models.

`torch.export` gives the forward as one graph of ATen calls, here without writes in place. A call is a task, together with
the parts of its result; what depends on no input (masks, positions) belongs to the tasks that read it and lies on both
sides where both do. Halves are torch.fx modules with the parameters that they read.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, InputKind, OutputKind
from torch.utils import _pytree as pytree

from partita.capture import cut
from partita.capture.operators import draws_random_numbers, operator_name
from partita.errors import CaptureError, place_of, refuse, sentence_of
from partita.graph import Task, TaskGraph
from partita.offload import OffloadJob


@dataclass(frozen=True, eq=False)
class Half:
    """One side of a cut: a module from the values named `takes` to a tuple of those named `gives`."""

    code: fx.GraphModule
    takes: tuple[str, ...]
    gives: tuple[str, ...]

    def __call__(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """What it gives, by name, from values by name."""
        with torch.no_grad():
            return dict(zip(self.gives, self.code(*(values[n] for n in self.takes)), strict=True))


@dataclass(frozen=True, eq=False)
class ExportedHalves:
    """Two modules that together compute what the whole one does."""

    device: Half | None  #: from the inputs to what crosses, and to the answers it makes itself; None: nothing
    server: Half | None  #: from what crosses, and the inputs it reads, to the other answers; None: nothing
    crossing: tuple[str, ...]  #: names of the tensors that go from the one to the other


@dataclass(frozen=True, eq=False)
class ExportedModel:
    """A model with the shapes of its example inputs."""

    name: str
    program: ExportedProgram  #: without writes in place; not to be changed

    @staticmethod
    def of(
        model: nn.Module, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None, name: str | None = None
    ) -> ExportedModel:
        """Export a module in evaluation mode, at the shapes of its example inputs. The module is left as it was.

        Raises CaptureError that names the line of the model that cannot be followed.
        """
        training = [m for m in model.modules() if m.training]
        model.eval()
        try:
            program = torch.export.export(model, tuple(args), dict(kwargs or {}), strict=False)
        except Exception as error:  # whatever the model's own code raises
            raise CaptureError(
                f"the model cannot be exported{place_of(error)}: {sentence_of(error)}",
                hint="keep to tensor operations whose shapes do not depend on values",
            ) from error
        finally:
            for m in training:
                m.training = True
        return ExportedModel.from_program(program, name or type(model).__name__)

    @staticmethod
    def from_program(program: ExportedProgram, name: str) -> ExportedModel:
        """Raises CaptureError with every fault at once: no fixed shapes, buffers that change, random numbers."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # torch's own, from inside torch, as it copies its own trees
            plain = program.run_decompositions({})
        model = ExportedModel(name, plain)
        refuse(CaptureError, model._faults(), name, hint="export the model in evaluation mode, with fixed shapes")
        return model

    def _faults(self) -> list[str]:
        """What makes a program no inference at fixed shapes."""
        outputs, nodes = self.program.graph_signature.output_specs, self._node.values()
        faults = [f"it changes {s.target!r} as it runs" for s in outputs if s.kind != OutputKind.USER_OUTPUT]
        faults += [f"{n.name} draws random numbers" for n in nodes if n.op == "call_function" and _is_random(n)]
        faults += [f"the shape of {n.name} is not fixed" for n in nodes if _is_loose(n.meta.get("val"))]
        known = {*self.inputs, *self.owner}
        faults += [f"its output {a} depends on no input" for a in self.answers if isinstance(a, str) and a not in known]
        return faults

    # ---- tasks --------------------------------------------------------------------------------------------------------

    @cached_property
    def inputs(self) -> tuple[str, ...]:
        """Names of the values that a job brings, flat."""
        specs = self.program.graph_signature.input_specs
        return tuple(s.arg.name for s in specs if s.kind == InputKind.USER_INPUT)

    @cached_property
    def answers(self) -> tuple[Any, ...]:
        """Names of the values that a job wants, flat; a ConstantArgument where the model gives a constant."""
        specs = self.program.graph_signature.output_specs
        return tuple(s.arg if isinstance(s.arg, ConstantArgument) else s.arg.name for s in specs)

    @cached_property
    def owner(self) -> dict[str, str]:
        """Name of a value that depends on an input -> the task that makes it; checks that nobody reads make none."""
        found: dict[str, str] = {}
        brought = set(self.inputs)
        for n in self.program.graph.nodes:
            reads = [i.name for i in n.all_input_nodes]
            if n.op == "call_function" and n.users and any(r in found or r in brought for r in reads):
                part = operator_name(n) == "getitem" and reads[0] in found
                found[n.name] = found[reads[0]] if part else n.name
        return found

    @cached_property
    def layout(self) -> tuple[TaskGraph, tuple[str, ...]]:
        """(the graph, the value that each of its tensors is)."""
        tasks = {t: Task(t, _place(self._node[t])) for t in dict.fromkeys(self.owner.values())}
        wanted = set(self._answers_made)
        values, tensors = [], []
        for name, task in self.owner.items():
            node = self._node[name]
            readers = {self.owner[u.name] for u in node.users if u.name in self.owner} - {task}
            if isinstance(node.meta.get("val"), Tensor) and (readers or name in wanted):
                values.append(name)
                tensors.append((task, _bytes(node), [t for t in tasks if t in readers]))
        return TaskGraph.build(self.name, tasks.values(), tensors), tuple(values)

    @property
    def graph(self) -> TaskGraph:
        """Tasks and tensors, with bytes at the shapes of the example inputs."""
        return self.layout[0]

    @property
    def shape(self) -> cut.Shape:
        """chain, tree or dag."""
        return cut.shape_of(self.graph)

    @property
    def input_bytes(self) -> float:
        """What a job's inputs weigh."""
        return sum(_bytes(self._node[i]) for i in self.inputs)

    @cached_property
    def _node(self) -> dict[str, fx.Node]:
        return {n.name: n for n in self.program.graph.nodes}

    @property
    def _answers_made(self) -> list[str]:
        """The answers that tasks make, each once."""
        return list(dict.fromkeys(a for a in self.answers if isinstance(a, str) and a in self.owner))

    def offload_job(self, device_s: Mapping[str, float], server_s: Mapping[str, float]) -> OffloadJob:
        """A job for the planner, from seconds per task on either side. Raises CaptureError where one is missing."""
        return cut.offload_job(self.graph, self.input_bytes, device_s, server_s)

    # ---- halves -------------------------------------------------------------------------------------------------------

    def halves(self, device: Set[str]) -> ExportedHalves:
        """The two sides of a cut. Raises CaptureError where `device` is no downset of the tasks."""
        crossing = tuple(self.layout[1][k] for k in cut.crossing(self.graph, device).tolist())
        here = {v for v, t in self.owner.items() if t in device}
        return ExportedHalves(
            self._half(here, (), crossing), self._half(set(self.owner) - here, crossing, ()), crossing
        )

    def _half(self, own: Set[str], incoming: Sequence[str], outgoing: Sequence[str]) -> Half | None:
        """The module of some values: it gives those of the answers that are among them, and `outgoing`."""
        if not own:
            return None
        needed = self._needed(own, incoming)
        takes = (*(i for i in self.inputs if i in needed), *incoming)
        gives = tuple(dict.fromkeys([*(a for a in self._answers_made if a in own), *outgoing]))
        graph, copies = fx.Graph(), dict[fx.Node, fx.Node]()
        for name in takes:
            copies[self._node[name]] = graph.placeholder(name)
        held = self._held
        root: dict[str, Any] = {}
        for node in self.program.graph.nodes:
            if node.name not in needed or node in copies:
                continue
            if node.op == "placeholder":
                root[f"held_{node.name}"] = held[node.name]
                copies[node] = graph.get_attr(f"held_{node.name}")
            else:
                if node.op == "get_attr":
                    root[str(node.target)] = getattr(self.program.graph_module, str(node.target))
                copies[node] = graph.node_copy(node, copies.__getitem__)
        graph.output(tuple(copies[self._node[g]] for g in gives))
        return Half(fx.GraphModule(root, graph, self.name), takes, gives)

    def _needed(self, own: Set[str], incoming: Sequence[str]) -> set[str]:
        """The values that a half computes, takes or holds: its own, and all that those read."""
        needed, waiting = set(own), list(own)
        while waiting:
            name = waiting.pop()
            if name in incoming:
                continue
            new = {i.name for i in self._node[name].all_input_nodes} - needed
            needed |= new
            waiting += new
        return needed

    @cached_property
    def _held(self) -> dict[str, Any]:
        """Name of an input of the graph that no job brings -> its parameter, buffer or constant."""
        program, found = self.program, dict[str, Any]()
        state = program.state_dict
        for s in program.graph_signature.input_specs:
            if s.kind != InputKind.USER_INPUT:
                target = str(s.target)
                found[s.arg.name] = state[target] if target in state else program.constants[target]
        return found

    # ---- running ------------------------------------------------------------------------------------------------------

    def run(self, halves: ExportedHalves, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        """What the whole model gives for these inputs, in its own structure: the device's half, then the server's."""
        flat = pytree.arg_tree_leaves(*args, **dict(kwargs or {}))
        values = dict(zip(self.inputs, flat, strict=True))
        for half in (halves.device, halves.server):
            values |= half(values) if half is not None else {}
        given = [a.value if isinstance(a, ConstantArgument) else values[a] for a in self.answers]
        return pytree.tree_unflatten(given, self.program.call_spec.out_spec)


def _is_random(node: fx.Node) -> bool:
    """Attention draws only where it is told to drop something out."""
    if "scaled_dot_product" in operator_name(node):
        return float(node.kwargs.get("dropout_p") or (node.args[4] if len(node.args) > 4 else 0.0)) > 0  # type: ignore[arg-type]
    return draws_random_numbers(node)


def _is_loose(value: object) -> bool:
    """A size that is known only when the model runs."""
    if isinstance(value, Tensor):
        return any(not isinstance(d, int) for d in value.shape)
    return isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool)


def _bytes(node: fx.Node) -> float:
    value = node.meta.get("val")
    return float(value.numel() * value.element_size()) if isinstance(value, Tensor) else 0.0


def _place(node: fx.Node) -> str:
    """Where a task comes from: "layer1.0.conv1 conv2d"."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    path = str(stack[-1][0]).replace("L['self'].", "") if stack else ""
    return f"{path} {operator_name(node)}".strip()
