"""Method `even`: the same number of tasks for every device, in topological order. What people do first."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from partita.pipeline.plan.bench import Candidate
from partita.pipeline.plan.linear_cuts import prefixes, through
from partita.pipeline.plan.pipeline_task import PipelineTask


def propose(task: PipelineTask) -> Iterator[Candidate]:
    """Cuts after each n-th part of the tasks, at each micro-batch size.

    With devices of several types, they are taken in the cluster's order.
    """
    line = prefixes(task.states, task.units)
    tasks = task.forward_tasks[line]
    stages = min(task.wish.stages or len(task.cluster.devices), len(line) - 1)
    wanted = tasks[-1] * np.arange(1, stages) / stages
    cuts = line[np.abs(tasks[None, :] - wanted[:, None]).argmin(axis=1)]
    yield from through(task, cuts)
