"""What lives on a Dask worker: the flow's functions, the store, and the reports that go back in bundles."""

from __future__ import annotations

import contextlib
import pickle
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import cloudpickle
from distributed import Worker, WorkerPlugin, get_worker

from partita.dataflow.graph import Slot
from partita.dataflow.plan.events import View
from partita.dataflow.run.task import Report, Told, execute
from partita.dataflow.store import Store

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

    name: str
    packed: bytes  #: of the functions, by value where they are the user's own
    paths: tuple[str, ...]  #: where the flow's own modules lie
    store: Store | None
    functions: Sequence[Callable[..., Any]] = field(default=(), init=False)
    reports: list[tuple[Any, ...]] = field(default_factory=list, init=False)
    worker: Any = field(default=None, init=False)
    lock: Any = field(default=None, init=False)

    def setup(self, worker: Worker) -> None:
        self.worker, self.lock = worker, threading.Lock()
        sys.path += [p for p in self.paths if p not in sys.path]
        self.functions = cloudpickle.loads(self.packed)

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
        if reports:
            with contextlib.suppress(Exception):  # the scheduler is away: it will ask for all this anew
                self.worker.log_event(
                    self.name, {"worker": str(self.worker.name), "address": self.worker.address, "reports": reports}
                )


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
        inputs = [_shaped(v, given, results) for v in member.inputs]
        told = member.told
        if any(_lacks(i) for i in inputs):
            now = time.time()
            result, report = None, Report(told.node, told.turn, "lost", now, now, reason="what it needs is lost")
        else:
            result, report = execute(told, plugin.functions[told.step], inputs, plugin.store)
        results.append(result if report.state == "done" else Missing())
        plugin.report(report)
    return results


def _shaped(view: View, given: Sequence[Any], own: Sequence[Any]) -> Any:
    if isinstance(view, int):
        return given[view] if view >= 0 else own[-1 - view]
    return [_shaped(v, given, own) for v in view]


def _lacks(value: Any) -> bool:
    return isinstance(value, Missing) or (type(value) is list and any(isinstance(x, Missing) for x in value))
