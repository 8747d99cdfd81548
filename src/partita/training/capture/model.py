"""Capture a model: any nn.Module with a loss and a batch -> a TaskGraph, and the code of every task.

`torch.export` gives the forward as one graph of ATen calls that autograd can still differentiate, so a stage runs the
very kernels that the model itself would run. A task is one call together with the views of its result; its backward
and its share of the optimizer's step are tasks of their own that follow it.

What depends on no parameter (attention masks, positions) is no task: every stage that needs it computes it again
from the batch, which is cheaper than sending it.

What was captured is run beside the model itself: a capture that gives another loss, or leaves other buffers, is refused.
"""

from __future__ import annotations

import contextlib
import io
import logging
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.export.graph_signature import InputKind

from partita.errors import CaptureError, PartitaError, WorkerFailed, place_of, sentence_of
from partita.nouns.splits import Split
from partita.training.capture.captured import Binding, Captured, TensorMeta, bound_values, written_buffers
from partita.training.capture.functional import functionalise, mark_buffers
from partita.training.capture.operators import operator_name
from partita.training.capture.split import Tasks, split_operators
from partita.training.capture.tasks import Cut, Observed, cut_into_tasks
from partita.training.job import Batch, Precision, call

__all__ = ["Binding", "Captured", "TensorMeta", "bound_values", "capture", "operator_name", "written_buffers"]

Loss = Callable[[Any, Any], Tensor]


class _WithLoss(nn.Module):
    """Model and loss as one module, as torch.export wants it."""

    def __init__(self, model: nn.Module, loss: Loss) -> None:
        super().__init__()
        self.model = model
        self.loss = loss

    def forward(self, inputs: Any, target: Any) -> Tensor:
        return self.loss(call(self.model, inputs), target)


def capture(
    model: nn.Module,
    loss: Loss,
    batch: Batch,
    name: str | None = None,
    precision: Precision = contextlib.nullcontext,
    splits: Sequence[Split] = (),
) -> Captured:
    """The model's tasks at this batch's shapes, run inside `precision()`; operators in parts as `splits` say. Parameters, buffers
    and random generators are left as they were.

    Raises CaptureError that names the line of the model that refuses the batch or cannot be followed, and the way out.
    """
    if not isinstance(model, nn.Module):
        raise CaptureError(f"a {type(model).__name__} cannot be captured", hint="give a torch.nn.Module")
    joined = _WithLoss(model, loss)
    with _left_alone(model), precision():
        reference = _by_itself(joined, batch)
    program = _export(joined, batch)
    code = fx.GraphModule(program.graph_module, _copied(program.graph))
    aliases = _aliases(model)
    bindings = _bindings(program, aliases)
    random_dropped = functionalise(code, bindings)
    output = next(n for n in code.graph.nodes if n.op == "output")

    def observe() -> tuple[Cut, Observed]:
        with _left_alone(model), precision():
            observed, result = _observe(code, bindings, model, batch)
        _check_same(reference, result, compare=not random_dropped and all(s.exact for s in done))
        loss_node = output.args[0][0].name
        return cut_into_tasks(name or type(model).__name__, code, bindings, loss_node, observed, model), observed

    done: tuple[Split, ...] = ()
    cut, observed = observe()
    if splits:
        tasks = Tasks(dict(zip((t.id for t in cut.graph.tasks), cut.nodes, strict=False)), observed.meta)
        done = split_operators(code, tasks, splits)
        mark_buffers(code, {n for n, b in bindings.items() if b.kind == "buffer"})
        cut, observed = observe()
    saved = tuple(n for n, v in model.state_dict(keep_vars=True).items() if isinstance(v, Tensor))
    return Captured(
        cut.graph, code, bindings, cut.nodes, cut.values, output.args[0][0].name, aliases, observed.meta, done, saved
    )


# ---- the model by itself ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Result:
    """What a forward gives and leaves."""

    loss: Tensor
    buffers: Mapping[str, Tensor]


