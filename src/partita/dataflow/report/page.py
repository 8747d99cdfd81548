"""The page of a flow's run: what was chosen, the branches with their scores, what was saved, workers, memory, prediction."""

from __future__ import annotations

import math
from collections.abc import Iterable

from partita.dataflow.report import charts
from partita.dataflow.report.story import Branch, FlowStory, StepRow, Tree, options_in_words, told
from partita.dataflow.run.record import Chosen, RunRecord, TaskRow
from partita.page.bars import bar, minus
from partita.page.markup import tag, words
from partita.page.palette import colour
from partita.page.sheet import asset, cells, columns, document, footer, framed, header, many, section
from partita.page.text import count, figures, percent, seconds, size
from partita.page.timelines import ZOOM

MOST_BRANCHES = 4000  #: rows of the tree; beyond, the best are shown
MOST_SHOWN = 40  #: of one choice
MOST_LOST = 30  #: rows of the table of failures


def page(run: RunRecord, title: str = "flow") -> str:
    """The whole page, one HTML file. All text of the record is escaped. O(tasks log tasks + branches)."""
    story = FlowStory(title, run)
    picture, data = charts.gantt(story)
    body = [
        header(title, headline(run), lede(run), work_sentence(run)),
        section("What was chosen", "", chosen(story)),
        section("The branches", _branches_note(run), branches(story)),
        section("Where the work went", _work_note(story), calls(story)),
        section("Tasks of each worker", ZOOM if picture else "", charts.legend(story) + picture if picture else ""),
        columns(
            section("Memory", _memory_note(run), charts.memory(story)),
            section("Predicted while it ran", _prediction_note(run), charts.prediction(story)),
        ),
        section("The steps", "Sorted by the time they took.", steps(story)),
        section("What failed", "Each reason once." if run.tasks_failed else "", lost(story)),
        section("Worth knowing", "", tag("ul", *(tag("li", words(n)) for n in run.notes), class_="notes") if run.notes else ""),
        footer(_facts(run), ()),
    ]  # fmt: skip
    styles = (asset("study.css"), asset("gantt.css"), asset("page.css", "partita.dataflow.report"))
    return document(f"{title}: {headline(run)}", "".join(body), data, styles)


# ------------------------------------------------------------------------------------------------------- sentences


def headline(run: RunRecord) -> str:
    """The result in a sentence."""
    return f"{many(run.configurations, 'configuration')} in {seconds(run.seconds)}."


def lede(run: RunRecord) -> str:
    """What running each for itself would be, and what it was instead."""
    calls = (
        run.tasks_run + run.tasks_shared + run.tasks_cached + run.tasks_pruned + run.tasks_cancelled + run.tasks_failed
    )
    if calls <= run.tasks_run:
        return f"{many(run.tasks_run, 'task')} ran."
    return f"One after another they are {count(calls)} calls; {count(run.tasks_run)} ran: {percent(1 - run.tasks_run / calls)} of them did not have to."


def work_sentence(run: RunRecord) -> str:
    busy = run.busy_s / (run.seconds * run.workers or 1.0)
    return f"{seconds(run.busy_s)} of work in {many(run.workers, 'worker')}, {percent(min(1.0, busy))} of their time."


def _branches_note(run: RunRecord) -> str:
    if not run.choices:
        return ""
    pruned = f" {many(run.branches_pruned, 'branch', 'branches')} never ran." if run.branches_pruned else ""
    return words(
        f"{many(run.branches, 'branch', 'branches')} in {many(len(run.choices), 'choice')}: the kept ones dark, the best first.{pruned}"
    )


def _work_note(story: FlowStory) -> str:
    return words("What the calls of all configurations, one after another, became.") if story.run.tasks_run else ""


def _memory_note(run: RunRecord) -> str:
    again = sum(t.runs - 1 for t in run.tasks if t.runs > 1)
    let_go = (
        f"; {many(run.dropped, 'result')} let go of for want of room, {many(again, 'task')} computed again"
        if run.dropped
        else ""
    )
    return words(f"Results held by all workers together, {size(run.peak_bytes)} at most{let_go}.")


def _prediction_note(run: RunRecord) -> str:
    if run.predicted_s is None or run.seconds <= 0:
        return ""
    off = run.predicted_s / run.seconds - 1
    return f"After a tenth of the work: {seconds(run.predicted_s)}, {minus(percent(off, signed=True))}. Shaded: within 15 %."


# ------------------------------------------------------------------------------------------------------- what was chosen


def chosen(story: FlowStory) -> str:
    return tag("div", *(_recipe(c, _score(story, c)) for c in story.run.chosen[:12]), class_="recipes")


def _score(story: FlowStory, c: Chosen) -> float | None:
    """By which it was chosen: its own, or that of what it was made of, which the last choice kept."""
    if c.score is not None:
        return c.score
    kept = [
        row.score
        for tree in story.trees
        for row in tree.choice.scores
        if row.kept and row.options.items() <= c.options.items()
    ]
    return kept[0] if len(kept) == 1 else None


def _recipe(c: Chosen, reached: float | None) -> str:
    """The options as a row of small plates, and what they scored."""
    plates = [tag("div", tag("dt", words(n)), tag("dd", words(o))) for n, o in c.options.items()]
    score = (
        tag("div", tag("dt", "score"), tag("dd", words(minus(figures(reached, 4)))), class_="score")
        if reached is not None and _finite(reached)
        else ""
    )
    value = told(c.value)
    what = (
        tag("p", words(f"lost: {c.failed}"), class_="quiet")
        if c.failed
        else tag("p", words(value or f"a {c.kind}" if c.kind or value else ""), class_="quiet")
    )
    return tag("div", tag("dl", *plates, score, class_="plates"), what if plates or score else "", class_="recipe")


