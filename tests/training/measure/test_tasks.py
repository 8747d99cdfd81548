"""Timing every task of a model: real measurements of small ones, with a clock made up or none."""

from __future__ import annotations

import contextlib
import functools
import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from partita.errors import CaptureError, JobError
from partita.memory import objects_aside
from partita.nouns.cluster import Device
from partita.training.capture.model import Captured, capture
from partita.training.job import TrainingJob, load_job, micro_batches
from partita.training.measure import tasks
from partita.training.measure.job import Asked, Measuring, measure_job
from partita.training.measure.steps import Steps, StepTimes, in_two
from partita.training.measure.tasks import _Runner, time_tasks
from partita.training.measure.times import BETWEEN, TaskTimes, cold_s, idle_update_s
from partita.training.probing import drawn
from partita.training.runtime.stopwatch import Stopwatch

MASKED = """
import torch
from torch import nn
import partita

class Masked(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x, mask):
        return self.b(torch.matmul(mask, self.a(x)).mean(1))

def job():
    def batches(epoch):
        yield (torch.randn(32, 8, 6), torch.ones(8, 8)), torch.randint(0, 3, (32,))
    return partita.TrainingJob(Masked, nn.functional.cross_entropy, batches, lambda p: torch.optim.SGD(p, lr=0.1))
"""
MODELS = Path(__file__).parents[2] / "jobs" / "small_models.py"
CPU = torch.device("cpu")


def taken(name: str, size: int = 2) -> tuple[TrainingJob, torch.nn.Module, Captured]:
    job = load_job(f"{MODELS}:{name}")
    model = job.build()
    return job, model, capture(model, job.loss, next(micro_batches(job.example(), size)))


def timed(name: str) -> tuple[TaskTimes, Captured, torch.nn.Module]:
    job, model, captured = taken(name)
    part = next(micro_batches(job.example(), 2))
    return time_tasks(captured, model, job.optimizer, part, CPU, budget_s=0.0, least=3, most=3), captured, model


def test_every_task_has_times_and_none_is_negative() -> None:
    times, captured, _ = timed("long_skip")
    n = sum(t.phase == "forward" for t in captured.graph.tasks)
    assert times.forward.shape == times.backward.shape == (3, n)
    assert (times.forward > 0).all()
    assert (times.backward >= 0).all()
    assert (times.calls >= 1).all()
    assert (times.marks >= 1).sum() >= n - 1  # hooks mark all that is differentiable
    assert (np.array([times.whole_forward, times.whole_backward, times.one_in_flight, times.update]) > 0).all()
    assert times.whole_forward.shape == (3,)


def test_a_task_that_hands_on_what_it_gets_takes_no_backward_of_others() -> None:
    """A dropout of 0 returns its input; one in place returns it too, and has a backward."""
    model = torch.nn.Sequential(
        torch.nn.Linear(256, 512), torch.nn.Dropout(0.0), torch.nn.Linear(512, 256), torch.nn.ReLU(inplace=True)
    )
    part = torch.randn(64, 256), torch.zeros(64)
    captured = capture(model, lambda y, _: y.square().mean(), part)
    times = time_tasks(
        captured, model, lambda named: torch.optim.SGD([p for _, p in named]), part, CPU, budget_s=0.0, least=3, most=3
    )
    seconds = dict(zip(captured.task_nodes, np.median(times.backward, axis=0), strict=True))
    marks = dict(zip(captured.task_nodes, times.marks, strict=True))
    assert marks["dropout"] == seconds["dropout"] == 0
    assert [marks[t] for t in captured.task_nodes if t.startswith(("linear", "relu"))] == [1, 1, 1]
    assert seconds["linear"] > 0


@pytest.mark.parametrize(("name", "share"), [("long_skip", 1.0), ("two_inputs", 2.0)], ids=["momentum", "adam"])
def test_optimizer_state_is_counted_in_parameters(name: str, share: float) -> None:
    assert timed(name)[0].optimizer_bytes_per_parameter_byte == pytest.approx(share)


