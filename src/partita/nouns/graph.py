"""TaskGraph: the work, as tasks and the tensors that flow between them.

A graph holds one micro-batch's worth of work. Tasks are numbered 0 .. n-1 in the order of `tasks`; a tensor has one
producer and any number of readers, and crosses to another device once however many tasks read it there.
"""

from __future__ import annotations

import hashlib
import heapq
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from partita.errors import GraphError, refuse
from partita.files import expect_format
from partita.records import lean, record

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]
Phase = Literal["forward", "backward", "update", "transfer", "stage"]


@dataclass(frozen=True, slots=True)
class Task:
    """One indivisible piece of work."""

    id: str  #: unique in its graph
    name: str = ""  #: where it comes from, e.g. "layer1.0.conv1 conv2d"
    phase: Phase = "forward"
    group: str | None = None  #: tasks of one colocation group share a device
    of: str | None = None  #: a backward or update task: the forward task it belongs to, and follows to its device
    parameter_bytes: float = 0.0  #: parameters it reads (a shared one is counted at each reader; see `shared`)
    activation_bytes: float = 0.0  #: kept from its forward until its backward has run


@dataclass(frozen=True, slots=True)
class SharedParameter:
    """A parameter that more than one task reads (tied weights)."""

    name: str
    size_bytes: float
    tasks: tuple[str, ...]


@dataclass(frozen=True)
class Csr:
    """Rows of integers in two flat arrays: row i is `items[start[i]:start[i + 1]]`."""

    start: IntArray  #: [rows + 1]
    items: IntArray  #: [entries]

    def row(self, i: int) -> IntArray:
        return self.items[self.start[i] : self.start[i + 1]]


