"""The dynamic program over states and a line of devices, against every chain."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pipeline.plan.planning_worlds import MANY, profiles

from partita.nouns.pipeline_problem import Wish
from partita.nouns.stage_memory import stage_bytes
from partita.pipeline.plan.antichain_dp import every_line
from partita.pipeline.plan.blocks import block_partition
from partita.pipeline.plan.chain_dp import Chain, ChainProblem, Segment, busiest, segment_s, solve
from partita.pipeline.plan.pipeline_task import PipelineTask


def every_chain(p: ChainProblem, state: int, at: int) -> Iterator[tuple[float, Chain]]:
    """Every chain from a state with exactly the devices from a place of the line on, with its cost."""
    last, end = len(p.tables.head_s) - 1, len(p.line)
    if state == last:
        if at == end:
            yield 0.0, ()
        return
    for j, m, again in itertools.product(range(state + 1, last + 1), p.sizes, p.modes):
        if at + m > end or not p.tables.contains[state, j]:
            continue
        held = -(-min(int(p.window[end - at]), p.tables.micro_batches) // m)
        t = p.tables
        need = stage_bytes(t.weights[state, j], t.kept[state, j], t.inputs[state, j], held, again)
        own = segment_s(t, p.line[at : at + m], held, Segment(state, j, (), again))
        assert math.isinf(own) or need <= min(t.memory_bytes[c] for c in p.line[at : at + m])
        if math.isfinite(own):
            for cost, chain in every_chain(p, j, at + m):
                yield max(cost, own), (Segment(state, j, tuple(range(at, at + m)), again), *chain)


@given(profiles(tight=True), st.sampled_from([None, 1, 2]))
@MANY
def test_the_table_is_the_least_over_all_chains_and_the_runners_up_come_in_order(profile, stages):
    task = PipelineTask(profile, profile.cluster, Wish(stages=stages))
    for bench, line in itertools.product(task.benches, (every_line(task) or [])[:2]):
        table = solve(task.chain_problem(bench, line, task.windows(bench)[0]))
        for first in range(len(line)):
            chains = every_chain(table.problem, 0, first)
            found = sorted(c for c, chain in chains if stages in (None, len(chain)))
            if not found:
                assert table.best(first) == math.inf
                assert list(table.chains(first, 3)) == []
                continue
            assert table.best(first) == pytest.approx(found[0])
            listed = list(table.chains(first, 10_000, math.inf))
            assert [c for c, _ in listed] == pytest.approx(found)
            assert len({chain for _, chain in listed}) == len(found)


@given(st.lists(st.integers(0, 2), min_size=1, max_size=5), st.integers(1, 12))
@MANY
def test_the_busiest_device_of_a_class_when_replicas_take_turns(classes, micro_batches):
    turns = [sum(b % len(classes) == r for b in range(micro_batches)) for r in range(len(classes))]
    assert busiest(classes, micro_batches) == {
        c: max(n for n, k in zip(turns, classes, strict=True) if k == c) for c in set(classes)
    }


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
