"""The pictures of offloading: the four machines' timelines, a job a colour, and makespans as bars."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from partita.nouns.timeline import Timeline
from partita.offload.report.story import OffloadStory, machine_of
from partita.page.bars import bar, minus
from partita.page.markup import tag, words
from partita.page.palette import colour, shade
from partita.page.sheet import cells, framed
from partita.page.text import percent, seconds
from partita.page.timelines import GAP, TITLE, Lane, Mark, Panel, frame, rectangles

NAMES: Mapping[str, str] = {
    "device-only": "all on the device",
    "server-only": "all on the server",
    "single-cut": "best single-job cut",
    "min-cut": "minimum cut per job",
    "partition-only": "cuts, order as given",
    "schedule-only": "order, single-job cuts",
}
LONGEST = 2.0  #: bars of makespans end at so many times the plan's: what is far beyond would flatten all others


def gantt(story: OffloadStory) -> tuple[str, dict[str, Any]]:
    """Predicted above measured, and what the page's script reads. Each span bears its job, so that all light up together."""
    panels = _panels(story)
    if not panels:
        return "", {}
    drawn, data = frame(
        panels,
        "".join(rectangles(p, partial(_mark, p, story)) for p in panels),
        "device, uplink, server and downlink",
    )
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


def _mark(panel: Panel, story: OffloadStory, k: int) -> Mark:
    names, of = story.models
    job = int(panel.timeline.micro_batch[k])
    model = int(of[job])
    return Mark(shade(model, len(names)), job, colour(model, len(names)))


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
