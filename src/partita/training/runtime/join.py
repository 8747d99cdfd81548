"""How ranks find each other and which device each of them is: the process group, listening nowhere that it need not.

The launcher's workers meet through a file and listen on loopback only. Ranks that were started by hand meet at
MASTER_ADDR:MASTER_PORT, and rank 0 listens at that very address, not at all of the machine's. Under torchrun its agent
keeps the meeting point.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import re
import socket
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from partita.errors import BadInput, JobError, PlanError, WorkerFailed, sentence_of
from partita.nouns.cluster import Cluster
from partita.nouns.plan import PlanFile
from partita.training.runtime.spec import Spec

if TYPE_CHECKING:
    import torch

_PATIENCE_S = 300.0  #: for the launcher's own workers to begin
_MOST_RANKS = 100_000


def rank_of_environment() -> tuple[int, int]:
    """(rank, ranks) as torchrun says. Raises BadInput where they are no such numbers."""
    rank, ranks = os.environ["RANK"], os.environ["WORLD_SIZE"]
    if not (rank.isdecimal() and ranks.isdecimal() and int(rank) < int(ranks) <= _MOST_RANKS):
        raise BadInput(
            f"RANK is {rank!r} and WORLD_SIZE {ranks!r}; ranks count from 0, and at most {_MOST_RANKS} meet",
            hint="start with torchrun, or set all of RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, or none",
        )
    return int(rank), int(ranks)


@dataclass(frozen=True)
class Meeting:
    """Where ranks meet."""

    timeout_s: float  #: of patience with a silent rank
    rendezvous: str = "env://"
    launched: bool = False  #: by Partita on this machine, which sees it when one has died


@contextlib.contextmanager
def process_group(spec: Spec, file: PlanFile, rank: int, ranks: int) -> Iterator[None]:
    """The process group of all ranks of a run, for as long as the block runs. Raises as `joined`."""
    from partita.training.runtime.device import backend_for, torch_device

    names = world(file, ranks, launched=spec.launched)
    backend, device = backend_for(file.cluster, names), torch_device(file.cluster, names[rank])
    with joined(Meeting(spec.timeout_s, spec.rendezvous, spec.launched), rank, ranks, backend, device):
        yield


@contextlib.contextmanager
def joined(meeting: Meeting, rank: int, ranks: int, backend: str, device: torch.device) -> Iterator[None]:
    """The process group of all ranks, for as long as the block runs; this one computes on `device`.

    Raises BadInput where the meeting point cannot be used, WorkerFailed where the others do not come.
    """
    import torch
    import torch.distributed as dist

    patience = timedelta(seconds=meeting.timeout_s)
    agent = meeting.rendezvous == "env://" and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    store = _agents_store(rank, ranks, patience) if agent else _meeting_point(meeting, rank, ranks)
    try:
        if device.type == "cuda":
            torch.cuda.set_device(device)  # what says no device means this one, in every thread of this rank's own
        bound = device if "nccl" in backend else None  # so that communicators are made now, by all in one order
        dist.init_process_group(backend, device_id=bound, rank=rank, world_size=ranks, timeout=patience, store=store)
    except (RuntimeError, OSError, ValueError) as error:
        raise _absent(rank, ranks, meeting.timeout_s, error) from error
    try:
        yield
    finally:
        if sys.exc_info()[0] is None:
            dist.destroy_process_group()


def _absent(rank: int, ranks: int, patience_s: float, error: Exception) -> WorkerFailed:
    return WorkerFailed(
        f"rank {rank} of {ranks} could not join the others within {patience_s:.0f} s: {sentence_of(error)}",
        rank=rank,
        doing="joining the others",
        hint="look at the other ranks' errors; see that all use the same address and port",
    )


def _meeting_point(meeting: Meeting, rank: int, ranks: int) -> Any:
    """The store where the ranks meet, once all of them are there.

    Beginning takes some longer than others, so this has a patience of its own: the launcher sees it when one has died.
    """
    from torch.distributed import FileStore  # type: ignore[attr-defined]

    patience_s = max(meeting.timeout_s, _PATIENCE_S) if meeting.launched else meeting.timeout_s
    if meeting.rendezvous == "env://":
        store = _store(rank, ranks, timedelta(seconds=patience_s), opens=rank == 0)
    else:
        store = FileStore(meeting.rendezvous.removeprefix("file://"), ranks)
    try:
        _claim(store, rank, ranks)
        store.set(f"here {rank}", "")
        store.wait([f"here {r}" for r in range(ranks)], timedelta(seconds=patience_s))
    except RuntimeError as error:
        raise _absent(rank, ranks, patience_s, error) from error
    return store


def _agents_store(rank: int, ranks: int, patience: timedelta) -> Any:
    """What torchrun's agent keeps, for this start of the ranks alone: it may have one store for all of them, in which those that it
    starts again would find the addresses of those that have died."""
    from torch.distributed import PrefixStore  # type: ignore[attr-defined]

    start = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return PrefixStore(f"start {start}", _store(rank, ranks, patience, opens=False))


def _claim(store: Any, rank: int, ranks: int) -> None:
    """This process is the rank. Raises BadInput, which names the other one, where another process is it already."""
    if store.add(f"claims {rank}", 1) == 1:
        store.set(f"who {rank}", _this_process())
        return
    raise claimed_twice(rank, ranks, store.get(f"who {rank}").decode())


def claimed_twice(rank: int, ranks: int, other: str) -> BadInput:
    """Another process is the rank already."""
    return BadInput(
        f"two workers claim rank {rank} of {ranks}: {other}, and {_this_process()}",
        hint="give every process a RANK of its own",
    )


def _this_process() -> str:
    return f"process {os.getpid()} on {socket.gethostname()}"


def _store(rank: int, ranks: int, patience: timedelta, *, opens: bool) -> Any:
    """The meeting point at MASTER_ADDR:MASTER_PORT, which this rank `opens`, or another process."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    host, port = _address()
    try:
        if not opens:
            return TCPStore(host, port, ranks, False, timeout=patience, wait_for_workers=False)
        listener = _listener(host, port)
        return TCPStore(
            host, port, ranks, True, timeout=patience, wait_for_workers=False, master_listen_fd=listener.detach()
        )
    except RuntimeError as error:
        raise WorkerFailed(
            f"rank {rank} of {ranks} does not reach {host}:{port} within {patience.total_seconds():.0f} s: {sentence_of(error)}",
            rank=0,
            doing="joining the others",
            hint="start rank 0 too, with the same MASTER_ADDR and MASTER_PORT",
        ) from error


