"""The events of a Spark event log, one JSON object a line: a plain file, a compressed one, or a rolling folder.

Spark 3.x compresses with zstd (its default), lz4 (the block format of lz4-java), snappy (xerial's stream) or lzf, and names
the file after it. A running or crashed application leaves a file that ends in `.inprogress` or in the middle of a line or of
a block: what is whole is read, and that it was cut is said.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from partita.errors import CaptureError, MissingDependency
from partita.files import parse_json

CODECS = ("zstd", "zst", "lz4", "snappy")
MOST_LINE_BYTES = 1 << 26  #: 64 MiB: a job of 100,000 stages has less
MOST_LOG_BYTES = 1 << 34  #: of text: 16 GiB
MOST_BLOCK_BYTES = 1 << 26  #: of a compressed block: Spark's have 32 kB
STEP_BYTES = 512  #: what the end of a zstd stream that was cut off may lose
MOST_FILES = 10_000  #: of a rolling log
HINT = "give the event log of a Spark 3 application: spark.eventLog.enabled=true writes one to spark.eventLog.dir"
WANTED = tuple(
    f"SparkListener{w}"
    for w in ("LogStart", "ApplicationEnd", "EnvironmentUpdate", "JobStart", "JobEnd", "StageSubmitted", "StageCompleted", "TaskEnd")
)  # fmt: skip
_NAME = re.compile(rb'^\{\s*"Event"\s*:\s*"([^"]+)"')


@dataclass
class EventFile:
    """What was found besides the events."""

    path: Path
    cut: bool = False  #: it ends in the middle of a line or of a block, or says that it is in progress
    compacted: bool = False  #: older events were thrown away
    lines: int = 0
    _read: int = field(default=0, repr=False)

    def events(self) -> Iterator[dict[str, Any]]:
        """The events that are WANTED, in order. Raises CaptureError for what is no event log. O(bytes)."""
        files = _files(self.path)
        self.cut |= any(f.name.endswith(".inprogress") for f in files) or _in_progress(self.path)
        self.compacted = any(f.name.endswith(".compact") for f in files)
        for k, file in enumerate(files):
            yield from self._of(file, last=k == len(files) - 1)
        if not self.lines:
            raise CaptureError(f"{self.path} holds no event", hint=HINT)

    def _of(self, file: Path, last: bool) -> Iterator[dict[str, Any]]:
        with _opened(file) as text:
            for line in self._lines(text, file):
                name = _NAME.match(line)
                if name is not None and name[1].decode("ascii", "replace").rpartition(".")[2] not in WANTED:
                    self.lines += 1
                    continue
                whole = line.endswith(b"\n")
                try:
                    event = parse_json(line, CaptureError, f"{file} line {self.lines + 1}")
                except CaptureError:
                    if whole or not last:
                        raise
                    self.cut = True
                    return
                if not isinstance(event, dict) or not isinstance(event.get("Event"), str):
                    raise CaptureError(f"{file} line {self.lines + 1} is no event of Spark", hint=HINT)
                self.lines += 1
                yield event

    def _lines(self, text: IO[bytes], file: Path) -> Iterator[bytes]:
        """Lines with their ends; the last may lack one. A compressed file may break off anywhere."""
        while True:
            try:
                line = text.readline(MOST_LINE_BYTES)
            except (EOFError, OSError, ValueError) as error:
                if not self._read:
                    raise CaptureError(f"{file} cannot be read: {error}", hint=HINT) from error
                self.cut = True
                return
            self._read += len(line)
            if len(line) == MOST_LINE_BYTES or self._read > MOST_LOG_BYTES:
                raise CaptureError(f"{file} has a line of {MOST_LINE_BYTES >> 20} MiB or more, or {MOST_LOG_BYTES >> 30} GiB of text", hint=HINT)  # fmt: skip
            if not line:
                return
            if line.strip():
                yield line


def _in_progress(path: Path) -> bool:
    """A rolling folder's status file says so."""
    return path.is_dir() and any(p.name.endswith(".inprogress") for p in path.glob("appstatus_*"))


def _files(path: Path) -> list[Path]:
    """The files of a log in order: itself, or those of a rolling folder, from its last compaction on."""
    if not path.exists():
        raise CaptureError(f"{path} does not exist", hint="check the path")
    if not path.is_dir():
        return [path]
    found: list[tuple[int, bool, Path]] = []
    for file in path.glob("events_*"):
        number = re.match(r"events_(\d{1,9})_", file.name)
        if number and file.is_file():
            found.append((int(number[1]), file.name.endswith(".compact"), file))
    if not found or len(found) > MOST_FILES:
        inside = [p for p in path.iterdir() if p.is_dir() or p.name.startswith(("app-", "local-", "application_"))][:3]
        several = f"; it holds {', '.join(p.name for p in inside)}" if inside else ""
        raise CaptureError(f"{path} is no event log{several}", hint="give one log: a file, or a folder eventlog_v2_*")
    found.sort()
    compacts = [k for k, (_, compact, _) in enumerate(found) if compact]
    first = compacts[-1] if compacts else 0
    # a compaction holds what its number's own file and all before it held
    return [f for k, (n, _, f) in enumerate(found) if k == first or n > found[first][0]]


