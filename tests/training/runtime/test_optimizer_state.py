"""Optimizers and schedulers by parameter name: any other split takes them up, and what does not fit is refused."""

from __future__ import annotations

import copy
import json
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim import lr_scheduler as lrs

from partita.errors import CheckpointError
from partita.training.runtime.optimizer_state import (
    OptimizerState,
    flat_tensors,
    from_json,
    merged,
    optimizer_state,
    restore,
    to_json,
)
from partita.training.runtime.pipeline import _drop_gradients
from partita.training.runtime.plain_json import from_plain, to_plain

Named = list[tuple[str, nn.Parameter]]


def model(seed: int = 0) -> Named:
    torch.manual_seed(seed)
    shapes = {"a.weight": (3, 2), "a.bias": (3,), "norm": (3,), "b.weight": (2, 3), "b.bias": (2,)}
    return [(n, nn.Parameter(torch.randn(s))) for n, s in shapes.items()]


def two_groups(parameters: Iterable[tuple[str, nn.Parameter]], kind: Any = torch.optim.AdamW) -> torch.optim.Optimizer:
    """Decay for matrices only, as everybody writes it: positions in the groups are not positions in the model."""
    named = list(parameters)
    decay = [p for _, p in named if p.dim() > 1]
    plain = [p for _, p in named if p.dim() <= 1]
    return kind([{"params": plain, "weight_decay": 0.0, "lr": 0.1}, {"params": decay, "weight_decay": 0.5}], lr=0.01)  # type: ignore[no-any-return]


def step(parameters: Named, optimizer: torch.optim.Optimizer, scheduler: Any = None, times: int = 1) -> None:
    for _ in range(times):
        for n, p in parameters:
            p.grad = torch.full_like(p, len(n) / 10) + p.detach() / 10
        optimizer.step()
        if scheduler:
            scheduler.step()


def through_files(state: OptimizerState) -> OptimizerState:
    """As a checkpoint would give it back."""
    value = json.loads(json.dumps(to_json(state), allow_nan=False))
    return from_json(value, {n: t.clone() for n, t in flat_tensors(state).items()})


SCHEDULERS: dict[str, Callable[[torch.optim.Optimizer], Any]] = {
    "sequential": lambda o: lrs.SequentialLR(o, [lrs.LinearLR(o, 0.2, total_iters=4), lrs.ExponentialLR(o, 0.8)], [3]),
    "chained": lambda o: lrs.ChainedScheduler([lrs.ConstantLR(o, 0.5, 4), lrs.ExponentialLR(o, 0.9)]),
    "nested": lambda o: lrs.ChainedScheduler([lrs.SequentialLR(o, [lrs.StepLR(o, 2), lrs.CosineAnnealingLR(o, 5)], [2]), lrs.ExponentialLR(o, 0.9)]),
    "multi-step": lambda o: lrs.MultiStepLR(o, [2, 4, 6], 0.5),
    "one-cycle": lambda o: lrs.OneCycleLR(o, [0.5, 0.3], total_steps=20),
    "cyclic": lambda o: lrs.CyclicLR(o, [0.1, 0.2], [0.5, 0.3], step_size_up=3, cycle_momentum=False),
    "lambda": lambda o: lrs.LambdaLR(o, [lambda e: 1 / (e + 1), lambda e: float(np.cos(e))]),
    "numpy": lambda o: lrs.LambdaLR(o, lambda e: np.float64(0.9) ** e),
    "partial": lambda o: lrs.LambdaLR(o, partial(lambda e, by: by**e, by=0.9)),
    "restarts": lambda o: lrs.CosineAnnealingWarmRestarts(o, 3),
}  # fmt: skip


@pytest.mark.parametrize("name", SCHEDULERS)
def test_schedulers_go_on_under_another_split(name: str) -> None:
    """Two ranks, then three that hold other parameters: every parameter goes on as in one process."""
    whole = model()
    optimizer = two_groups(whole)
    scheduler = SCHEDULERS[name](optimizer)
    step(whole, optimizer, scheduler, 9)

    parts = [whole2[:2] for whole2 in [model()]] + [whole2[2:] for whole2 in [model()]]
    states = []
    tensors: dict[str, Tensor] = {}
    for part in parts:
        o = two_groups(part)
        s = SCHEDULERS[name](o)
        step(part, o, s, 4)
        states.append(optimizer_state(o, part, s))
        tensors |= {n: p.detach() for n, p in part}
    saved = through_files(merged(states))
    for names in (["b.bias", "a.weight"], ["norm"], ["b.weight", "a.bias"]):
        rank = [(n, nn.Parameter(tensors[n].clone())) for n in names]
        o = two_groups(rank)
        s = SCHEDULERS[name](o)
        restore(o, rank, saved, s, two_groups)
        step(rank, o, s, 5)
        for n, p in rank:
            assert torch.equal(p, dict(whole)[n]), n