def _address() -> tuple[str, int]:
    host, port = os.environ.get("MASTER_ADDR", ""), os.environ.get("MASTER_PORT", "")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise BadInput(
            f"RANK is set, but MASTER_ADDR is {host!r} and MASTER_PORT {port!r}",
            hint="start with torchrun, or set all of RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, or none",
        )
    return host, int(port)


def _listener(host: str, port: int) -> socket.socket:
    """A socket that listens at one address."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address[:2], family=family, backlog=1024)
    except (OSError, UnicodeError) as error:  # UnicodeError: no name of a host
        number = getattr(error, "errno", None) or 0
        raise BadInput(
            f"rank 0 cannot listen at {host}:{port}: {os.strerror(number) if number > 0 else error}",
            hint="choose another MASTER_PORT that is free, or this machine's address as MASTER_ADDR",
        ) from error


def readable(message: str) -> str:
    """gloo's messages without the place in its source and its guesses.

    >>> readable("lost: [/x/y/pair.cc:537] Read error [::1]:5: Connection reset by peer. This is typically caused by a")
    'lost: Read error [::1]:5: Connection reset by peer'
    """
    return re.sub(r"\[/[^\]]*:\d+\] ", "", message).partition(". This is typically")[0]


def own_address() -> str:
    """Of this host's addresses the one from which it reaches MASTER_ADDR; "" where it reaches none. Nothing is sent."""
    host, port = _address()
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as s:
            s.connect(address)
            return str(s.getsockname()[0])
    except (OSError, UnicodeError):
        return ""


def stay_on_loopback(*, launched: bool) -> None:
    """Let gloo listen on loopback only, where all ranks are on this machine."""
    if launched or _is_loopback(os.environ.get("MASTER_ADDR", "")):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    if launched:
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"


