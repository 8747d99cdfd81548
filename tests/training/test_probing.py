"""Probing: the pieces are tasks of the job, drawn as its time is, and they run by themselves without touching it."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import islice, pairwise
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from partita.errors import JobError
from partita.nouns.probe import Probe, ProbePiece
from partita.training import probing
from partita.training.capture.model import capture
from partita.training.measure.tasks import quick_task_s
from partita.training.probing import PARTS, SHORT_PASS_S, Prober, _rotation, drawn, held_bytes, prober_for
from partita.training.runtime.recorder import Recorder

CPU = torch.device("cpu")


def part_of(*shape: int):
    return torch.randn(*shape), torch.zeros(shape[0], dtype=torch.long)


def captured(model: nn.Module, *shape: int):
    return capture(model, nn.functional.cross_entropy, part_of(*shape))


def small() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 16 * 16, 10))


def frozen() -> nn.Module:
    model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 4))
    model[0].requires_grad_(False)
    return model


MODELS = {
    "convolution": (small(), (4, 3, 16, 16)),
    "norm, in place, dropout": (
        nn.Sequential(
            nn.Conv2d(3, 32, 5, stride=2), nn.BatchNorm2d(32), nn.ReLU(inplace=True), nn.Dropout(0.3), nn.Conv2d(32, 32, 3),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        ),
        (8, 3, 40, 40),
    ),
    "frozen": (frozen(), (32, 64)),
    "no product": (nn.LayerNorm(32), (4, 32)),
    "attention": (nn.TransformerEncoderLayer(32, 4, 64, batch_first=True), (4, 8, 32)),
}  # fmt: skip


def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return output.flatten(1).square().mean() + 0.0 * target.sum()


@pytest.mark.parametrize("name", MODELS)
def test_every_task_of_a_job_can_be_a_piece(name: str) -> None:
    model, shape = MODELS[name]
    part = part_of(*shape)
    found = capture(model.train(), loss, part)
    pieces = [ProbePiece((t,), 1e-3) for t in found.task_nodes]
    read = Prober(pieces, found, part, CPU).read(len(pieces))
    assert (read > 0).all()


@pytest.mark.parametrize("name", MODELS)
def test_a_whole_job_is_drawn_and_read(name: str) -> None:
    model, shape = MODELS[name]
    part = part_of(*shape)
    found = capture(model.train(), loss, part)
    pieces = drawn(found, quick_task_s(found, model, lambda ps: torch.optim.SGD([p for _, p in ps]), part, CPU))
    assert 1 <= len(pieces) <= PARTS
    assert {t for p in pieces for t in p.tasks} <= set(found.task_nodes)
    assert (Prober(pieces, found, part, CPU).read(PARTS) > 0).all()


def test_pieces_are_drawn_as_the_time_is() -> None:
    """A task that takes half of the time is half of the pieces; small neighbours go together, and not with a large one."""
    found = captured(nn.Sequential(*[nn.Linear(16, 16) for _ in range(20)]), 4, 16)
    n = len(found.task_nodes)
    names = [*found.task_nodes]
    seconds = [1e-4] * n
    seconds[10] = 1e-4 * (n - 1)
    pieces = drawn(found, seconds)
    large = [p for p in pieces if p.tasks == (names[10],)]
    assert len(large) == pytest.approx(len(pieces) / 2, abs=1)
    assert all(names[10] not in p.tasks for p in pieces if p not in large)


@pytest.mark.parametrize("task_s", [1e-6, 1e-4, 2e-4])
def test_a_short_pass_is_one_piece(task_s: float) -> None:
    """Whichever of its tasks the noise of a measurement makes the longest."""
    found = captured(nn.Sequential(*[nn.Linear(16, 16) for _ in range(5)]), 4, 16)
    noise = np.random.default_rng(0)
    for _ in range(20):
        seconds = task_s * noise.uniform(0.5, 2.0, len(found.task_nodes))
        (whole,) = drawn(found, seconds.tolist())
        assert whole.tasks == tuple(found.task_nodes)
        assert whole.seconds == pytest.approx(seconds.sum())


def test_a_task_with_too_many_parameters_is_in_no_piece() -> None:
    """Nor as a small one's neighbour, though it takes less time than the others."""
    layers = [nn.Linear(16, 16), nn.Linear(16, 2400), nn.Linear(2400, 2400), nn.Linear(2400, 16), nn.Linear(16, 16)]
    found = captured(nn.Sequential(*layers), 4, 16)
    held = {t.id: t.parameter_bytes for t in found.graph.tasks}
    heavy = max(held, key=lambda t: held[t])
    assert held[heavy] > 256e6 / PARTS
    seconds = [1e-6 if t == heavy else 2e-6 for t in found.task_nodes]
    assert all(heavy not in p.tasks for p in drawn(found, seconds))


