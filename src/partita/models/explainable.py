"""The explainable models: the generic expression, the skeleton, and the hybrid (the skeleton with a correction).

generic    t = ( sum_i a_i x_i^p_i ) * prod_j s_j^q_j + C                                    generic.py
skeleton   t = compute | launch + exchange + ... as an analytic model of training has it     skeleton.py
hybrid     t = skeleton * exp( sum of small functions of one to three columns )              correction.py
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from partita.models.capture.inputs import Parameters, Scale, scale_of
from partita.models.capture.roles import Role
from partita.models.capture.table import Table
from partita.models.correction import Correction, fit_correction, points_of
from partita.models.expression import Expression
from partita.models.fitting import Fit, Norm, Penalty, evolve, fit
from partita.models.generic import generic
from partita.models.model import Prediction, widening
from partita.models.skeleton import BATCHES, SPREAD, Form, Step, skeleton, started, step_of
from partita.models.splits import Split
from partita.nouns.graph import FloatArray

Kind = Literal["generic", "skeleton"]
STARTS = 3
NORMS: tuple[Norm, ...] = ("l2", "l1")
WEIGHTS = (0.03, 0.1, 0.3, 1.0)


@dataclass(frozen=True)
class Beyond:
    """How much wider intervals have to be for more devices than were ever measured: learned by holding out the largest counts."""

    devices: float = np.inf  #: the most that were measured
    stretch: float = 1.0

    def factor(self, step: Step) -> FloatArray:
        """[rows] what a standard deviation is multiplied by."""
        return np.where(step.devices > self.devices, self.stretch, 1.0)


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
    beyond: Beyond = Beyond()
    explainable: bool = True

    @property
    def name(self) -> str:
        return self.kind

    def expression(self, table: Table) -> Expression:
        return build(self.kind, table, self.roles, self.form, self.scale, Parameters())

    def predict(self, table: Table) -> Prediction:
        log_time, sd = self.log_time(table)
        stretch = self.beyond.factor(step_of(table, self.roles, self.form))
        return Prediction.around(log_time, stretch * self.widen * np.sqrt(sd**2 + self.fit.noise**2))

    def log_time(self, table: Table) -> tuple[FloatArray, FloatArray]:
        """([rows] log t, [rows] its standard deviation from what is not known of the constants)."""
        log_time, jacobian = self.expression(table).log_time(self.fit.theta)
        return log_time, np.sqrt(np.maximum(np.einsum("ij,jk,ik->i", jacobian, self.fit.covariance, jacobian), 0.0))

    def terms(self, table: Table) -> dict[str, FloatArray]:
        """Name of a term -> [rows] what it contributes, in the unit of the target."""
        expression = self.expression(table)
        values = expression.values(self.fit.theta)
        return {t.name: values[:, i] for i, t in enumerate(expression.terms)}


@dataclass(frozen=True, eq=False)
class Hybrid:
    """A formula and the correction of what it leaves over."""

    formula: Formula
    correction: Correction
    widen: float
    name: str = "hybrid"
    explainable: bool = True

    def predict(self, table: Table) -> Prediction:
        log_time, unknown = self.formula.log_time(table)
        more, spread = self.correction.at(points_of(table, self.formula.roles, self.formula.scale)[0])
        # near measured rows the correction has made up for wrong constants: their doubt counts as far as it has faded
        faded = np.minimum(spread**2 / (self.correction.weights.sum() + self.correction.noise), 1.0)
        stretch = self.formula.beyond.factor(step_of(table, self.formula.roles, self.formula.form))
        return Prediction.around(log_time + more, stretch * self.widen * np.sqrt(faded * unknown**2 + spread**2))

    def factor(self, table: Table) -> FloatArray:
        """[rows] what the formula's time is multiplied by."""
        return np.exp(self.correction.at(points_of(table, self.formula.roles, self.formula.scale)[0])[0])


def build(
    kind: Kind, table: Table, roles: Mapping[str, Role], form: Form, scale: Scale, parameters: Parameters
) -> Expression:
    """The expression of a kind over the rows of a table."""
    if kind == "generic":
        return generic(table, roles, scale, parameters)
    return skeleton(table, roles, form, scale, parameters)


