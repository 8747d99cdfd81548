"""Kinds of atoms: what is the same operator in every layer of a network.

Two atoms are of a kind where they take as long on every class of devices, and their nets cost the same and have pins that
take as long: one step of colour refinement (Weisfeiler and Leman 1968). Numbers that differ by rounding count as the same.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable

import numpy as np

from partita.nouns.graph import IntArray
from partita.placement.plan.load import LoadModel

GRAIN = 1e-7  #: of all work: times that differ by less may count as the same


def atom_kinds(model: LoadModel) -> IntArray:
    """[atoms] the number of each atom's kind. O(pins log pins)."""
    grain = GRAIN * float(model.work_s.min(axis=1).sum()) or 1.0
    alone = _numbered(tuple(round(s / grain) if np.isfinite(s) else -1 for s in row) for row in model.work_s.tolist())
    cost = [round(c / grain) for c in model.cost_s.tolist()]
    nets = [(c, *sorted(alone[model.nets.row(e)].tolist())) for e, c in enumerate(cost)]
    return _numbered(
        (int(alone[a]), *sorted(nets[e] for e in model.nets_of.row(a).tolist())) for a in range(model.atoms)
    )


def _numbered(keys: Iterable[Hashable]) -> IntArray:
    """Equal keys get equal numbers, from 0 on."""
    numbers: dict[Hashable, int] = {}
    return np.array([numbers.setdefault(k, len(numbers)) for k in keys], np.int64)