class Deep(nn.Module):
    """Layers of 64 numbers each, and what is drawn from the last."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*[nn.Sequential(nn.Linear(64, 64), nn.ReLU()) for _ in range(28)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layers(x)
        return y * torch.multinomial(torch.softmax(y, 1).detach(), 1)


class Positions(nn.Module):
    """Values that are positions in a table where its own weights make them: stand-ins lie beyond it."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.table = nn.Parameter(torch.zeros(1)), nn.Embedding(2, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.table((x * 0.0 + 100.0 * self.scale).long()).mean(2) + x


def test_layers_leave_stand_ins_as_large_as_they_were() -> None:
    """Nothing can be drawn from probabilities that are nan."""
    part = part_of(16, 64)
    found = capture(Deep(), loss, part)
    (whole,), prober = prober_for(found, [1e-5] * len(found.task_nodes), part, CPU, contextlib.nullcontext)
    assert whole.tasks == tuple(found.task_nodes)
    assert (prober.read() > 0).all()


def test_a_short_pass_that_runs_on_its_own_numbers_only_is_probed_in_pieces() -> None:
    part = part_of(4, 64)
    found = capture(Positions(), loss, part)
    seconds = [SHORT_PASS_S / len(found.task_nodes)] * len(found.task_nodes)
    with pytest.raises(IndexError):
        Prober(drawn(found, seconds), found, part, CPU)
    pieces, prober = prober_for(found, seconds, part, CPU, contextlib.nullcontext)
    assert len(pieces) > 1
    assert np.isfinite(prober.read(len(pieces))).any()


def test_pieces_are_drawn_from_all_of_a_layer_where_layers_are_alike() -> None:
    """Six layers of three tasks, which take 60, 30 and 10 % of it: in the middle of each part there would be the same two of each."""
    found = capture(nn.Sequential(*(nn.Linear(8, 8) for _ in range(18))), loss, part_of(2, 8))
    seconds = [6e-3, 3e-3, 1e-3] * 6
    pieces = drawn(found, seconds + [0.0] * (len(found.task_nodes) - len(seconds)))
    kinds = Counter([*found.task_nodes].index(p.tasks[0]) % 3 for p in pieces)
    assert len(pieces) == PARTS
    assert 6 <= kinds[0] <= 9
    assert 2 <= kinds[1] <= 5
    assert 1 <= kinds[2] <= 2


def test_pieces_take_turns() -> None:
    found = captured(*MODELS["convolution"][:1], 4, 3, 16, 16)
    pieces = [ProbePiece((t,), 1e-3) for t in found.task_nodes]
    prober = Prober(pieces, found, part_of(4, 3, 16, 16), CPU)
    read = np.array([prober.read() for _ in range(2 * len(pieces))])
    assert (np.isfinite(read).sum(axis=0) == 2).all()
    assert (np.isfinite(read).sum(axis=1) == 1).all()


