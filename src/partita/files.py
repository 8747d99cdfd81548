"""Files at the door: read with a clear error, write whole or not at all.

Every noun reads and writes through these few functions, so that a damaged file always gives one sentence with the
file's name and the place of the fault, and a crash in the middle of a write never leaves half a file behind.
"""

from __future__ import annotations

import json
import os
import tempfile
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from partita.errors import BadInput

MOST_BYTES = 1 << 30  #: larger text files are refused unread: nothing here writes one


def write_whole(path: str | Path, data: str | bytes) -> Path:
    """Write `data` to `path` so that a reader sees the old file or the new one, never a part.

    Raises BadInput where the folder does not exist or cannot be written.
    """
    path = Path(path)
    raw = data.encode() if isinstance(data, str) else data
    temporary = ""
    try:
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
        raise BadInput(f"{path} cannot be written: {error.strerror}", hint="name a folder that exists") from error
    return path


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def read_bytes(path: str | Path, kind: type[BadInput]) -> bytes:
    """The file's bytes. Raises `kind` where it is missing, a folder, unreadable or larger than MOST_BYTES."""
    path = Path(path)
    try:
        size = path.stat().st_size
        if size > MOST_BYTES:
            raise kind(
                f"{path} has {size / 1e6:.0f} MB; at most {MOST_BYTES / 1e6:.0f} MB are read", hint="check the path"
            )
        return path.read_bytes()
    except OSError as error:
        raise kind(f"{path} cannot be read: {error.strerror}", hint="check the path") from error


def read_text(path: str | Path, kind: type[BadInput]) -> str:
    """The file as UTF-8 text (a byte-order mark is dropped). Raises `kind` with the offending byte's place."""
    raw = read_bytes(path, kind)
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
    text = read_text(path, kind)
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        place = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        if isinstance(error, json.JSONDecodeError):
            place = f"line {error.lineno} column {error.colno}: {error.msg}"
        raise kind(f"{path} is not JSON: {place}", hint="the file may be cut off; make it again") from error
    if not isinstance(value, dict):
        raise kind(
            f"{path} holds a JSON {type(value).__name__}, not an object", hint="give the file that Partita wrote"
        )
    if format is not None:
        expect_format(value, format, kind, str(path), version)
    return value


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
    """The TOML table in a file. Raises `kind` with line and column where it does not parse."""
    try:
        return tomllib.loads(read_text(path, kind))
    except (ValueError, RecursionError) as error:
        place = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise kind(f"{path} is not TOML: {place}", hint="correct that line") from error


def dump_json(value: Mapping[str, Any]) -> str:
    """One JSON document, a top-level key a line, lists of rows a row a line: a person can read it and diff it.

    >>> print(dump_json({"a": 1, "rows": [{"x": 1}, {"x": 2}]}), end="")
    {
    "a": 1,
    "rows": [
      {"x": 1},
      {"x": 2}
    ]
    }
    """
    return "{\n" + ",\n".join(f"{json.dumps(str(k))}: {_dump_value(v)}" for k, v in value.items()) + "\n}\n"


def _dump_value(value: Any) -> str:
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return "[\n  " + ",\n  ".join(json.dumps(row, allow_nan=False) for row in value) + "\n]"
    return json.dumps(value, allow_nan=False)
