"""The page of `partita predict`: the answer, the formula, where the time goes, and how far it can be trusted. One HTML file."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from partita.models.report import charts
from partita.models.report.charts import Cloud
from partita.models.report.text import (
    Document,
    amount,
    best_model,
    between,
    cell,
    headline,
    inputs,
    kept_options,
    named_unit,
    option_figure,
    ranked,
    ratio,
    reliability,
    share_of,
    shared_inputs,
    told_already,
    verdict,
)  # fmt: skip
from partita.page.agreement import ERROR
from partita.page.bars import bar, minus
from partita.page.markup import tag, words
from partita.page.sheet import asset, cells, columns, document, framed, header, made, many, section
from partita.page.text import count, percent, seconds

MOST_OPTIONS = 40  #: rows of advice
WIDE_ENOUGH = 0.0075  #: share of the time a letter of a name inside its bar needs
REACH = 1.0  #: the axis of effects reaches at least from half to twice the time


def page(found: Document) -> str:
    """The whole page; what is absent from the document leaves no gap. All text of the document is escaped. O(points)."""
    points = found.get("points") or ()
    cloud = Cloud.of(points)
    unit = named_unit(found["target"])[1]
    explanation = found.get("explanation") or {}
    body = [
        header(found["data"], *headline(found), reliability(found)),
        _advice(found, unit),
        _what_if(found, unit),
        section("The formula", _formula_note(found), _formula(explanation, found)),
        section("Where the time goes", _shares_note(explanation), _shares(explanation.get("shares") or ())),
        section("The models", words(verdict(found)), _models(found)),
        _judged(found, cloud, unit),
        columns(
            section("What each input does", _effects_note(explanation), _effects(explanation.get("effects") or ())),
            section("What more rows bring", _curve_note(found), charts.learning_curve(found.get("learning_curve") or ()))
            + section("Corrections", _corrections_note(explanation), _corrections(explanation.get("corrections") or ())),
        ),
        _footer(found),
    ]  # fmt: skip
    data = {"tips": [_tip(p, found, unit) for p in points]}
    return document(f"{found['target']} of {found['data']}", "".join(body), data, (asset("study.css"),))


# --------------------------------------------------------------------------------------------------- the answers


def _advice(found: Document, unit: str) -> str:
    advice = found.get("advice")
    if not advice:
        return ""
    if headline(found)[0] == advice["sentence"]:  # the head says it already
        return tag("section", _options(advice, unit))
    answer = tag("p", words(advice["sentence"]), class_="answer")
    return section("The answer", words(advice["question"]), answer + _options(advice, unit))


def _options(advice: Mapping[str, Any], unit: str) -> str:
    """A row an option, the best first; a bar of the time in total where it is known, else of the predicted time."""
    rows = advice.get("rows") or ()
    if not rows:
        return ""
    same, names = shared_inputs(rows)
    there = [k for k in ("total_s", "device_hours", "cost") if any(r.get(k) is not None for r in rows)]
    measure = "total_s" if "total_s" in there else "predicted"
    longest = max(float(r.get(measure) or 0.0) for r in rows) or 1.0
    titles = {"total_s": "in total", "device_hours": "device-hours", "cost": "cost"}
    heads = [*names, "", "predicted", *(titles[k] for k in there), ""]
    classes = [*("n" for _ in names), "wide", "n", *("n" for _ in there), ""]
    kept = kept_options(advice, MOST_OPTIONS)
    body = []
    for k in kept:
        r, best = rows[k], k == advice.get("best")
        values = [
            *(words(cell(r["inputs"].get(n, ""))) for n in names),
            bar(float(r.get(measure) or 0.0) / longest, main=best),
            words(amount(r["predicted"], unit)),
            *(words(option_figure(r, t)) for t in there),
            "best" if best else "" if r["fits"] else "does not fit",
        ]
        row = cells([tag("b", v) if best and i != len(names) else v for i, v in enumerate(values)], classes)
        body.append(row if r["fits"] else row.replace("<tr>", '<tr class="lost">', 1))
    rest = tag("p", f"{many(len(rows) - len(kept), 'more option')}.", class_="note") if len(kept) < len(rows) else ""
    return _all_with(same) + framed(heads, classes, body, "bars") + rest


def _all_with(same: Mapping[str, Any]) -> str:
    return tag("p", words(f"All with {inputs(same)}."), class_="note") if same else ""


def _what_if(found: Document, unit: str) -> str:
    """A row a question, its interval drawn on one axis with the others."""
    asked = found.get("what_if") or ()
    if not asked:
        return ""
    same, names = shared_inputs(asked)
    highest = max(r["high"] for r in asked) or 1.0
    notes = {r.get("note") or "" for r in asked}
    noted, common = len(notes) > 1, "".join(notes) if len(notes) == 1 else ""
    if len(asked) == 1:
        note = tag("p", words(asked[0]["note"]), class_="note") if asked[0].get("note") else ""
        if told_already(found):
            return note
        return section("What if", words(inputs(asked[0]["inputs"])) + ".", _one_answer(asked[0], unit) + note)
    heads = [*names, "line: 90 % interval", "predicted", "between", *([""] if noted else [])]
    classes = [*("n" for _ in names), "wide", "n", "n soft", *(["wrap soft"] if noted else [])]
    body = [
        cells(
            [
                *(words(cell(r["inputs"].get(n, ""))) for n in names),
                bar(r["predicted"] / highest, low=r["low"] / highest, high=r["high"] / highest),
                tag("b", words(amount(r["predicted"], unit))),
                words(f"{amount(r['low'], unit)} – {amount(r['high'], unit)}"),
                *([words(r.get("note") or "")] if noted else []),
            ],
            classes,
        )
        for r in asked
    ]  # fmt: skip
    below = tag("p", words(common), class_="note") if common else ""
    return section("What if", "", _all_with(same) + framed(heads, classes, body, "bars") + below)


def _one_answer(row: Mapping[str, Any], unit: str) -> str:
    return tag("p", tag("b", words(amount(row["predicted"], unit))), words(f", {between(row, unit)}."), class_="answer")


# --------------------------------------------------------------------------------------------------- the formula


def _formula_note(found: Document) -> str:
    best = best_model(found)
    if not (found.get("explanation") or {}).get("formula"):
        return ""
    return words(f"The {best['name']} model, fitted to all rows.") if best else ""


def _formula(explanation: Mapping[str, Any], found: Document) -> str:
    if not explanation.get("formula"):
        return ""
    names = _names(found)
    lines = "".join(_line(line, names) for line in str(explanation["formula"]).strip("\n").splitlines())
    legend = explanation.get("legend") or ()
    pairs = (
        tag("div", tag("dt", typeset(str(s), names)), tag("dd", words(str(m).replace(" * ", " · ")))) for s, m in legend
    )
    beside = tag("dl", *pairs, class_="symbols") if legend else ""
    return tag("div", tag("div", lines, class_="formula"), beside, class_="written" if legend else "written alone")


def _names(found: Document) -> list[str]:
    """Names of columns that may stand in a formula, the longest first."""
    roles = found.get("roles") or {}
    return sorted((n for n in roles if len(n) > 1), key=len, reverse=True)


def _line(line: str, names: Sequence[str]) -> str:
    """One line of a formula in three columns: what, =, and how much."""
    if not line.strip():
        return tag("div", class_="gap")
    left, is_, right = _SHORT.sub(lambda m: m[0].translate(_TIED), line).partition(" = ")
    if not is_:
        left, right = "", line
    return "".join(
        tag("div", inner, class_=c)
        for inner, c in (
            (typeset(left.strip(), names), "left"),
            ("=" if is_ else "", "is"),
            (typeset(right.strip(), names), None),
        )
    )


_TOKEN = (
    r"\^(?P<power>\((?:[^()]|\([^()]*\))*\)|[-−]?[\w.]+)"
    r"|(?P<mantissa>\d+(?:\.\d+)?)[eE](?P<exponent>[+-]?\d+)"
    r"|(?<![A-Za-z0-9_])(?P<letter>[A-Za-zΑ-ω])(?:_(?P<sub>\w+))?(?![\w])"
    r"|(?P<word>[A-Za-z]{2,})_(?P<index>\d[\d.]*)"
    r"|(?<=\d)\[(?P<level>[^\]]*)\]"
    r"|(?P<times>\s*[*·×]\s*)"
    r"|(?P<minus>(?<![^\s(])-(?=[\s\d(])|(?<=\b[A-Za-z])-(?=\d))"
)


_SHORT = re.compile(r"\([^()]{1,12}\)(?: ?/ ?\w+)?")  #: kept on one line
_TIED = str.maketrans(" ", "\u00a0")


def typeset(text: str, names: Sequence[str]) -> str:
    """A formula in markup: powers raised, indices lowered, single letters italic, columns as such.

    >>> typeset("m^-0.97 + a_i", ())
    '<i>m</i><sup>−0.97</sup> + <i>a</i><sub>i</sub>'
    """
    known = "|".join(re.escape(n).replace(r"\ ", "[ \u00a0]") for n in names)
    pattern = re.compile((rf"(?<!\w)(?P<column>(?:{known})~?)(?!\w)|" if known else r"(?P<column>(?!))|") + _TOKEN)
    parts, at = [], 0
    for found in pattern.finditer(text):
        parts += [words(text[at : found.start()]), _token(found.groupdict(), names)]
        at = found.end()
    return "".join([*parts, words(text[at:])])


def _token(g: Mapping[str, str | None], names: Sequence[str]) -> str:
    times = tag("span", "·\u200b", class_="times")  # a line may end here
    if g["column"]:
        return tag("span", words(g["column"]), class_="column")
    if g["power"]:
        inner = g["power"][1:-1] if g["power"].startswith("(") else g["power"]
        return tag("sup", typeset(inner.replace("-", "−"), names))
    if g["mantissa"]:
        return f"{words(g['mantissa'])}{times}10{tag('sup', str(int(g['exponent'] or 0)).replace('-', '−'))}"
    if g["word"]:
        return words(g["word"]) + tag("sub", words(g["index"]))
    if g["level"]:
        return tag("sub", words(g["level"]), class_="level")
    if g["letter"]:
        return tag("i", words(g["letter"])) + (tag("sub", words(g["sub"])) if g["sub"] else "")
    return times if g["times"] else "−"


def _shares_note(explanation: Mapping[str, Any]) -> str:
    shares = explanation.get("shares") or ()
    if not shares:
        return ""
    top = max(shares, key=lambda s: s["share"])
    return words(f"Over all rows, {percent(top['share'])} of the time is {top['term']}.")


def _shares(shares: Sequence[Mapping[str, Any]]) -> str:
    """One bar of all terms, and what each is."""
    shown = sorted((s for s in shares if s["share"] > 0), key=lambda s: -s["share"])
    if not shown:
        return ""
    looks = [_fade(k) for k in range(len(shown))]
    parts = [
        tag(
            "span",
            tag("b", words(f"{s['term']} {percent(s['share'])}"))
            if s["share"] >= WIDE_ENOUGH * (len(s["term"]) + 7)
            else "",
            class_="pale" if k > 1 else None,
            style=f"flex:{s['share']:.5f} 1 0;{look}",
        )
        for k, (s, look) in enumerate(zip(shown, looks, strict=True))
    ]
    rows = [
        cells([tag("i", class_="swatch term", style=look) + words(s["term"]), percent(s["share"]), words(s.get("says") or "")], ["", "n", "wrap soft"])
        for s, look in zip(shown, looks, strict=True)
    ]  # fmt: skip
    return tag("div", *parts, class_="stack") + framed(["", "share", ""], ["", "n", "wrap soft"], rows, "terms")


def _fade(k: int) -> str:
    """The colour of the k-th largest term: paler the smaller it is."""
    return f"--c:color-mix(in oklab,var(--forward) {max(100 - 18 * k, 28)}%,var(--paper))"


# ------------------------------------------------------------------------------------------- how far to trust it


def _judged(found: Document, cloud: Cloud, unit: str) -> str:
    if not cloud.points:
        return ""
    what = (found.get("split") or {}).get("column") or "devices"
    keys = charts.swatches(cloud, what)
    return columns(
        section("Predicted and measured", _cloud_note(found), keys + charts.scatter(cloud, unit)),
        section("What is left over", _left_note(cloud), keys + charts.residuals(cloud, unit) + charts.by_group(cloud, what)),
    )  # fmt: skip


def _cloud_note(found: Document) -> str:
    best = best_model(found)
    held = share_of(best.get("coverage_90_percent")) if best else ""
    lines = f"; whiskers: intervals of 90 %, of which {held} hold" if held else "; whiskers: intervals of 90 %"
    return f"A dot a row that the fit had not seen{lines}. Shaded: within 10 %."


def _left_note(cloud: Cloud) -> str:
    errors = [p.error for p in cloud.points]
    middle = sorted(errors)[len(errors) // 2]
    within = sum(abs(e) <= charts.BAND for e in errors) / len(errors)
    return f"Predicted over measured, less one: {percent(within)} of the rows within 10 %, the median is {minus(percent(middle, signed=True))}."


def _tip(point: Mapping[str, Any], found: Document, unit: str) -> list[Any]:
    """What is shown where the pointer is on a row."""
    off = percent(point["predicted"] / point["measured"] - 1, signed=True) if point["measured"] else ""
    what = (found.get("split") or {}).get("column") or "devices"
    rows = [
        ["measured", amount(point["measured"], unit)],
        ["predicted", amount(point["predicted"], unit)],
        ["90 % interval", f"{amount(point['low'], unit)} – {amount(point['high'], unit)}"],
        ["error", minus(off)],
        [str(what), str(point["group"])],
    ]
    return [f"row {point['row']}", rows]


def _models(found: Document) -> str:
    """All models, the closest first, the trusted one in bold."""
    models = ranked(found)
    if not models:
        return ""
    longest = max(m["mape_percent"] for m in models) or 1.0
    best = best_model(found)
    heads = ["", "", "mean error", "half within", "90 % intervals hold", "fit", ""]
    classes = ["", "wide", "n", "n", "n", "n", "soft"]
    body = []
    for m in models:
        mine = m is best
        fit_s = m.get("fit_s")
        body.append(
            cells(
                [
                    tag("b" if mine else "span", words(m["name"])),
                    bar(m["mape_percent"] / longest, main=mine),
                    tag("b" if mine else "span", share_of(m["mape_percent"])),
                    share_of(m.get("median_ape_percent")),
                    share_of(m.get("coverage_90_percent")),
                    "" if fit_s is None else seconds(fit_s),
                    "best that explains" if mine else "" if m["explainable"] else "no formula",
                ],
                classes,
            )
        )
    return framed(heads, classes, body, "bars")


def _curve_note(found: Document) -> str:
    return "The same held-out rows, from more and more of the others." if len(found.get("learning_curve") or ()) > 1 else ""  # fmt: skip


# -------------------------------------------------------------------------------------------------------- effects


def _effects_note(explanation: Mapping[str, Any]) -> str:
    effects = explanation.get("effects") or ()
    if not effects:
        return ""
    kinds = any(e.get("levels") for e in effects)
    return "What becomes of the time when a number doubles, all else equal" + ("; of a kind, level by level." if kinds else ".")  # fmt: skip


def _effects(effects: Sequence[Mapping[str, Any]]) -> str:
    """A row an input on one axis of factors: 2^elasticity for a number, a dot a level for a kind; the strongest first."""
    if not effects:
        return ""
    ordered = sorted(effects, key=lambda e: -_strength(e))
    ends = [v for e in ordered for v in _doublings(e)]
    low, high = min([-REACH, *ends]), max([REACH, *ends])
    axis = tag("div", *(tag("span", label, style=f"left:{_at(v, low, high)}") for v, label in ((-1, "½×"), (0, "1×"), (1, "2×"))), class_="track")  # fmt: skip
    classes = ["", "wide", "n", "n soft"]
    head = tag("thead", cells(["", axis, "time", "between"], classes, "th"))
    rows = [_effect(e, low, high, classes) for e in ordered]
    return tag("div", tag("table", head, tag("tbody", *rows), class_="bars effects"), class_="scroll")


def _doublings(effect: Mapping[str, Any]) -> list[float]:
    """What an effect covers on the axis, in doublings of the time."""
    levels = effect.get("levels") or {}
    numbers = [effect.get(k) for k in ("elasticity", "low", "high")]
    return [math.log2(f) for f in levels.values() if f > 0] or [float(v) for v in numbers if v is not None]


def _strength(effect: Mapping[str, Any]) -> float:
    """How much an input matters, in doublings of the time."""
    if effect.get("levels"):
        ends = _doublings(effect)
        return max(ends, default=0.0) - min(ends, default=0.0)
    return abs(float(effect.get("elasticity") or 0.0))


def _at(value: float, low: float, high: float) -> str:
    return f"{100 * (value - low) / (high - low):.2f}%"


def _effect(effect: Mapping[str, Any], low: float, high: float, classes: Sequence[str]) -> str:
    name = words(effect["column"])
    guides = "".join(tag("i", class_=c, style=f"left:{_at(v, low, high)}") for v, c in ((-1, "half"), (0, "one"), (1, "twice")))  # fmt: skip
    levels = effect.get("levels") or {}
    if levels:
        dots = (
            tag("i", class_="dot", title=f"{level}: {ratio(f)}", style=f"left:{_at(math.log2(f), low, high)}")
            for level, f in levels.items()
            if f > 0
        )
        said = ", ".join(f"{words(level)} {ratio(f)}" for level, f in sorted(levels.items(), key=lambda v: -v[1]))
        row = cells([name, tag("div", guides, *dots, class_="track"), said], [*classes[:2], "wrap"])
        return row.replace('<td class="wrap">', '<td class="wrap" colspan="2">')
    e, a, b = (effect.get(k) for k in ("elasticity", "low", "high"))
    if e is None:
        return cells([name, tag("div", guides, class_="track"), "", ""], classes)
    dot = tag("i", class_="dot", style=f"left:{_at(e, low, high)}")
    spread, said = "", ""
    if a is not None and b is not None:
        spread = tag("i", class_="whisker", style=f"left:{_at(a, low, high)};width:{100 * (b - a) / (high - low):.2f}%")
        said = f"{ratio(2**a)} – {ratio(2**b)}"
    return cells([name, tag("div", guides, spread, dot, class_="track"), tag("b", ratio(2**e)), said], classes)


def _corrections_note(explanation: Mapping[str, Any]) -> str:
    return "Small factors on the formula's time, learned from what it leaves over; 1× where nothing was measured." if explanation.get("corrections") else ""  # fmt: skip


def _corrections(found: Sequence[Mapping[str, Any]]) -> str:
    """A row a factor of one, two or three columns, and how far it reaches."""
    known = [c for c in found if c["factor_low"] > 0 and c["factor_high"] > 0]
    if not known:
        return ""
    far = max(abs(math.log(f)) for c in known for f in (c["factor_low"], c["factor_high"])) or 1.0
    classes = ["wrap", "wide", "n"]
    rows = []
    for c in sorted(known, key=lambda c: -math.log(c["factor_high"] / c["factor_low"])):
        a, b = math.log(c["factor_low"]), math.log(c["factor_high"])
        run = tag("i", class_="run", style=f"left:{_at(a, -far, far)};width:{50 * (b - a) / far:.2f}%")
        one = tag("i", class_="one", style="left:50%")
        said = f"{ratio(c['factor_low'])} – {ratio(c['factor_high'])}"
        rows.append(cells([words(" × ".join(c["columns"])), tag("div", run, one, class_="track"), said], classes))
    return framed(["", "", "between"], classes, rows, "bars")


# --------------------------------------------------------------------------------------------------------- footer


def _footer(found: Document) -> str:
    roles: dict[str, list[str]] = {}
    for column, role in (found.get("roles") or {}).items():
        roles.setdefault(str(role), []).append(str(column))
    blocks = [
        _listed("How the columns were read", (tag("b", words(r)) + " " + words(", ".join(c)) for r, c in roles.items())),
        _listed("Left out", (tag("b", words(v["column"])) + " " + words(v["why"]) for v in found.get("left_out") or ())),
        _listed("Notes", (words(n) for n in found.get("notes") or ())),
    ]  # fmt: skip
    there = tag("div", *blocks, class_="read") if any(blocks) else ""
    rows = f"{count(found['rows'])} rows of {words(found['data'])}. " if found.get("rows") else ""
    return tag("footer", there, made(f"{rows}{ERROR}"))


def _listed(title: str, items: Iterable[str]) -> str:
    there = [tag("li", i) for i in items]
    return tag("div", tag("h3", words(title)), tag("ul", *there)) if there else ""
