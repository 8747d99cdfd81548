"""Capture a model: any nn.Module with a loss and a batch -> a TaskGraph, and the code of every task.

`torch.export` gives the forward as one graph of ATen calls that autograd can still differentiate, so a stage runs the
very kernels that the model itself would run. A task is one call together with the views of its result; its backward
and its share of the optimizer's step are tasks of their own that follow it.

What depends on no parameter (attention masks, positions) is no task: every stage that needs it computes it again
from the batch, which is cheaper than sending it.
"""

from __future__ import annotations

import traceback
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.export.graph_signature import InputKind
from torch.utils import _pytree as pytree

from partita.capture.functional import functionalise
from partita.errors import CaptureError
from partita.graph import SharedParameter, Task, TaskGraph
from partita.job import Batch, call


@dataclass(frozen=True)
class Captured:
    """A model as a graph of tasks, and the code behind it."""

    graph: TaskGraph
    code: fx.GraphModule  #: the whole forward with its loss; its placeholders are listed in `bindings`
    bindings: Mapping[str, Binding]  #: placeholder name -> what it stands for
    nodes: tuple[tuple[str, ...], ...]  #: [forward tasks, in graph order] names of the code's nodes that each task runs
    values: tuple[str, ...]  #: [tensors of the graph] name of the node that makes it; "" for bookkeeping edges
    loss: str  #: name of the node that is the loss
    aliases: Mapping[str, tuple[str, ...]]  #: parameter or buffer name -> other names of the same tensor
    meta: Mapping[str, TensorMeta]  #: node name -> what its value looks like

    @cached_property
    def task_nodes(self) -> dict[str, tuple[str, ...]]:
        """Forward task id -> names of the nodes it runs."""
        forward = [t.id for t in self.graph.tasks if t.phase == "forward"]
        return dict(zip(forward, self.nodes, strict=True))


@dataclass(frozen=True)
class Binding:
    """What a placeholder of the code stands for."""

    kind: str  #: "parameter", "buffer", "constant" or "input"
    name: str  #: the model's own name of it; of an input: its position among the batch's leaves
    constant: Any = None


@dataclass(frozen=True)
class TensorMeta:
    """Shape and layout of a value."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    requires_grad: bool

    @property
    def size_bytes(self) -> int:
        return self.dtype.itemsize * torch.Size(self.shape).numel()


class _WithLoss(nn.Module):
    """Model and loss as one module, as torch.export wants it."""

    def __init__(self, model: nn.Module, loss: Callable[[Any, Any], Tensor]) -> None:
        super().__init__()
        self.model = model
        self.loss = loss

    def forward(self, inputs: Any, target: Any) -> Tensor:
        return self.loss(call(self.model, inputs), target)


def capture(model: nn.Module, loss: Callable[[Any, Any], Tensor], batch: Batch, name: str | None = None) -> Captured:
    """The model's tasks at this batch's shapes. The model's parameters and buffers are left as they were.

    Raises CaptureError that names the line of the model that torch.export cannot follow, and the way out.
    """
    if not isinstance(model, nn.Module):
        raise CaptureError(f"a {type(model).__name__} cannot be captured", hint="give a torch.nn.Module")
    program = _export(_WithLoss(model, loss), batch)
    code = fx.GraphModule(program.graph_module, program.graph)
    bindings = _bindings(program, _aliases(model))
    functionalise(code, {n for n, b in bindings.items() if b.kind == "buffer"})
    output = next(n for n in code.graph.nodes if n.op == "output")
    loss_node = output.args[0][0]
    _check_loss(loss_node)
    observed = _observe(code, bindings, model, batch)
    return _build(name or type(model).__name__, code, bindings, loss_node.name, observed, model)


def _export(module: nn.Module, batch: Batch) -> Any:
    try:
        return torch.export.export(module, batch, strict=False)
    except Exception as error:
        line = _users_line(error)
        fact = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise CaptureError(
            f"the model cannot be captured{line}: {type(error).__name__}: {fact}",
            hint="branches and shapes must not depend on the values of tensors: use torch.where or torch.cond there; "
            "and check that the batch fits the model",
        ) from error


def _users_line(error: BaseException) -> str:
    """' at FILE:LINE (code)' of the innermost frame that is not torch's own."""
    own = torch.__path__[0]
    frames = [
        f
        for f in traceback.extract_tb(error.__traceback__)
        if not f.filename.startswith(own) and "partita/capture" not in f.filename
    ]
    frames = [f for f in frames if f.name != "call" or "partita" not in f.filename]
    return f" at {frames[-1].filename}:{frames[-1].lineno} ({frames[-1].line})" if frames else ""


