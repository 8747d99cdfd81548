"""Messages between ranks of one machine, through memory that both have mapped.

      sender                                              receiver
      copy into an empty box ------ tag, box, bytes ----> copy out of it
                             <----- the box's last word says that it is empty again

Boxes are anonymous files of memory (memfd). A new one is handed over once, through the socket of the pair, which otherwise
carries a few bytes a message, in order, and tells at once when the other side has died. Boxes come in few sizes; of each there
are never more than messages that were on their way together, handed out in turn. So a sender hardly ever waits for a receiver
(where more new boxes are on their way than the system lets a process hand over), and nothing is left behind when one is killed.

A receiver looks for its message and does not sleep until it has waited for long: through a socket on loopback a message takes
100 to 300 us of a core that has slept, this way 10 to 60, and a virtual core that sleeps may get its turn late. An Inception in
26 segments took 166 ms a step where ranks slept after 50 us, 151 ms where they looked for 20 ms (AMD EPYC, 2026-11-23). Where
others want the core it sleeps soon: a thread that has slept is let in at once, one that has looked all the while has had its share.
"""

from __future__ import annotations

import array
import contextlib
import errno
import functools
import os
import resource
import select
import socket
import struct
import time
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from partita.cpu_quota import cpu_quota, quota_cores
from partita.temporary import temporary_folder
from partita.training.capture.captured import TensorMeta
from partita.training.runtime.worker_status import this_boot

Result = TypeVar("Result")

SPIN_S = 0.02  #: for which a receiver looks; what waking up takes is little beside it
CROWDED_SPIN_S = 5e-5  #: where others want its core: what sleeping and waking up takes
_TELLING_S = 1e-3  #: a look that takes less does not tell whether others want the core
_ALONE = 0.9  #: of a look's time on the core, where nobody else wants it
_RESERVED = 200  #: waits after which it is tried again
_HEAD = struct.Struct("<qqq")  #: tag, box, bytes of the box where it is a new one
_WORD = 8  #: bytes at the end of a box: 1 while it is full
_ALIGNED = 64
_FEWEST_BYTES = 1 << 12  #: in a box
_INTRODUCED = 256  #: bytes in which a rank says where it can be reached
_MOST_VIEWS = 256  #: that a box remembers


class PeerGone(RuntimeError):
    """The other side of a message has died, or has been silent for too long."""


