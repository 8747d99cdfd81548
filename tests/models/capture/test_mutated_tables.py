"""Damaged tables and campaign files: a sentence with a hint, or an honest reading; never another exception."""

from __future__ import annotations

import io
import json
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from models.synthetic import runs, write_csv

from partita.errors import PartitaError
from partita.models.capture.table import Table
from partita.models.compare import Fitter
from partita.models.correction import fit_correction
from partita.models.measure.file import Campaign
from partita.models.study import prepare

WORLD = runs(24, noise=0.05, seed=3).full()
EXAMPLE = Path(__file__).parents[3] / "examples" / "campaign.toml"
JUNK = ["", "nan", "1e999", "-1", "0", "1e300", "5e-324", '"', "\0", ",", ";", "\n", "\t", "9" * 400, "x" * 200_000, "é", "\ufeff", "[[", "1_0", "inf", "{}", "2020-01-01", "'''", "= 1e400", "[" * 5000, "true", "\ud7ff"]  # fmt: skip


def mutated(raw: bytes, chance: np.random.Generator) -> bytes:
    """One to three edits: bytes flipped, parts cut out, doubled, or replaced by junk."""
    for _ in range(int(chance.integers(1, 4))):
        if not raw:
            break
        at, length = int(chance.integers(len(raw))), int(chance.integers(1, 9))
        junk = JUNK[int(chance.integers(len(JUNK)))].encode()
        flip = bytes([raw[at] ^ (1 << int(chance.integers(8)))])
        edits = [flip, junk, junk + raw[at : at + 1], b"", raw[at : at + length] * 2]
        edit = edits[int(chance.integers(len(edits)))]
        raw = raw[:at] + edit + raw[at + (1 if edit is edits[0] else length) :]
    return raw


def parquet() -> bytes:
    arrow = pytest.importorskip("pyarrow")
    table = arrow.table({n: list(WORLD.columns[n]) for n in WORLD.names})
    told = json.dumps({"targets": ["step_s"], "notes": ["optimizer"]}).encode()
    out = io.BytesIO()
    import pyarrow.parquet

    pyarrow.parquet.write_table(table.replace_schema_metadata({b"partita": told}), out)
    return out.getvalue()


def csv_text(folder: Path) -> bytes:
    return write_csv(WORLD, folder / "whole.csv").read_bytes()


def used(path: Path) -> None:
    prepare(Table.read(path), "step_s", split_by="devices", up_to=2.0)


READERS: dict[str, Callable[[Path], object]] = {"csv": used, "parquet": used, "toml": Campaign.read}


def survived(kind: str, folder: Path, count: int, seed: int) -> int:
    """How many of so many mutations were read all the same; whatever is refused is refused in a sentence."""
    whole = {"csv": lambda: csv_text(folder), "parquet": parquet, "toml": EXAMPLE.read_bytes}[kind]()
    chance, read, silent = np.random.default_rng(seed), 0, list[str]()
    path = folder / f"mutated.{kind}"
    for i in range(count):
        path.write_bytes(mutated(whole, chance))
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                READERS[kind](path)
            read += 1
        except PartitaError as error:
            silent += [] if "hint:" in str(error) else [f"mutation {i}: {error}"]
        except BaseException as error:
            raise AssertionError(f"mutation {i} of seed {seed}: {path.read_bytes()[:300]!r}") from error
    assert silent == []
    return read


@pytest.mark.parametrize("kind", READERS)
def test_mutations_are_refused_in_a_sentence_or_read(kind: str, tmp_path: Path) -> None:
    assert 0 < survived(kind, tmp_path, 150, seed=0) < 150


@pytest.mark.slow
@pytest.mark.parametrize("kind", READERS)
def test_a_thousand_mutations_each(kind: str, tmp_path: Path) -> None:
    assert survived(kind, tmp_path, 1000, seed=1) > 0


@pytest.mark.parametrize(
    "told", [b"\xff\xfe", b"[" * 100_000, b"[1]", b'{"targets": 3}', b'{"notes": [1]}', b"nonsense"]
)
def test_metadata_of_a_parquet_file_that_are_none(told: bytes, tmp_path: Path) -> None:
    arrow, files = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    table = arrow.table({"a": [1.0, 2.0], "t": [1.0, 2.0]}).replace_schema_metadata({b"partita": told})
    files.write_table(table, tmp_path / "t.parquet")
    with pytest.raises(PartitaError, match="metadata"):
        Table.read(tmp_path / "t.parquet")


@pytest.mark.parametrize("text", ["a,t\n" + "x" * 200_000 + ",1\n", "a,t\n"])
def test_what_is_no_csv(text: str, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(PartitaError, match="hint:"):
        Table.read(tmp_path / "t.csv")


@pytest.mark.parametrize("key", ["rows", "seed", "passes", "block", "spread", "visit_s", "timeout_s", "most_flops"])
def test_numbers_too_large_for_a_campaign(key: str, tmp_path: Path) -> None:
    head, _, rest = EXAMPLE.read_text().partition("[network")
    lines = [line for line in head.splitlines() if not line.startswith(f"{key} ")]
    (tmp_path / "c.toml").write_text("\n".join([*lines, f"{key} = 1{'0' * 400}", "[network"]) + rest)
    with pytest.raises(PartitaError, match=f"campaign.{key}|64 bits"):
        Campaign.read(tmp_path / "c.toml")


def test_a_column_of_text_that_holds_only_numbers_is_named() -> None:
    with pytest.raises(PartitaError, match="column 'a' is text"):
        Table({"a": np.array(["1", "2"])}).numbers("a")


@pytest.mark.parametrize("level", [0.0, 1e-9, 1e-5])
def test_what_leaves_nothing_over_has_a_correction_too(level: float) -> None:
    """The noise's bounds crossed where the formula fitted the rows to the last digit."""
    points = np.arange(12.0)[:, None]
    found = fit_correction(points, (False,), np.full(12, level), seed=0)
    assert np.all(np.isfinite(found.at(points)[0]))


def test_times_that_are_all_the_same_are_fitted() -> None:
    world = runs(30, seed=1)
    fitter = Fitter(world.roles, "devices")
    same = np.full(30, 0.5)
    model = fitter.fit("hybrid", world.table, same, fitter.settle(world.table, same))
    np.testing.assert_allclose(model.predict(world.table).time, 0.5, rtol=0.02)
