"""How well two timelines of one program agree: the step, every device, every kind of event. Values in, values out.

An error is a share of the measured time, (predicted - measured) / measured: -2 % means that the prediction was 2 % short.
Computations (forward, backward, update) are judged by their error; messages only listed, because on a real machine a
message's time includes waiting for the other side.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from partita.errors import BadInput
from partita.nouns.timeline import Timeline
from partita.page.spans import look
from partita.page.text import Kind, percent, seconds, table
from partita.records import record

ERROR = "An error is (predicted − measured) / measured."


def relative_error(predicted: float, measured: float) -> float:
    """(predicted - measured) / measured; 0 where both are 0, infinite where only the measured one is.

    >>> round(relative_error(0.412, 0.420), 4)
    -0.019
    """
    if measured == 0:
        return 0.0 if predicted == 0 else math.inf
    return predicted / measured - 1.0


@dataclass(frozen=True, slots=True)
class Event:
    """One instruction that both timelines have."""

    instruction: int
    label: str
    kind: str  #: of its piece
    queue: str
    micro_batch: int
    predicted_s: float
    measured_s: float

    @property
    def error(self) -> float:
        return relative_error(self.predicted_s, self.measured_s)


@dataclass(frozen=True, slots=True)
class Group:
    """All events of one label, e.g. the forward passes of stage 0."""

    label: str
    events: int
    predicted_s: float  #: median
    measured_s: float  #: median
    measured_low_s: float  #: 10th percentile
    measured_high_s: float  #: 90th percentile

    @property
    def error(self) -> float:
        """Of the medians."""
        return relative_error(self.predicted_s, self.measured_s)


@dataclass(frozen=True, slots=True)
class DeviceShare:
    """The share of the step in which a device computes, in each timeline."""

    device: str
    predicted: float
    measured: float


@dataclass(frozen=True)
class Agreement:
    """Two timelines compared."""

    predicted_step_s: float
    measured_step_s: float
    devices: tuple[DeviceShare, ...]
    groups: tuple[Group, ...]  #: computations, by label
    messages: tuple[Group, ...]
    events: int  #: computations that both have
    median_error: float  #: of the absolute errors of the computations
    high_error: float  #: their 90th percentile
    only_one: int  #: instructions that only one of the two has

    @property
    def step_error(self) -> float:
        return relative_error(self.predicted_step_s, self.measured_step_s)

    def to_json(self) -> dict[str, Any]:
        """A JSON document; errors are shares, not per cent."""
        value: dict[str, Any] = {
            "predicted_step_s": self.predicted_step_s,
            "measured_step_s": self.measured_step_s,
            "step_error": _finite(self.step_error),
            "events": self.events,
            "only_one": self.only_one,
            "median_error": _finite(self.median_error),
            "high_error": _finite(self.high_error),
            "devices": [asdict(d) for d in self.devices],
        }
        for name in ("groups", "messages"):
            value[name] = [{**asdict(g), "error": _finite(g.error)} for g in getattr(self, name)]
        return value

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> Agreement:
        """What `to_json` made, back."""

        errors = {k: math.inf if value[k] is None else value[k] for k in ("median_error", "high_error")}
        return record(Agreement, {**value, **errors}, BadInput, "the comparison")


def events(predicted: Timeline, measured: Timeline) -> list[Event]:
    """Every instruction that both have, in ascending number. Raises TimelineError where there is none."""
    place = {int(i): k for k, i in enumerate(predicted.instruction.tolist())}
    queues = predicted.queue.tolist()
    return [
        Event(i, label, predicted.kind[place[i]], predicted.queues[queues[place[i]]], micro, p, m)
        for i, label, micro, p, m in predicted.compare(measured)
    ]


def is_computation(event: Event, timeline: Timeline) -> bool:
    """Whether an event is work of a device, not a message."""
    return event.queue in timeline.queues[: timeline.devices] and look(event.kind) != "transfer"


def agreement(predicted: Timeline, measured: Timeline) -> Agreement:
    """Compare two timelines of one program. Raises TimelineError where they share no instruction. O(spans)."""
    both = events(predicted, measured)
    computed = [e for e in both if is_computation(e, predicted)]
    errors = np.array([abs(e.error) for e in computed] or [0.0])
    here, there = predicted.busy_share(), measured.busy_share()
    return Agreement(
        predicted.duration_s,
        measured.duration_s,
        tuple(DeviceShare(d, here[d], there[d]) for d in here if d in there),
        _groups(computed),
        _groups([e for e in both if not is_computation(e, predicted) and e.queue not in here]),
        len(computed),
        float(np.median(errors)),
        float(np.percentile(errors, 90)) if np.isfinite(errors).all() else math.inf,
        len(predicted) + len(measured) - 2 * len(both),
    )


def _groups(both: Sequence[Event]) -> tuple[Group, ...]:
    """Events by label, in the order in which the labels first appear."""
    by_label: dict[str, list[Event]] = defaultdict(list)
    for e in both:
        by_label[e.label].append(e)
    return tuple(_group(label, items) for label, items in by_label.items())


def _group(label: str, items: Sequence[Event]) -> Group:
    low, median, high = (float(x) for x in np.percentile([e.measured_s for e in items], [10, 50, 90]))
    return Group(label, len(items), float(np.median([e.predicted_s for e in items])), median, low, high)


def as_text(a: Agreement, names: tuple[str, str] = ("predicted", "measured"), most: int = 40) -> str:
    """Tables for a terminal; at most that many rows of events, the longest first."""
    one, two = names
    head = (
        f"{one} {seconds(a.predicted_step_s)}, {two} {seconds(a.measured_step_s)}: "
        f"{percent(a.step_error, signed=True)}.\n"
        f"{a.events} computations: median error {percent(a.median_error)}, nine in ten within {percent(a.high_error)}."
    )
    if a.only_one:
        head += f"\n{a.only_one} instructions are in one of the two only."
    devices = table(
        [("device", "text"), (f"busy, {one}", "share"), (f"busy, {two}", "share")],
        [[d.device, d.predicted, d.measured] for d in a.devices],
    )
    parts = [head, devices, _group_table("event", a.groups, names, most)]
    if a.messages:
        parts.append(_group_table("message", a.messages, names, most, judged=False))
    return "\n\n".join(parts)


def _group_table(what: str, groups: Sequence[Group], names: tuple[str, str], most: int, judged: bool = True) -> str:
    shown = groups if len(groups) <= most else sorted(groups, key=lambda g: -g.measured_s * g.events)[:most]
    columns: list[tuple[str, Kind]] = [(what, "text"), ("events", "count"), (names[0], "s"), (names[1], "s")]
    rows: list[list[Any]] = [[g.label, g.events, g.predicted_s, g.measured_s] for g in shown]
    if judged:
        columns, rows = [*columns, ("error", "error")], [[*r, g.error] for r, g in zip(rows, shown, strict=True)]
    body = table(columns, rows)
    rest = len(groups) - len(shown)
    return body + (f"\n({rest} more)" if rest else "")


def _finite(x: float) -> float | None:
    return x if math.isfinite(x) else None