@dataclass(frozen=True, eq=False)
class _Layout:
    """How the tensors of a message lie in a box."""

    metas: tuple[TensorMeta, ...]
    offsets: tuple[int, ...]  #: [tensors] where each begins
    size: int  #: of a box that is large enough, one of few

    @staticmethod
    @functools.lru_cache(4096)
    def of(metas: tuple[TensorMeta, ...]) -> _Layout:
        """The same object for the same message.

        >>> row = TensorMeta((3,), (1,), torch.float32, False)
        >>> _Layout.of((row, row)).offsets
        (0, 64)
        """
        offsets = [0]
        for m in metas:
            offsets.append(offsets[-1] + -(-m.size_bytes // _ALIGNED) * _ALIGNED)
        return _Layout(metas, tuple(offsets[:-1]), _rounded(offsets[-1]))


def _rounded(size: int) -> int:
    """The next of four sizes between a power of two and the next, so that boxes fit many messages.

    >>> [_rounded(n) for n in (1, 5000, 5120, 5121, 8192)]
    [4096, 5120, 5120, 6144, 8192]
    """
    step = max(1 << max(size - 1, 0).bit_length(), _FEWEST_BYTES) // 8
    return max(-(-size // step) * step, _FEWEST_BYTES)


@dataclass(eq=False)
class _Box:
    memory: Tensor  #: [bytes]
    word: memoryview  #: [1]
    number: int = 0
    views: dict[_Layout, list[Tensor]] = field(default_factory=dict)

    @staticmethod
    def mapped(handle: int, size: int, number: int) -> _Box:
        """The file behind a handle; the handle is not kept (`mmap` would)."""
        memory = torch.from_file(f"/proc/self/fd/{handle}", shared=True, size=size + _WORD, dtype=torch.uint8)
        return _Box(memory[:size], memory[size:].view(torch.int64).numpy().data, number)

    def tensors(self, layout: _Layout) -> list[Tensor]:
        """The places of a message's tensors, each in its own layout."""
        found = self.views.get(layout)
        if found is None:
            if len(self.views) >= _MOST_VIEWS:
                self.views.clear()
            found = self.views[layout] = [
                self.memory[o : o + m.size_bytes].view(m.dtype).as_strided(m.shape, m.dense_stride)
                for m, o in zip(layout.metas, layout.offsets, strict=True)
            ]
        return found


class Mailboxes:
    """One rank's boxes, and its sockets to other ranks of this machine."""

    def __init__(
        self,
        sockets: Mapping[int, socket.socket],
        rank: int = 0,
        pairs: Collection[tuple[int, int]] = (),
        *,
        spin_s: float = SPIN_S,
        patience_s: float = 300.0,
    ) -> None:
        """`pairs` (a > b): all ranks that have a socket to each other, as every one of them knows."""
        self.rank, self._pairs = rank, frozenset(pairs)
        self._sockets, self._spin_s, self._patience_s = sockets, spin_s, patience_s
        self._reserved = 0  # waits to come in which others are let in soon
        self._own: dict[int, dict[int, deque[_Box]]] = {rank: {} for rank in sockets}  # by size
        self._theirs: dict[int, dict[int, _Box]] = {rank: {} for rank in sockets}
        self._arrived: dict[tuple[int, int], deque[_Box]] = defaultdict(deque)  # (rank, tag) -> full boxes
        self._poll = select.poll()
        self._by_handle = {s.fileno(): rank for rank, s in sockets.items()}
        for s in sockets.values():
            s.setblocking(False)
            self._poll.register(s, select.POLLIN)

    def __contains__(self, rank: int) -> bool:
        return rank in self._sockets

    def join(self, ranks: Sequence[int]) -> bool:
        """Each of these ranks reaches each other one; all of them say so, or none."""
        return all((a, b) in self._pairs for a in ranks for b in ranks if a > b)

    def send(self, rank: int, tag: int, tensors: Sequence[Tensor], metas: tuple[TensorMeta, ...]) -> None:
        """The tensors are copied, and may change afterwards. Raises PeerGone."""
        layout = _Layout.of(metas)
        box, handle = self._empty_box(rank, layout.size)
        for tensor, place in zip(tensors, box.tensors(layout), strict=True):
            place.copy_(tensor.detach())
        box.word[0] = 1
        self._tell(rank, _HEAD.pack(tag, box.number, layout.size if handle else 0), handle)

    def receive(self, rank: int, tag: int, metas: tuple[TensorMeta, ...]) -> list[Tensor]:
        """The tensors of the next message with this tag, once it is there. Raises PeerGone."""
        return self.take(rank, tag, metas, lambda tensors: [t.clone() for t in tensors])

    def take(self, rank: int, tag: int, metas: tuple[TensorMeta, ...], use: Callable[[list[Tensor]], Result]) -> Result:
        """What `use` makes of the tensors of the next message with this tag, which are its own only while it runs."""
        waiting = self._arrived[rank, tag]
        if not waiting:
            self._wait(rank, waiting)
        box = waiting.popleft()
        made = use(box.tensors(_Layout.of(metas)))
        box.word[0] = 0
        return made

    def _empty_box(self, rank: int, size: int) -> tuple[_Box, int]:
        """(A box of a size, the handle of a new one that the other side must be given, or 0). Mostly messages are read in the
        order in which they are sent: the box that was filled longest ago is empty if any is."""
        boxes = self._own[rank].setdefault(size, deque())
        for _ in range(len(boxes)):
            boxes.rotate(-1)
            if not boxes[-1].word[0]:
                return boxes[-1], 0
        handle = os.memfd_create("partita", os.MFD_CLOEXEC)
        try:
            os.posix_fallocate(handle, 0, size + _WORD)  # where there is no memory it is said here, and not by a signal
        except OSError:
            os.close(handle)
            raise
        boxes.append(_Box.mapped(handle, size, sum(map(len, self._own[rank].values()))))
        return boxes[-1], handle

    def _tell(self, rank: int, head: bytes, handle: int) -> None:
        carried = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [handle]))] if handle else []
        deadline = time.monotonic() + self._patience_s
        try:
            while True:
                try:
                    self._sockets[rank].sendmsg([head], carried)
                    return
                except OSError as error:
                    if error.errno not in _LATER:
                        raise PeerGone(f"connection to rank {rank} lost: {error.strerror}") from error
                # hundreds are on their way: let others' in meanwhile, or two might wait for each other
                self._let_in(0.001, deadline, rank)
        finally:
            if handle:
                os.close(handle)

    def _wait(self, rank: int, waiting: deque[_Box]) -> None:
        """Until something waits there."""
        self._take(rank)
        if waiting:  # mostly it is there
            return
        deadline = time.monotonic() + self._patience_s
        self._look(rank, waiting)
        while not waiting:
            self._let_in(1.0, deadline, rank)

    def _look(self, rank: int, waiting: deque[_Box]) -> None:
        """Until something waits there, for a while; shorter where somebody else had the core during a look not long ago."""
        began, worked, displaced = time.monotonic(), time.thread_time(), _displaced()
        end = began + (min(self._spin_s, CROWDED_SPIN_S) if self._reserved else self._spin_s)
        while not waiting and time.monotonic() < end:
            self._take(rank)
        took = time.monotonic() - began
        lost = took > _TELLING_S and time.thread_time() - worked < _ALONE * took
        shared = lost and _displaced() > displaced  # and not to other machines, as a virtual core may be
        self._reserved = _RESERVED if shared else max(0, self._reserved - 1)

    def _let_in(self, seconds: float, deadline: float, rank: int) -> None:
        """What comes within so many seconds, from any rank."""
        for handle, _ in self._poll.poll(seconds * 1e3):
            if (other := self._by_handle[handle]) == rank:
                self._take(rank)
                continue
            try:
                self._take(other)
            except PeerGone:  # it may have done all that was asked of it: said when somebody waits for it
                self._poll.unregister(handle)
        if time.monotonic() > deadline:
            raise PeerGone(f"timed out: rank {rank} was silent for {self._patience_s:.0f} s")

    def _take(self, rank: int) -> None:
        """The next message of a rank, if it is there."""
        try:
            head, carried, _, _ = self._sockets[rank].recvmsg(_HEAD.size, _CARRIED, socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            return
        except ConnectionResetError:  # it ended with something unread, which is said once, ahead of what it had sent
            self._take(rank)
            return
        except OSError as error:
            raise PeerGone(f"connection to rank {rank} lost: {error.strerror}") from error
        if not head:
            raise PeerGone(f"connection closed by rank {rank}")
        tag, number, size = _HEAD.unpack(head)
        boxes = self._theirs[rank]
        if carried:
            handle = array.array("i", carried[0][2])[0]
            boxes[number] = _Box.mapped(handle, size, number)
            os.close(handle)
        self._arrived[rank, tag].append(boxes[number])


def _displaced() -> int:
    """How often this thread had to leave its core to another one."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw


_LATER = (errno.EAGAIN, errno.ETOOMANYREFS)  #: no room for a message, or for one more box on its way
_CARRIED = socket.CMSG_SPACE(array.array("i").itemsize)


# ---- finding each other -------------------------------------------------------------------------------------------------


def open_mailboxes(rank: int, ranks: int, *, wanted: bool = True, patience_s: float = 300.0) -> Mailboxes:
    """Sockets to all ranks of this machine that want and can be reached. Every rank of the process group calls it.

    Each listens in a private folder until the others have come; rank k goes to those below it. Ranks on one machine that do
    not see each other's folders stay without.
    """
    with contextlib.ExitStack() as stack:
        listener, path = _listening(stack, ranks) if wanted else (None, b"")
        told = torch.zeros(ranks, _INTRODUCED, dtype=torch.int64)
        told[rank, 0] = this_host()
        told[rank, 1 : 1 + len(path)] = torch.tensor(list(path))
        dist.all_reduce(told)
        found, reached = dict[int, socket.socket](), torch.zeros(ranks, ranks, dtype=torch.int64)
        for other in range(rank if path else 0):
            if told[other, 0] == told[rank, 0] and (
                s := _connected(bytes(told[other, 1:].tolist()).rstrip(b"\0"), rank)
            ):
                found[other], reached[rank, other] = s, 1
        dist.all_reduce(reached)
        for _ in range(int(reached[:, rank].sum())):
            assert listener is not None
            s, _ = listener.accept()
            found[int.from_bytes(s.recv(_WORD), "little")] = s
        on_this = int((told[:, 0] == told[rank, 0]).sum())
    crowded = on_this > min(os.cpu_count() or 1, quota_cores(cpu_quota()))  # a look takes of the quota, too
    pairs = [(a, b) for a, b in reached.nonzero().tolist()]
    return Mailboxes(found, rank, pairs, spin_s=0.0 if crowded else SPIN_S, patience_s=patience_s)


def this_host() -> int:
    """A number for this machine's network as this process sees it: ranks in network namespaces of their own are on hosts of their
    own, whatever else they share, and what they send each other is the business of the link between."""
    network = Path("/proc/self/ns/net")
    return this_boot() ^ (network.stat().st_ino if network.exists() else 0)


def _listening(stack: contextlib.ExitStack, ranks: int) -> tuple[socket.socket | None, bytes]:
    """A socket that listens in a private folder until the stack is unwound, and its path; (None, b"") where that cannot be."""
    for place in (None, "/dev/shm"):
        try:
            folder = stack.enter_context(temporary_folder("mail", place))
            os.close(os.memfd_create("partita"))
            path = os.fsencode(folder / "m")
            listener = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
            listener.bind(path)
            listener.listen(ranks)
        except (OSError, AttributeError):  # no room, too long a name, no such calls on this system
            continue
        return listener, path
    return None, b""


def _connected(path: bytes, rank: int) -> socket.socket | None:
    """A socket to who listens there, who has been told the rank; None where nobody is seen."""
    if not path:
        return None
    s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        s.connect(path)
        s.send(rank.to_bytes(_WORD, "little"))
    except OSError:
        s.close()
        return None
    return s
