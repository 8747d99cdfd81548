"""Two machines in a row, an order for the jobs: Johnson's rule, with time lags.

Job j takes first_s[j] on the first machine and second_s[j] on the second one, where it may start lag_s[j] after the
first one has ended it. Both machines serve the jobs in one order. The order that ends first: jobs with
first < second by ascending first + lag, then the others by descending second + lag.

    device  [0][ 1 ][   2   ]                         0 and 1: short first, long second
    uplink     [   0   ][  1   ][ 2 ]                 2: long first, short second
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from partita.nouns.graph import FloatArray, IntArray


def johnson_order(first_s: FloatArray, second_s: FloatArray, lag_s: FloatArray | float = 0.0) -> IntArray:
    """[n] the jobs in an order of least makespan among all permutations. O(n log n).

    Optimal for two machines that serve the jobs in the same order (Johnson 1954; with lags Mitten 1959). Equal jobs keep
    their order.

    >>> johnson_order(np.array([4.0, 1.0, 3.0]), np.array([2.0, 5.0, 6.0])).tolist()
    [1, 2, 0]
    """
    first, second = first_s + lag_s, second_s + lag_s
    early = first_s < second_s
    return np.lexsort((np.where(early, first, -second), ~early)).astype(np.int64)


def two_machine_makespan(
    order: Sequence[int] | IntArray, first_s: FloatArray, second_s: FloatArray, lag_s: FloatArray | float = 0.0
) -> float:
    """When the second machine is done with all jobs of an order. O(n).

    >>> two_machine_makespan([1, 2, 0], np.array([4.0, 1.0, 3.0]), np.array([2.0, 5.0, 6.0]))
    14.0
    """
    lags = np.broadcast_to(np.asarray(lag_s, np.float64), first_s.shape)
    one = two = 0.0
    for j in order:
        one += float(first_s[j])
        two = max(two, one + float(lags[j])) + float(second_s[j])
    return two
