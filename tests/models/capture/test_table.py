"""Tables: what is read, and what is refused at the door, with its place."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from partita.models.capture.table import Table, TableError, check_times, mixed_units


def read(tmp_path: Path, text: str) -> Table:
    path = tmp_path / "runs.csv"
    path.write_text(text)
    return Table.read(path)


@pytest.mark.parametrize("mark", [",", ";", "\t"])
@pytest.mark.parametrize("bom", ["", "\ufeff"])
def test_numbers_are_numbers_and_all_else_is_text(tmp_path: Path, mark: str, bom: str) -> None:
    rows = [["n", "name of it", "t (s)"], ["1", "a b", "0.5"], ["2", "7", "1e-3"]]
    table = read(tmp_path, bom + "\n".join(mark.join(r) for r in rows) + "\n\n")
    assert table.names == ("n", "name of it", "t (s)")
    assert len(table) == 2
    np.testing.assert_array_equal(table.numbers("t (s)"), [0.5, 1e-3])
    assert table.is_text("name of it")
    assert table.columns["name of it"].tolist() == ["a b", "7"]


def test_quoted_cells_may_hold_the_separator(tmp_path: Path) -> None:
    table = read(tmp_path, 'n,"a, b"\n1,"x, y"\n2,z\n')
    assert table.names == ("n", "a, b")
    assert table.columns["a, b"].tolist() == ["x, y", "z"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "0 lines"),
        ("a,b\n", "1 lines"),
        ("a,b\n1,2\n3\n", "line 3 has 1 cells, not 2"),
        ("a,a\n1,2\n3,4\n", "column 'a' is there 2 times"),
        ("a,b\n1,\n3,4\nnan,5\n", "column 'b' has 1 missing values (line 2)"),
        ("a,b\n1,\n3,4\nNaN,5\n", "column 'a' has 1 missing values (line 4)"),
    ],
)
def test_what_is_no_table_is_refused_with_its_place(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(TableError, match=said.replace("(", r"\(").replace(")", r"\)")) as caught:
        read(tmp_path, text)
    assert "hint:" in str(caught.value)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    for name in ("no.csv", "no.parquet"):
        with pytest.raises(TableError, match=name):
            Table.read(tmp_path / name)


def test_parquet_says_what_is_known_only_afterwards(tmp_path: Path) -> None:
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    told = {b"partita": json.dumps({"targets": ["step_s"], "notes": ["load"]}).encode()}
    written = pa.table({"n": [1, 2], "kind": ["a", "b"], "step_s": [0.1, 0.2], "load": [0.0, 1.0]})
    parquet.write_table(written.replace_schema_metadata(told), tmp_path / "a.parquet")
    table = Table.read(tmp_path / "a.parquet")
    assert table.afterwards == ("step_s", "load")
    assert table.is_text("kind")
    np.testing.assert_array_equal(table.numbers("step_s"), [0.1, 0.2])
    (tmp_path / "b.parquet").write_bytes((tmp_path / "a.parquet").read_bytes()[:60])
    with pytest.raises(TableError, match="is not Parquet"):
        Table.read(tmp_path / "b.parquet")


@pytest.mark.parametrize("bad", [0.0, -3.0])
def test_a_time_is_greater_than_zero(bad: float) -> None:
    table = Table({"t": np.array([1.0, bad, 2.0])})
    with pytest.raises(TableError, match=f"line 3: {bad:g}"):
        check_times(table, "t")


def test_a_text_is_no_time() -> None:
    with pytest.raises(TableError, match="row 2 is 'fast'"):
        check_times(Table({"t": np.array(["1", "fast"])}), "t")


def test_an_unknown_column_names_the_known() -> None:
    with pytest.raises(TableError, match=r"no column named 'x'.*the columns are n"):
        Table({"n": np.ones(2)}).numbers("x")


Spoil = Callable[[np.ndarray], np.ndarray]


def pairs(spoil: Spoil) -> Table:
    """Bytes and a quarter of them as elements, both varying; `spoil` acts on three of twenty elements."""
    elements = np.linspace(100, 2000, 20)
    wrong = elements.copy()
    wrong[[3, 7, 11]] = spoil(elements[[3, 7, 11]])
    return Table({"bytes": 4 * elements, "elements": wrong, "other": np.arange(1.0, 21.0) ** 2})


@pytest.mark.parametrize("factor", [1000.0, 1e-3])
def test_units_that_two_columns_prove_to_be_mixed_up(factor: float) -> None:
    (fault,) = mixed_units(pairs(lambda e: e * factor), "t")
    assert "'bytes' over 'elements'" in fault
    assert "line 5, 9, 13" in fault


@pytest.mark.parametrize("spoil", [lambda e: e, lambda e: e * 10, lambda e: e * np.array([1e3, 7, 1])])
def test_nothing_is_said_where_nothing_is_proved(spoil: Spoil) -> None:
    assert mixed_units(pairs(spoil), "t") == []