def test_the_job_is_left_alone() -> None:
    """Weights, gradients, buffers, and what it draws at random."""
    model, shape = MODELS["norm, in place, dropout"]
    part = part_of(*shape)
    found = capture(model.train(), loss, part)
    before = {n: t.clone() for n, t in model.state_dict().items()}
    drawn_before = torch.random.get_rng_state()
    Prober([ProbePiece((t,), 1e-3) for t in found.task_nodes], found, part, CPU).read(9)
    assert all(torch.equal(t, before[n]) for n, t in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())
    assert torch.equal(torch.random.get_rng_state(), drawn_before)


def test_a_reading_counts_work_and_not_the_time_that_others_take(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    found = captured(*MODELS["convolution"][:1], 4, 3, 16, 16)
    prober = Prober([ProbePiece(tuple(found.task_nodes), 1e-3)], found, part_of(4, 3, 16, 16), CPU)
    (work,) = prober._works
    forward = work.forward

    def kept_waiting(number: int) -> None:
        forward(number)
        time.sleep(0.1)

    began = time.thread_time()
    monkeypatch.setattr(work, "forward", kept_waiting)
    read = sum(prober.read()[0] for _ in range(5))
    assert 0 < read <= time.thread_time() - began
    assert read < 5 * 0.1


class Fake:
    """A piece whose run is this."""

    def __init__(self, run: Callable[[], object]) -> None:
        self._run = run

    def forward(self, _: int) -> None:
        self._run()

    def backward(self, _: int) -> None:
        pass

    def drop(self, _: int) -> None:
        pass


def test_a_run_that_asks_the_system_for_memory_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second one does here, and takes ten times as long; where all do, no run is better than the others."""
    found = capture(nn.Sequential(nn.Linear(64, 64), nn.ReLU()), loss, part_of(4, 64))
    now, ran, asks = [0.0], [0], [{2}]

    def run() -> None:
        ran[0] += 1
        now[0] += 0.2 if ran[0] in asks[0] else 0.02

    monkeypatch.setattr(probing, "_Work", lambda *_: Fake(run))
    monkeypatch.setattr(probing, "work_clock", lambda _: lambda: now[0])
    monkeypatch.setattr(probing, "_pages", lambda: 100 * sum(k <= ran[0] for k in asks[0]))
    part, each = part_of(4, 64), [ProbePiece((t,), 0.02) for t in found.task_nodes]
    alone = (
        [ProbePiece(tuple(found.task_nodes), 0.02, runs=2)],
        (({2}, 3, 0.02), ({2, 3, 4}, 4, 0.2), (set[int](), 2, 0.02)),
    )
    in_rows_of_3 = (each, (({2}, 6, 0.02), ({2, 5, 8}, 9, 0.2), (set[int](), 3, 0.02)))
    for pieces, cases in (alone, in_rows_of_3):
        prober = Prober(pieces, found, part, CPU)
        for asking, runs, seconds in cases:
            ran[0], asks[0] = 0, asking
            read = prober.read()
            assert read[np.isfinite(read)].tolist() == [pytest.approx(seconds)]
            assert ran[0] == runs


def test_pieces_run_once_each_behind_one_that_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """What runs first behind a step takes longer."""
    found, now, ran = (
        capture(nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64)), loss, part_of(4, 64)),
        [0.0],
        list[str](),
    )

    def work(tasks: tuple[str, ...], *_: object) -> Fake:
        def run() -> None:
            now[0] += 1.0 if not ran else 0.01
            ran.append(tasks[0])

        return Fake(run)

    monkeypatch.setattr(probing, "_Work", work)
    monkeypatch.setattr(probing, "work_clock", lambda _: lambda: now[0])
    pieces = [ProbePiece((t,), 0.01) for t in found.task_nodes]
    prober = Prober(pieces, found, part_of(4, 64), CPU)
    for times in (1, 2, 2, 1):
        ran.clear()
        read = prober.read(times)
        assert read[np.isfinite(read)].tolist() == [pytest.approx(0.01)] * times
        assert len(set(ran)) == len(ran[:-1]) == times + 1
        assert ran[-1] == ran[0]  # so that the last one that counts is like the others


def test_a_forward_runs_before_the_backward_of_the_piece_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a pipeline. Where a piece follows its like, two of it are under way, by different numbers."""
    found = capture(nn.Sequential(nn.Linear(64, 64), nn.ReLU()), loss, part_of(4, 64))
    first, other = [(t,) for t in found.task_nodes][:2]
    ran, names = list[str](), {first: "a", other: "b"}

    class Noted(Fake):
        def __init__(self, tasks: tuple[str, ...], *_: object) -> None:
            self._name = names[tasks]

        def forward(self, number: int) -> None:
            ran.append(f"f{self._name}{number}")

        def backward(self, number: int) -> None:
            ran.append(f"b{self._name}{number}")

        def drop(self, number: int) -> None:
            ran.append(f"d{self._name}{number}")

    monkeypatch.setattr(probing, "_Work", Noted)
    pieces = [ProbePiece(tasks, 0.01) for tasks in (first, first, first, other)]
    prober = Prober(pieces, found, part_of(4, 64), CPU)
    ran.clear()
    prober.read(4)
    assert " ".join(ran) == "fb0 fa0 bb0 fb0 ba0 fa0 bb0 fa1 ba0 fb0 ba1 db0"


@pytest.mark.parametrize("name", MODELS)
def test_a_piece_may_follow_its_like(name: str) -> None:
    """Of tasks in place and at random, too."""
    model, shape = MODELS[name]
    found = capture(model.train(), loss, part_of(*shape))
    pieces = [ProbePiece((t,), 1e-3) for t in found.task_nodes for _ in range(2)]
    prober = Prober(pieces, found, part_of(*shape), CPU)
    for k in range(len(pieces)):
        seconds, _ = prober._in_a_row(k, [k, k])
        assert (seconds > 0).all()


@pytest.mark.parametrize("first", [1.0, 40.0])
@pytest.mark.parametrize(("seconds", "runs"), [(1e-4, 30), (1.1e-3, 3), (1.2e-2, 2), (0.1, 2)])
def test_a_piece_runs_until_it_is_warm_before_it_is_timed_however_long_its_first_run_takes(
    monkeypatch: pytest.MonkeyPatch, seconds: float, runs: int, first: float
) -> None:
    part = part_of(4, 64)
    found = capture(nn.Sequential(nn.Linear(64, 64), nn.ReLU()), loss, part)
    ran: list[int] = []
    monkeypatch.setattr(probing, "_Work", lambda *_: Fake(lambda: ran.append(0)))
    monkeypatch.setattr(probing, "work_clock", lambda _: lambda: (len(ran) + (first - 1 if ran else 0)) * seconds)
    tasks = [*found.task_nodes]
    [piece] = drawn(found, [seconds] + [0.0] * (len(tasks) - 1))
    assert piece.runs == runs
    # in a run the piece is known to take another time, and runs as often
    prober = Prober([replace(piece, seconds=0.7 * seconds)], found, part, CPU)
    assert prober.takes_s(1) == pytest.approx(0.7 * runs * seconds)
    ran.clear()
    assert prober.read().tolist() == [pytest.approx(seconds)]
    assert len(ran) == runs


def learning(
    monkeypatch: pytest.MonkeyPatch, runs: int, pieces: int, clock: list[float], takes_s: list[float]
) -> Prober:
    """Of pieces that are known to take a millisecond; each run takes `takes_s[0]` by the clock."""
    part = part_of(4, 64)
    found = capture(nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4)), loss, part)

    def run() -> None:
        clock[0] += takes_s[0]

    monkeypatch.setattr(probing, "_Work", lambda *_: Fake(run))
    monkeypatch.setattr(probing, "_pages", lambda: 0)
    monkeypatch.setattr(probing, "time", SimpleNamespace(perf_counter=lambda: clock[0]))
    return Prober([ProbePiece((t,), 1e-3, runs) for t in [*found.task_nodes][:pieces]], found, part, CPU)