@pytest.mark.parametrize("kind", ["SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "NAdam", "Adamax", "Rprop", "ASGD", "Adafactor", "Adadelta", "RAdam"])  # fmt: skip
def test_optimizers_go_on_where_they_were(kind: str) -> None:
    """One group, or two whose order is not the model's; all on one rank, or on two."""
    more = {"momentum": 0.9} if kind == "SGD" else {}
    one = lambda ps: getattr(torch.optim, kind)([p for _, p in ps], lr=0.01, **more)  # noqa: E731
    makes = [one, lambda ps: two_groups(ps, partial(getattr(torch.optim, kind), **more))] if kind != "Rprop" and kind != "NAdam" else [one]  # fmt: skip
    for make in makes:
        whole = model()
        optimizer = make(whole)
        step(whole, optimizer, times=3)
        saved = through_files(optimizer_state(optimizer, whole))
        for kept in (list(dict(whole)), ["b.bias", "norm", "a.weight"]):
            rank = [(n, nn.Parameter(dict(whole)[n].detach().clone())) for n in kept]
            again = make(rank)
            restore(again, rank, saved, None, make)
            state = flat_tensors(optimizer_state(again, rank))
            wanted = {k: t for k, t in flat_tensors(saved).items() if k.rpartition("/")[0] in kept}
            assert state.keys() == wanted.keys()
            assert all(torch.equal(state[k], wanted[k]) for k in wanted)
        step(whole, optimizer)
        step(rank, again)
        assert all(torch.equal(p, dict(whole)[n]) for n, p in rank)


def test_groups_keep_their_values() -> None:
    """The learning rate as the scheduler left it, and weight decay, of each group, wherever its parameters are now."""
    whole = model()
    optimizer = two_groups(whole)
    for group in optimizer.param_groups:
        group["lr"] *= 3
    saved = through_files(optimizer_state(optimizer, whole))
    rank = [(n, p) for n, p in model() if n == "b.weight"]
    again = torch.optim.AdamW([p for _, p in rank], lr=1.0)
    restore(again, rank, saved)
    assert (again.param_groups[0]["lr"], again.param_groups[0]["weight_decay"]) == (0.03, 0.5)
    together = torch.optim.AdamW([p for _, p in model()], lr=1.0)
    with pytest.raises(
        CheckpointError,
        match=r"are in one group of the job's optimizer, but were trained with weight_decay 0.5 and 0.0",
    ):
        restore(together, list(zip([n for n, _ in whole], together.param_groups[0]["params"], strict=True)), saved)


class Unkeepable:
    pass


def put(optimizer: torch.optim.Optimizer, where: str, value: Any) -> None:
    first = optimizer.param_groups[0]["params"][0]
    {
        "state": lambda: optimizer.state[first].update(history=value),
        "group": lambda: optimizer.param_groups[1].update(rule=value),
        "stranger": lambda: optimizer.state[nn.Parameter(torch.ones(7))].update(x=1),
        "key": lambda: optimizer.state.update({"global": {"x": 1}}),  # type: ignore[dict-item]
        "member": lambda: optimizer.add_param_group({"params": [nn.Parameter(torch.ones(7))]}),
    }[where]()


@pytest.mark.parametrize(
    ("where", "fact"),
    [
        ("state", "AdamW's 'history' of a.bias is a Unkeepable, which no checkpoint holds"),
        ("group", "AdamW's 'rule' of parameter group 1 is a Unkeepable"),
        ("stranger", r"AdamW has a state of a tensor of shape \(7,\), which is no parameter of the model"),
        ("key", "AdamW has a state of 'global', which is no parameter"),
        ("member", r"AdamW has a group of a tensor of shape \(7,\)"),
    ],
)
def test_what_no_file_gives_back_is_refused_at_save(where: str, fact: str) -> None:
    parameters = model()
    optimizer = two_groups(parameters)
    put(optimizer, where, Unkeepable())
    with pytest.raises(CheckpointError, match=fact):
        optimizer_state(optimizer, parameters)


def test_a_scheduler_that_no_file_gives_back_is_refused_at_save() -> None:
    class Odd(lrs.StepLR):
        def __init__(self, optimizer: torch.optim.Optimizer) -> None:
            self.rule = Unkeepable()
            super().__init__(optimizer, 2)

    parameters = model()
    optimizer = two_groups(parameters)
    with pytest.raises(CheckpointError, match="Odd's field 'rule' is a Unkeepable"):
        optimizer_state(optimizer, parameters, Odd(optimizer))
    a, b = two_groups(parameters), two_groups(parameters)
    s, t = lrs.StepLR(a, 2), lrs.StepLR(b, 3)
    with pytest.raises(CheckpointError, match="StepLR's field 'step_size' differs between the ranks: 2 and 3"):
        merged([optimizer_state(a, parameters, s), optimizer_state(b, parameters, t)])


def test_checkpoints_from_before_names_are_refused() -> None:
    """Which parameter was in which group they do not say."""
    old = {"kind": "SGD", "optimizer": {}, "groups": [{"lr": 0.025}], "scheduler": None}
    with pytest.raises(CheckpointError, match=r"groups\[0\]\.parameters is missing"):
        from_json(old, {})


def test_mutated_state_is_a_checkpoint_error() -> None:
    """A value in a hundred places replaced by something else: refused with a sentence, or restored and able to step."""
    parameters = model()
    optimizer = two_groups(parameters)
    scheduler = SCHEDULERS["nested"](optimizer)
    step(parameters, optimizer, scheduler, 3)
    state = optimizer_state(optimizer, parameters, scheduler)
    value, tensors = to_json(state), flat_tensors(state)
    rng = np.random.default_rng(7)
    odd: list[Any] = [None, -1, 1e300, "x", [], {}, [1, [2]], {"~tuple": 3}, {"~tensor": [1], "dtype": "load", "shape": [7]}, {"~number": "one"}, {"~dict": [[[1], 2]]}, True]  # fmt: skip
    shapes = [torch.ones(()), torch.ones(4), torch.ones(3, 2, dtype=torch.int64), torch.ones(0), torch.ones(2, 3, 1)]
    refused = 0
    for _ in range(120):
        other, others = copy.deepcopy(value), dict(tensors)
        if rng.random() < 0.3:
            key = str(rng.choice(list(others)))
            if rng.random() < 0.3:
                del others[key]
            else:
                others[key] = shapes[rng.integers(len(shapes))]
        else:
            mutate(other, rng, odd)
        fresh = model()
        again = two_groups(fresh)
        s = SCHEDULERS["nested"](again)
        try:
            restore(again, fresh, from_json(other, others), s, two_groups)
        except CheckpointError as error:
            refused += bool(error.hint)
            continue
        step(fresh, again, s, 2)
    assert refused > 40


def mutate(value: Any, rng: np.random.Generator, odd: list[Any]) -> None:
    """Replace, or remove, one value somewhere inside."""
    places = []

    def walk(v: Any) -> None:
        for k in v if isinstance(v, dict) else range(len(v)) if isinstance(v, list) else ():
            places.append((v, k))
            walk(v[k])

    walk(value)
    holder, key = places[rng.integers(len(places))]
    if isinstance(holder, dict) and rng.random() < 0.2:
        del holder[key]
    else:
        holder[key] = odd[rng.integers(len(odd))]


@pytest.mark.parametrize(
    "value",
    [1, 2.5, float("inf"), "x", None, True, [1, (2, "y")], {"a": {"b": 1}}, {2: 3}, Counter({4: 1}), {"~x": 1}, (0.9, None)],
)  # fmt: skip
def test_plain_json_gives_back_what_it_took(value: Any) -> None:
    again = from_plain(json.loads(json.dumps(to_plain(value, "it"), allow_nan=False)))
    assert again == value
    assert type(again) is type(value)


def test_a_learning_rate_may_be_a_tensor() -> None:
    parameters = model()
    optimizer = torch.optim.Adam([p for _, p in parameters], lr=torch.tensor(0.125))
    saved = through_files(optimizer_state(optimizer, parameters))
    again = torch.optim.Adam([p for _, p in parameters], lr=torch.tensor(0.5))
    restore(again, parameters, saved)
    assert float(again.param_groups[0]["lr"]) == 0.125


@pytest.mark.parametrize("where", ["class", "object"])
def test_an_optimizer_with_its_own_way_of_dropping_gradients_is_asked(where: str) -> None:
    parameter, asked = torch.nn.Parameter(torch.ones(2)), list[bool]()

    def zero_grad(set_to_none: bool = True) -> None:
        asked.append(set_to_none)

    own = type("Own", (torch.optim.SGD,), {"zero_grad": lambda self, set_to_none=True: zero_grad(set_to_none)})
    optimizer = (own if where == "class" else torch.optim.SGD)([parameter], lr=0.1)
    if where == "object":
        optimizer.zero_grad = zero_grad
    parameter.grad = torch.ones(2)
    _drop_gradients(optimizer)
    assert asked == [True]
    assert parameter.grad is not None
    _drop_gradients(torch.optim.SGD([parameter], lr=0.1))
    assert parameter.grad is None
