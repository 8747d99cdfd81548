"""Plans as the docstrings of the schedules draw them: lowered and simulated, a forward and each half of a backward one unit."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from small_worlds import training_chain

from partita.nouns.cluster import Cluster
from partita.nouns.costs import CostTable
from partita.nouns.pipeline_plan import PipelinePlan, Schedule, Slot, Stage
from partita.simulate.lower import lower
from partita.simulate.simulator import durations, simulate

LETTERS = {"forward": "F", "backward": "D", "input": "B", "weight": "W"}


def drawings(doc: str | None) -> list[str]:
    """The timelines drawn in a docstring: consecutive lines that begin with "stage"."""
    assert doc is not None
    return [b.strip("\n") for b in re.findall(r"(?:^ {4}stage \d.*\n)+", doc, re.MULTILINE)]


def chunks(
    where: Sequence[int], micro_batches: int, schedule: Schedule, in_flight: int = 1, orders: dict[str, tuple[Slot, ...]] | None = None
) -> PipelinePlan:  # fmt: skip
    """A chain of stages on the devices of these numbers."""
    graph = training_chain(len(where))
    stages = tuple(Stage((f"f{k}",), (f"cpu{d}",)) for k, d in enumerate(where))
    return PipelinePlan(graph.fingerprint, stages, micro_batches, in_flight, schedule, orders or {})


def drawn(plan: PipelinePlan, backward: str = "D") -> str:
    """A row for each device; stages beyond the first of a device in small letters; `backward`: the letter of one in one piece."""
    graph = training_chain(len(plan.stages))
    took = [[2.0 if t.phase == "backward" else 0.0 if t.phase == "update" else 1.0] for t in graph.tasks]
    costs = CostTable.given(("cpu",), took, np.full(len(graph.producer), np.nan))
    cluster = Cluster.uniform(len(plan.devices))
    program = lower(graph, cluster, plan)
    timeline = simulate(program, durations(program, graph, costs, cluster))
    rows = {d: [".."] * round(timeline.duration_s) for d in plan.devices}
    first = {d: plan.stages_of(d)[0] for d in plan.devices}
    for i in range(len(program)):
        piece = program.pieces[program.piece[i]]
        if piece.kind in LETTERS:
            queue = program.queues[program.queue[i]]
            letter = {**LETTERS, "backward": backward}[piece.kind]
            letter = letter if piece.stage == first[queue] else letter.lower()
            for t in range(round(timeline.start_s[i]), round(timeline.end_s[i])):
                rows[queue][t] = f"{letter}{program.micro_batch[i]}"
    return "\n".join(f"    stage {first[d]}  {' '.join(row)}" for d, row in rows.items())