@contextlib.contextmanager
def _left_alone(model: nn.Module) -> Iterator[None]:
    """Whatever happens inside, the model's buffers and torch's generator are as before afterwards."""
    state = torch.get_rng_state()
    registered = [(m, dict(m._buffers)) for m in model.modules()]
    values = {b: b.detach().clone() for b in model.buffers()}
    try:
        yield
    finally:
        for m, own in registered:
            m._buffers.update(own)
        with torch.no_grad():
            for b, value in values.items():
                b.copy_(value)
        torch.set_rng_state(state)


def _by_itself(joined: _WithLoss, batch: Batch) -> _Result:
    """The model's own forward. Raises CaptureError where it refuses the batch, or the loss is no number to train on."""
    try:
        with torch.enable_grad():
            loss: object = joined(*batch)
    except PartitaError:
        raise
    except Exception as error:
        raise CaptureError(
            f"the model refuses the batch{place_of(error)}: {sentence_of(error)}",
            hint="check shapes and types of what `batches` yields, and the loss",
        ) from error
    return _Result(_checked_loss(loss).detach(), dict(_buffers_of(joined.model)))


def _checked_loss(loss: object) -> Tensor:
    good = isinstance(loss, Tensor) and loss.numel() == 1 and loss.dtype.is_floating_point
    if not good:
        kind = type(loss).__name__
        got = f"a {loss.dtype} tensor of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else f"a {kind}"
        raise CaptureError(
            f"the loss gives {got}, not one number", hint="let `loss(output, target)` return the mean over the samples"
        )
    assert isinstance(loss, Tensor)
    if not loss.requires_grad:
        raise CaptureError(
            "the loss depends on no parameter that can be trained",
            hint="let some parameters require gradients, and compute the loss from the model's output",
        )
    return loss