def _opened(file: Path) -> IO[bytes]:
    """The file's text. Raises CaptureError where it cannot be opened, MissingDependency where a codec needs pyarrow."""
    parts = [p for p in file.name.split(".")[1:] if p not in ("inprogress", "compact")]
    codec = next((p for p in reversed(parts) if p in (*CODECS, "lzf")), None)
    try:
        raw = open(file, "rb")  # noqa: SIM115
    except OSError as error:
        raise CaptureError(f"{file} cannot be read: {error.strerror}", hint="check the path") from error
    if codec is None:
        return raw
    if codec == "lzf":
        raw.close()
        raise CaptureError(f"{file} is compressed with lzf, which is not read here", hint="run with spark.eventLog.compression.codec=zstd")  # fmt: skip
    try:
        import pyarrow
    except ImportError as error:
        raise MissingDependency(f"{file} is compressed with {codec}: reading it needs pyarrow", hint="pip install 'partita[spark]'") from error  # fmt: skip
    if codec in ("zstd", "zst"):
        return io.BufferedReader(_Stream(raw, pyarrow.CompressedInputStream(raw, "zstd")))
    blocks = _lz4_blocks if codec == "lz4" else _snappy_blocks
    return io.BufferedReader(_Blocks(raw, blocks(raw)))


class _Stream(io.RawIOBase):
    """A stream of pyarrow's as one of Python's. Read in small steps: a step that finds the end cut off gives nothing."""

    def __init__(self, file: IO[bytes], stream: Any) -> None:
        self._file, self._stream = file, stream

    def readable(self) -> bool:
        return True

    def readinto(self, into: Any) -> int:
        data: bytes = self._stream.read(min(len(into), STEP_BYTES))
        into[: len(data)] = data
        return len(data)

    def close(self) -> None:
        self._file.close()
        super().close()


class _Blocks(io.RawIOBase):
    """Blocks one after the other."""

    def __init__(self, file: IO[bytes], blocks: Iterator[bytes]) -> None:
        self._file, self._blocks, self._left = file, blocks, memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, into: Any) -> int:
        while not self._left:
            block = next(self._blocks, None)
            if block is None:
                return 0
            self._left = memoryview(block)
        n = min(len(into), len(self._left))
        into[:n], self._left = self._left[:n], self._left[n:]
        return n

    def close(self) -> None:
        self._file.close()
        super().close()


def _exactly(raw: IO[bytes], n: int) -> bytes:
    """Raises EOFError where the file ends before."""
    if not 0 <= n <= MOST_BLOCK_BYTES:
        raise ValueError(f"a block of {n} bytes")
    data = raw.read(n)
    if len(data) < n:
        raise EOFError("the file is cut off")
    return data


def _lz4_blocks(raw: IO[bytes]) -> Iterator[bytes]:
    """lz4-java's LZ4BlockOutputStream: "LZ4Block", a token, both lengths and a checksum (little endian), then the block."""
    import pyarrow

    codec = pyarrow.Codec("lz4_raw")
    while head := raw.read(8):
        if head != b"LZ4Block":
            raise ValueError("it is not in the block format of lz4-java")
        method = _exactly(raw, 1)[0] & 0xF0
        packed, plain = (int.from_bytes(_exactly(raw, 4), "little") for _ in range(2))
        _exactly(raw, 4)
        if not 0 <= plain <= MOST_BLOCK_BYTES:
            raise ValueError(f"a block of {plain} bytes")
        data = _exactly(raw, packed)
        if plain:
            yield data if method == 0x10 else codec.decompress(data, plain).to_pybytes()


def _snappy_blocks(raw: IO[bytes]) -> Iterator[bytes]:
    """xerial's SnappyOutputStream: a head of 16 bytes, then blocks after their lengths (big endian)."""
    import pyarrow

    codec = pyarrow.Codec("snappy")
    magic = b"\x82SNAPPY\x00"
    if _exactly(raw, 16)[:8] != magic:
        raise ValueError("it is not in the stream format of snappy-java")
    while head := raw.read(4):
        if len(head) == 4 and head == magic[:4]:  # a stream appended to another
            _exactly(raw, 12)
            continue
        data = _exactly(raw, int.from_bytes(head + _exactly(raw, 4 - len(head)), "big"))
        yield codec.decompress(data, _snappy_length(data)).to_pybytes()


def _snappy_length(data: bytes) -> int:
    """The length of a snappy block's text: a number of 7 bits a byte at its beginning."""
    value = 0
    for k, byte in enumerate(data[:5]):
        value |= (byte & 0x7F) << (7 * k)
        if byte < 0x80:
            break
    if not 0 <= value <= MOST_BLOCK_BYTES:
        raise ValueError(f"a block of {value} bytes")
    return value
