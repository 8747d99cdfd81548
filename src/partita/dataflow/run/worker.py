"""What lives on a Dask worker: the flow's functions, the store, and the reports that go back in bundles."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import pickle
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import FunctionType, ModuleType
from typing import Any, NamedTuple

import cloudpickle
from distributed import Worker, WorkerPlugin, get_worker

from partita.dataflow.graph import Slot
from partita.dataflow.plan.events import View, flat, mapped
from partita.dataflow.run.keeping import Keeping, loaded
from partita.dataflow.run.task import Report, Told, execute, missing
from partita.dataflow.store import Store
from partita.errors import sentence_of

FLUSH_S = 0.004  #: reports are sent together, at most so late


class Missing:
    """Stands for the result of a task that failed, or could not be loaded."""


class Member(NamedTuple):
    """A task of a clump; its inputs are numbers: k of the clump's sources, -1 - k the k-th member before it."""

    told: Told
    inputs: tuple[View, ...]


@dataclass
class Functions(WorkerPlugin):  # type: ignore[misc]
    """A run's functions by the number of their step; every worker has them before its first task, restarted ones too."""

    paths: tuple[str, ...]  #: where the flow's own modules lie
    #: those of them that a worker may have imported for an earlier run, from another file or an older one
    anew: tuple[str, ...]
    store: Store | None
    #: modules that travel by value, which pickle is to find by name all the same; of workers that serve this run alone
    shown: tuple[str, ...] = ()
    sources: Mapping[str, str] = field(default_factory=dict)  #: files that tasks may import, as they were
    name: str = ""
    packed: bytes = b""  #: of the functions, by value where they are the user's own
    functions: Sequence[Callable[..., Any]] = field(default=(), init=False)
    keeping: Keeping | None = field(default=None, init=False)
    reports: list[tuple[Any, ...]] = field(default_factory=list, init=False)
    worker: Any = field(default=None, init=False)
    lock: Any = field(default=None, init=False)
    over: bool = field(default=False, init=False)
    movable: set[tuple[int, type]] = field(
        default_factory=set, init=False
    )  #: (step, type of a result) that was seen to pickle

    def setup(self, worker: Worker) -> None:
        self.worker, self.lock = worker, threading.Lock()
        sys.path[:] = [*self.paths, *(p for p in sys.path if p not in self.paths)]
        of_files = (name for names in loaded(self.sources).values() for name in names if name not in _MAIN)
        for name in (*self.anew, *of_files):
            sys.modules.pop(name, None)
        importlib.invalidate_caches()
        self.keeping = Keeping(self.store, self.sources)
        self.functions = cloudpickle.loads(self.packed)
        for function in map(inspect.unwrap, self.functions):
            if getattr(function, "__module__", None) in self.shown and isinstance(function, FunctionType):
                _show(function)

    def teardown(self, worker: Worker) -> None:
        """The run is over: what still runs of it keeps nothing, and tells nobody."""
        self.over = True
        if self.keeping is not None:
            self.keeping.stop()

    def report(self, report: Report) -> None:
        """From the thread that ran the task."""
        with self.lock:
            self.reports.append(tuple(report))
            first = len(self.reports) == 1
        if first:
            self.worker.loop.add_callback(self.worker.loop.call_later, FLUSH_S, self._flush)

    def _flush(self) -> None:
        with self.lock:
            reports, self.reports = self.reports, []
        if reports and not self.over:  # a topic that is forgotten would come back
            with contextlib.suppress(Exception):  # the scheduler is away: it will ask for all this anew
                self.worker.log_event(
                    self.name, {"worker": str(self.worker.name), "address": self.worker.address, "reports": reports}
                )


_MAIN = ("__main__", "__mp_main__")


def _show(function: FunctionType) -> None:
    """Have pickle find by name what a function that travelled by value reads of its module: results are of its classes, and it
    may hand functions to processes of its own."""
    module = sys.modules.setdefault(function.__module__, ModuleType(function.__module__))
    vars(module).update({k: v for k, v in function.__globals__.items() if k not in vars(module)})
    vars(module)[function.__name__] = function


def packed(members: tuple[Member, ...]) -> bytes:
    """Members as bytes, which the scheduler passes on unread. Values of the user's own classes travel with their class."""
    plain = all(_is_plain(a) for m in members for _, a in m.told.arguments)
    return pickle.dumps(members, 5) if plain else cloudpickle.dumps(members, 5)


def _is_plain(argument: Any) -> bool:
    if type(argument) in (list, tuple):
        return all(map(_is_plain, argument))
    return type(argument) in _PLAIN


_PLAIN = frozenset((int, float, str, bool, type(None), bytes, Slot))


def run_clump(name: str, members: bytes, sources: tuple[tuple[int, int], ...], *clumps: list[Any]) -> list[Any]:
    """The results of a few tasks (`packed`), one after another; `sources` say which result of which other clump each input is.

    Never raises for a task's fault: its report has said it, and what reads it is told that it is missing.
    """
    plugin: Functions = get_worker().plugins[name]
    given = [clumps[c][k] for c, k in sources]
    results: list[Any] = []
    for member in cloudpickle.loads(members):
        told, read = member.told, {k: given[k] if k >= 0 else results[-1 - k] for k in flat(member.inputs)}
        if any(isinstance(x, Missing) for x in read.values()):
            result, report = None, missing(told)
        else:
            inputs = [mapped(v, read.__getitem__) for v in member.inputs]
            result, report = execute(told, plugin.functions[told.step], inputs, plugin.keeping)
            if report.state == "done" and (why := _unmovable(told, result, plugin.movable)):
                report = report._replace(state="failed", value=None, reason=why)
        results.append(result if report.state == "done" else Missing())
        plugin.report(report)
    return results


def _unmovable(told: Told, result: Any, movable: set[tuple[int, type]]) -> str:
    """Why other workers could never be given a result: they would wait for it for ever. Of each type that a step gives, the
    first is tried."""
    if type(result) in _PLAIN or (told.step, type(result)) in movable:
        return ""
    try:
        cloudpickle.dumps(result, 5, buffer_callback=lambda buffer: False)  # large arrays are not copied
    except Exception as error:
        return f"its result cannot be sent to other workers: {sentence_of(error)}"
    movable.add((told.step, type(result)))
    return ""
