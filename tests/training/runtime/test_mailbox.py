"""Messages and sums through memory: what arrives is what was sent, in any order, whoever dies."""

import errno
import os
import random
import socket
import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from ranks import on_ranks

from partita.training.capture.captured import TensorMeta
from partita.training.runtime import mailbox
from partita.training.runtime.gradients import sum_in_memory
from partita.training.runtime.mailbox import Mailboxes, PeerGone, open_mailboxes

MESSAGES = 400
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool, torch.complex64)


def _meta(tensor: torch.Tensor) -> TensorMeta:
    return TensorMeta(tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype, False)


def _message(dice: random.Random, generator: torch.Generator) -> list[torch.Tensor]:
    """One to three tensors of any type, size and layout."""
    found = []
    for _ in range(dice.randint(1, 3)):
        shape = [dice.choice([0, 1, 2, 5, 17]) for _ in range(dice.randint(0, 4))]
        values = torch.randn(shape, generator=generator).mul(9).to(dice.choice(DTYPES))
        if dice.random() < 0.5:
            values = values.permute(dice.sample(range(len(shape)), len(shape)))
        found.append(values[..., ::2] if shape and dice.random() < 0.3 else values)
    return found


def _exchange(rank: int, ranks: int, seed: int) -> int:
    """Everybody sends to everybody, and reads in an order of its own; the number of boxes that it took."""
    boxes, dice = open_mailboxes(rank, ranks), random.Random(f"{seed} {rank}")
    sent = {
        (a, b): [_message(random.Random(f"{seed} {a} {b} {k}"), torch.Generator().manual_seed(k)) for k in range(MESSAGES)]
        for a in range(ranks) for b in range(ranks)
    }  # fmt: skip
    tags = [random.Random(f"tags {seed} {k}").randrange(40) for k in range(MESSAGES)]
    for k, tag in enumerate(tags):
        for b in dice.sample(range(ranks), ranks):
            if b != rank:
                boxes.send(b, tag, sent[rank, b][k], tuple(map(_meta, sent[rank, b][k])))
    by_tag = [(a, tag) for a in range(ranks) if a != rank for tag in set(tags)]
    for a, tag in dice.sample(by_tag, len(by_tag)):
        for k in [k for k, t in enumerate(tags) if t == tag]:
            got = boxes.receive(a, tag, tuple(map(_meta, sent[a, rank][k])))
            for x, y in zip(got, sent[a, rank][k], strict=True):
                assert x.dtype == y.dtype
                assert torch.equal(x, y)
    return sum(len(alike) for own in boxes._own.values() for alike in own.values())


@pytest.mark.parametrize("seed", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_what_arrives_is_what_was_sent(seed: int) -> None:
    on_ranks(_exchange, 2 + seed, seed)


def _again(rank: int, ranks: int) -> tuple[int, int]:
    boxes, value = open_mailboxes(rank, ranks), torch.arange(1000.0)
    before = len(os.listdir("/proc/self/fd"))
    for k in range(300):
        if rank:
            boxes.receive(0, k, (_meta(value),))
        boxes.send(1 - rank, k, [value], (_meta(value),))
        if not rank:
            boxes.receive(1, k, (_meta(value),))
    return sum(len(alike) for own in boxes._own.values() for alike in own.values()), len(
        os.listdir("/proc/self/fd")
    ) - before


@pytest.mark.slow
def test_a_box_is_used_again_and_no_handle_is_kept() -> None:
    assert on_ranks(_again, 2) == (1, 0)


def _sums(rank: int, ranks: int) -> int:
    boxes, random_ = open_mailboxes(rank, ranks), np.random.default_rng(5)
    differ = 0
    for size in [1, 2, 3, *random_.integers(1, 5000, 40).tolist()]:
        mine = torch.randn(size, generator=torch.Generator().manual_seed(size + rank), dtype=torch.float64)
        theirs = mine.clone()
        sum_in_memory(boxes, mine, range(ranks))
        dist.all_reduce(theirs)
        torch.testing.assert_close(mine, theirs)
        least, most = mine.clone(), mine.clone()
        dist.all_reduce(least, dist.ReduceOp.MIN)
        dist.all_reduce(most, dist.ReduceOp.MAX)
        differ += int((least != most).sum())
    return differ


@pytest.mark.parametrize("ranks", [pytest.param(2, marks=pytest.mark.slow), 3])
def test_sums_are_those_of_the_process_group_and_alike_everywhere(ranks: int) -> None:
    assert on_ranks(_sums, ranks) == 0


def _abandoned(rank: int, ranks: int) -> tuple[str, float]:
    boxes = open_mailboxes(rank, ranks, patience_s=2.0)
    if rank:
        time.sleep(5.0)  # silent
        return "", 0.0
    began = time.monotonic()
    with pytest.raises(PeerGone) as caught:
        boxes.receive(1, 0, (_meta(torch.zeros(3)),))
    return str(caught.value), time.monotonic() - began


def test_a_silent_peer_is_named_when_patience_ends() -> None:
    said, took = on_ranks(_abandoned, 2)
    assert "rank 1 was silent" in said
    assert 1.9 < took < 4.5


def test_ranks_that_do_not_see_each_other_stay_without() -> None:
    none = Mailboxes({})
    assert 1 not in none
    assert not none.join([0, 1])
    assert Mailboxes({}, 0, [(1, 0)]).join([0, 1])


def test_a_killed_peer_is_noticed_at_once() -> None:
    """Through a pair of sockets in one process: the other end is closed, as by the kernel when its process dies."""
    import socket

    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    boxes: Any = Mailboxes({1: here})
    there.close()
    began = time.monotonic()
    with pytest.raises(PeerGone, match="rank 1"):
        boxes.receive(1, 0, (_meta(torch.zeros(3)),))
    with pytest.raises(PeerGone, match="rank 1"):
        boxes.send(1, 0, [torch.zeros(3)], (_meta(torch.zeros(3)),))
    assert time.monotonic() - began < 1.0
    here.close()


@pytest.mark.parametrize(("others", "lost"), [(False, False), (False, True), (True, True)])
def test_a_receiver_looks_for_its_message_unless_others_want_the_core(monkeypatch, others: bool, lost: bool) -> None:
    """What a virtual core loses to other machines is no reason to sleep. On a clock that a look moves by a tenth of a millisecond."""
    own, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    now, alone = [0.0], [not lost]

    def looked(*_: Any) -> None:
        now[0] += 1e-4

    def look_s() -> float:
        began = now[0]
        boxes._look(1, boxes._arrived[1, 7])
        return now[0] - began

    clock = SimpleNamespace(monotonic=lambda: now[0], thread_time=lambda: now[0] if alone[0] else 0.0)
    monkeypatch.setattr(mailbox, "time", clock)
    monkeypatch.setattr(mailbox, "_displaced", lambda: now[0] if others else 0)
    with own, other:
        boxes = Mailboxes({1: own}, spin_s=0.08)
        monkeypatch.setattr(boxes, "_take", looked)
        assert look_s() == pytest.approx(0.08, abs=2e-4)
        for _ in range(3):
            assert look_s() == pytest.approx(mailbox.CROWDED_SPIN_S if others else 0.08, abs=2e-4)
        alone[0] = True
        boxes._reserved = min(boxes._reserved, 1)
        look_s()
        assert look_s() == pytest.approx(0.08, abs=2e-4)  # they have gone


def test_a_peer_that_died_while_another_was_waited_for_is_noticed_without_a_look() -> None:
    pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(2)]
    boxes = Mailboxes({1: pairs[0][0], 2: pairs[1][0]}, spin_s=0.0, patience_s=5.0)
    pairs[1][1].close()
    boxes._let_in(0.1, time.monotonic() + 5, 1)
    with pytest.raises(PeerGone, match="closed by rank 2"):
        boxes._wait(2, boxes._arrived[2, 0])
    for s in (pairs[0][0], pairs[0][1], pairs[1][0]):
        s.close()