def _check_loss(node: Any) -> None:
    value = node.meta.get("val") if isinstance(node, fx.Node) else None
    if not isinstance(value, Tensor) or value.numel() != 1 or not value.dtype.is_floating_point:
        got = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
        raise CaptureError(
            f"the loss gives {got}, not one number", hint="let `loss(output, target)` return the mean over the samples"
        )


def _bindings(program: Any, aliases: Mapping[str, Sequence[str]]) -> dict[str, Binding]:
    """Placeholder name -> what it stands for; the wrapper's "model." is taken off, a tied tensor has its first name."""
    first = {other: name for name, others in aliases.items() for other in others}
    found: dict[str, Binding] = {}
    inputs = 0
    for spec in program.graph_signature.input_specs:
        name, target = spec.arg.name, (spec.target or "").removeprefix("model.")
        target = first.get(target, target)
        if spec.kind == InputKind.PARAMETER:
            found[name] = Binding("parameter", target)
        elif spec.kind == InputKind.BUFFER:
            found[name] = Binding("buffer", target)
        elif spec.kind == InputKind.USER_INPUT:
            found[name] = Binding("input", str(inputs))
            inputs += 1
        else:
            found[name] = Binding("constant", target, program.constants[spec.target])
    return found


def bound_values(bindings: Mapping[str, Binding], tensors: Mapping[str, Tensor], batch: Batch) -> dict[str, Any]:
    """Placeholder name -> its value, for a model's tensors (by name) and a batch."""
    leaves = pytree.tree_leaves(batch)
    pick: dict[str, Callable[[Binding], Any]] = {
        "parameter": lambda b: tensors[b.name],
        "buffer": lambda b: tensors[b.name],
        "constant": lambda b: b.constant,
        "input": lambda b: leaves[int(b.name)],
    }
    return {name: pick[b.kind](b) for name, b in bindings.items()}


@dataclass(frozen=True)
class _Observed:
    """What one real forward showed."""

    meta: dict[str, TensorMeta]
    saved_bytes: dict[
        str, int
    ]  #: node name -> bytes it keeps for the backward, each storage counted at its first keeper


def _observe(code: fx.GraphModule, bindings: Mapping[str, Binding], model: nn.Module, batch: Batch) -> _Observed:
    """Run the forward once, on copies of the buffers, and note every value's layout and what autograd keeps."""
    tensors: dict[str, Tensor] = dict(model.named_parameters(remove_duplicate=False))
    own = {p.untyped_storage().data_ptr() for p in tensors.values()}
    tensors |= {n: b.detach().clone() for n, b in model.named_buffers(remove_duplicate=False)}
    values = bound_values(bindings, tensors, batch)
    watcher = _Watcher(code, own)
    state = torch.get_rng_state()
    try:
        with torch.enable_grad():
            watcher.run(*(values[n.name] for n in code.graph.nodes if n.op == "placeholder"))
    except RuntimeError as error:
        raise CaptureError(
            f"the captured model cannot run on the batch: {error}", hint="check the batch's shapes and types"
        ) from error
    finally:
        torch.set_rng_state(state)
    return _Observed(watcher.meta, watcher.saved)


