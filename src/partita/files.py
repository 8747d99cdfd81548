"""Files at the door: read with a clear error, write whole or not at all.

Everything reads and writes through these few functions, so that a damaged or hostile file always gives one sentence with
the file's name and the place of the fault, and a crash in the middle of a write never leaves half a file behind. What
comes out of `read_json` and `read_toml` is shallow enough to recurse into, its integers fit 64 bits and its text is
Unicode; that its numbers make sense is for the reader to check. `damaged` turns what goes wrong later into a sentence.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import tempfile
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from partita.errors import BadInput, DiskFull, PartitaError, sentence_of

MOST_BYTES = 1 << 30  #: larger files are refused unread: nothing here writes one
MOST_TEXT_BYTES = (
    1 << 27
)  #: parsed, text takes up to 30 times its size in memory: 4 GB; a timeline of 900,000 spans has that
MOST_LEVELS = 60  #: of lists and tables in each other: no file of ours has more than 12, and Python recurses 1,000 deep
_NESTS = frozenset((dict, list))
_DAMAGE = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError)
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_LONG_INTEGER = re.compile(r"\d{19}")


def write_whole(path: str | Path, data: str | bytes) -> Path:
    """Write `data` to `path` so that a reader sees the old file or the new one, never a part. What is no file (a pipe, a
    terminal, /dev/null) is written into.

    Raises BadInput where the folder does not exist or cannot be written, DiskFull where there is no room.
    """
    path = Path(path)
    raw = data.encode(errors="backslashreplace") if isinstance(data, str) else data
    temporary = ""
    try:
        if _is_special(path):
            path.write_bytes(raw)
            return path
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(handle, "wb") as file:
            file.write(raw)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except OSError as error:
        if temporary:
            Path(temporary).unlink(missing_ok=True)
        raise unwritten(f"{path} cannot be written: {error.strerror}", error, "name a folder that exists") from error
    return path


def is_full(error: Exception) -> bool:
    """Whether what could not be written found no room; libraries in Rust tell the number in words."""
    return getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT) or "(os error 28)" in str(error)


def unwritten(fact: str, error: OSError, hint: str) -> PartitaError:
    """What to raise for something that could not be written: a full disk is no fault of the path, nor mended by another name.

    >>> unwritten("a.json cannot be written", OSError(errno.ENOSPC, "No space left on device"), "give another path")
    DiskFull('a.json cannot be written')
    """
    if is_full(error):
        return DiskFull(fact, hint="free some room, or write to another disk")
    return BadInput(fact, hint=hint)


def add_line(path: str | Path, line: str) -> None:
    """A line more in a record that is worth less than what it tells of: on a full disk it is lost, and the run goes on."""
    with contextlib.suppress(OSError), open(path, "a") as file:
        file.write(line + "\n")


def _is_special(path: Path) -> bool:
    """Something that is there and no file: a device, a pipe, or a name for what is open, such as /dev/stdout."""
    if path.is_symlink() and path.absolute().is_relative_to("/dev"):
        return True
    return path.exists() and not path.is_file() and not path.is_dir()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def made_folder(path: str | Path) -> Path:
    """A folder, made with those above it where it does not exist. Raises BadInput where that fails, DiskFull without room."""
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritten(f"{folder} cannot be made: {error.strerror}", error, "name another folder") from error
    return folder


def read_bytes(path: str | Path, kind: type[BadInput], most: int = MOST_BYTES) -> bytes:
    """The file's bytes. Raises `kind` where it is missing, a folder, unreadable or has more than `most` bytes."""
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            raw = file.read(most + 1) if size <= most else b""  # a pipe does not say its size
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the name
        why = error.strerror if isinstance(error, OSError) else error
        raise kind(f"{path} cannot be read: {why}", hint="check the path") from error
    size = max(size, len(raw))
    if size > most:
        raise kind(f"{path} has {size / 1e6:.0f} MB; at most {most / 1e6:.0f} MB are read", hint="check the path")
    return raw


def read_text(path: str | Path, kind: type[BadInput]) -> str:
    """The file as UTF-8 text (a byte-order mark is dropped). Raises `kind` with the offending byte's place."""
    raw = read_bytes(path, kind, MOST_TEXT_BYTES)
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise kind(
            f"{path} is not text: byte {error.start} is 0x{raw[error.start]:02x}",
            hint="give the file that Partita wrote",
        ) from error


def read_json(path: str | Path, kind: type[BadInput], format: str | None = None, version: int = 1) -> dict[str, Any]:
    """The JSON object in a file; with `format`, one whose "format" and "version" say so.

    Raises `kind` with line and column where it does not parse, or where it is another kind of file.
    """
    value = parse_json(read_text(path, kind), kind, str(path))
    if not isinstance(value, dict):
        raise kind(
            f"{path} holds a JSON {type(value).__name__}, not an object", hint="give the file that Partita wrote"
        )
    if format is not None:
        expect_format(value, format, kind, str(path), version)
    return value


