"""OR-tools' constraint solver (CP-SAT) as all wings use it: one worker, so that the same seed gives the same answer."""

from __future__ import annotations

import importlib.util
import math
from typing import Any

from partita.solve.compiled import heard


def available() -> bool:
    """OR-tools is installed."""
    return importlib.util.find_spec("ortools") is not None


def solved(program: Any, *, seed: int, limit_s: float = math.inf, limit_units: float = math.inf) -> tuple[Any, int]:
    """(the solver with what it found, its status) of a `CpModel`; `limit_s` are wall-clock seconds, `limit_units` those of its
    own deterministic count, about as long.

    The solver would take Ctrl-C for the end of its time, and what called it would go on: it raises KeyboardInterrupt instead.
    """
    from ortools.sat.python import cp_model

    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = seed & 0x7FFFFFFF
    solver.parameters.catch_sigint_signal = False
    if limit_s < math.inf:
        solver.parameters.max_time_in_seconds = limit_s
    if limit_units < math.inf:
        solver.parameters.max_deterministic_time = limit_units
    try:
        return solver, heard(solver.solve, program)
    except KeyboardInterrupt:
        solver.stop_search()
        raise