def fit_formula(
    kind: Kind,
    table: Table,
    times: FloatArray,
    roles: Mapping[str, Role],
    penalty: Penalty,
    *,
    seed: int,
    form: Form | None = None,
) -> Formula:
    """A formula fitted to rows. Without `form` every reading that the roles leave open is tried, and the best fit kept."""
    forms = [form] if form is not None else open_forms(kind, roles)
    found = [_fit_form(kind, table, times, roles, penalty, seed, f) for f in forms]
    return min(found, key=lambda f: f.fit.cost)


def open_forms(kind: Kind, roles: Mapping[str, Role]) -> list[Form]:
    """The readings that roles leave open: whose samples a batch counts, and whether a time is that of a step."""
    if kind == "generic":
        return [Form()]
    counted = [False, True] if "batch?" in roles.values() and set(SPREAD) & set(roles.values()) else [False]
    timed = [False, True] if set(BATCHES) & set(roles.values()) else [False]
    return [Form(g, e) for e in timed for g in counted]


def _fit_form(
    kind: Kind, table: Table, times: FloatArray, roles: Mapping[str, Role], penalty: Penalty, seed: int, form: Form
) -> Formula:
    scale, parameters = scale_of(table, roles), Parameters()
    expression = build(kind, table, roles, form, scale, parameters)
    mean, sd = started(expression, times, parameters), np.array(parameters.sd)
    chance = np.random.default_rng(seed)
    if kind == "generic":
        starts = [evolve(expression, times, mean, sd, penalty, seed=seed), mean]
    else:
        starts = [mean, *(mean + 0.7 * sd * chance.normal(size=len(mean)) for _ in range(STARTS - 1))]
    found = fit(expression, times, mean, sd, penalty, starts)
    errors = np.log(times) - expression.log_time(found.theta)[0]
    known = Formula(kind, roles, form, scale, parameters, found, penalty)
    unknown = known.log_time(table)[1]
    return replace(known, widen=max(1.0, widening(errors, np.sqrt(unknown**2 + found.noise**2))))


def fit_hybrid(formula: Formula, table: Table, times: FloatArray, *, seed: int) -> Hybrid:
    """The correction of a fitted formula on the rows it was fitted to."""
    points, kinds = points_of(table, formula.roles, formula.scale)
    residual = np.log(times) - formula.log_time(table)[0]
    correction = fit_correction(points, kinds, residual, seed=seed)
    errors, sds = correction.left_out(residual)
    return Hybrid(formula, correction, widening(errors, sds))


def choose_penalty(
    kind: Kind,
    table: Table,
    times: FloatArray,
    roles: Mapping[str, Role],
    splits: Sequence[Split],
    *,
    seed: int,
    tolerance: float = 0.05,
) -> Penalty:
    """The strongest regularisation whose error on the held-out rows is within `tolerance` of the least.

    `splits` hold out the largest device counts where there are several: the error that matters is that of extrapolating.
    """
    first = fit_formula(kind, table, times, roles, Penalty(), seed=seed)
    scored = []
    for penalty in (Penalty(w, n) for n in NORMS for w in WEIGHTS):
        errors = [_held_out(first, table, times, penalty, s) for s in splits]
        scored.append((float(np.mean(np.concatenate(errors))), penalty))
    least = min(e for e, _ in scored)
    return max((p for e, p in scored if e <= (1 + tolerance) * least), key=lambda p: p.weight)


def _held_out(first: Formula, table: Table, times: FloatArray, penalty: Penalty, split: Split) -> FloatArray:
    """[held-out rows] |predicted / measured - 1| of a fit to the other rows, descending from where all rows led."""
    train, scale = table.take(split.train), first.scale
    parameters = Parameters()
    expression = build(first.kind, train, first.roles, first.form, scale, parameters)
    mean, sd = started(expression, times[split.train], parameters), np.array(parameters.sd)
    found = fit(expression, times[split.train], mean, sd, penalty, [first.fit.theta])
    test = build(first.kind, table.take(split.test), first.roles, first.form, scale, Parameters())
    return np.abs(np.exp(np.minimum(test.log_time(found.theta)[0] - np.log(times[split.test]), 5.0)) - 1.0)