@dataclass(frozen=True, eq=False)
class TaskGraph:
    """Tasks, tensors and who reads them."""

    name: str
    tasks: tuple[Task, ...]
    producer: IntArray  #: [tensors] index of the task that makes it
    size_bytes: FloatArray  #: [tensors]
    readers: Csr  #: [tensors] indices of the tasks that read it
    shared: tuple[SharedParameter, ...] = ()

    @staticmethod
    def build(
        name: str,
        tasks: Iterable[Task],
        tensors: Iterable[tuple[str, float, Sequence[str]]],
        shared: Iterable[SharedParameter] = (),
    ) -> TaskGraph:
        """A graph from (producer id, bytes, reader ids) triples. Raises GraphError with every fault at once.

        >>> g = TaskGraph.build("chain", [Task("a"), Task("b")], [("a", 4.0, ["b"])])
        >>> g.successors.row(0).tolist()
        [1]
        """
        tasks, tensors, shared = tuple(tasks), list(tensors), tuple(shared)
        index = {t.id: i for i, t in enumerate(tasks)}
        unknown = [
            f"tensor {k} of {p!r} names the unknown task {r!r}"
            for k, (p, _, rs) in enumerate(tensors)
            for r in (p, *rs)
            if r not in index
        ]
        refuse(GraphError, unknown, f"graph {name!r}")
        graph = TaskGraph(
            name,
            tasks,
            np.array([index[p] for p, _, _ in tensors], np.int64),
            np.array([b for _, b, _ in tensors], np.float64),
            csr([[index[r] for r in rs] for _, _, rs in tensors]),
            shared,
        )
        refuse(GraphError, graph.check(), f"graph {name!r}")
        return graph

    def __len__(self) -> int:
        return len(self.tasks)

    @cached_property
    def index(self) -> dict[str, int]:
        """Task id -> index."""
        return {t.id: i for i, t in enumerate(self.tasks)}

    @cached_property
    def edges(self) -> IntArray:
        """[edges, 2] distinct (task, task that reads something of it), sorted."""
        counts = np.diff(self.readers.start)
        pairs = np.stack([np.repeat(self.producer, counts), self.readers.items], axis=1)
        return np.unique(pairs, axis=0) if len(pairs) else pairs

    @cached_property
    def successors(self) -> Csr:
        """[tasks] the distinct tasks that read something of a task."""
        return _rows(self.edges[:, 0], self.edges[:, 1], len(self))

    @cached_property
    def predecessors(self) -> Csr:
        """[tasks] the distinct tasks whose tensors a task reads."""
        turned = self.edges[np.lexsort((self.edges[:, 0], self.edges[:, 1]))] if len(self.edges) else self.edges
        return _rows(turned[:, 1], turned[:, 0], len(self))

    @cached_property
    def tensors_of(self) -> Csr:
        """[tasks] the tensors a task makes."""
        order = np.argsort(self.producer, kind="stable").astype(np.int64)
        return _rows(self.producer[order], order, len(self))

    @cached_property
    def tensor_read(self) -> IntArray:
        """[readings] the tensor that each entry of `readers.items` reads."""
        return np.repeat(np.arange(len(self.producer)), np.diff(self.readers.start))

    @cached_property
    def atom(self) -> IntArray:
        """[tasks] number of the atom a task belongs to: tasks that must share a device, numbered by first task.

        Tasks of one colocation group are one atom; a backward or update task belongs to its forward task's.
        O((tasks + groups) log tasks).
        """
        first: dict[str, int] = {}
        pairs = [(i, self.index[t.of]) for i, t in enumerate(self.tasks) if t.of is not None]
        pairs += [(i, first.setdefault(t.group, i)) for i, t in enumerate(self.tasks) if t.group is not None]
        one, other = np.array(pairs, np.int64).reshape(-1, 2).T
        label = np.arange(len(self), dtype=np.int64)
        while True:
            before = label
            least = np.minimum(label[one], label[other])
            label = label.copy()
            for ends in (one, other, before[one], before[other]):
                np.minimum.at(label, ends, least)
            label = label[label]
            if (label == before).all():
                return np.unique(label, return_inverse=True)[1].reshape(-1).astype(np.int64)

    @cached_property
    def order(self) -> IntArray:
        """[tasks] a topological order, first task first; ties by index. Raises GraphError that names a circle."""
        waiting = np.diff(self.predecessors.start).copy()
        ready = [int(i) for i in np.flatnonzero(waiting == 0)]
        order: list[int] = []
        start, items = self.successors.start.tolist(), self.successors.items.tolist()
        heapq.heapify(ready)
        while ready:
            i = heapq.heappop(ready)
            order.append(i)
            for j in items[start[i] : start[i + 1]]:
                waiting[j] -= 1
                if waiting[j] == 0:
                    heapq.heappush(ready, j)
        if len(order) < len(self):
            circle = " -> ".join(self.tasks[i].id for i in self._circle(waiting > 0))
            raise GraphError(f"graph {self.name!r} has a circle: {circle}", hint="remove one of these edges")
        return np.array(order, np.int64)

    def _circle(self, stuck: BoolArray) -> list[int]:
        """A circle among the stuck tasks: walk back along predecessors until a task comes again."""
        at = int(np.flatnonzero(stuck)[0])
        seen: dict[int, int] = {}
        path: list[int] = []
        while at not in seen:
            seen[at] = len(path)
            path.append(at)
            at = next(int(p) for p in self.predecessors.row(at) if stuck[p])
        circle = path[seen[at] :][::-1]
        return [*circle, circle[0]]

    @cached_property
    def fingerprint(self) -> str:
        """Names the structure (ids, phases, edges; not bytes): a plan carries it to know the graph it was made for."""
        digest = hashlib.sha256()
        for t in self.tasks:
            digest.update(f"{t.id}\0{t.phase}\0{t.group}\0{t.of}\n".encode())
        digest.update(np.ascontiguousarray(self.edges).tobytes())
        return digest.hexdigest()[:16]

    def check(self) -> list[str]:
        """Every fault at once; empty when the graph is sound."""
        faults: list[str] = []
        if not self.tasks:
            return ["it has no tasks"]
        twice = {i for i, n in _counts(t.id for t in self.tasks).items() if n > 1}
        faults += [f"task id {i!r} is used twice" for i in sorted(twice)]
        for t in self.tasks:
            if t.phase not in get_args(Phase):
                faults.append(f"task {t.id!r} has the unknown phase {t.phase!r}")
            for what in ("parameter_bytes", "activation_bytes"):
                value = getattr(t, what)
                if not (math.isfinite(value) and value >= 0):
                    faults.append(f"task {t.id!r} has {what} = {value}")
            for what in ("name", "group", "of"):
                if not isinstance(getattr(t, what), str | None):
                    faults.append(f"task {t.id!r} has {what} = {getattr(t, what)!r}, which is no text")
        bad = np.flatnonzero(~(np.isfinite(self.size_bytes) & (self.size_bytes >= 0)))
        faults += [f"a tensor of task {self.tasks[self.producer[k]].id!r} has {self.size_bytes[k]} bytes" for k in bad]
        faults += [
            f"task {t.id!r} belongs to the unknown task {t.of!r}"
            for t in self.tasks
            if isinstance(t.of, str) and t.of not in self.index
        ]
        forward = {t.id for t in self.tasks if t.phase not in ("backward", "update")}
        faults += [
            f"shared parameter {s.name!r} names {t!r}, which is no forward task"
            for s in self.shared
            for t in s.tasks
            if t not in forward
        ]
        names = Counter(s.name for s in self.shared)
        faults += [f"shared parameter {n!r} is given {times} times" for n, times in names.items() if times > 1]
        faults += [
            f"task {t.id!r} belongs to {t.of!r}, which is no forward task"
            for t in self.tasks
            if t.of in self.index and t.of not in forward
        ]
        faults += [
            f"shared parameter {s.name!r} has {s.size_bytes} bytes"
            for s in self.shared
            if not (math.isfinite(s.size_bytes) and s.size_bytes >= 0)
        ]
        if not faults:
            try:
                _ = self.order
            except GraphError as error:
                faults.append("it has a circle: " + error.message.split(": ", 1)[-1])
        return faults

    def to_json(self) -> dict[str, Any]:
        ids = [t.id for t in self.tasks]
        return {
            "format": "partita-graph",
            "version": 1,
            "name": self.name,
            "tasks": [lean(t) for t in self.tasks],
            "tensors": [
                {"from": ids[p], "bytes": float(b), "to": [ids[r] for r in self.readers.row(k)]}
                for k, (p, b) in enumerate(zip(self.producer, self.size_bytes, strict=True))
            ],
            "shared": [lean(s) for s in self.shared],
        }

    @staticmethod
    def from_json(value: Mapping[str, Any], what: str = "graph") -> TaskGraph:
        """The graph in a parsed JSON object. Raises GraphError with every fault at once."""
        expect_format(value, "partita-graph", GraphError, what)
        hint = "see docs/reference/files.md"
        own = {f.name: value[f.name] for f in fields(_Tables) if f.name in value}
        tables = record(_Tables, own, GraphError, what, hint=hint, known_only=True)
        tensors = [(t.from_, t.bytes, t.to) for t in tables.tensors]
        try:
            return TaskGraph.build(tables.name or what, tables.tasks, tensors, tables.shared)
        except GraphError as error:
            raise GraphError(f"{what}: {error.message}", hint=error.hint) from error


@dataclass(frozen=True)
class _Tensor:
    """A tensor in a file."""

    from_: str
    bytes: float
    to: tuple[str, ...]


@dataclass(frozen=True)
class _Tables:
    """A graph's file."""

    tasks: tuple[Task, ...]
    tensors: tuple[_Tensor, ...]
    name: str = ""
    shared: tuple[SharedParameter, ...] = ()


def csr(rows: Sequence[Sequence[int]]) -> Csr:
    """Rows of integers as a Csr.

    >>> csr([[1, 2], [], [3]]).row(2).tolist()
    [3]
    """
    start = np.zeros(len(rows) + 1, np.int64)
    start[1:] = np.cumsum([len(r) for r in rows])
    return Csr(start, np.array([x for r in rows for x in r], np.int64))


def _rows(keys: IntArray, values: IntArray, n: int) -> Csr:
    """Group `values` by sorted `keys` in 0 .. n-1."""
    start = np.zeros(n + 1, np.int64)
    start[1:] = np.cumsum(np.bincount(keys, minlength=n))
    return Csr(start, np.ascontiguousarray(values, np.int64))


def _counts(items: Iterable[str]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for item in items:
        counts[item] = counts.get(item, 0) + 1
    return counts
