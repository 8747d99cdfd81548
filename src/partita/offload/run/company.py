"""What bytes under way take of the inferences that run meanwhile, on either side: of the jobs' own networks.

A packet's interrupts count as the inference's, and what they and the copying push out of the caches it has to fetch again. By how
much depends on the network: at 12 MB/s convolutions of 0.15 MB of weights took 1.10 times their CPU time on a device and 1.03 times
on a server, the networks of thirty mixed jobs 1.27 and 1.16 times (2 cores of a Xeon, 25 November 2026).

So one real run does every model whole on either side, apart and in company, for some rounds:

    apart   device  A B               company   device  A   B
            uplink      a   b                   uplink   m a m b     m: a message that only takes time
            server        A   B                 server      A   B

What inferences take more in company, by the bytes that passed while they ran, is the price of a byte.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from onnx import TensorProto, helper

from partita.nouns.offload import OffloadJob, OffloadLink, OffloadPlan, OffloadProblem
from partita.offload.capture.onnx_inputs import random_inputs
from partita.offload.capture.onnx_model import OnnxModel
from partita.offload.measure.cuts import Side
from partita.offload.run.client import Client
from partita.offload.run.execute import execute
from partita.offload.run.record import Interval, JobTimes

FEWEST, MOST = 2, 12  #: rounds
SPARE, SPARE_S = 1.2, 0.02  #: of a wait: times what is expected, and on top of it
FEWEST_FLOATS, MOST_FLOATS = 1_000, 250_000  #: of a message


@dataclass(frozen=True)
class Inferring:
    """A model, and what an inference takes on either side, on the clock."""

    model: OnnxModel
    device_s: float
    server_s: float


@dataclass(frozen=True, slots=True)
class _Turn:
    """One job of the run; none of the models' inferences where it is a message that only takes time."""

    together: bool
    model: int
    side: Side | None
    release_s: float


def price_of_company(
    each: Sequence[Inferring], link: OffloadLink, connect: Callable[[], Client], budget_s: float = 4.0
) -> tuple[float, float]:
    """(device, server): CPU seconds that a byte takes of inferences. Takes some `budget_s`, more where FEWEST rounds need it; the
    server must hold the models. Raises Unreachable, Refused."""
    longest_s = max(max(e.device_s, e.server_s) for e in each)
    message = _message(int(np.clip(longest_s * link.up_bytes_per_s / 4, FEWEST_FLOATS, MOST_FLOATS)))
    one, round_s = _round(each, message, link)
    rounds = int(np.clip(budget_s / round_s, FEWEST, MOST))
    turns = [replace(t, release_s=t.release_s + k * round_s) for k in range(rounds) for t in one]
    took = _executed(turns, each, message, link, connect)
    return _price(took, "device", link), _price(took, "server", link)


def _message(floats: int) -> OnnxModel:
    """The largest of so many numbers."""
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [size]) for n, size in (("x", floats), ("y", 1))]
    return OnnxModel.of(helper.make_graph([helper.make_node("ReduceMax", ["x"], ["y"])], "message", ends[:1], ends[1:]))


def _round(each: Sequence[Inferring], message: OnnxModel, link: OffloadLink) -> tuple[list[_Turn], float]:
    """The jobs of a round, and when it is over."""
    here_s, there_s = sum(e.device_s for e in each), sum(e.server_s for e in each)
    turns, at_s = [_Turn(False, m, "device", 0.0) for m in range(len(each))], SPARE * here_s + SPARE_S
    for m, e in enumerate(each):
        turns.append(_Turn(False, m, "server", at_s))
        at_s += SPARE * (e.model.input_bytes / link.up_bytes_per_s + link.round_trip_s + e.server_s) + SPARE_S
    for m in range(len(each)):
        turns += [_Turn(True, m, side, at_s) for side in ("device", None, "server")]
    up_s = sum(e.model.input_bytes + message.input_bytes for e in each) / link.up_bytes_per_s + link.round_trip_s
    return turns, at_s + SPARE * max(here_s, up_s, there_s) + SPARE_S


def _executed(
    turns: Sequence[_Turn],
    each: Sequence[Inferring],
    message: OnnxModel,
    link: OffloadLink,
    connect: Callable[[], Client],
) -> list[tuple[_Turn, JobTimes]]:
    """What each took, by the real runner and the real server."""
    models = [message if t.side is None else each[t.model].model for t in turns]
    several = {m.hash: m for m in models}
    rows, feeds = {h: _job(m) for h, m in several.items()}, {h: random_inputs(m) for h, m in several.items()}
    cuts = [frozenset(m.tasks_topological if t.side == "device" else ()) for t, m in zip(turns, models, strict=True)]
    jobs = [
        replace(rows[m.hash], name=str(k), release_s=t.release_s)
        for k, (t, m) in enumerate(zip(turns, models, strict=True))
    ]
    plan = OffloadPlan(tuple(range(len(turns))), tuple(cuts))
    done = execute(OffloadProblem(link, tuple(jobs)), plan, models, [feeds[m.hash] for m in models], connect)
    return list(zip(turns, done.times, strict=True))


def _job(model: OnnxModel) -> OffloadJob:
    """As for a planner that knows no times."""
    return model.offload_job(*[dict.fromkeys(model.tasks_topological, 0.0)] * 2)


def _price(took: Sequence[tuple[_Turn, JobTimes]], side: Side, link: OffloadLink) -> float:
    """What inferences of one side take more in company, for each byte that passed meanwhile."""
    cpu_s, passed_s = dict[tuple[bool, int], list[float]](), 0.0
    up = [t.uplink for turn, t in took if turn.together and t.uplink]
    for turn, t in took:
        ran = t.device if side == "device" else t.server
        if turn.side == side and ran:
            cpu = t.device_cpu_s if side == "device" else t.server_cpu_s
            cpu_s.setdefault((turn.together, turn.model), []).append(cpu)
            passed_s += sum(_common_s(ran, u) for u in up) if turn.together else 0.0
    ran_twice = [m for together, m in cpu_s if together and (False, m) in cpu_s]
    more_s = sum(len(cpu_s[True, m]) * (np.median(cpu_s[True, m]) - np.median(cpu_s[False, m])) for m in ran_twice)
    return float(max(0.0, more_s / (passed_s * link.up_bytes_per_s))) if passed_s > 0 else 0.0


def _common_s(a: Interval, b: Interval) -> float:
    """
    >>> _common_s((0.0, 2.0), (1.5, 3.0)), _common_s((0.0, 1.0), (2.0, 3.0))
    (0.5, 0.0)
    """
    return max(0.0, min(a[1], b[1]) - max(a[0], b[0]))
