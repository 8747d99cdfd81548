"""Inputs: how the cells of a table become numbers that a model can multiply.

A fit remembers the scale of the rows it saw, and reads all other rows alike: numbers as the logarithm of their ratio to
the geometric mean seen, kinds as one indicator a level. A level never seen has no indicator, and so counts as average.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from partita.models.capture.roles import Role
from partita.models.capture.table import Table
from partita.nouns.graph import FloatArray


@dataclass(frozen=True)
class Scale:
    """What a fit must remember of its rows."""

    reference: Mapping[str, float]  #: numeric column -> geometric mean
    offset: Mapping[
        str, float
    ]  #: numeric column -> what is added before the logarithm: 0, or its mean where zeros occur
    levels: Mapping[str, tuple[str, ...]]  #: kind -> its levels, sorted
    span: Mapping[str, tuple[float, float]]  #: numeric column -> smallest and largest value
    values: Mapping[str, int]  #: numeric column -> how many different values

    def log(self, table: Table, name: str) -> FloatArray:
        """[rows] the logarithm of a numeric column over its reference."""
        shift = self.offset[name]
        values: FloatArray = np.log(np.maximum(table.numbers(name) + shift, 1e-12) / (self.reference[name] + shift))
        return values

    def outside(self, table: Table, name: str) -> FloatArray:
        """[rows] how far a numeric column lies outside the rows seen, as the logarithm of a ratio; 0 inside."""
        x, shift = table.numbers(name), self.offset[name]
        low, high = (v + shift for v in self.span[name])
        x = np.maximum(x + shift, 1e-12)
        return np.maximum(np.maximum(np.log(x / high), np.log(low / x)), 0.0) if low > 0 else np.zeros(len(x))

    def indicators(self, table: Table, name: str) -> dict[str, FloatArray]:
        """Level -> [rows] 1 where the row has it; nothing for a kind with a single level."""
        cells = text_of(table, name)
        known = self.levels[name] if len(self.levels[name]) > 1 else ()
        return {level: (cells == level).astype(np.float64) for level in known}

    def to_json(self) -> dict[str, Any]:
        return {
            "reference": dict(self.reference),
            "offset": dict(self.offset),
            "levels": {k: list(v) for k, v in self.levels.items()},
            "span": {k: list(v) for k, v in self.span.items()},
            "values": dict(self.values),
        }

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> Scale:
        """Raises KeyError, TypeError or ValueError for a damaged one."""
        return Scale(
            {str(k): float(v) for k, v in value["reference"].items()},
            {str(k): float(v) for k, v in value["offset"].items()},
            {str(k): tuple(str(x) for x in v) for k, v in value["levels"].items()},
            {str(k): (float(v[0]), float(v[1])) for k, v in value["span"].items()},
            {str(k): int(v) for k, v in value["values"].items()},
        )


def scale_of(table: Table, roles: Mapping[str, Role]) -> Scale:
    """The scale of the rows that a model is fitted to."""
    reference, offset, levels, span, distinct = {}, {}, {}, {}, {}
    for name, role in roles.items():
        if role == "kind":
            levels[name] = tuple(sorted(set(text_of(table, name).tolist())))
        else:
            values = table.numbers(name)
            positive = values[values > 0]
            reference[name] = float(np.exp(np.log(positive).mean())) if len(positive) else 1.0
            offset[name] = reference[name] if np.any(values <= 0) else 0.0
            span[name] = float(values.min()), float(values.max())
            distinct[name] = len(np.unique(values))
    return Scale(reference, offset, levels, span, distinct)


def text_of(table: Table, name: str) -> Any:
    """[rows] a column's cells as text: the levels of a kind, also of one written in numbers."""
    column = table.columns[name]
    return column if table.is_text(name) else np.array([f"{v:g}" for v in column], np.str_)


@dataclass
class Parameters:
    """The entries of theta as they are handed out: name, prior mean, prior standard deviation. One name is one parameter."""

    names: list[str] = field(default_factory=list)
    mean: list[float] = field(default_factory=list)
    sd: list[float] = field(default_factory=list)

    def add(self, name: str, mean: float, sd: float) -> int:
        """The number of a parameter, new or known."""
        if name not in self.names:
            self.names.append(name)
            self.mean.append(mean)
            self.sd.append(sd)
        return self.names.index(name)
