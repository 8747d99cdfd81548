"""Derived columns: numbers that other columns determine, so that no formula counts one quantity twice.

A parameter count beside layers and widths, tokens beside batch and sequence, the inner width of a layer beside the outer:
where the logarithm of a column is a linear function of those of a few others in all rows, whatever it says has been said.
Only columns that may be composed of others are tried: counts of parameters, operations, activations or tokens, names that
say nothing, and of several names of one family (hidden, ffn hidden) all but the first. Layers and widths that happen to grow
together stay: twice the layers and twice the width are more work than either.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from partita.models.capture.roles import BATCHES, Role, family
from partita.models.capture.table import Table
from partita.nouns.graph import FloatArray

ALIKE = 0.99  #: share of a column's variance that others must explain: what they leave hardly moves a time
MOST = 4  #: columns that may determine another: more than four explain anything in a small table


def derived(table: Table, roles: Mapping[str, Role], given: Sequence[str] = ()) -> dict[str, tuple[str, ...]]:
    """Column -> the columns that determine it; `given` ones mean what the user says. O(columns^2 rows).

    >>> t = Table({"layers": np.array([2.0, 4, 8, 2]), "width": np.array([8.0, 8, 16, 16]), "x": np.array([128.0, 256, 2048, 512])})
    >>> derived(t, {"layers": "size", "width": "size", "x": "size"})
    {'x': ('width', 'layers')}
    """
    numbers = [n for n, r in roles.items() if r in ("size", *BATCHES) and np.all(table.numbers(n) > 0)]
    logs = {n: np.log(table.numbers(n)) for n in numbers}
    logs = {n: x - x.mean() for n, x in logs.items()}
    found: dict[str, tuple[str, ...]] = {}
    for name in sorted((n for n in numbers if roles[n] == "size" and n not in given), key=_order):
        others = [n for n in numbers if n != name and n not in found and (_composed(name) or family(n) is family(name))]
        by = _determined(logs, name, others)
        if by:
            found[name] = by
    return found


def _composed(name: str) -> bool:
    known = family(name)
    return known is None or known.composed


def _order(name: str) -> tuple[int, int]:
    """What is tried first: compositions, then unknown names, then the others; longer names before shorter."""
    known = family(name)
    return (2 if known is not None and not known.composed else int(known is None), -len(name))


def _determined(logs: Mapping[str, FloatArray], name: str, others: Sequence[str]) -> tuple[str, ...]:
    """The few columns that explain one, the best first; none where they leave more than 1 - ALIKE of it."""
    target, chosen = logs[name], list[str]()
    rest, whole = target, float(target @ target)
    for _ in range(MOST):
        open_ = [n for n in others if n not in chosen]
        if not open_:
            return ()
        chosen.append(max(open_, key=lambda n: _alike(logs[n], chosen, logs, rest)))
        basis = np.stack([logs[n] for n in chosen], axis=1)
        rest = target - basis @ np.linalg.lstsq(basis, target, rcond=1e-9)[0]
        if float(rest @ rest) <= (1 - ALIKE) * whole:
            return tuple(chosen)
    return ()


def _alike(x: FloatArray, chosen: Sequence[str], logs: Mapping[str, FloatArray], rest: FloatArray) -> float:
    """The share of what is left that one more column explains, beside those chosen."""
    if chosen:
        basis = np.stack([logs[n] for n in chosen], axis=1)
        x = x - basis @ np.linalg.lstsq(basis, x, rcond=1e-9)[0]
    length = float(x @ x)
    return float(x @ rest) ** 2 / length if length > 1e-9 else 0.0
