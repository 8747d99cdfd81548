"""Placement as a constraint program: the whole of it, or the part that some devices share.

    x[a, d]   atom a is on device d                      exactly one d for every a
    y[e, d]   device d pays for net e                    y >= x[a, d] - x[b, d] for atoms a, b of e
    T         work . x[., d] + cost . y[., d] <= T       minimise T

Only the loads of devices between which atoms move can change, so fixing all others leaves a small program of the same
form; a net that also touches a fixed device is paid for wherever it touches. Solver: OR-tools CP-SAT (an optional
package), one worker, a limit in its own deterministic time, so that the answer does not depend on the machine.

Seconds become whole numbers, rounded down; a bound proven for the rounded program holds for the real one.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from partita.graph import IntArray
from partita.search.load import LoadModel

GRAIN = float(1 << 30)  # whole numbers to the value that has to be beaten
MEMORY_GRAIN = float(1 << 40)


@dataclass(frozen=True, eq=False)
class Outcome:
    """What the solver found out."""

    where: IntArray | None  #: [atoms] a placement better than asked for, or None where none was found
    bound_s: float  #: no placement that differs on these devices only is better
    units: float  #: deterministic time spent


def available() -> bool:
    """Whether OR-tools is installed."""
    return importlib.util.find_spec("ortools") is not None


def size(model: LoadModel, devices: int) -> int:
    """Roughly how many variables the program has."""
    return (model.atoms + len(model.cost_s) * (1 if model.rule == "sum" else 2)) * devices


def improve(
    model: LoadModel, where: IntArray, devices: Sequence[int], *, limit_units: float, seed: int = 0, tolerance: float = 0.0
) -> Outcome:
    """A placement whose load on `devices` is better than `where`'s by `tolerance` (a share), others left as they are.

    Where the bound returned reaches the present value less the tolerance (and some 1e-6 of rounding), nothing better
    exists. Deterministic for a seed. `limit_units` is about seconds.
    """
    from ortools.sat.python import cp_model

    known = float(model.loads(where)[list(devices)].max())
    scale = GRAIN / known if known > 0 else 1.0
    terms = model.atoms + len(model.cost_s)
    ceiling = int(known * (1.0 - tolerance) * scale) - terms - 1
    if ceiling < 0:
        return Outcome(None, 0.0, 0.0)
    program, x = _program(cp_model, model, where, list(devices), scale, ceiling)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = seed & 0x7FFFFFFF
    solver.parameters.max_deterministic_time = limit_units
    solver.parameters.symmetry_level = 2
    status = solver.solve(program)
    spent = float(solver.response_proto.deterministic_time)
    if status == cp_model.INFEASIBLE:
        return Outcome(None, (ceiling + 1) / scale, spent)
    bound = max(0.0, float(solver.best_objective_bound) / scale)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return Outcome(None, bound, spent)
    found = where.copy()
    for a, row in x.items():
        found[a] = next(d for d, v in row.items() if solver.boolean_value(v))
    return Outcome(found if model.fits(found) and model.loads(found)[list(devices)].max() < known else None, bound, spent)


def _program(
    cp_model: Any, model: LoadModel, where: IntArray, devices: list[int], scale: float, ceiling: int
) -> tuple[Any, dict[int, dict[int, Any]]]:
    """The program, and its x as {atom: {device: variable}}."""
    program = cp_model.CpModel()
    atoms = np.flatnonzero(np.isin(where, devices)).tolist()
    homes = _homes(model, atoms, devices, len(devices) == model.devices)
    x = {a: {d: program.new_bool_var("") for d in homes[a]} for a in atoms}
    for a, row in x.items():
        program.add_exactly_one(list(row.values()))
        if int(where[a]) in row:
            for d, v in row.items():
                program.add_hint(v, d == where[a])
    top = program.new_int_var(0, ceiling, "")
    inward: dict[int, list[tuple[Any, int]]] = {d: [] for d in devices}
    outward: dict[int, list[tuple[Any, int]]] = {d: [] for d in devices}
    nets = sorted({int(e) for a in atoms for e in model.nets_of.row(a)})
    for e in nets:
        cost = int(model.cost_s[e] * scale)
        pins = model.nets.row(e).tolist()
        for d in devices:
            if model.pays[d] and cost > 0:
                _pay(program, [x.get(a) for a in pins], d, cost, model.rule == "overlap", inward[d], outward[d])
    for d in devices:
        c = int(model.class_of[d])
        work = [(x[a][d], int(model.work_s[a, c] * scale)) for a in atoms if d in x[a]]
        groups = [work + inward[d] + outward[d]] if model.rule == "sum" else [work, inward[d], outward[d]]
        for group in groups:
            if group:
                program.add(_sum(cp_model, group) <= top)
        if np.isfinite(model.room_bytes[d]):
            grain = min(1.0, MEMORY_GRAIN / max(1.0, float(model.room_bytes[d])))
            held = [(x[a][d], int(model.memory_bytes[a] * grain)) for a in atoms if d in x[a]]
            if held:
                program.add(_sum(cp_model, held) <= int(model.room_bytes[d] * grain))
    program.minimize(top)
    return program, x


def _sum(cp_model: Any, terms: list[tuple[Any, int]]) -> Any:
    return cp_model.LinearExpr.weighted_sum([v for v, _ in terms], [k for _, k in terms])


def _homes(model: LoadModel, atoms: list[int], devices: list[int], whole: bool) -> dict[int, list[int]]:
    """{atom: devices it may be on}. For the whole problem, equal devices are told apart by the first atoms on them:
    of the heaviest atoms in order, the i-th is on one of the first i devices of a class (value precedence)."""
    homes = {a: [d for d in devices if np.isfinite(model.work_s[a, model.class_of[d]])] for a in atoms}
    if whole:
        rank = {d: int((model.class_of[:d] == model.class_of[d]).sum()) for d in devices}
        weight = np.bincount(model.nets.items, np.repeat(model.cost_s, np.diff(model.nets.start)), model.atoms)
        weight += np.where(np.isfinite(model.work_s), model.work_s, 0.0).max(axis=1)
        for i, a in enumerate(np.argsort(-weight, kind="stable").tolist()):
            homes[a] = [d for d in homes[a] if rank[d] <= i]
    return homes


def _pay(
    program: Any,
    pins: list[dict[int, Any] | None],
    d: int,
    cost: int,
    overlap: bool,
    inward: list[tuple[Any, int]],
    outward: list[tuple[Any, int]],
) -> None:
    """What device d pays for one net; a pin that is None stays on a device outside the program, the first is the maker."""
    outside = any(p is None for p in pins)
    here = [None if p is None else p.get(d) for p in pins]  # None: can not be on d
    maker = here[0]
    if not overlap:
        present = [v for v in here if v is not None]
        if not present:
            return
        y = program.new_bool_var("")
        if outside or len(present) < len(pins):
            for v in present:
                program.add_implication(v, y)
        else:
            for v, w in zip(present, [*present[1:], present[0]], strict=True):
                program.add_bool_or([v.negated(), w, y])
        outward.append((y, cost))
        return
    if maker is not None:
        y = program.new_bool_var("")
        for v in here[1:]:
            program.add_bool_or([maker.negated(), y] if v is None else [maker.negated(), v, y])
        outward.append((y, cost))
    readers = [v for v in here[1:] if v is not None]
    if readers:
        y = program.new_bool_var("")
        for v in readers:
            program.add_bool_or([v.negated(), y] if maker is None else [v.negated(), maker, y])
        inward.append((y, cost))
