"""Inputs of a model: made up from its shapes, or from a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from partita.errors import CaptureError, refuse, sentence_of
from partita.offload.capture.onnx_model import OnnxModel
from partita.offload.capture.onnx_types import Value, refuse_strange

MOST_INPUT_BYTES = 4e9  #: they are held in memory


def random_inputs(model: OnnxModel, seed: int = 0) -> dict[str, Any]:
    """An input of the model's shapes: normal numbers, zeros where it wants integers. Raises CaptureError."""
    if model.input_bytes > MOST_INPUT_BYTES:
        raise CaptureError(
            f"{model.name}: its inputs take {model.input_bytes / 1e9:.3g} GB; at most {MOST_INPUT_BYTES / 1e9:g} GB are possible",
            hint="check the shapes of its inputs",
        )
    chance = np.random.default_rng(seed)
    return {v.name: random_array(model.name, v, chance) for v in model.inputs}


def random_array(model: str, value: Value, chance: np.random.Generator) -> Any:
    """Normal numbers, zeros where it is of integers. Raises CaptureError where shape or type are not known."""
    refuse_strange(model, [value])
    if value.shape is None or value.element is None:
        raise CaptureError(
            f"{model}: the shape or type of its input {value.name!r} is not known",
            hint="fix it with python -m onnxruntime.tools.make_dynamic_shape_fixed",
        )
    if value.dtype is None:
        raise CaptureError(
            f"{model}: no {value.type_name} can be made up for its input {value.name!r}",
            hint='write `input = "FILE.npz"` into its row of JOBS.toml',
        )
    if value.dtype.startswith("float"):
        return chance.standard_normal(value.shape).astype(value.dtype)
    return np.zeros(value.shape, value.dtype)


def read_inputs(model: OnnxModel, path: str | Path) -> dict[str, Any]:
    """Arrays by name from an .npz file, never pickles. Raises CaptureError with every array that does not fit."""
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except Exception as error:  # OSError, ValueError, zipfile.BadZipFile and AttributeError, by how it is damaged
        raise CaptureError(f"{path} cannot be read: {sentence_of(error)}", hint="write it with numpy.savez") from error
    faults = [f"it lacks {v.name!r}" for v in model.inputs if v.name not in arrays]
    faults += [
        f"{v.name!r} is {x.dtype} {list(x.shape)}, {model.name} wants {v.dtype} {list(v.shape or ())}"
        for v in model.inputs
        if (x := arrays.get(v.name)) is not None
        and ((v.shape is not None and x.shape != v.shape) or (v.dtype is not None and x.dtype != v.dtype))
    ]
    refuse(CaptureError, faults, str(path))
    return {v.name: arrays[v.name] for v in model.inputs}
