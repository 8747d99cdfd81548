"""The constraint solver ends at Ctrl-C, and what called it with it."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest

from partita.solve import constraint_solver

HARD = """
import random
from ortools.sat.python import cp_model
from partita.solve.constraint_solver import solved
program, dice = cp_model.CpModel(), random.Random(0)
of = [program.new_bool_var("") for _ in range(500)]
for _ in range(2150):  # three literals each: about as many as can just be, or just not be, true together
    program.add_bool_or([dice.choice([v, v.negated()]) for v in dice.sample(of, 3)])
print("ready", flush=True)
try:
    solved(program, seed=0, limit_s=60.0)
except KeyboardInterrupt:
    print("heard", flush=True)
"""


@pytest.mark.skipif(not constraint_solver.available(), reason="needs OR-tools")
def test_ctrl_c_during_a_proof_is_heard() -> None:
    with subprocess.Popen([sys.executable, "-c", HARD], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        time.sleep(1.0)
        began = time.monotonic()
        child.send_signal(signal.SIGINT)
        said = child.stdout.readline()
        child.kill()
    assert said == b"heard\n"
    assert time.monotonic() - began < 20