class _Watcher(fx.Interpreter):
    """Runs the code node by node and takes notes."""

    def __init__(self, code: fx.GraphModule, own: set[int]) -> None:
        super().__init__(code)
        self.meta: dict[str, TensorMeta] = {}
        self.saved: dict[str, int] = defaultdict(int)
        self._seen = set(own)
        self._kept: list[Tensor] = []  # keeps storages alive, so that no address is used twice

    def run_node(self, n: fx.Node) -> Any:
        def keep(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in self._seen:
                self._seen.add(storage.data_ptr())
                self._kept.append(tensor)
                self.saved[n.name] += storage.nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
            value = super().run_node(n)
        if isinstance(value, Tensor):
            self.meta[n.name] = TensorMeta(tuple(value.shape), tuple(value.stride()), value.dtype, value.requires_grad)
        return value


_VIEWS = frozenset(
    [
        "view",
        "reshape",
        "_unsafe_view",
        "transpose",
        "permute",
        "t",
        "unsqueeze",
        "squeeze",
        "expand",
        "select",
        "slice",
        "alias",
        "detach",
        "flatten",
        "unflatten",
        "getitem",
        "split",
        "split_with_sizes",
        "chunk",
        "unbind",
        "contiguous",
        "as_strided",
        "movedim",
        "swapaxes",
        "narrow",
        "unsafe_split",
        "unsafe_chunk",
    ]
)
_RANDOM = frozenset(
    [
        "dropout",
        "feature_dropout",
        "alpha_dropout",
        "rand",
        "randn",
        "randint",
        "bernoulli",
        "multinomial",
        "normal",
        "rand_like",
        "randn_like",
        "rrelu",
        "randperm",
        "native_dropout",
        "uniform",
    ]
)


def operator_name(node: fx.Node) -> str:
    """The short name of what a node calls: conv2d, add, getitem."""
    target = node.target
    name = (
        target._schema.name.split("::")[-1]
        if isinstance(target, torch._ops.OpOverload)
        else getattr(target, "__name__", str(target))
    )
    return str(name)


def _build(
    name: str,
    code: fx.GraphModule,
    bindings: Mapping[str, Binding],
    loss: str,
    observed: _Observed,
    model: nn.Module,
) -> Captured:
    nodes = [n for n in code.graph.nodes if n.op == "call_function"]
    live = _live(nodes, bindings)
    owner = _owners(nodes, live, bindings)
    members: dict[str, list[str]] = defaultdict(list)
    for n in nodes:
        if n.name in owner:
            members[owner[n.name]].append(n.name)
    position = {n.name: i for i, n in enumerate(nodes)}
    order = _task_order(code, members, owner, position)
    tasks = [_task(code, t, members[t], bindings, observed, model) for t in order]
    tensors = _tensors(code, owner, observed)
    graph, values = _with_backward(name, tasks, tensors, observed, members, bindings, code, model)
    aliases = _aliases(model)
    return Captured(
        graph, code, bindings, tuple(tuple(members[t]) for t in order), values, loss, aliases, observed.meta
    )


def _live(nodes: Sequence[fx.Node], bindings: Mapping[str, Binding]) -> set[str]:
    """Nodes that must run exactly once: they depend on a parameter, draw random numbers or write to a buffer."""
    live: set[str] = set()
    for n in nodes:
        feeds = list(n.all_input_nodes)
        depends = any(a.name in live or (a.name in bindings and bindings[a.name].kind == "parameter") for a in feeds)
        writes = _is_in_place(n) and any(a.name in bindings and bindings[a.name].kind == "buffer" for a in feeds[:1])
        if depends or writes or operator_name(n) in _RANDOM:
            live.add(n.name)
    return live


def _is_in_place(node: fx.Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable


def _owners(nodes: Sequence[fx.Node], live: set[str], bindings: Mapping[str, Binding]) -> dict[str, str]:
    """Node name -> name of the node whose task runs it.

    A view joins the task that makes what it views. A task without inputs that feeds one task only joins that one, and
    a buffer's counter joins the task of its module; no circle can arise from either.
    """
    owner: dict[str, str] = {}
    for n in nodes:
        if n.name not in live:
            continue
        sources = {owner[a.name] for a in n.all_input_nodes if a.name in owner}
        folds = operator_name(n) in _VIEWS and len(sources) == 1
        owner[n.name] = sources.pop() if folds else n.name
    _fold_sources(nodes, owner)
    return owner


def _fold_sources(nodes: Sequence[fx.Node], owner: dict[str, str]) -> None:
    """Merge every task that reads no other task into the first one it feeds (or, feeding none, the next of its module)."""
    changed = True
    while changed:
        changed = False
        reads: dict[str, set[str]] = defaultdict(set)
        feeds: dict[str, list[str]] = defaultdict(list)
        for n in nodes:
            if n.name in owner:
                for a in n.all_input_nodes:
                    if a.name in owner and owner[a.name] != owner[n.name]:
                        reads[owner[n.name]].add(owner[a.name])
                        if owner[n.name] not in feeds[owner[a.name]]:
                            feeds[owner[a.name]].append(owner[n.name])
        sources = [t for t in dict.fromkeys(owner.values()) if not reads[t]]
        for t in sources:
            into = feeds[t][0] if len(feeds[t]) == 1 else _neighbour(nodes, owner, t) if not feeds[t] else None
            if into is not None and into != t and len(sources) > 1 and (not feeds[t] or _is_light(nodes, owner, t)):
                for name in [k for k, v in owner.items() if v == t]:
                    owner[name] = into
                changed = True
                break


def _is_light(nodes: Sequence[fx.Node], owner: Mapping[str, str], task: str) -> bool:
    """A task made of views, sums and copies only: a parameter prepared for use, not a layer."""
    light = _VIEWS | {
        "add",
        "mul",
        "sub",
        "div",
        "clone",
        "to",
        "_to_copy",
        "cat",
        "stack",
        "exp",
        "neg",
        "sigmoid",
        "add_",
    }
    return all(operator_name(n) in light for n in nodes if owner.get(n.name) == task)


def _neighbour(nodes: Sequence[fx.Node], owner: Mapping[str, str], task: str) -> str | None:
    """The first task after `task` that comes from the same module, else the next one, else the one before."""
    names = [n.name for n in nodes]
    at = names.index(task)
    module = _module_path(nodes[at])
    others = [n for n in [*nodes[at + 1 :], *nodes[:at][::-1]] if n.name in owner and owner[n.name] != task]
    same = [n for n in others if _module_path(n) == module]
    chosen = (same or others)[:1]
    return owner[chosen[0].name] if chosen else None


def _task_order(
    code: fx.GraphModule, members: Mapping[str, list[str]], owner: Mapping[str, str], position: Mapping[str, int]
) -> list[str]:
    """Tasks in the order in which the model makes them."""
    return sorted(members, key=lambda t: position[t])


def _module_path(node: fx.Node) -> str:
    """ "encoder.layer.0.attention" of the module that a node comes from."""
    stack = node.meta.get("nn_module_stack") or {}
    paths = [str(entry[0]) for entry in stack.values()]
    return paths[-1].removeprefix("L__self___").removeprefix("model").removeprefix(".") if paths else ""


def _task(
    code: fx.GraphModule,
    task: str,
    members: Sequence[str],
    bindings: Mapping[str, Binding],
    observed: _Observed,
    model: nn.Module,
) -> Task:
    by_name = {n.name: n for n in code.graph.nodes}
    main = by_name[task]
    sizes = {n: p.numel() * p.element_size() for n, p in model.named_parameters(remove_duplicate=False)}
    read = _parameters_of([by_name[m] for m in members], bindings)
    return Task(
        id=task,
        name=f"{_module_path(main)} {operator_name(main)}".strip(),
        group=_group_of([by_name[m] for m in members], bindings),
        parameter_bytes=float(sum(sizes[p] for p in read)),
        activation_bytes=float(sum(observed.saved_bytes.get(m, 0) for m in members)),
    )


def _parameters_of(nodes: Sequence[fx.Node], bindings: Mapping[str, Binding]) -> list[str]:
    """Names of the parameters that some nodes read, each once."""
    read = [
        bindings[a.name].name
        for n in nodes
        for a in n.all_input_nodes
        if a.name in bindings and bindings[a.name].kind == "parameter"
    ]
    return list(dict.fromkeys(read))


def _group_of(nodes: Sequence[fx.Node], bindings: Mapping[str, Binding]) -> str | None:
    """Tasks that write, or read, a buffer that the forward changes share a device."""
    for n in nodes:
        for a in n.all_input_nodes:
            written = a.name in bindings and bindings[a.name].kind == "buffer" and any(_writes(u, a) for u in a.users)
            if written and len(a.users) > 1:
                return f"buffer {bindings[a.name].name}"
        if n.meta.get("partita_group"):
            return str(n.meta["partita_group"])
    return None


def _writes(node: fx.Node, buffer: fx.Node) -> bool:
    if operator_name(node) in ("batch_norm", "instance_norm"):
        return len(node.args) > 4 and buffer in node.args[3:5] and bool(node.args[5])
    return _is_in_place(node) and bool(node.args) and node.args[0] is buffer


def written_buffers(nodes: Sequence[fx.Node], bindings: Mapping[str, Binding]) -> tuple[str, ...]:
    """Names of the buffers that some nodes change."""
    found = [
        bindings[a.name].name
        for n in nodes
        for a in n.all_input_nodes
        if a.name in bindings and bindings[a.name].kind == "buffer" and _writes(n, a)
    ]
    return tuple(dict.fromkeys(found))


def _tensors(
    code: fx.GraphModule, owner: Mapping[str, str], observed: _Observed
) -> list[tuple[str, str, float, list[str]]]:
    """(node, producer task, bytes, reader tasks) of every value that another task reads, directly or through a non-task."""
    found = []
    for n in code.graph.nodes:
        if n.name not in owner or n.name not in observed.meta:
            continue
        readers = dict.fromkeys(owner[u.name] for u in n.users if u.name in owner and owner[u.name] != owner[n.name])
        if readers:
            found.append((n.name, owner[n.name], float(observed.meta[n.name].size_bytes), list(readers)))
    return found


def _with_backward(
    name: str,
    tasks: Sequence[Task],
    tensors: Sequence[tuple[str, str, float, list[str]]],
    observed: _Observed,
    members: Mapping[str, list[str]],
    bindings: Mapping[str, Binding],
    code: fx.GraphModule,
    model: nn.Module,
) -> tuple[TaskGraph, tuple[str, ...]]:
    """Forward tasks, their backward tasks (edges turned round) and, where there are parameters, their updates."""
    trainable = {n for n, p in model.named_parameters(remove_duplicate=False) if p.requires_grad}
    by_name = {n.name: n for n in code.graph.nodes}
    reads = {
        t.id: [p for p in _parameters_of([by_name[m] for m in members[t.id]], bindings) if p in trainable]
        for t in tasks
    }
    differentiable = {
        t.id for t in tasks if any(m in observed.meta and observed.meta[m].requires_grad for m in members[t.id])
    }
    backward = [
        Task(f"{t.id}.backward", t.name, "backward", of=t.id) for t in reversed(tasks) if t.id in differentiable
    ]
    update = [
        Task(f"{t.id}.update", t.name, "update", of=t.id) for t in tasks if reads[t.id] and t.id in differentiable
    ]
    edges: list[tuple[str, float, list[str]]] = [(p, b, rs) for _, p, b, rs in tensors]
    values = [v for v, _, _, _ in tensors]
    turned: dict[tuple[str, str], float] = defaultdict(float)
    for value, producer, size, readers in tensors:
        if observed.meta[value].requires_grad:
            for r in readers:
                turned[r, producer] += size
    edges += [(f"{r}.backward", size, [f"{p}.backward"]) for (r, p), size in turned.items()]
    edges += [(t.of, 0.0, [t.id]) for t in backward if t.of]
    edges += [(f"{t.of}.backward", 0.0, [t.id]) for t in update]
    graph = TaskGraph.build(name, [*tasks, *backward, *update], edges, _shared(reads, model))
    return graph, (*values, *[""] * (len(edges) - len(values)))


def _shared(reads: Mapping[str, Sequence[str]], model: nn.Module) -> list[SharedParameter]:
    """Trainable parameters that more than one task reads."""
    readers: dict[str, list[str]] = defaultdict(list)
    for task, names in reads.items():
        for p in names:
            readers[p].append(task)
    sizes = {n: float(p.numel() * p.element_size()) for n, p in model.named_parameters(remove_duplicate=False)}
    return [SharedParameter(p, sizes[p], tuple(ts)) for p, ts in readers.items() if len(ts) > 1]


def _aliases(model: nn.Module) -> dict[str, tuple[str, ...]]:
    """First name of a tensor -> its other names, for tied parameters and buffers."""
    names: dict[int, list[str]] = defaultdict(list)
    state = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    for n, t in state:
        names[id(t)].append(n)
    return {ns[0]: tuple(ns[1:]) for ns in names.values() if len(ns) > 1}
