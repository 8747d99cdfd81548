"""The report: one HTML file that needs nothing else. Style and script are inlined; a policy forbids it the network."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from partita.errors import TimelineError
from partita.nouns.pipeline_plan import PipelinePlan
from partita.nouns.pipeline_problem import PipelineProblem
from partita.nouns.plan import PlanFile
from partita.nouns.splits import counted
from partita.page import bars
from partita.page.agreement import ERROR, Agreement, agreement, events, is_computation
from partita.page.markup import tag, words
from partita.page.plan_rows import is_mapping
from partita.page.run_speed import sentences
from partita.page.schedule_words import schedule_words
from partita.page.sheet import columns, document, footer, header, many, section
from partita.page.text import count, percent, rate, seconds, size
from partita.page.timelines import ZOOM
from partita.page.together import lines, together
from partita.pipeline.report import charts, speeds, timelines
from partita.pipeline.report.stages import StageRow, stage_rows
from partita.pipeline.report.story import NAMES, PIPELINE, SINGLE, TORCH, Story, devices_used


def page(story: Story, more: Sequence[str] = ()) -> str:
    """The whole report as HTML. What is missing from the story is left out, and named at the end. O(spans).

    `more`: sections of others, which stand before the devices.
    """
    picture, data = timelines.figure(story)
    agreed = _agreement(story)
    rows = stage_rows(story.plan, story.predicted, story.measured) if story.plan else ()
    shares = _shares(story)
    facts = [(_fact_name(k), _fact(k, v)) for k, v in _flat(story.facts) if v not in (None, "", [], ())]
    busy_note = bars.bottleneck(shares, "the step in which a device computes") if len(shares) > 1 else ""
    body = [
        header(story.title, *headline(story), _plan_line(story)),
        section("Step time", _engines_note(story), charts.engines(story)),
        section(
            "One step, predicted and measured" if agreed else "One step",
            _timeline_note(story),
            _legend(story) + picture if picture else "",
        ),
        section("Where the cuts fall", _cuts_note(rows), charts.cuts(rows) + charts.stages(rows)),
        *more,
        columns(
            section("How busy each device is", busy_note, bars.busy(shares))
            + section("How fast each device was", speeds.note(story), speeds.chart(story))
            + section("How good the plan is", _bound_note(story), _alternatives(story)),
            section("How well each event was predicted", _agreement_note(agreed), _errors(story, agreed))
            + section("Loss", _loss_note(story), charts.losses(story)),
        ),
        footer(facts, story.missing(), ERROR),
    ]
    return document(story.title, "".join(body), data)


# ------------------------------------------------------------------------------------------------------- headline


def headline(story: Story) -> tuple[str, str]:
    """The result in a sentence, and how well it was predicted in another; both plain text."""
    measured, predicted = story.measured_step_s, story.predicted_step_s
    single = story.engine(SINGLE).measured_s
    if measured is not None and single is not None and devices_used(story) != 1:
        result = versus(single / measured, "one process")
    elif measured is not None:
        result = f"{seconds(measured)} a step"
    elif predicted is not None:
        result = f"{seconds(predicted)} a step, predicted"
    else:
        result = "Not run yet"
    if measured is None or predicted is None:
        return result + ".", ""
    off = abs(predicted / measured - 1) if measured else math.inf
    told = [f"Predicted {seconds(predicted)} a step, measured {seconds(measured)}: {percent(off)} off."]
    if story.run_speed:
        told.append(sentences(story.run_speed, predicted, measured)[0])
    return result + ".", " ".join(told)


def versus(ratio: float, what: str) -> str:
    """How a speed-up reads.

    >>> versus(1.843, "one process"), versus(0.5, "one process"), versus(1.001, "one process")
    ('1.84× faster than one process', '2.00× slower than one process', 'As fast as one process')
    """
    if abs(ratio - 1) < 0.005:
        return f"As fast as {what}"
    return f"{ratio:.2f}× faster than {what}" if ratio > 1 else f"{1 / ratio:.2f}× slower than {what}"


def _plan_line(story: Story) -> str:
    plan = story.plan.plan if story.plan else None
    if not isinstance(plan, PipelinePlan):
        used = devices_used(story)
        return f"{count(len(plan.placement))} tasks placed on {many(used, 'device')}, by {story.plan.verdict.method}." if story.plan and plan else ""  # fmt: skip
    if story.plan and is_mapping(story.plan):
        return (
            f"{many(len(plan.stage_of), 'operator')} mapped to {many(len(plan.devices), 'device')} in "
            f"{many(len(plan.stages), 'segment')}, the whole batch at once, by {story.plan.verdict.method}.{_split_line(story)}{_together_line(story.plan)}"
        )
    name = schedule_words(plan.schedule)
    return (
        f"{many(len(plan.stages), 'stage')} on {many(len(plan.devices), 'device')}, "
        f"{many(plan.micro_batches, 'micro-batch', 'micro-batches')}, at most {plan.in_flight} in flight, {name}.{_split_line(story)}"
    )


def _split_line(story: Story) -> str:
    """Operators in parts, and what that changes."""
    problem = story.plan.problem if story.plan else None
    splits = problem.splits if isinstance(problem, PipelineProblem) else ()
    return f" In parts: {'; '.join(counted(splits))}." if splits else ""


def _together_line(file: PlanFile) -> str:
    """Operators that could not be parted."""
    found = lines(together(file))
    return f" Kept together: {'; '.join(found)}." if found else ""


# ---------------------------------------------------------------------------------------------------------- notes


def _engines_note(story: Story) -> str:
    torch, mine = story.engine(TORCH).measured_s, story.measured_step_s
    return "" if torch is None or mine is None else words(versus(torch / mine, NAMES[TORCH])) + "."


def _timeline_note(story: Story) -> str:
    if story.predicted is None and story.measured is None:
        return ""
    return f"{_fill_limit(story)} {ZOOM}".strip()


def _legend(story: Story) -> str:
    """What the colours of the timelines mean, each word beside its colour."""
    numbered = story.plan is None or isinstance(story.plan.plan, PipelinePlan)
    keys = (
        ("forward", "forward, numbered by micro-batch" if numbered else "forward"),
        ("backward", "backward"),
        ("update", "optimizer's step"),
        ("transfer", "message, below the device that sends it; in a device's own lane, waiting for one"),
    )
    return tag(
        "p", *(tag("span", tag("i", class_=f"swatch {k}"), words(w), class_="key") for k, w in keys), class_="legend"
    )


def _fill_limit(story: Story) -> str:
    """What filling and draining alone allow: K stages, M micro-batches, K M / (M + K - 1)."""
    plan = story.plan.plan if story.plan else None
    if story.plan is None or is_mapping(story.plan):
        return ""
    if not isinstance(plan, PipelinePlan) or len(plan.stages) < 2 or any(s.replicas > 1 for s in plan.stages):
        return ""
    k, m = len(plan.stages), plan.micro_batches
    return f"{many(k, 'equal stage')} would fill and drain with {many(m, 'micro-batch', 'micro-batches')} at {k * m / (m + k - 1):.2f}×."


def _cuts_note(rows: tuple[StageRow, ...]) -> str:
    if not rows:
        return ""
    start = "Times are of one micro-batch: predicted, then measured in bold." if any(r.forward[1] for r in rows) else "Times are of one micro-batch, predicted."  # fmt: skip
    if len(rows) < 2:
        return start
    times = [sum(r.task_s) for r in rows]
    longest = max(range(len(rows)), key=lambda k: times[k])
    mean = sum(times) / len(times)
    over = f"; stage {longest} takes {percent(times[longest] / mean - 1)} more than the mean" if mean > 0 else ""
    return f"Each task is as wide as its predicted time; above a cut stands what crosses it{over}. {start}"


def _shares(story: Story) -> list[tuple[str, float | None, float | None]]:
    predicted = story.predicted.busy_share() if story.predicted else {}
    measured = story.measured.busy_share() if story.measured else {}
    names = list(dict.fromkeys([*predicted, *measured]))
    return [(n, predicted.get(n), measured.get(n)) for n in names if predicted.get(n) or measured.get(n)]


def _agreement(story: Story) -> Agreement | None:
    """None where a timeline is missing or the two are of different programs."""
    if story.predicted is None or story.measured is None:
        return None
    try:
        return agreement(story.predicted, story.measured)
    except TimelineError:
        return None


def _agreement_note(agreed: Agreement | None) -> str:
    if agreed is None or not agreed.events:
        return ""
    return (
        f"Half of {many(agreed.events, 'computation')} were predicted within {percent(agreed.median_error)}, "
        f"nine in ten within {percent(agreed.high_error)}. Shaded: within 10 %."
    )


def _errors(story: Story, agreed: Agreement | None) -> str:
    if agreed is None or story.predicted is None or story.measured is None:
        return ""
    both = [e for e in events(story.predicted, story.measured) if is_computation(e, story.predicted)]
    return charts.errors(both, timelines.instruction_rows(story))


def _bound_note(story: Story) -> str:
    if story.plan is None:
        return ""
    v = story.plan.verdict
    what = {"step": "a step", "throughput": "a sample", "latency": "from input to output"}[v.objective]
    found = f"Found by {words(v.method)} in {seconds(v.seconds_spent)}."
    start = f"Predicted {seconds(v.value_s)} {what}; no plan of this kind can take less"
    if v.gap <= 5e-4:
        return f"{start} (bound: {words(v.bound)}). {found}"
    return f"{start} than {seconds(v.lower_bound_s)} (bound: {words(v.bound)}), so this one is at most {percent(v.gap)} from the best. {found}"


def _alternatives(story: Story) -> str:
    return charts.alternatives(story.alternatives, story.plan.verdict if story.plan else None)


def _loss_note(story: Story) -> str:
    known = {e.key: e for e in story.engines if len(e.losses) > 1}
    if not known:
        return ""
    mine, single = known.get(PIPELINE), known.get(SINGLE)
    if mine is None or single is None:
        return ""
    off = charts.loss_difference(single, mine)
    if off == 0.0:
        return (
            f"On {many(len(mine.losses), 'step')} in turn, the pipeline's losses are bit for bit those of one process."
        )
    if not math.isfinite(off):
        return ""
    return f"On {many(len(mine.losses), 'step')} in turn, the pipeline's losses are those of one process within {off:.1g} (relative)."


# ---------------------------------------------------------------------------------------------------------- facts


def _flat(facts: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    for k, v in facts.items():
        if isinstance(v, Mapping):
            yield from _flat(v, f"{prefix}{k} ")
        else:
            yield prefix + str(k), v


_UNITS = {"_bytes_per_s": rate, "_s": seconds, "_bytes": size, "_share": percent}


def _fact_name(key: str) -> str:
    stem = next((key.removesuffix(u) for u in _UNITS if key.endswith(u)), key)
    return stem.replace("_", " ")


def _fact(key: str, value: Any) -> str:
    if isinstance(value, int | float) and not isinstance(value, bool):
        write = next((f for u, f in _UNITS.items() if key.endswith(u)), None)
        return write(float(value)) if write else f"{value:,}" if isinstance(value, int) else f"{value:.4g}"
    if isinstance(value, list | tuple):
        return ", ".join(_fact("", v) for v in value)
    return str(value)
