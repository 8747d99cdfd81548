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

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from partita.nouns.graph import FloatArray, IntArray
from partita.placement.plan.load import LoadModel, summed
from partita.solve import constraint_solver

GRAIN = float(1 << 30)  # whole numbers to the value that has to be beaten
MEMORY_GRAIN = float(1 << 40)


@dataclass(frozen=True, eq=False)
class Outcome:
    """What the solver found out."""

    where: IntArray | None  #: [atoms] a placement better than asked for, or None where none was found
    bound_s: float  #: no placement that differs on these devices only is better
    units: float  #: deterministic time spent


def size(model: LoadModel) -> int:
    """Roughly how many variables the whole program has."""
    return (model.atoms + len(model.cost_s) * (1 if model.rule == "sum" else 2)) * model.devices


def improve(
    model: LoadModel,
    where: IntArray,
    devices: Sequence[int],
    atoms: IntArray | None = None,
    *,
    limit_units: float,
    limit_s: float = np.inf,
    seed: int = 0,
    known_s: float | None = None,
) -> Outcome:
    """A placement whose largest load on `devices` is smaller than `where`'s, or than `known_s` where that is given.

    Only `atoms` move (all on those devices if None), and among those devices only. Where nothing better exists, the bound
    returned is the value to be beaten, less some 1e-6 of rounding. Deterministic for a seed, unless limit_s
    (wall-clock seconds) strikes before limit_units (about seconds).
    """
    from ortools.sat.python import cp_model

    part = _Part.of(model, where, devices, atoms)
    known = float(model.loads(where)[list(devices)].max()) if known_s is None else known_s
    scale = GRAIN / known if known > 0 else 1.0
    terms = model.atoms + len(model.cost_s)
    ceiling = int(known * scale) - terms - 1
    if ceiling < 0 or limit_s <= 0:
        return Outcome(None, 0.0, 0.0)
    program, x = _program(cp_model, part, scale, ceiling)
    solver, status = constraint_solver.solved(program, seed=seed, limit_s=limit_s, limit_units=limit_units)
    spent = float(solver.response_proto.deterministic_time)
    if status == cp_model.INFEASIBLE:
        return Outcome(None, (ceiling + 1) / scale, spent)
    bound = max(0.0, float(solver.best_objective_bound) / scale)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return Outcome(None, bound, spent)
    found = where.copy()
    for a, row in x.items():
        found[a] = next(d for d, v in row.items() if solver.boolean_value(v))
    better = model.fits(found) and model.loads(found)[list(devices)].max() < known
    return Outcome(found if better else None, bound, spent)


@dataclass(frozen=True, eq=False)
class _Part:
    """What moves, and what stays of the loads without it."""

    model: LoadModel
    where: IntArray
    devices: list[int]
    atoms: list[int]
    nets: list[int]  #: nets of the atoms that move
    base_s: FloatArray  #: [3, devices of the model] compute, in, out of what stays
    held: FloatArray  #: [devices of the model] bytes of what stays

    @staticmethod
    def of(model: LoadModel, where: IntArray, devices: Sequence[int], atoms: IntArray | None) -> _Part:
        moves = np.isin(where, list(devices))
        if atoms is not None:
            chosen = np.zeros(model.atoms, np.bool_)
            chosen[atoms] = True
            moves &= chosen
        index = np.flatnonzero(moves)
        touched = np.zeros(len(model.cost_s), np.bool_)
        touched[np.repeat(np.arange(len(touched)), np.diff(model.nets.start))[moves[model.nets.items]]] = True
        still = model.only(~moves, ~touched)
        return _Part(
            model, where, list(devices), index.tolist(), np.flatnonzero(touched).tolist(),
            np.stack(still.parts(where)), model.held(where) - np.bincount(where[index], model.memory_bytes[index], model.devices),
        )  # fmt: skip

    @property
    def whole(self) -> bool:
        return len(self.atoms) == self.model.atoms and len(self.devices) == self.model.devices

    def homes(self) -> dict[int, list[int]]:
        """{atom: devices it may be on}. Where all atoms move, equal devices are told apart by the first atoms on them: of
        the heaviest atoms in order, the i-th is on one of the first i devices of a class (value precedence)."""
        model = self.model
        homes = {a: [d for d in self.devices if np.isfinite(model.work_s[a, model.class_of[d]])] for a in self.atoms}
        if self.whole:
            rank = {d: int((model.class_of[:d] == model.class_of[d]).sum()) for d in self.devices}
            weight = summed(model.nets.items, np.repeat(model.cost_s, np.diff(model.nets.start)), model.atoms)
            weight += np.where(np.isfinite(model.work_s), model.work_s, 0.0).max(axis=1)
            for i, a in enumerate(np.argsort(-weight, kind="stable").tolist()):
                homes[a] = [d for d in homes[a] if rank[d] <= i]
        return homes


