"""The page's main picture: the predicted and the measured timeline, one above the other, on the same axis.

The spans are drawn here, in milliseconds along x and pixels along y; the page's script adds ticks and numbers, and zooms
by moving the view box alone, so that thousands of spans cost nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from partita.nouns.timeline import Timeline
from partita.page.markup import tag
from partita.page.spans import look
from partita.page.text import count
from partita.page.timelines import GAP, MOST_SPANS, TITLE, Lane, Mark, Panel, frame, rectangles
from partita.pipeline.report.story import Story


def figure(story: Story) -> tuple[str, dict[str, Any]]:
    """The picture's markup, and the data its script reads (times in ms). Empty markup where there is no timeline."""
    panels = _panels(story)
    if not panels:
        return "", {}
    rows, number = _rows(panels)
    labels = sorted({label for p in panels for label in p.timeline.label})
    order = {label: i for i, label in enumerate(labels)}
    drawn, data = frame(panels, "".join(rectangles(p, partial(_mark, p, number)) for p in panels), "one step")
    data |= {
        "queues": list(panels[0].timeline.queues),
        "labels": labels,
        "rows": [[order[r[0]], *r[1:]] for r in rows],
    }
    return drawn + _note(panels), data


def instruction_rows(story: Story) -> dict[int, int]:
    """Instruction -> its row in the page's data (what `data-i` holds)."""
    panels = _panels(story)
    return _rows(panels)[1] if panels else {}


def _panels(story: Story) -> list[Panel]:
    found = [(n, t) for n, t in (("Predicted", story.predicted), ("Measured", story.measured)) if t and len(t)]
    panels: list[Panel] = []
    top = 0.0
    for title, timeline in found:
        begun = _from_zero(timeline)
        lanes = _lanes(begun, top + TITLE)
        panels.append(Panel(title, begun, top, lanes))
        top = panels[-1].bottom + GAP
    return panels


def _from_zero(timeline: Timeline) -> Timeline:
    begin = float(timeline.start_s.min())
    return replace(timeline, start_s=timeline.start_s - begin, end_s=timeline.end_s - begin)


def _lanes(timeline: Timeline, top: float) -> tuple[Lane, ...]:
    """A thick lane a device that does something, below it a thin one a link that leaves it; shared media come last."""
    used = set(timeline.queue.tolist())
    devices = [q for q in range(timeline.devices) if q in used]
    crowded = len(devices) > 8
    thick, thin = (16.0, 4.0) if crowded else (24.0, 6.0)
    rest = [q for q in range(timeline.devices, len(timeline.queues)) if q in used]
    lanes: list[Lane] = []
    for q in devices:
        name = timeline.queues[q]
        lanes.append(Lane(q, name, top, thick, True))
        top += thick + 4
        for link in [k for k in rest if timeline.queues[k].startswith(f"{name}->")]:
            lanes.append(Lane(link, timeline.queues[link].replace(f"{name}->", "→ "), top, thin, False))
            rest.remove(link)
            top += thin + 4
        top += 4
    for link in rest:
        lanes.append(Lane(link, timeline.queues[link], top, thin, False))
        top += thin + 4
    return tuple(lanes)


def _rows(panels: Sequence[Panel]) -> tuple[list[list[Any]], dict[int, int]]:
    """One row an instruction: [label, micro-batch, queue, then start and duration in ms for each panel or null]."""
    rows: list[list[Any]] = []
    number: dict[int, int] = {}
    for k, panel in enumerate(panels):
        t = panel.timeline
        start, length = np.round(1e3 * t.start_s, 4).tolist(), np.round(1e3 * (t.end_s - t.start_s), 4).tolist()
        for i, instruction in enumerate(t.instruction.tolist()):
            if instruction not in number:
                number[instruction] = len(rows)
                rows.append([t.label[i], int(t.micro_batch[i]), int(t.queue[i]), *[None] * (2 * len(panels))])
            rows[number[instruction]][3 + 2 * k : 5 + 2 * k] = [start[i], length[i]]
    return rows, number


def _mark(panel: Panel, number: dict[int, int], k: int) -> Mark:
    """What a device does for a message is a thin line."""
    t = panel.timeline
    device = int(t.queue[k]) < t.devices
    kind = look(t.kind[k]) if device else "transfer"
    handling = device and kind == "transfer"
    return Mark("handling" if handling else kind, number[int(t.instruction[k])], thin=handling)


def _note(panels: Sequence[Panel]) -> str:
    left_out = max(len(p.timeline) - MOST_SPANS for p in panels)
    if left_out <= 0:
        return ""
    return tag("p", f"The {count(left_out)} shortest spans are not drawn.", class_="note")
