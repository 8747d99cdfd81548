"""One half of a model, or the whole, in ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx

from partita.offload.measure.session import open_session
from partita.offload.run.wire import Array

_TYPES = {
    "tensor(float)": np.float32,
    "tensor(double)": np.float64,
    "tensor(float16)": np.float16,
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
    "tensor(int8)": np.int8,
    "tensor(uint8)": np.uint8,
    "tensor(bool)": np.bool_,
}


class Session:
    """A model ready to run on one thread. Safe to run from several threads. Raises CaptureError where it is refused."""

    def __init__(self, model: bytes, name: str) -> None:
        self._session: Any = open_session(model, name)
        self.inputs: tuple[str, ...] = tuple(i.name for i in self._session.get_inputs())
        self.outputs: tuple[str, ...] = tuple(o.name for o in self._session.get_outputs())

    def run(self, feeds: Mapping[str, Array], wanted: Sequence[str] | None = None) -> dict[str, Array]:
        """Name -> output; feeds that are no inputs are left out. Raises KeyError for a missing one."""
        names = self.outputs if wanted is None else tuple(wanted)
        values = self._session.run(list(names), {name: feeds[name] for name in self.inputs})
        return dict(zip(names, values, strict=True))

    def zeros(self) -> dict[str, Array] | None:
        """Inputs of zeros; None where a shape or a type is not known."""
        feeds: dict[str, Array] = {}
        for i in self._session.get_inputs():
            if i.type not in _TYPES or not all(isinstance(n, int) and n >= 0 for n in i.shape):
                return None
            feeds[i.name] = np.zeros(i.shape, _TYPES[i.type])
        return feeds

    def warm(self) -> None:
        """Run once, so that the first job finds memory and caches as later ones do."""
        feeds = self.zeros()
        if feeds is not None:
            self.run(feeds)


def model_inputs(model: bytes) -> tuple[str, ...]:
    """The names of what a model reads, without making it ready to run."""
    return tuple(i.name for i in onnx.ModelProto.FromString(model).graph.input)


def first_line(error: BaseException) -> str:
    """The first line of an error's text, cut where it is long."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0][:300]