class Called(TorchDispatchMode):
    """The operators that are called inside it."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


def test_tasks_run_in_the_code_of_a_stage_and_a_relu_is_in_place_there() -> None:
    """A relu behind the value at which a split backward begins must be none: that value is a leaf."""
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    part = (torch.randn(4, 8),), torch.randint(0, 3, (4,))
    captured = capture(model, torch.nn.functional.cross_entropy, part)

    def optimizer(named: list[tuple[str, torch.nn.Parameter]]) -> torch.optim.Optimizer:
        return torch.optim.SGD([p for _, p in named], lr=0.1)

    runner = _Runner(captured, model, optimizer, part, CPU, contextlib.nullcontext)
    with Called() as called:
        runner.one_pass()
    assert "relu_" in called.names
    assert "relu" not in called.names
    assert (runner.marks > 0).all()
    assert runner.weight_pass()["weights"].sum() > 0


def test_plain_sgd_keeps_nothing() -> None:
    job, model, captured = taken("two_inputs")
    part = next(micro_batches(job.example(), 2))
    times = time_tasks(
        captured,
        model,
        lambda ps: torch.optim.SGD([p for _, p in ps], lr=0.1),
        part,
        CPU,
        budget_s=0.0,
        least=1,
        most=1,
    )
    assert times.optimizer_bytes_per_parameter_byte == 0.0


@pytest.mark.parametrize("name", ["long_skip", "two_inputs"])
def test_the_model_stays_as_it_was(name: str) -> None:
    job, model, captured = taken(name)
    before = {n: t.detach().clone() for n, t in model.state_dict().items()}
    time_tasks(
        captured,
        model,
        job.optimizer,
        next(micro_batches(job.example(), 2)),
        CPU,
        budget_s=0.0,
        least=2,
        most=2,
    )
    after = model.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[n], after[n]) for n in before)
    assert all(p.grad is None for p in model.parameters())
    assert model.training


@pytest.mark.parametrize("halves", [False, True])
@pytest.mark.parametrize("count", [1, 2])
def test_before_each_other_pass_what_counts_is_between_two_readings(
    monkeypatch: pytest.MonkeyPatch, count: int, halves: bool
) -> None:
    """A step of two micro-batches; where there is but one, one of those that add to gradients. Next come halves, together and each as a rank."""
    order: list[str] = []

    def noted(name: str) -> Callable[..., Any]:
        run: Callable[..., Any] = getattr(_Runner, name)
        return lambda runner, *rest: (order.append(name), run(runner, *rest))[1]

    def settled(runner: _Runner, steps: Steps, **how: bool) -> StepTimes:
        order.append("steps" if steps is runner._steps else "lone" if steps is runner._lone else "halves")
        return before(runner, steps, **how)

    before = _Runner._settled
    monkeypatch.setattr(_Runner, "_settled", settled)
    for name in ("weight_pass", "one_pass"):
        monkeypatch.setattr(_Runner, name, noted(name))
    if not halves:
        monkeypatch.setattr(_Runner, "_halves", None)
    job, model, captured = taken("two_inputs")
    part = next(micro_batches(job.example(), 2 * count))
    time_tasks(
        captured, model, job.optimizer, part, CPU, budget_s=0.0, least=2, most=2, micro_batches=count,
        between=lambda: order.append("read"),
    )  # fmt: skip
    what, other = ("steps", "lone") if count > 1 else ("lone", "steps")
    counted = ["read", what, "read", *["halves"] * 3 * halves]
    expected = [*counted, "weight_pass", *counted, other, "lone", *counted, "one_pass"]
    assert order[-len(expected) :] == expected
    assert order.count("read") == 2 * BETWEEN


@pytest.mark.parametrize(("frozen", "waits"), [(False, 2), (True, 1)])
def test_what_waits_cost_is_what_halves_behind_them_take_beyond_what_is_told(
    monkeypatch: pytest.MonkeyPatch, frozen: bool, waits: int
) -> None:
    """Where the first half trains nothing, nothing comes back to it, and one wait made both take longer."""
    model = torch.nn.Sequential(torch.nn.Linear(6, 32), torch.nn.Tanh(), torch.nn.Linear(32, 3))
    model[0].requires_grad_(not frozen)
    batch = torch.randn(4, 6), torch.randint(0, 3, (4,))
    captured = capture(model, torch.nn.functional.cross_entropy, batch)
    monkeypatch.setattr(tasks, "in_two", lambda captured, s: [(t := [*captured.task_nodes])[:2], t[2:]])
    sgd = functools.partial(torch.optim.SGD, lr=0.1)
    runner = _Runner(captured, model, lambda ps: sgd([p for _, p in ps]), batch, CPU, contextlib.nullcontext)
    runner.warm_up()
    assert runner._halves
    assert [r.receives for r in runner._halves.ranks] == [not frozen, True]
    assert 0 < runner._behind_waits_s() < 1
    assert runner.waits == waits
    monkeypatch.setattr(_Runner, "_behind_waits_s", lambda _: 4.0)
    assert runner.round(lambda: None, contextlib.nullcontext)["behind_waits"] == 4.0


class AllOfThem(torch.optim.SGD):
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        assert all(p.grad is not None for g in self.param_groups for p in g["params"])
        super().step(closure)


def test_what_waits_cost_is_not_told_of_an_optimizer_that_wants_all_gradients() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(6, 32), torch.nn.Tanh(), torch.nn.Linear(32, 3))
    batch = torch.randn(4, 6), torch.randint(0, 3, (4,))
    captured = capture(model, torch.nn.functional.cross_entropy, batch)
    times = time_tasks(captured, model, lambda ps: AllOfThem([p for _, p in ps], lr=0.1), batch, CPU, budget_s=0.0)
    assert np.isfinite(times.cutting).all()
    assert (times.waits, cold_s(times)) == (0, 0.0)


def test_a_job_with_a_module_used_twice_is_cut_elsewhere(tmp_path: Path) -> None:
    """Both uses of a BatchNorm share their statistics, and a device."""
    job = tmp_path / "twice.py"
    job.write_text(TWICE)
    loaded = load_job(f"{job}:job")
    captured = capture(loaded.build(), loaded.loss, loaded.example())
    first, second = in_two(captured, [1.0] * len(captured.task_nodes))
    group = {t.id: t.group for t in captured.graph.tasks}
    assert {group[t] for t in first} & {group[t] for t in second} <= {None}
    assert measure_job(f"{job}:job", devices=2, budget_s=0.1).cluster.devices[0].instruction_s >= 0


def test_a_budget_ends_the_passes() -> None:
    job, model, captured = taken("two_inputs")
    part = next(micro_batches(job.example(), 2))
    least = time_tasks(captured, model, job.optimizer, part, CPU, budget_s=0.0, least=2, most=9)
    most = time_tasks(captured, model, job.optimizer, part, CPU, budget_s=60.0, least=2, most=5)
    assert (len(least.forward), len(most.forward)) == (2, 5)


def test_passes_go_on_until_they_are_steady_for_no_longer_than_there_is_patience(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job, model, captured = taken("two_inputs")
    part = next(micro_batches(job.example(), 2))

    def passes(patience: float) -> int:
        monkeypatch.setattr(tasks, "PATIENCE", patience)
        return len(
            time_tasks(
                captured, model, job.optimizer, part, CPU, budget_s=1e-9, least=2, steady=lambda s: len(s) == 7
            ).forward
        )

    assert (passes(1e12), passes(2.0)) == (7, 2)


def test_a_job_measured_whole(tmp_path: Path) -> None:
    """Graph, costs and facts fit each other, and the profile comes back from its file."""
    from partita.nouns.profile import Profile

    profile = measure_job(f"{MODELS}:two_inputs", {"batch": "8"}, devices=2, sizes=(4, 2), budget_s=1.0)
    assert [s.micro_batch_size for s in profile.samples] == [4, 2]
    assert profile.batch_size == 8
    assert all(d.update_s > 0 and d.step_s > 0 and d.instruction_s > 0 for d in profile.cluster.devices)
    for sample in profile.samples:
        assert (sample.costs.seconds >= 0).all()
        assert np.isfinite(sample.costs.seconds).all()
        assert sample.single_step_s > 0
        assert sample.costs.check(sample.graph) == []
    assert 0 < profile.facts["wall_s"] < 120
    assert profile.facts["cpu_s"] > 0
    assert profile.facts["settings"] == {"batch": "8"}
    assert Profile.read(profile.write(tmp_path / "profile.json")).to_json() == profile.to_json()


@pytest.mark.parametrize(("short_s", "probed"), [(1.0, 4), (3e-3, 2), (1e-9, 2)])
def test_the_probe_of_a_short_job_is_its_pass_on_the_largest_micro_batch(
    monkeypatch: pytest.MonkeyPatch, short_s: float, probed: int
) -> None:
    """Passes take a millisecond a sample."""
    monkeypatch.setattr(
        "partita.training.measure.job.quick_task_s",
        lambda captured, *rest: [1e-3 * len(rest[2][1]) / len(captured.nodes)] * len(captured.nodes),
    )
    monkeypatch.setattr(
        "partita.training.measure.job.drawn", lambda captured, task_s: drawn(captured, task_s, short_pass_s=short_s)
    )
    measuring = Measuring.of(Asked(f"{MODELS}:two_inputs", {"batch": "8"}, (1, 2, 4)), Device("cpu0"))
    assert measuring.probed == probed


def test_a_tensor_that_goes_along_whole_is_not_cut(tmp_path: Path) -> None:
    """A mask as long as two micro-batches: a pair of them, cut by itself, would take it for one of its samples'."""
    job = tmp_path / "masked.py"
    job.write_text(MASKED)
    profile = measure_job(f"{job}:job", devices=1, sizes=(4,), budget_s=1.0)
    assert profile.samples[0].single_step_s > 0