@pytest.mark.parametrize(("runs", "pieces"), [(3, 1), (1, 3)])
def test_what_readings_take_is_learnt_by_the_wall_clock(
    monkeypatch: pytest.MonkeyPatch, runs: int, pieces: int
) -> None:
    """With what others take of the core, which is no work; in powers of two, so that ranks which are nearly alike say the same; of a
    reading that was stopped for ten minutes nothing is left after ten others."""
    clock, each_s = [0.0], [0.0]
    prober = learning(monkeypatch, runs, pieces, clock, each_s)
    planned_s = prober.takes_s(1)

    def slower(each: float, times: int = 20) -> float:
        each_s[0] = each
        for _ in range(times):
            prober.read()
        return prober.takes_s(1) / planned_s

    usual = planned_s / 3  # three runs, or the forwards of two pieces and one more
    assert [slower(usual * by) for by in (1.0, 1.3, 0.2, 3.9, 40.0, 1.0)] == [1, 1, 1, 4, 32, 1]
    assert slower(600.0, 1) <= 4
    assert slower(usual, 10) == 1


@pytest.mark.parametrize("slower", [0.2, 1.2, 3.0, 40.0])
@pytest.mark.parametrize(("runs", "pieces"), [(3, 1), (1, 3)])
def test_readings_take_a_hundredth_of_the_time_however_slow_the_device_is(
    monkeypatch: pytest.MonkeyPatch, runs: int, pieces: int, slower: float
) -> None:
    """Every step and every reading of it is."""
    clock, usual = [0.0], (0.001 if runs > 1 else 0.7 / 900)
    prober = learning(monkeypatch, runs, pieces, clock, [slower * usual])
    probe = Probe((ProbePiece(("a",), 1e-3),) * pieces, 1)
    recorder, clock[0] = Recorder(probe, prober, 4000), 0.0
    for _ in range(4000):
        recorder.begin()
        recorder.after(slower * 0.05, 1.0, 0.7)
    saved_s = 0.01 * 4000 * slower * 0.05
    assert 0.6 * min(1.0, slower) * saved_s <= clock[0] <= 1.5 * saved_s


