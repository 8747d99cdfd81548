"""Atoms that may as well stand beside a neighbour: a smaller model, no placement of which is worse than the whole's best.

Atom a hangs on atom u by a net of the two alone. Where on every device that pays

    work(a) + cost of a's other nets  <=  cost of that net                                               (for every class)

moving a from wherever it is to u loads no device more: u's device no longer pays for the net between them, nor does the one
that a leaves; a third that shares a net with a pays for it already. Weights beside their readers, and outputs beside their
makers, are such. A device that pays for nothing has nothing to save: there the two count as u alone, which makes the small
model's loads lower bounds. So that they stay close, a is next to nothing there, or u alone takes too long. Memory is left
out of account.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from partita.nouns.graph import IntArray
from partita.placement.plan.load import LoadModel

LOST = 1e-3  #: of the known value: work of an atom that may be left out on devices that pay for nothing
MOST_PASSES = 40  #: each absorbs at least one atom; chains take one for each of their atoms at worst


def absorbed(model: LoadModel, known_s: float) -> tuple[LoadModel, IntArray]:
    """(the smaller model, [atoms] its atom for each of the given model's). Rule "sum".

    To every placement of the given model that is better than `known_s` belongs one of the smaller (each atom where the atom that absorbed it is) whose
    largest load is the same or less. O(passes x (pins + atoms)).
    """
    label = np.arange(model.atoms)
    if not model.class_pays.any():
        return model, label
    for _ in range(MOST_PASSES):
        beside = _pass(model, known_s)
        if (beside == np.arange(model.atoms)).all():
            break
        work = model.work_s.copy()
        gone = beside != np.arange(model.atoms)
        work[np.ix_(gone, ~model.class_pays)] = 0.0
        step = np.unique(beside, return_inverse=True)[1].reshape(-1).astype(np.int64)
        model, label = replace(model, work_s=work).merged(step), step[label]
    return model, label


def _pass(model: LoadModel, known_s: float) -> IntArray:
    """[atoms] the atom that absorbs each, itself where none does. What absorbs in this pass is not absorbed in it before:
    its work and nets are no longer the model's; where what it absorbed it is absorbed later, so is that."""
    beside, absorbs = np.arange(model.atoms), np.zeros(model.atoms, np.bool_)
    size = np.diff(model.nets.start)
    work, free = model.work_s[:, model.class_pays].max(axis=1), model.work_s[:, ~model.class_pays]
    for a in range(model.atoms):
        nets = model.nets_of.row(a)
        if absorbs[a] or not len(nets):
            continue
        cost = model.cost_s[nets]
        k = int(np.where(size[nets] == 2, cost, -1.0).argmax())
        if size[nets[k]] == 2 and work[a] + float(np.delete(cost, k).sum()) <= cost[k]:
            pins = model.nets.row(int(nets[k]))
            u = int(beside[pins[0] if pins[1] == a else pins[1]])
            if ((free[u] >= known_s) | (free[a] <= LOST * known_s)).all():
                beside[a], absorbs[u] = u, True
    return beside
