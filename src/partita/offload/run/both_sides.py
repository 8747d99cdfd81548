"""What a planner has to know, measured: the models on either side, the link, and what messages take of both sides.

One after the other, so that nothing disturbs it, and inside whatever quota the device's process has: all times are those
on the clock that a plan will meet. A message's cost is counted in CPU seconds, for a wait is none; a side that runs for a
share of the time only (a quota, neighbours) takes so many times as long, as its models say.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from partita.nouns.offload import OffloadProblem
from partita.offload.capture.jobs import JobSpec
from partita.offload.capture.onnx_model import OnnxModel
from partita.offload.measure.cuts import with_messages
from partita.offload.measure.inference import InferenceTimes, measure_model
from partita.offload.measure.link import LinkTimes, measure_link
from partita.offload.run.client import Client
from partita.offload.run.message_cost import MessageCost, message_cost
from partita.offload.run.problem import problem_of


@dataclass(frozen=True)
class BothSides:
    """A measured problem, and what it was made of."""

    problem: OffloadProblem
    device: Mapping[str, InferenceTimes]  #: by the models' hashes
    server: Mapping[str, InferenceTimes]
    link: LinkTimes  #: with what sending takes of the device
    messages: MessageCost


def measure_both_sides(
    jobs: Sequence[JobSpec],
    connect: Callable[[], Client],
    budget_s: float = 4.0,
    *,
    here: Callable[[OnnxModel, float], InferenceTimes] = measure_model,
    say: Callable[[str], None] = lambda what: None,
) -> BothSides:
    """Takes at most about 2 x `budget_s` a model, and some ten seconds for link and messages; `here` measures a model on
    this side. Raises CaptureError, Unreachable, Refused."""
    models = {j.model.hash: j.model for j in jobs}
    with connect() as client:
        threads = client.hello().threads
        device, server = dict[str, InferenceTimes](), dict[str, InferenceTimes]()
        for h, m in models.items():
            say(f"measuring {m.name} here")
            device[h] = here(m, budget_s)
        for h, m in models.items():
            say(f"measuring {m.name} on {client.target}")
            server[h] = client.measure(m, budget_s)
        say("measuring the link, and what messages take of both sides")
        plain = measure_link(lambda: client.link(0.4))
    cost = message_cost(connect, plain.link.up_bytes_per_s)
    slow = {side: _seconds_a_cpu_second(times) for side, times in (("device", device), ("server", server))}
    link = plain.with_sending(*(slow["device"] * s for s in cost.device))
    reply = tuple(slow["server"] * s for s in cost.server)
    there = {h: with_messages(models[h], t.seconds, (reply[0], reply[1])) for h, t in server.items()}
    problem = problem_of(jobs, {h: t.seconds for h, t in device.items()}, there, link.link, threads)
    return BothSides(problem, device, server, link, cost)


def _seconds_a_cpu_second(times: Mapping[str, InferenceTimes]) -> float:
    """How long a side takes for a second of work: 1 on a core of its own, 4 with a quarter of one."""
    return max(1.0, statistics.median(t.whole.seconds / t.cpu_s if t.cpu_s > 0 else 1.0 for t in times.values()))