@pytest.mark.parametrize("other_first", [False, True])
def test_what_a_peer_sent_comes_though_it_died_with_something_unread(other_first: bool) -> None:
    """Its socket is then reset, which is told ahead of what lies in it."""
    pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(2)]
    boxes = Mailboxes({1: pairs[0][0], 2: pairs[1][0]}, spin_s=0.0, patience_s=5.0)
    peer = Mailboxes({0: pairs[0][1]})
    sent, meta = torch.ones(3), _meta(torch.ones(3))
    for tag in range(4):
        peer.send(0, tag, [tag * sent], (meta,))
    boxes.send(1, 0, [sent], (meta,))
    pairs[0][1].close()
    if other_first:
        boxes._let_in(0.1, time.monotonic() + 5, 2)
    for tag in (3, 0):
        assert torch.equal(boxes.receive(1, tag, (meta,))[0], tag * sent)
    with pytest.raises(PeerGone, match="closed by rank 1"):
        boxes.receive(1, 9, (meta,))
    for s in (pairs[0][0], *pairs[1]):
        s.close()


def test_boxes_of_all_sizes_are_few() -> None:
    """Each message is read before the next one is sent: of each of the few sizes there is one box."""
    own, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with own, other:
        here, there = Mailboxes({1: own}), Mailboxes({0: other}, 1)
        for n in range(1, 3000):
            value = torch.full((n,), float(n))
            here.send(1, n, [value], (_meta(value),))
            assert torch.equal(there.receive(0, n, (_meta(value),))[0], value)
        boxes = [b for alike in here._own[1].values() for b in alike]
        assert len(boxes) <= 8
        assert sum(len(b.memory) for b in boxes) <= 8 * 12_000
        assert max(len(b.views) for b in boxes) <= mailbox._MOST_VIEWS


class _Full:
    """A socket by which no more files can be handed over until a message has been read from it."""

    def __init__(self, real: socket.socket) -> None:
        self.real, self.refused, self.full = real, 0, True

    def sendmsg(self, *given: Any) -> int:
        self.refused += self.full
        if self.full:
            raise OSError(errno.ETOOMANYREFS, "too many")
        return self.real.sendmsg(*given)

    def recvmsg(self, *given: Any) -> Any:
        found = self.real.recvmsg(*given)
        self.full = False
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)


def test_where_too_many_boxes_are_on_their_way_a_sender_takes_in_what_came_meanwhile() -> None:
    own, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    value = torch.ones(3)
    with own, other:
        full: Any = _Full(own)
        here, there = Mailboxes({1: full}, patience_s=5.0), Mailboxes({0: other}, 1)
        there.send(0, 7, [2 * value], (_meta(value),))
        here.send(1, 8, [value], (_meta(value),))
        assert full.refused == 1
        assert torch.equal(there.receive(0, 8, (_meta(value),))[0], value)
        assert torch.equal(here.receive(1, 7, (_meta(value),))[0], 2 * value)
