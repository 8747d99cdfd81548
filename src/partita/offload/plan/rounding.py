"""Many jobs: cuts in the proportions of the bound's linear program, made whole.

The program says how many jobs of a kind should have each cut for the machines to be equally full; at most a few of these
numbers are fractions. Rounded by largest remainder and at random, and put into Johnson's orders, they give plans whose
distance to the bound is that of a few jobs, however many there are.
"""

from __future__ import annotations

import numpy as np

from partita.nouns.graph import IntArray
from partita.offload.plan.baselines import orders
from partita.offload.plan.bounds import Bound
from partita.offload.plan.kernel import Shop
from partita.offload.plan.shop import Found, found

TRIES = 16  #: random roundings


def rounded(shop: Shop, bound: Bound, seed: int) -> list[Found]:
    """A plan for each rounding, in the best of Johnson's orders. O(tries x orders x jobs log jobs)."""
    random = np.random.default_rng(seed)
    plans = []
    for attempt in range(TRIES + 1):
        choice = np.zeros(len(shop.kind), np.int64)
        for k, mix in enumerate(bound.mix):
            jobs = np.flatnonzero(shop.kind == k)
            choice[jobs] = shop.first[k] + _whole(mix, len(jobs), random if attempt else None)
        plans += [found(shop, o, choice, "rounded") for o in orders(shop, choice)]
    return plans


def _whole(mix: dict[int, float], jobs: int, random: np.random.Generator | None) -> IntArray:
    """[jobs] cuts in these proportions, by largest remainder, or the remainders by chance."""
    cuts, amount = np.array(list(mix), np.int64), np.maximum(list(mix.values()), 0.0)
    whole = np.floor(amount + 1e-9)
    rest = np.maximum(amount - whole, 0.0)
    missing = jobs - int(whole.sum())
    if missing > 0 and random is not None and rest.sum() > 1e-9:
        whole += random.multinomial(missing, rest / rest.sum())
    elif missing > 0:
        whole[np.argsort(-rest, kind="stable")[:missing]] += 1
    return np.repeat(cuts, whole.astype(np.int64))[:jobs]
