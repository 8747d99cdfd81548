"""The page of `partita offload report`: jobs over a device and a server, predicted above measured. One HTML file."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from partita.offload.plan.lower import lateness
from partita.offload.report import charts
from partita.offload.report.story import MACHINES, OffloadStory, Played
from partita.offload.report.text import bytes_up, cut_words
from partita.page.bars import bottleneck, busy, pair_ms
from partita.page.how_good import how_good
from partita.page.markup import tag, words
from partita.page.palette import colour
from partita.page.sheet import asset, cells, columns, document, footer, framed, header, many, section
from partita.page.text import figures, percent, rate, seconds, size
from partita.page.timelines import ZOOM

MOST_JOBS = 200  #: rows of the table of jobs


def page(story: OffloadStory) -> str:
    """The whole page; what is absent leaves no gap. All text of the files is escaped. O(jobs x tasks + spans)."""
    picture, data = charts.gantt(story)
    shares = _shares(story)
    body = [
        header(story.title, *headline(story), bound_sentence(story)),
        section(_timeline_title(story), _timeline_note(story), _legend(story) + picture if picture else ""),
        columns(
            section("How busy each machine is", bottleneck(shares, "the makespan"), busy(shares)),
            section("Against the baselines", _baselines_note(story), charts.makespans(story)),
        ),
        section("What happened", "", _events(story)),
        section("The jobs", _jobs_note(story), _jobs(story)),
        footer(_facts(story), story.missing),
    ]
    data["tips"] = [_tip(story, j) for j in range(len(story.problem.jobs))]
    return document(f"{story.title}: {headline(story)[0]}", "".join(body), data, (asset("study.css"), asset("gantt.css"), asset("page.css", "partita.offload.report")))  # fmt: skip


# ------------------------------------------------------------------------------------------------------- headline


def headline(story: OffloadStory) -> tuple[str, str]:
    """The result in a sentence, and how it compares in others; both plain text."""
    measured, predicted, n = story.measured, story.predicted, len(story.problem.jobs)
    if measured is not None:
        result = f"{many(n, 'job')} in {seconds(measured.makespan_s)}"
    elif predicted is not None:
        result = f"{many(n, 'job')} in {seconds(predicted.makespan_s)}, predicted"
    else:
        result = f"{many(n, 'job')}, not run yet"
    return result + ".", " ".join(_compared(story))


def _compared(story: OffloadStory) -> Iterable[str]:
    predicted, measured = story.predicted, story.measured
    if predicted is None:
        return
    if measured is not None:
        off = abs(predicted.makespan_s / measured.makespan_s - 1) if measured.makespan_s else math.inf
        yield f"Predicted {seconds(predicted.makespan_s)}: {percent(off)} off."
        at_speed = measured.timeline.facts.get("predicted_at_run_speed_s")
        if isinstance(at_speed, float) and at_speed > 0:
            yield f"At the speed that the machines had, {seconds(at_speed)}: {percent(abs(at_speed / measured.makespan_s - 1))} off."
    single = story.baselines["single-cut"]
    less = 1 - predicted.makespan_s / single if single > 0 else 0.0
    if abs(less) < 5e-4:
        yield "Each cut at its own best point, they would take as long."
    else:
        yield (
            f"Each cut at its own best point, they would take {seconds(single)}: "
            f"the plan is {percent(abs(less))} {'below' if less > 0 else 'above'} that."
        )


def bound_sentence(story: OffloadStory) -> str:
    """How good the plan is at worst; "" where no bound is known."""
    plan = story.file.verdict
    return how_good(plan.value_s, plan.lower_bound_s, plan.bound, "No cuts and order take less than", 5e-10)


# ------------------------------------------------------------------------------------------------------ timelines


def _timeline_title(story: OffloadStory) -> str:
    both = story.predicted is not None and story.measured is not None
    return "Four machines, predicted and measured" if both else "Four machines"


def _timeline_note(story: OffloadStory) -> str:
    if story.predicted is None and story.measured is None:
        return ""
    link = story.problem.link
    there = f"Uplink {rate(link.up_bytes_per_s)}, downlink {rate(link.down_bytes_per_s)}, {seconds(link.round_trip_s)} there and back."
    return f"{words(there) if story.predicted else ''} {ZOOM}".strip()


def _legend(story: OffloadStory) -> str:
    """Which colour is which model."""
    names, of = story.models
    keys = [
        tag("span", _swatch(story, k), words(f"{name}, {many(int((of == k).sum()), 'job')}"), class_="key")
        for k, name in enumerate(names)
    ]
    return tag("p", *keys, tag("span", "A number is a job.", class_="quiet"), class_="legend")


def _swatch(story: OffloadStory, model: int) -> str:
    return tag("i", class_="swatch group", style=colour(model, len(story.models[0])))


def _tip(story: OffloadStory, j: int) -> tuple[str, list[tuple[str, str]]]:
    """What stands beside the pointer over a job."""
    job, cut = story.problem.jobs[j], story.done_cuts[j]
    rows = [
        ("job", f"{j}, {story.models[0][int(story.models[1][j])]}"),
        ("cut", cut_words(job.tasks, cut)),
        ("on the device", f"{len(cut)} of {many(len(job.tasks), 'task')}"),
        ("sends up", size(bytes_up(job, cut))),
    ]
    rows += [(name, text) for k, name in enumerate(MACHINES) if (text := _both(story, lambda p, k=k: p.busy_s[j, k]))]  # type: ignore[misc]
    rows.append(("answer at", _both(story, lambda p: p.answered_s[j])))
    return job.name, [r for r in rows if r[1]]


def _both(story: OffloadStory, value: Callable[[Played], float]) -> str:
    """Predicted and measured, in words; "" where neither is."""
    found = [(n, value(p)) for n, p in (("predicted", story.predicted), ("measured", story.measured)) if p is not None]
    return ", ".join(f"{n} {seconds(v)}" for n, v in found) if any(v > 0 for _, v in found) else ""


# ----------------------------------------------------------------------------------------- machines and baselines


def _shares(story: OffloadStory) -> list[tuple[str, float | None, float | None]]:
    threads = story.problem.server_threads
    predicted, measured = (p.share(threads) if p else (None,) * 4 for p in (story.predicted, story.measured))
    return [(n, p, m) for n, p, m in zip(MACHINES, predicted, measured, strict=True) if p or m]


def _baselines_note(story: OffloadStory) -> str:
    if not story.baselines:
        return ""
    plan = story.file.verdict
    found = f"Found by {plan.method} in {seconds(plan.seconds_spent)}."
    return words(f"Makespans that the same times and the same link predict. {found}")


# ----------------------------------------------------------------------------------------------------------- jobs


def _events(story: OffloadStory) -> str:
    lines = list(events(story))
    return tag("ul", *(tag("li", words(line)) for line in lines), class_="events") if lines else ""


def events(story: OffloadStory) -> Iterable[str]:
    """What did not go as planned, a sentence each."""
    measured = story.measured
    for late in lateness(story.problem, story.plan) if story.predicted else ():
        yield f"{late['job']} is planned to be {seconds(float(late['late_s']))} late."
    if measured is None:
        return
    facts = measured.timeline.facts
    told = (
        ("lost", "Under way when a connection broke, and answered all the same: {}."),
        ("refused", "Refused by the server and done by the device: {}."),
        ("late", "Answered a second time, which was dropped: {}."),
    )
    for key, line in told:
        if facts.get(key):
            yield line.format(many(int(facts[key]), "job"))
    if int(facts.get("connections") or 0) > 1:
        yield f"Connections made to the server: {int(facts['connections'])}."
    if facts.get("replans"):
        up = f": in the end the uplink carried {rate(float(facts['up_bytes_per_s']))}, not {rate(story.problem.link.up_bytes_per_s)}" if facts.get("up_bytes_per_s") else ""  # fmt: skip
        yield f"The jobs not begun were planned anew {many(int(facts['replans']), 'time')}{up}."
    moved = [j for j, (a, b) in enumerate(zip(story.plan.cuts, story.done_cuts, strict=True)) if a != b]
    if moved:
        yield f"Cut otherwise than planned at first: {many(len(moved), 'job')}."


def _order(story: OffloadStory) -> list[int]:
    """Jobs as they were served."""
    return list((story.executed or story.plan).order)


def _jobs_note(story: OffloadStory) -> str:
    unit = "Times in ms"
    if story.predicted is not None and story.measured is not None:
        return f"In the order of service. {unit}: predicted, then measured in bold."
    return f"In the order of service. {unit}, {'predicted' if story.predicted else 'measured'}."


def _jobs(story: OffloadStory) -> str:
    jobs = story.problem.jobs
    wanted = any(math.isfinite(j.deadline_s) for j in jobs)
    comes = any(j.release_s > 0 for j in jobs)
    heads = ["#", "job", "cut", "on device", "sends up", *(["comes"] if comes else []), *MACHINES, "answer at", *(["wanted by"] if wanted else [])]  # fmt: skip
    classes = ["n", "", "wrap soft", "n", "n", *(["n"] if comes else []), *("n" for _ in MACHINES), "n", *(["n"] if wanted else [])]  # fmt: skip
    order = _order(story)
    rows = [cells(_job(story, j, comes, wanted), classes) for j in order[:MOST_JOBS]]
    rest = tag("p", f"{many(len(order) - MOST_JOBS, 'more job')}.", class_="note") if len(order) > MOST_JOBS else ""
    return framed(heads, classes, rows, "jobs") + rest


def _job(story: OffloadStory, j: int, comes: bool, wanted: bool) -> list[str]:
    job, cut = story.problem.jobs[j], story.done_cuts[j]
    planned = story.plan.cuts[j]
    was = tag("span", words(f"planned: {cut_words(job.tasks, planned)}"), class_="quiet") if planned != cut else ""
    up = bytes_up(job, cut) if len(cut) < len(job.tasks) else 0.0
    times = [_pair(story, lambda p, k=k: p.busy_s[j, k]) for k in range(len(MACHINES))]  # type: ignore[misc]
    return [
        str(j),
        _swatch(story, int(story.models[1][j])) + words(job.name),
        words(cut_words(job.tasks, cut)) + was,
        f"{len(cut)} of {len(job.tasks)}",
        size(up) if up else "",
        *([figures(1e3 * job.release_s)] if comes else []),
        *times,
        _pair(story, lambda p: p.answered_s[j]),
        *([figures(1e3 * job.deadline_s) if math.isfinite(job.deadline_s) else ""] if wanted else []),
    ]


def _pair(story: OffloadStory, value: Callable[[Played], float]) -> str:
    """Measured after predicted in ms; a dash stands for a machine that one of them did not touch."""
    one, two = (None if p is None or not value(p) > 0 else float(value(p)) for p in (story.predicted, story.measured))
    if story.predicted is None or story.measured is None or (one is None) == (two is None):
        return pair_ms(one, two)
    return f"{tag('span', pair_ms(one, None) or '–', class_='quiet')} → {pair_ms(None, two) or '–'}"


# ---------------------------------------------------------------------------------------------------------- facts


def _facts(story: OffloadStory) -> Iterable[tuple[str, str]]:
    problem, plan = story.problem, story.file.verdict
    yield "method", plan.method
    if story.predicted is not None:
        yield "planned in", seconds(plan.seconds_spent)
        yield "uplink", rate(problem.link.up_bytes_per_s)
        yield "downlink", rate(problem.link.down_bytes_per_s)
        yield "round trip", seconds(problem.link.round_trip_s)
        yield "server threads", str(problem.server_threads)
    facts = story.measured.timeline.facts if story.measured else {}
    if "up_bytes_per_s" in facts and story.predicted is not None:
        yield "uplink, as last estimated", rate(float(facts["up_bytes_per_s"]))
    if "cpu_s" in facts:
        yield "processor time of the device", seconds(float(facts["cpu_s"]))
    if "load" in facts:
        yield "load at the start", f"{float(facts['load']):.2f}"
