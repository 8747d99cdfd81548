"""How fast every device was in every step of a run, beside what the plan was told of it."""

from __future__ import annotations

import numpy as np

from partita.nouns.graph import FloatArray
from partita.nouns.pipeline_plan import PipelinePlan
from partita.nouns.pipeline_problem import PipelineProblem
from partita.page.bars import NARROW
from partita.page.markup import Scale, number, tag, words
from partita.page.run_speed import sentences
from partita.page.text import percent
from partita.pipeline.report.charts import frame
from partita.pipeline.report.story import Story

_MOST = 4  #: devices with a line of their own; of more, those that strayed furthest


def note(story: Story) -> str:
    """The machine's part of the error and the model's, in sentences; empty where that is not known."""
    measured, predicted = story.measured_step_s, story.predicted_step_s
    if story.run_speed is None or measured is None or predicted is None:
        return ""
    return words(" ".join(sentences(story.run_speed, predicted, measured)).replace(" -", " −"))


def chart(story: Story) -> str:
    """Speed over steps, 1 being what the plan was told; empty where the run was not probed."""
    lines = {d: row for d, row in _changes(story).items() if np.isfinite(row).any()}
    if not lines:
        return ""
    shown = sorted(lines, key=lambda d: -abs(float(np.log(np.nanmedian(lines[d])))))[:_MOST]
    values = np.concatenate([lines[d] for d in shown])
    each = story.readings.each if story.readings else 1
    steps = each * len(values) // len(shown)
    left, right, top, bottom = 40.0, NARROW - 8.0, 24.0, 176.0
    x = Scale(1, max(2, steps), left, right)
    y = Scale(0.0, 1.1 * max(1.0, float(np.nanmax(values))), bottom, top)
    parts = [frame("speed, as a part of what the plan was told", x, y, left, right, bottom)]
    parts.append(tag("line", class_="grid one", x1=left, x2=right, y1=y(1.0), y2=y(1.0)))
    for k, device in enumerate(d for d in lines if d in shown):
        row = lines[device]
        points = "L".join(
            f"{number(x(each * i + 1))} {number(y(v))}" for i, v in enumerate(row.tolist()) if np.isfinite(v)
        )
        parts.append(tag("path", class_=f"loss line{k}", d=f"M{points}"))
        label = f"{device}: {percent(float(np.nanmedian(row)))}"
        parts.append(tag("text", words(label), class_=f"name line{k}", x=left + 8, y=bottom - 10 - 16 * k))
    return tag("svg", *parts, viewBox=f"0 0 {NARROW} {bottom + 34:g}", class_="chart", id="speeds")


def _changes(story: Story) -> dict[str, FloatArray]:
    """Device -> [steps] its speed as a part of what the plan was told."""
    problem = story.plan.problem if story.plan else None
    plan = story.plan.plan if story.plan else None
    if not isinstance(problem, PipelineProblem) or not isinstance(plan, PipelinePlan):
        return {}
    if problem.probe is None or story.readings is None:
        return {}
    planned = {d.name: d.speed for d in problem.cluster_of(plan).devices}
    rows = zip(story.readings.devices, story.readings.speeds(problem.probe), strict=True)
    return {d: row / planned[d] for d, row in rows if d in planned}
