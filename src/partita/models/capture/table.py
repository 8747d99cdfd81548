"""Table: measured runs as named columns, read from CSV or Parquet and checked at the door.

A column is numeric where every cell of it is a number, else text (a category). `prepare` refuses what would make a
silent nonsense of a fit: missing cells, times that are no times, columns mixed up by a factor of a thousand; constant
columns are dropped and named.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from partita.errors import BadInput, MissingDependency, refuse
from partita.files import read_bytes, read_text
from partita.nouns.graph import BoolArray, FloatArray, IntArray

TextArray = npt.NDArray[np.str_]
THOUSAND = 1000.0
MOST_CELLS = 10_000_000  #: of a file: more are refused unread
LARGEST = (
    1e30  #: numbers beyond it, or nearer to zero than its inverse, measure nothing and overflow in a product of powers
)


class TableError(BadInput):
    """A table of measurements that cannot be used as it is."""


@dataclass(frozen=True, eq=False)
class Table:
    """Columns of equal length; numbers as float64, everything else as text."""

    columns: Mapping[str, FloatArray | TextArray]
    afterwards: tuple[str, ...] = ()  #: columns that a campaign's file names as targets and notes: never inputs

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()))) if self.columns else 0

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.columns)

    def is_text(self, name: str) -> bool:
        return self.columns[name].dtype.kind == "U"

    def numbers(self, name: str) -> FloatArray:
        """[rows] a numeric column. Raises TableError for a column of text or one that is not there."""
        self.known([name])
        column = self.columns[name]
        if column.dtype.kind == "U":
            bad = next((i for i, c in enumerate(column) if not _is_number(c)), None)
            what = "" if bad is None else f": row {bad + 1} is {str(column[bad])!r}"
            raise TableError(f"column {name!r} is text{what}", hint="name a column of numbers")
        return np.asarray(column, np.float64)

    def known(self, names: Sequence[str]) -> None:
        """Raises TableError for names that are no columns."""
        unknown = [n for n in names if n not in self.columns]
        if unknown:
            raise TableError(
                f"no column named {', '.join(map(repr, unknown))}", hint=f"the columns are {', '.join(self.names)}"
            )

    def take(self, rows: IntArray | BoolArray) -> Table:
        return replace(self, columns={n: c[rows] for n, c in self.columns.items()})

    def without(self, names: Sequence[str]) -> Table:
        return replace(self, columns={n: c for n, c in self.columns.items() if n not in names})

    @staticmethod
    def of(rows: Sequence[Mapping[str, Any]]) -> Table:
        """A table from rows of the same keys; a column is numeric where all its cells are numbers."""
        names = list(rows[0]) if rows else []
        return Table({n: _column([str(r[n]) for r in rows]) for n in names})

    @staticmethod
    def read(path: str | Path) -> Table:
        """The table in a .csv or .parquet file. Raises TableError with the place of every fault."""
        return _read_parquet(Path(path)) if str(path).endswith(".parquet") else _read_csv(Path(path))


def _read_csv(path: Path) -> Table:
    text = read_text(path, TableError)
    try:
        dialect: Any = csv.Sniffer().sniff(text[:20_000], delimiters=",;\t")
    except csv.Error:
        dialect = csv.excel
    try:
        rows = [r for r in csv.reader(io.StringIO(text), dialect) if any(c.strip() for c in r)]
    except csv.Error as error:
        raise TableError(f"{path} is not CSV: {error}", hint="save it again as CSV, or as Parquet") from error
    if len(rows) < 2:
        raise TableError(f"{path} has {len(rows)} lines", hint="a line of column names, then a line for each run")
    names = [n.strip() for n in rows[0]]
    faults = [f"column {n!r} is there {names.count(n)} times" for n in dict.fromkeys(names) if names.count(n) > 1]
    faults += [
        f"line {i + 2} has {len(r)} cells, not {len(names)}" for i, r in enumerate(rows[1:]) if len(r) != len(names)
    ]
    refuse(TableError, faults, str(path), hint="a line of column names, then a line of as many cells for each run")
    return _checked(path, {n: [r[i].strip() for r in rows[1:]] for i, n in enumerate(names)})


def _read_parquet(path: Path) -> Table:
    try:
        import pyarrow
        import pyarrow.parquet as parquet
    except ImportError as error:
        raise MissingDependency(
            "Parquet files need pyarrow, which is not installed", hint="pip install pyarrow"
        ) from error
    raw = io.BytesIO(read_bytes(path, TableError))
    try:
        shape = parquet.read_metadata(raw)
        if shape.num_rows * shape.num_columns > MOST_CELLS:
            raise TableError(
                f"{path} has {shape.num_rows} rows and {shape.num_columns} columns; at most {MOST_CELLS} cells are read",
                hint="keep the runs and the columns that matter",
            )
        found = parquet.read_table(raw)
        names = [str(n) for n in found.column_names]
        cells = [["" if v is None else str(v) for v in found.column(i).to_pylist()] for i in range(len(names))]
        told = dict(found.schema.metadata or {}).get(b"partita", b"{}")
    except (OSError, ValueError, TypeError, KeyError, OverflowError, RecursionError, pyarrow.ArrowException) as error:
        said = (str(error).splitlines() or [type(error).__name__])[0]
        raise TableError(f"{path} is not Parquet: {said}", hint="the file may be cut off or damaged") from error
    faults = [f"column {n!r} is there {names.count(n)} times" for n in dict.fromkeys(names) if names.count(n) > 1]
    faults += [] if len(found) else ["it has no rows"]
    refuse(TableError, faults, str(path), hint="a named column for each fact, a row for each run")
    table = _checked(path, dict(zip(names, cells, strict=True)))
    return replace(table, afterwards=_known_afterwards(path, told))


def _known_afterwards(path: Path, told: bytes) -> tuple[str, ...]:
    """The targets and notes that a campaign's metadata name."""
    try:
        value = json.loads(told)
    except (ValueError, RecursionError) as error:
        raise TableError(f"the metadata of {path} are damaged: {error}", hint="write the file again") from error
    lists: list[Any] = [value.get(k, []) for k in ("targets", "notes")] if isinstance(value, dict) else [None]
    if not all(isinstance(names, list) and all(isinstance(n, str) for n in names) for names in lists):
        raise TableError(f"the metadata of {path} do not list targets and notes", hint="write the file again")
    return tuple(n for names in lists for n in names)


