"""The cuts of a network that a plan may use.

Where a network has few downsets, all are looked at and only the unbeaten ones are kept: nothing is lost. Where it has
more, candidates come from minimum cuts: those of least a d + b u + c s + e w for a sweep of weights (the vertices of
the lower hull that single machines and pairs of them ask for), the points where a single tensor crosses, and what the
bound asks for. Any further minimum cut can be had by `least`.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

import numpy as np

from partita.nouns.graph import BoolArray, FloatArray
from partita.offload.plan.downsets import front
from partita.offload.plan.min_cut import CutNetwork
from partita.offload.plan.network import Network

MOST_STEPS = 20_000_000  #: tasks looked at while enumerating downsets: about 0.1 s
MOST_DOWNSETS = 10_000


@dataclass(eq=False)
class Cuts:
    """Candidate cuts of a network; the first one keeps everything on the device."""

    network: Network
    cuts: BoolArray  #: [cuts, tasks]
    times: FloatArray  #: [cuts, 4] seconds on device, uplink, server, downlink
    complete: bool  #: no other cut is needed in any plan
    _flow: CutNetwork | None = field(default=None, repr=False)

    def least(self, weights: FloatArray, *, sent: bool = False) -> tuple[float, int]:
        """(a lower bound on the least weighted seconds of any cut, a cut that attains it) for [4] weights >= 0. A new cut joins the
        others, at the end.

        `sent`: of a cut that sends something, where that can be told. Where it cannot, and to send nothing is least, the cut is the
        best known one that sends, which does not attain the bound.
        inf, -1 where no cut sends anything without being beaten by the whole network.
        """
        if self.complete:
            costs = self.times[int(sent) :] @ weights
            return (float(costs.min()), int(costs.argmin()) + int(sent)) if len(costs) else (np.inf, -1)
        if self._flow is None:
            self._flow = CutNetwork.of(self.network)
        value, cut = self._flow.least(weights)
        at = self._at(cut)
        if sent and at == 0 and len(self.cuts) > 1:
            at = 1 + int((self.times[1:] @ weights).argmin())
        return value, at

    def _at(self, cut: BoolArray) -> int:
        """The number of a cut, which joins the others where it is new and no old one beats it."""
        times = self.network.times(cut)
        beaten = np.flatnonzero((self.times <= times).all(axis=1))
        if len(beaten):
            return int(beaten[0])
        self.cuts, self.times = np.concatenate([self.cuts, cut[None]]), np.concatenate([self.times, times[None]])
        return len(self.cuts) - 1


def cuts_of(network: Network) -> Cuts:
    """Candidates for a network."""
    most = max(1000, min(MOST_DOWNSETS, MOST_STEPS // (len(network) + len(network.reads.items))))
    cuts, times, complete = front(network, most)
    if complete:
        return Cuts(network, *_local_first(cuts, times, network), True)
    found = Cuts(network, *_local_first(cuts[:0], times[:0], network), False)
    for cut in _single_tensor_cuts(network):
        found._at(cut)
    scale = np.array([network.device_s.sum(), _reach(network), network.server_s.sum(), network.down_s.sum()])
    for weights in sweep():
        found.least(weights / np.maximum(scale, 1e-12))
    return found


def _reach(network: Network) -> float:
    """A typical time on the uplink: that of the input, or of the mean output where there is no input."""
    return max(network.input_up_s, float(network.up_s.mean()))


def sweep() -> list[FloatArray]:
    """Weights over the four machines: shares of eighths of device against uplink, and a coarse grid of all four."""
    pairs = [np.array([x, 1 - x, 0.0, 0.0]) for x in np.linspace(0.02, 0.98, 25)]
    grid = [np.array(p) / 4 for p in itertools.product(range(5), repeat=4) if sum(p) == 4]
    return pairs + grid


def _local_first(cuts: BoolArray, times: FloatArray, network: Network) -> tuple[BoolArray, FloatArray]:
    """The whole network in front; then the others that it does not beat."""
    whole = np.ones((1, len(network)), np.bool_)
    device = float(network.device_s.sum())
    kept = ~cuts.all(axis=1) & (times[:, 0] < device)
    return np.concatenate([whole, cuts[kept]]), np.concatenate([[[device, 0.0, 0.0, 0.0]], times[kept]])


def _single_tensor_cuts(network: Network) -> BoolArray:
    """[cuts, tasks] every prefix of the topological order whose boundary is one tensor, and the empty cut. O(tasks + edges)."""
    n = len(network)
    last = np.arange(n)  # the last reader of each task's output
    reader = np.repeat(np.arange(n), np.diff(network.reads.start))
    np.maximum.at(last, network.reads.items, reader)
    first = np.flatnonzero(np.diff(network.reads.start) == 0).max()
    opened = np.bincount(np.arange(n)[last > np.arange(n)], minlength=n + 1)[:n]
    closed = np.bincount(last[last > np.arange(n)], minlength=n + 1)[:n]
    crossing = np.cumsum(opened - closed)  # after task v: outputs before it with a reader behind it
    ends = np.flatnonzero((crossing == 1) & (np.arange(n) >= first))
    return np.concatenate([np.zeros((1, n), np.bool_), np.arange(n)[None, :] <= ends[:, None]])