def _finite(x: float | None) -> bool:
    return x is not None and math.isfinite(x)


# ------------------------------------------------------------------------------------------------------- branches


def branches(story: FlowStory) -> str:
    """Choices in choices: each opens its branches, the way to the chosen one is open."""
    left = [MOST_BRANCHES]
    return tag("div", *(_choice(story, t, left, True) for t in story.trees), class_="tree") if story.trees else ""


def _choice(story: FlowStory, tree: Tree, left: list[int], open_: bool) -> str:
    """One choice: a line about it, its branches, and those of them that hold choices as folds."""
    shown = tree.branches[: max(0, min(MOST_SHOWN, left[0]))]
    left[0] -= len(shown)
    rows = [_branch(story, b, left, open_ and k == 0) for k, b in enumerate(shown)]
    more = len(tree.branches) - len(shown)
    rest = tag("p", words(f"and {many(more, 'more branch', 'more branches')}"), class_="more") if more else ""
    c = tree.choice
    shape = f", {c.shape}" if c.shape else ""
    about = f"{c.select} over {', '.join(c.over)}{shape}"
    warned = tag("p", words(c.contradiction), class_="warned") if c.contradiction else ""
    return tag("div", tag("p", words(about), class_="about"), warned, *rows, rest, class_="choice")


def _branch(story: FlowStory, b: Branch, left: list[int], open_: bool) -> str:
    s = b.row
    score = words(minus(figures(s.score, 4))) if s.score is not None and _finite(s.score) else ""
    why = "" if s.kept else words(s.reason)
    line = [
        tag("span", words(b.names or "as it is"), class_="option"),
        charts.score_bar(story, s.score, s.kept),
        tag("span", tag("b", score) if s.kept else score, class_="score"),
        tag("span", why, class_="why"),
    ]
    look = "branch kept" if s.kept else "branch" if b.run else "branch never"
    if not b.below:
        return tag("div", *line, class_=look)
    inner = "".join(_choice(story, t, left, open_) for t in b.below)
    return f"<details{' open' if open_ else ''}>{tag('summary', *line, class_=look)}{inner}</details>"


# ------------------------------------------------------------------------------------------------------- work


def calls(story: FlowStory) -> str:
    """A strip: calls that ran, and those that did not have to, and why."""
    run = story.run
    kinds = [
        ("ran", run.tasks_run, "computed", "var(--main)"),
        ("shared", run.tasks_shared, "another configuration needed the same", "var(--low)"),
        ("cached", run.tasks_cached, "kept from an earlier run", "var(--green)"),
        ("pruned", run.tasks_pruned, "its branch could not win", "var(--high)"),
        ("cancelled", run.tasks_cancelled, "its branch lost meanwhile", "var(--middle)"),
        ("failed", run.tasks_failed, "raised", "var(--mark)"),
    ]
    total = sum(n for _, n, _, _ in kinds)
    if not total:
        return ""
    there = [k for k in kinds if k[1]]
    strip = [tag("span", tag("b", words(f"{name} {count(n)}")) if n > 0.09 * total else "", style=f"flex:{n} 1 0;--c:{c}") for name, n, _, c in there]  # fmt: skip
    classes = ["", "n", "n", "soft"]
    rows = [cells([tag("i", class_="swatch term", style=f"--c:{c}") + words(name), count(n), percent(n / total), words(why)], classes) for name, n, why, c in there]  # fmt: skip
    return tag("div", *strip, class_="stack") + framed(["calls", "", "", ""], classes, rows, "terms")


def steps(story: FlowStory) -> str:
    rows = sorted(story.steps, key=lambda r: -r.seconds)
    longest = max((r.seconds for r in rows), default=0.0) or 1.0
    classes = ["", "wide", "n", "n", "n", "n", "soft"]
    return framed(["step", "", "all tasks", "tasks run", "median", "largest result", "not run"], classes, [cells(_step(r, longest, len(story.labels)), classes) for r in rows[:60]], "bars")  # fmt: skip


def _step(r: StepRow, longest: float, steps_: int) -> list[str]:
    others = ", ".join(f"{count(n)} {state}" for state, n in r.states.items() if state != "run")
    return [
        tag("i", class_="swatch group", style=colour(r.number, steps_)) + words(r.label), bar(r.seconds / longest), seconds(r.seconds) if r.seconds else "",
        count(r.states.get("run", 0)), "" if r.median_s is None else seconds(r.median_s), size(r.largest_bytes) if r.largest_bytes else "", words(others),
    ]  # fmt: skip


def lost(story: FlowStory) -> str:
    """Tasks that raised, each reason once with how often it came."""
    failed = [t for t in story.run.tasks if t.state == "failed"]
    if not failed:
        return ""
    first: dict[tuple[str, str], list[TaskRow]] = {}
    for t in failed:
        first.setdefault((t.label, t.reason), []).append(t)
    classes = ["", "wrap", "wrap soft", "n"]
    rows = [cells([words(label), words(reason), words(options_in_words(ts[0].options)), count(len(ts))], classes) for (label, reason), ts in list(first.items())[:MOST_LOST]]  # fmt: skip
    return framed(["step", "why", "first at", "tasks"], classes, rows, "failures")


def _facts(run: RunRecord) -> Iterable[tuple[str, str]]:
    yield "time", seconds(run.seconds)
    yield "starting workers took", seconds(run.started_s)
    yield "tasks run", count(run.tasks_run)
    yield "configurations", count(run.configurations)
    yield "workers", count(run.workers)
    yield "memory, at most", size(run.peak_bytes)
