"""A flow's tasks on Dask distributed: processes on this machine, or any scheduler's workers.

    with cluster(workers=2) as place:   with OnDask.connect(place, functions) as engine: ...

Tasks go to the scheduler in bundles, with the keys of what they read and the worker that each should run on; the scheduler moves
inputs and runs a lost task again, wherever there is a worker. Reports come back in bundles too, as events of a topic of this run:
a task costs neither a round trip nor a callback. A key is never used twice (a count is in it): one that was cancelled and comes
back would be taken for cancelled (dask #2609). A task's place in the run's order is its priority.

Dask blames all that lies with a worker when that dies. A task that was blamed too often is suspected: the course hands it out once
more when nothing else is under way; if its workers die then too, it is what kills workers, and is lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import queue
import secrets
import signal
import statistics
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import resource_tracker
from types import ModuleType
from typing import Any, Literal, NamedTuple

import cloudpickle
import dask
from dask._expr import LLGExpr
from dask._task_spec import Task, TaskRef
from distributed import Client, KilledWorker, LocalCluster
from distributed.comm import connect
from distributed.security import Security

from partita.dataflow.plan.events import mapped
from partita.dataflow.run.task import Order, Report, needed
from partita.dataflow.run.worker import Functions, Member, Missing, packed, run_clump
from partita.dataflow.store import Store
from partita.errors import BadInput, PartitaError

CONNECT_S = 10.0
LOOK_S = 1.0  #: how often futures are looked at for what nobody reported: a task whose worker died too often
MOST_CLUMP, CLUMP_S = 20, 0.06  #: tasks, seconds
MOVE_S, MOVE_BYTES_PER_S = 0.002, 150e6  #: a result from one worker to another, encrypted
MOVE_WEIGHT = 3.0  #: times that long somebody must wait before moving is better
_End = Literal["lost", "suspected", "failed"]
ENDED = ("error", "cancelled", "lost", "finished")
NOBODY_S = 60.0  #: without any worker, before a run is given up
DEATHS = 3  #: of workers that a task lies with, before it is suspected
#: Dask gives up for good a worker that is away so long after it died once: in a run with many deaths, one that died just then again
_OURS = {
    "distributed.worker.memory.target": False,
    "distributed.worker.memory.spill": False,
    "distributed.worker.memory.pause": False,
    "distributed.worker.memory.terminate": False,
    "distributed.scheduler.allowed-failures": DEATHS,
    "distributed.comm.timeouts.connect": "10s",
    "distributed.deploy.lost-worker-timeout": "365 days",
    "distributed.worker.http.routes": [],
    "distributed.worker.daemon": False,  # steps may begin processes of their own
    #: messages that Dask keeps for whoever looks for a fault in it: by default the scheduler grows by 0.5 kB a task for them
    "distributed.admin.low-level-log-length": 20,
}


class Place(NamedTuple):
    """Where a scheduler is, and what it takes to be let in."""

    address: str
    security: Security | None = None

    def client(self) -> Client:
        """Raises BadInput where no scheduler answers."""
        security = self.security or Security()
        try:  # a client that does not reach its scheduler takes 20 s to be closed: so see first
            reach = _reach(self.address, security.get_connection_args("client"))
            with ThreadPoolExecutor(1) as apart:  # a notebook's own thread has a loop that runs
                apart.submit(asyncio.run, reach).result()
            return Client(self.address, timeout=CONNECT_S, set_as_default=False, security=self.security)
        except (OSError, ValueError, TypeError, RuntimeError) as error:
            hint = "start one: dask scheduler; dask worker ADDRESS"
            if self.address.startswith("tls:"):
                hint = "its certificates belong into Dask's configuration, under distributed.comm.tls"
            raise BadInput(f"no Dask scheduler answers at {self.address}", hint=hint) from error


async def _reach(address: str, arguments: dict[str, Any]) -> None:
    (await connect(address, timeout=CONNECT_S, **arguments)).abort()


@contextlib.contextmanager
def cluster(workers: int, dashboard: str | None = None) -> Iterator[Place]:
    """A scheduler and processes of one thread each on this machine, on loopback only.

    Dask's protocol carries code, and every user of this machine can reach loopback: so only who has this run's keys, made
    for it alone, is let in. Their memory is the run's to manage (`plan.keep`), so Dask's own spilling is off. `dashboard`: where its page listens.
    """
    pages: dict[str, Any] = {} if dashboard else {"distributed.scheduler.http.routes": []}
    # Ctrl-C in a terminal reaches all processes of it: the workers, which are this one's to end, begin with it held back
    resource_tracker.ensure_running()  # beginning it later would let Ctrl-C in again
    held = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    made: LocalCluster | None = None
    try:
        with dask.config.set({**_OURS, **pages}):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # a port that is taken, a machine without IPv6: not ours to say
                try:
                    made = LocalCluster(
                        n_workers=workers, threads_per_worker=1, processes=True, host="127.0.0.1", dashboard_address=dashboard,
                        worker_dashboard_address=None, memory_limit=0, silence_logs=logging.CRITICAL, security=Security.temporary(),
                    )  # fmt: skip
                except (RuntimeError, ValueError, OSError) as error:
                    raise BadInput(f"the workers' cluster cannot begin: {error}", hint="see --dashboard, e.g. :8787" if dashboard else "") from error  # fmt: skip
            signal.pthread_sigmask(signal.SIG_SETMASK, held)  # what came meanwhile is raised here
            yield Place(made.scheduler_address, made.security)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, held)
        if made is not None:
            with contextlib.suppress(Exception):
                made.close(timeout=10)


class _Task(Task):  # type: ignore[misc]
    """A task whose token is its key: it is never used twice, and Dask would digest all that it holds for one."""

    __slots__ = ()

    def __dask_tokenize__(self) -> str:
        return str(self.key)


class _Bundle(LLGExpr):  # type: ignore[misc]
    """A graph of Dask's with what is wished of each of its tasks."""

    _parameters = ("dsk", "wishes")

    def __dask_annotations__(self) -> dict[str, dict[str, Any]]:
        return dict(self.operand("wishes"))


