"""The pictures of offloading: the four machines' timelines, a job a colour, and makespans as bars."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from partita.nouns.timeline import Timeline
from partita.offload.report.story import OffloadStory, machine_of
from partita.page.bars import bar, minus
from partita.page.markup import tag, words
from partita.page.sheet import cells, framed
from partita.page.text import percent, seconds
from partita.page.timelines import GAP, MOST_SPANS, TITLE, Lane, Panel, frame

NAMES: Mapping[str, str] = {
    "device-only": "all on the device",
    "server-only": "all on the server",
    "single-cut": "best single-job cut",
    "min-cut": "minimum cut per job",
    "partition-only": "cuts, order as given",
    "schedule-only": "order, single-job cuts",
}
LONGEST = 2.0  #: bars of makespans end at so many times the plan's: what is far beyond would flatten all others
STOPS = ("--green", "--low", "--middle", "--high")  #: the scale of the models' colours


def gantt(story: OffloadStory) -> tuple[str, dict[str, Any]]:
    """Predicted above measured, and what the page's script reads. Each span bears its job, so that all light up together."""
    panels = _panels(story)
    if not panels:
        return "", {}
    drawn, data = frame(panels, "".join(_spans(p, story) for p in panels), "device, uplink, server and downlink")
    return drawn, data | {"rows": [[0, j] for j in range(len(story.problem.jobs))]}


def _panels(story: OffloadStory) -> list[Panel]:
    both = (("Predicted", story.predicted), ("Measured", story.measured))
    panels: list[Panel] = []
    top = 0.0
    for title, played in both:
        if played is not None:
            panels.append(Panel(title, played.timeline, top, _lanes(played.timeline, top + TITLE)))
            top = panels[-1].bottom + GAP
    return panels


def _lanes(timeline: Timeline, top: float) -> tuple[Lane, ...]:
    """Device, uplink, the server's threads, downlink: those that did something."""
    queues = sorted(
        (q for q in np.unique(timeline.queue[timeline.end_s > timeline.start_s]).tolist() if machine_of(timeline.queues[q]) >= 0),
        key=lambda q: (machine_of(timeline.queues[q]), q),
    )  # fmt: skip
    tall, pitch = (26.0, 31.0) if len(queues) <= 8 else (16.0, 20.0)
    one = sum(machine_of(timeline.queues[q]) == 2 for q in queues) == 1
    return tuple(Lane(q, _named(timeline.queues[q], one), top + k * pitch, tall, True) for k, q in enumerate(queues))


def _named(queue: str, one_thread: bool) -> str:
    thread = queue.removeprefix("server")
    return queue if thread == queue else "server" if one_thread else f"server {int(thread) + 1}"


def _spans(panel: Panel, story: OffloadStory) -> str:
    """The rectangles of one panel; x in ms."""
    t = panel.timeline
    names, of = story.models
    length = t.end_s - t.start_s
    keep = np.zeros(len(t), np.bool_)
    keep[np.argsort(-length, kind="stable")[:MOST_SPANS]] = True
    parts: list[str] = []
    for lane in panel.lanes:
        y, height = f"{lane.top:g}", f"{lane.height:g}"
        parts.append(f'<rect class="lane" x="0" y="{y}" width="{1e3 * t.duration_s:.4f}" height="{height}"/>')
        for i in np.flatnonzero((t.queue == lane.queue) & keep & (length > 0)).tolist():
            job = int(t.micro_batch[i])
            look = "deep" if is_deep(int(of[job]), len(names)) else "pale"
            parts.append(
                f'<rect class="{look}" style="{colour(int(of[job]), len(names))}" data-i="{job}" x="{1e3 * t.start_s[i]:.4f}" y="{y}" '
                f'width="{1e3 * length[i]:.4f}" height="{height}"/>'
            )
    return "".join(parts)


def colour(model: int, models: int) -> str:
    """The colour of a model as a style: along a scale that begins at blue, or at green where there are many.

    >>> colour(0, 2), colour(1, 2)
    ('--c:color-mix(in oklab,var(--middle) 0%,var(--low))', '--c:color-mix(in oklab,var(--high) 100%,var(--middle))')
    """
    stops, at = _place(model, models)
    k = min(int(at), len(stops) - 2)
    return f"--c:color-mix(in oklab,var({stops[k + 1]}) {100 * (at - k):.0f}%,var({stops[k]}))"


def is_deep(model: int, models: int) -> bool:
    """Whether a model's colour is dark on a light page: all up to a little beyond the last stop but one."""
    stops, at = _place(model, models)
    return at <= len(stops) - 1.8


def _place(model: int, models: int) -> tuple[tuple[str, ...], float]:
    """(the scale, where on it a model is: k at its k-th stop)."""
    stops = STOPS if models > 4 else STOPS[1:]
    return stops, (len(stops) - 1) * model / (models - 1) if models > 1 else 0.0


def makespans(story: OffloadStory) -> str:
    """The plan, what was measured, and every baseline; the bound as a tick on each bar."""
    verdict, measured = story.file.verdict, story.measured
    values = [(tag("b", "this plan"), verdict.value_s, True)] if story.predicted else []
    values += [(tag("b", "this plan, measured"), measured.makespan_s, True)] if measured and values else []
    values += [(_baseline(n), v, False) for n, v in sorted(story.baselines.items(), key=lambda kv: kv[1])]
    if len(values) < 2:
        return ""
    longest = min(max(v for _, v, _ in values), LONGEST * verdict.value_s)
    bound = verdict.lower_bound_s / longest if verdict.lower_bound_s > 0 else None
    classes = ["", "wide", "n", "n"]
    rows = [
        cells(
            [
                name,
                tag("div", bar(v / longest, tick=bound, main=mine), class_="beyond" if v > longest else None),
                tag("b", seconds(v)) if mine else seconds(v),
                "" if v == verdict.value_s and mine else minus(percent(v / verdict.value_s - 1, signed=True)),
            ],
            classes,
        )
        for name, v, mine in values
    ]
    return framed(["", "tick: no plan is faster" if bound else "", "makespan", "against plan"], classes, rows, "bars")


def _baseline(method: str) -> str:
    return tag("span", words(NAMES.get(method, method)), title=method)
