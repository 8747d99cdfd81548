"""The methods that plan pipelines, by name. A new one is one file with a function `propose` and a line here.

A method maps a task to candidates, in any number and quality; the planner simulates them and takes the fastest. The
shared contract (tests/pipeline/plan/test_methods.py) holds for all: feasible, deterministic, bound <= value, never above `single`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

from partita.errors import BadInput
from partita.pipeline.plan import antichain_dp, blocks, even, single
from partita.pipeline.plan.bench import Candidate
from partita.pipeline.plan.groups import method as groups
from partita.pipeline.plan.pipeline_task import PipelineTask

Method = Callable[[PipelineTask], Iterable[Candidate]]

METHODS: Mapping[str, Method] = MappingProxyType(
    {
        "single": single.propose,
        "even": even.propose,
        "blocks": blocks.propose,
        "antichain-dp": antichain_dp.propose,
        "groups": groups.propose,
    }
)


def named(name: str) -> Mapping[str, Method]:
    """The methods that a name stands for: "auto" is all of them. Raises BadInput for an unknown one."""
    if name == "auto":
        return METHODS
    if name not in METHODS:
        raise BadInput(f"unknown method {name!r}", hint=f"known: auto, {', '.join(METHODS)}")
    return {name: METHODS[name]}