def _program(cp_model: Any, part: _Part, scale: float, ceiling: int) -> tuple[Any, dict[int, dict[int, Any]]]:
    """The program, and its x as {atom: {device: variable}}."""
    model = part.model
    program = cp_model.CpModel()
    x = {a: {d: program.new_bool_var("") for d in ds} for a, ds in part.homes().items()}
    for a, row in x.items():
        program.add_exactly_one(list(row.values()))
        if int(part.where[a]) in row:
            for d, v in row.items():
                program.add_hint(v, d == part.where[a])
    top = program.new_int_var(0, ceiling, "")
    for d in part.devices:
        compute, inward, outward = (int(b * scale) for b in part.base_s[:, d])
        c = int(model.class_of[d])
        work = [(x[a][d], int(model.work_s[a, c] * scale)) for a in part.atoms if d in x[a]]
        ins: list[tuple[Any, int]] = []
        outs: list[tuple[Any, int]] = []
        for e in part.nets if model.pays[d] else ():
            cost = int(model.cost_s[e] * scale)
            pay = (
                _overlapped(program, part, x, e, d)
                if model.rule == "overlap"
                else (_summed(program, part, x, e, d), None)
            )
            outs += [(pay[0], cost)] if pay[0] is not None else []
            ins += [(pay[1], cost)] if pay[1] is not None else []
        pays = bool(model.pays[d])
        if model.rule == "sum":
            program.add(_sum(cp_model, work + outs) + compute + pays * (inward + outward) <= top)
        else:
            for group, base in ((work, compute), (ins, pays * inward), (outs, pays * outward)):
                program.add(_sum(cp_model, group) + base <= top)
        if np.isfinite(model.room_bytes[d]):
            grain = 2.0 ** np.floor(
                np.log2(MEMORY_GRAIN / max(1.0, float(model.room_bytes[d])))
            )  # exact for halves too
            held = [(x[a][d], int(model.memory_bytes[a] * grain)) for a in part.atoms if d in x[a]]
            program.add(_sum(cp_model, held) + int(part.held[d] * grain) <= int(model.room_bytes[d] * grain))
    program.minimize(top)
    return program, x


def _sum(cp_model: Any, terms: list[tuple[Any, int]]) -> Any:
    return cp_model.LinearExpr.weighted_sum([v for v, _ in terms], [k for _, k in terms])


def _summed(program: Any, part: _Part, x: dict[int, dict[int, Any]], e: int, d: int) -> Any:
    """A literal that is true where device d pays for net e: it touches d and another device. None where it never does."""
    pins = part.model.nets.row(e).tolist()
    fixed = {int(part.where[a]) for a in pins if a not in x}
    here = [x[a].get(d) for a in pins if a in x]  # None: cannot be on d
    y = program.new_bool_var("")
    if d in fixed:  # pays unless every atom that moves joins it
        if len(fixed) > 1 or any(v is None for v in here):
            program.add_bool_or([y])
        else:
            for v in here:
                program.add_bool_or([v, y])
        return y
    present = [v for v in here if v is not None]
    if not present:
        return None
    if fixed or len(present) < len(here):  # some of it is elsewhere
        for v in present:
            program.add_implication(v, y)
    else:
        for v, w in zip(present, [*present[1:], present[0]], strict=True):
            program.add_bool_or([v.negated(), w, y])
    return y


def _overlapped(program: Any, part: _Part, x: dict[int, dict[int, Any]], e: int, d: int) -> tuple[Any, Any]:
    """Literals that are true where device d pays for net e on its way out, and on its way in; None where it never does."""
    maker, *readers = part.model.nets.row(e).tolist()

    def at(a: int) -> Any:
        """True or False where it is known, else the variable."""
        return x[a].get(d, False) if a in x else int(part.where[a]) == d

    made, read = at(maker), [at(a) for a in readers]
    return _any_pair(program, [(made, r) for r in read]), _any_pair(program, [(r, made) for r in read])


def _any_pair(program: Any, pairs: list[tuple[Any, Any]]) -> Any:
    """A literal that is true where some pair (u, v) has u and not v; None where none can."""
    pairs = [(u, v) for u, v in pairs if u is not False and v is not True]
    if not pairs:
        return None
    y = program.new_bool_var("")
    for u, v in pairs:
        program.add_bool_or([*([] if u is True else [u.negated()]), *([] if v is False else [v]), y])
    return y
