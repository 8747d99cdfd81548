"""Models and halves of them in turn, as jobs of several networks follow one another: each finds its weights pushed out of the
caches.

A model that runs again and again by itself is 5 to 30 % faster than in such company. So what it takes is measured here, in CPU
time, which a quota and others on the machine change little; how it divides over its tasks is measured by itself, once a machine.
What a job takes on the clock is its CPU time by the share of the core that the process receives.

Each turn has an order of its own. Where two sides of one machine take their turns at once, it matters which of their layers meet:
AlexNet takes 22 ms, or 25 while its last layers, which read 230 MB of weights, run beside the same ones of the other side. Turns of a
fixed order can fall into step: of ten windows of 1.6 s, eight saw a half at 0.66 to 0.68 of the whole, two at 0.61 to 0.62 (2 cores of an
EPYC, 27 November 2026). Of a few seconds the median still is one or the other where they meet half of the time.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np

from partita.errors import CaptureError, CostError, sentence_of
from partita.nouns.costs import Estimate
from partita.nouns.offload import LARGEST, Speed
from partita.offload.capture.onnx_inputs import random_inputs
from partita.offload.capture.onnx_model import OnnxModel
from partita.offload.measure.cuts import Side, feeds_of
from partita.offload.measure.speed import Sightings, Speedometer
from partita.offload.onnx_session import Session, TimeLimit

FEWEST, MOST = 3, 60  #: turns

Item = tuple[OnnxModel, frozenset[str]]  #: a model, and the tasks of it that are on the device


@dataclass(frozen=True)
class Turns:
    """What items take in each other's company, and how fast the machine was meanwhile."""

    cpu_s: tuple[tuple[float, ...], ...]  #: [items, turns] one inference
    speed: Speed

    def seconds(self, item: int) -> Estimate:
        """One inference on the clock: the median, and the 10 % and 90 % quantiles."""
        low, middle, high = np.quantile(self.cpu_s[item], (0.1, 0.5, 0.9)) / self.speed.share
        return Estimate(float(middle), float(low), float(high), "measured")

    def ratio(self, item: int, whole: int) -> float:
        """One item by another: the median over turns, for a change of the machine's speed meets both."""
        return float(np.median(np.divide(self.cpu_s[item], np.maximum(self.cpu_s[whole], 1e-12))))

    def to_json(self) -> dict[str, Any]:
        return {"cpu_s": [list(row) for row in self.cpu_s], "speed": asdict(self.speed)}

    @staticmethod
    def from_json(value: Mapping[str, Any], items: int, what: str) -> Turns:
        """The times of so many items. Raises CostError."""
        try:
            cpu_s = tuple(tuple(float(x) for x in row) for row in value["cpu_s"])
            speed = Speed(**{name: float(number) for name, number in value["speed"].items()})
            positive = all(1 / LARGEST <= x <= LARGEST for x in (speed.probe_s, speed.share))
            others = (speed.error, speed.behind_s, *(x for row in cpu_s for x in row))
            even = len({len(row) for row in cpu_s}) == 1 and all(cpu_s)
            sound = positive and even and all(0 <= x <= LARGEST for x in others)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise CostError(f"{what} is damaged: {sentence_of(error)}", hint="measure again") from error
        if not sound or len(cpu_s) != items:
            raise CostError(f"{what} has times that are none, or not those of {items} models", hint="measure again")
        return Turns(cpu_s, speed)


def measure_in_turn(
    items: Sequence[Item],
    side: Side = "device",
    budget_s: float = 4.0,
    limit: TimeLimit | None = None,
    *,
    alone: bool = True,
) -> Turns:
    """One inference of the side's half of each item after the other, FEWEST to MOST turns, some `budget_s`.

    With a `limit` it ends, with TookTooLong, when that is over. Raises CaptureError where an input's shape is not known, where
    ONNX Runtime refuses a half or cannot compute it, and where there is none. `alone` as of a `Speedometer`.
    """
    ready = []
    for model, cut in items:
        data = model.half(cut, side)
        if data is None:
            raise CaptureError(f"a cut of {model.name} leaves nothing for the {side}")
        session = Session(data, model.name, limit)
        ready.append(partial(session.run, feeds_of(model, cut, session, random_inputs(model), limit), limit=limit))
        ready[-1]()  # the first run asks for memory
    meter, sightings, seen = Speedometer(alone=alone), Sightings(), [list[float]() for _ in items]
    chance = np.random.default_rng()  # not the other side's
    began, turns = time.perf_counter(), 0
    while turns < FEWEST or (turns < MOST and time.perf_counter() - began < budget_s):
        for k in chance.permutation(len(ready)).tolist():
            _, lap = meter.infer(ready[k])
            seen[k].append(lap.cpu_s)
            sightings.add(lap.wall_s, lap.received_s)
            sightings.probes.append(meter.probe())
        turns += 1
    speed = sightings.speed()
    assert speed is not None  # it has probed
    return Turns(tuple(map(tuple, seen)), speed)
