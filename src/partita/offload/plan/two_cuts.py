"""Equal chains: two neighbouring cuts (Duan & Wu 2021, reconstructed), and free cuts for the two end jobs.

Along a chain the device part f grows and the upload g (mostly) shrinks. With l* the first cut where f >= g, m jobs are
cut just before l* and the others at l*, in Johnson's order, for the best m. While the first job computes nothing is sent,
and while the last one is sent nothing computes: so `two-cuts+ends` lets these two jobs have any cut.
"""

from __future__ import annotations

import numpy as np

from partita.errors import BadInput
from partita.offload.plan.baselines import least
from partita.offload.plan.kernel import Shop
from partita.offload.plan.network import Network
from partita.offload.plan.shop import Found, alone_s, best_of, found
from partita.solve.johnson import johnson_order


def johnson(shop: Shop) -> Found:
    """The cut that answers a lone job soonest for each job, in Johnson's order of device and uplink. O(n log n)."""
    choice = least(shop, alone_s(shop))
    after = np.where(shop.local, 0.0, shop.lag + shop.s + shop.w)[choice]
    return found(shop, johnson_order(shop.d[choice], shop.u[choice], after), choice, "johnson")


def is_chain(network: Network) -> bool:
    """Every task but the first reads the one before it.

    >>> from partita.nouns.graph import csr
    >>> z = np.zeros(2)
    >>> is_chain(Network(z, z, z, z, 0.0, csr([[], [0]]), csr([[1], []])))
    True
    """
    return len(network.reads.items) == len(network) - 1 and bool(
        (network.reads.items == np.arange(len(network) - 1)).all()
    )


def two_cuts(shop: Shop, network: Network, *, ends: bool) -> Found:
    """The best number of jobs for each of the two cuts; with `ends`, the first and the last job have any cut.

    O(n^2) for n jobs, times options with `ends`. Raises BadInput where the jobs are not equal chains.
    """
    if len(shop.first) > 2 or not is_chain(network):
        name = "two-cuts+ends" if ends else "two-cuts"
        raise BadInput(f"{name} is for jobs that are equal chains; these are not", hint="say --method auto")
    n = len(shop.kind)
    along = np.argsort(shop.d, kind="stable")
    behind = int((shop.d[along] >= shop.u[along]).argmax())
    pair = along[max(0, behind - 1)], along[behind]
    plans = []
    for m in range(n + 1):
        choice = np.where(np.arange(n) < m, pair[0], pair[1])
        plans.append(found(shop, johnson_order(shop.d[choice], shop.u[choice]), choice, "two-cuts"))
    best = best_of(plans)
    return _freed(shop, best) if ends else best


def _freed(shop: Shop, best: Found) -> Found:
    """Any cut for the first job, then for the last one, as long as that helps."""
    value = None
    while value != best.value:
        value = best.value
        sent = best.order[~shop.local[best.choice[best.order]]]
        for j in dict.fromkeys([int(best.order[0]), *sent[-1:].tolist(), int(best.order[-1])]):
            trials = []
            for o in range(len(shop.d)):
                choice = best.choice.copy()
                choice[j] = o
                trials.append(found(shop, best.order, choice, "two-cuts+ends"))
            best = best_of([best, *trials])
    return best if best.method == "two-cuts+ends" else Found(best.order, best.choice, *best.value, "two-cuts+ends")
