"""The board: a small file in shared memory where every worker writes what it is doing, for whoever has to tell of its death.

One row of eight 64-bit words a rank. Writing a word costs about 0.1 us, so a worker marks every instruction.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

STATES = ("starting", "waiting for the others", "running", "saving", "done")
_PID, _STATE, _STEP, _INSTRUCTION, _LOSS, _STEP_S, _BEAT, _STOP = range(8)


@dataclass(frozen=True)
class Row:
    """What one rank said last."""

    pid: int
    state: str
    step: int
    instruction: int  #: -1 between steps
    loss: float
    step_s: float
    beat_s: float  #: time.monotonic() of its last state or step


class Board:
    """Rows of all ranks. `stop_after` is the launcher's word to them: end with this step."""

    def __init__(self, words: npt.NDArray[np.int64]) -> None:
        self._words = words
        self._floats = words.view(np.float64)

    @staticmethod
    def create(path: str | Path, ranks: int) -> Board:
        words = np.memmap(path, np.int64, "w+", shape=(ranks, 8))
        words[:] = 0
        words[:, _STOP] = np.iinfo(np.int64).max
        words[:, _INSTRUCTION] = -1
        return Board(words)

    @staticmethod
    def open(path: str | Path, ranks: int) -> Board:
        return Board(np.memmap(path, np.int64, "r+", shape=(ranks, 8)))

    def row(self, rank: int) -> Row:
        w, f = self._words[rank], self._floats[rank]
        return Row(
            int(w[_PID]),
            STATES[int(w[_STATE])],
            int(w[_STEP]),
            int(w[_INSTRUCTION]),
            float(f[_LOSS]),
            float(f[_STEP_S]),
            float(f[_BEAT]),
        )

    def enter(self, rank: int, state: str, pid: int = 0) -> None:
        self._words[rank, _STATE] = STATES.index(state)
        self._words[rank, _INSTRUCTION] = -1
        self._floats[rank, _BEAT] = time.monotonic()
        if pid:
            self._words[rank, _PID] = pid

    def begin_step(self, rank: int, step: int) -> None:
        self._words[rank, _STEP] = step
        self._floats[rank, _BEAT] = time.monotonic()

    def end_step(self, rank: int, loss: float, step_s: float) -> None:
        self._words[rank, _INSTRUCTION] = -1
        self._floats[rank, _LOSS] = loss
        self._floats[rank, _STEP_S] = step_s

    def instruction_cell(self, rank: int) -> npt.NDArray[np.int64]:
        """A one-element view: assign to [0] to say which instruction runs."""
        return self._words[rank, _INSTRUCTION : _INSTRUCTION + 1]

    @property
    def stop_after(self) -> int:
        """The last step that anybody should run."""
        return int(self._words[0, _STOP])

    def ask_to_stop(self) -> None:
        """Let all ranks end together: two steps beyond the foremost one, which none can have passed by then."""
        self._words[0, _STOP] = int(self._words[:, _STEP].max()) + 2
