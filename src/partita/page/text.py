"""Plain text for a terminal: numbers with units, tables, and a timeline on one screen.

Signatures (every verb uses these; nothing else formats numbers):

    seconds(0.412)        -> "412 ms"          seconds(3.2e-06) -> "3.20 µs"     seconds(754)  -> "12 min 34 s"
    size(3.2e6)           -> "3.20 MB"         rate(1.2e9) -> "1.20 GB/s"
    percent(0.0194)       -> "1.9 %"           percent(0.942) -> "94 %"          signed=True   -> "+1.9 %"
    times(1.843)          -> "1.84x"           count(1081930) -> "1,081,930"
    table(columns, rows)  -> str               columns: [(title, kind)], kind: text | count | s | bytes | share | ratio | error
    draw(timeline, width) -> str               one line a device, one a link, and a time axis in a round unit
    facts(pairs)          -> str               "name   value" lines, aligned
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from partita.nouns.timeline import Timeline
from partita.page.spans import Look, look

Kind = Literal["text", "count", "s", "bytes", "share", "ratio", "error"]

NOTHING = "-"  #: stands where a value is missing
_TIME = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
_SIZE = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B"))


def seconds(value_s: float) -> str:
    """A time in the unit that suits it, three figures; minutes from 120 s on.

    >>> seconds(0.412), seconds(0.0), seconds(60.0), seconds(754.2)
    ('412 ms', '0 s', '60.0 s', '12 min 34 s')
    """
    if math.isfinite(value_s) and abs(value_s) >= 120:
        whole = round(abs(value_s))
        return f"{'-' if value_s < 0 else ''}{whole // 60} min {whole % 60:02d} s"
    return _with_unit(value_s, _TIME, "s")


def size(value_bytes: float) -> str:
    """Bytes in powers of ten, three figures.

    >>> size(3.2e6), size(17), size(0)
    ('3.20 MB', '17 B', '0 B')
    """
    if abs(value_bytes) < 1000 and math.isfinite(value_bytes):
        return f"{value_bytes:.0f} B"
    return _with_unit(value_bytes, _SIZE, "B")


def rate(value_bytes_per_s: float) -> str:
    """Bytes a second.

    >>> rate(1.2e9)
    '1.20 GB/s'
    """
    return size(value_bytes_per_s) + ("/s" if math.isfinite(value_bytes_per_s) else "")


def percent(share: float, *, signed: bool = False) -> str:
    """A share in per cent; one decimal below ten.

    >>> percent(0.0194), percent(0.942), percent(0.0194, signed=True), percent(1.0)
    ('1.9 %', '94 %', '+1.9 %', '100 %')
    """
    if not math.isfinite(share):
        return "unlimited" if math.isinf(share) else NOTHING
    value = 100 * share
    digits = 1 if abs(value) < 9.95 and value != 0 else 0
    text = f"{value:{'+' if signed else ''}.{digits}f}"
    return f"{'0' if float(text) == 0 else text} %"


def times(ratio: float) -> str:
    """How many times.

    >>> times(1.843)
    '1.84x'
    """
    return f"{ratio:.2f}x" if math.isfinite(ratio) else NOTHING


def count(n: float) -> str:
    """A whole number with thousands apart.

    >>> count(1081930)
    '1,081,930'
    """
    return f"{n:,.0f}"


def figures(value: float, digits: int = 3) -> str:
    """A plain decimal number with this many significant figures, never in powers of ten.

    >>> figures(412.34), figures(3.2), figures(0.012345), figures(99.96)
    ('412', '3.20', '0.0123', '100')
    """
    if value == 0 or not math.isfinite(value):
        return f"{value:.0f}"
    rounded = float(f"{value:.{digits - 1}e}")
    return f"{rounded:.{max(0, digits - 1 - math.floor(math.log10(abs(rounded))))}f}"


def _with_unit(value: float, units: Sequence[tuple[float, str]], base: str) -> str:
    if not math.isfinite(value):
        return "unlimited" if math.isinf(value) else NOTHING
    if value == 0:
        return f"0 {base}"
    scale, unit = _unit(abs(value), units)
    return f"{figures(value / scale)} {unit}"


def _unit(value: float, units: Sequence[tuple[float, str]]) -> tuple[float, str]:
    """The unit in which a value is between 1 and 1000, after rounding to three figures."""
    return next((u for u in units if value >= u[0] * 0.9995), units[-1])


def table(columns: Sequence[tuple[str, Kind]], rows: Iterable[Sequence[Any]]) -> str:
    """Aligned columns; a column of times or bytes has one unit, written in its head. None shows as "-".

    >>> print(table([("engine", "text"), ("step", "s"), ("error", "error")], [["one process", 0.77, None], ["pipeline", 0.0412, 0.019]]))
    engine       step / ms   error
    -----------  ---------  ------
    one process      770         -
    pipeline          41.2  +1.9 %
    """
    body = [list(r) for r in rows]
    heads: list[str] = []
    cells: list[list[str]] = []
    for k, (title, kind) in enumerate(columns):
        head, column = _column(title, kind, [r[k] for r in body])
        width = max(len(head), *map(len, column), 1) if column else len(head)
        pad: Callable[[str, int], str] = str.ljust if kind == "text" else str.rjust
        heads.append(pad(head, width))
        cells.append([pad(c, width) for c in column])
    rule = ["-" * len(h) for h in heads]
    lines = [heads, rule, *([column[i] for column in cells] for i in range(len(body)))]
    return "\n".join("  ".join(line).rstrip() for line in lines)


def _column(title: str, kind: Kind, values: Sequence[Any]) -> tuple[str, list[str]]:
    """The head and the cells of one column, not yet padded."""
    if kind in ("s", "bytes"):
        units = _TIME if kind == "s" else _SIZE
        sizes = sorted(abs(float(v)) for v in values if v is not None and math.isfinite(v) and v != 0)
        scale, unit = _unit(sizes[len(sizes) // 2], units) if sizes else units[0 if kind == "s" else -1]
        return f"{title} / {unit}", _aligned([None if v is None else float(v) / scale for v in values])
    write: Mapping[Kind, Callable[[Any], str]] = {
        "text": str,
        "count": count,
        "share": percent,
        "ratio": times,
        "error": lambda v: percent(v, signed=True),
    }
    return title, [NOTHING if v is None else write[kind](v) for v in values]


def _aligned(values: Sequence[float | None]) -> list[str]:
    """Numbers with their decimal points below each other, three figures each."""
    texts = [
        NOTHING if v is None or math.isnan(v) else "unlimited" if math.isinf(v) else figures(v) if v else "0"
        for v in values
    ]
    tails = [len(t) - t.index(".") if "." in t else 0 for t in texts]
    longest = max(tails, default=0)
    return [t if t in (NOTHING, "unlimited") else t + " " * (longest - n) for t, n in zip(texts, tails, strict=True)]


def facts(pairs: Iterable[tuple[str, str]]) -> str:
    """Names and values, the values in one column.

    >>> print(facts([("step", "412 ms"), ("bottleneck", "cpu0")]))
    step        412 ms
    bottleneck  cpu0
    """
    items = list(pairs)
    width = max((len(n) for n, _ in items), default=0)
    return "\n".join(f"{n:<{width}}  {v}" for n, v in items)


# ---------------------------------------------------------------------------------------------- timeline

_FILL: dict[Look, str] = {"forward": "░", "backward": "▒", "update": "█", "transfer": "─", "other": "▒"}
_MOST_LINKS = 8  #: more links than this are not drawn one by one


@dataclass(frozen=True)
class _Scale:
    """Time to columns."""

    start_s: float
    span_s: float
    columns: int

    def column(self, time_s: float) -> int:
        return min(self.columns, max(0, round((time_s - self.start_s) / self.span_s * self.columns)))


def draw(timeline: Timeline, width: int = 100) -> str:
    """A timeline on one screen: a line a device, a line a link, an axis; `width` characters wide.

    A span begins with its micro-batch's number where there is room; ░ forward, ▒ backward, █ update, ─ message.
    O(spans + width x queues).
    """
    if not len(timeline):
        return "(an empty timeline)"
    links = [q for q in range(timeline.devices, len(timeline.queues)) if (timeline.queue == q).any()]
    shown = [*range(timeline.devices), *(links if len(links) <= _MOST_LINKS else [])]
    names = max(len(timeline.queues[q]) for q in shown)
    begin = float(timeline.start_s.min())
    scale = _Scale(begin, timeline.duration_s or 1.0, max(10, width - names - 10))
    busy = timeline.busy_share()
    lines = []
    for q in shown:
        name = timeline.queues[q]
        share = f"{percent(busy[name]):>6}" if q < timeline.devices else ""
        lines.append(f"{name:<{names}} │{_lane(timeline, q, scale)}│ {share}".rstrip())
    lines += [" " * (names + 1) + line for line in _axis(scale)]
    if len(links) > _MOST_LINKS:
        lines.append(f"({len(links)} links not drawn)")
    return "\n".join(lines)


def _lane(timeline: Timeline, queue: int, scale: _Scale) -> str:
    """One queue's line: later spans never hide the number of an earlier one that has room."""
    cells = [" "] * scale.columns
    device = queue < timeline.devices
    for k in (timeline.queue == queue).nonzero()[0].tolist():
        kind = look(timeline.kind[k]) if device else "transfer"
        if device and kind == "transfer":  # handling a message: too thin to see
            continue
        first, last = scale.column(float(timeline.start_s[k])), scale.column(float(timeline.end_s[k]))
        last = min(scale.columns, max(last, first + 1))
        number = str(int(timeline.micro_batch[k])) if device and timeline.micro_batch[k] >= 0 else ""
        mark = number if 0 < len(number) < last - first else ""
        for c in range(first, last):
            if cells[c] == " " or last - first > 1:
                cells[c] = mark[c - first] if c - first < len(mark) else _FILL[kind]
    return "".join(cells)


def _axis(scale: _Scale) -> list[str]:
    """Two lines: ticks at round times, and their values."""
    step = nice_step(scale.span_s, max(2, scale.columns // 12))
    size_, unit = _unit(scale.span_s, _TIME)
    ticks, labels = ["─"] * scale.columns, [" "] * (scale.columns + 12)
    for k in range(int(scale.span_s / step * (1 + 1e-9)) + 1):
        at = min(scale.columns - 1, round(k * step / scale.span_s * scale.columns))
        ticks[at] = "┴"
        text = f"{k * step / size_:.6g}" + (f" {unit}" if k == 0 else "")
        labels[at : at + len(text)] = list(text)
    return ["└" + "".join(ticks) + "┘", " " + "".join(labels).rstrip()]


def nice_step(span: float, most: int) -> float:
    """The smallest of 1, 2, 5 x 10^k that divides a span into at most `most` parts.

    >>> nice_step(0.42, 10), nice_step(7.0, 4)
    (0.05, 2.0)
    """
    if not span / most > 1e-300:
        return 1.0
    power = 10.0 ** math.floor(math.log10(span / most))
    return next(m * power for m in (1.0, 2.0, 5.0, 10.0) if span / (m * power) <= most * (1 + 1e-9))
