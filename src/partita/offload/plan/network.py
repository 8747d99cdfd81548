"""Networks as arrays: the tasks of a job, and the jobs that are alike.

Jobs with equal tasks, input, release time and deadline are of one *kind*: they have the same cuts and may change places
in any order without changing a time. Jobs with equal tasks and input share a network.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from partita.nouns.graph import BoolArray, Csr, FloatArray, IntArray, csr
from partita.nouns.offload import OffloadJob, OffloadProblem


@dataclass(frozen=True, eq=False)
class Network:
    """What a job computes, in seconds on every machine; tasks 0 .. n-1 in a topological order."""

    device_s: FloatArray  #: [n]
    server_s: FloatArray  #: [n]
    up_s: FloatArray  #: [n] an output occupies the uplink
    down_s: FloatArray  #: [n] an output that no task reads occupies the downlink; 0 for others
    input_up_s: float  #: the job's input occupies the uplink
    reads: Csr  #: [n] tasks whose outputs a task reads; none: it reads the job's input
    readers: Csr  #: [n] tasks that read a task's output
    send_s: float = 0.0  #: what an upload takes of the device,
    send_share: float = 0.0  #: and what it takes for each second that the upload occupies the uplink
    receive_s: float = 0.0  #: the same of the server
    receive_share: float = 0.0

    def __len__(self) -> int:
        return len(self.device_s)

    def times(self, cut: BoolArray) -> FloatArray:
        """[4] seconds on device, uplink, server and downlink when the tasks of `cut` stay on the device. O(tasks + edges)."""
        crosses = np.zeros(len(self), np.bool_)
        reader = np.repeat(np.arange(len(self)), np.diff(self.reads.start))
        crosses[self.reads.items[~cut[reader]]] = True
        first = np.diff(self.reads.start) == 0
        asks = bool((first & ~cut).any())
        up = float(self.up_s[crosses & cut].sum()) + (self.input_up_s if asks else 0.0)
        device, server = self.device_s[cut].sum(), self.server_s[~cut].sum()
        if not cut.all():
            device += self.send_s + self.send_share * up
            server += self.receive_s + self.receive_share * up
        return np.array([device, up, server, self.down_s[~cut].sum()])


@dataclass(frozen=True, eq=False)
class Kinds:
    """The jobs of a problem by what distinguishes them."""

    networks: tuple[Network, ...]
    of_job: IntArray  #: [jobs] kind
    network: IntArray  #: [kinds] its network
    example: IntArray  #: [kinds] a job of this kind

    @property
    def count(self) -> IntArray:
        """[kinds] how many jobs are of each."""
        return np.bincount(self.of_job, minlength=len(self.network)).astype(np.int64)


def network_of(job: OffloadJob, problem: OffloadProblem) -> Network:
    """The arrays of a job. O(tasks + edges)."""
    reads = csr([sorted({job.index[i] for i in t.inputs}) for t in job.tasks])
    lists: list[list[int]] = [[] for _ in job.tasks]
    for v in range(len(job.tasks)):
        for u in reads.row(v).tolist():
            lists[u].append(v)
    out = np.array([t.output_bytes for t in job.tasks], np.float64)
    final = np.array([not r for r in lists])
    return Network(
        np.array([t.device_s for t in job.tasks], np.float64),
        np.array([t.server_s for t in job.tasks], np.float64),
        out / problem.link.up_bytes_per_s,
        np.where(final, out, 0.0) / problem.link.down_bytes_per_s,
        job.input_bytes / problem.link.up_bytes_per_s,
        reads,
        csr(lists),
        problem.link.send_s,
        problem.link.send_s_per_byte * problem.link.up_bytes_per_s,
        problem.link.receive_s,
        problem.link.receive_s_per_byte * problem.link.up_bytes_per_s,
    )


def kinds_of(problem: OffloadProblem) -> Kinds:
    """Networks and kinds of the jobs, in the order of their first appearance. O(tasks + edges)."""
    networks: dict[object, int] = {}
    kinds: dict[object, int] = {}
    arrays: list[Network] = []
    of_job: list[int] = []
    network: list[int] = []
    example: list[int] = []
    for j, job in enumerate(problem.jobs):
        model = (job.input_bytes, job.tasks)
        k = networks.setdefault(model, len(networks))
        if k == len(arrays):
            arrays.append(network_of(job, problem))
        kind = kinds.setdefault((k, job.release_s, job.deadline_s), len(kinds))
        if kind == len(network):
            network.append(k)
            example.append(j)
        of_job.append(kind)
    return Kinds(tuple(arrays), *(np.array(a, np.int64) for a in (of_job, network, example)))