def test_a_step_that_was_stopped_saves_for_no_more_than_one_step_can_read(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    prober = learning(monkeypatch, 1, 3, clock, [0.7 / 900])
    recorder = Recorder(Probe((ProbePiece(("a",), 1e-3),) * 3, 1), prober, 1 << 40)
    for step_s in [0.05] * 500 + [3600.0] + [0.05] * 500:
        recorder.begin()
        recorder.after(step_s, 1.0, 0.7)
    assert clock[0] <= 1.5 * 0.01 * 1000 * 0.05


class Whitened(nn.Module):
    """A factorisation of what the layer before it makes, which nothing else is fit for."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(16, 16), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.linalg.cholesky(self.first(x)))


def positive(n: int):
    half = torch.randn(n, 16, 16)
    return half @ half.mT + torch.eye(16), torch.zeros(n)


@pytest.mark.parametrize("each_s", [0.0, 1e-5, 1e-3])
def test_operators_that_refuse_numbers_that_stand_in_are_left_out(each_s: float) -> None:
    model, part = Whitened(), positive(4)
    with torch.no_grad():
        model.first.weight.copy_(torch.eye(16))
        model.first.bias.zero_()
    found = capture(model, loss, part)
    pieces, prober = prober_for(found, [each_s] * len(found.task_nodes), part, CPU, contextlib.nullcontext)
    tasks = {t for p in pieces for t in p.tasks}
    assert "linear_1" in tasks
    assert not any("cholesky" in t for t in tasks)
    assert np.isfinite(prober.read(1)).sum() == 1


def test_numbers_that_stand_in_are_probabilities() -> None:
    model = nn.Sequential(nn.Conv2d(3, 1, 3), nn.Sigmoid())
    part = torch.randn(2, 3, 8, 8), torch.rand(2, 1, 6, 6)
    found = capture(model, nn.functional.binary_cross_entropy, part)
    pieces = [ProbePiece((t,), 1e-3) for t in found.task_nodes]
    assert (Prober(pieces, found, part, CPU).read(len(pieces)) > 0).all()


def test_a_job_of_which_nothing_runs_by_itself_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*_: object) -> None:
        raise ValueError("not with these numbers")

    monkeypatch.setattr(probing._Work, "forward", refuses)
    found = captured(small(), 4, 3, 16, 16)
    seconds = [1e-3] * len(found.task_nodes)
    with pytest.raises(JobError, match=r"no operator of this job runs on numbers that stand in .*: .*not with these"):
        prober_for(found, seconds, part_of(4, 3, 16, 16), CPU, contextlib.nullcontext)


@pytest.mark.parametrize("pieces", [2, 3, 4, 6, 12])
def test_pieces_are_read_in_turn_none_twice_in_a_row_and_at_every_place(pieces: int) -> None:
    order = list(islice(_rotation(pieces), pieces * pieces))
    assert all(a != b for a, b in pairwise(order))
    turns = [order[k : k + pieces] for k in range(0, len(order), pieces)]
    assert all(sorted(turn) == list(range(pieces)) for turn in turns)
    assert pieces == 2 or all(len(set(place)) == pieces for place in zip(*turns, strict=True))


def test_what_a_prober_needs_is_counted() -> None:
    found = captured(small(), 4, 3, 16, 16)
    conv, linear = ("conv2d",), ("linear",)
    kept = {t.id: t.activation_bytes for t in found.graph.tasks}
    made = 4 * (4 * 8 * 16 * 16)  # bytes of what the convolution makes, and the linear reads
    assert held_bytes([ProbePiece(conv, 1e-3)] * 3, found) == made + 2 * 4 * (8 * 3 * 9 + 8) + 2 * kept["conv2d"]
    of_linear = 3 * made + 4 * 4 * 10 + 2 * 4 * (2048 * 10 + 10)
    assert held_bytes([ProbePiece(linear, 1e-3)], found) == of_linear + 2 * kept["linear"]


@pytest.mark.parametrize("name", ["convolution", "norm, in place, dropout", "frozen"])
def test_what_a_prober_holds_is_known_before(name: str) -> None:
    """What lies there after a round is no more than was told beside activations, and no less than a third: frozen weights have no
    gradients."""
    model, shape = MODELS[name]
    found = captured(model, *shape)
    for tasks in [(t,) for t in found.task_nodes][:12]:
        pieces = [ProbePiece(tasks, 1e-3)] * 2
        prober = Prober(pieces, found, part_of(*shape), CPU)
        prober.read(2)
        kept = 2 * sum(t.activation_bytes for t in found.graph.tasks if t.id in tasks)
        there = _bytes_of(prober._works[0])
        assert there <= held_bytes(pieces, found) - kept <= 3 * there + 1e4, tasks


def _bytes_of(work: probing._Work) -> int:
    stage = work._stage
    fixed = [v for v in stage._fixed if isinstance(v, torch.Tensor)]
    grads = [v.grad for v in fixed if v.grad is not None]
    received = [t for values in work._received.values() for t in values.values()]
    every = [*fixed, *grads, *received, *(g for g in work._gradients if g is not None)]
    return sum(s.nbytes() for s in {t.untyped_storage().data_ptr(): t.untyped_storage() for t in every}.values())


def test_a_stage_holds_no_gradient_that_it_has_sent_back() -> None:
    work = probing._Work(("linear",), captured(small(), 4, 3, 16, 16), [], CPU, contextlib.nullcontext)
    for number in (0, 1):
        work.forward(number)
        work.backward(number)
    work.forward(2)
    sent = work._stage.backward_inputs(2, work._gradients, 1.0)
    assert sent
    assert [held._gradients for held in work._stage._arrivals.values()] == [{}, {}, {}]
    work._stage.backward_weights(2)
