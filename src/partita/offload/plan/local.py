"""Local search over cuts and order at once: simulated annealing on the exact makespan, in machine code.

Moves: another cut for a job; a job elsewhere in the order; two jobs exchanged; both at once. The temperature falls from
a few per cent of the makespan to nothing, several times over; the best plan seen is kept.
"""

from __future__ import annotations

import numpy as np

from partita.nouns.graph import FloatArray, IntArray
from partita.offload.plan.kernel import Shop, evaluate
from partita.offload.plan.shop import Found, found
from partita.solve.compiled import compiled
from partita.solve.random import between, seeded, uniform

Pool = tuple[IntArray, IntArray]  #: options by kind, as rows

HOT = 0.03  #: temperature at the start, as a share of the makespan


def improve(
    shop: Shop,
    start: Found,
    *,
    steps: int,
    seed: int = 0,
    orders: bool = True,
    pool: Pool | None = None,
    target_s: float = 0.0,
    hot: float = HOT,
) -> Found:
    """The best plan within `steps` moves of a plan, by moving jobs (`orders`) and taking cuts of `pool`; stops at target_s.

    O(steps x jobs x threads); the same seed gives the same plan.
    """
    cuts = pool is not None
    first, items = pool if pool is not None else (shop.first, shop.first)
    order, choice = anneal(
        shop, start.order.copy(), start.choice.copy(), first, items, steps, seed, orders, cuts, target_s, hot
    )
    better = found(shop, order, choice, start.method)
    return better if better.value < start.value else start


def pool_of(shop: Shop, weights: FloatArray, most: int = 12) -> Pool:
    """For every kind the options that are cheap for weights [5] near the given ones: (first [kinds + 1], options).

    The weights of a bound say what a second of each machine is worth; options that are dear by them are in few good plans.
    """
    times = np.stack([shop.d, shop.d, shop.u, shop.s / shop.threads, shop.w])
    rows = np.concatenate([weights[None], (3 * weights + np.eye(5)) / 4, (weights + np.eye(5)) / 2])
    cost = rows @ times
    cost[:, shop.local] = rows[:, :1] * shop.d[shop.local]
    pools = []
    for a, b in zip(shop.first[:-1], shop.first[1:], strict=True):
        cheap = np.argsort(cost[:, a:b], axis=1, kind="stable")
        # the first row's favourites, then one or two of each other row
        chosen = dict.fromkeys([*cheap[0, :most].tolist(), *cheap[1:, :3].ravel().tolist(), 0])
        pools.append(a + np.array(sorted(chosen), np.int64))
    first = np.concatenate([[0], np.cumsum([len(p) for p in pools])]).astype(np.int64)
    return first, np.concatenate(pools)


def whole_pool(shop: Shop) -> Pool:
    """Every option."""
    return shop.first, np.arange(shop.first[-1], dtype=np.int64)


@compiled
def anneal(
    shop: Shop,
    order: IntArray,
    choice: IntArray,
    pool_first: IntArray,
    pool: IntArray,
    steps: int,
    seed: int,
    orders: bool,
    cuts: bool,
    target: float,
    hot: float,
) -> tuple[IntArray, IntArray]:
    """([n], [n]) the best order and options seen."""
    random = seeded(seed)
    n = len(order)
    late, value = evaluate(shop, order, choice)
    best_order, best_choice, best_late, best = order.copy(), choice.copy(), late, value
    scale = hot * value
    trial, picked = order.copy(), choice.copy()
    for step in range(steps):
        if best_late <= 0.0 and best <= target * (1 + 1e-12):
            break
        heat = scale * (1.0 - step / steps) ** 3
        move = uniform(random)
        i = between(random, 0, n)
        j = order[i]
        if cuts and (move < 0.5 or not orders or n == 1):
            picked[j] = pool[between(random, pool_first[shop.kind[j]], pool_first[shop.kind[j] + 1])]
        if orders and n > 1 and (move > 0.35 or not cuts):
            k = between(random, 0, n)
            if move > 0.75:
                trial[i], trial[k] = trial[k], trial[i]
            elif k < i:
                trial[k + 1 : i + 1] = order[k:i]
                trial[k] = j
            elif k > i:
                trial[i:k] = order[i + 1 : k + 1]
                trial[k] = j
        new_late, new = evaluate(shop, trial, picked)
        worse = max(0.0, new - value) + 10.0 * max(0.0, new_late - late)
        if (new_late <= late and new <= value) or (heat > 0 and uniform(random) < np.exp(-worse / heat)):
            order[:] = trial
            choice[:] = picked
            late, value = new_late, new
            if late < best_late or (late == best_late and value < best):
                best_order[:] = order
                best_choice[:] = choice
                best_late, best = late, value
        else:
            trial[:] = order
            picked[:] = choice
    return best_order, best_choice
