"""The planner against every pipeline plan of random small problems: bounds, values, memory and infeasibility."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from pipeline.plan.brute_force import NEAR, outcome, problem

from partita.nouns.costs import CostTable
from partita.nouns.graph import Task, TaskGraph
from partita.nouns.profile import Sample
from partita.pipeline.plan.planner import plan_pipeline


@pytest.mark.parametrize("seed", range(40))
def test_no_claim_is_wrong(seed):
    assert outcome(*problem(seed)).faults == ()


@pytest.mark.parametrize("seed", range(5000, 5012))
def test_no_claim_is_wrong_where_devices_are_faster_alone_at_one_size_only(seed):
    profile, wishes = problem(seed)
    first, *others = profile.samples
    alike = [
        replace(s, probe=replace(s.probe, alone=alone)) for s, alone in ((first, 1.0), *((s, 2.0) for s in others))
    ]
    for samples in (alike, [replace(s, probe=replace(s.probe, alone=3.0 - s.probe.alone)) for s in alike]):
        assert outcome(replace(profile, samples=tuple(samples)), wishes).faults == ()


@pytest.mark.parametrize("seed", range(12))
def test_a_bound_holds_where_updates_stand_behind_no_backwards(seed):
    """Such a plan updates nothing."""
    profile, _ = problem(seed)
    devices = tuple(replace(d, update_s=5.0, memory_bytes=math.inf) for d in profile.cluster.devices)
    samples = tuple(replace(s, graph=g, costs=c) for s in profile.samples for g, c in [forwards_and_updates(s)])
    found = plan_pipeline(replace(profile, samples=samples, cluster=replace(profile.cluster, devices=devices))).verdict
    assert found.lower_bound_s <= found.value_s * (1 + 1e-9)


def forwards_and_updates(sample: Sample) -> tuple[TaskGraph, CostTable]:
    """The graph without its backwards, and what is left of the costs."""
    graph, costs = sample.graph, sample.costs
    forward = [t for t in graph.tasks if t.phase == "forward"]
    names = {t.id for t in forward}
    kept = [i for i, p in enumerate(graph.producer) if graph.tasks[p].id in names]
    tensors = [
        (graph.tasks[graph.producer[i]].id, float(graph.size_bytes[i]), [graph.tasks[r].id for r in graph.readers.row(i) if graph.tasks[r].id in names])
        for i in kept
    ]  # fmt: skip
    updates = [Task(f"u{t.id}", phase="update", of=t.id) for t in forward]
    seconds = costs.seconds[[i for i, t in enumerate(graph.tasks) if t.phase == "forward"]]
    smaller = TaskGraph.build("world", [*forward, *updates], tensors, graph.shared)
    return smaller, CostTable.given(costs.kinds, np.concatenate([seconds, seconds]), costs.transfer_s[kept])


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