def _buffers_of(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    return ((n, b.detach().clone()) for n, b in model.named_buffers(remove_duplicate=False))


# ---- export -------------------------------------------------------------------------------------------------------------


def _export(module: nn.Module, batch: Batch) -> Any:
    """The exported program. Raises CaptureError that names the line that cannot be followed."""
    try:
        with _quiet():
            return torch.export.export(module, batch, strict=False)
    except WorkerFailed:  # a signal came meanwhile
        raise
    except Exception as error:
        line = place_of(error)
        if type(error).__name__ == "GuardOnDataDependentSymNode":
            raise CaptureError(
                f"the model's path depends on the values of a tensor{line}, and a captured graph has one path only",
                hint="use torch.where, or torch.cond, there",
            ) from error
        raise CaptureError(
            f"the model cannot be captured{line}: {sentence_of(error)}",
            hint="keep to tensor operations whose shapes do not depend on values",
        ) from error


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """torch.export writes a page about every failure; the error says it in one sentence."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.disable(before)


def _bindings(program: Any, aliases: Mapping[str, Sequence[str]]) -> dict[str, Binding]:
    """Placeholder name -> what it stands for; the wrapper's "model." is taken off, a tied tensor has its first name."""
    first = {other: name for name, others in aliases.items() for other in others}
    found: dict[str, Binding] = {}
    inputs = 0
    for spec in program.graph_signature.input_specs:
        name, target = spec.arg.name, (spec.target or "").removeprefix("model.")
        target = first.get(target, target)
        if spec.kind == InputKind.PARAMETER:
            found[name] = Binding("parameter", target)
        elif spec.kind == InputKind.BUFFER:
            found[name] = Binding("buffer", target)
        elif spec.kind == InputKind.USER_INPUT:
            found[name] = Binding("input", str(inputs))
            inputs += 1
        else:
            found[name] = Binding("constant", target, program.constants[spec.target])
    return found


def _copied(graph: fx.Graph) -> fx.Graph:
    """The same calls by the same names. In a graph whose blocks under no_grad torch has folded, calls that nobody reads think that they
    are users of some; here everyone's users are counted anew."""
    new = fx.Graph()
    results = new.graph_copy(graph, {})
    new.output(results)
    return new


def _aliases(model: nn.Module) -> dict[str, tuple[str, ...]]:
    """First name of a tensor -> its other names, for tied parameters and buffers."""
    names: dict[int, list[str]] = defaultdict(list)
    state = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    for n, t in state:
        names[id(t)].append(n)
    return {ns[0]: tuple(ns[1:]) for ns in names.values() if len(ns) > 1}


# ---- the captured code, run once ----------------------------------------------------------------------------------------


def _observe(
    code: fx.GraphModule, bindings: Mapping[str, Binding], model: nn.Module, batch: Batch
) -> tuple[Observed, _Result]:
    """Run the code once and note every value's layout and what autograd keeps."""
    tensors: dict[str, Tensor] = dict(model.named_parameters(remove_duplicate=False))
    own = {p.untyped_storage().data_ptr() for p in tensors.values()}
    tensors |= dict(model.named_buffers(remove_duplicate=False))
    values = bound_values(bindings, tensors, batch)
    watcher = _Watcher(code, own)
    try:
        with torch.enable_grad():
            (loss,) = watcher.run(*(values[n.name] for n in code.graph.nodes if n.op == "placeholder"))
    except Exception as error:
        raise CaptureError(
            f"the captured model cannot run on its own batch: {sentence_of(error)}",
            hint="keep to tensor operations whose shapes do not depend on values",
        ) from error
    if not loss.requires_grad:
        raise CaptureError(
            "gradients are lost when the model is captured, as they are inside a reentrant torch.utils.checkpoint",
            hint="pass use_reentrant=False, or leave checkpoint away: a plan says which stages compute again",
        )
    return Observed(watcher.meta, watcher.saved), _Result(loss.detach(), dict(_buffers_of(model)))


class _Watcher(fx.Interpreter):
    """Runs the code node by node and takes notes."""

    def __init__(self, code: fx.GraphModule, own: set[int]) -> None:
        super().__init__(code)
        self.meta: dict[str, TensorMeta] = {}
        self.saved: dict[str, int] = defaultdict(int)
        self._seen = set(own)
        self._kept: list[Tensor] = []  # keeps storages alive, so that no address is used twice

    def run_node(self, n: fx.Node) -> Any:
        def keep(tensor: Tensor) -> Tensor:
            if type(tensor) not in (Tensor, nn.Parameter):  # traced inside torch.cond: it holds no memory
                return tensor
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in self._seen:
                self._seen.add(storage.data_ptr())
                self._kept.append(tensor)
                self.saved[n.name] += storage.nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
            value = super().run_node(n)
        if isinstance(value, Tensor):
            self.meta[n.name] = TensorMeta(tuple(value.shape), tuple(value.stride()), value.dtype, value.requires_grad)
        return value


def _check_same(model: _Result, captured: _Result, *, compare: bool) -> None:
    """Raises CaptureError where the captured code does not do what the model does."""
    if not compare:
        return
    if not _close(captured.loss, model.loss):
        raise CaptureError(
            f"captured, the model has the loss {float(captured.loss):.6g} on a batch where it has {float(model.loss):.6g} itself",
            hint="the forward must depend on nothing but inputs, parameters and buffers: look for counters and caches in it",
        )
    for name, value in model.buffers.items():
        if name in captured.buffers and not _close(captured.buffers[name], value):
            raise CaptureError(
                f"the model changes its buffer {name!r} in a way that cannot be captured",
                hint=f"change it in place, as in self.{name}.copy_(...), not by assigning to the attribute",
            )


def _close(found: Tensor, wanted: Tensor) -> bool:
    if not wanted.dtype.is_floating_point:
        return torch.equal(found, wanted)
    loose = 1e-4 if wanted.dtype in (torch.float32, torch.float64) else 2e-2
    return torch.allclose(found.double(), wanted.double(), rtol=loose, atol=1e-6, equal_nan=True)
