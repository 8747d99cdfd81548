"""The generic expression: a sum of powers of the job's own parameters, scaled by powers of what it runs on.

    t = ( sum_i a_i x_i^p_i ) * prod_j s_j^q_j + C

x_i are intrinsic (layers, width, batch, kernel, one indicator for each level of a kind), s_j extrinsic (devices, replicas,
slices, stages, bandwidth). The constants are found by differential evolution with L1 or L2 regularisation. It knows nothing
of how training works; that is its use: it can be wrong in no interesting way, and it fits what is no training at all.
Reconstructed from the abstracts of Kavarakuntla 2023 and arXiv 2305.11665.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from partita.models.capture.inputs import Parameters, Scale
from partita.models.capture.roles import COUNTING, Role
from partita.models.capture.table import Table
from partita.models.expression import Expression, Term
from partita.nouns.graph import FloatArray

EXTRINSIC = (*COUNTING, "rate", "other")


def generic(table: Table, roles: Mapping[str, Role], scale: Scale, parameters: Parameters) -> Expression:
    """The expression over the rows of `table`; the parameters handed out depend on roles and scale only."""
    one = np.ones(len(table))
    scaling = [
        (parameters.add(f"scale^{n}", 0.0, 1.0), scale.log(table, n)) for n, r in roles.items() if r in EXTRINSIC
    ]
    terms = [_term("base", one, [(parameters.add("base", 0.0, 3.0), one), *scaling])]
    for name, role in roles.items():
        if role == "kind":
            for level, x in scale.indicators(table, name).items():
                label = f"{name}={level}"
                terms.append(_term(label, x, [(parameters.add(label, 0.0, 3.0), one), *scaling]))
        elif role not in (*EXTRINSIC, "derived"):
            power = (parameters.add(f"{name}^", 0.5, 1.0), scale.log(table, name))
            terms.append(_term(name, one, [(parameters.add(name, 0.0, 3.0), one), power, *scaling]))
    terms.append(_term("C", one, [(parameters.add("C", 0.0, 3.0), one)]))
    return Expression(tuple(terms), (-1,))


def _term(name: str, phi: FloatArray, entries: list[tuple[int, FloatArray]]) -> Term:
    return Term(name, phi, np.stack([x for _, x in entries], axis=1), np.array([i for i, _ in entries], np.int64))
