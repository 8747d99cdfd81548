"""Lower bounds on the largest load that look at work and memory only, not at who talks to whom.

For the bound that does, see min_cut.
"""

from __future__ import annotations

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import coo_matrix

from partita.nouns.graph import FloatArray
from partita.placement.plan.load import LoadModel

MOST_CELLS = 200_000  # atoms x classes up to which the linear program is solved (about a second)


def work_bound_s(model: LoadModel) -> float:
    """All the work shared out evenly, tasks cut into pieces, memory respected: the linear relaxation without nets.

    Its dual is evaluated: for prices m_c of a second and n_c of a byte on a device of class c, with sum over devices of m = 1,

        T >= sum over atoms of min over c (m_c work + n_c bytes) - sum over devices of n room

    holds whatever the prices, so that the solver's rounding cannot harm. O(atoms) beside the linear program.
    """
    prices = _prices(model)
    return max(_priced(model, m, v) for m, v in prices)


def _priced(model: LoadModel, second: FloatArray, byte: FloatArray) -> float:
    """The dual bound for given prices of a class; prices are scaled to be allowed."""
    total = float(second @ model.class_size)
    if not total > 0:
        return 0.0
    second, byte = second / total, byte / total
    room = np.array([model.room_bytes[model.class_of == c][0] for c in range(len(second))])
    byte = np.where(np.isfinite(room), byte, 0.0)
    work = np.where(np.isfinite(model.work_s), model.work_s, 0.0) * second + model.memory_bytes[:, None] * byte
    each = np.where(np.isfinite(model.work_s), work, np.inf).min(axis=1)
    return float(each.sum() - (byte * model.class_size) @ np.where(np.isfinite(room), room, 0.0))


def _prices(model: LoadModel) -> list[tuple[FloatArray, FloatArray]]:
    """Prices to try: even ones, one class priced against another where there are two, and the linear program's."""
    classes = model.work_s.shape[1]
    nothing = np.zeros(classes)
    prices = [(np.ones(classes), nothing)]
    if classes == 2:
        both = np.isfinite(model.work_s).all(axis=1) & (model.work_s > 0).all(axis=1)
        ratio = np.unique(model.work_s[both, 0] / model.work_s[both, 1])
        ratio = ratio[:: max(1, len(ratio) // 256)]
        prices += [(np.array([1.0, r]), nothing) for r in ratio.tolist()]
    if classes > 1 and model.work_s.size <= MOST_CELLS:
        prices += _solved(model)
    return prices


def _solved(model: LoadModel) -> list[tuple[FloatArray, FloatArray]]:
    """Optimal prices from the linear program, or none where the solver gives up."""
    n, classes = model.work_s.shape
    a, c = np.nonzero(np.isfinite(model.work_s))
    cells = np.arange(len(a))
    unit = float(np.where(np.isfinite(model.work_s), model.work_s, np.inf).min(axis=1).sum()) or 1.0
    room = np.array([model.room_bytes[model.class_of == k][0] for k in range(classes)]) * model.class_size
    grain = max(float(model.memory_bytes.sum()), 1.0)
    limited = np.flatnonzero(np.isfinite(room))
    row = np.searchsorted(limited, c)
    held = np.isin(c, limited)
    rows = np.concatenate([c, np.arange(classes), classes + row[held]])
    columns = np.concatenate([cells, np.full(classes, len(a)), cells[held]])
    values = np.concatenate(
        [model.work_s[a, c] / unit, -model.class_size.astype(float), model.memory_bytes[a[held]] / grain]
    )
    upper = coo_matrix((values, (rows, columns)), shape=(classes + len(limited), len(a) + 1))
    whole = coo_matrix((np.ones(len(a)), (a, cells)), shape=(n, len(a) + 1))
    cost = np.zeros(len(a) + 1)
    cost[-1] = 1.0
    answer = linprog(
        cost, A_ub=upper, b_ub=np.concatenate([np.zeros(classes), room[limited] / grain]), A_eq=whole, b_eq=np.ones(n)
    )
    if answer.status != 0:
        return []
    duals = -np.asarray(answer.ineqlin.marginals, np.float64).clip(max=0.0)
    byte = np.zeros(classes)
    byte[limited] = duals[classes:] * unit / grain
    return [(duals[:classes], np.zeros(classes)), (duals[:classes], byte)]


def pigeonhole_bound_s(model: LoadModel, known_s: float) -> float:
    """Of j n + 1 atoms on n devices, some device holds j + 1: at least the j + 1 smallest of them.

    Taken over the largest atoms, for the devices on which alone a placement better than `known_s` can put them (an atom
    that takes known_s elsewhere is not put there). Valid for every placement better than `known_s`, at most known_s.
    O(atoms log atoms + atoms / n).
    """
    best = 0.0
    for c, n in enumerate(model.class_size.tolist()):
        others = np.delete(model.work_s, c, axis=1)
        bound_here = (others >= known_s).all(axis=1)
        work = np.sort(model.work_s[bound_here, c])[::-1]
        if not len(work):
            continue
        if np.isinf(work[0]):
            return known_s  # an atom that runs nowhere in time: nothing is better
        total = np.concatenate([[0.0], np.cumsum(work)])
        j = np.arange((len(work) - 1) // n + 1)
        best = max(best, float((total[j * n + 1] - total[j * n - j]).max()))
    return min(best, known_s)