def test_objects_are_aside_for_a_while_and_stay_so_where_others_were() -> None:
    with objects_aside():
        assert gc.get_freeze_count() > 0
        with objects_aside():
            pass
        assert gc.get_freeze_count() > 0
    assert gc.get_freeze_count() == 0


TWICE = """
import torch
from torch import nn
import partita

class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)

    def forward(self, x):
        return self.last(self.norm(torch.relu(self.norm(self.first(x)))))

def job():
    def batches(epoch):
        yield torch.randn(16, 6), torch.randint(0, 3, (16,))
    return partita.TrainingJob(Twice, nn.functional.cross_entropy, batches, lambda ps: torch.optim.SGD([p for _, p in ps], lr=0.1))
"""


NORMED = """
import torch
from torch import nn
import partita

def job(sizes="", optimizer="SGD"):
    def batches(epoch):
        yield torch.randn(16, 6), torch.randint(0, 3, (16,))
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
    kinds = {"raises": lambda ps: 1 / 0, "none": lambda ps: None}
    make = kinds.get(optimizer) or (lambda ps: getattr(torch.optim, optimizer)([p for _, p in ps], lr=0.1))
    return partita.TrainingJob(model, nn.functional.cross_entropy, batches, make, micro_batch_sizes=tuple(map(int, sizes.split())))
"""


