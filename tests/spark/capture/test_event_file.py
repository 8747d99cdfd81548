"""Event logs as files: compressed as Spark does it, rolling, cut off, and what is none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from spark.small_logs import head, job_end, job_start, stage_info, two_stages, written

from partita.errors import CaptureError
from partita.spark.capture.event_file import EventFile

pyarrow = pytest.importorskip("pyarrow")

TEXT = written(two_stages())


def zstd(text: bytes) -> bytes:
    sink = pyarrow.BufferOutputStream()
    with pyarrow.CompressedOutputStream(sink, "zstd") as out:
        out.write(text)
    return bytes(sink.getvalue())


def frames(text: bytes) -> bytes:
    """As one that is flushed now and then."""
    return b"".join(zstd(text[k : k + 1000]) for k in range(0, len(text), 1000))


def lz4(text: bytes, size: int = 700) -> bytes:
    """As lz4-java's LZ4BlockOutputStream writes it; an empty block ends it."""
    codec, out = pyarrow.Codec("lz4_raw"), b""
    for k in range(0, len(text), size):
        plain = text[k : k + size]
        packed = codec.compress(plain, asbytes=True)
        out += (
            b"LZ4Block"
            + bytes([0x26])
            + len(packed).to_bytes(4, "little")
            + len(plain).to_bytes(4, "little")
            + bytes(4)
        )
        out += packed
    return out + b"LZ4Block" + bytes([0x16]) + bytes(12)


def snappy(text: bytes, size: int = 700) -> bytes:
    """As snappy-java's SnappyOutputStream writes it."""
    codec = pyarrow.Codec("snappy")
    out = b"\x82SNAPPY\x00" + (1).to_bytes(4, "big") * 2
    for k in range(0, len(text), size):
        packed = codec.compress(text[k : k + size], asbytes=True)
        out += len(packed).to_bytes(4, "big") + packed
    return out


def read(path: Path) -> tuple[list[str], EventFile]:
    file = EventFile(path)
    return [e["Event"].removeprefix("SparkListener") for e in file.events()], file


@pytest.mark.parametrize(
    ("name", "packed"),
    [("app", TEXT), ("app.zstd", zstd(TEXT)), ("app.zstd", frames(TEXT)), ("app.lz4", lz4(TEXT)), ("app.snappy", snappy(TEXT)), ("app.snappy", snappy(TEXT[:2000]) + snappy(TEXT[2000:]))],
)  # fmt: skip
def test_every_codec_gives_the_same_events(tmp_path: Path, name: str, packed: bytes) -> None:
    (tmp_path / name).write_bytes(packed)
    names, file = read(tmp_path / name)
    assert names.count("TaskEnd") == 4
    assert "ResourceProfileAdded" not in names
    assert (names[-1], file.cut) == ("ApplicationEnd", False)


@pytest.mark.parametrize(("name", "pack"), [("app", bytes), ("app.zstd.inprogress", frames), ("app.lz4", lz4), ("app.snappy", snappy)])  # fmt: skip
def test_a_log_that_is_cut_off_is_read_as_far_as_it_goes(tmp_path: Path, name: str, pack: object) -> None:
    whole = pack(TEXT)  # type: ignore[operator]
    (tmp_path / name).write_bytes(whole[: len(whole) * 4 // 5])
    names, file = read(tmp_path / name)
    assert file.cut
    assert "JobStart" in names
    assert "ApplicationEnd" not in names


def test_a_line_cut_off_in_the_middle_of_a_character_is_no_damage(tmp_path: Path) -> None:
    (tmp_path / "app").write_bytes(TEXT + '{"Event":"SparkListenerJobEnd","x":"é'.encode()[:-1])
    names, file = read(tmp_path / "app")
    assert (names[-1], file.cut) == ("ApplicationEnd", True)


def test_damage_in_the_middle_is_damage(tmp_path: Path) -> None:
    (tmp_path / "app").write_bytes(TEXT[:500] + b"\n" + TEXT[500:])
    with pytest.raises(CaptureError, match="line"):
        read(tmp_path / "app")


def test_a_rolling_log_is_read_in_order_from_its_last_compaction(tmp_path: Path) -> None:
    folder = tmp_path / "eventlog_v2_app-1"
    folder.mkdir()
    (folder / "appstatus_app-1.inprogress").touch()
    for k in (1, 2, 3, 10):
        (folder / f"events_{k}_app-1").write_bytes(written([job_start(k, k, [stage_info(k)])]))
    (folder / "events_2_app-1.compact").write_bytes(written([*head(), job_start(0, 0, [stage_info(0)])]))
    file = EventFile(folder)
    jobs = [e["Job ID"] for e in file.events() if e["Event"].endswith("JobStart")]
    assert (jobs, file.cut, file.compacted) == ([0, 3, 10], True, True)


def test_events_of_sql_have_long_names(tmp_path: Path) -> None:
    rows = [{"Event": "org.apache.spark.sql.execution.ui.SparkListenerSQLExecutionStart", "x": 1}, job_end(0, 1.0)]
    (tmp_path / "app").write_bytes(written(rows))
    assert read(tmp_path / "app")[0] == ["JobEnd"]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("app", b""),
        ("app", b"\x00\x01\x02"),
        ("app", json.dumps([1]).encode() + b"\n"),
        ("app", b'{"Event": 3}\n'),
        ("app.lz4", b"LZ4Block" + bytes([0x26]) + (1 << 31).to_bytes(4, "little") * 2 + bytes(4)),
        ("app.lz4", TEXT),
        ("app.snappy", TEXT),
        ("app.snappy", b"\x82SNAPPY\x00" + bytes(8) + (5).to_bytes(4, "big") + b"\xff\xff\xff\xff\x7f"),
        ("app.zstd", TEXT),
        ("app.lzf", TEXT),
    ],
)
def test_what_is_no_log_is_said_to_be_none(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(CaptureError) as found:
        read(tmp_path / name)
    assert found.value.hint


def test_folders_and_paths_that_are_no_log(tmp_path: Path) -> None:
    (tmp_path / "app-1").touch()
    with pytest.raises(CaptureError, match="app-1"):
        read(tmp_path)
    with pytest.raises(CaptureError, match="does not exist"):
        read(tmp_path / "none")
