"""Study: from a table to models that are fitted, compared and ready to be asked.

prepare    which columns are inputs and what they mean; everything that would make nonsense of a fit is refused
study      every model judged by rows it has not seen; the best explainable one fitted to all rows
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from partita.errors import refuse
from partita.models.capture.inputs import text_of
from partita.models.capture.roles import Role, infer
from partita.models.capture.table import THOUSAND, Table, TableError, check_times, mixed_units
from partita.models.compare import KINDS, Score, Settings, best_explainable, fit_model, fitter, judge, settle, teaches
from partita.models.explainable import Hybrid
from partita.models.model import Model
from partita.models.skeleton import Form, step_of
from partita.models.splits import Split, above, folds
from partita.nouns.graph import FloatArray

MODELS = ("hybrid", "skeleton", "generic", "log-linear", "gradient boosting", "gaussian process")
FEWEST = 8  #: training rows below which nothing is fitted
GIVEN_AWAY = 0.9995  #: correlation of logarithms from which a column is the time in another dress
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, eq=False)
class Prepared:
    """A table that can be fitted."""

    table: Table  #: inputs only
    times: FloatArray  #: [rows]
    target: str
    roles: Mapping[str, Role]
    left_out: tuple[tuple[str, str], ...]  #: (column, why)
    notes: tuple[str, ...]
    splits: tuple[Split, ...]
    split_by: str | None
    up_to: float | None

    @property
    def groups(self) -> FloatArray:
        """[rows] what the rows are grouped by in a picture: the split column, else the device count."""
        return self.table.numbers(self.split_by) if self.split_by else step_of(self.table, self.roles, Form()).devices

    @property
    def training(self) -> Split:
        """What settings may be chosen by: the training rows, where one split divides them from the rest."""
        every = np.arange(len(self.times))
        return self.splits[0] if self.split_by else Split(every, every)


@dataclass(frozen=True, eq=False)
class Study:
    """Models compared, and the best explainable one fitted to all rows."""

    prepared: Prepared
    settings: Settings
    scores: tuple[Score, ...]
    best: str
    model: Model


def prepare(
    table: Table,
    target: str,
    *,
    split_by: str | None = None,
    up_to: float | None = None,
    drop: Sequence[str] = (),
    roles: Mapping[str, Role] | None = None,
    seed: int = 0,
) -> Prepared:
    """Inputs, roles and splits. Raises TableError for whatever cannot give an honest fit."""
    table.known([target, *drop, *([split_by] if split_by else [])])
    times = check_times(table, target)
    refuse(TableError, mixed_units(table, target), "units are mixed up", hint="bring each column to one unit")
    left_out = [(n, "dropped on request") for n in drop]
    left_out += [
        (n, "known only after a run") for n in table.afterwards if n not in (target, *drop) and n in table.names
    ]
    inputs = [n for n in table.names if n != target and n not in {m for m, _ in left_out}]
    left_out += [(n, why) for n in inputs if (why := _useless(table, n))]
    inputs = [n for n in inputs if n not in {m for m, _ in left_out}]
    if split_by and split_by not in inputs:
        why = dict(left_out).get(split_by, "it is the target")
        raise TableError(f"cannot split by {split_by!r}: {why}", hint="name an input column that varies")
    if not inputs:
        raise TableError(f"no column besides {target!r} varies", hint="measure different configurations")
    found = infer(table, inputs, roles, split_by)
    left_out += [(n, "neither time nor work: ignored") for n, r in found.items() if r == "ignore"]
    found = {n: r for n, r in found.items() if r != "ignore"}
    prepared = Prepared(
        replace(table, columns={n: table.columns[n] for n in found}), times, target, found, tuple(left_out),
        tuple(_given_away(table, times, found)), tuple(folds(len(times), seed=seed)), split_by, up_to,
    )  # fmt: skip
    if split_by is not None:
        prepared = replace(prepared, splits=(_split(prepared, split_by, up_to),))
    _enough(prepared)
    return prepared


def _useless(table: Table, name: str) -> str:
    """Why a column can be no input; "" if it can."""
    values = set(text_of(table, name).tolist())
    if len(values) == 1:
        return f"the same in all rows ({next(iter(values))})"
    if table.is_text(name) and len(values) > max(20, len(table) // 3):
        return f"{len(values)} different texts in {len(table)} rows: an identifier"
    return ""


def _given_away(table: Table, times: FloatArray, roles: Mapping[str, Role]) -> list[str]:
    """A sentence for each column that follows the time so closely that it can hardly be known before a run."""
    notes = []
    for name, role in roles.items():
        x = table.numbers(name) if role != "kind" else np.array([-1.0])
        if np.all(x > 0) and len(x) > 5 and abs(np.corrcoef(np.log(x), np.log(times))[0, 1]) > GIVEN_AWAY:
            notes.append(
                f"column {name!r} follows the time almost exactly: is it known before a run? if not, --drop {name!r}"
            )
    return notes


def _split(prepared: Prepared, column: str, up_to: float | None) -> Split:
    """Rows up to a value against those above. Raises TableError where one side is empty or teaches nothing of the other."""
    values = prepared.table.numbers(column)
    there = ", ".join(f"{v:g}" for v in np.unique(values)[:12])
    if up_to is None:
        raise TableError(f"--split-by {column!r} needs --train-up-to", hint=f"its values are {there}")
    split = above(values, up_to)
    if not len(split.train) or not len(split.test):
        side = "up to" if not len(split.train) else "above"
        raise TableError(f"no row has {column!r} {side} {up_to:g}", hint=f"its values are {there}")
    seen = np.unique(values[split.train])
    shards = [prepared.table.numbers(n) for n, r in prepared.roles.items() if r in ("data", "tensor", "pipeline")]
    if not teaches(values, shards, split):
        raise TableError(
            f"all {len(split.train)} training rows have {column!r} = {seen[0]:g}: nothing tells how the time changes with it",
            hint=f"measure at least one other value too, or raise --train-up-to (its values are {there})",
        )
    return split


def _enough(prepared: Prepared) -> None:
    """Raises TableError where there are fewer rows than constants to find."""
    need = 2 + sum(
        len(set(text_of(prepared.table, n).tolist())) - 1 if r == "kind" else 1 for n, r in prepared.roles.items()
    )
    need, least = max(need, FEWEST), min(len(s.train) for s in prepared.splits)
    if least < need:
        raise TableError(
            f"{least} training rows for {len(prepared.roles)} inputs, which need at least {need}",
            hint="measure more configurations, or --drop columns that do not matter",
        )


def study(
    prepared: Prepared, *, seed: int = 0, models: Sequence[str] = MODELS, progress: Progress | None = None
) -> Study:
    """Every model fitted and judged; see `compare` for how the best explainable one is chosen."""
    table, times, roles = prepared.table, prepared.times, prepared.roles
    train = prepared.training.train
    say = progress or (lambda what, done, total: None)
    say("choosing regularisation and the explainable model", 0, len(models) + 1)
    kinds = tuple(k for k in KINDS if k == "skeleton" or k in models)
    settings = settle(table.take(train), times[train], roles, seed=seed, split_by=prepared.split_by, kinds=kinds)
    best = best_explainable(table.take(train), times[train], roles, settings, seed=seed, split_by=prepared.split_by)
    scores = []
    for i, name in enumerate(models):
        say(f"fitting {name}", i + 1, len(models) + 1)
        scores.append(judge(fitter(name, roles, settings, seed), table, times, prepared.splits))
    model = fit_model(best, table, times, roles, settings, seed=seed)
    _no_thousands(prepared, model)
    return Study(prepared, settings, tuple(scores), best, model)


def _no_thousands(prepared: Prepared, model: Model) -> None:
    """Raises TableError where a few rows lie a factor of a thousand beside what all the others say: their unit is another."""
    smooth: Model = model.formula if isinstance(model, Hybrid) else model  # a correction would learn the wrong rows too
    log_ratio = np.log(prepared.times / smooth.predict(prepared.table).time)
    off = np.flatnonzero(np.abs(np.abs(log_ratio) - np.log(THOUSAND)) < 1.0)
    if len(off) and np.median(np.abs(log_ratio)) < 0.5:
        lines = ", ".join(f"line {i + 2}: {prepared.times[i]:g}" for i in off[:5])
        raise TableError(
            f"{len(off)} times of {prepared.target!r} are a thousand times off what the other rows say ({lines})",
            hint="bring the column to one unit",
        )


def learning_curve(
    study: Study, *, seed: int = 0, parts: Sequence[float] = (0.125, 0.25, 0.5, 1.0)
) -> list[tuple[int, float]]:
    """(rows fitted to, mean absolute relative error) of the best explainable model, from growing shares of the training rows."""
    p, split = study.prepared, study.prepared.splits[0]
    order = np.random.default_rng(seed).permutation(split.train)
    found = []
    for part in parts:
        some = Split(np.sort(order[: max(1, round(part * len(order)))]), split.test)
        if len(some.train) >= 2 * len(p.roles) + 2:
            fit = fitter(study.best, p.roles, study.settings, seed)
            found.append((len(some.train), judge(fit, p.table, p.times, [some]).mape))
    return found