@pytest.fixture
def normed(tmp_path: Path) -> str:
    """A job whose model refuses a single sample."""
    (file := tmp_path / "normed.py").write_text(NORMED)
    return f"{file}:job"


def test_sizes_that_nobody_asked_for_and_the_model_refuses_are_left_out(normed: str) -> None:
    device = Device("cpu0")
    assert Measuring.of(Asked(normed), device).sizes == [2, 4, 8, 16]
    for asked in (Asked(normed, sizes=(1, 4)), Asked(normed, {"sizes": "1 4"})):
        with pytest.raises(CaptureError, match="Expected more than 1 value per channel"):
            Measuring.of(asked, device)


@pytest.mark.parametrize(
    ("optimizer", "says"),
    [("LBFGS", "runs the model several times a step"), ("raises", "in its optimizer at .*ZeroDivisionError"),
     ("none", "returns a NoneType"), ("SparseAdam", "in its optimizer.*dense gradients")],
)  # fmt: skip
def test_an_optimizer_that_cannot_be_used_is_told(normed: str, optimizer: str, says: str) -> None:
    with pytest.raises(JobError, match=says):
        measure_job(normed, {"optimizer": optimizer}, devices=1, budget_s=0.1)


@pytest.mark.parametrize("size", [0, 9])
def test_a_size_beyond_the_batch_is_refused(size: int) -> None:
    with pytest.raises(JobError, match="batches of 8"):
        measure_job(f"{MODELS}:long_skip", sizes=(size,), devices=1)


