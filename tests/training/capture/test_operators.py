"""Which operators draw random numbers: all that torch says do, in every form, and a stage that holds one is seeded."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from training.capture.parts import difference, forward_tasks, run_in_parts

from partita.training.capture.model import capture
from partita.training.capture.operators import draws_random_numbers, for_device
from partita.training.runtime.stage import stage_code

SEEDED = torch.Tag.nondeterministic_seeded


def overloads(name: str) -> list[Any]:
    packet = getattr(torch.ops.aten, name, None)
    return [getattr(packet, o) for o in packet.overloads()] if isinstance(packet, torch._ops.OpOverloadPacket) else []


TAGGED = sorted(
    n for n in dir(torch.ops.aten) if not n.startswith("__") and any(SEEDED in o.tags for o in overloads(n))
)


def called(target: Any, *args: Any, **kwargs: Any) -> fx.Node:
    graph = fx.Graph()
    return graph.call_function(target, tuple(args) or (graph.placeholder("x"),), kwargs)


def training(target: Any) -> fx.Node:
    """A call of it whose dropout, if it has one, is on."""
    on = {"p": 0.5, "dropout": 0.5, "dropout_p": 0.5, "train": True, "training": True}
    return called(target, **{a.name: on[a.name] for a in target._schema.arguments[1:] if a.name in on})


@pytest.mark.parametrize("name", TAGGED)
def test_every_operator_that_torch_tags_in_every_form(name: str) -> None:
    """Also its form in place, and the one that gives its result, where torch has tagged only one of them."""
    for form in (name, f"{name}_", name.removesuffix("_")):
        for overload in overloads(form):
            assert draws_random_numbers(training(overload)), overload


@pytest.mark.parametrize("name", ["random_", "binomial", "rrelu", "rrelu_", "dropout_", "feature_dropout", "feature_alpha_dropout_"])  # fmt: skip
def test_operators_that_torch_forgets_to_tag(name: str) -> None:
    assert all(draws_random_numbers(training(o)) for o in overloads(name))
    assert overloads(name)


def test_what_draws_nothing() -> None:
    x = fx.Graph().placeholder("x")
    aten = torch.ops.aten
    assert not draws_random_numbers(called(aten.dropout.default, x, 0.5, False))
    assert not draws_random_numbers(called(aten.dropout.default, x, 0.0, True))
    assert draws_random_numbers(called(aten.dropout.default, x, 0.1, True))
    assert not draws_random_numbers(called(aten.scaled_dot_product_attention.default, x, x, x))
    assert draws_random_numbers(called(aten.scaled_dot_product_attention.default, x, x, x, None, 0.1))
    assert not draws_random_numbers(called(aten.add.Tensor, x, x))


DRAWS: dict[str, Callable[[Tensor], Tensor]] = {
    "bernoulli_": lambda y: y * torch.empty_like(y).bernoulli_(0.5),
    "bernoulli": lambda y: y * torch.bernoulli(torch.full_like(y, 0.5)),
    "exponential_": lambda y: y * torch.empty_like(y).exponential_(),
    "random_": lambda y: y * torch.empty_like(y).random_(3),
    "geometric_": lambda y: y * torch.empty_like(y).geometric_(0.5),
    "log_normal_": lambda y: y * torch.empty_like(y).log_normal_(),
    "cauchy_": lambda y: y * torch.empty_like(y).cauchy_(),
    "normal": lambda y: y * torch.normal(torch.zeros_like(y), 1.0),
    "normal_": lambda y: y + y * torch.empty_like(y).normal_(),
    "uniform_": lambda y: y * torch.empty_like(y).uniform_(),
    "rand": lambda y: y * torch.rand(y.shape[1]),
    "randperm": lambda y: y * torch.randperm(y.shape[1]),
    "poisson": lambda y: y * torch.poisson(torch.full_like(y, 2.0)),
    "binomial": lambda y: y * torch.binomial(torch.full_like(y, 4.0), torch.full_like(y, 0.5)),
    "multinomial": lambda y: y * torch.multinomial(torch.ones(y.shape[1]), y.shape[1]),
    "rrelu": lambda y: F.rrelu(y, training=True),
    "dropout": lambda y: F.dropout(y, 0.5),
    "dropout in place": lambda y: F.dropout(y * 1, 0.5, inplace=True),
    "alpha_dropout": lambda y: F.alpha_dropout(y, 0.5, training=True),
    "feature_alpha_dropout": lambda y: F.feature_alpha_dropout(y, 0.5, training=True),
    "gumbel": lambda y: F.gumbel_softmax(y),
    "attention": lambda y: F.scaled_dot_product_attention(y[None], y[None], y[None], dropout_p=0.5)[0],
}


class Drawing(nn.Module):
    def __init__(self, draw: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.last, self.draw = nn.Linear(8, 16), nn.Linear(16, 4), draw

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.last(torch.tanh(self.draw(self.first(x))))
        return y


@pytest.mark.parametrize("name", DRAWS)
def test_recomputing_draws_the_same_numbers(name: str) -> None:
    """The gradients with recomputation are those without: the silent fault is another mask in the second forward."""
    torch.manual_seed(0)
    model = Drawing(DRAWS[name])
    batch = (torch.randn(4, 8), torch.tensor([0, 3, 1, 2]))
    captured = capture(model, F.cross_entropy, batch)
    tasks = forward_tasks(captured)
    assert stage_code(captured, tasks, ()).random
    kept = run_in_parts(captured, model, batch, [tasks])
    torch.randn(3)  # whatever else has been drawn meanwhile
    again = run_in_parts(captured, model, batch, [tasks], recompute=True)
    assert difference(again.gradients, kept.gradients) == 0


@pytest.mark.parametrize(("shape", "target"), [((4, 8), "relu_"), ((4, 3, 8), "relu")])
def test_a_relu_goes_in_place_where_it_is_not_on_a_view(shape: tuple[int, ...], target: str) -> None:
    """A linear layer of more than two dimensions gives a view of a product: autograd would copy, and take half as long again."""
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Flatten(), nn.Linear(math.prod(shape[1:]), 4))
    batch = (torch.randn(shape), torch.tensor([0, 3, 1, 2]))
    captured = capture(model, F.cross_entropy, batch)
    found = [n.target for n in stage_code(captured, forward_tasks(captured), ()).function.graph.nodes]
    assert getattr(torch.ops.aten, target).default in found


class Positions(nn.Module):
    """Makes tensors of its own: positions, a mask, a constant."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        y = self.table(torch.arange(x.shape[1], device=x.device)) + x
        mask = torch.ones(x.shape[1], x.shape[1]).tril()
        scale = torch.tensor([0.5, 2.0, 1.0, 3.0], device="cpu")
        z = mask @ y
        return (z * scale[:, None].to("cpu")).mean((1,))


