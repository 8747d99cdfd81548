"""Functions as machine code, compiled when first called and kept on disk.

numba keeps a function as long as the file that holds it stays the same; but the code of the functions that it calls is part of
it, and the layout of what it is given, and they may stand in other files. So a function is kept in a folder that is named after
all of these files.
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

import numba

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")
_HERE = Path(__file__).parents[1] / "__pycache__" / "kernels"
_files: dict[int, frozenset[str]] = {}  #: id of a compiled function -> the files whose code is in it


def compiled(function: F) -> F:
    """The function as machine code, kept on disk where a folder for it can be written, else for this process only."""
    files = _files_of(function)
    given = numba.config.CACHE_DIR
    numba.config.CACHE_DIR = str(Path(given or _HERE) / _stamp(files))
    try:
        made = numba.njit(cache=True, nogil=True)(function)
    except RuntimeError:  # numba found no folder for its cache
        made = numba.njit(nogil=True)(function)
    finally:
        numba.config.CACHE_DIR = given
    _files[id(made)] = files
    return cast(F, made)


def heard(kernel: Callable[..., T], *arguments: Any) -> T:
    """Call machine code that may take long, and lets go of the interpreter's lock, so that Ctrl-C is heard meanwhile: on a thread
    of its own, which an interrupt leaves behind and the end of the process ends."""
    returned: list[T] = []
    raised: list[BaseException] = []

    def call() -> None:
        try:
            returned.append(kernel(*arguments))
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join()
    if raised:
        raise raised[0]
    return returned[0]


def _files_of(function: Callable[..., Any]) -> frozenset[str]:
    """Its own file, and those of the compiled functions that it names."""
    code = function.__code__
    named = [function.__globals__.get(n) for n in code.co_names]
    return frozenset({code.co_filename}).union(*(_files.get(id(f), ()) for f in named))


def _stamp(files: frozenset[str]) -> str:
    """Changes when one of the files does, or any file of this package that holds compiled functions or what they are given."""
    facts = [_facts(Path(f)) for f in sorted(files) if Path(f).is_file()]
    return f"{zlib.crc32(repr((facts, _package())).encode()):08x}"


@cache
def _package() -> tuple[tuple[str, int, int], ...]:
    """The facts of the package's files with compiled functions: layouts of arguments and constants are baked into others'."""
    return tuple(_facts(f) for f in sorted(_HERE.parents[1].rglob("*.py")) if b"compiled" in f.read_bytes())


def _facts(file: Path) -> tuple[str, int, int]:
    there = file.stat()
    return str(file), there.st_mtime_ns, there.st_size