def _checked(path: Path, cells: Mapping[str, Sequence[str]]) -> Table:
    """Refuse missing cells, all of them at once."""
    faults = []
    for name, column in cells.items():
        missing = [i + 2 for i, c in enumerate(column) if c.lower() in ("", "nan", "na", "null", "none", "?")]
        if missing:
            where = ", ".join(map(str, missing[:5])) + (", ..." if len(missing) > 5 else "")
            faults.append(f"column {name!r} has {len(missing)} missing values (line {where})")
    refuse(TableError, faults, str(path), hint="fill them in, remove those lines, or --drop those columns")
    return Table({n: _column(c) for n, c in cells.items()})


def _column(cells: Sequence[str]) -> FloatArray | TextArray:
    if all(_is_number(c) for c in cells):
        return np.array([float(c) for c in cells], np.float64)
    return np.array([str(c) for c in cells], np.str_)


def _is_number(cell: str) -> bool:
    try:
        return math.isfinite(float(cell))
    except ValueError:
        return False


def check_times(table: Table, target: str) -> FloatArray:
    """[rows] the target. Raises TableError where a time is zero, negative, or in other units than its neighbours."""
    times = table.numbers(target)
    bad = np.flatnonzero((times < 1 / LARGEST) | (times > LARGEST))
    if len(bad):
        first = ", ".join(f"line {i + 2}: {times[i]:g}" for i in bad[:5])
        raise TableError(
            f"column {target!r} has {len(bad)} values that are no times ({first})", hint="a time is greater than zero"
        )
    return times


def check_sizes(table: Table, names: Sequence[str]) -> None:
    """Raises TableError for numbers that measure nothing."""
    faults = []
    for name in names:
        x = np.abs(table.columns[name].astype(np.float64)) if not table.is_text(name) else np.zeros(1)
        bad = np.flatnonzero((x > LARGEST) | ((x > 0) & (x < 1 / LARGEST)))
        faults += [f"column {name!r} holds {x[i]:g} (line {i + 2})" for i in bad[:1]]
    refuse(TableError, faults, "numbers beyond all measures", hint="correct them, or --drop those columns")


def mixed_units(table: Table, target: str) -> list[str]:
    """What two columns prove: rows in which a column is a thousand times another that it equals elsewhere.

    Two numeric columns whose ratio is one constant in most rows and a thousand times it (or a thousandth) in the others
    are the same quantity with units mixed up. Nothing is said where the ratio varies otherwise.
    """
    names = [n for n in table.names if not table.is_text(n) and np.all(table.numbers(n) > 0)]
    faults = []
    for i, a in enumerate(names):
        for b in names[i + 1 :]:
            ratio = table.numbers(a) / table.numbers(b)
            usual = float(np.median(ratio))
            off = np.abs(np.log(ratio / usual)) > 0.05
            wrong = off & (np.abs(np.abs(np.log(ratio / usual)) - math.log(THOUSAND)) < 0.05)
            varies = len(np.unique(np.round(np.log(table.numbers(b)), 6))) > 1
            if wrong.any() and (off == wrong).all() and wrong.mean() < 0.5 and varies:
                lines = ", ".join(str(k + 2) for k in np.flatnonzero(wrong)[:5])
                faults.append(f"{a!r} over {b!r} is {usual:.3g} in most rows, a thousand times off in line {lines}")
    return faults