@dataclass(eq=False)
class _Clump:
    """A task of Dask's: one of ours, or several brief ones."""

    key: str
    wanted: set[tuple[int, int]]  #: (node, turn) of those whose result is still needed
    place: int  #: in the order
    worker: str  #: where it is to run
    left: int  #: of its tasks, those without a report
    reads: Sequence[_Clump]  #: while it is under way
    each_s: float  #: expected of each of its tasks
    done_s: float  #: when it is expected to be done; by time.monotonic()
    each_bytes: float  #: expected of each result
    lies: set[str] = field(default_factory=set)  #: workers that have its results, or will
    size_bytes: float = field(init=False)  #: of all its results; expected, of those without a report
    future: Any = None

    def __post_init__(self) -> None:
        self.lies.add(self.worker)
        self.size_bytes = self.left * self.each_bytes


@dataclass
class OnDask:
    """An engine on a Dask scheduler."""

    client: Client
    name: str  #: of this run: its topic and its keys
    workers: int
    modules: tuple[ModuleType, ...] = ()  #: travel by value while this is open
    #: node -> its latest clump, and its place there
    clump_of: dict[int, tuple[_Clump, int]] = field(default_factory=dict)
    turns: dict[int, int] = field(default_factory=dict)
    clumps: int = 0
    threads: dict[str, int] = field(default_factory=dict)  #: worker -> how many
    load: dict[str, float] = field(default_factory=dict)  #: worker -> seconds expected of what is under way there
    open: dict[str, _Clump] = field(default_factory=dict)  #: those under way, by key
    underway: dict[int, int] = field(default_factory=dict)  #: node -> turn of those without a report
    silent: dict[tuple[int, int], int] = field(default_factory=dict)  #: ended without a report -> looks since
    suspects: set[int] = field(default_factory=set)  #: nodes whose worker died too often
    deaths: Counter[int] = field(default_factory=Counter)  #: node -> times it may have killed all workers
    needless: list[Any] = field(default_factory=list)  #: futures to release
    events: queue.SimpleQueue[dict[str, Any]] = field(default_factory=queue.SimpleQueue)
    looked: float = field(default_factory=time.monotonic)
    heard: bool = False  #: since then
    still: int = 0  #: looks since anything ran
    gone: bool = False  #: all results, as was seen when they were to be fetched
    manned: float = field(default_factory=time.monotonic)  #: when there was a worker last

    @staticmethod
    def connect(
        place: Place, functions: Sequence[Callable[..., Any]], modules: Sequence[ModuleType] = (), paths: Sequence[str] = (),
        store: Store | None = None, anew: Sequence[str] = (), alone: bool = False, sources: Mapping[str, str] = {},
    ) -> OnDask:  # fmt: skip
        """Raises BadInput where no scheduler answers, or it has no workers. `anew`: modules that workers import again; `alone`: whether
        this run has the workers for itself; `sources`: files that they may import -> the sha256 of what belongs to the keys."""
        client = place.client()
        try:
            shown = tuple(m.__name__ for m in modules) if alone else ()
            return OnDask._ready(
                client, functions, modules, Functions(tuple(paths), tuple(anew), store, shown, sources)
            )
        except BaseException:
            client.close(timeout=2)
            _by_reference(modules)
            raise

    @staticmethod
    def _ready(
        client: Client, functions: Sequence[Callable[..., Any]], modules: Sequence[ModuleType], plugin: Functions
    ) -> OnDask:  # fmt: skip
        threads = _threads(client)
        if not threads:
            raise BadInput("the Dask scheduler has no workers", hint="start some: dask worker ADDRESS")
        plugin.name = name = f"partita-{secrets.token_hex(4)}"
        for module in modules:
            cloudpickle.register_pickle_by_value(module)
        try:
            plugin.packed = cloudpickle.dumps(list(functions))
        except Exception as error:
            raise BadInput(f"the flow's functions cannot be sent to workers: {error}", hint="keep open files, locks and clients out of their globals") from error  # fmt: skip
        _register(client, plugin)
        engine = OnDask(client, name, sum(threads.values()), tuple(modules), threads=threads)
        client.subscribe_topic(name, lambda event: engine.events.put(event[1]))
        return engine

    @property
    def idle(self) -> int:
        """Threads for which nothing is under way that could begin, or has begun."""
        return sum(self._idle_threads().values())

    def _idle_threads(self) -> dict[str, int]:
        begin = Counter(c.worker for c in self.open.values() if not any(r.left for r in c.reads))
        return {w: max(0, n - begin[w]) for w, n in self.threads.items()}

    def submit(self, orders: Sequence[Order]) -> None:
        """One bundle for the scheduler: tasks may read what others of it, or earlier ones, give.

        Brief tasks that follow each other become one task of Dask's, a clump: running each for itself would take the
        scheduler longer than the task.
        """
        if not orders:
            return
        made = [self._clump(group) for group in _grouped(orders, self.workers)]
        bundle = _Bundle({c.key: task for c, task in made}, self._annotations([c for c, _ in made]))
        futures = self.client.get(bundle, [c.key for c, _ in made], sync=False)
        for (clump, _), future in zip(made, futures, strict=True):
            clump.future = future

    def _clump(self, orders: Sequence[Order]) -> tuple[_Clump, Task]:
        own = {o.told.node: k for k, o in enumerate(orders)}
        outside = [n for n in dict.fromkeys(n for o in orders for n in needed(o.inputs)) if n not in own]
        read = [self.clump_of[n] for n in outside]
        clumps = list({c.key: c for c, _ in read}.values())
        at = {c.key: k for k, c in enumerate(clumps)}
        number = {n: k for k, n in enumerate(outside)} | {n: -1 - k for n, k in own.items()}
        members = tuple(Member(o.told, tuple(mapped(v, number.__getitem__) for v in o.inputs)) for o in orders)
        self.clumps += 1
        expected = sum(o.seconds for o in orders)
        worker, done_s = self._best_worker(clumps, expected)
        clump = _Clump(
            f"{orders[0].told.label}-{self.name[-8:]}x{self.clumps}",
            {(o.told.node, o.told.turn) for o in orders},
            min(o.place for o in orders),
            worker,
            left=len(orders),
            reads=clumps,
            each_s=expected / len(orders),
            each_bytes=statistics.fmean(_size(o, clumps) for o in orders),
            done_s=done_s,
        )
        self.load[clump.worker] = self.load.get(clump.worker, 0.0) + expected
        self.open[clump.key] = clump
        for o in orders:
            self.clump_of[o.told.node] = (clump, own[o.told.node])
            self.turns[o.told.node] = self.underway[o.told.node] = o.told.turn
        sources = tuple((at[c.key], k) for c, k in read)
        refs = [TaskRef(c.key) for c in clumps]
        return clump, _Task(clump.key, run_clump, self.name, packed(members), sources, *refs)

    def _best_worker(self, reads: Sequence[_Clump], expected_s: float) -> tuple[str, float]:
        """(where a clump would be done first, when): behind what is under way there, once what it reads is there and brought along.
        What can begin at once is not behind what waits.

        Dask alone would send it where its inputs lie, and move it later if another worker has long been idle; here all know
        what they need from the beginning.
        """
        now = time.monotonic()
        idle = {} if any(c.left for c in reads) else self._idle_threads()

        def moving_s(c: _Clump, worker: str) -> float:
            return 0.0 if worker in c.lies else MOVE_S + c.size_bytes / MOVE_BYTES_PER_S

        def begins_s(worker: str) -> float:
            there = (c.done_s + moving_s(c, worker) for c in reads)
            behind_s = 0.0 if idle.get(worker) else self.load.get(worker, 0.0) / self.threads[worker]
            return max((now + behind_s, *there))

        def worth_s(worker: str) -> float:
            """Moving keeps both ends from other work."""
            return begins_s(worker) + sum(MOVE_WEIGHT * moving_s(c, worker) for c in reads)

        worker = min(self.threads, key=lambda w: (worth_s(w), self.load.get(w, 0.0)))
        done_s = begins_s(worker) + expected_s
        for c in reads:
            c.lies.add(worker)
        return worker, done_s

    def _annotations(self, clumps: Sequence[_Clump]) -> dict[str, dict[str, Any]]:
        """Priorities by our order; workers as a wish, so that a task finds another one where its own dies."""
        return {
            "priority": {c.key: -c.place for c in clumps},
            "workers": {c.key: [c.worker] for c in clumps},
            "allow_other_workers": {c.key: True for c in clumps},
        }

    def release(self, gone: Sequence[tuple[int, int]]) -> None:
        """Results and tasks that nobody needs: the scheduler forgets them, and does not begin what has not begun."""
        for node, turn in gone:
            if self.turns.get(node) == turn and node in self.clump_of:
                clump, _ = self.clump_of.pop(node)
                if self.underway.pop(node, None) is not None:
                    self._lighten(clump)
                clump.wanted.discard((node, turn))
                if not clump.wanted and clump.future is not None:
                    self.needless.append(clump.future)
                    clump.future = None

    def _let_go(self) -> None:
        """Release what is needless by the client's own thread, all at once: one at a time would cost a change of threads each."""
        if self.needless:
            self.client.loop.add_callback(_released, self.needless)
            self.needless = []

    def wait(self, timeout_s: float) -> list[tuple[Report, str]]:
        """The reports that have come; waits for the first."""
        self._let_go()  # and not before what there is to do was submitted: a change of threads keeps that waiting
        found: list[tuple[Report, str]] = []
        with contextlib.suppress(queue.Empty):
            bundle = self.events.get(timeout=timeout_s)
            while True:
                found += [
                    self._reported(Report(*row), bundle["worker"], bundle["address"]) for row in bundle["reports"]
                ]
                bundle = self.events.get_nowait()
        if time.monotonic() - self.looked > LOOK_S:
            found += self._unreported()
            self.looked = time.monotonic()
        return found

    def _reported(self, report: Report, name: str, address: str) -> tuple[Report, str]:
        self.heard = True
        if self.underway.get(report.node) == report.turn:
            del self.underway[report.node]
            clump, _ = self.clump_of[report.node]
            clump.lies.add(address)
            clump.size_bytes += report.size_bytes - clump.each_bytes
            self._lighten(clump)
        return report, name

    def _lighten(self, clump: _Clump) -> None:
        """One task less is under way on its worker."""
        self.load[clump.worker] = max(0.0, self.load.get(clump.worker, 0.0) - clump.each_s)
        clump.left -= 1
        if clump.left == 0:
            del self.open[clump.key]
            clump.reads = ()  # else the last one would keep all before it

    def _unreported(self) -> list[tuple[Report, str]]:
        """Tasks that ended without a report; one look later, so that a report on its way is not overtaken."""
        if self.client.status not in ("running", "connecting"):
            raise PartitaError("the Dask scheduler went away", hint="finished results are kept: partita flow resume")
        if self.gone or self._all_anew() or self._stands_still():
            self.gone = False
            came = {n: self._died(n) for n in self.clump_of}  # all before the first is given up
            return [(self._given_up(n, self.turns[n], *of), "") for n, of in came.items()]
        futures = {n: self.clump_of[n][0].future for n in self.underway if n in self.clump_of}
        ended = {(n, self.underway[n]) for n, f in futures.items() if f is not None and f.status in ENDED}
        self.silent = {s: self.silent.get(s, 0) + 1 for s in ended}
        sure = [n for (n, _), seen in self.silent.items() if seen > (1 if futures[n].status != "finished" else 4)]
        errors = {n: futures[n].exception(timeout=5) if futures[n].status == "error" else None for n in sure}
        came = {n: self._ended(n, error) for n, error in errors.items()}
        # results that went with a worker, and that Dask ran again for those, beside what kills workers
        killed = {error.task for error in errors.values() if isinstance(error, KilledWorker)}
        gone = (n for n, (clump, _) in self.clump_of.items() if clump.key in killed and n not in self.underway)
        came |= dict.fromkeys(gone, ("lost", "its worker died, again and again"))
        return [(self._given_up(n, self.turns[n], *of), "") for n, of in came.items()]

    def _stands_still(self) -> bool:
        """Whether workers have had nothing to do for two looks, and nobody reported, although something is under way."""
        heard, self.heard = self.heard, False
        still = bool(self.underway) and not heard and self.manned > self.looked and not any(self.client.processing().values())  # fmt: skip
        self.still = self.still + 1 if still else 0
        return self.still > 1

    def _given_up(self, node: int, turn: int, state: _End, reason: str) -> Report:
        """A task is not waited for, or its result not asked for, any longer."""
        if self.underway.pop(node, None) is not None:
            self._lighten(self.clump_of[node][0])
        now = time.time()
        return Report(node, turn, state, now, now, reason=reason)

    def _ended(self, node: int, error: BaseException | None) -> tuple[_End, str]:
        """What came of a task that nobody reported, and why."""
        if error is None:
            return "lost", "its result, or its report, went astray"
        if not isinstance(error, KilledWorker):
            return "failed", " ".join(str(error).split())[:300]
        if error.task != self.clump_of[node][0].key:
            return "lost", "what it waited for killed its worker"
        return self._blame(node)

    def _died(self, node: int) -> tuple[_End, str]:
        """What comes of a task, or a result, when all workers have died: Dask counts deaths only while there is another one."""
        if node in self.underway and not any(r.left for r in self.clump_of[node][0].reads):
            self.deaths[node] += 1
            if self.deaths[node] > DEATHS:
                return self._blame(node)
        return "lost", "all workers died"

    def _blame(self, node: int) -> tuple[_End, str]:
        """A task lay with too many workers that died."""
        if node in self.suspects:
            return "failed", "its worker died again and again, also when nothing else ran"
        self.suspects.add(node)
        del self.deaths[node]
        return "suspected", "its worker died again and again"

    def _all_anew(self) -> bool:
        """Whether all that were there are gone, with all results, and others have come: a task that was to run on one of those,
        now or again, would wait for ever, since Dask looks for another worker only while there is one.

        Raises PartitaError where there have been none for long: nobody would ever run what is under way.
        """
        now = time.monotonic()
        found = _threads(self.client)
        if found:
            anew = not found.keys() & self.threads.keys()
            self.threads, self.manned = found, now
            return anew
        if now - self.manned > NOBODY_S:
            raise PartitaError(f"the Dask scheduler has had no workers for {now - self.manned:.0f} s", hint="start some, then: partita flow resume")  # fmt: skip
        return False

    def fetch(self, nodes: Sequence[int]) -> list[Any] | None:
        """Results, brought here; None where all workers died meanwhile. Raises PartitaError where one is lost."""
        clumps = {self.clump_of[n][0].key: self.clump_of[n][0].future for n in nodes}
        coming = asyncio.run_coroutine_threadsafe(self.client.gather(list(clumps.values()), asynchronous=True), self.client.loop.asyncio_loop)  # fmt: skip
        while not coming.done():
            with contextlib.suppress(TimeoutError):
                coming.exception(timeout=LOOK_S)
            if not coming.done() and self._all_anew():
                coming.cancel()
                self.gone, self.looked = True, -math.inf
                return None
        brought = dict(zip(clumps, coming.result(), strict=True))
        found = [brought[self.clump_of[n][0].key][self.clump_of[n][1]] for n in nodes]
        if any(isinstance(x, Missing) for x in found):
            raise PartitaError("a result was lost on its way", hint="finished results are kept: partita flow resume")
        return found

    def stop_keeping(self) -> None:
        with contextlib.suppress(Exception):  # there are no workers any more, or this was said before
            self.client.unregister_worker_plugin(self.name)

    def close(self) -> None:
        with contextlib.suppress(Exception):
            self.release([(n, t) for n, t in self.turns.items()])
            self._let_go()
            self.stop_keeping()
            self.client.run_on_scheduler(_forget, self.name)
        with contextlib.suppress(Exception):
            self.client.close(timeout=5)
        _by_reference(self.modules)


