"""State: what a rank holds of the model, by name, apart from the plan that says where it belongs.

Between two steps the states of all ranks are one model, one optimizer and one scheduler, in pieces. `moved` deals the
pieces out anew: a rank that needs a tensor and lacks it gets it from the first rank that has it, with what the optimizer
remembers of it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import load, save
from torch import Tensor, nn

from partita.training.job import TrainingJob
from partita.training.runtime.optimizer_state import (
    OptimizerState,
    flat_tensors,
    from_json,
    merged,
    optimizer_state,
    restore,
    to_json,
)
from partita.training.runtime.words import received_bytes, send_bytes

Holdings = Sequence[frozenset[str]]  #: [ranks] names of the parameters and buffers that each holds


@dataclass(frozen=True)
class State:
    """One rank's tensors and what trains them."""

    tensors: Mapping[str, Tensor]  #: parameters (leaves) and buffers by name
    optimizer: torch.optim.Optimizer | None
    scheduler: torch.optim.lr_scheduler.LRScheduler | None

    @staticmethod
    def of(job: TrainingJob, tensors: Mapping[str, Tensor]) -> State:
        """The tensors with a fresh optimizer and scheduler for the parameters among them."""
        parameters = parameters_of(tensors)
        optimizer = job.optimizer_of(parameters) if parameters else None
        return State(tensors, optimizer, job.scheduler(optimizer) if job.scheduler and optimizer else None)

    @property
    def parameters(self) -> list[tuple[str, nn.Parameter]]:
        return parameters_of(self.tensors)


def parameters_of(tensors: Mapping[str, Tensor]) -> list[tuple[str, nn.Parameter]]:
    return [(n, t) for n, t in tensors.items() if isinstance(t, nn.Parameter)]


def moved(
    state: State,
    job: TrainingJob,
    rank: int,
    before: Holdings,
    after: Holdings,
    names: Sequence[str],
    device: torch.device,
) -> State:
    """This rank's state under new holdings; every rank calls it alike. `names` is the model's order of them.

    No step is lost or repeated: what is kept stays as it is, what comes is what its holder had. Raises CheckpointError
    where the optimizer or scheduler keeps what cannot be moved. Bytes sent: those of the tensors that change their rank.
    """
    remembered = optimizer_state(state.optimizer, state.parameters, state.scheduler)
    arrived: dict[str, Tensor] = {}
    states = [remembered]
    for source, target, moving in _moves(before, after):
        if rank == source:
            _send(target, {n: state.tensors[n] for n in moving}, _of(remembered, moving))
        elif rank == target:
            tensors, told = _receive(source)
            arrived |= {n: _leaf(t.to(device), told.trained, n) for n, t in tensors.items()}
            states.append(told.optimizer)
    held: dict[str, Tensor] = {**state.tensors, **arrived}
    new = State.of(job, {n: held[n] for n in names if n in after[rank]})
    if new.optimizer is not None:
        restore(new.optimizer, new.parameters, merged(states), new.scheduler)
    return new


def _moves(before: Holdings, after: Holdings) -> list[tuple[int, int, tuple[str, ...]]]:
    """(from rank, to rank, names) in an order in which all ranks can take their turns without waiting in a circle."""
    found: dict[tuple[int, int], list[str]] = {}
    for target, wanted in enumerate(after):
        for name in sorted(wanted - before[target]):
            source = next(r for r, held in enumerate(before) if name in held)
            found.setdefault((source, target), []).append(name)
    return [(s, t, tuple(names)) for (s, t), names in sorted(found.items())]


@dataclass(frozen=True)
class _Told:
    """What goes with tensors that move."""

    optimizer: OptimizerState
    trained: Mapping[str, bool]  #: parameter -> whether it requires gradients; a buffer is missing


def _of(state: OptimizerState, names: Sequence[str]) -> OptimizerState:
    """What an optimizer remembers of some parameters."""
    chosen = set(names)
    groups = tuple(replace(g, parameters=tuple(n for n in g.parameters if n in chosen)) for g in state.groups)
    return replace(
        state,
        tensors={n: t for n, t in state.tensors.items() if n in chosen},
        numbers={n: v for n, v in state.numbers.items() if n in chosen},
        groups=tuple(g for g in groups if g.parameters),
    )


def _leaf(tensor: Tensor, trained: Mapping[str, bool], name: str) -> Tensor:
    return nn.Parameter(tensor, trained[name]) if name in trained else tensor


def _send(target: int, tensors: Mapping[str, Tensor], optimizer: OptimizerState) -> None:
    told = {
        "optimizer": to_json(optimizer),
        "trained": {n: p.requires_grad for n, p in parameters_of(tensors)},
    }
    send_bytes(target, json.dumps(told).encode())
    send_bytes(target, save({n: _plain(t) for n, t in tensors.items()}))
    send_bytes(target, save({n: _plain(t) for n, t in flat_tensors(optimizer).items()}))


def _receive(source: int) -> tuple[dict[str, Tensor], _Told]:
    told = json.loads(received_bytes(source))
    tensors = load(received_bytes(source))
    return tensors, _Told(from_json(told["optimizer"], load(received_bytes(source))), told["trained"])


def _plain(tensor: Tensor) -> Tensor:
    """A copy with memory of its own: safetensors holds no views."""
    return tensor.detach().cpu().clone(memory_format=torch.contiguous_format)


def average(tensors: Mapping[str, Tensor], names: Sequence[str], share: float, group: Any) -> None:
    """Give all members of a group the mean of some tensors, each member's weighed by its share of the work."""
    for name in names:
        tensor = tensors[name]
        if tensor.is_floating_point():
            tensor *= share
            dist.all_reduce(tensor, group=group)
