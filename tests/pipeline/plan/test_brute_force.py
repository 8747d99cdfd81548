"""The planner against every pipeline plan of random small problems: bounds, values, memory and infeasibility."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

import pytest
from pipeline.plan.brute_force import Wishes, every_plan, memory, problem, simulated

from partita.errors import Infeasible
from partita.nouns.profile import Profile
from partita.pipeline.plan.pipeline_task import PipelineTask, Wish
from partita.pipeline.plan.planner import plan_pipeline
from partita.simulate.schedules import in_flight_of

NEAR = 1e-9


@dataclass(frozen=True)
class Outcome:
    """What came of a problem."""

    best_s: float  #: of all plans; inf: none fits
    value_s: float  #: of the planner's; inf: it says that none fits
    bound_s: float  #: raw
    faults: tuple[str, ...] = ()


def outcome(profile: Profile, wishes: Wishes) -> Outcome:
    """Plan, try every plan, and compare."""
    asked = dataclasses.asdict(wishes)
    best = min((simulated(p, s, profile.cluster) for p, s in every_plan(profile, wishes)), default=math.inf)
    raw = PipelineTask(profile, profile.cluster, Wish(**asked)).lower_bound()[0]
    faults = [f"bound {raw} above {best}"] if raw > best * (1 + NEAR) else []
    try:
        file = plan_pipeline(profile, **asked)
    except Infeasible as error:
        if math.isfinite(best):
            faults.append(f"infeasible, though a plan takes {best}: {error}")
        return Outcome(best, math.inf, raw, tuple(faults))
    plan, verdict = file.plan, file.plan.verdict
    sample = profile.sample(int(file.facts["micro_batch_size"]))
    true = simulated(plan, sample, profile.cluster)
    if abs(true - verdict.value_s) > NEAR * true:
        faults.append(f"value {verdict.value_s}, simulated {true}")
    if verdict.value_s < best * (1 - NEAR):
        faults.append(f"value {verdict.value_s} below the optimum {best}")
    if verdict.lower_bound_s > raw * (1 + NEAR) or verdict.lower_bound_s < min(raw, verdict.value_s) * (1 - NEAR):
        faults.append(f"bound {verdict.lower_bound_s} is not the raw one {raw}")
    if verdict.gap < NEAR and verdict.value_s > best * (1 + 10 * NEAR):
        faults.append(f"proven optimal at {verdict.value_s}, though a plan takes {best}")
    flown = in_flight_of(plan.schedule, [s.replicas for s in plan.stages], plan.micro_batches, plan.in_flight)
    for stage, windows in zip(plan.stages, flown, strict=True):
        need = memory(profile, sample.graph, stage.tasks, -(-windows // stage.replicas), stage.recompute)
        room = min(profile.cluster.by_name[d].memory_bytes for d in stage.devices)
        if need > room * (1 + NEAR):
            faults.append(f"a stage holds {need} of {room} bytes")
    return Outcome(best, verdict.value_s, raw, tuple(faults))


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
    print(f"{len(behind)} can be planned, {len(late)} not optimal, worst {max(behind):.3%}, mean {sum(behind) / len(behind):.4%}")
    assert max(behind) < 0.2
