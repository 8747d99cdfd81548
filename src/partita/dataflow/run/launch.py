"""Run a flow from Python: in this process, on processes of this machine, or on any Dask scheduler.

outcome = run_flow(flow, workers=2)       outcome.value, outcome.record.chosen
"""

from __future__ import annotations

import contextlib
import inspect
import math
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from partita.dataflow.functions import is_own
from partita.dataflow.graph import FlowGraph, unfold
from partita.dataflow.run.engine import Engine, Outcome, Progress, Settings, run
from partita.dataflow.run.in_process import InProcess
from partita.dataflow.run.keeping import Keeping, loaded, sources_behind
from partita.dataflow.run.numbers import Numbers
from partita.dataflow.store import Store
from partita.errors import BadInput, FlowError, MissingDependency
from partita.spawn import usable_cores

if TYPE_CHECKING:
    from partita.dataflow.run.on_dask import Place

MOST_WORKERS = 512


def run_flow(
    flow: Callable[[], Any] | FlowGraph | Any,
    *,
    workers: int | None = None,
    scheduler: str | Place | None = None,
    store: Store | None = None,
    numbers: Numbers | None = None,
    memory_bytes: float = math.inf,
    stop_on_error: bool = False,
    check: bool = True,
    dashboard: str | None = None,
    modules: Sequence[ModuleType] = (),
    paths: Sequence[str | Path] = (),
    sources: Mapping[str, str] | None = None,
    progress: Progress | None = None,
) -> Outcome:
    """Run a flow: a function that returns one, what it returned, or that unfolded.

    `workers` processes of this machine (default: a process a core; 0: no others, all in this one), or those of a
    `scheduler`'s address. `store` keeps results from run to run, `numbers` scores. `memory_bytes` is what results may take in all workers
    together. `modules` are sent to workers as they are, `paths` are where workers import from. `sources`: the user's own files that
    tasks may import -> their sha256 when the flow was read (default: now); what another file may have computed is not kept. Raises FlowError and its kin.
    """
    graph = flow if isinstance(flow, FlowGraph) else unfold(flow() if callable(flow) else flow)
    workers = worker_count(workers)
    if not memory_bytes > 0:
        raise BadInput(
            f"results may take {memory_bytes:g} bytes of memory", hint="give them some, e.g. 2e9, or leave it out"
        )
    functions = [s.function for s in graph.steps]
    by_value = set(map(_file, (*modules, sys.modules["__main__"])))
    sources = sources_behind(_files_of(functions)) if sources is None else sources
    sources = {file: digest for file, digest in sources.items() if file not in by_value}
    with contextlib.ExitStack() as stack:
        began = time.monotonic()
        engine: Engine
        if workers == 0 and scheduler is None:
            here = loaded(sources)
            engine = InProcess(functions, Keeping(store, {f: s for f, s in sources.items() if f not in here}))
        else:
            engine = _dask(stack, functions, workers, scheduler, store, dashboard, modules, paths, sources)
        stack.callback(engine.close)
        settings = Settings(memory_bytes, stop_on_error, check, time.monotonic() - began)
        return run(graph, engine, settings, store, numbers, progress)


def _file(module: ModuleType) -> str:
    return os.path.realpath(getattr(module, "__file__", None) or "")


def _files_of(functions: Sequence[Callable[..., Any]]) -> list[Path]:
    """The files of the user's own that functions stand in."""
    found = (sys.modules.get(getattr(inspect.unwrap(f), "__module__", None) or "") for f in functions)
    files = (Path(_file(m)) for m in found if m is not None and getattr(m, "__file__", None) and is_own(m))
    return [f for f in files if f.is_file()]


def worker_count(workers: int | None) -> int:
    """Processes to begin: one a core where it is not said; 0 for none. Raises BadInput for too many, or fewer than none."""
    if workers is None:
        return usable_cores()
    if not 0 <= workers <= MOST_WORKERS:
        raise BadInput(f"{workers} workers", hint=f"give 0 (in this process) to {MOST_WORKERS}")
    return workers


def _dask(
    stack: contextlib.ExitStack, functions: Sequence[Callable[..., Any]], workers: int, scheduler: str | Place | None,
    store: Store | None, dashboard: str | None, modules: Sequence[ModuleType], paths: Sequence[str | Path], sources: Mapping[str, str],
) -> Engine:  # fmt: skip
    try:
        import cryptography  # noqa: F401  for the keys of a cluster of one's own

        from partita.dataflow.run.on_dask import OnDask, Place, cluster
    except ImportError as error:
        raise MissingDependency(f"flows on several processes need Dask: {error}", hint="pip install 'partita[flow]', or run with --workers 0") from error  # fmt: skip
    if isinstance(scheduler, str) and "://" not in scheduler:
        raise FlowError(f"the scheduler {scheduler!r} is no address", hint="write tcp://HOST:PORT")
    if scheduler is None:
        place = stack.enter_context(cluster(workers, dashboard))
    else:
        place = Place(scheduler) if isinstance(scheduler, str) else scheduler
    anew = _beside(paths, modules) if scheduler else ()
    return OnDask.connect(place, functions, modules, [str(p) for p in paths], store, anew, scheduler is None, sources)


def _beside(paths: Sequence[str | Path], modules: Sequence[ModuleType]) -> list[str]:
    """The user's own modules under some folders, but for those that travel by value."""
    folders = tuple(str(Path(p).absolute()) + os.sep for p in paths)
    others = [
        (name, module)
        for name, module in list(sys.modules.items())
        if name.partition(".")[0] not in ("__main__", "partita") and module not in modules
    ]
    return [name for name, m in others if (getattr(m, "__file__", None) or "").startswith(folders) and is_own(m)]