def _is_loopback(host: str) -> bool:
    """
    >>> [_is_loopback(h) for h in ("localhost", "127.0.0.1", "::1", "10.0.0.1", "", "node7")]
    [True, True, True, False, False, False]
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_ranks(file: PlanFile, ranks: int, *, launched: bool = True) -> None:
    """Raise JobError unless the plan trains, and every rank stands for a device: those of the plan, and idle ones."""
    from partita.nouns.pipeline_plan import PipelinePlan

    if not isinstance(file.plan, PipelinePlan):
        raise JobError("this plan places tasks; it does not say how to train", hint="plan from a profile")
    wanted, most = len(file.plan.devices), len(file.cluster.devices)
    if not wanted <= ranks <= most:
        raise JobError(f"the plan uses {wanted} devices, {ranks} workers were started", hint=f"start {wanted} workers")
    absent = [d for d in file.plan.devices if d not in world(file, ranks, launched=launched)]
    if absent:
        number = [d.name for d in file.cluster.devices].index(absent[0])
        raise JobError(
            f"the plan uses {absent[0]}, which rank {number} stands for; {ranks} workers were started",
            hint=f"start {most} workers, a rank on each device in the order of the cluster",
        )


def expect_host(file: PlanFile, rank: int, ranks: int) -> None:
    """Raise PlanError where this process is on another host than the device that it stands for, as far as that was measured."""
    if not _by_host(file.cluster) or file.cluster.source != "measured":
        return
    device = file.cluster.by_name[world(file, ranks, launched=False)[rank]]
    here = socket.gethostname(), own_address()
    if device.host not in here:
        raise PlanError(
            f"rank {rank} stands for {device.name} on {device.host}, and was started on {' at '.join(filter(None, here))}",
            hint="start every rank on the host where it was measured (torchrun --node-rank), or measure and plan again",
        )


def on_this_machine(file: PlanFile) -> PlanFile:
    """The same plan on those of the cluster's devices, be they its own or not, whose cores this process may use."""
    there = os.sched_getaffinity(0)
    left = [d.name for d in file.cluster.devices if not d.cores or there & set(d.cores)]
    if len(left) == len(file.cluster.devices):
        return file
    return replace(file, problem=file.problem.on(file.cluster.only(left)))


def expect_cores(file: PlanFile, devices: Iterable[str]) -> None:
    """Raise PlanError where a device of the plan is a core that this process may not use: it is gone since it was measured."""
    there = os.sched_getaffinity(0)
    gone = [d for d in devices if (cores := file.cluster.by_name[d].cores) and not there & set(cores)]
    if gone:
        what = "; ".join(f"{d} is core {', '.join(map(str, file.cluster.by_name[d].cores))}" for d in gone)
        raise PlanError(
            f"the plan is for devices that are gone: {what}, and this machine lets a run use {_ranges(there)}",
            hint="measure and plan again on the devices that are there",
        )


def _ranges(cores: Iterable[int]) -> str:
    """
    >>> _ranges({0, 1, 2, 5})
    'cores 0-2, 5'
    """
    runs: list[list[int]] = []
    for core in sorted(cores):
        if runs and core == runs[-1][-1] + 1:
            runs[-1].append(core)
        else:
            runs.append([core])
    return "cores " + ", ".join(f"{r[0]}-{r[-1]}" if len(r) > 1 else f"{r[0]}" for r in runs)


def _by_host(cluster: Cluster) -> bool:
    """Whether devices are on hosts of their own, so that it matters which process stands for which."""
    return len({d.host for d in cluster.devices}) > 1


def world(file: PlanFile, ranks: int, *, launched: bool = True) -> tuple[str, ...]:
    """[ranks] the device that each rank stands for: the plan's in its order, then others of the cluster, which are idle
    until a plan that uses them is deployed.

    Of ranks that are not `launched` on this machine, but started on several hosts, each stands for the cluster's device of
    its number, as it did when the cluster was measured.
    """
    if not launched and _by_host(file.cluster):
        return tuple(d.name for d in file.cluster.devices)[:ranks]
    used = getattr(file.plan, "devices", ())
    idle = [d.name for d in file.cluster.devices if d.name not in used]
    return (*used, *idle)[:ranks]
