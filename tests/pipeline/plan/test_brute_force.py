"""The planner against every pipeline plan of random small problems: bounds, values, memory and infeasibility."""

from __future__ import annotations

import math

import pytest
from pipeline.plan.brute_force import NEAR, outcome, problem


@pytest.mark.parametrize("seed", range(40))
def test_no_claim_is_wrong(seed):
    assert outcome(*problem(seed)).faults == ()


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_no_claim_is_wrong_in_500_problems():
    found = [outcome(*problem(seed)) for seed in range(500)]
    faults = {seed: o.faults for seed, o in enumerate(found) if o.faults}
    assert faults == {}
    behind = [o.value_s / o.best_s - 1 for o in found if math.isfinite(o.best_s)]
    late = [x for x in behind if x > NEAR]
    print(
        f"{len(behind)} can be planned, {len(late)} not optimal, worst {max(behind):.3%}, mean {sum(behind) / len(behind):.4%}"
    )
    assert max(behind) < 0.2
