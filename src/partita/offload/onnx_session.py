"""How ONNX Runtime executes here: one set of options, for measuring and for running alike.

A time is only worth something for the execution it was taken from, so both sides open their sessions with these options:
one thread a session (a device and a server thread are one core each), nodes one after another, every optimisation
that ONNX Runtime has (fused kernels, blocked layouts).
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from partita.errors import CaptureError, MissingDependency, PartitaError, sentence_of
from partita.offload.capture.onnx_types import value_of

try:
    import onnx
    import onnxruntime
except ImportError as _error:
    raise MissingDependency(
        "ONNX Runtime is not installed", hint="pip install onnx onnxruntime, or pip install partita[offload]"
    ) from _error

Array = npt.NDArray[Any]

SILENT = (
    4  #: ONNX Runtime's log level that leaves errors to the exceptions and drops advice, e.g. on unused initialisers
)
_LOOK_S = 0.1  #: how often a time limit is looked at

_RUNTIME = f"ONNX Runtime {onnxruntime.__version__}"


class TookTooLong(PartitaError):
    """A model was ended at its time limit."""


def session_options(profile: str | Path | None = None) -> Any:
    """Options of every session; with `profile`, a prefix of the file that ONNX Runtime's profiler writes."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.log_severity_level = SILENT
    options.add_session_config_entry("session.use_env_allocators", "1")  # where `limit_memory` has made one
    # products of int4 weights in float32: in int8, the default, a half that fuses others of them than the whole model does is 2 % off
    options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")
    if profile is not None:
        options.enable_profiling = True
        options.profile_file_prefix = str(profile)
    return options


def limit_memory(most_bytes: float) -> None:
    """Let all sessions that this process opens from now on share so much memory, for weights and for what they compute.

    Once a process. A model that wants more fails with an error of ONNX Runtime; the process goes on.
    """
    where = onnxruntime.OrtMemoryInfo(
        "Cpu", onnxruntime.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, onnxruntime.OrtMemType.DEFAULT
    )
    as_requested = 1  # of ONNX Runtime's two ways to extend an arena, the one that asks for no more than it needs
    limits = onnxruntime.OrtArenaCfg({"max_mem": int(most_bytes), "arena_extend_strategy": as_requested})
    onnxruntime.create_and_register_allocator(where, limits)


def _failure(error: Exception, what: str, hint: str, limit: TimeLimit | None) -> PartitaError:
    """Of what ONNX Runtime raised: a class for each of its codes, with no root of their own."""
    if limit is not None and limit.over:
        return limit.error()
    return CaptureError(f"{what}: {sentence_of(error)}", hint=hint)


class TimeLimit:
    """What ends the sessions that are run and built under it once their time is over: between two of their nodes."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.ends_s = time.monotonic() + seconds
        self.over = False
        self.options = onnxruntime.RunOptions()  #: for `run` of ONNX Runtime's sessions
        self.options.log_severity_level = SILENT
        self._building: Any = None
        self._abandoned = False

    def begin(self) -> None:
        """The time counts from now on, whatever was waited for before. Raises TookTooLong where nobody waits any more."""
        self.over, self.options.terminate = False, False
        self.ends_s = time.monotonic() + self.seconds
        if self._abandoned:  # looked at last: `abandon` may come between
            self.end()
            raise self.error()

    def building(self, options: Any) -> None:
        """A session with these options is about to be built."""
        self._building = options
        if self.over:
            raise self.error()

    def end(self) -> None:
        self.over = True
        self.options.terminate = True
        if self._building is not None:
            self._building.set_load_cancellation_flag(True)

    def abandon(self) -> None:
        """End it, for nobody waits for the result: it does not begin again."""
        self._abandoned = True
        self.end()

    def error(self) -> TookTooLong:
        return TookTooLong(
            f"it took longer than {self.seconds:g} s", hint="give partita offload serve a larger --limit-s"
        )


class Watchdog:
    """A thread that ends what is over its time limit; one for all threads of a process."""

    def __init__(self) -> None:
        self._limits: set[TimeLimit] = set()
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="partita-watchdog", daemon=True)
        self._thread.start()

    @contextlib.contextmanager
    def watching(self, limit: TimeLimit) -> Iterator[None]:
        """What is done meanwhile, with the limit's `options`, ends soon after its time is over. Raises as `begin` does."""
        limit.begin()
        with self._lock:
            self._limits.add(limit)
        try:
            yield
        finally:
            with self._lock:
                self._limits.discard(limit)

    def close(self) -> None:
        self._closing.set()
        self._thread.join(2.0)

    def _watch(self) -> None:
        while not self._closing.wait(_LOOK_S):
            now = time.monotonic()
            with self._lock:
                late = [limit for limit in self._limits if limit.ends_s < now]
            for limit in late:
                limit.end()


class Session:
    """A model ready to run on one thread. Safe to run from several threads. Raises CaptureError where ONNX Runtime refuses it,
    TookTooLong.

    With `profile`, a prefix of its file, it is watched until `profiled` is asked.
    """

    def __init__(self, model: bytes, name: str, limit: TimeLimit | None = None, profile: Path | None = None) -> None:
        options = session_options(profile)
        if limit is not None:
            limit.building(options)
        try:
            self._session: Any = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        except Exception as error:
            hint = "export it for an older opset, or update onnxruntime"
            raise _failure(error, f"{name}: {_RUNTIME} refuses it", hint, limit) from error
        self._name = name
        self.inputs: tuple[str, ...] = tuple(i.name for i in self._session.get_inputs())
        self.outputs: tuple[str, ...] = tuple(o.name for o in self._session.get_outputs())

    def run(self, feeds: Mapping[str, Array], limit: TimeLimit | None = None) -> dict[str, Array]:
        """Name -> output; feeds that are no inputs are left out. Raises KeyError for a missing one, CaptureError where ONNX Runtime
        cannot compute it, TookTooLong."""
        own = {name: feeds[name] for name in self.inputs}
        try:
            values = self._session.run(list(self.outputs), own, limit.options if limit else None)
        except Exception as error:
            hint = "run it with onnxruntime alone, on an input of the same shapes"
            raise _failure(error, f"{self._name}: {_RUNTIME} cannot compute it", hint, limit) from error
        return dict(zip(self.outputs, values, strict=True))

    def profiled(self) -> Path:
        """The file of what was watched; the end of watching."""
        return Path(self._session.end_profiling())

    def zeros(self, most_bytes: float) -> dict[str, Array] | None:
        """Inputs of zeros; None where a shape or a type is not known, or they would be larger than `most_bytes`."""
        values = [value_of(i.name, i.shape, i.type) for i in self._session.get_inputs()]
        sizes = [v.array_bytes for v in values]
        if None in sizes or sum(s or 0 for s in sizes) > most_bytes:
            return None
        return {v.name: np.zeros(v.shape or (), v.dtype) for v in values}

    def warm(self, limit: TimeLimit | None = None, most_bytes: float = 1e9) -> None:
        """Run once on zeros, so that the first job finds memory and caches as later ones do. Where zeros are not what it can compute
        (what crosses may be a shape, a scale or an index), it stays cold. Raises TookTooLong."""
        feeds = self.zeros(most_bytes)
        if feeds is not None:
            with contextlib.suppress(CaptureError):
                self.run(feeds, limit=limit)


def model_inputs(model: bytes) -> tuple[str, ...]:
    """The names of what a model reads, without making it ready to run."""
    return tuple(i.name for i in onnx.ModelProto.FromString(model).graph.input)
