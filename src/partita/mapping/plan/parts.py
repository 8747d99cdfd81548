"""Operators in parts, as a search of mappings sees them.

Parts of an operator read one weight, and each makes a gradient of it. On one device the gradients are added where they are made;
apart, they are summed between the devices before the update, which a search sees as one more message each way:

    conv_part1.backward -> conv_part2.update        as many bytes as the weight has
    conv_part2.backward -> conv_part1.update
"""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import numpy as np

from partita.mapping.plan.question import Mapped, Question
from partita.nouns.costs import CostTable
from partita.nouns.graph import SharedParameter, TaskGraph
from partita.nouns.pipeline_problem import PipelineProblem

BESIDE = "parts"  #: the name of a mapping that puts the parts of operators beside each other


def parts_of(problem: PipelineProblem) -> dict[str, int]:
    """Task that is a part of an operator -> the number of the part, from 0."""
    return {t: k for s in problem.splits for k, t in enumerate(s.tasks)}


def shared_by_parts(problem: PipelineProblem) -> list[SharedParameter]:
    """The parameters that only parts of operators share."""
    parts = parts_of(problem)
    return [s for s in problem.graph.shared if all(t in parts for t in s.tasks)]


def beside(problem: PipelineProblem, question: Question) -> Mapped:
    """The k-th parts of all operators on the k-th device, whatever else there is on the first. Splits make chains of parts, and
    this keeps each on one device."""
    graph = question.problem.graph
    where = np.zeros(question.model.atoms, np.int64)
    for task, k in parts_of(problem).items():
        where[graph.atom[graph.index[task]]] = k % question.devices
    return question.listed(where, BESIDE)


def with_sums(problem: PipelineProblem, graph: TaskGraph) -> tuple[TaskGraph, CostTable]:
    """The graph, and costs to fit, in which a part's gradients go to the updates of the operator's other parts."""
    backward = {t.of: t.id for t in graph.tasks if t.phase == "backward"}
    update = {t.of: t.id for t in graph.tasks if t.phase == "update"}
    edges: dict[tuple[str, str], float] = {}
    for s in shared_by_parts(problem):
        for one, other in permutations(s.tasks, 2):
            if one in backward and other in update:
                ends = backward[one], update[other]
                edges[ends] = edges.get(ends, 0.0) + s.size_bytes
    if not edges:
        return graph, problem.costs
    ids = [t.id for t in graph.tasks]
    tensors = [
        (ids[p], float(b), [ids[r] for r in graph.readers.row(k)])
        for k, (p, b) in enumerate(zip(graph.producer.tolist(), graph.size_bytes.tolist(), strict=True))
    ]
    tensors += [(one, size, [other]) for (one, other), size in edges.items()]
    costs = replace(problem.costs, transfer_s=np.append(problem.costs.transfer_s, np.full(len(edges), np.nan)))
    return TaskGraph.build(graph.name, graph.tasks, tensors, graph.shared), costs
