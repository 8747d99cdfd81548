"""Spec: what every worker of a run is told, as one JSON file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Spec:
    """What every worker of a run is told."""

    job: str  #: file.py:function
    settings: Mapping[str, str]
    plan: str  #: path of the plan file
    out: str  #: folder of the run
    task: str = "train"  #: "train", or "compare": every engine in turn on the same batches
    engine: str = "pipeline"  #: "pipeline", "torch" or "torch-zb"; of "compare": several, separated by commas
    steps: int | None = None
    epochs: int = 1
    checkpoint_every: int = 0  #: steps; 0: at the end only
    checkpoints: str = ""  #: folder; empty: none are written
    resume: str = ""  #: folder to resume from; empty: from the start
    threads: int = 1
    timeout_s: float = 300.0
    rendezvous: str = "env://"
    board: str = ""
    warmup: int = 2  #: steps of a run, rounds of "compare", that are not counted
    in_a_row: int = 1  #: of "compare": steps that an engine takes on each batch in its turn, of which the mean counts, without the first
    check_gradients: bool = True  #: of "compare"
    #: the pipes of a `baton.Ring`, where other runs take turns with this one so that they may be compared
    ring: Sequence[str] = ()
    steered: Mapping[str, Any] = field(default_factory=dict)  #: what is told to who may change the plan between steps
    facts: Mapping[str, Any] = field(default_factory=dict)
    copies: Sequence[Sequence[int]] = ()  #: [ranks] handles of the two files that each copies its state to; empty: none
    copy_every: int = 1  #: steps
    base: Sequence[Sequence[int]] = ()  #: handles of the copies to go on from; empty: from `resume`, or the start
    base_step: int = 0  #: which of them
    goes_on: bool = False  #: after a failure: the record of the run is continued
    only_save: bool = False  #: no step: what is gone on from becomes a checkpoint
    watched: bool = False  #: the launcher may ask for another plan between two steps

    @property
    def launched(self) -> bool:
        """Partita itself started the workers, on this machine; otherwise torchrun did, or a person."""
        return bool(self.board)
