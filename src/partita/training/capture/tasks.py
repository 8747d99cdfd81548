"""Cut a functional graph into tasks, and link their forward and backward.

A task is one call together with the views of its result. What depends on no parameter (masks, positions) is no task.
Tasks that share memory that is written to, or a value whose shape is known only at run time, share a colocation group.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor, fx, nn

from partita.nouns.graph import SharedParameter, Task, TaskGraph
from partita.training.capture.captured import Binding, TensorMeta
from partita.training.capture.operators import VIEWS, draws_random_numbers, is_in_place, module_path, operator_name


@dataclass(frozen=True)
class Observed:
    """What one real forward showed."""

    meta: Mapping[str, TensorMeta]
    saved_bytes: Mapping[str, int]  #: node -> bytes it keeps for the backward, each storage counted at its first keeper


@dataclass(frozen=True)
class Cut:
    """The tasks of a graph."""

    graph: TaskGraph
    nodes: tuple[tuple[str, ...], ...]  #: [forward tasks, in graph order] names of the nodes that each task runs
    values: tuple[str, ...]  #: [tensors of the graph] name of the node that makes it; "" for bookkeeping edges


def cut_into_tasks(
    name: str, code: fx.GraphModule, bindings: Mapping[str, Binding], loss: str, observed: Observed, model: nn.Module
) -> Cut:
    """The tasks of a graph that `functionalise` has been over. O(nodes x tasks without inputs)."""
    nodes = [n for n in code.graph.nodes if n.op == "call_function"]
    owner = _owners(nodes, _live(nodes, bindings))
    position = {n.name: i for i, n in enumerate(nodes)}
    members: dict[str, list[fx.Node]] = defaultdict(list)
    for n in nodes:
        if n.name in owner:
            members[owner[n.name]].append(n)
    members = {t: members[t] for t in sorted(members, key=lambda t: position[t])}
    groups = _groups(nodes, owner, observed)
    sizes = {n: float(p.numel() * p.element_size()) for n, p in model.named_parameters(remove_duplicate=False)}
    tasks = [
        Task(
            t,
            f"{module_path(ns[0])} {operator_name(ns[0])}".strip(),
            group=groups.get(t),
            parameter_bytes=sum(sizes[p] for p in parameters_of(ns, bindings)),
            activation_bytes=float(sum(observed.saved_bytes.get(m.name, 0) for m in ns)),
        )
        for t, ns in ((t, _main_first(t, ns)) for t, ns in members.items())
    ]
    trained = {n for n, p in model.named_parameters(remove_duplicate=False) if p.requires_grad}
    reads = {t: [p for p in parameters_of(ns, bindings) if p in trained] for t, ns in members.items()}
    tensors = _tensors(nodes, owner, observed.meta)
    shared = _shared(reads, sizes)
    reached = _reached(nodes, owner, loss, observed.meta)
    turned = _turned(nodes, owner, reached, observed.meta)
    graph, values = _linked(name, tasks, tensors, turned, {owner[n] for n in reached if n in owner}, reads, shared)
    return Cut(graph, tuple(tuple(n.name for n in ns) for ns in members.values()), values)


def _main_first(task: str, nodes: Sequence[fx.Node]) -> list[fx.Node]:
    """The node that a task is named after comes first."""
    return sorted(nodes, key=lambda n: n.name != task)


# ---- which node belongs to which task -----------------------------------------------------------------------------------


def _live(nodes: Sequence[fx.Node], bindings: Mapping[str, Binding]) -> set[str]:
    """Nodes that must run exactly once, where they belong.

    They depend on a parameter, draw random numbers, or touch a buffer that the forward changes.
    """
    live = {n for n, b in bindings.items() if b.kind == "parameter"}
    changed = {b for n in nodes for b in n.meta.get("partita_writes", ())}
    for n in nodes:
        touches = not changed.isdisjoint(n.meta.get("partita_touches", ()))
        if touches or draws_random_numbers(n) or any(a.name in live for a in n.all_input_nodes):
            live.add(n.name)
    return live


_FOLDED = VIEWS | {"batch_norm_moments"}  #: are done by whoever makes what they look at


def _owners(nodes: Sequence[fx.Node], live: set[str]) -> dict[str, str]:
    """Node name -> name of the node whose task runs it.

    A view joins the task that makes what it views, a write to a fresh copy the task that makes the copy. A task without
    inputs that feeds one task only joins that one, and a buffer's counter joins the task of its module. No circle can
    arise from any of these.
    """
    owner: dict[str, str] = {}
    for n in nodes:
        if n.name not in live:
            continue
        sources = {owner[a.name] for a in n.all_input_nodes if a.name in owner}
        folds = operator_name(n) in _FOLDED and len(sources) == 1
        copy = n.all_input_nodes[0].name if is_in_place(n) and not n.meta.get("partita_writes") else None
        if copy in owner:
            owner[n.name] = owner[copy]
        else:
            owner[n.name] = sources.pop() if folds else n.name
    _fold_sources(nodes, owner)
    return owner


def _fold_sources(nodes: Sequence[fx.Node], owner: dict[str, str]) -> None:
    """Merge every task that reads no other task into the one it feeds (or, feeding none, the next of its module)."""
    while True:
        reads, feeds = _links(nodes, owner)
        sources = [t for t in dict.fromkeys(owner.values()) if not reads[t]]
        merged = None
        for t in sources if len(sources) > 1 else ():
            into = next(iter(feeds[t])) if len(feeds[t]) == 1 else _neighbour(nodes, owner, t) if not feeds[t] else None
            if into is not None and into != t and (not feeds[t] or _is_light(nodes, owner, t)):
                merged = t, into
                break
        if merged is None:
            return
        for name in [k for k, v in owner.items() if v == merged[0]]:
            owner[name] = merged[1]


def _links(
    nodes: Sequence[fx.Node], owner: Mapping[str, str]
) -> tuple[dict[str, set[str]], dict[str, dict[str, None]]]:
    """(task -> tasks it reads, task -> tasks it feeds in order)."""
    reads: dict[str, set[str]] = defaultdict(set)
    feeds: dict[str, dict[str, None]] = defaultdict(dict)
    for n in nodes:
        for a in n.all_input_nodes if n.name in owner else ():
            if a.name in owner and owner[a.name] != owner[n.name]:
                reads[owner[n.name]].add(owner[a.name])
                feeds[owner[a.name]][owner[n.name]] = None
    return reads, feeds


_LIGHT = VIEWS | {
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


def _is_light(nodes: Sequence[fx.Node], owner: Mapping[str, str], task: str) -> bool:
    """A task made of views, sums and copies only: a parameter prepared for use, not a layer."""
    return all(operator_name(n) in _LIGHT for n in nodes if owner.get(n.name) == task)


def _neighbour(nodes: Sequence[fx.Node], owner: Mapping[str, str], task: str) -> str | None:
    """The first task after `task` that comes from the same module, else the next one, else the one before."""
    at = next(i for i, n in enumerate(nodes) if n.name == task)
    module = module_path(nodes[at])
    others = [n for n in [*nodes[at + 1 :], *nodes[:at][::-1]] if n.name in owner and owner[n.name] != task]
    same = [n for n in others if module_path(n) == module]
    return owner[(same or others)[0].name] if others else None


def _groups(nodes: Sequence[fx.Node], owner: Mapping[str, str], observed: Observed) -> dict[str, str]:
    """Task -> colocation group.

    Together belong the tasks that touch a buffer which the forward changes, and those that make or read a value that is no
    tensor of known shape: it could not be received.
    """
    changed = {b for n in nodes for b in n.meta.get("partita_writes", ())}
    together: list[tuple[str, list[str]]] = []
    for b in sorted(changed):
        touching = [owner[n.name] for n in nodes if n.name in owner and b in n.meta.get("partita_touches", ())]
        together.append((f"buffer {b.removeprefix('b_model_')}", touching))
    for n in nodes:
        if n.name in owner and _is_unknown(n, observed.meta):
            together.append((f"value {n.name}", [owner[n.name], *(owner[u.name] for u in n.users if u.name in owner)]))
    return _united(together)


def _is_unknown(node: fx.Node, meta: Mapping[str, TensorMeta]) -> bool:
    """Its value is a plain number, or a tensor whose shape depends on values."""
    traced = node.meta.get("val")
    if isinstance(traced, Tensor):
        return any(not isinstance(n, int) for n in traced.shape)
    return node.name not in meta and not isinstance(traced, tuple | list)


def _united(together: Iterable[tuple[str, Sequence[str]]]) -> dict[str, str]:
    """Member -> name of the union of all sets it is in, named after the first; sets of one member are left out.

    >>> _united([("x", ["a", "b"]), ("y", ["b", "c"]), ("z", ["d", "d"])])
    {'a': 'x', 'b': 'x', 'c': 'x'}
    """
    name: dict[str, str] = {}
    for new, members in together:
        distinct = dict.fromkeys(members)
        if len(distinct) < 2:
            continue
        old = [name[m] for m in distinct if m in name]
        chosen = old[0] if old else new
        name |= {m: chosen for m, n in name.items() if n in old} | dict.fromkeys(distinct, chosen)
    return name


# ---- edges --------------------------------------------------------------------------------------------------------------


def parameters_of(nodes: Sequence[fx.Node], bindings: Mapping[str, Binding]) -> list[str]:
    """Names of the parameters that some nodes read, each once."""
    read = [a.name for n in nodes for a in n.all_input_nodes if a.name in bindings]
    return list(dict.fromkeys(bindings[p].name for p in read if bindings[p].kind == "parameter"))


def _tensors(
    nodes: Sequence[fx.Node], owner: Mapping[str, str], meta: Mapping[str, TensorMeta]
) -> list[tuple[str, str, float, list[str]]]:
    """(node, producer task, bytes, reader tasks) of every value that another task reads."""
    found = []
    for n in nodes:
        if n.name in owner:
            readers = dict.fromkeys(owner[u.name] for u in n.users if owner.get(u.name, owner[n.name]) != owner[n.name])
            if readers:
                size = float(meta[n.name].size_bytes) if n.name in meta else 0.0
                found.append((n.name, owner[n.name], size, list(readers)))
    return found


def _reached(nodes: Sequence[fx.Node], owner: Mapping[str, str], loss: str, meta: Mapping[str, TensorMeta]) -> set[str]:
    """Names of the values that a gradient of the loss reaches."""
    reached = {loss}
    for n in reversed(nodes):
        if n.name in reached:
            reached |= {a.name for a in n.all_input_nodes if a.name in owner and _carries(a, meta)}
    return reached


def _carries(node: fx.Node, meta: Mapping[str, TensorMeta]) -> bool:
    """The value requires a gradient; a list of tensors: one of those taken from it does."""
    return meta[node.name].requires_grad if node.name in meta else any(_carries(u, meta) for u in node.users)


def _turned(
    nodes: Sequence[fx.Node], owner: Mapping[str, str], reached: set[str], meta: Mapping[str, TensorMeta]
) -> dict[tuple[str, str], float]:
    """(reader, producer) -> bytes of the gradients that go back."""
    turned: dict[tuple[str, str], float] = defaultdict(float)
    for n in nodes:
        if n.name in reached and n.name in owner:
            readers = dict.fromkeys(owner[u.name] for u in n.users if u.name in reached)
            for r in readers:
                if r != owner[n.name]:
                    turned[r, owner[n.name]] += float(meta[n.name].size_bytes) if n.name in meta else 0.0
    return turned


def _linked(
    name: str,
    tasks: Sequence[Task],
    tensors: Sequence[tuple[str, str, float, list[str]]],
    turned: Mapping[tuple[str, str], float],
    trained: set[str],
    reads: Mapping[str, Sequence[str]],
    shared: Sequence[SharedParameter],
) -> tuple[TaskGraph, tuple[str, ...]]:
    """Forward tasks, backward tasks of those that a gradient reaches, updates of those of them that have parameters."""
    backward = [Task(f"{t.id}.backward", t.name, "backward", of=t.id) for t in reversed(tasks) if t.id in trained]
    update = [Task(f"{t.id}.update", t.name, "update", of=t.id) for t in tasks if reads[t.id] and t.id in trained]
    edges = [(producer, size, readers) for _, producer, size, readers in tensors]
    edges += [(f"{r}.backward", size, [f"{p}.backward"]) for (r, p), size in turned.items()]
    edges += [(t.of, 0.0, [t.id]) for t in backward if t.of]
    edges += [(f"{t.of}.backward", 0.0, [t.id]) for t in update]
    values = [v for v, _, _, _ in tensors]
    graph = TaskGraph.build(name, [*tasks, *backward, *update], edges, shared)
    return graph, (*values, *[""] * (len(edges) - len(values)))


def _shared(reads: Mapping[str, Sequence[str]], sizes: Mapping[str, float]) -> list[SharedParameter]:
    """Trainable parameters that more than one task reads."""
    readers: dict[str, list[str]] = defaultdict(list)
    for task, names in reads.items():
        for p in names:
            readers[p].append(task)
    return [SharedParameter(p, sizes[p], tuple(ts)) for p, ts in readers.items() if len(ts) > 1]
