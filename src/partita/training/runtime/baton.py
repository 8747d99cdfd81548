"""Several runs at once, a round of one of them at a time, to compare them: a baton goes round between them.

Plans that differ need processes of their own, and a machine that drifts is another one by the time the next processes have
started. So all of them wait with their models built, and take turns within seconds of each other:

    plan A   ready         round 1                       round 2
    plan B      ready               round 1                       round 2
    plan C         ready                     round 1                       round 2

In the first lap nobody does anything: behind it all have built their models, and none computes beside another's round.
Each has a pipe with a name. Rank 0 that reads BATON from its own has the machine; having done a round it writes it into the
next one's. ENDED goes to all where one has failed.
"""

from __future__ import annotations

import contextlib
import os
import select
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch.distributed as dist

from partita.errors import PartitaError

T = TypeVar("T")

BATON, ENDED = b"B", b"E"
PATIENCE_S = 280.0  #: until others have built their models and done their rounds; less than ranks wait for each other


@dataclass(frozen=True)
class Ring:
    """The pipes of those that take turns, in order."""

    pipes: tuple[str, ...]

    @staticmethod
    @contextlib.contextmanager
    def started(folder: Path, members: int) -> Iterator[Ring]:
        """A ring with pipes in a folder; the first has the baton. They stay open so long, so that no writing waits or fails."""
        pipes = tuple(str(folder / f"turn-{k}") for k in range(members))
        with contextlib.ExitStack() as stack:
            for pipe in pipes:
                os.mkfifo(pipe, 0o600)
                stack.callback(os.close, _opened(pipe))
            ring = Ring(pipes)
            _write(pipes[0], BATON)
            yield ring

    def place(self, k: int) -> tuple[str, str]:
        """(the pipe that member k reads, the one that it writes)."""
        return self.pipes[k], self.pipes[(k + 1) % len(self.pipes)]

    def end(self) -> None:
        """All who wait, or will, give up."""
        for pipe in self.pipes:
            _write(pipe, ENDED)


@dataclass(frozen=True)
class Baton:
    """What a rank asks for its turn; ranks but 0 wait for rank 0."""

    mine: str = ""
    following: str = ""
    alone: bool = True

    @staticmethod
    def of(place: Sequence[str], rank: int) -> Baton:
        """`place`: as `Ring.place` gives it; empty: there are no others."""
        mine, following = place if place and rank == 0 else ("", "")
        return Baton(mine, following, alone=not place)

    def rounds(self, items: Iterable[T]) -> Iterator[T]:
        """The items, each in a round of its own, and made in it; one round more, in which it is seen that there are none left.

        Who leaves before the last one has to `pass_on`. Raises PartitaError where another run has failed, or takes too long.
        """
        left = iter(items)
        self._take()
        self.pass_on()
        while True:
            self._take()
            for item in left:
                yield item
                break
            else:
                self.pass_on()
                return
            self.pass_on()

    def _take(self) -> None:
        """All ranks begin a round."""
        if not self.alone:
            self.wait()
            dist.barrier()

    def pass_on(self) -> None:
        """When all ranks have done what belongs to the round."""
        if not self.alone:
            dist.barrier()
            self.give()

    def ready(self) -> None:
        """The first lap, of a member that does its rounds by `wait` and `give`."""
        self.wait()
        self.give()

    def wait(self) -> None:
        """Until the baton is here."""
        if not self.mine:
            return
        handle = _opened(self.mine)
        try:
            ready, _, _ = select.select([handle], [], [], PATIENCE_S)
            said = os.read(handle, 1) if ready else b""
            if said == ENDED:  # for those that come later, too
                os.write(handle, ENDED)
        finally:
            os.close(handle)
        if said != BATON:  # no WorkerFailed: after one of those a run that survives failures would go on
            why = "has failed" if said else f"did not end its turn within {PATIENCE_S:g} s"
            raise PartitaError(f"a run that takes turns with this one {why}", hint="see its error")

    def give(self) -> None:
        """To the next."""
        if self.following:
            _write(self.following, BATON)


def _opened(pipe: str) -> int:
    """Open to read and to write: that never waits for another end."""
    return os.open(pipe, os.O_RDWR | os.O_CLOEXEC)


def _write(pipe: str, what: bytes) -> None:
    handle = _opened(pipe)
    try:
        os.write(handle, what)
    finally:
        os.close(handle)
