"""Profile: what `partita measure` found out about one job, at every micro-batch size it tried.

The numbers that a planner needs and nothing else: it imports no torch, so a profile can be planned on any machine.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from partita.errors import CostError, GraphError, refuse
from partita.files import damaged, dump_json, expect_format, read_json, write_whole
from partita.nouns.cluster import Cluster
from partita.nouns.costs import CostTable
from partita.nouns.graph import TaskGraph
from partita.nouns.probe import Probe
from partita.nouns.splits import Split, read_splits, splits_json

MOST_SAMPLES = 1_000_000_000  #: in a batch; more is a slip of the pen


@dataclass(frozen=True)
class Sample:
    """One micro-batch size: bytes in the graph, times in the table, both for one micro-batch of that size."""

    micro_batch_size: int
    graph: TaskGraph
    costs: CostTable
    single_step_s: float = (
        math.nan
    )  #: a whole step of one process with this micro-batch size, measured; nan: not measured
    probe: Probe | None = None  #: how fast the machine was then; None: unknown


@dataclass(frozen=True)
class Profile:
    """A job measured. All samples have graphs of one structure (the same fingerprint)."""

    job: str  #: file.py:function
    batch_size: int
    samples: tuple[Sample, ...]  #: by descending micro-batch size
    cluster: Cluster
    optimizer_bytes_per_parameter_byte: float = 0.0  #: 0 plain SGD, 1 momentum, 2 Adam
    facts: Mapping[str, Any] = field(default_factory=dict)  #: machine, versions, load, CPU seconds, date
    clips: bool = False  #: the norm of all gradients is clipped, so it is summed over the devices in every step
    splits: tuple[Split, ...] = ()  #: operators in parts, which whoever captures the job splits alike

    @property
    def fingerprint(self) -> str:
        return self.samples[0].graph.fingerprint

    def sample(self, micro_batch_size: int) -> Sample:
        """The sample of a size. Raises CostError where that size was not measured."""
        for s in self.samples:
            if s.micro_batch_size == micro_batch_size:
                return s
        sizes = ", ".join(str(s.micro_batch_size) for s in self.samples)
        raise CostError(
            f"no measurement at micro-batch size {micro_batch_size}; measured: {sizes}",
            hint="measure again with that size",
        )

    def check(self) -> list[str]:
        """Every fault at once; empty when the numbers are possible."""
        sizes = [("batch_size", self.batch_size), *(("micro_batch_size", s.micro_batch_size) for s in self.samples)]
        faults = [f"{name} is {n}" for name, n in sizes if not 1 <= n <= MOST_SAMPLES]
        strange = [t for s in self.splits for t in s.tasks if t not in self.samples[0].graph.index]
        faults += [f"the part {t!r} of a split is no task" for t in strange]
        state = self.optimizer_bytes_per_parameter_byte
        faults += [] if 0 <= state < math.inf else [f"optimizer_bytes_per_parameter_byte is {state}"]
        return faults

    def to_json(self) -> dict[str, Any]:
        return {
            "format": "partita-profile",
            "version": 1,
            "job": self.job,
            "batch_size": self.batch_size,
            "optimizer_bytes_per_parameter_byte": self.optimizer_bytes_per_parameter_byte,
            "clips": self.clips,
            "splits": splits_json(self.splits),
            "facts": dict(self.facts),
            "cluster": self.cluster.to_json(),
            "samples": [
                {
                    "micro_batch_size": s.micro_batch_size,
                    "single_step_s": None if math.isnan(s.single_step_s) else s.single_step_s,
                    "graph": s.graph.to_json(),
                    "costs": s.costs.to_json(),
                    "probe": s.probe.to_json() if s.probe else None,
                }
                for s in self.samples
            ],
        }

    def write(self, path: str | Path) -> Path:
        return write_whole(path, dump_json(self.to_json()))

    @staticmethod
    def from_json(value: Mapping[str, Any], what: str = "profile") -> Profile:
        """The profile in a parsed JSON object. Raises CostError, GraphError or ClusterError where it is damaged."""
        expect_format(value, "partita-profile", CostError, what)
        with damaged(CostError, what, hint="measure again"):
            samples = tuple(_sample(s, f"{what}: sample {i}") for i, s in enumerate(value["samples"]))
            cluster = Cluster.from_json(value["cluster"], f"{what}: cluster")
            profile = Profile(
                str(value["job"]), int(value["batch_size"]), samples, cluster,
                float(value["optimizer_bytes_per_parameter_byte"]), dict(value["facts"]),
                bool(value.get("clips", False)), read_splits(value.get("splits"), CostError, f"{what}: splits"),
            )  # fmt: skip
        if not samples:
            raise CostError(f"{what} has no samples", hint="measure again")
        refuse(CostError, profile.check(), what, hint="measure again")
        if len({s.graph.fingerprint for s in samples}) > 1:
            raise GraphError(f"{what}: its samples have graphs of different structure", hint="measure again")
        return profile

    @staticmethod
    def read(path: str | Path) -> Profile:
        """The profile in a file."""
        return Profile.from_json(read_json(path, CostError), str(path))


def _sample(value: Mapping[str, Any], what: str) -> Sample:
    graph = TaskGraph.from_json(value["graph"], what)
    single = value["single_step_s"]
    costs = CostTable.from_json(value["costs"], graph, what)
    single_step_s = math.nan if single is None else float(single)
    return Sample(
        int(value["micro_batch_size"]), graph, costs, single_step_s, Probe.from_json(value.get("probe"), what)
    )
