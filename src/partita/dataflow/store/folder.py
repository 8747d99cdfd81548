"""Results on disk from run to run, by their keys: one file each in a folder that several processes may share.

    FOLDER/ab/abcdef..        a result (format.py), named by its key
    FOLDER/writing/..         files that are being written, locked by their writers; those of dead ones are removed
    FOLDER/lock               held while results are thrown away

A file appears whole or not at all (written apart, synced, renamed) and is checked when read: a damaged one is removed and counts
as absent, and the answer says why. Where the results of all together take more than `most_bytes`, the least valuable go: value is
the seconds that one took per byte that it takes, halved with every `half_life_s` since it was last used.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import math
import os
import re
import struct
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from partita.dataflow.store.format import TAIL, Damaged, NeedsPickle, NotHere, index_of, read_result, write_result
from partita.dataflow.store.private import why_not_own, why_not_private
from partita.errors import BadInput, sentence_of

DAY_S = 86_400.0
ROOM = 0.9  #: of the bound: what is left when results were thrown away, so that it is not done for every one
OFTEN = 0.02  #: of the bound: written by this process before it looks again at what others wrote
DEAD_S = 60.0  #: a file that is written is left alone for so long, even where nobody holds it
_KEY = re.compile(r"[0-9a-zA-Z_-]{8,128}")


@dataclass(frozen=True, slots=True)
class Found:
    """A result that was kept: its value, what it took to compute, and the bytes of its file."""

    value: Any
    seconds: float
    bytes: int


@dataclass(frozen=True, slots=True)
class Absent:
    """There is no result that can be used, and why."""

    reason: str


@dataclass(frozen=True, slots=True)
class Put:
    """A result is kept; the bytes of its file."""

    bytes: int


@dataclass(frozen=True, slots=True)
class NotKept:
    """A result is not kept, and why."""

    reason: str


@dataclass(frozen=True, slots=True)
class Entry:
    """A result on disk, as a listing shows it."""

    key: str
    path: Path
    bytes: int
    used_s: float  #: when it was written or last read, as time.time()

    @property
    def seconds(self) -> float:
        """What it took to compute, from its index; 0 where that is damaged."""
        return _seconds(self.path)


@dataclass
class Store:
    """Results in a folder, which any number of processes may use. Without `open`, one to look at: nothing is made on disk."""

    folder: Path
    most_bytes: int = 10_000_000_000
    half_life_s: float = 7 * DAY_S
    why_no_pickle: str = "the folder is only looked at"  #: why pickle is not allowed here; "" where it is
    _known_bytes: int = 0
    _written_bytes: int = field(default=1 << 62)  #: since the last look: at first, look soon

    @staticmethod
    def open(folder: str | Path, most_bytes: int = 10_000_000_000, half_life_s: float = 7 * DAY_S) -> Store:
        """The store in a folder, made (0700) where it is missing. Raises BadInput where that cannot be, or for no bytes."""
        path = Path(folder).absolute()
        if most_bytes <= 0 or not half_life_s > 0:
            raise BadInput(f"a store of {most_bytes} bytes", hint="give it room, e.g. 10 GB")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path = path.parent.resolve() / path.name  # a link above that is turned later leads nowhere else
            with contextlib.suppress(FileExistsError):
                path.mkdir(mode=0o700)
            (path / "writing").mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise BadInput(f"{path} cannot hold results: {error.strerror}", hint="name another folder") from error
        return Store(path, most_bytes, half_life_s, why_not_private(path))

    def __reduce__(self) -> tuple[Any, ...]:
        """A store that travels to another process is opened anew there: whether pickle is allowed, each finds out for itself."""
        return Store.open, (self.folder.absolute(), self.most_bytes, self.half_life_s)

    # ---- one result

    def get(self, key: str) -> Found | Absent:
        """The result of a key, or why there is none that can be used. O(its bytes)."""
        path = self._path(key)
        try:
            with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as file:
                about = os.fstat(file.fileno())
                raw = bytearray(about.st_size)
                size = file.readinto(raw)
        except FileNotFoundError:
            return Absent("the store has it no longer")
        except OSError as error:
            return Absent(f"the result {path} cannot be read ({error.strerror})")
        except MemoryError:
            return Absent(f"the result {path} takes more memory than there is ({about.st_size} bytes)")
        try:
            read = read_result(
                raw[:size] if size < len(raw) else raw, str(path), self.why_no_pickle or why_not_own(about)
            )
            if read.key != key:
                raise Damaged(f"{path} is the result of {str(read.key)[:LONG]}")
        except (NeedsPickle, NotHere) as error:
            return Absent(error.message)
        except Damaged as error:
            self._drop(path, about)
            return Absent(f"{error.message}: dropped")
        with contextlib.suppress(OSError):
            os.utime(path)
        return Found(read.value, read.seconds, read.bytes)

    def put(self, key: str, value: Any, seconds: float) -> Put | NotKept:
        """Keep a result that took so many seconds; what cannot be kept is said, and leaves what was there. O(its bytes)."""
        path = self._path(key)
        try:
            with self._writing() as (file, temporary):
                size = write_result(file, key, value, seconds, self.why_no_pickle)
                if size > self.most_bytes:
                    return NotKept(f"{size} bytes are more than the {self.most_bytes} that all results may take")
                file.flush()
                os.fsync(file.fileno())
                path.parent.mkdir(mode=0o700, exist_ok=True)
                os.replace(temporary, path)
        except NeedsPickle as error:
            return NotKept(error.message)
        except OSError as error:  # the disk is full, the folder is gone
            return NotKept(error.strerror or str(error))
        except Exception as error:  # whatever a value's own code raises while it is written
            return NotKept(sentence_of(error))
        self._known_bytes += size
        self._written_bytes += size
        if self._known_bytes > self.most_bytes or self._written_bytes > OFTEN * self.most_bytes:
            with contextlib.suppress(OSError):  # the result is kept all the same
                self.make_room()
        return Put(size)

    def remove(self, keys: Iterable[str]) -> int:
        """Withdraw the results of keys, and say how many there were; one that cannot be removed stays. O(keys)."""
        gone = 0
        for path in map(self._path, keys):
            with contextlib.suppress(OSError):
                path.unlink()
                gone += 1
        if gone:
            self._written_bytes = self.most_bytes  # others may have written them: look before the next one is kept
        return gone

    def __contains__(self, key: object) -> bool:
        """Whether there is a file for a key; whether it is sound shows when it is read."""
        return isinstance(key, str) and self._path(key).is_file()

    def _path(self, key: str) -> Path:
        if not _KEY.fullmatch(key):
            raise BadInput(f"{key[:LONG]!r} is no key of a result", hint="use key_of")
        return self.folder / key[:2] / key

    @contextlib.contextmanager
    def _writing(self) -> Iterator[tuple[Any, str]]:
        """A file beside the results, locked while this process lives; removed unless it was renamed."""
        handle, temporary = tempfile.mkstemp(dir=self.folder / "writing")
        try:
            with open(handle, "wb") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                yield file, temporary
        finally:
            with contextlib.suppress(OSError):
                os.unlink(temporary)

    def _drop(self, path: Path, about: os.stat_result) -> None:
        """Remove a file, unless another has been put in its place since, or it is somebody else's."""
        with contextlib.suppress(OSError):
            now = os.lstat(path)
            if (now.st_ino, now.st_mtime_ns) == (about.st_ino, about.st_mtime_ns) and now.st_uid == os.getuid():
                path.unlink()

    # ---- all results

    def entries(self) -> list[Entry]:
        """All results, by key. O(results)."""
        found = []
        for path in itertools.chain.from_iterable(map(_files, _folders(self.folder))):
            with contextlib.suppress(OSError):
                about = path.stat(follow_symlinks=False)
                found.append(Entry(path.name, Path(path.path), about.st_size, about.st_mtime))
        return sorted(found, key=lambda e: e.key)

    def make_room(self) -> list[Entry]:
        """Throw away the least valuable results where all together are too large, and what dead writers left; what went.

        Another process that is doing it right now is left to do it. O(results).
        """
        with open(self.folder / "lock", "ab") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                return []
            self._bury()
            entries = self.entries()
            total, gone = sum(e.bytes for e in entries), []
            if total > self.most_bytes:
                for entry in sorted(entries, key=lambda e: self.value_of(e)):
                    if total <= ROOM * self.most_bytes:
                        break
                    with contextlib.suppress(FileNotFoundError):
                        entry.path.unlink()
                    total -= entry.bytes
                    gone.append(entry)
        self._known_bytes, self._written_bytes = total, 0
        return gone

    def value_of(self, entry: Entry) -> float:
        """Seconds a byte, halved with each half-life since the last use; as a logarithm, so that nothing is too old to tell."""
        age = max(0.0, time.time() - entry.used_s)
        return math.log2(max(entry.seconds, 1e-9) / max(entry.bytes, 1)) - age / self.half_life_s

    def _bury(self) -> None:
        """Remove what writers that died left behind."""
        for path in _files(self.folder / "writing"):
            with contextlib.suppress(OSError):
                if time.time() - path.stat(follow_symlinks=False).st_mtime < DEAD_S:
                    continue
                with open(path.path, "rb") as file:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    os.unlink(path.path)


LONG = 60  #: characters of a name that are shown


def _folders(folder: Path) -> list[Path]:
    with contextlib.suppress(OSError):
        return [Path(p.path) for p in os.scandir(folder) if len(p.name) == 2 and p.is_dir(follow_symlinks=False)]
    return []


def _files(folder: Path) -> list[os.DirEntry[str]]:
    with contextlib.suppress(OSError):
        return [p for p in os.scandir(folder) if p.is_file(follow_symlinks=False)]
    return []


def _seconds(path: Path) -> float:
    """What a result took, from its index alone; 0 where it is damaged."""
    try:
        with open(path, "rb") as file:
            end = file.seek(-TAIL.size, os.SEEK_END)
            (size,) = struct.unpack_from("<Q", file.read(8))
            file.seek(max(0, end - size))
            return float(index_of(file.read(min(size, end)), str(path))["seconds"])
    except (OSError, Damaged, LookupError, TypeError, ValueError):
        return 0.0
