"""partita predict DATA: fit, compare and ask performance models.

DATA is a table of measured runs (models are fitted and compared), a model that --out wrote (it is asked), or a profile that
`partita measure` wrote (the analytic model of synchronous SGD predicts it on any number of devices).
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import numpy as np

from partita.cli.talk import Talk
from partita.errors import BadInput
from partita.files import read_json, write_whole
from partita.models.ask import Question, advise, as_table, beyond, parse_inputs, typical
from partita.models.capture.roles import BATCHES, COUNTING, Role, read_roles
from partita.models.capture.table import Table, TableError
from partita.models.compare import Score
from partita.models.formula import Formula
from partita.models.hybrid import Hybrid
from partita.models.model import Model
from partita.models.opponents import Regressor, threadpool_limits
from partita.models.report.explain import explanation
from partita.models.report.page import page
from partita.models.report.ssgd_text import predictions_text
from partita.models.report.text import predict_text
from partita.models.skeleton import Form
from partita.models.ssgd import Wish, predict_profile
from partita.models.store import read_model, write_model
from partita.models.study import MODELS, Prepared, Study, learning_curve, prepare, study
from partita.nouns.cluster import Cluster
from partita.nouns.profile import Profile
from partita.simulate.exchange import Scheme

CHOSEN = (*BATCHES, *COUNTING)  #: roles of the columns that advice is about: --what-if does not settle them


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "data", metavar="DATA", help="runs measured (.csv, .parquet), or a model that --out wrote (.json)"
    )
    fit = parser.add_argument_group("fitting")
    fit.add_argument("--target", metavar="COLUMN", help="the time to predict")
    fit.add_argument(
        "--split-by", metavar="COLUMN", help="judge models by the rows in which this is above --train-up-to"
    )
    fit.add_argument("--train-up-to", metavar="VALUE", type=float, help="largest value of --split-by to fit to")
    fit.add_argument("--drop", metavar="COLUMN,...", default="", help="columns that are not known before a run")
    fit.add_argument("--columns", metavar="TOML", help='what columns mean: [columns], then "name" = "role"')
    fit.add_argument("--models", metavar="NAME,...", default=",".join(MODELS), help="which to compare; all by default")
    fit.add_argument("--seed", type=int, default=0)
    ask = parser.add_argument_group("asking the best explainable model")
    ask.add_argument(
        "--what-if", metavar="COLUMN=VALUE", nargs="+", action="append", help="predict one row; the rest as is typical"
    )
    ask.add_argument("--rows", metavar="CSV", help="predict these rows")
    ask.add_argument(
        "--samples",
        type=float,
        metavar="N",
        help="advise: batch size and devices for so many samples (dataset x epochs)",
    )
    ask.add_argument("--deadline-s", type=float, metavar="S", help="... within so many seconds")
    ask.add_argument("--price", type=float, metavar="P", help="... at this price of a device-hour")
    ssgd = parser.add_argument_group("a profile on more devices")
    ssgd.add_argument("--devices", metavar="N,...", default="1,2,4,8,16")
    ssgd.add_argument("--cluster", metavar="TOML", help="the machines; the profile's own by default")
    ssgd.add_argument("--scheme", choices=get_args(Scheme), default="ring", help="how gradients are exchanged")
    ssgd.add_argument("--bandwidth", metavar="BYTES_PER_S", type=float, help="another rate for every link")
    ssgd.add_argument("--weak", action="store_true", help="every device has a batch of its own: the batch is not split")
    parser.add_argument("-o", "--out", metavar="JSON", help="write the best explainable model, fitted to all rows")
    parser.add_argument("--report", metavar="HTML", help="write a self-contained page")


def run(options: argparse.Namespace, talk: Talk) -> dict[str, Any]:
    """Fit and compare, or read a model or a profile; then answer. Raises TableError with every fault of the data at once."""
    if str(options.data).endswith(".json"):
        document = _of_json(options)
    elif options.target is None:
        raise TableError("--target is missing", hint=f"one of {', '.join(Table.read(options.data).names)}")
    else:
        document = _of_table(options, talk)
    if options.report:
        write_whole(options.report, page(document))
        talk.say(f"   page written to {options.report}")
    return document


def _of_json(options: argparse.Namespace) -> dict[str, Any]:
    """A profile on more devices, or a stored model asked."""
    if read_json(options.data, BadInput).get("format") == "partita-profile":
        if options.report:
            raise BadInput("a profile's prediction has no page", hint="leave out --report; the table says it all")
        return _of_profile(options)
    stored = read_model(options.data)
    document = {"data": str(options.data), "target": stored.target, "models": [], "best_explainable": stored.model.name}
    return document | answers(options, stored.model, stored.table, _roles(stored.model), stored.target)


def _of_profile(options: argparse.Namespace) -> dict[str, Any]:
    try:
        devices = [int(n) for n in _listed(options.devices)]
    except ValueError as error:
        raise BadInput(
            f"--devices {options.devices!r} is no list of numbers", hint="for example --devices 1,2,4"
        ) from error
    cluster = Cluster.read(options.cluster) if options.cluster else None
    wish = Wish(scaling="weak" if options.weak else "strong")
    found = predict_profile(
        Profile.read(options.data), cluster, devices, options.scheme, bandwidth_bytes_per_s=options.bandwidth, wish=wish
    )
    return {"data": str(options.data), "predictions": [p.to_json() for p in found], "table": predictions_text(found)}


def _of_table(options: argparse.Namespace, talk: Talk) -> dict[str, Any]:
    """Models fitted and compared; the best explainable one written and asked."""
    with threadpool_limits(1):  # the matrices are small: threads of the linear algebra cost more than they bring
        found = _study(options, talk)
        if found.settings.fallback:
            talk.say(f"   {found.settings.fallback}")
        document = _compared(options, found)
        if options.report:
            curve = learning_curve(found, seed=options.seed)
            document["learning_curve"] = [{"rows": n, "mape_percent": 100 * e} for n, e in curve]
    p = found.prepared
    if options.out:
        write_model(options.out, found.model, p.table, p.times, p.target)
        talk.say(f"   model written to {options.out}")
    return document | answers(options, found.model, p.table, p.roles, p.target)


def text(document: dict[str, Any]) -> str:
    table: str | None = document.get("table")
    return predict_text(document) if table is None else table


def _study(options: argparse.Namespace, talk: Talk) -> Study:
    table = Table.read(options.data)
    roles = read_roles(options.columns, table) if options.columns else None
    models = _listed(options.models)
    unknown = [m for m in models if m not in MODELS]
    if unknown or not models:
        raise TableError(f"unknown models: {', '.join(unknown) or 'none named'}", hint=f"known: {', '.join(MODELS)}")
    prepared = prepare(
        table, options.target, split_by=options.split_by, up_to=options.train_up_to, drop=_listed(options.drop), roles=roles, seed=options.seed
    )  # fmt: skip
    for note in prepared.notes:
        talk.say(f"   {note}")
    for column, of in prepared.derived.items():
        talk.say(f"   column {column!r} is determined by {', '.join(map(repr, of))}, which count for it")
    talk.step(f"{len(table)} runs, {len(prepared.roles)} inputs, {len(models)} models")
    return study(prepared, seed=options.seed, models=models, progress=talk.progress)


def _listed(told: str) -> list[str]:
    return [name.strip() for name in told.split(",") if name.strip()]


def _compared(options: argparse.Namespace, s: Study) -> dict[str, Any]:
    """The part of the document that comparing gives."""
    p = s.prepared
    tested = sum(len(x.test) for x in p.splits)
    kind = {"kind": "above", "column": p.split_by, "value": p.up_to} if p.split_by else {"kind": "folds"}
    best = next((x for x in s.scores if x.name == s.best), None)
    return {
        "data": str(Path(options.data).name),
        "target": p.target,
        "rows": len(p.times),
        "roles": dict(p.roles),
        "derived_columns": [{"column": c, "of": list(of)} for c, of in p.derived.items()],
        "fallback": s.settings.fallback,
        "left_out": [{"column": c, "why": w} for c, w in p.left_out],
        "notes": list(p.notes),
        "split": {**kind, "train_rows": len(p.splits[0].train), "test_rows": tested},
        "seed": options.seed,
        "models": [_score(x) for x in s.scores],
        "best_explainable": s.best,
        "explanation": explanation(s.model, p),
        "points": _points(best, p) if best else [],
    }


def _score(s: Score) -> dict[str, Any]:
    return {
        "name": s.name,
        "explainable": s.explainable,
        "mape_percent": 100 * s.mape,
        "median_ape_percent": 100 * float(np.median(np.abs(s.errors))),
        "coverage_90_percent": 100 * float(np.mean(s.inside)),
        "fit_s": s.fit_s,
    }


def _points(s: Score, p: Prepared) -> list[dict[str, Any]]:
    groups = p.groups
    return [
        {
            "row": int(i), "measured": float(p.times[i]), "predicted": float(s.predicted[k]), "low": float(s.low[k]),
            "high": float(s.high[k]), "group": f"{groups[i]:g}",
        }
        for k, i in enumerate(s.rows.astype(int))
    ]  # fmt: skip


def _roles(model: Model) -> Mapping[str, Role]:
    formula = model.formula if isinstance(model, Hybrid) else model
    return formula.roles if isinstance(formula, Formula | Regressor) else {}


def answers(
    options: argparse.Namespace, model: Model, table: Table, roles: Mapping[str, Role], target: str
) -> dict[str, Any]:
    """What was asked of the model: what if, given rows, the best batch size and device count."""
    document: dict[str, Any] = {}
    told = [typical(table, roles, parse_inputs(pairs, table, roles)) for pairs in options.what_if or []]
    if options.rows:
        given = Table.read(options.rows)
        given.known(list(roles))
        told += [{n: _cell(given, n, i) for n in roles} for i in range(len(given))]
    if told:
        document["what_if"] = _predicted(model, told, table)
    if options.samples is not None:
        formula = model.formula if isinstance(model, Hybrid) else model
        form = formula.form if isinstance(formula, Formula) else Form()
        asked = parse_inputs((options.what_if or [[]])[0], table, roles)
        named = {n: v for n, v in asked.items() if roles[n] not in CHOSEN}
        question = Question(options.samples, options.deadline_s, options.price)
        document["advice"] = advise(model, table, roles, form, target, named, question)
    return document


def _cell(table: Table, name: str, row: int) -> float | str:
    cell = table.columns[name][row]
    return str(cell) if table.is_text(name) else float(cell)


def _predicted(model: Model, rows: list[dict[str, float | str]], table: Table) -> list[dict[str, Any]]:
    found = model.predict(as_table(rows, table))
    return [
        {
            "inputs": r,
            "predicted": float(found.time[i]),
            "low": float(found.low[i]),
            "high": float(found.high[i]),
            "note": beyond(r, table),
        }
        for i, r in enumerate(rows)
    ]
