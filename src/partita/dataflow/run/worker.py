"""What lives on a Dask worker: the flow's functions, the store, and the reports that go back in bundles."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, field
from typing import Any

import cloudpickle
from distributed import Worker, WorkerPlugin, get_worker

from partita.dataflow.plan.course import View
from partita.dataflow.run.task import Report, Shelf, Told, execute
from partita.errors import PartitaError

FLUSH_S = 0.004  #: reports are sent together, at most so late


class TaskFailed(PartitaError):
    """A task of a flow raised; what, its report has said."""


@dataclass
class Functions(WorkerPlugin):  # type: ignore[misc]
    """A run's functions by the number of their step; every worker has them before its first task, restarted ones too."""

    name: str
    packed: bytes  #: of the functions, by value where they are the user's own
    paths: tuple[str, ...]  #: where the flow's own modules lie
    shelf: Shelf | None
    functions: Sequence[Callable[..., Any]] = field(default=(), init=False)
    reports: list[tuple[Any, ...]] = field(default_factory=list, init=False)
    worker: Any = field(default=None, init=False)

    def setup(self, worker: Worker) -> None:
        self.worker = worker
        sys.path += [p for p in self.paths if p not in sys.path]
        self.functions = cloudpickle.loads(self.packed)

    def report(self, report: Report) -> None:
        """From the thread that ran the task."""
        self.reports.append(astuple(report))
        if len(self.reports) == 1:
            self.worker.loop.add_callback(self.worker.loop.call_later, FLUSH_S, self._flush)

    def _flush(self) -> None:
        reports, self.reports = self.reports, []
        if reports:
            with contextlib.suppress(Exception):  # the scheduler is away: it will ask for all this anew
                self.worker.log_event(self.name, {"worker": str(self.worker.name), "reports": reports})


def run_task(name: str, told: Told, shape: tuple[View, ...], *inputs: Any) -> Any:
    """One task on a Dask worker; `shape` says which inputs stand where. Raises TaskFailed where the task raised."""
    plugin: Functions = get_worker().plugins[name]
    result, report = execute(told, plugin.functions[told.step], [_shaped(v, inputs) for v in shape], plugin.shelf)
    plugin.report(report)
    if report.state != "done":
        raise TaskFailed(report.reason)
    return result


def _shaped(view: View, inputs: Sequence[Any]) -> Any:
    return inputs[view] if isinstance(view, int) else [_shaped(v, inputs) for v in view]
