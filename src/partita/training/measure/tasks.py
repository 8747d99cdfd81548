"""Time every task of a captured model, forward and backward, inside whole forwards and backwards of the model.

Forward, the calls of a stage's code are timed one by one. Backward, autograd is called once, and a hook on every task's output marks
the moment at which that task's backward begins; it lasts until the next mark. So caches and allocations are those of a
real step. Marks cost time of their own: whole steps are timed too, without them, as the interpreter runs them (`steps`), and the surplus
is taken off every mark alike, what is left of the difference in proportion. In a step there are two micro-batches, where the
batch has as many: gradients of the second are added to those of the first, that traffic is part of a backward; and its forward runs
before the backward of the first, as in a pipeline, where a backward finds its activations colder than in a lone process.

A core of a shared machine is a sixth faster or slower from one moment to the next, for 0.3 s or so: what is compared has to be close in
time. So in a round a step stands before each of the other passes, and a reading of the probe on either side of it.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor, fx, nn

from partita.memory import objects_aside
from partita.nouns.graph import FloatArray
from partita.simulate.cold_caches import COOLS_S
from partita.training.capture.model import Captured, bound_values
from partita.training.capture.operators import for_device
from partita.training.capture.tasks import parameters_of
from partita.training.job import Batch, Precision, batch_size, users_code
from partita.training.job import micro_batches as cut_up
from partita.training.measure.steps import Kept, Steps, StepTimes, in_two, mean_step, without_rest_s
from partita.training.measure.times import TaskTimes, call_in, cutting_of, parts_of
from partita.training.runtime.device import work_clock
from partita.training.runtime.split_backward import WeightPart, input_part
from partita.training.runtime.stage import Stage, batch_leaves, stage_code

Result = TypeVar("Result")
MakeOptimizer = Callable[[list[tuple[str, nn.Parameter]]], torch.optim.Optimizer]
Asleep = Callable[[], contextlib.AbstractContextManager[None]]


#: Times that each task's part of the optimizer's step is timed, and seconds that this may take.
_UPDATES, _UPDATES_S = 5, 0.5
#: Of a row of steps: so many, or seconds, after which each takes as long as the one before. Behind other passes steps of 1.7 ms take 2.07,
#: 1.90, 1.90, 1.79, 1.79, 1.74, 1.71 and, a tenth of a second later, 1.70 ms (an EPYC, 2026-11-28).
SETTLES, SETTLES_S = 24, 30e-3
_SHORT_S = 10e-3  #: steps that take no longer tell what cutting the model costs, and what a wait
PATIENCE = 2.0  #: of the budget, for passes that scatter
#: Micro-batches of a step, where the batch has as many: an update behind more of them takes some per cent longer still.
MICRO_BATCHES = 2


def time_tasks(
    captured: Captured,
    model: nn.Module,
    make_optimizer: MakeOptimizer,
    batch: Batch,
    device: torch.device,
    *,
    budget_s: float,
    least: int = 2,
    most: int = 40,
    micro_batches: int = 1,
    precision: Precision = contextlib.nullcontext,
    between: Callable[[], None] = lambda: None,
    steady: Callable[[FloatArray], bool] = lambda whole_s: True,
    asleep: Asleep = contextlib.nullcontext,
) -> TaskTimes:
    """Rounds until the budget is spent, and once more as long until they are `steady`, asked with seconds of the whole model in
    each; at least `least` and at most `most`, forwards inside `precision()`; the batch is so many micro-batches; `between` is
    called BETWEEN times in each; inside `asleep()` the other devices are idle.

    The model stays as it was.
    """
    runner = _Runner(captured, model, make_optimizer, batch, device, precision, micro_batches)
    runner.warm_up()
    rows: list[dict[str, Any]] = []
    with objects_aside():
        began, worked = time.perf_counter(), runner.now()

        def wanted() -> bool:
            spent_s = time.perf_counter() - began
            patient = spent_s < PATIENCE * budget_s
            return spent_s < budget_s or (patient and not steady(np.array([_whole_s(row) for row in rows])))

        while len(rows) < least or (len(rows) < most and wanted()):
            rows.append(runner.round(between, asleep))
        core_share = (runner.now() - worked) / (time.perf_counter() - began)
        update_call, updates = runner.divided_update()
    return TaskTimes(
        **{name: np.array([row[name] for row in rows]) for name in rows[0]},
        update_call=update_call,
        updates=updates,
        waits=runner.waits,
        wait_s=runner.wait_s,
        calls=runner.calls,
        marks=runner.marks,
        optimizer_bytes_per_parameter_byte=runner.optimizer_bytes_per_parameter_byte,
        core_share=min(core_share, 1.0),
    )


def _whole_s(row: Mapping[str, Any]) -> float:
    """Of the whole model in a round, forward and backward."""
    return float(row["whole_forward"] + row["whole_backward"])


def quick_task_s(
    captured: Captured,
    model: nn.Module,
    make_optimizer: MakeOptimizer,
    batch: Batch,
    device: torch.device,
    precision: Precision = contextlib.nullcontext,
) -> list[float]:
    """[forward tasks] seconds of each with its backward, of a first look."""
    runner = _Runner(captured, model, make_optimizer, batch, device, precision)
    runner.one_pass()
    passes = [runner.one_pass() for _ in range(3)]
    return [float(s) for s in np.median([p["forward"] + p["backward"] for p in passes], axis=0)]


class _Halves(NamedTuple):
    """The model cut in two."""

    one: Steps  #: on one device
    ranks: Sequence[Steps]  #: each on its own
    wait_s: float  #: that either waits for the other, about, and long enough to tell what that costs


class _PartialUpdate:
    """An optimizer's step where only some parameters have gradients; nothing where it has failed, for it wants all of them."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer, self.failed = optimizer, False

    def __call__(self) -> None:
        if not self.failed:
            try:
                self._optimizer.step()
            except Exception:
                self.failed = True


