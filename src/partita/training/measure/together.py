"""Measure a job on several hosts: inside torchrun, where every process is one device.

    all ranks meet -> load the job, and see that it is the same -> time its tasks, all at once
    -> the links, pair by pair (`pairs`) -> rank 0 has the profile: times of the fastest device, speeds of the others beside it

Whatever a rank cannot do is told to all others, so that each ends with a sentence; a rank that dies breaks its connections, and
one that falls silent is waited for as long as the patience lasts.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
import torch.distributed as dist

from partita.errors import BadInput, ClusterError, PartitaError, WorkerFailed, place_of, sentence_of
from partita.nouns.cluster import Cluster, Device, Link
from partita.nouns.profile import Profile
from partita.records import record
from partita.training.measure.company import pinned
from partita.training.measure.hosts import Place, own_device
from partita.training.measure.job import Asked, Measuring, Progress, Spent
from partita.training.measure.links import Pace, Peer, exchange, links_of
from partita.training.measure.pairs import rounds_of
from partita.training.measure.speeds import speeds_by_steps
from partita.training.measure.worth_splitting import is_automatic
from partita.training.runtime.device import patience, torch_device
from partita.training.runtime.interpreter import is_lost_peer
from partita.training.runtime.join import Meeting, joined, readable, stay_on_loopback
from partita.training.runtime.mailbox import Mailboxes, open_mailboxes
from partita.training.runtime.transport import Transport
from partita.training.runtime.words import handed, on_all, told

_PIECES = 25  #: of a pair's measurement, each of which may take this part of the budget


def measure_together(
    asked: Asked,
    rank: int,
    ranks: int,
    *,
    timeout_s: float,
    progress: Progress,
    first: Callable[[], None] = lambda: None,
) -> Profile | None:
    """The job measured on the devices of all ranks, and the links between them; on rank 0, None on the others. Every rank calls it.
    `first` raises what is wrong here alone, before anything is measured.

    The cluster's devices are in the order of the ranks. Raises JobError, CaptureError, ClusterError, BadInput for what is wrong
    here or alike everywhere, WorkerFailed where another rank failed, died, did not come or was silent for `timeout_s`.
    """
    if is_automatic(asked.splits):
        raise BadInput(
            f"--split {asked.splits[0]} inside torchrun: what is worth splitting depends on links that are not measured yet",
            hint="name the operators, e.g. --split conv2d_1:batch:2",
        )
    spent, device = Spent(), _own_gpu()
    stay_on_loopback(launched=False)
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    with joined(Meeting(timeout_s), rank, ranks, backend, device):
        try:
            on_all(first, "getting ready")
            return _measured(asked, rank, timeout_s, progress, spent)
        except PartitaError:
            raise
        except Exception as error:
            raise _failed(rank, error) from error


def _own_gpu() -> torch.device:
    """The GPU that torchrun's numbers stand for where its host has enough, else the CPU. Raises BadInput where there are GPUs and
    no such numbers."""
    if torch.cuda.device_count() and "LOCAL_RANK" not in os.environ:
        raise BadInput(
            f"{torch.cuda.device_count()} GPUs here, and no LOCAL_RANK to tell which one is this rank's",
            hint="start with torchrun, or set LOCAL_RANK and LOCAL_WORLD_SIZE beside RANK and WORLD_SIZE",
        )
    given = {n: os.environ.get(n, d) for n, d in (("LOCAL_RANK", "0"), ("LOCAL_WORLD_SIZE", "1"))}
    if not all(value.isdecimal() for value in given.values()):
        raise BadInput(
            " and ".join(f"{n} is {value!r}" for n, value in given.items()),
            hint="start with torchrun, or set both to whole numbers, or none",
        )
    number, on_host = map(int, given.values())
    return torch.device("cuda", number) if number < on_host <= torch.cuda.device_count() else torch.device("cpu")


def _failed(rank: int, error: Exception) -> WorkerFailed:
    if is_lost_peer(error):
        return WorkerFailed(
            f"rank {rank} lost another rank while measuring: {readable(sentence_of(error))}", rank=-1, doing="measuring",
            hint="look at the other ranks' errors and start all again; where one is only slow, with a longer --timeout-s",
        )  # fmt: skip
    return WorkerFailed(
        f"rank {rank} failed while measuring{place_of(error)}: {sentence_of(error)}", rank=rank, doing="measuring"
    )


def _measured(asked: Asked, rank: int, timeout_s: float, progress: Progress, spent: Spent) -> Profile | None:
    places = [record(Place, p, ClusterError, "a rank's place") for p in told(asdict(Place.here()))]
    device = on_all(lambda: own_device(places, rank), "looking for its device")
    with pinned(device):
        measuring = on_all(lambda: Measuring.of(replace(asked, by_itself=False), device), "loading the job")
        expect_alike(told(subject(measuring, device)))
        on_all(lambda: measuring.take_all(contextlib.nullcontext, progress), "measuring its tasks")
        found = [record(Found, f, ClusterError, "what a rank found") for f in told(asdict(Found.of(measuring, device)))]
        pace = replace(measuring.pace, piece_s=asked.budget_s / _PIECES)
        own = _links(rank, places, found, timeout_s, pace, progress)
    links = [record(Link, k, ClusterError, "a link") for each in told([asdict(k) for k in own]) for k in each]
    fastest, speeds = speeds_by_steps([f.steps for f in found])
    cluster = Cluster(tuple(f.at_speed(s) for f, s in zip(found, speeds, strict=True)), tuple(links), source="measured")
    mine = measuring.profile(cluster, spent).to_json() if rank == fastest else None
    profile = handed(mine, fastest, 0)
    return Profile.from_json(profile, f"the profile of rank {fastest}") if rank == 0 else None


def subject(measuring: Measuring, device: Device) -> dict[str, Any]:
    """What a rank measures, as far as it must be alike on all of them."""
    return {
        "graph": measuring.graph.fingerprint,
        "parameter bytes": sum(t.parameter_bytes for t in measuring.graph.tasks),
        "bytes handed on": measuring.handed_on_bytes,
        "batch size": measuring.batch_size,
        "micro-batch sizes": measuring.sizes,
        "kind of device": device.kind,
    }


def expect_alike(subjects: Sequence[dict[str, Any]]) -> None:
    """Raise BadInput, the same on every rank, unless all ranks measure the same.

    >>> expect_alike([{"batch size": 8}, {"batch size": 8}])
    """
    for r, other in enumerate(subjects):
        for what, value in subjects[0].items():
            if other.get(what) != value:
                raise BadInput(
                    f"ranks do not measure the same: {what} {value} on rank 0, {other.get(what)} on rank {r}",
                    hint="start all ranks with the same job and settings, on devices of one kind",
                )


@dataclass(frozen=True)
class Found:
    """What a rank found out about its device."""

    device: Device  #: what it takes beside its tasks at its own speed, which is not known yet
    sizes: tuple[int, ...]  #: of micro-batches
    step_s: tuple[float, ...]  #: [sizes] a whole step of the job
    core_share: float  #: of a core that it got

    @staticmethod
    def of(measuring: Measuring, device: Device) -> Found:
        sizes, steps = zip(*((s.micro_batch_size, s.single_step_s) for s in measuring.samples), strict=True)
        return Found(replace(device, **measuring.calls._asdict()), sizes, steps, measuring.probe.core_share)

    @property
    def steps(self) -> dict[int, float]:
        """Micro-batch size -> seconds of a step."""
        return dict(zip(self.sizes, self.step_s, strict=True))

    def at_speed(self, speed: float) -> Device:
        """The device, once its speed is known; its own seconds are written down as those of a device with speed 1."""
        beside_s: dict[str, Any] = {w: speed * s for w, s in self.device.beside_tasks_s.items()}
        return replace(self.device, speed=speed, **beside_s)


def _links(
    rank: int, places: Sequence[Place], found: Sequence[Found], timeout_s: float, pace: Pace, progress: Progress
) -> list[Link]:
    """The links, both ways, of the pairs in which this rank leads. Every rank calls it."""
    cuda, links = found[rank].device.kind == "cuda", list[Link]()
    mailboxes = None if cuda else open_mailboxes(rank, len(places), patience_s=timeout_s)
    transport = _transport(found[rank].device, mailboxes)
    rounds = rounds_of([p.host for p in places])
    for number, pairs in enumerate(rounds):
        progress("measuring links", number, len(rounds))
        groups = dict(zip(pairs, _groups(pairs), strict=True))
        mine = next((pair for pair in pairs if rank in pair), None)
        if mine is not None:
            other = sum(mine) - rank
            peer = Peer.of(rank, other, transport, mailboxes, found[rank].core_share, groups[mine])
            seen, ends = exchange(peer, pace), (found[rank].device, found[other].device)
            links += [on_cable(k, *ends) for k in links_of(ends[0].name, ends[1].name, seen)] if peer.leads else []
        dist.barrier()  # a cable must not be under two pairs
    progress("measuring links", len(rounds), len(rounds))
    return links


def _groups(pairs: Sequence[tuple[int, int]]) -> list[Any]:
    """A process group for each pair, None where there are no others. All ranks make all of them, in one order: torch names a
    group by how many its maker knows, so a pair that makes its own waits for ever where one has made more before."""
    alone = dist.get_world_size() == 2
    return [None if alone else dist.new_group([*pair], timeout=patience()) for pair in pairs]


def on_cable(link: Link, *ends: Device) -> Link:
    """The link; between two hosts it shares what its source's host sends by.

    >>> a, b = Device("a:cpu0", host="a"), Device("b:cpu0", host="b")
    >>> on_cable(Link("b:cpu0", "a:cpu0", 1e6), a, b).medium
    'cable of b'
    """
    host = {d.name: d.host for d in ends}
    if host[link.source] == host[link.target]:
        return link
    return replace(link, medium=f"cable of {host[link.source]}", fair=True)


def _transport(device: Device, mailboxes: Mailboxes | None) -> Transport:
    here = torch_device(Cluster((device,)), device.name)
    return Transport(here, "nccl" if here.type == "cuda" else "gloo", mailboxes=mailboxes)
