"""Study: from a table to models that are fitted, compared and ready to be asked.

prepare    which columns are inputs and what they mean; everything that would make nonsense of a fit is refused
study      every model judged by rows it has not seen; the best explainable one fitted to all rows
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from partita.errors import refuse
from partita.models.capture.derived import derived
from partita.models.capture.inputs import text_of
from partita.models.capture.roles import Role, infer
from partita.models.capture.table import THOUSAND, Table, TableError, check_sizes, check_times, mixed_units
from partita.models.choose import KINDS, Settings
from partita.models.compare import Fitter, Score, joined, judge
from partita.models.formula import Kind
from partita.models.hybrid import Hybrid
from partita.models.model import Model
from partita.models.rehearse import FEWEST
from partita.models.skeleton import Form, step_of
from partita.models.splits import Split, above, folds
from partita.nouns.graph import FloatArray

MODELS = ("hybrid", "skeleton", "generic", "log-linear", "gradient boosting", "gaussian process")
MOST_ROWS = 10_000  #: a correction takes rows^2 x 8 bytes several times over, and rows^3 operations
MOST_INPUTS = 100
GIVEN_AWAY = 0.9995  #: correlation of logarithms from which a column is the time in another dress
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, eq=False)
class Prepared:
    """A table that can be fitted."""

    table: Table  #: inputs only
    times: FloatArray  #: [rows]
    target: str
    roles: Mapping[str, Role]
    derived: Mapping[str, tuple[str, ...]]  #: column -> the columns that determine it
    left_out: tuple[tuple[str, str], ...]  #: (column, why)
    notes: tuple[str, ...]
    splits: tuple[Split, ...]
    split_by: str | None
    up_to: float | None

    @property
    def groups(self) -> FloatArray:
        """[rows] what the rows are grouped by in a picture: the split column, else the device count."""
        return self.table.numbers(self.split_by) if self.split_by else step_of(self.table, self.roles, Form()).devices


@dataclass(frozen=True, eq=False)
class Study:
    """Models compared, and the best explainable one fitted to all rows."""

    prepared: Prepared
    settings: Settings  #: of the model
    scores: tuple[Score, ...]
    best: str
    model: Model  #: fitted to all rows


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
    if len(table) > MOST_ROWS:
        raise TableError(f"{len(table)} rows; at most {MOST_ROWS} are fitted", hint="draw some of them at random")
    times = check_times(table, target)
    check_sizes(table, [n for n in table.names if n not in (target, *drop)])
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
    if len(inputs) > MOST_INPUTS:
        raise TableError(f"{len(inputs)} inputs; at most {MOST_INPUTS} are fitted", hint="--drop what does not matter")
    found = infer(table, inputs, roles, split_by)
    left_out += [(n, "neither time nor work: ignored") for n, r in found.items() if r == "ignore"]
    found = {n: r for n, r in found.items() if r != "ignore"}
    said = derived(table, found, list(roles or ()))
    found |= dict.fromkeys(said, "derived")
    prepared = Prepared(
        replace(table, columns={n: table.columns[n] for n in found}), times, target, found, said, tuple(left_out),
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
    if all(len(np.unique(v[split.train])) == 1 for v in (values, *shards)):
        raise TableError(
            f"all {len(split.train)} training rows have {column!r} = {seen[0]:g}: nothing tells how the time changes with it",
            hint=f"measure at least one other value too, or raise --train-up-to (its values are {there})",
        )
    return split


def _enough(prepared: Prepared) -> None:
    """Raises TableError where there are fewer rows than constants to find."""
    need = 2 + sum(
        len(set(text_of(prepared.table, n).tolist())) - 1 if r == "kind" else 1
        for n, r in prepared.roles.items()
        if r != "derived"
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
    """Every model fitted and judged; then settings, the best explainable model and its constants from all rows.

    Where one split divides the rows, which explainable model is the best is decided by those that are fitted to.
    """
    table, times = prepared.table, prepared.times
    fitter = _fitter(prepared, seed, models)
    say = progress or (lambda what, done, total: None)
    parts, total = [], len(prepared.splits) + 2
    for i, split in enumerate(prepared.splits):
        say("judging models by rows they have not seen", i, total)
        parts.append(judge(fitter, models, table, times, split))
    say("choosing the explainable model", total - 2, total)
    settings = fitter.settle(table, times)
    if prepared.split_by:
        train = prepared.splits[0].train
        best = fitter.best(table.take(train), times[train], parts[0].settings)
    else:
        best = fitter.best(table, times, settings)
    say(f"fitting {best} to all rows", total - 1, total)
    model = fitter.fit(best, table, times, settings)
    _no_thousands(prepared, model)
    return Study(prepared, settings, joined(parts), best, model)


def _fitter(prepared: Prepared, seed: int, models: Sequence[str]) -> Fitter:
    kinds: tuple[Kind, ...] = (*KINDS, "generic") if "generic" in models else KINDS
    return Fitter(prepared.roles, prepared.split_by, seed, kinds)


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
            (score,) = judge(_fitter(p, seed, [study.best]), [study.best], p.table, p.times, some).scores
            found.append((len(some.train), score.mape))
    return found