class _Runner:
    """Runs a captured model with marks, and without."""

    def __init__(
        self,
        captured: Captured,
        model: nn.Module,
        make_optimizer: MakeOptimizer,
        batch: Batch,
        device: torch.device,
        precision: Precision,
        micro_batches: int = 1,
    ) -> None:
        tensors: dict[str, Tensor] = {
            n: nn.Parameter(p.detach().to(device).clone(), p.requires_grad) for n, p in model.named_parameters()
        }
        tensors |= {n: b.detach().clone().to(device) for n, b in model.named_buffers()}
        self.now = work_clock(device)
        self._parameters = [(n, t) for n, t in tensors.items() if isinstance(t, nn.Parameter)]
        self._optimizer = make_optimizer(self._parameters)
        for group in self._optimizer.param_groups:
            group["lr"] = 0.0  # the same arithmetic, and the weights stay
        self._partial_update = _PartialUpdate(self._optimizer)
        part = next(cut_up(batch, batch_size(batch) // micro_batches))
        self._leaves = batch_leaves(part, device)
        self._bound = {n: _moved(v, device) for n, v in bound_values(captured.bindings, tensors, part).items()}
        tasks = [*captured.task_nodes]
        self._task_of = {node: i for i, t in enumerate(tasks) for node in captured.task_nodes[t]}
        code = stage_code(captured, tasks, ())
        self._whole = Stage(code, captured.bindings, tensors, device=device, precision=precision)
        self._code, self._loss = for_device(code.function, device), captured.loss
        self._cut_code = for_device(captured.code, device)  # nothing of it is in place: where it is cut it has a leaf
        self._precision = precision
        self._reader, self._reads = self._readers(captured), _parameters_read(captured)
        self.calls, self.marks = np.zeros(len(tasks)), np.zeros(len(tasks))

        def steps(batch: Batch, parts: Sequence[Sequence[str]] = (), **named: Any) -> Steps:
            return Steps(captured, tensors, batch, batch_size(part), device, parts, precision=precision, **named)

        self._batch, self._part, self._made, self._captured = batch, part, steps, captured
        self._device = device
        self._flies = micro_batches > 1  #: another micro-batch, beside each

    @cached_property
    def _steps(self) -> Steps:
        return self._made(self._batch, schedule="gpipe", update=self._optimizer.step)

    @cached_property
    def _lone(self) -> Steps:
        return self._made(self._part)

    @cached_property
    def _halves(self) -> _Halves | None:
        """None where the model has one task, or steps are long."""
        step = self._settled(self._steps)
        step_s = without_rest_s(step)
        parts = in_two(self._captured, self.one_pass()["forward"].tolist()) if step_s < _SHORT_S else []
        if not parts:
            return None
        one = self._made(self._batch, parts, schedule="gpipe", update=self._optimizer.step)
        ranks = self._ranks(parts) if self._device.type == "cpu" else []  # a GPU's work is queued: it waits by itself
        return _Halves(one, ranks, max(step_s / 2, COOLS_S))

    def _ranks(self, parts: Sequence[Sequence[str]]) -> list[Steps]:
        """Ranks with a part each, of which all have run; none where the optimizer wants gradients of all parameters. Their optimizer's steps
        fail apart from that without gradients, which may work."""
        others, update = Kept(self._device), _PartialUpdate(self._optimizer)
        ranks = [self._made(self._part, parts, update=update, rank=(k, others)) for k in range(len(parts))]
        for rank in ranks:
            self._keep_gradients({})
            rank.times()
        return [] if update.failed else ranks

    def _readers(self, captured: Captured) -> dict[int, int]:
        """Parameter (its id) -> a task that reads it, by itself or through calls that belong to no task."""
        found: dict[str, int] = {}
        for node in reversed(list(captured.code.graph.nodes)):
            task = self._task_of.get(node.name)
            for a in node.all_input_nodes:
                if task is not None or node.name in found:
                    found[a.name] = found[node.name] if task is None else task
        bound = {n: v for n, v in self._bound.items() if isinstance(v, nn.Parameter)}
        return {id(v): found[n] for n, v in bound.items() if n in found}

    def warm_up(self) -> None:
        """Allocations, first-call caches, the optimizer's state. Raises JobError where the optimizer fails."""
        self.one_pass()
        with users_code("its optimizer"):
            self._optimizer.step()
        self._other_steps(self._counted(), contextlib.nullcontext)
        if self._halves:
            self._settled(self._halves.one)
            self._behind_waits_s()
        self.weight_pass()

    def round(self, between: Callable[[], None], asleep: Asleep) -> dict[str, Any]:
        """A row of TaskTimes: before each of the other passes, what counts; before and behind that, `between`. Next comes what is compared
        with it: a step with the model in halves, and the halves behind waits."""
        found, counted, cut, waited = dict[str, Any](), list[StepTimes](), list[StepTimes](), list[float]()
        for other in (self.weight_pass, lambda: self._other_steps(counted[-1], asleep), self.one_pass):
            between()
            counted.append(self._counted())
            between()
            if self._halves:
                cut.append(self._settled(self._halves.one))
                waited.append(self._behind_waits_s())
            found |= other()
        step, lone = self._step_and_lone(mean_step(counted), found.pop("other"))
        found |= parts_of(step, lone)
        if not self._halves:
            return {**found, "cutting": math.nan, "behind_waits": math.nan}
        return {**found, "cutting": cutting_of(step, mean_step(cut)), "behind_waits": float(np.mean(waited))}

    @property
    def waits(self) -> int:
        """Of both halves together in `behind_waits`."""
        return sum(r.receives for r in self._halves.ranks) if self._halves else 0

    @property
    def wait_s(self) -> float:
        """That each of them lasts."""
        return self._halves.wait_s if self._halves else math.inf

    def _behind_waits_s(self) -> float:
        """What the halves as ranks take together, forward, backward and update, where each waits for the other."""
        assert self._halves
        return sum(without_rest_s(self._settled(r, wait_s=self._halves.wait_s)) for r in self._halves.ranks)

    def _counted(self) -> StepTimes:
        """What the readings are compared with: a step, or one of a single micro-batch that adds to gradients, where there is no other."""
        return self._settled(self._steps) if self._flies else self._settled(self._lone, fresh=False)

    def _step_and_lone(self, counted: StepTimes, other: StepTimes) -> tuple[StepTimes, StepTimes]:
        return (counted, other) if self._flies else (other, counted)

    def one_pass(self) -> dict[str, FloatArray]:
        """[tasks] seconds of every task's forward and backward."""
        forward, stamps = np.zeros_like(self.calls), list[tuple[int, float]]()
        marked = set[tuple[Any, int]]()
        self.calls[:] = 0

        def noted(task: int, spent: float, value: Any) -> Any:
            forward[task] += spent
            self.calls[task] += 1
            if isinstance(value, Tensor) and value.grad_fn is not None:
                # a dropout of 0 hands on what it gets, and would take the backward of the task before it for its own
                made = (value.grad_fn, value.output_nr)
                if made not in marked:
                    marked.add(made)
                    value.register_hook(self._mark(stamps, task))  # type: ignore[no-untyped-call]
            return value

        if self._flies:
            self._whole.forward(0, self._leaves, {}, 0)
        loss = self._forward(self._code, noted)
        if self._flies:
            self._whole.backward(0, [], 1.0)
        return {"forward": forward, "backward": self._backward(loss, stamps)}

    def weight_pass(self) -> dict[str, FloatArray | float]:
        """[tasks] seconds of the second part of a backward split behind the first value that has a gradient, and what both parts take
        beyond the same backward in one."""
        seconds = np.zeros_like(self.calls)
        loss, first = self._cut_forward()
        if loss is first[0] or loss.grad_fn is None:
            return {"weights": seconds, "parting": 0.0}
        in_one, _ = self._timed(loss.backward)
        loss, first = self._cut_forward()
        took, rest = self._timed(input_part, [loss], [torch.ones_like(loss)], first)
        for entry in rest.nodes:
            spent, _ = self._timed(WeightPart((entry,)).run)
            took += spent
            tasks = [self._reader[id(w)] for w in entry[2] if id(w) in self._reader]
            if tasks:
                seconds[tasks[0]] += spent
        return {"weights": seconds, "parting": took - in_one}

    def _cut_forward(self) -> tuple[Tensor, list[Tensor]]:
        """(the loss, the first value with a gradient, as if another stage had sent it)."""
        first: list[Tensor] = []

        def cut(task: int, spent: float, value: Any) -> Any:
            if not first and isinstance(value, Tensor) and value.requires_grad:
                first.append(value.detach().requires_grad_())
                return first[0]
            return value

        return self._forward(self._cut_code, cut), first

    def _forward(self, code: fx.GraphModule, noted: Callable[[int, float, Any], Any]) -> Tensor:
        """The loss of the whole code, call by call; `noted` (task, seconds, value) says what goes on as the value."""
        values: dict[str, Any] = dict(self._bound)
        with self._precision():
            for node in code.graph.nodes:
                if node.op == "get_attr":
                    values[node.name] = getattr(code, str(node.target))
                elif node.op == "call_function":
                    task = self._task_of.get(node.name)
                    arguments = fx.map_arg((node.args, node.kwargs), lambda n: values[n.name])
                    spent, value = self._timed(node.target, *arguments[0], **arguments[1])
                    values[node.name] = value if task is None else noted(task, spent, value)
        return values[self._loss]  # type: ignore[no-any-return]

    def _mark(self, stamps: list[tuple[int, float]], task: int) -> Callable[[Tensor], None]:
        def mark(_: Tensor) -> None:
            stamps.append((task, self.now()))

        return mark

    def _backward(self, loss: Tensor, stamps: list[tuple[int, float]]) -> FloatArray:
        """[tasks] seconds of every task's backward: from a mark of it until the next mark of any."""
        seconds = np.zeros_like(self.marks)
        loss.backward()  # type: ignore[no-untyped-call]
        ends = [t for _, t in stamps[1:]] + [self.now()]
        self.marks[:] = 0
        for (task, start), end in zip(stamps, ends, strict=True):
            seconds[task] += end - start
            self.marks[task] += 1
        return seconds

    def _other_steps(self, counted: StepTimes, asleep: Asleep) -> dict[str, Any]:
        """Behind what is `counted`: the other kind of it, what company costs, and seconds of an update without gradients. At the end of rows,
        because other passes have filled the caches, and the first update of a model with steps of 1 ms takes twice what it takes in a run."""
        other = self._settled(self._lone, fresh=False) if self._flies else self._settled(self._steps)
        with asleep():
            alone = self._settled(self._lone, fresh=False)
        gradients = self._gradients()
        idle = self._update_s({})  # behind a backward as the other: right behind that one it takes half as long
        self._keep_gradients(gradients)
        whole_s = _whole_s(parts_of(*self._step_and_lone(counted, other)))
        return {"other": other, "company": whole_s / sum(alone.forward + alone.backward), "idle_update": idle}

    def _settled(self, steps: Steps, *, fresh: bool = True, wait_s: float = 0.0) -> StepTimes:
        """The last of a row, each with `fresh` gradients or adding to those there are, messages coming so late; a step of SETTLES_S is as
        long as all that, and not repeated."""
        began = self.now()
        for _ in range(SETTLES):
            if fresh:
                self._keep_gradients({})
            found = steps.times(wait_s)
            if self.now() - began > SETTLES_S:
                break
        return found

    def divided_update(self) -> tuple[float, FloatArray]:
        """What the optimizer's step takes beyond one without gradients: (the share that it takes whatever it updates, [tasks] the share
        that each one's parameters take of the rest). Of a small model each of its tensors takes the same, of a large one each of its
        bytes. By bytes where the optimizer wants all gradients at once or that would take too long; 0 where nothing is updated."""
        gradients = self._gradients()
        own = {k: of for k, read in enumerate(self._reads) if (of := {n: gradients[n] for n in read if n in gradients})}
        size_bytes = [
            sum(g.numel() * g.element_size() for g in of.values()) for of in own.values()
        ]  # sparse: no nbytes
        call, taken = (own and self._timed_parts(gradients, [*own.values()])) or (0.0, size_bytes)
        self._keep_gradients(gradients)
        shares = np.zeros_like(self.calls)
        shares[[*own]] = taken
        return call, shares / shares.sum() if shares.any() else shares

    def _timed_parts(
        self, gradients: Mapping[str, Tensor], parts: Sequence[Mapping[str, Tensor]]
    ) -> tuple[float, list[float]] | None:
        """(share of the whole update that comes once, [parts] seconds of each beyond that); None where it cannot be told, or would take
        too long."""
        if _UPDATES * (self._update_s(gradients) + 2 * len(parts) * self._update_s({})) > _UPDATES_S:
            return None
        rows = [[self._beyond_s(of) for of in (gradients, *parts)] for _ in range(_UPDATES)]
        whole_s, *each_s = np.maximum(np.median(rows, axis=0), 0.0).tolist()
        call_s = call_in(whole_s, each_s)
        if self._partial_update.failed or max(each_s) <= call_s:
            return None
        return min(call_s / whole_s, 1.0) if whole_s else 0.0, [s - call_s for s in each_s]

    def _beyond_s(self, gradients: Mapping[str, Tensor]) -> float:
        """Seconds of the optimizer's step with these gradients beyond one without any."""
        return self._update_s(gradients) - self._update_s({})

    def _update_s(self, gradients: Mapping[str, Tensor]) -> float:
        """Seconds of the optimizer's step with these gradients only; next to none where it has failed, for it wants all of them."""
        self._keep_gradients(gradients)
        return self._timed(self._partial_update)[0]

    def _gradients(self) -> dict[str, Tensor]:
        """By the parameter's name."""
        return {n: p.grad for n, p in self._parameters if p.grad is not None}

    def _keep_gradients(self, gradients: Mapping[str, Tensor]) -> None:
        """These and no others."""
        for name, p in self._parameters:
            p.grad = gradients.get(name)

    @property
    def optimizer_bytes_per_parameter_byte(self) -> float:
        """0 for plain SGD, 1 with momentum, 2 for Adam."""
        state = self._optimizer.state.values()
        held = sum(v.numel() * v.element_size() for s in state for v in s.values() if isinstance(v, Tensor) and v.dim())
        total = sum(p.numel() * p.element_size() for _, p in self._parameters if p.requires_grad)
        return held / total if total else 0.0

    def _timed(self, function: Callable[..., Result], *arguments: Any, **named: Any) -> tuple[float, Result]:
        began = self.now()
        result = function(*arguments, **named)
        return self.now() - began, result


def _parameters_read(captured: Captured) -> list[list[str]]:
    """[forward tasks] names of the parameters that each reads, as the graph has it; none where it updates none."""
    nodes = {n.name: n for n in captured.code.graph.nodes}
    read = [parameters_of([nodes[n] for n in names], captured.bindings) for names in captured.nodes]
    updated = {t.of for t in captured.graph.tasks if t.phase == "update"}
    return [names if task in updated else [] for task, names in zip(captured.task_nodes, read, strict=True)]


def _moved(value: Any, device: torch.device) -> Any:
    """A batch's leaf or a constant on the device; parameters are there already."""
    return value.to(device) if isinstance(value, Tensor) and not isinstance(value, nn.Parameter) else value
