"""The page of `partita spark report`: phases on the network and on the CPU, predicted above measured. One HTML file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

from partita.errors import BadInput
from partita.nouns.timeline import Timeline
from partita.page.bars import bar, bottleneck, busy, minus, pair_ms
from partita.page.how_good import how_good
from partita.page.markup import tag, words
from partita.page.palette import colour, shade
from partita.page.sheet import asset, cells, columns, document, footer, framed, header, many, section
from partita.page.text import percent, seconds
from partita.page.timelines import GAP, TITLE, ZOOM, Lane, Mark, Panel, frame, rectangles
from partita.spark.problem import ShopProblem
from partita.spark.report.gantt import BASELINE_NAMES, MACHINES, OPTIMAL, PHASES, names_of, phase_of, timeline
from partita.spark.schedule import ShopFile

MOST_STAGES = 300  #: rows of the table of stages


@dataclass(frozen=True)
class SparkStory:
    """All that the page shows: a plan, and, where it was run, what was measured."""

    title: str
    file: ShopFile
    measured: Timeline | None = None
    missing: tuple[str, ...] = ()

    @property
    def problem(self) -> ShopProblem:
        return self.file.problem

    @cached_property
    def predicted(self) -> Timeline:
        return timeline(self.file)

    @cached_property
    def label(self) -> Mapping[str, tuple[int, int]]:
        """The label of a span -> job, stage."""
        named = zip(names_of(self.problem), self.problem.jobs, strict=True)
        return {f"{name}.{s}": (j, s) for j, (name, job) in enumerate(named) for s in range(len(job.stages))}

    def check(self) -> None:
        """Raise BadInput where the measured timeline is of other jobs."""
        if self.measured is not None and (
            self.measured.queues != MACHINES or set(self.measured.label) - self.label.keys()
        ):
            raise BadInput("the measured timeline is not of this plan", hint="give one run's files")

    def lengths(self, t: Timeline | None) -> dict[tuple[str, str], float]:
        """(label, phase) -> seconds."""
        if t is None:
            return {}
        return {(t.label[k], phase_of(t, k)): float(t.end_s[k] - t.start_s[k]) for k in range(len(t))}


def page(story: SparkStory) -> str:
    """The whole page. All text of the files is escaped. O(stages + spans)."""
    story.check()
    picture, data = _gantt(story)
    rows = enumerate(story.predicted.queues)
    shares = [(m, _share(story.predicted, q), _share(story.measured, q) if story.measured else None) for q, m in rows]
    body = [
        header(story.title, *headline(story), bound_sentence(story)),
        section(
            "Network and CPU" + (", predicted and measured" if story.measured else ""), ZOOM, _legend(story) + picture
        ),
        columns(
            section("How busy each machine is", bottleneck(shares, "the makespan"), busy(shares)),
            section("Against what is done without a plan", words(_found(story)), _values(story)),
        ),
        section("The stages", _stages_note(story), _stages(story)),
        footer(_facts(story), story.missing),
    ]
    data["tips"] = [_tip(story, j) for j in range(len(story.problem.jobs))]
    styles = (asset("study.css"), asset("gantt.css"), asset("page.css", "partita.spark.report"))
    return document(f"{story.title}: {headline(story)[0]}", "".join(body), data, styles)


def headline(story: SparkStory) -> tuple[str, str]:
    """The result in a sentence, and how it compares in others; both plain text."""
    n, stages = len(story.problem.jobs), len(story.problem)
    what = f"{many(n, 'job')} of {many(stages, 'stage')} in"
    if story.measured is None:
        return f"{what} {seconds(story.predicted.duration_s)}, predicted.", _against(story)
    off = abs(story.predicted.duration_s / (story.measured.duration_s or 1.0) - 1)
    told = f"Predicted {seconds(story.predicted.duration_s)}: {percent(off)} off."
    return f"{what} {seconds(story.measured.duration_s)}.", f"{told} {_against(story)}".strip()


def _against(story: SparkStory) -> str:
    verdict = story.file.verdict
    fair = verdict.compared_s.get("fair", 0.0)
    if fair <= 0 or verdict.value_s <= 0:
        return ""
    less = 1 - verdict.value_s / fair
    return f"Sharing both machines would have a {_what(story)} of {seconds(fair)}: the plan is {percent(abs(less))} {'below' if less > 0 else 'above'} that."  # fmt: skip


def bound_sentence(story: SparkStory) -> str:
    """How good the plan is at worst; "" where no bound is known."""
    plan = story.file.verdict
    return how_good(plan.value_s, plan.lower_bound_s, plan.bound, f"No order has a {_what(story)} below", OPTIMAL)


def _what(story: SparkStory) -> str:
    return story.file.verdict.objective.replace("-", " ")


def _share(t: Timeline, machine: int) -> float:
    mine = t.queue == machine
    return float((t.end_s - t.start_s)[mine].sum()) / (t.duration_s or 1.0)


def _gantt(story: SparkStory) -> tuple[str, dict[str, Any]]:
    """Predicted above measured. Each span bears its job, so that all of a job light up together."""
    panels: list[Panel] = []
    top = 0.0
    for title, t in (("Predicted", story.predicted), ("Measured", story.measured)):
        if t is not None and len(t):
            lanes = tuple(Lane(q, name, top + TITLE + q * 31.0, 26.0, True) for q, name in enumerate(t.queues))
            panels.append(Panel(title, t, top, lanes))
            top = panels[-1].bottom + GAP
    if not panels:
        return "", {}
    drawn, data = frame(panels, "".join(rectangles(p, partial(_mark, p, story)) for p in panels), "network and CPU")
    return drawn, data | {"rows": [[0, j] for j in range(len(story.problem.jobs))]}


def _mark(panel: Panel, story: SparkStory, k: int) -> Mark:
    job, jobs = story.label[panel.timeline.label[k]][0], len(story.problem.jobs)
    return Mark(shade(job, jobs), job, colour(job, jobs))


def _legend(story: SparkStory) -> str:
    jobs = story.problem.jobs
    if len(jobs) > 12:
        return ""
    keys = [
        tag("span", tag("i", class_="swatch group", style=colour(j, len(jobs))), words(f"{j} {job.name}"), class_="key")
        for j, job in enumerate(jobs)
    ]
    return tag("p", *keys, tag("span", "A number is a job.", class_="quiet"), class_="legend")


def _tip(story: SparkStory, j: int) -> tuple[str, list[tuple[str, str]]]:
    """What stands beside the pointer over a job."""
    job = story.problem.jobs[j]
    rows = [("stages", str(len(job.stages)))]
    for name, t in (("predicted", story.predicted), ("measured", story.measured)):
        if t is not None:
            mine = [k for k in range(len(t)) if story.label[t.label[k]][0] == j]
            if mine:
                rows.append((f"done, {name}", seconds(float(t.end_s[mine].max()))))
    return job.name or f"job {j}", rows


def _found(story: SparkStory) -> str:
    plan = story.file.verdict
    return f"The {_what(story)} that the same times predict. Found by {plan.method} in {seconds(plan.seconds_spent)}."


def _values(story: SparkStory) -> str:
    verdict = story.file.verdict
    values = [(tag("b", "this plan"), verdict.value_s, True)]
    if story.measured is not None and verdict.objective == "makespan":
        values.append((tag("b", "this plan, measured"), story.measured.duration_s, True))
    values += [
        (words(BASELINE_NAMES.get(n, n)), v, False) for n, v in sorted(verdict.compared_s.items(), key=lambda kv: kv[1])
    ]
    longest = max(v for _, v, _ in values) or 1.0
    bound = verdict.lower_bound_s / longest if verdict.lower_bound_s > 0 else None
    classes = ["", "wide", "n", "n"]
    rows = [
        cells(
            [
                name, bar(v / longest, tick=bound, main=mine), tag("b", seconds(v)) if mine else seconds(v),
                "" if v == verdict.value_s else minus(percent(v / (verdict.value_s or 1.0) - 1, signed=True)),
            ],
            classes,
        )
        for name, v, mine in values
    ]  # fmt: skip
    return framed(["", "tick: no plan is below", _what(story), "against plan"], classes, rows, "bars")


def _stages_note(story: SparkStory) -> str:
    return "Times in ms" + (": predicted, then measured in bold." if story.measured else ", predicted.")


def _stages(story: SparkStory) -> str:
    phases = PHASES if story.problem.writes else PHASES[:2]
    heads = ["stage", "made at", "after", *phases]
    classes = ["", "wrap soft", "", *("n" for _ in phases)]
    one, two = story.lengths(story.predicted), story.lengths(story.measured)
    rows = []
    for label, (j, s) in list(story.label.items())[:MOST_STAGES]:
        stage = story.problem.jobs[j].stages[s]
        pairs = [pair_ms(one.get((label, p)), two.get((label, p))) for p in phases]
        rows.append(
            cells([words(label), words(stage.name), words(", ".join(map(str, stage.parents))), *pairs], classes)
        )
    left = len(story.label) - MOST_STAGES
    return framed(heads, classes, rows, "stages") + (
        tag("p", f"{many(left, 'more stage')}.", class_="note") if left > 0 else ""
    )


def _facts(story: SparkStory) -> Iterable[tuple[str, str]]:
    plan = story.file.verdict
    yield "method", plan.method
    yield "objective", _what(story)
    told = story.measured.facts if story.measured else {}
    if told.get("spark"):
        yield "Spark", str(told["spark"])
    settings = told.get("settings")
    if isinstance(settings, dict):
        for key, value in settings.items():
            yield str(key).replace("_", " "), str(value)
