"""The board: a small file in shared memory where every worker writes what it is doing, for whoever has to tell of its death.

One row of sixteen 64-bit words a rank, so that no two ranks write to one cache line. Writing a word costs about 0.1 us, so
a worker marks every instruction. Behind them stand its last steps, for whoever watches: a step every few words, in turn.
"""

from __future__ import annotations

import os
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from partita.nouns.program import Program
from partita.spawn import process_state

DONE = "done"
STATES = ("starting", "joining the others", "building its stage", "running", "saving a checkpoint", DONE)
_PID, _STATE, _STEP, _INSTRUCTION, _LOSS, _STEP_S, _STOP, _SAMPLES, _BOOT, _STARTED, _COPIED, _SWITCH = range(12)
_ROW = 16
_LATEST, _EACH = 64, 8  #: steps that are kept, words of one
_WORDS = _ROW + _LATEST * _EACH
_NEVER = np.iinfo(np.int64).max


@dataclass(frozen=True)
class Row:
    """What one rank said last."""

    pid: int  #: 0: it has not begun
    state: str
    step: int  #: 0: before the first
    instruction: int  #: -1: between instructions
    loss: float
    step_s: float
    samples: int  #: in the batch of this step: another number of micro-batches is another program
    stop_after: int | None  #: the step after which all ranks are to stop, where that was asked for
    boot: int  #: of which start of which machine its process is one
    started_s: float  #: time.monotonic() of its start


@dataclass(frozen=True)
class Ran:
    """A step as one rank saw it."""

    step: int
    loss: float  #: nan where the rank does not make it
    step_s: float
    compute_s: float  #: of that, computing; nan where it is not known
    samples: int


class Board:
    """Rows of all ranks. `stop_after` is the launcher's word to them: end with this step."""

    def __init__(self, words: npt.NDArray[np.int64]) -> None:
        self._words = words
        self._floats = words.view(np.float64)

    @staticmethod
    def create(path: str | Path, ranks: int) -> Board:
        """A new one at this place; whoever has opened an old one there keeps that."""
        beside = Path(f"{path}.{os.getpid()}")
        words = np.memmap(beside, np.int64, "w+", shape=(ranks, _WORDS))
        words[:] = 0
        words[:, _STOP] = words[:, _SWITCH] = _NEVER
        words[:, _COPIED] = -1
        words[:, _INSTRUCTION] = -1
        os.replace(beside, path)
        return Board(words)

    @staticmethod
    def open(path: str | Path, ranks: int) -> Board:
        return Board(np.memmap(path, np.int64, "r+", shape=(ranks, _WORDS)))

    def __len__(self) -> int:
        return len(self._words)

    def row(self, rank: int) -> Row:
        w, f = self._words[rank], self._floats[rank]
        stop = self.stop_after
        return Row(
            int(w[_PID]),
            STATES[int(w[_STATE])],
            int(w[_STEP]),
            int(w[_INSTRUCTION]),
            float(f[_LOSS]),
            float(f[_STEP_S]),
            int(w[_SAMPLES]),
            None if stop == _NEVER else stop,
            int(w[_BOOT]),
            float(f[_STARTED]),
        )

    def rows(self) -> list[Row]:
        return [self.row(r) for r in range(len(self))]

    def enter(self, rank: int, state: str, pid: int = 0) -> None:
        self._words[rank, _STATE] = STATES.index(state)
        self._words[rank, _INSTRUCTION] = -1
        if pid:
            self._words[rank, _PID], self._words[rank, _BOOT] = pid, this_boot()
            self._floats[rank, _STARTED] = time.monotonic()

    def begin_step(self, rank: int, step: int, samples: int = 0) -> None:
        self._words[rank, _SAMPLES] = samples
        self._words[rank, _STEP] = step

    def end_step(self, rank: int, loss: float, step_s: float) -> None:
        self._words[rank, _INSTRUCTION] = -1
        self._floats[rank, _LOSS] = loss
        self._floats[rank, _STEP_S] = step_s

    def note(self, rank: int, ran: Ran) -> None:
        """Keep a step among the latest. Its number is written last, and taken away first: who reads it finds the rest."""
        at = _ROW + ran.step % _LATEST * _EACH
        self._words[rank, at] = 0
        self._floats[rank, at + 1 : at + 4] = ran.loss, ran.step_s, ran.compute_s
        self._words[rank, at + 4] = ran.samples
        self._words[rank, at] = ran.step

    def ran(self, rank: int, step: int) -> Ran | None:
        """A step as a rank saw it; None where it is not there, or not any more."""
        at = _ROW + step % _LATEST * _EACH
        before = int(self._words[rank, at])
        f = self._floats[rank, at + 1 : at + 4].tolist()
        found = Ran(step, f[0], f[1], f[2], int(self._words[rank, at + 4]))
        return found if before == step == int(self._words[rank, at]) else None

    def note_copy(self, rank: int, step: int) -> None:
        """The rank has copied its state after this step."""
        self._words[rank, _COPIED] = step

    def copied(self) -> int:
        """The step that all ranks have copied, or a later one; -1: some have copied none."""
        return int(self._words[:, _COPIED].min())

    def instruction_cell(self, rank: int) -> npt.NDArray[np.int64]:
        """A one-element view: assign to [0] to say which instruction runs."""
        return self._words[rank, _INSTRUCTION : _INSTRUCTION + 1]

    @property
    def stop_after(self) -> int:
        """The last step that anybody should run."""
        return int(self._words[0, _STOP])

    def ask_to_stop(self) -> int:
        """Let all ranks end with the step after the foremost one, and return it.

        To be called while no rank runs: each looks at the end of a step, so all of them still come by that one.
        """
        step = self.ahead
        self._words[0, _STOP] = step
        return step

    @property
    def ahead(self) -> int:
        """The first step that no rank has begun; nobody must run meanwhile."""
        return int(self._words[:, _STEP].max()) + 1

    @property
    def behind(self) -> int:
        """The step that the last of all ranks has begun."""
        return int(self._words[:, _STEP].min())

    @property
    def switch_after(self) -> int:
        """The step after which all ranks go on under another plan."""
        return int(self._words[0, _SWITCH])

    def ask_to_switch(self) -> int:
        """Let all ranks take up another plan after the step after the foremost one, and return it. As `ask_to_stop`."""
        self._words[0, _SWITCH] = self.ahead
        return self.switch_after


def lives(row: Row) -> bool:
    """The process of the row is there, on this machine since it was started, and not done."""
    if row.state == DONE or not row.pid or row.boot != this_boot() or process_state(row.pid) in "ZX":
        return False
    ticks = int(Path(f"/proc/{row.pid}/stat").read_text().rpartition(") ")[2].split()[19])
    return ticks / os.sysconf("SC_CLK_TCK") <= row.started_s + 1.0  # else its number is another's by now


def this_boot() -> int:
    """A number for this start of this machine: processes with the same one share clock and process numbers."""
    return zlib.crc32(Path("/proc/sys/kernel/random/boot_id").read_bytes())


def doing(row: Row, program_of: Callable[[int], Program | None]) -> str:
    """What a rank was doing: 'step 12, compute F0 micro-batch 3'. `program_of` gives the program for so many samples."""
    if row.state != "running":
        return f"{row.state} after step {row.step}" if row.step and row.state != "done" else row.state
    program = program_of(row.samples) if row.instruction >= 0 else None
    if program is None or row.instruction >= len(program):
        return f"step {row.step}, between instructions" if row.step else "its first preparations"
    return f"step {row.step}, {program[row.instruction]}"
