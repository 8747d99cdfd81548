"""What the command line says to a person: always on stderr, coloured and moving only on a terminal."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TextIO

Progress = Callable[[str, int, int], None]  #: (what, done, of how many)


@dataclass
class Talk:
    """Writes lines and one progress bar."""

    out: TextIO
    terminal: bool
    colour: bool
    _bar_since: float = field(default=0.0, init=False)
    _bar_what: str = field(default="", init=False)

    @staticmethod
    def to_stderr() -> Talk:
        terminal = sys.stderr.isatty()
        return Talk(sys.stderr, terminal, terminal and "NO_COLOR" not in os.environ)

    @staticmethod
    def silent() -> Talk:
        return Talk(open(os.devnull, "w"), False, False)

    def say(self, line: str) -> None:
        self._clear()
        self.out.write(line + "\n")
        self.out.flush()

    def step(self, line: str) -> None:
        """A heading: what happens now."""
        self.say(self.paint("==", "36;1") + " " + line)

    def error(self, line: str) -> None:
        self.say(self.paint("partita:", "31;1") + " " + line)

    def paint(self, text: str, code: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self.colour else text

    def progress(self, what: str, done: int, total: int) -> None:
        """Draw the bar; off a terminal, say the heading once and nothing more."""
        if what != self._bar_what:
            self._bar_what, self._bar_since = what, time.monotonic()
            if not self.terminal:
                self.say(f"   {what} ...")
        if not self.terminal:
            return
        spent = time.monotonic() - self._bar_since
        left = f", {spent / done * (total - done):.0f} s left" if 0 < done < total and spent > 1 else ""
        filled = round(24 * done / max(total, 1))
        bar = self.paint("━" * filled, "36") + self.paint("─" * (24 - filled), "2")
        self.out.write(f"\r\x1b[K   {what} {bar} {done}/{total}{left}")
        if done >= total:
            self.out.write("\r\x1b[K")
        self.out.flush()

    def _clear(self) -> None:
        if self.terminal:
            self.out.write("\r\x1b[K")


@contextlib.contextmanager
def prints_as_talk() -> Iterator[None]:
    """What a user's code prints meanwhile, here or in a process begun here, goes to stderr: stdout is the verb's document alone."""
    with contextlib.redirect_stdout(sys.stderr):
        try:
            out, talk = sys.__stdout__.fileno(), sys.__stderr__.fileno()  # type: ignore[union-attr]
        except (AttributeError, OSError, ValueError):  # closed, or no files
            yield
            return
        kept = os.dup(out)
        try:
            os.dup2(talk, out)
            yield
        finally:
            os.dup2(kept, out)
            os.close(kept)
