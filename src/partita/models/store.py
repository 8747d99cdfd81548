"""Store: a fitted explainable model as JSON, and back.

The file holds everything that predicting, explaining and asking needs: the constants, the scale of the inputs, and the
rows that it was fitted to.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np

from partita.errors import BadInput
from partita.files import dump_json, read_json, write_whole
from partita.models.capture.inputs import Parameters, Scale
from partita.models.capture.table import Table
from partita.models.correction import Correction
from partita.models.fitting import Fit, Penalty
from partita.models.formula import Formula, Kind
from partita.models.hybrid import Hybrid
from partita.models.model import Model
from partita.models.opponents import Regressor
from partita.models.skeleton import Form
from partita.nouns.graph import FloatArray

FORMAT = "partita-model"


class ModelError(BadInput):
    """A file that should hold a performance model."""


@dataclass(frozen=True, eq=False)
class Stored:
    """A model with the rows that it was fitted to."""

    model: Formula | Hybrid
    table: Table
    times: FloatArray
    target: str


def write_model(path: str | Path, model: Model, table: Table, times: FloatArray, target: str) -> Path:
    """Write it whole or not at all. Raises ModelError for a plain regressor, which is none of ours to store."""
    if isinstance(model, Regressor) or not isinstance(model, Formula | Hybrid):
        raise ModelError(f"a {model.name} model cannot be stored", hint="only generic, skeleton and hybrid models are")
    formula = model.formula if isinstance(model, Hybrid) else model
    columns = {n: table.columns[n].tolist() for n in table.names}
    value = {
        "format": FORMAT,
        "version": 1,
        "target": target,
        "formula": _formula_json(formula),
        "correction": _correction_json(model) if isinstance(model, Hybrid) else None,
        "columns": columns,
        "times": times.tolist(),
    }
    return write_whole(path, dump_json(value))


def read_model(path: str | Path) -> Stored:
    """Raises ModelError where the file is damaged or of another kind."""
    value = read_json(path, ModelError, FORMAT)
    try:
        formula = _formula(value["formula"])
        columns = {str(n): _cells(c) for n, c in value["columns"].items()}
        model = formula if value["correction"] is None else _hybrid(formula, value["correction"])
        stored = Stored(model, Table(columns), np.array(value["times"], np.float64), str(value["target"]))
        if not np.all(np.isfinite(model.predict(stored.table).time)):
            raise ValueError("it predicts times that are no numbers")
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError, np.linalg.LinAlgError) as error:
        raise ModelError(f"{path} is damaged: {type(error).__name__}: {error}", hint="fit the model again") from error
    return stored


def _formula_json(f: Formula) -> dict[str, Any]:
    return {
        "kind": f.kind,
        "roles": dict(f.roles),
        "form": {"batch_is_global": f.form.batch_is_global, "per_epoch": f.form.per_epoch},
        "scale": f.scale.to_json(),
        "parameters": [
            {"name": n, "value": float(v), "prior": m, "prior_sd": s}
            for n, v, m, s in zip(f.parameters.names, f.fit.theta, f.parameters.mean, f.parameters.sd, strict=True)
        ],
        "covariance": f.fit.covariance.tolist(),
        "noise": f.fit.noise,
        "cost": f.fit.cost,
        "penalty": {"weight": f.penalty.weight, "norm": f.penalty.norm},
        "widen": f.widen,
        "drift": dict(f.drift),
    }


def _formula(value: Mapping[str, Any]) -> Formula:
    rows = list(value["parameters"])
    if value["kind"] not in get_args(Kind):
        raise ValueError(f"unknown kind {value['kind']!r}")
    parameters = Parameters(
        [str(r["name"]) for r in rows], [float(r["prior"]) for r in rows], [float(r["prior_sd"]) for r in rows]
    )
    theta = np.array([float(r["value"]) for r in rows])
    covariance = np.array(value["covariance"], np.float64).reshape(len(rows), len(rows))
    return Formula(
        value["kind"],
        {str(k): v for k, v in value["roles"].items()},
        Form(bool(value["form"]["batch_is_global"]), bool(value["form"]["per_epoch"])),
        Scale.from_json(value["scale"]),
        parameters,
        Fit(theta, covariance, float(value["noise"]), float(value["cost"])),
        Penalty(float(value["penalty"]["weight"]), value["penalty"]["norm"]),
        float(value["widen"]),
        {str(n): float(s) for n, s in value["drift"].items()},
    )


def _correction_json(model: Hybrid) -> dict[str, Any]:
    c = model.correction
    return {
        "points": c.points.tolist(),
        "kinds": list(c.kinds),
        "lengths": c.lengths.tolist(),
        "weights": c.weights.tolist(),
        "noise": c.noise,
        "smooth": c.smooth,
        "weighted": c.weighted.tolist(),
        "widen": model.widen,
        "others": [
            {"share": w, "formula": _formula_json(h.formula), "correction": _correction_json(h)}
            for w, h in model.others
        ],
    }


def _hybrid(formula: Formula, value: Mapping[str, Any]) -> Hybrid:
    points, lengths, weights, weighted = (
        np.array(value[k], np.float64) for k in ("points", "lengths", "weights", "weighted")
    )
    kinds = tuple(bool(k) for k in value["kinds"])
    return Hybrid(
        formula,
        Correction(points, kinds, lengths, weights, float(value["noise"]), weighted, bool(value["smooth"])),
        float(value["widen"]),
        tuple(_other(o) for o in value.get("others", ())),
    )


def _other(value: Mapping[str, Any]) -> tuple[float, Hybrid]:
    """Another hybrid with its share; that one has no others."""
    share = float(value["share"])
    if not 0 < share <= 0.5:
        raise ValueError(f"a share of {share}")
    return share, _hybrid(_formula(value["formula"]), {**value["correction"], "others": ()})


def _cells(cells: list[Any]) -> Any:
    return (
        np.array(cells, np.float64)
        if all(isinstance(c, int | float) for c in cells)
        else np.array([str(c) for c in cells], np.str_)
    )
