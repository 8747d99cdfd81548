"""Formulas: the three expressions under one roof, with their constants found.

skeleton    t = compute | launch + exchange + ... as an analytic model of training has it     skeleton.py
generic     t = ( sum_i a_i x_i^p_i ) * prod_j s_j^q_j + C                                    generic.py
power law   t = a * prod_i x_i^p_i                                                            power_law.py
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from partita.models.capture.inputs import Parameters, Scale, scale_of
from partita.models.capture.roles import BATCHES, Role
from partita.models.capture.table import Table
from partita.models.expression import Expression
from partita.models.fitting import Fit, Penalty, evolve, fit
from partita.models.generic import generic
from partita.models.model import Prediction, widening
from partita.models.power_law import power_law
from partita.models.skeleton import SPREAD, Form, skeleton, started
from partita.nouns.graph import FloatArray

Kind = Literal["skeleton", "generic", "power law"]
STARTS = 3
GENERATIONS = 150  #: of differential evolution
TIED = 1.25  #: rows that leave a reading open fit the others about as well: then the commonest is taken


@dataclass(frozen=True, eq=False)
class Formula:
    """An expression with its constants found."""

    kind: Kind
    roles: Mapping[str, Role]
    form: Form
    scale: Scale
    parameters: Parameters
    fit: Fit
    penalty: Penalty
    widen: float = 1.0
    drift: Mapping[str, float] = field(default_factory=dict)  #: see `rehearse`
    explainable: bool = True

    @property
    def name(self) -> str:
        return self.kind

    def expression(self, table: Table) -> Expression:
        return build(self.kind, table, self.roles, self.form, self.scale, Parameters())

    def predict(self, table: Table) -> Prediction:
        log_time, sd = self.log_time(table)
        inside = self.widen * np.sqrt(sd**2 + self.fit.noise**2)
        return Prediction.around(log_time, np.hypot(inside, self.beyond(table)))

    def beyond(self, table: Table) -> FloatArray:
        """[rows] the standard deviation that extrapolating adds: the drift of the column in which a row is farthest out."""
        out: FloatArray = np.max(
            [np.zeros(len(table)), *(s * self.scale.outside(table, n) for n, s in self.drift.items())], axis=0
        )
        return out

    def log_time(self, table: Table) -> tuple[FloatArray, FloatArray]:
        """([rows] log t, [rows] its standard deviation from what is not known of the constants)."""
        log_time, jacobian = self.expression(table).log_time(self.fit.theta)
        return log_time, np.sqrt(np.maximum(np.einsum("ij,jk,ik->i", jacobian, self.fit.covariance, jacobian), 0.0))

    def terms(self, table: Table) -> dict[str, FloatArray]:
        """Name of a term -> [rows] what it contributes, in the unit of the target."""
        expression = self.expression(table)
        values = expression.values(self.fit.theta)
        return {t.name: values[:, i] for i, t in enumerate(expression.terms)}


def build(
    kind: Kind, table: Table, roles: Mapping[str, Role], form: Form, scale: Scale, parameters: Parameters
) -> Expression:
    """The expression of a kind over the rows of a table."""
    if kind == "skeleton":
        return skeleton(table, roles, form, scale, parameters)
    return (generic if kind == "generic" else power_law)(table, roles, scale, parameters)


def fit_formula(
    kind: Kind,
    table: Table,
    times: FloatArray,
    roles: Mapping[str, Role],
    penalty: Penalty,
    *,
    seed: int,
    form: Form | None = None,
    starts: int = STARTS,
) -> Formula:
    """A formula fitted to rows, from the priors and from `starts` - 1 points beside them. Without `form` every reading that
    the roles leave open is tried, and the first is kept that fits about as well as the best."""
    forms = [form] if form is not None else open_forms(kind, roles)
    found = [_fit_form(kind, table, times, roles, penalty, seed, f, starts) for f in forms]
    return next(f for f in found if f.fit.cost <= TIED * min(g.fit.cost for g in found))


def open_forms(kind: Kind, roles: Mapping[str, Role]) -> list[Form]:
    """The readings that roles leave open, the commonest first: whose samples a batch counts, whether a time is that of a step."""
    if kind != "skeleton":
        return [Form()]
    counted = (
        [False, True]
        if "batch?" in roles.values() and "batch" not in roles.values() and set(SPREAD) & set(roles.values())
        else [False]
    )
    timed = [False, True] if set(BATCHES) & set(roles.values()) else [False]
    return [Form(g, e) for e in timed for g in counted]


def _fit_form(
    kind: Kind,
    table: Table,
    times: FloatArray,
    roles: Mapping[str, Role],
    penalty: Penalty,
    seed: int,
    form: Form,
    starts: int,
) -> Formula:
    scale, parameters = scale_of(table, roles), Parameters()
    expression = build(kind, table, roles, form, scale, parameters)
    mean, sd = started(expression, times, parameters), np.array(parameters.sd)
    chance = np.random.default_rng(seed)
    if kind == "generic":
        generations = GENERATIONS if starts > 1 else GENERATIONS // 5  # one start: a rehearsal, of which there are many
        begin = [evolve(expression, times, mean, sd, penalty, seed=seed, generations=generations), mean]
    elif kind == "power law":
        begin = [mean]
    else:
        begin = [mean, *(mean + 0.7 * sd * chance.normal(size=len(mean)) for _ in range(starts - 1))]
    found = fit(expression, times, mean, sd, penalty, begin)
    errors = np.log(times) - expression.log_time(found.theta)[0]
    known = Formula(kind, roles, form, scale, parameters, found, penalty)
    unknown = known.log_time(table)[1]
    return replace(known, widen=max(1.0, widening(errors, np.sqrt(unknown**2 + found.noise**2))))
