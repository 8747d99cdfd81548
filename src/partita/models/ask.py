"""Ask: what if? And which batch size on how many devices, under a deadline or a price?

A question names some inputs; the others are those of a typical row: each at its commonest value among the rows that agree
best with what is named. Where the device count is always the product of replicas, slices and stages, it stays so.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from partita.errors import Infeasible
from partita.models.capture.inputs import text_of
from partita.models.capture.roles import BATCHES, Role, words
from partita.models.capture.table import Table, TableError
from partita.models.model import Model
from partita.models.skeleton import Form, step_of
from partita.nouns.graph import FloatArray

UNITS = {"s": 1.0, "sec": 1.0, "seconds": 1.0, "ms": 1e-3, "msec": 1e-3, "milliseconds": 1e-3, "us": 1e-6, "min": 60.0, "minutes": 60.0, "h": 3600.0, "hours": 3600.0}  # fmt: skip
BEYOND = 4  #: candidates reach this factor beyond the largest count measured


@dataclass(frozen=True)
class Question:
    """The best batch size and device count for a given number of samples."""

    samples: float
    deadline_s: float | None = None
    price_per_device_hour: float | None = None


def parse_inputs(told: Sequence[str], table: Table, roles: Mapping[str, Role]) -> dict[str, float | str]:
    """Column -> value from ["batch=256", "devices=16"]: a column's name, its role, or a word of its name that no other has.

    Raises TableError for names that fit no column or several, and for text where a number belongs.
    """
    found: dict[str, float | str] = {}
    for pair in told:
        name, equals, value = pair.rpartition("=")
        if not equals or not name:
            raise TableError(f"{pair!r} is no COLUMN=VALUE", hint=f"for example --what-if '{next(iter(roles))}=2'")
        column = _column(name, roles)
        if table.is_text(column):
            found[column] = value
            continue
        try:
            found[column] = float(value)
        except ValueError as error:
            raise TableError(f"{column!r} is a number, {value!r} is none", hint="give a number") from error
        if not 0 <= float(found[column]) < np.inf:
            raise TableError(f"{column!r} cannot be {value}", hint="give a number from 0 on")
    return found


def _column(name: str, roles: Mapping[str, Role]) -> str:
    if name in roles:
        return name
    by_role = [
        n
        for n, r in roles.items()
        if r.rstrip("?") == name or (name == "batch" and r in ("batch", "local_batch", "batch?"))
    ]
    by_word = [n for n in roles if set(words(name)) and set(words(name)) <= set(words(n))]
    for fits in (by_role, by_word):
        if len(fits) == 1:
            return fits[0]
    hint = f"name one of {', '.join(map(repr, roles))}"
    both = by_role or by_word
    fact = f"{name!r} may be {' or '.join(map(repr, both))}" if both else f"no input is named {name!r}"
    raise TableError(fact, hint=hint)


def typical(table: Table, roles: Mapping[str, Role], named: Mapping[str, float | str]) -> dict[str, float | str]:
    """One row: what is named, and the commonest values of the rows nearest to it."""
    near = np.ones(len(table), bool)
    for name, value in named.items():
        cells = text_of(table, name)
        same = cells == (value if isinstance(value, str) else f"{value:g}")
        near = near & same if (near & same).any() else near
    row: dict[str, float | str] = {}
    for name in roles:
        values, counts = np.unique(table.columns[name][near], return_counts=True)
        middle = values[int(np.argmax(counts))]
        row[name] = str(middle) if table.is_text(name) else float(middle)
    return _consistent({**row, **named}, named, table, roles)


def _consistent(
    row: dict[str, float | str], named: Mapping[str, float | str], table: Table, roles: Mapping[str, Role]
) -> dict[str, float | str]:
    """Keep devices = replicas x slices x stages where every row of the table does."""
    total = [n for n, r in roles.items() if r == "devices"]
    parts = [n for n, r in roles.items() if r in ("data", "tensor", "pipeline")]
    if len(total) != 1 or not parts or not np.array_equal(_product(table, parts), table.numbers(total[0])):
        return row
    product = float(np.prod([float(row[n]) for n in parts]))
    if total[0] not in named:
        return {**row, total[0]: product}
    free = [n for n in parts if n not in named]
    free = [n for n in free if roles[n] == "data"] or free
    others = product / float(row[free[0]]) if free else product
    fits = float(row[total[0]]) / others
    if fits < 1 or fits != round(fits) or (not free and product != row[total[0]]):
        told = " x ".join(f"{n} {row[n]:g}" for n in parts)
        raise TableError(
            f"{row[total[0]]:g} devices are not {told}", hint="name the parts too, so that they multiply to it"
        )
    return {**row, free[0]: fits} if free else row


def _product(table: Table, names: Sequence[str]) -> FloatArray:
    found: FloatArray = np.prod([table.numbers(n) for n in names], axis=0)
    return found


def as_table(rows: Sequence[Mapping[str, float | str]], like: Table) -> Table:
    """Rows as a table with the column types of another. Raises TableError where a column is missing."""
    missing = [n for n in like.names if any(n not in r for r in rows)]
    if missing:
        raise TableError(f"the rows lack {', '.join(map(repr, missing))}", hint="give every input of the model")
    words = [n for n in like.names if not like.is_text(n) and any(isinstance(r[n], str) for r in rows)]
    if words:
        raise TableError(
            f"{', '.join(map(repr, words))} must be numbers", hint="as in the rows that the model was fitted to"
        )
    return Table({n: np.array([r[n] if not like.is_text(n) else str(r[n]) for r in rows]) for n in like.names})


def beyond(row: Mapping[str, float | str], table: Table) -> str:
    """A sentence where a row lies outside what was measured; "" where it lies inside."""
    out = []
    for name, value in row.items():
        if isinstance(value, str):
            if value not in set(text_of(table, name).tolist()):
                out.append(f"{name} = {value} was never measured")
            continue
        seen = table.numbers(name)
        if not seen.min() <= value <= seen.max():
            out.append(f"{name} = {value:g} lies outside {seen.min():g} to {seen.max():g}")
    return "; ".join(out)


def unit_s(target: str) -> float:
    """Seconds in the unit that a target's name tells; 1 where it tells none.

    >>> unit_s("iteration time (ms)"), unit_s("step_s")
    (0.001, 1.0)
    """
    return next((UNITS[w] for w in reversed(words(target)) if w in UNITS), 1.0)


def advise(
    model: Model,
    table: Table,
    roles: Mapping[str, Role],
    form: Form,
    target: str,
    named: Mapping[str, float | str],
    question: Question,
) -> dict[str, Any]:
    """Every batch size and device count, measured or up to BEYOND times beyond, for the samples of the question.

    The best: with a deadline, the fewest device-hours (or the least cost) that keep it; with a price alone, the least cost;
    else the shortest time. Raises Infeasible where no candidate keeps the deadline, with the smallest that would.
    """
    batch = [n for n, r in roles.items() if r in BATCHES and r != "micro_batch"][:1]
    devices = ([n for n, r in roles.items() if r == "devices"] or [n for n, r in roles.items() if r == "data"])[:1]
    asked = as_table(_options(table, roles, named, batch, devices), table)
    step, predicted = step_of(asked, roles, form), model.predict(asked)
    steps = question.samples * (1.0 if form.per_epoch else 1.0 / (step.batch * step.replicas))
    seconds = predicted.time * unit_s(target) * steps
    hours = seconds / 3600 * step.devices
    names = [*batch, *devices]
    rows = [
        _advice({n: float(asked.numbers(n)[i]) for n in names}, float(t), float(seconds[i]), float(hours[i]), question)
        for i, t in enumerate(predicted.time)
    ]
    best = _best(rows, question)
    return {"question": _asked(question), "rows": rows, "best": best, "sentence": _sentence(rows[best], names)}


def _options(
    table: Table,
    roles: Mapping[str, Role],
    named: Mapping[str, float | str],
    batch: Sequence[str],
    devices: Sequence[str],
) -> list[dict[str, float | str]]:
    """The rows to choose from. Raises TableError where there are none."""
    rows = []
    for b in _candidates(table, batch, named):
        for d in _candidates(table, devices, named):
            with contextlib.suppress(TableError):
                rows.append(typical(table, roles, {**named, **b, **d}))
    if not rows:
        raise TableError(
            "no batch size and device count to choose from", hint="a batch or a device column must be among the inputs"
        )
    return rows


def _candidates(table: Table, names: Sequence[str], named: Mapping[str, float | str]) -> list[dict[str, float | str]]:
    """Values measured, and doublings beyond them; one empty choice where the column is named or not there."""
    if not names or names[0] in named:
        return [{}]
    seen = sorted(set(table.numbers(names[0]).tolist()))
    more = [seen[-1] * 2**k for k in range(1, int(np.log2(BEYOND)) + 1)]
    return [{names[0]: v} for v in (*seen, *more)]


def _advice(
    row: Mapping[str, float | str], predicted: float, total_s: float, hours: float, q: Question
) -> dict[str, Any]:
    cost = {} if q.price_per_device_hour is None else {"cost": hours * q.price_per_device_hour}
    fits = q.deadline_s is None or total_s <= q.deadline_s
    told = {"inputs": dict(row), "predicted": predicted, "total_s": total_s, "device_hours": hours}
    return {**told, **cost, "fits": fits}


def _best(rows: Sequence[Mapping[str, Any]], q: Question) -> int:
    fitting = [i for i, r in enumerate(rows) if r["fits"]]
    if not fitting:
        least = min(float(r["total_s"]) for r in rows)
        raise Infeasible(
            f"no candidate keeps {q.deadline_s:g} s; the fastest takes {least:.4g} s",
            constraint="deadline",
            relaxation=f"allow {least:.4g} s, or more devices",
        )
    by = "device_hours" if q.deadline_s is not None or q.price_per_device_hour is not None else "total_s"
    return min(fitting, key=lambda i: (rows[i][by], rows[i]["total_s"]))


def _asked(q: Question) -> str:
    deadline = f" within {q.deadline_s:g} s" if q.deadline_s is not None else ""
    price = f" at {q.price_per_device_hour:g} a device-hour" if q.price_per_device_hour is not None else ""
    return f"{q.samples:g} samples{deadline}{price}"


def _sentence(best: Mapping[str, Any], names: Sequence[str]) -> str:
    chosen = ", ".join(f"{n} = {best['inputs'][n]:g}" for n in names)
    cost = f", cost {best['cost']:.4g}" if "cost" in best else ""
    return f"{chosen}: {best['total_s']:.4g} s, {best['device_hours']:.4g} device-hours{cost}"
