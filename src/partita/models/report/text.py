"""What `partita predict` found, as sentences and as plain text for a terminal.

headline(document)      -> which model, how far off, judged by what; two plain sentences, also the head of the page
amount(0.41, "ms")      -> "410 µs"         a value of the target in the unit that suits it
predict_text(document)  -> the answer first, then the models, the formula and where the time goes
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from partita.page.sheet import many
from partita.page.text import Kind, count, facts, figures, percent, seconds, table

WIDTH = 100  #: characters of a line of prose
MOST_OPTIONS = 12  #: rows of advice on a terminal
MOST_EFFECTS = 6
SAME = 0.005  #: shares below this are not worth a line
_SECONDS = {
    "s": 1.0,
    "sec": 1.0,
    "seconds": 1.0,
    "ms": 1e-3,
    "us": 1e-6,
    "µs": 1e-6,
    "ns": 1e-9,
    "min": 60.0,
    "h": 3600.0,
}

Document = Mapping[str, Any]


# ---------------------------------------------------------------------------------------------------------- words


def named_unit(target: str) -> tuple[str, str]:
    """What a target is and the unit that its name says.

    >>> named_unit("iteration time (ms)"), named_unit("step_s"), named_unit("energy")
    (('iteration time', 'ms'), ('step', 's'), ('energy', ''))
    """
    found = re.fullmatch(r"(.*\S)\s*[(\[]([^()\[\]]+)[)\]]\s*", target)
    if found:
        return found[1], found[2].strip()
    stem, _, last = target.rpartition("_")
    return (stem.replace("_", " "), last) if stem and last in _SECONDS else (target, "")


def amount(value: float, unit: str) -> str:
    """A value of the target, in the unit that suits it where the unit is one of time.

    >>> amount(372.16, "ms"), amount(12400.0, "ms"), amount(1234567.0, ""), amount(0.52, "kWh")
    ('372 ms', '12.4 s', '1,234,567', '0.520 kWh')
    """
    if unit in _SECONDS:
        return seconds(value * _SECONDS[unit])
    return f"{count(value) if abs(value) >= 1000 else figures(value)} {unit}".strip()


def cell(value: Any) -> str:
    """An input as people write it.

    >>> cell(2.0), cell(12288), cell(0.001), cell("adam")
    ('2', '12288', '0.001', 'adam')
    """
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() and abs(value) < 1e15 else f"{value:.6g}"
    return str(value)


def inputs(values: Mapping[str, Any]) -> str:
    """Columns and their values in one line.

    >>> inputs({"batch": 256, "# GPUs": 16})
    'batch 256, # GPUs 16'
    """
    return ", ".join(f"{name} {cell(v)}" for name, v in values.items())


def shared_inputs(rows: Sequence[Mapping[str, Any]]) -> tuple[dict[str, Any], list[str]]:
    """(inputs that all rows share, columns that differ), from rows with "inputs"; one row shares nothing.

    >>> shared_inputs([{"inputs": {"a": 1, "b": 2}}, {"inputs": {"a": 1, "b": 3}}])
    ({'a': 1}, ['b'])
    """
    every = [r["inputs"] for r in rows]
    names = list(dict.fromkeys(n for values in every for n in values))
    alike = [n for n in names if len(every) > 1 and all(n in v and v[n] == every[0][n] for v in every)]
    return {n: every[0][n] for n in alike}, [n for n in names if n not in alike]


def share_of(value_percent: float | None) -> str:
    """A figure in per cent of the document; "" where it is absent."""
    return "" if value_percent is None else percent(value_percent / 100)


def ratio(factor: float) -> str:
    """A factor.

    >>> ratio(1.874), ratio(0.52), ratio(12.3)
    ('1.87×', '0.52×', '12.3×')
    """
    return f"{factor:.2f}×" if factor < 9.995 else f"{figures(factor)}×"


def best_model(document: Document) -> Mapping[str, Any] | None:
    """The row of the explainable model that is trusted."""
    return next((m for m in document.get("models") or () if m["name"] == document.get("best_explainable")), None)


def ranked(document: Document) -> list[Mapping[str, Any]]:
    """The models, the closest first."""
    return sorted(document.get("models") or (), key=lambda m: m["mape_percent"])


def judged(document: Document) -> str:
    """What the models were fitted to and judged by."""
    split = document.get("split")
    if not split:
        return ""
    if split["kind"] == "above":
        return (
            f"Fitted to {many(split['train_rows'], 'row')} with {split['column']} up to {cell(split['value'])}, "
            f"judged by the {many(split['test_rows'], 'row')} above."
        )
    return "Every row was judged by a fit that had not seen it."


def headline(document: Document) -> tuple[str, str]:
    """The result in a sentence, and what it was judged by in another; both plain text."""
    what, unit = named_unit(document["target"])
    best = best_model(document) or next(iter(ranked(document)), None)
    if best is not None:
        off = share_of(best["mape_percent"])
        return f"The {best['name']} model predicts {what} {off} off, on average.", judged(document)
    advice, asked = document.get("advice"), document.get("what_if") or []
    if advice:
        return advice["sentence"], advice["question"]
    if len(asked) == 1:
        return f"{amount(asked[0]['predicted'], unit)}, {between(asked[0], unit)}.", inputs(asked[0]["inputs"])
    if not asked:
        return f"A {document.get('best_explainable') or 'fitted'} model of {what}.", ""
    return f"{_capital(what)} of {many(len(asked), 'configuration')}, predicted.", ""


def told_already(document: Document) -> bool:
    """Whether the headline answers the one question that was asked."""
    return len(document.get("what_if") or ()) == 1 and not document.get("models") and not document.get("advice")


def between(row: Mapping[str, Any], unit: str) -> str:
    """The interval of a prediction."""
    return f"between {amount(row['low'], unit)} and {amount(row['high'], unit)}"


def reliability(document: Document) -> str:
    """How far off half of the rows were, and how often the intervals held."""
    best = best_model(document)
    if best is None:
        return ""
    half, held = share_of(best.get("median_ape_percent")), share_of(best.get("coverage_90_percent"))
    parts = [f"half of the rows within {half}"] if half else []
    parts += [f"{held} inside the 90 % intervals"] if held else []
    text = ", ".join(parts)
    return f"{text[:1].upper()}{text[1:]}." if text else ""


def verdict(document: Document) -> str:
    """How the trusted model stands against the others, also where one of them is better."""
    best, models = best_model(document), ranked(document)
    others = [m for m in models if m is not best]
    if best is None or not others:
        return ""
    if others[0]["mape_percent"] < best["mape_percent"]:
        closer = others[0]
        why = (
            "it was no better on the training rows" if closer["explainable"] else "but it has no formula that says why"
        )
        return f"{_capital(closer['name'])} is closer ({share_of(closer['mape_percent'])}), {why}."
    opponent = next((m for m in others if not m["explainable"]), None)
    if opponent is None:
        return "No other model is closer."
    return f"The best model without a formula, {opponent['name']}, is {share_of(opponent['mape_percent'])} off."


def _capital(name: str) -> str:
    return name[:1].upper() + name[1:]


# ----------------------------------------------------------------------------------------------------------- text


def predict_text(document: Document) -> str:
    """The answer first; absent parts leave no gap."""
    parts = [
        _head(document), _advice(document), _what_if(document), _models(document), _formula(document), _shares(document),
        _effects(document), *(_wrapped(f"note: {n}") for n in document.get("notes") or ()),
    ]  # fmt: skip
    return "\n\n".join(p for p in parts if p)


def _head(document: Document) -> str:
    result, base = headline(document)
    return "\n".join(_wrapped(line) for line in (result, base, reliability(document)) if line)


def _wrapped(text: str) -> str:
    return textwrap.fill(text, WIDTH)


def _models(document: Document) -> str:
    models = ranked(document)
    if not models:
        return ""
    columns: list[tuple[str, Kind]] = [
        ("model", "text"), ("mean error", "share"), ("half within", "share"), ("90 % intervals hold", "share"), ("fit", "s"),
    ]  # fmt: skip
    best = document.get("best_explainable")
    rows = [
        [m["name"] + " *" * (m["name"] == best), *(_part(m.get(k)) for k in ("mape_percent", "median_ape_percent", "coverage_90_percent")), m.get("fit_s")]
        for m in models
    ]  # fmt: skip
    said = verdict(document)
    return table(columns, rows) + (f"\n\n{_wrapped(said)}" if said else "")


def _part(value_percent: float | None) -> float | None:
    return None if value_percent is None else value_percent / 100


def _formula(document: Document) -> str:
    explanation = document.get("explanation") or {}
    if not explanation.get("formula"):
        return ""
    legend = facts((symbol, meaning) for symbol, meaning in explanation.get("legend") or ())
    return "\n\n".join(p for p in (explanation["formula"].rstrip(), legend) if p)


def _shares(document: Document) -> str:
    """A bar a term, the longest 32 characters."""
    found = sorted((document.get("explanation") or {}).get("shares") or (), key=lambda s: -s["share"])
    shown = [s for s in found if s["share"] >= SAME]
    if not shown:
        return ""
    name, longest = max(len(s["term"]) for s in shown), shown[0]["share"]
    lines = [
        f"{s['term']:<{name}}  {percent(s['share']):>6}  {'█' * max(1, round(32 * s['share'] / longest)):<32}  {s.get('says') or ''}".rstrip()
        for s in shown
    ]
    return "Where the time goes\n" + "\n".join(lines)


def _effects(document: Document) -> str:
    """The inputs that matter most, each by what doubling it does."""
    effects = (document.get("explanation") or {}).get("effects") or ()
    known = sorted((e for e in effects if e.get("elasticity") is not None), key=lambda e: -abs(e["elasticity"]))
    if not known:
        return ""
    said = ", ".join(f"{e['column']} {ratio(2 ** e['elasticity'])}" for e in known[:MOST_EFFECTS])
    return _wrapped(f"The time when one input doubles: {said}")


def _what_if(document: Document) -> str:
    asked, unit = document.get("what_if") or (), named_unit(document["target"])[1]
    noted = [_wrapped(f"note: {n}") for n in dict.fromkeys(r.get("note") for r in asked) if n]
    if not asked or told_already(document):
        return "\n".join(noted)
    same, names = shared_inputs(asked)
    columns: list[tuple[str, Kind]] = [*((n, "text") for n in names), ("predicted", "text"), ("between", "text")]
    rows = [
        [*(cell(r["inputs"].get(n, "")) for n in names), amount(r["predicted"], unit), f"{amount(r['low'], unit)} and {amount(r['high'], unit)}"]
        for r in asked
    ]  # fmt: skip
    return "\n".join([*_all_with(same), table(columns, rows), *noted])


def _all_with(same: Mapping[str, Any]) -> list[str]:
    return [_wrapped(f"All with {inputs(same)}")] if same else []


def _advice(document: Document) -> str:
    advice, unit = document.get("advice"), named_unit(document["target"])[1]
    if not advice:
        return ""
    best, rows = advice.get("best"), advice.get("rows") or ()
    same, names = shared_inputs(rows)
    kept = kept_options(advice, MOST_OPTIONS)
    there = [k for k in ("total_s", "device_hours", "cost") if any(r.get(k) is not None for r in rows)]
    titles: dict[str, tuple[str, Kind]] = {
        "total_s": ("in total", "text"), "device_hours": ("device-hours", "text"), "cost": ("cost", "text"),
    }  # fmt: skip
    columns: list[tuple[str, Kind]] = [*((n, "text") for n in names), ("predicted", "text"), *(titles[k] for k in there), ("fits", "text")]  # fmt: skip
    body = [
        [*(cell(rows[k]["inputs"].get(n, "")) for n in names), amount(rows[k]["predicted"], unit), *(option_figure(rows[k], t) for t in there), "best" if k == best else "yes" if rows[k]["fits"] else "no"]
        for k in kept
    ]  # fmt: skip
    rest = [f"({len(rows) - len(kept)} more)"] if len(kept) < len(rows) else []
    head = [] if best_model(document) is None else [_wrapped(advice["question"]), _wrapped(advice["sentence"]), ""]
    return "\n".join([*head, *_all_with(same), *([table(columns, body)] if body else []), *rest])


def kept_options(advice: Mapping[str, Any], most: int) -> list[int]:
    """Numbers of the options to show: the best, then those that fit, then the others, each in the order given."""
    rows, best = advice.get("rows") or (), advice.get("best")
    return sorted(range(len(rows)), key=lambda k: (k != best, not rows[k]["fits"], k))[:most]


def option_figure(row: Mapping[str, Any], key: str) -> str:
    """One of total_s, device_hours and cost; "" where it is absent."""
    value = row.get(key)
    if value is None:
        return ""
    return duration(value) if key == "total_s" else count(value) if abs(value) >= 1000 else figures(value)


def duration(value_s: float) -> str:
    """A time, in hours from two of them on.

    >>> duration(754.0), duration(9000.0), duration(400000.0)
    ('12 min 34 s', '2.50 h', '111 h')
    """
    return f"{figures(value_s / 3600)} h" if value_s >= 7200 else seconds(value_s)
