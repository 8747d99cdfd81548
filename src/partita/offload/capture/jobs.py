"""JOBS.toml: which inferences to make.

[[job]]
model = "alexnet.onnx"      # beside this file, or an absolute path
count = 6                   # so many of them; default 1
name = "camera"             # default: the model's; with a count: camera-0, camera-1, ...
input = "frame.npz"         # arrays by input name; default: random numbers
release_s = 0.0             # when its input is there
deadline_s = 2.5            # when its answer is wanted; default: whenever
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from partita.errors import BadInput, JobError, refuse
from partita.files import read_toml
from partita.nouns.offload import LARGEST, MOST_JOBS
from partita.offload.capture.onnx_inputs import MOST_INPUT_BYTES, random_inputs, read_inputs
from partita.offload.capture.onnx_model import OnnxModel

_KEYS = {"model": str, "count": int, "name": str, "input": str, "release_s": (int, float), "deadline_s": (int, float)}


@dataclass(frozen=True, eq=False)
class JobSpec:
    """One inference to make."""

    name: str
    model: OnnxModel  #: one object for all jobs of a file
    input: Mapping[str, Any]  #: input name -> array
    release_s: float = 0.0
    deadline_s: float = math.inf


def read_jobs(path: str | Path) -> tuple[JobSpec, ...]:
    """The jobs of a file, in its order. Raises JobError with every fault of the file and of its models at once."""
    value = read_toml(path, JobError)
    rows = value.get("job")
    if not isinstance(rows, list) or not rows or not all(isinstance(r, dict) for r in rows):
        raise JobError(f"{path} has no jobs", hint='begin with [[job]] and model = "NAME.onnx"')
    faults = [f"unknown table {k!r}" for k in value if k != "job"]
    try:
        faults += [f"job {k}: {fault}" for k, row in enumerate(rows) for fault in _faults(row)]
    except ValueError as error:  # Python prints no whole number of more than some thousand digits
        raise JobError(f"{path}: {error}", hint="write a smaller number") from error
    refuse(JobError, faults, str(path))
    folder = Path(path).resolve().parent
    load = cache(lambda file: OnnxModel.read(folder / file))
    jobs: list[JobSpec] = []
    count = sum(row.get("count", 1) for row in rows)
    if count > MOST_JOBS:
        raise JobError(f"{path} has {count} jobs; at most {MOST_JOBS} are possible", hint="split the file")
    room = MOST_INPUT_BYTES
    for k, row in enumerate(rows):
        try:
            new = _jobs(row, load, folder, len(jobs), room)
            room -= 0.0 if "input" in row else len(new) * new[0].model.input_bytes
            jobs += new
        except BadInput as error:
            faults.append(f"job {k}: {error.message}")
    names = Counter(j.name for j in jobs)
    faults += [f"{n} jobs are called {name!r}" for name, n in names.items() if n > 1]
    refuse(JobError, faults, str(path))
    return tuple(jobs)


def _faults(row: Mapping[str, Any]) -> list[str]:
    faults = [f"unknown key {k!r}" for k in row if k not in _KEYS]
    faults += [
        f"{k} = {row[k]!r} has the wrong type" for k, kind in _KEYS.items() if k in row and not _is(row[k], kind)
    ]
    if "model" not in row:
        faults.append("it names no model")
    if faults:
        return faults
    if not 1 <= row.get("count", 1) <= MOST_JOBS:
        faults.append(f"count = {row['count']}; 1 to {MOST_JOBS} are possible")
    if not 0 <= row.get("release_s", 0.0) <= LARGEST:
        faults.append(f"release_s = {row['release_s']}; 0 to {LARGEST:g} are possible")
    if not (0 <= row.get("deadline_s", 0.0) <= LARGEST or row["deadline_s"] == math.inf):
        faults.append(f"deadline_s = {row['deadline_s']}; 0 to {LARGEST:g} are possible")
    return faults


def _is(value: Any, kind: Any) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


def _jobs(
    row: Mapping[str, Any], load: Callable[[str], OnnxModel], folder: Path, seed: int, room: float
) -> list[JobSpec]:
    """The jobs of one row; those without an input of their own get different ones, of at most `room` bytes together."""
    model = load(row["model"])
    given = read_inputs(model, folder / row["input"]) if "input" in row else None
    name, count = row.get("name", model.name), row.get("count", 1)
    if given is None and model.input_bytes * count > room:
        raise JobError(
            f"inputs of {count} x {model.name} take {model.input_bytes * count / 1e9:.3g} GB; all inputs of a file may "
            f"take {MOST_INPUT_BYTES / 1e9:g} GB"
        )
    times = float(row.get("release_s", 0.0)), float(row.get("deadline_s", math.inf))
    return [
        JobSpec(
            f"{name}-{k}" if count > 1 else name,
            model,
            random_inputs(model, seed + k) if given is None else given,
            *times,
        )
        for k in range(count)
    ]
