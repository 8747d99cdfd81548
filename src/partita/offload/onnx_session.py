"""How ONNX Runtime executes here: one set of options, for measuring and for running alike.

A time is only worth something for the execution it was taken from, so both sides open their sessions with these options:
one thread a session (a device and a server thread are one core each), nodes one after another, every optimisation
that ONNX Runtime has (fused kernels, blocked layouts).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from partita.errors import MissingDependency

try:
    import onnxruntime
except ImportError as _error:
    raise MissingDependency(
        "ONNX Runtime is not installed", hint="pip install onnx onnxruntime, or pip install partita[offload]"
    ) from _error

SILENT = 3  #: ONNX Runtime's log level that keeps errors and drops advice, e.g. about unused initialisers


def session_options(profile: str | Path | None = None) -> Any:
    """Options of every session; with `profile`, a prefix of the file that ONNX Runtime's profiler writes."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.log_severity_level = SILENT
    if profile is not None:
        options.enable_profiling = True
        options.profile_file_prefix = str(profile)
    return options
