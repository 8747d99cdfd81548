"""Johnson's order against every order."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from partita.solve.johnson import johnson_order, two_machine_makespan

Times = st.lists(st.tuples(*[st.integers(0, 9)] * 3), min_size=1, max_size=6)


@settings(max_examples=60, deadline=None)
@given(Times)
def test_no_order_ends_sooner(jobs: list[tuple[int, int, int]]) -> None:
    first, second, lag = np.array(jobs, np.float64).T
    best = min(two_machine_makespan(o, first, second, lag) for o in itertools.permutations(range(len(jobs))))
    order = johnson_order(first, second, lag)
    assert sorted(order.tolist()) == list(range(len(jobs)))
    assert two_machine_makespan(order, first, second, lag) == best
