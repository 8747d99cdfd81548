"""A schedule as a timeline of two machines, to be drawn."""

from __future__ import annotations

from typing import Any

import numpy as np

from partita.nouns.timeline import Timeline
from partita.spark.schedule import ShopFile


def timeline(file: ShopFile) -> Timeline:
    """The phases that have a length, by start. Several jobs: a span bears its job's number, and odd jobs look different from
    even ones; one job: its stage's. O(n log n)."""
    jobs = file.problem.jobs
    spans = []
    for r in file.schedule:
        stage = jobs[r.job].stages[r.stage]
        number = r.job if len(jobs) > 1 else r.stage
        label = stage.name or f"{jobs[r.job].name or r.job}.{r.stage}"
        for queue, start, length in ((0, r.network_start_s, stage.network_s), (1, r.cpu_start_s, stage.cpu_s)):
            if length > 0:
                spans.append((start, start + length, queue, number, label, ("forward", "backward")[number % 2]))
    spans.sort()
    columns: list[tuple[Any, ...]] = list(zip(*spans, strict=True)) if spans else [()] * 6
    begin, end, queues, numbers, labels, kinds = columns
    return Timeline(
        ("network", "cpu"),
        2,
        np.arange(len(spans)),
        np.array(queues, np.int32),
        labels,
        kinds,
        np.array(numbers, np.int32),
        np.array(begin, np.float64),
        np.array(end, np.float64),
    )
