"""Ctrl-C where it can be borne: what has to be done whole is not torn by it."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any


@dataclass
class Waiting:
    """What came while interrupts had to wait."""

    held: Sequence[signal.Signals]  #: that wait
    came: bool = False

    @contextlib.contextmanager
    def lifted(self) -> Iterator[None]:
        """Meanwhile an interrupt is raised as ever; one that came before, now."""
        self._handle(signal.default_int_handler)
        try:
            self.tell()
            yield
        finally:
            self._handle(self._note)

    def tell(self) -> None:
        """Raise KeyboardInterrupt if one came."""
        came, self.came = self.came, False
        if came:
            raise KeyboardInterrupt

    def _note(self, *_: object) -> None:
        self.came = True

    def _handle(self, handler: Callable[[int, FrameType | None], Any]) -> None:
        for sent in self.held:
            signal.signal(sent, handler)


@contextlib.contextmanager
def interrupts_wait() -> Iterator[Waiting]:
    """An interrupt that comes meanwhile is raised at the end, unless one is on its way out already. In another thread than the
    main one, where none is ever raised, nothing changes; nor does it where interrupts wait already.

    >>> with contextlib.suppress(KeyboardInterrupt), interrupts_wait():
    ...     signal.raise_signal(signal.SIGINT)
    ...     print("done")
    done
    """
    main = threading.current_thread() is threading.main_thread()
    raised = [s for s in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(s) is signal.default_int_handler]
    waiting = Waiting(raised if main else ())
    waiting._handle(waiting._note)
    try:
        yield waiting
    finally:
        waiting._handle(signal.default_int_handler)
        if not isinstance(sys.exc_info()[1], KeyboardInterrupt):
            waiting.tell()


@contextlib.contextmanager
def terminate_like_interrupt() -> Iterator[None]:
    """SIGTERM is handled like Ctrl-C, so that a batch system's polite end is a graceful one."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