#: Dask keeps what was reported under a topic for ever. Without a name it travels by value: a scheduler may be without Partita
_forget = lambda topic, dask_scheduler: dask_scheduler._broker._topics.pop(topic, None)  # noqa: E731


def _by_reference(modules: Sequence[ModuleType]) -> None:
    """Modules do not travel by value any longer."""
    for module in modules:
        if module.__name__ in cloudpickle.list_registry_pickle_by_value():
            cloudpickle.unregister_pickle_by_value(module)


def _register(client: Client, plugin: Functions) -> None:
    """Give all workers a plugin. Raises PartitaError where they go on dying."""
    for pause_s in (0.3, 1.0, 3.0, None):
        try:
            client.register_plugin(plugin, name=plugin.name)
            return
        except OSError as error:  # a worker died meanwhile; those that come have it from the scheduler
            if pause_s is None:
                raise PartitaError(f"the Dask workers cannot be reached: {error}", hint="see whether they are alive") from error  # fmt: skip
            time.sleep(pause_s)


def _released(futures: Sequence[Any]) -> None:
    for future in futures:
        future.release()


def _size(order: Order, reads: Sequence[_Clump]) -> float:
    """Bytes expected of a result: of what has never run, those of the largest thing it reads."""
    return max((c.size_bytes for c in reads), default=0.0) if order.size_bytes is None else order.size_bytes


def _threads(client: Client) -> dict[str, int]:
    """Worker -> its threads; none while the scheduler is away."""
    return {a: int(w["nthreads"]) for a, w in client.scheduler_info(n_workers=-1).get("workers", {}).items()}


def _grouped(orders: Sequence[Order], workers: int) -> list[list[Order]]:
    """Neighbours that are brief together, so that each worker gets two clumps or more; the others for themselves."""
    most = min(MOST_CLUMP, max(1, len(orders) // (2 * workers)))
    groups: list[list[Order]] = []
    seconds = math.inf  #: of the last group
    for o in orders:
        if o.brief and seconds + o.seconds <= CLUMP_S and len(groups[-1]) < most:
            groups[-1].append(o)
        else:
            groups.append([o])
            seconds = 0.0 if o.brief else math.inf
        seconds += o.seconds
    return groups
