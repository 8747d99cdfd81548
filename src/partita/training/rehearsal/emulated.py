"""Emulated stages: what a rank of a rehearsal runs in place of a model's code.

A computation waits for as long as it would take; what it makes are zeros of the right size, up to a cap, so that real messages
travel. What a device would hold in memory is counted as it goes along.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from partita.nouns.graph import TaskGraph
from partita.nouns.program import Op, PieceKind, Program
from partita.nouns.stage_memory import StageMemory
from partita.simulate.boundaries import Boundary
from partita.training.capture.captured import TensorMeta
from partita.training.rehearsal.pacer import Pacer

Work = tuple[PieceKind, int, int]  #: (kind of piece, stage, micro-batch)


@dataclass(frozen=True)
class EmulatedModel:
    """Names and layouts of a graph's tensors: as many bytes as they have, `cap_bytes` at most."""

    values: tuple[str, ...]
    meta: Mapping[str, TensorMeta]

    @staticmethod
    def of(graph: TaskGraph, cap_bytes: int) -> EmulatedModel:
        names = tuple(f"t{k}" for k in range(len(graph.producer)))
        sizes = [max(1, min(round(size), cap_bytes)) for size in graph.size_bytes.tolist()]
        return EmulatedModel(
            names, {n: TensorMeta((s,), (1,), torch.uint8, False) for n, s in zip(names, sizes, strict=True)}
        )


@dataclass
class Ledger:
    """What a device holds: weights all the time, and what micro-batches keep between their forward and their backward."""

    weights_bytes: float
    kept: dict[tuple[int, int], float] = field(default_factory=dict)  #: (stage, micro-batch) -> bytes
    peak_bytes: float = 0.0
    peak_of: dict[int, float] = field(default_factory=dict)  #: stage -> what it kept at the peak

    def keep(self, stage: int, micro_batch: int, size_bytes: float) -> None:
        """The stage holds so much of the micro-batch now, whatever it did before; 0: nothing more."""
        self.kept[stage, micro_batch] = size_bytes
        held = self.weights_bytes + sum(self.kept.values())
        if not size_bytes:
            del self.kept[stage, micro_batch]
        if held > self.peak_bytes:
            self.peak_bytes, self.peak_of = held, {}
            for (k, _), n in self.kept.items():
                self.peak_of[k] = self.peak_of.get(k, 0.0) + n


@dataclass
class EmulatedStage:
    """A stage that waits: see `training.runtime.stage.Stage`, whose part it plays."""

    number: int
    gives: tuple[str, ...]  #: values that other stages read
    owes: tuple[str, ...]  #: values of others whose gradients it sends back
    model: EmulatedModel
    seconds: Mapping[Work, float]
    memory: StageMemory
    recompute: bool
    pacer: Pacer
    ledger: Ledger
    has_loss: bool = False
    _zeros: dict[str, Tensor] = field(default_factory=dict)

    def forward(
        self, micro_batch: int, batch_leaves: Sequence[Any], received: Mapping[str, Tensor], seed: int
    ) -> tuple[Tensor, ...]:
        self.ledger.keep(self.number, micro_batch, self.memory.inputs if self.recompute else self.memory.kept)
        self._wait("forward", micro_batch)
        return tuple(self._zero(n) for n in self.gives)

    def backward(self, micro_batch: int, gradients: Sequence[Tensor | None], weight: float) -> dict[str, Tensor]:
        self._again(micro_batch)
        self._wait("backward", micro_batch)
        self.free(micro_batch)
        return {n: self._zero(n) for n in self.owes}

    def backward_inputs(self, micro_batch: int, gradients: Sequence[Tensor | None], weight: float) -> dict[str, Tensor]:
        self._again(micro_batch)
        self._wait("input", micro_batch)
        return {n: self._zero(n) for n in self.owes}

    def backward_weights(self, micro_batch: int) -> None:
        self._wait("weight", micro_batch)
        self.free(micro_batch)

    def free(self, micro_batch: int) -> None:
        self.ledger.keep(self.number, micro_batch, 0.0)

    def _again(self, micro_batch: int) -> None:
        """A stage that recomputes has everything of the micro-batch in its backward."""
        if self.recompute:
            self.ledger.keep(self.number, micro_batch, self.memory.inputs + self.memory.kept)

    def _wait(self, kind: PieceKind, micro_batch: int) -> None:
        self.pacer.until(self.pacer.now_s + self.seconds[kind, self.number, micro_batch])

    def _zero(self, name: str) -> Tensor:
        if name not in self._zeros:
            meta = self.model.meta[name]
            self._zeros[name] = torch.zeros(meta.shape, dtype=meta.dtype)
        return self._zeros[name]


def names_given(boundaries: Sequence[Boundary], model: EmulatedModel, stage: int) -> tuple[str, ...]:
    """What other stages read of a stage."""
    return tuple(dict.fromkeys(model.values[t] for b in boundaries if b.source == stage for t in b.tensors))


def names_owed(boundaries: Sequence[Boundary], model: EmulatedModel, stage: int) -> tuple[str, ...]:
    """What a stage sends gradients of."""
    return tuple(dict.fromkeys(model.values[t] for b in boundaries if b.target == stage for t in b.gradients))


def seconds_of(program: Program, busy_s: Sequence[float], device: str) -> dict[Work, float]:
    """What each computation of a device takes."""
    queue = program.queues.index(device)
    found: dict[Work, float] = {}
    for i in program.by_queue[queue].tolist():
        if program.op[i] in (Op.COMPUTE, Op.UPDATE):
            piece = program.pieces[program.piece[i]]
            found[piece.kind, piece.stage, int(program.micro_batch[i])] = float(busy_s[i])
    return found
