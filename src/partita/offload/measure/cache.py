"""Measurements kept by model and hardware, so that a model is measured once a machine.

The key says what a time depends on: the model's hash, the processor, its quota, the version of ONNX Runtime. On a host of a test bed
the quota cannot be seen, and its group's name stands for it. A file that is damaged or not this model's is measured again and replaced.
"""

from __future__ import annotations

import hashlib
import os
import platform
from pathlib import Path

import onnxruntime

from partita.cpu_quota import cpu_quota
from partita.errors import BadInput, CostError, DiskFull
from partita.files import dump_json, read_json, write_whole
from partita.offload.capture.onnx_model import OnnxModel
from partita.offload.measure.inference import InferenceTimes, measure_model


def cached_times(model: OnnxModel, folder: Path, budget_s: float = 4.0) -> tuple[InferenceTimes, bool]:
    """The model's times on this machine, and whether they were measured now. Raises what `measure_model` raises."""
    path = folder / f"{model.hash[:32]}-{_digest(hardware())}.json"
    try:
        found = InferenceTimes.from_json(read_json(path, CostError), str(path))
        if found.model == model.hash and set(found.tasks) == set(model.graph.index):
            return found, False
    except CostError:  # not there yet, or damaged
        pass
    times = measure_model(model, budget_s)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(path, dump_json(times.to_json()))
    except (OSError, BadInput, DiskFull):  # a cache that cannot be written costs time, no result
        pass
    return times, True


def default_folder() -> Path:
    """$XDG_CACHE_HOME/partita, or ~/.cache/partita."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "partita"


def hardware() -> str:
    """Processor, quota and ONNX Runtime, in words."""
    return f"{_processor()}; {cpu_quota()}; onnxruntime {onnxruntime.__version__}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())
