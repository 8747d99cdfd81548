"""The dynamic program over states, against every chain."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from planning_worlds import MANY, profiles

from partita.pipeline.plan.antichain_dp import stage_cost
from partita.pipeline.plan.blocks import block_partition
from partita.pipeline.plan.pipeline_task import PipelineTask, Wish
from partita.solve.chain_dp import ChainProblem, Link, solve


def every_chain(p: ChainProblem, contains, vector: tuple[int, ...], at: int = 0):
    """Every chain from a state with exactly these devices, with its cost."""
    last = p.cost.shape[-1] - 1
    if at == last:
        if not any(vector):
            yield 0.0, ()
        return
    for j, t, (o, option) in itertools.product(range(at + 1, last + 1), range(len(p.counts)), enumerate(p.options)):
        if not contains[at, j] or vector[t] < option.replicas:
            continue
        mode = int(option.recompute)
        need = p.fixed_bytes[mode, at, j] + p.held[sum(vector), o] * p.kept_bytes[mode, at, j]
        if need > p.memory_bytes[t] or not math.isfinite(p.cost[t, o, at, j]):
            continue
        rest = (*vector[:t], vector[t] - option.replicas, *vector[t + 1 :])
        for cost, chain in every_chain(p, contains, rest, j):
            yield max(cost, float(p.cost[t, o, at, j])), (Link(at, j, t, option.replicas, option.recompute), *chain)


@given(profiles(tight=True), st.sampled_from([None, 1, 2]))
@MANY
def test_the_table_is_the_least_over_all_chains_and_the_runners_up_come_in_order(profile, stages):
    task = PipelineTask(profile, profile.cluster, Wish(stages=stages))
    for bench, wait in zip(task.benches, task.waits, strict=True):
        table = solve(task.chain_problem(bench, stage_cost(bench.costs, wait, task.options), 1))
        p = table.problem
        for v, vector in enumerate(p.vectors.tolist()[1:], 1):
            found = sorted(
                c for c, chain in every_chain(p, task.states.contains, tuple(vector)) if stages in (None, len(chain))
            )
            if not found:
                assert table.best(v) == math.inf
                assert list(table.chains(v, 3)) == []
                continue
            assert table.best(v) == pytest.approx(found[0])
            listed = list(table.chains(v, 10_000, math.inf))
            assert [c for c, _ in listed] == pytest.approx(found)
            assert len({chain for _, chain in listed}) == len(found)


@given(st.lists(st.floats(0, 10), min_size=1, max_size=12), st.integers(1, 5))
@MANY
def test_blocks_differ_by_at_most_the_spread(times, blocks):
    blocks = min(blocks, len(times))
    ends = block_partition(times, blocks)
    sums = [sum(times[i:j]) - min(times) * (j - i) for i, j in itertools.pairwise([0, *ends])]
    assert ends[-1] == len(times)
    assert len(ends) == blocks
    assert max(sums) - min(sums) <= (max(times) - min(times)) * (1 + 1e-9) + 1e-9


def test_too_few_items_for_the_blocks():
    with pytest.raises(ValueError, match="2 items in 3 blocks"):
        block_partition(np.array([1.0, 2.0]), 3)
