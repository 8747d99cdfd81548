"""Files at the door: whole or not at all, and one sentence for each way of being damaged."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_worlds import refused_or

from partita.errors import BadInput, DiskFull, GraphError
from partita.files import dump_json, expect_format, read_bytes, read_json, read_text, read_toml, write_whole

scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
values = st.recursive(scalars, lambda v: st.lists(v) | st.dictionaries(st.text(), v), max_leaves=12)


@given(st.dictionaries(st.text(), values))
def test_what_dump_json_writes_json_reads_back(value: dict[str, Any]) -> None:
    assert json.loads(dump_json(value)) == value


def test_dump_json_puts_rows_on_lines_and_refuses_what_json_has_no_word_for() -> None:
    assert dump_json({"rows": [{"x": 1}, {"x": 2}]}).count("\n") == 6
    with pytest.raises(BadInput, match="not finite"):
        dump_json({"x": float("nan")})
    with pytest.raises(BadInput, match="not finite"):
        dump_json({"rows": [{"x": float("inf")}]})


def test_write_whole_replaces_and_leaves_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    assert write_whole(path, "old") == path
    write_whole(str(path), b"new")
    assert path.read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["a.json"]
    mask = os.umask(0)
    os.umask(mask)
    assert path.stat().st_mode & 0o777 == 0o666 & ~mask


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_whole(tmp_path / "a.json", "old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DiskFull, match=r"No space left on device. hint: free some room") as caught:
        write_whole(path, "new")
    assert caught.value.exit_code == 1
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["a.json"]


def test_half_a_character_is_written_as_an_escape(tmp_path: Path) -> None:
    assert write_whole(tmp_path / "a", "a\udcffb").read_bytes() == b"a\\udcffb"


def test_write_whole_into_a_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"cannot be written: No such file .* hint: name a folder that exists"):
        write_whole(tmp_path / "none" / "a.json", "x")


def test_what_is_not_there_or_no_file(tmp_path: Path) -> None:
    with pytest.raises(GraphError, match="cannot be read: No such file"):
        read_bytes(tmp_path / "none", GraphError)
    with pytest.raises(GraphError, match="cannot be read: Is a directory"):
        read_bytes(tmp_path, GraphError)


def test_a_file_too_large_is_refused_unread(tmp_path: Path) -> None:
    path = write_whole(tmp_path / "big", b" " * 3_000_000)
    assert len(read_bytes(path, BadInput, 3_000_000)) == 3_000_000
    for endless in (path, "/dev/zero"):
        with pytest.raises(BadInput, match=r"MB; at most 1 MB are read"):
            read_bytes(endless, BadInput, 1_000_000)


def test_text_is_utf_8_with_or_without_a_mark(tmp_path: Path) -> None:
    assert read_text(write_whole(tmp_path / "a", "\ufeffgrün"), BadInput) == "grün"
    with pytest.raises(BadInput, match=r"is not text: byte 2 is 0xff"):
        read_text(write_whole(tmp_path / "b", b"ab\xff"), BadInput)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"a": 1,\n "b": [1, 2', r"is not JSON: line 2 column"),
        ("", r"is not JSON: line 1 column 1"),
        ("[" * 100_000, r"is not JSON: nested too deeply"),
        ('{"a": ' + "1" * 5000 + "}", r"is not JSON: .*digits"),
        ('{"a": 123456789012345678901}', r"is not JSON: an integer of 21 digits is beyond 64 bits"),
        ('{"a": "\\ud800"}', r"is not JSON: '.ud800' is half of a character"),
        ('{"a": ' + "[" * 100 + "]" * 100 + "}", r"is not JSON: nested too deeply: more than 60 levels"),
        ("[1, 2]", r"holds a JSON list, not an object"),
        ('{"format": "other"}', r"is 'other', not 'partita-graph'"),
        ("{}", r"is None, not 'partita-graph'.* hint: give a file that says"),
        ('{"format": "partita-graph", "version": 7}', r"has version 7; this Partita reads version 1"),
    ],
)
def test_damaged_json_is_one_sentence_with_the_place(tmp_path: Path, text: str, says: str) -> None:
    path = write_whole(tmp_path / "g.json", text)
    with pytest.raises(GraphError, match=says) as caught:
        read_json(path, GraphError, "partita-graph")
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@given(st.binary(max_size=64))
def test_garbage_is_never_more_than_bad_input(tmp_path_factory: pytest.TempPathFactory, raw: bytes) -> None:
    path = write_whole(tmp_path_factory.getbasetemp() / "garbage", raw)
    for read in (read_json, read_toml):
        value = refused_or(lambda read=read: read(path, GraphError), GraphError, str(path))
        assert value is None or isinstance(value, dict)


def test_toml_says_where_it_breaks(tmp_path: Path) -> None:
    assert read_toml(write_whole(tmp_path / "a.toml", "x = 1\n[t]\ny = inf\n"), BadInput)["x"] == 1
    with pytest.raises(BadInput, match=r"is not TOML: .*line 2"):
        read_toml(write_whole(tmp_path / "b.toml", "x = 1\ny = \n"), BadInput)
    assert read_toml(write_whole(tmp_path / "d.toml", "day = 2020-01-01"), BadInput) == {"day": "2020-01-01"}
    with pytest.raises(BadInput, match=r"is not TOML: an integer of 22 digits is beyond 64 bits"):
        read_toml(write_whole(tmp_path / "e.toml", "x = 0xffffffffffffffffff"), BadInput)
    with pytest.raises(BadInput, match=r"is not TOML"):
        read_toml(write_whole(tmp_path / "c.toml", "x = " + "[" * 100_000), BadInput)


def test_expect_format_accepts_what_it_should() -> None:
    expect_format({"format": "f", "version": 1}, "f", BadInput, "it")


def test_what_is_no_file_is_written_into(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with open(os.open(pipe, os.O_RDWR), "rb", buffering=0) as reader:
        assert write_whole(pipe, "whole") == pipe
        assert reader.read(5) == b"whole"
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    if Path("/dev/full").exists():
        with pytest.raises(DiskFull, match="No space left"):
            write_whole("/dev/full", "too much")
        assert stat.S_ISCHR(Path("/dev/full").stat().st_mode)
