"""What is decided for a table before any model is judged, from training rows alone: how the roles are read, how strongly
constants are held at their priors, and whether the rows support the form of a training step at all.

Everything is decided by foretelling held-out rows (`rehearse`), each fit starting from the priors: what all rows together
would say is not known there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from partita.models.capture.roles import COUNTING, Role, family
from partita.models.capture.table import Table
from partita.models.fitting import Norm, Penalty
from partita.models.formula import Formula, Kind, fit_formula
from partita.models.hybrid import fit_hybrid
from partita.models.rehearse import question, thinned
from partita.models.skeleton import Form
from partita.models.splits import Split
from partita.nouns.graph import FloatArray

KINDS: tuple[Kind, ...] = ("skeleton", "power law")
NORMS: tuple[Norm, ...] = ("l2", "l1")
WEIGHTS = (0.03, 0.1, 0.3, 1.0)
ALIKE = 0.05  #: the strongest regularisation within so much of the least error is taken
CLEARLY = 0.95  #: another model has to be so much better than the first to take its place
KNOWN = 0.65  #: ... and than a skeleton that knows what its columns mean, from names or the user: few held-out levels mislead
MOST = 4  #: splits by which hybrids are compared
NOISE = 0.02  #: errors of runs repeated: a hybrid so much better than another on held-out rows may be no better
SAMPLE = 120  #: rows that decide a correction's lengths there


@dataclass(frozen=True)
class Choice:
    """A kind of formula with its settings."""

    kind: Kind
    form: Form
    penalty: Penalty
    error: float  #: mean relative error on the held-out rows


@dataclass(frozen=True)
class Candidate:
    """A formula and its correction: what may be the hybrid, or have a say in it."""

    kind: Kind
    smooth: bool  #: whether the correction goes on beyond the rows as it went within them, or fades
    held: bool = False  #: the formula's constants are held at their priors as strongly as any

    def formula(
        self,
        choices: Mapping[Kind, Choice],
        table: Table,
        times: FloatArray,
        roles: Mapping[str, Role],
        *,
        seed: int,
        starts: int = 1,
    ) -> Formula:
        """Its formula, not yet corrected."""
        chosen = choices[self.kind]
        penalty = Penalty(WEIGHTS[-1], chosen.penalty.norm) if self.held else chosen.penalty
        return fit_formula(self.kind, table, times, roles, penalty, seed=seed, form=chosen.form, starts=starts)


HYBRIDS = (Candidate("skeleton", False), Candidate("skeleton", True), Candidate("power law", True))
HELD = Candidate("skeleton", False, held=True)


@dataclass(frozen=True)
class Settings:
    """What is decided once for some training rows."""

    choices: Mapping[Kind, Choice]
    main: Candidate  #: the hybrid
    share: float  #: of log t in which HELD has its say
    errors: Mapping[Candidate, float]  #: of each on the held-out rows

    @property
    def fallback(self) -> str | None:
        """A sentence where the rows do not support the skeleton; None where they do."""
        if self.main.kind == "skeleton":
            return None
        ours = 100 * min(self.errors[h] for h in HYBRIDS if h.kind == "skeleton")
        plain = 100 * self.errors[self.main]
        return (
            f"the rows do not support the form of a training step: it foretold held-out rows {ours:.3g} % off, "
            f"a {self.main.kind} {plain:.3g} %, which the hybrid corrects instead"
        )


def settle(
    table: Table,
    times: FloatArray,
    roles: Mapping[str, Role],
    *,
    seed: int,
    split_by: str | None = None,
    kinds: Sequence[Kind] = KINDS,
) -> Settings:
    """Settings for some training rows. O(kinds x penalties x splits) fits to at most ROWS rows each."""
    splits = question(table, roles, split_by)
    choices = {k: choose(k, table, times, roles, splits, seed=seed) for k in dict.fromkeys([*KINDS, *kinds])}
    tried = (*HYBRIDS, HELD) if split_by else HYBRIDS
    errors = {c: corrected(c, choices, table, times, roles, splits[:MOST], seed=seed) for c in tried}
    main = _best(errors, roles if split_by else {})  # folds ask what the rows can answer: no meaning is known better
    return Settings(choices, main, _share(errors, main) if split_by else 0.0, errors)


def _best(errors: Mapping[Candidate, float], roles: Mapping[str, Role]) -> Candidate:
    """The hybrid to take: one on the skeleton unless another is clearly better."""
    first, bent, plain = HYBRIDS
    ours = bent if errors[bent] < CLEARLY * errors[first] else first
    knows = any(r in COUNTING or (r == "size" and family(n) is not None) for n, r in roles.items())
    return plain if errors[plain] < (KNOWN if knows else CLEARLY) * errors[ours] else ours


def _share(errors: Mapping[Candidate, float], main: Candidate) -> float:
    """How much HELD has to say where rows are foretold beyond the others: half where it was as good as the hybrid.

    Few held-out levels cannot tell how far the rows beyond them follow the priors. Where the two differ their mean is never
    far off, and the interval holds both. Its weight falls with the square of its error.
    """
    weight = min(1.0, (errors[main] + NOISE) / (errors[HELD] + NOISE)) ** 2
    return weight / (1.0 + weight)


def corrected(
    candidate: Candidate,
    choices: Mapping[Kind, Choice],
    table: Table,
    times: FloatArray,
    roles: Mapping[str, Role],
    splits: Sequence[Split],
    *,
    seed: int,
) -> float:
    """Mean relative error of a hybrid on held-out rows."""
    errors = []
    for s in splits:
        train, seen = table.take(s.train), times[s.train]
        formula = candidate.formula(choices, train, seen, roles, seed=seed)
        hybrid = fit_hybrid(formula, train, seen, seed=seed, smooth=candidate.smooth, rows=SAMPLE)
        errors.append(off(np.log(hybrid.predict(table.take(s.test)).time), times[s.test]))
    return float(np.mean(np.concatenate(errors)))


def off(log_time: FloatArray, times: FloatArray) -> FloatArray:
    """[rows] |predicted / measured - 1|, none counting as more than e^5."""
    error: FloatArray = np.abs(np.exp(np.minimum(log_time - np.log(times), 5.0)) - 1.0)
    return error


def choose(
    kind: Kind, table: Table, times: FloatArray, roles: Mapping[str, Role], splits: Sequence[Split], *, seed: int
) -> Choice:
    """The reading that fits best, and the strongest regularisation whose error on the held-out rows is within ALIKE of the least."""
    some = thinned(np.arange(len(times)))
    first = fit_formula(kind, table.take(some), times[some], roles, Penalty(), seed=seed, starts=1)
    penalties = [Penalty(w, n) for n in NORMS for w in WEIGHTS]
    errors = [
        float(
            np.mean(np.concatenate([held_out(kind, table, times, roles, p, first.form, s, seed=seed) for s in splits]))
        )
        for p in penalties
    ]
    fine = [(p, e) for p, e in zip(penalties, errors, strict=True) if e <= (1 + ALIKE) * min(errors)]
    penalty, error = max(fine, key=lambda f: f[0].weight)
    return Choice(kind, first.form, penalty, error)


def held_out(
    kind: Kind,
    table: Table,
    times: FloatArray,
    roles: Mapping[str, Role],
    penalty: Penalty,
    form: Form,
    split: Split,
    *,
    seed: int,
) -> FloatArray:
    """[held-out rows] |predicted / measured - 1| of a fit to the other rows that starts from the priors."""
    train, test = table.take(split.train), table.take(split.test)
    formula = fit_formula(kind, train, times[split.train], roles, penalty, seed=seed, form=form, starts=1)
    return off(formula.log_time(test)[0], times[split.test])