def test_code_for_another_device_makes_everything_there() -> None:
    """`meta` stands for a GPU: one tensor left on the CPU, and an operator refuses."""
    model = Positions()
    batch = (torch.randn(3, 4, 8), torch.tensor([0, 3, 1]))
    captured = capture(model, F.cross_entropy, batch)
    code = stage_code(captured, forward_tasks(captured), ())
    values = {"parameter": dict(model.named_parameters()), "buffer": dict(model.named_buffers())}
    leaves = [batch[0], batch[1]]

    def arguments(device: torch.device) -> list[Any]:
        found: list[Any] = []
        for name in code.takes:
            b = captured.bindings[name]
            value = (
                leaves[int(b.name)]
                if b.kind == "input"
                else b.constant
                if b.kind == "constant"
                else values[b.kind][b.name]
            )
            found.append(value.to(device) if isinstance(value, Tensor) else value)
        return found

    meta = torch.device("meta")
    (loss,) = for_device(code.function, meta)(*arguments(meta))
    assert loss.device == meta
    nodes = [n for n in for_device(code.function, meta).graph.nodes if n.op == "call_function"]
    made = [n for n in code.function.graph.nodes if torch.device("cpu") in n.kwargs.values()]
    assert made
    assert not any(torch.device("cpu") in (*n.args, *n.kwargs.values()) for n in nodes)
    (again,) = for_device(code.function, torch.device("cpu"))(*arguments(torch.device("cpu")))
    assert torch.equal(again, code.function(*arguments(torch.device("cpu")))[0])
