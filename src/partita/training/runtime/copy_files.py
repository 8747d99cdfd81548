"""Files of memory that outlive who writes them: two for each rank of a run, made and held by the launcher.

A file has no name anywhere: when the launcher and all workers are gone, however they ended, so is it. The head of each says
which step its content is of:

    mark      step + 1 of a whole copy; 0: nothing, or one that is being written
    text      where the words begin, and their bytes (see `copies`)

A rank writes its two files in turn, so that one of them is whole at any moment. All ranks are within one step of each other,
so there is a step of which all have a whole copy, once all have written one.
"""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from partita.errors import BadInput

HEAD = struct.Struct("<qqq")  #: mark, where the text begins, its bytes
HEAD_BYTES = 64

Handles = Sequence[Sequence[int]]  #: [ranks] of two


@dataclass(frozen=True)
class CopyFiles:
    """The files of one generation of workers."""

    handles: tuple[tuple[int, int], ...]  #: [ranks]

    @staticmethod
    def create(ranks: int) -> CopyFiles:
        """Empty ones. Raises BadInput where this system has no such files."""
        made: list[int] = []
        try:
            for _ in range(2 * ranks):
                made.append(os.memfd_create("partita copy"))
        except (OSError, AttributeError) as error:
            for handle in made:
                os.close(handle)
            raise BadInput(
                f"no memory for copies of the ranks' state: {error}", hint="use --redundancy checkpoint"
            ) from error
        return CopyFiles(tuple(zip(made[::2], made[1::2], strict=True)))

    @property
    def all(self) -> list[int]:
        return [h for pair in self.handles for h in pair]

    @property
    def newest(self) -> int | None:
        """The newest step of which every rank has a whole copy; None where there is none."""
        common = set[int].intersection(*({step_of(h) for h in pair} - {-1} for pair in self.handles))
        return max(common, default=None)

    @property
    def size_bytes(self) -> int:
        return sum(os.fstat(h).st_size for h in self.all)

    def close(self) -> None:
        close_all(self.handles)


def close_all(handles: Handles) -> None:
    """This process needs them no more."""
    for pair in handles:
        for handle in pair:
            with contextlib.suppress(OSError):
                os.close(handle)


def head_of(handle: int) -> tuple[int, int, int]:
    """(mark, where the text begins, its bytes)."""
    raw = os.pread(handle, HEAD.size, 0)
    return HEAD.unpack(raw) if len(raw) == HEAD.size else (0, 0, 0)


def step_of(handle: int) -> int:
    """The step that a file is a whole copy of; -1: of none."""
    return head_of(handle)[0] - 1