def parse_json(text: str | bytes, kind: type[BadInput], what: str) -> Any:
    """The value of a JSON text from outside; NaN and Infinity are let through, as Python writes them.

    Raises `kind` with line and column where it does not parse, nests deeper than MOST_LEVELS, has an integer beyond 64
    bits or half of a surrogate pair. O(size).

    >>> parse_json('{"a": [1, 2.5]}', BadInput, "it")
    {'a': [1, 2.5]}
    """
    try:
        return _loads(text if isinstance(text, str) else text.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise kind(f"{what} is not JSON: {_place(error)}", hint="the file may be cut off; make it again") from error


def _loads(text: str) -> Any:
    """The value of a JSON text within the limits."""
    value = json.loads(text, parse_int=_integer if _LONG_INTEGER.search(text) else None)  # a call for each costs
    if _SURROGATE.search(text):
        json.dumps(value, ensure_ascii=False).encode()  # raises for half of a pair
    _expect_shallow(value)
    return value


def _integer(digits: str) -> int:
    if len(digits) > 20 or not -(1 << 63) <= int(digits) < 1 << 63:
        raise ValueError(f"an integer of {len(digits.lstrip('-'))} digits is beyond 64 bits")
    return int(digits)


def _expect_shallow(value: Any) -> None:
    """Raise ValueError where lists and tables lie in each other more than MOST_LEVELS deep. O(values)."""
    level: list[Any] = [[value]]
    for _ in range(MOST_LEVELS + 1):
        level = [
            inner
            for outer in level
            if not _NESTS.isdisjoint(map(type, outer.values() if isinstance(outer, dict) else outer))  # most have none
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if type(inner) in _NESTS
        ]
        if not level:
            return
    raise ValueError(f"nested too deeply: more than {MOST_LEVELS} levels")


def _place(error: ValueError | RecursionError) -> str:
    """Where and why a text does not parse."""
    if isinstance(error, json.JSONDecodeError):
        return f"line {error.lineno} column {error.colno}: {error.msg}"
    if isinstance(error, UnicodeEncodeError):
        return f"{error.object[error.start]!r} is half of a character"
    return "nested too deeply" if isinstance(error, RecursionError) else str(error)


@contextlib.contextmanager
def damaged(kind: type[BadInput], what: str, hint: str) -> Iterator[None]:
    """Turn what a value of the wrong shape raises while it is read into `kind`; PartitaErrors pass as they are.

    >>> with damaged(BadInput, "plan.json", hint="make it again"):
    ...     float({"x": "one"}["x"])
    Traceback (most recent call last):
    partita.errors.BadInput: plan.json is damaged: ValueError: could not convert string to float: 'one'. hint: make it again
    """
    try:
        yield
    except _DAMAGE as error:
        raise kind(f"{what} is damaged: {sentence_of(error)}", hint=hint) from error


def expect_format(value: Mapping[str, Any], format: str, kind: type[BadInput], what: str, version: int = 1) -> None:
    """Raise `kind` unless the object says it is `format` of this version."""
    found = value.get("format")
    if found != format:
        raise kind(f"{what} is {found!r}, not {format!r}", hint=f'give a file that says "format": "{format}"')
    if value.get("version") != version:
        raise kind(
            f"{what} has version {value.get('version')!r}; this Partita reads version {version}",
            hint="make it again with this Partita",
        )


def read_toml(path: str | Path, kind: type[BadInput]) -> dict[str, Any]:
    """The TOML table in a file, dates as text. Raises `kind` with line and column where it does not parse."""
    text = read_text(path, kind)
    try:
        value: dict[str, Any] = _loads(json.dumps(tomllib.loads(text), default=str))  # for the limits of JSON
    except (ValueError, RecursionError) as error:
        raise kind(f"{path} is not TOML: {_place(error)}", hint="correct that line") from error
    return value


def dump_json(value: Mapping[str, Any]) -> str:
    """One JSON document, a top-level key a line, lists of rows a row a line: a person can read it and diff it.

    Raises BadInput for numbers that are not finite, which other readers of JSON refuse.

    >>> print(dump_json({"a": 1, "rows": [{"x": 1}, {"x": 2}]}), end="")
    {
    "a": 1,
    "rows": [
      {"x": 1},
      {"x": 2}
    ]
    }
    """
    try:
        return "{\n" + ",\n".join(f"{json.dumps(str(k))}: {_dump_value(v)}" for k, v in value.items()) + "\n}\n"
    except ValueError as error:
        raise BadInput(f"a number that is not finite cannot be written as JSON: {error}") from error


def _dump_value(value: Any) -> str:
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return "[\n  " + ",\n  ".join(json.dumps(row, allow_nan=False) for row in value) + "\n]"
    return json.dumps(value, allow_nan=False)
