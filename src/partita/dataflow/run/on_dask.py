"""A flow's tasks on Dask distributed: processes on this machine, or any scheduler's workers.

    with cluster(workers=2) as address:   with OnDask.connect(address, functions) as engine: ...

Tasks go to the scheduler in bundles, with the keys of what they read; the scheduler places them, moves inputs and runs a lost
task again. Reports come back in bundles too, as events of a topic of this run: a task costs neither a round trip nor a
callback. A key is never used twice (the turn is in it): a key that was cancelled and comes back would be taken for cancelled
(dask #2609). The run's order is the priority of a bundle, and Dask's own order, depth first as well, holds within one.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import secrets
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import cloudpickle
import dask
from dask._task_spec import Task, TaskRef
from distributed import Client, LocalCluster

from partita.dataflow.plan.course import View
from partita.dataflow.run.in_process import Order, needed
from partita.dataflow.run.task import Report, Shelf
from partita.dataflow.run.worker import Functions, run_task
from partita.errors import BadInput, PartitaError

CONNECT_S = 10.0
LOOK_S = 1.0  #: how often futures are looked at for what nobody reported: a task whose worker died too often
DEATHS = 10  #: of workers under one task before the task is given up
_OURS = {"distributed.worker.memory.target": False, "distributed.worker.memory.spill": False, "distributed.worker.memory.pause": False, "distributed.worker.memory.terminate": False, "distributed.scheduler.allowed-failures": DEATHS, "distributed.comm.timeouts.connect": "10s"}  # fmt: skip


@contextlib.contextmanager
def cluster(workers: int, dashboard: str | None = None) -> Iterator[str]:
    """A scheduler and processes of one thread each on this machine, on loopback only; gives the address.

    Their memory is the run's to manage (`plan.keep`), so Dask's own spilling is off. `dashboard`: where its page listens.
    """
    with dask.config.set(_OURS), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a port that is taken, a machine without IPv6: not ours to say
        made = LocalCluster(
            n_workers=workers, threads_per_worker=1, processes=True, host="127.0.0.1", dashboard_address=dashboard,
            worker_dashboard_address=None, memory_limit=0, silence_logs=logging.CRITICAL,
        )  # fmt: skip
    try:
        yield made.scheduler_address
    finally:
        with contextlib.suppress(Exception):
            made.close(timeout=10)


@dataclass
class OnDask:
    """An engine on a Dask scheduler."""

    client: Client
    name: str  #: of this run: its topic and its keys
    workers: int
    futures: dict[int, Any] = field(default_factory=dict)  #: node -> future of its latest turn
    turns: dict[int, int] = field(default_factory=dict)
    underway: dict[int, int] = field(default_factory=dict)  #: node -> turn of those without a report
    suspects: set[tuple[int, int]] = field(default_factory=set)
    events: queue.SimpleQueue[dict[str, Any]] = field(default_factory=queue.SimpleQueue)
    looked: float = field(default_factory=time.monotonic)

    @staticmethod
    def connect(
        address: str, functions: Sequence[Callable[..., Any]], modules: Sequence[ModuleType] = (), paths: Sequence[str] = (),
        shelf: Shelf | None = None,
    ) -> OnDask:  # fmt: skip
        """Raises BadInput where no scheduler answers, or it has no workers."""
        try:
            client = Client(address, timeout=CONNECT_S, set_as_default=False)
        except (OSError, ValueError, TimeoutError) as error:
            raise BadInput(f"no Dask scheduler answers at {address}", hint="start one: dask scheduler; dask worker ADDRESS") from error  # fmt: skip
        try:
            return OnDask._ready(client, functions, modules, paths, shelf)
        except BaseException:
            client.close(timeout=2)
            raise

    @staticmethod
    def _ready(
        client: Client, functions: Sequence[Callable[..., Any]], modules: Sequence[ModuleType], paths: Sequence[str],
        shelf: Shelf | None,
    ) -> OnDask:  # fmt: skip
        threads = sum(w["nthreads"] for w in client.scheduler_info(n_workers=-1)["workers"].values())
        if not threads:
            raise BadInput("the Dask scheduler has no workers", hint="start some: dask worker ADDRESS")
        name = f"partita-{secrets.token_hex(4)}"
        for module in modules:
            cloudpickle.register_pickle_by_value(module)
        try:
            packed = cloudpickle.dumps(list(functions))
        except Exception as error:
            raise BadInput(f"the flow's functions cannot be sent to workers: {error}", hint="keep open files, locks and clients out of their globals") from error  # fmt: skip
        finally:
            for module in modules:
                cloudpickle.unregister_pickle_by_value(module)
        client.register_plugin(Functions(name, packed, tuple(paths), shelf), name=name)
        engine = OnDask(client, name, threads)
        client.subscribe_topic(name, lambda event: engine.events.put(event[1]))
        return engine

    def submit(self, orders: Sequence[Order]) -> None:
        """One bundle: tasks may read what others of it, or earlier ones, give."""
        if not orders:
            return
        bundle: dict[str, Any] = {}
        for told, _, _ in orders:
            self.turns[told.node] = told.turn
        for told, views, _ in orders:
            nodes = needed(views)
            at = {n: k for k, n in enumerate(nodes)}
            key = self._key(told.node)
            bundle[key] = Task(key, run_task, self.name, told, tuple(_placed(v, at) for v in views), *[TaskRef(self._key(n)) for n in nodes])  # fmt: skip
        futures = self.client.get(bundle, list(bundle), sync=False, priority=-min(place for *_, place in orders))
        for (told, _, _), future in zip(orders, futures, strict=True):
            self.futures[told.node] = future
            self.underway[told.node] = told.turn

    def _key(self, node: int) -> str:
        return f"{self.name}-{node}-{self.turns[node]}"

    def release(self, gone: Sequence[tuple[int, int]]) -> None:
        """Results and tasks that nobody needs: the scheduler forgets them, and does not begin what has not begun."""
        for node, turn in gone:
            if self.turns.get(node) == turn:
                future = self.futures.pop(node, None)
                self.underway.pop(node, None)
                if future is not None:
                    future.release()

    def wait(self, timeout_s: float) -> list[tuple[Report, str]]:
        """The reports that have come; waits for the first."""
        found: list[tuple[Report, str]] = []
        with contextlib.suppress(queue.Empty):
            bundle = self.events.get(timeout=timeout_s)
            while True:
                found += [(Report(*row), bundle["worker"]) for row in bundle["reports"]]
                bundle = self.events.get_nowait()
        for report, _ in found:
            if self.underway.get(report.node) == report.turn:
                del self.underway[report.node]
        if time.monotonic() - self.looked > LOOK_S:
            self.looked = time.monotonic()
            found += self._unreported()
        return found

    def _unreported(self) -> list[tuple[Report, str]]:
        """Tasks that ended without a report; one look later, so that a report on its way is not overtaken."""
        if self.client.status not in ("running", "connecting"):
            raise PartitaError("the Dask scheduler went away", hint="finished results are kept: partita flow resume")
        bad = {(n, t) for n, t in self.underway.items() if n in self.futures and self.futures[n].status in ("error", "cancelled", "lost")}  # fmt: skip
        sure, self.suspects = bad & self.suspects, bad
        now = time.time()
        found: list[tuple[Report, str]] = []
        for node, turn in sure:
            future = self.futures[node]
            if future.status == "error":
                why = " ".join(str(future.exception(timeout=5)).split())[:300]
                found.append((Report(node, turn, "failed", now, now, reason=why), ""))
            else:
                found.append((Report(node, turn, "lost", now, now, reason="the scheduler forgot it"), ""))
            self.underway.pop(node, None)
        return found

    def fetch(self, nodes: Sequence[int]) -> list[Any]:
        """Results, brought here."""
        return list(self.client.gather([self.futures[n] for n in nodes]))

    def close(self) -> None:
        with contextlib.suppress(Exception):
            self.release([(n, t) for n, t in self.turns.items()])
            self.client.unregister_worker_plugin(self.name)
        with contextlib.suppress(Exception):
            self.client.close(timeout=5)


def _placed(view: View, at: dict[int, int]) -> View:
    return at[view] if isinstance(view, int) else [_placed(v, at) for v in view]
