"""How fast a machine computes now: a probe between inferences, and the share of its core that a process receives in them.

A machine that others use too is slow in two ways. Its core does less in a second of CPU time (a neighbour in its caches, on its
other thread, a lower clock): the probe sees that, a network so small that it hardly costs anything. And its process is not
always on the core: CPU seconds received a second of inference tell that, of a quota as of a neighbour. What the jobs themselves
take is looked at by neither, so that a wrong price of theirs is not taken for a slow machine.

The probe runs once, behind an inference that has filled the caches: warm it takes a quarter of the time, and behind one of 5 ms that
is the same as the one before, half. So the probes behind inferences of a hundred times their length count, where there are any
(five networks of 5 to 55 ms in turn: 205 to 255 us; behind the short ones of a run 130 to 280; Xeon, 25 November 2026).
While a neighbour came and went, six networks took up to 1.5 times as long; windows of 1 s of theirs followed probes of this kind with a
slope of 0.9 and 3 to 5 % off, the same probes run a second time, from warm caches, with a slope of 0.5 and 9 % off (2 cores of a Xeon
at 2.5 GHz, 21 November 2026). Runs of 0.1 to 15 s, in which the neighbour is mostly the other side, follow with 0.5 to 0.6 (2 cores
of an EPYC, 25 to 27 November 2026): a probe that finds cold caches feels those who share them more than an inference does.

Six jobs of 35 ms allow for six probes. Their mean was up to 28 % above that of 20 others on a machine at rest, where the jobs took
what they had taken before: so the middle half counts, with its standard error (25 November 2026).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import TypeVar

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from partita.nouns.graph import FloatArray
from partita.nouns.offload import Speed
from partita.offload.capture.onnx_model import OnnxModel
from partita.offload.onnx_session import Session

MOST_SHARE = 0.01  #: of the CPU time of the inferences that the probes between them may take
CHANNELS, SIDE = 24, 20  #: of the probe's convolution: 0.3 ms on a core of 2.5 GHz
USUAL = 0.1  #: of probes of a machine at rest, the standard deviation as a share: of few ones it is not less
UNLIKE = 0.05  #: by what probes behind other inferences differ, however many: 5 to 8 % where nothing had changed
FEWEST = 5  #: probes; three of a run were 2.2 times as long as usual where the machine was as before
LONG = 100  #: times the probe: inferences that leave nothing of it in the caches
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Lap:
    """What one inference took."""

    wall_s: float
    cpu_s: float  #: of its thread
    received_s: float  #: CPU seconds that its process had meanwhile: of a core, or of a quota


@dataclass(slots=True)
class Sightings:
    """What was seen of a machine's speed."""

    #: CPU seconds, and those of the inference before it
    probes: list[tuple[float, float]] = field(default_factory=list)
    wall_s: float = 0.0  #: in inferences
    received_s: float = 0.0

    def add(self, wall_s: float, received_s: float) -> None:
        self.wall_s += wall_s
        self.received_s += received_s

    def speed(self, before: Speed | None = None) -> Speed | None:
        """The speed; what was not seen is as it was `before`. None where that is not known either."""
        share = self.received_s / self.wall_s if self.received_s > 0 < self.wall_s else before.share if before else 0.0
        behind_s = before.behind_s if before else self._long_s()
        fair = [probe_s for probe_s, inferred_s in self.probes if inferred_s >= behind_s]
        known = (before.probe_s, before.error) if before else (0.0, 0.0)
        enough = len(fair) >= (FEWEST if before else 1)
        probe_s, error = _middle(np.array(fair)) if enough else known
        return Speed(probe_s, share, error, behind_s) if probe_s > 0 and share > 0 else None

    def _long_s(self) -> float:
        """CPU seconds of an inference that is long beside a probe; 0 where too few are."""
        if not self.probes:
            return 0.0
        probe_s, inferred_s = np.array(self.probes).T
        enough_s = LONG * float(np.median(probe_s))
        return enough_s if np.count_nonzero(inferred_s >= enough_s) >= FEWEST else 0.0


class Speedometer:
    """For one thread: times inferences, and probes between them."""

    def __init__(self, *, alone: bool = True) -> None:
        """`alone`: no other thread of this process computes, so all the CPU time that it has is this one's."""
        self._clock_s = time.process_time if alone else time.thread_time
        self._probe = Session(_piece(), "the probe")
        self._feed = {"x": np.ones((1, CHANNELS, SIDE, SIDE), np.float32)}
        self._inferred_s = self._probed_s = self._last_s = 0.0
        self._probe.run(self._feed)

    def infer(self, run: Callable[[], _T]) -> tuple[_T, Lap]:
        """What it returns, and what it took."""
        wall_s, received_s, cpu_s = time.perf_counter(), self._clock_s(), time.thread_time()
        made = run()
        cpu_s = time.thread_time() - cpu_s
        received_s = self._clock_s() - received_s
        wall_s = time.perf_counter() - wall_s
        self._inferred_s += cpu_s
        self._last_s = cpu_s
        return made, Lap(wall_s, cpu_s, min(wall_s, received_s))

    def look(self, behind_s: float = 0.0) -> list[tuple[float, float]]:
        """A probe, where those so far have taken little of the time and the last inference took so long; else nothing."""
        fair = self._last_s >= behind_s and self._probed_s <= MOST_SHARE * self._inferred_s
        return [self.probe()] if fair else []

    def probe(self) -> tuple[float, float]:
        """CPU seconds of a probe, and of the inference before it."""
        began = time.thread_time()
        self._probe.run(self._feed)
        took_s = time.thread_time() - began
        self._probed_s += took_s
        return took_s, self._last_s


def _middle(probes: FloatArray) -> tuple[float, float]:
    """(mean of the middle half, its standard error as a share of it): one probe in ten takes up to three times as long as the
    others, and a short run has half a dozen of them."""
    cut = (len(probes) + 1) // 4
    fair = np.sort(probes)[cut : len(probes) - cut]
    spread = np.subtract(*np.quantile(probes, (0.75, 0.25))) / 1.35  # of a normal distribution, the standard deviation
    by_chance = float(max(spread / fair.mean(), USUAL) / np.sqrt(len(probes)))
    return float(fair.mean()), math.hypot(by_chance, UNLIKE)


@cache
def _piece() -> bytes:
    """A convolution."""
    shape = [1, CHANNELS, SIDE, SIDE]
    weight = np.random.default_rng(0).standard_normal((CHANNELS, CHANNELS, 3, 3), np.float32)
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1])],
        "probe",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
        [numpy_helper.from_array(weight, "w")],
    )
    return OnnxModel.of(graph).data
