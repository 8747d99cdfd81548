"""A run on one screen of a terminal, as lines of text: what is drawn again and again while it goes on."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from partita.page.text import NOTHING, percent, seconds

RECENT = 5  #: steps whose median is "now"
STRAGGLES = 1.15  #: times as slow, against what was predicted, as the other devices
_Paint = Callable[[str, str], str]  #: (text, ANSI code)
_SPARKS = "▁▂▃▄▅▆▇█"
_BAR = 24  #: characters
_EVENTS = 6  #: of the last ones are shown


@dataclass(frozen=True)
class LiveStep:
    """What is known of a step."""

    step: int
    loss: float
    step_s: float
    compute_s: Mapping[str, float]  #: device -> seconds that it computed


@dataclass(frozen=True)
class Live:
    """What is shown of a run."""

    job: str
    steps: Sequence[LiveStep]  #: the last few dozen
    total: int | None  #: steps of the whole run, where that is known
    predicted_s: float  #: a step by the plan that is deployed
    expected_s: Mapping[str, float]  #: device -> seconds of a step that it should compute
    events: Sequence[str]
    elapsed_s: float

    @property
    def recent(self) -> Sequence[LiveStep]:
        return self.steps[-RECENT:]

    def slowness(self) -> dict[str, float]:
        """Device -> how many times as long as predicted it has computed in the recent steps."""
        found = {}
        for device, expected in self.expected_s.items():
            took = [s.compute_s[device] for s in self.recent if device in s.compute_s]
            if took and expected > 0:
                found[device] = statistics.median(took) / expected
        return found

    def straggler(self) -> str:
        """The device that is slower than predicted, and clearly more so than the others; "" where none is."""
        slow = self.slowness()
        if len(slow) < 2:
            return ""
        name = max(slow, key=lambda d: slow[d])
        others = statistics.median(s for d, s in slow.items() if d != name)
        return name if slow[name] > STRAGGLES * max(1.0, others) else ""


def lines(live: Live, width: int = 100, *, colour: bool = False) -> list[str]:
    """The screen, line by line, none wider than `width`."""
    paint = _painted if colour else _plain
    head = f"partita run  {live.job}"
    if not live.steps:
        return [_cut(head, width), _cut(f"starting, {live.elapsed_s:.0f} s", width), *_events(live, width, paint)]
    last, now_s = live.steps[-1], statistics.median(s.step_s for s in live.recent)
    done = f"step {last.step}" + (f" of {live.total}" if live.total else "")
    left = f", {seconds((live.total - last.step) * now_s)} left" if live.total and live.total > last.step else ""
    error = percent(live.predicted_s / now_s - 1, signed=True) if now_s else NOTHING
    room = max(10, min(48, width - 60))
    rows = [
        f"{head}   {done}   {seconds(live.elapsed_s)}{left}",
        f"{'a step':<10}{seconds(now_s):>9}   predicted {seconds(live.predicted_s):>8} ({error:>7})   {sparks([s.step_s for s in live.steps[-room:]])}",
        f"{'loss':<10}{last.loss:>9.4f}   {'':<28}   {sparks([s.loss for s in live.steps[-room:]])}",
    ]
    return [_cut(r, width) for r in rows] + _devices(live, width, paint) + _events(live, width, paint)


def _devices(live: Live, width: int, paint: _Paint) -> list[str]:
    """A bar a device: the part of the step in which it computes."""
    slow, straggler = live.slowness(), live.straggler()
    longest = max((len(d) for d in live.expected_s), default=0)
    rows = []
    for device in live.expected_s:
        shares = [s.compute_s.get(device, 0.0) / s.step_s for s in live.recent if s.step_s > 0]
        share = min(1.0, statistics.median(shares)) if shares else 0.0
        filled = round(_BAR * share)
        said = f"{slow[device]:.2f} times as long as predicted" if device in slow else "idle"
        mark = "   <- straggler" if device == straggler else ""
        row = _cut(f"{device:<{longest}}  {'█' * filled}{'░' * (_BAR - filled)} {percent(share):>5} busy   {said}{mark}", width)  # fmt: skip
        rows.append(paint(row, "33;1") if mark else row)
    return rows


def _events(live: Live, width: int, paint: _Paint) -> list[str]:
    return [paint(_cut(f"- {e}", width), "36") for e in live.events[-_EVENTS:]]


def sparks(values: Sequence[float]) -> str:
    """A line of little bars, the lowest value the shortest; a value that is no number leaves a gap.

    >>> sparks([1.0, 2.0, 3.0]), sparks([5.0, 5.0]), sparks([])
    ('▁▄█', '▁▁', '')
    """
    real = [v for v in values if math.isfinite(v)]
    if not real:
        return " " * len(values)
    low, span = min(real), (max(real) - min(real)) or 1.0
    top = len(_SPARKS) - 1
    return "".join(_SPARKS[int((v - low) / span * top)] if math.isfinite(v) else " " for v in values)


def _cut(line: str, width: int) -> str:
    return line if len(line) <= width else line[: max(0, width - 1)] + "…"


def _painted(text: str, code: str) -> str:
    return f"\x1b[{code}m{text}\x1b[0m"


def _plain(text: str, code: str) -> str:
    return text
