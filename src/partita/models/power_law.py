"""The power law: one product of powers, what stands where the rows do not support the form of a training step.

    t = a * prod_i x_i^p_i * prod_k factor of a level

It expects nothing: in a direction in which the rows say nothing the time stays as it is.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from partita.models.capture.inputs import Parameters, Scale
from partita.models.capture.roles import Role
from partita.models.capture.table import Table
from partita.models.expression import Expression, Term
from partita.nouns.graph import FloatArray


def power_law(table: Table, roles: Mapping[str, Role], scale: Scale, parameters: Parameters) -> Expression:
    """The expression over the rows of `table`; the parameters handed out depend on roles and scale only."""
    one = np.ones(len(table))
    entries: list[tuple[int, FloatArray]] = [(parameters.add("product", 0.0, 3.0), one)]
    for name, role in roles.items():
        if role == "kind":
            for level, x in scale.indicators(table, name).items():
                entries.append((parameters.add(f"product:{name}={level}", 0.0, 1.0), x))
        elif role != "derived":
            entries.append((parameters.add(f"product^{name}", 0.0, 1.0), scale.log(table, name)))
    design, columns = np.stack([x for _, x in entries], axis=1), np.array([i for i, _ in entries], np.int64)
    return Expression((Term("product", one, design, columns),), (-1,))