def test_leaves_of_a_batch_are_not_written_to() -> None:
    job, model, captured = taken("two_inputs")
    (inputs, target) = next(micro_batches(job.example(), 2))
    before: list[Tensor] = [t.clone() for t in (*inputs, target)]
    time_tasks(captured, model, job.optimizer, (inputs, target), CPU, budget_s=0.0, least=1, most=1)
    assert all(torch.equal(a, b) for a, b in zip(before, (*inputs, target), strict=True))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds that a runner's clock has counted: a microsecond whenever it is read, and what is added here. An interpreter's
    computations take a tenth of a millisecond."""
    now = [0.0]

    def read() -> float:
        now[0] += 1e-6
        return now[0]

    for module in ("tasks", "steps"):
        monkeypatch.setattr(f"partita.training.measure.{module}.work_clock", lambda _: read)
    monkeypatch.setattr(Stopwatch, "worked", lambda self: [1e-4] * len(self.start))
    return now


def test_an_update_is_timed_in_a_row_of_steps(clock: list[float]) -> None:
    """The first one, behind other passes, has other caches and old gradients; here it takes 2 ms where several backwards made them."""

    class Unsettled(torch.optim.SGD):
        def step(self, closure: None = None) -> None:  # type: ignore[override]
            weight = self.param_groups[0]["params"][0]
            assert weight.grad is not None
            clock[0] += 2e-3 if weight.grad._version > 0 else 1e-4

    job, model, captured = taken("two_inputs")
    part = next(micro_batches(job.example(), 2))
    times = time_tasks(
        captured, model, lambda ps: Unsettled([p for _, p in ps], lr=0.1), part, CPU, budget_s=0.0, least=3, most=3
    )
    assert np.median(times.update) == pytest.approx(1e-4, abs=1e-5)


@pytest.mark.parametrize("all_at_once", [False, True])
def test_an_update_takes_its_call_and_what_each_task_has(clock: list[float], all_at_once: bool) -> None:
    """1 ms whatever it updates, half a one more if that is anything, and 2 ms for the last tensor."""
    job, model, captured = taken("long_skip")
    *_, (last, _) = model.named_parameters()

    class Slow(torch.optim.SGD):
        def step(self, closure: None = None) -> None:  # type: ignore[override]
            *_, slow = gradients = [p.grad for p in self.param_groups[0]["params"]]
            assert not all_at_once or None not in gradients
            updates = any(g is not None for g in gradients)
            clock[0] += 1e-3 + 5e-4 * updates + 2e-3 * (slow is not None)

    part = next(micro_batches(job.example(), 2))
    times = time_tasks(
        captured, model, lambda ps: Slow([p for _, p in ps], lr=0.1), part, CPU, budget_s=0.0, least=3, most=3
    )
    assert times.updates.sum() == pytest.approx(1.0)
    assert idle_update_s(times) == pytest.approx(0.0 if all_at_once else 1.5e-3, abs=2e-5)
    nodes = [captured.task_nodes[t.id] for t in captured.graph.tasks if t.phase == "forward"]
    reads = {n.name: {captured.bindings[a.name].name for a in n.all_input_nodes if a.name in captured.bindings} for n in captured.code.graph.nodes}  # fmt: skip
    mine = [k for k, names in enumerate(nodes) if any(last in reads[n] for n in names)]
    if all_at_once:
        held = np.array([t.parameter_bytes for t in captured.graph.tasks if t.phase == "forward"])
        np.testing.assert_allclose(times.updates, held / held.sum())
    else:
        assert times.updates[mine].sum() == pytest.approx(1.0, abs=0.01)


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adagrad])
def test_sparse_gradients_are_divided_as_others(optimizer: type[torch.optim.Optimizer]) -> None:
    model = torch.nn.Sequential(torch.nn.Embedding(50, 16, sparse=True), torch.nn.Flatten(), torch.nn.Linear(48, 5))
    part = (torch.randint(0, 50, (8, 3)),), torch.randint(0, 5, (8,))
    captured = capture(model, torch.nn.functional.cross_entropy, part)
    times = time_tasks(
        captured, model, lambda ps: optimizer([p for _, p in ps], lr=0.1), part, CPU, budget_s=0.0, least=1, most=1
    )
    assert times.updates.sum() == pytest.approx(1.0)


def test_an_update_whose_parts_take_too_long_is_divided_by_bytes(clock: list[float]) -> None:
    job, model, captured = taken("long_skip")

    class Slow(torch.optim.SGD):
        steps = 0

        def step(self, closure: None = None) -> None:  # type: ignore[override]
            Slow.steps += 1
            clock[0] += 0.04

    part = next(micro_batches(job.example(), 2))
    times = time_tasks(
        captured, model, lambda ps: Slow([p for _, p in ps], lr=0.1), part, CPU, budget_s=0.0, least=1, most=1
    )
    held = np.array([t.parameter_bytes for t in captured.graph.tasks if t.phase == "forward"])
    np.testing.assert_allclose(times.updates, held / held.sum())
    assert (times.update_call, Slow.steps) == (0.0, 8)
