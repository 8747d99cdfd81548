"""Awkward models: what is captured computes what the model computes, however it is cut; the rest is refused by name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
import training.capture.awkward as awkward
from torch import fx, nn
from training.capture.parts import allowed_cuts, cut_at, difference, forward_tasks, run_eagerly, run_in_parts

from partita.errors import CaptureError
from partita.training.capture.functional import functionalise
from partita.training.capture.model import Captured, capture
from partita.training.capture.operators import is_in_place

BATCH = (torch.randn(4, 8, generator=torch.Generator().manual_seed(1)), torch.tensor([0, 3, 1, 2]))


def built(kind: type[nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return kind().train()


def captured_model(kind: type[nn.Module]) -> tuple[nn.Module, Captured]:
    model = built(kind)
    return model, capture(model, F.cross_entropy, BATCH)


@pytest.mark.parametrize("kind", awkward.CAPTURED, ids=lambda k: k.__name__)
def test_every_cut_computes_what_the_model_computes(kind: type[nn.Module]) -> None:
    """Whole, and in single tasks as far as they may be parted; keeping activations, and computing them again."""
    model, captured = captured_model(kind)
    wanted = run_eagerly(model, F.cross_entropy, BATCH)
    finest = cut_at(captured, allowed_cuts(captured))
    for parts in ([forward_tasks(captured)], finest):
        for recompute in (False, True):
            found = run_in_parts(captured, model, BATCH, parts, recompute=recompute)
            assert torch.equal(found.loss, wanted.loss)
            assert difference(found.gradients, wanted.gradients) <= 1e-6
            assert difference(found.buffers, wanted.buffers) == 0
    assert len(finest) >= 3


@pytest.mark.parametrize("kind", awkward.CAPTURED, ids=lambda k: k.__name__)
def test_capture_leaves_model_and_generator_alone(kind: type[nn.Module]) -> None:
    model = built(kind)
    before = {n: t.clone() for n, t in model.state_dict().items()}
    objects = {n: id(t) for n, t in [*model.named_parameters(), *model.named_buffers()]}
    state = torch.get_rng_state()
    capture(model, F.cross_entropy, BATCH)
    assert torch.equal(torch.get_rng_state(), state)
    assert {n: id(t) for n, t in [*model.named_parameters(), *model.named_buffers()]} == objects
    assert all(torch.equal(t, before[n]) for n, t in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("kind", awkward.CAPTURED, ids=lambda k: k.__name__)
def test_only_buffers_and_fresh_copies_are_written_to(kind: type[nn.Module]) -> None:
    _, captured = captured_model(kind)
    for node in captured.code.graph.nodes:
        if node.op == "call_function" and is_in_place(node):
            copy = node.args[0]
            assert node.meta["partita_writes"] or list(copy.users) == [node]


def test_tasks_that_touch_a_written_buffer_share_a_group() -> None:
    _, captured = captured_model(awkward.RunningMean)
    groups = {t.id: t.group for t in captured.graph.tasks}
    touching: dict[str, set[str]] = {"b_model_mean": set(), "b_model_counts": set()}
    for t, nodes in captured.task_nodes.items():
        for n in captured.code.graph.nodes:
            for buffer in n.meta["partita_touches"] if n.name in nodes else ():
                touching[buffer].add(t)
    assert len(touching["b_model_mean"]) > 1
    assert {groups[t] for t in touching["b_model_mean"]} == {"buffer mean"}
    assert len(touching["b_model_counts"]) == 1  # one task alone needs no group


def test_norm_called_twice_is_one_group() -> None:
    _, captured = captured_model(awkward.SharedNorm)
    assert len({t.group for t in captured.graph.tasks if "batch_norm" in t.id and t.phase == "forward"} - {None}) == 1


def test_value_of_unknown_shape_never_crosses() -> None:
    _, captured = captured_model(awkward.DataDependentShape)
    groups = {t.id: t.group for t in captured.graph.tasks}
    (index,) = [n for n in captured.code.graph.nodes if n.name.startswith("index")]
    assert groups[index.name] is not None
    assert {groups[u.name] for u in index.users} == {groups[index.name]}


@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")
def test_torch_cond_is_one_task() -> None:
    """Run eagerly, torch.cond compiles itself, which warns."""
    model, captured = captured_model(awkward.Cond)
    wanted = run_eagerly(model, F.cross_entropy, BATCH)
    found = run_in_parts(captured, model, BATCH, cut_at(captured, allowed_cuts(captured)))
    assert torch.equal(found.loss, wanted.loss)
    assert difference(found.gradients, wanted.gradients) <= 1e-6


def test_frozen_layers_have_no_backward_and_no_update() -> None:
    _, captured = captured_model(awkward.Frozen)
    reads_a = [t for t in captured.graph.tasks if t.phase == "forward" and t.name.startswith("a ")]
    assert reads_a
    assert all(t.parameter_bytes > 0 for t in reads_a)
    of = {t.of for t in captured.graph.tasks if t.phase != "forward"}
    assert of.isdisjoint(t.id for t in reads_a)


def test_what_nobody_needs_is_dropped_but_a_batch_norm_still_learns() -> None:
    _, captured = captured_model(awkward.Unused)
    backward = {t.of for t in captured.graph.tasks if t.phase == "backward"}
    (norm,) = [t.id for t in captured.graph.tasks if "batch_norm" in t.id and t.phase == "forward"]
    assert norm not in backward


def test_autocast_is_spread_over_single_calls() -> None:
    _, captured = captured_model(awkward.Autocast)
    assert len(forward_tasks(captured)) >= 6
    assert any(m.dtype == torch.bfloat16 for m in captured.meta.values())


@pytest.mark.parametrize(
    ("kind", "fact", "way_out"),
    [
        (awkward.Branch, "path depends on the values of a tensor", "torch.where"),
        (awkward.NumberOut, "path depends on the values of a tensor", "torch.where"),
        (awkward.ChangesParameter, "changes its own parameter 'a.weight'", "after the optimizer's step"),
        (awkward.OutArgument, "calls aten::add, which writes to an argument", "without out="),
        (awkward.WritesThroughDetach, "writes through detach", "torch.where"),
    ],
)
def test_refusal_names_the_users_line(
    kind: type[nn.Module], fact: str, way_out: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(CaptureError, match=re.escape(fact)) as caught:
        capture(built(kind), F.cross_entropy, BATCH)
    source = Path(awkward.__file__).read_text().splitlines()
    named = re.search(r"awkward\.py:(\d+)", caught.value.message)
    assert named is not None, caught.value.message
    assert "# the line to name" in source[int(named[1]) - 1]
    assert way_out in caught.value.hint
    assert "\n" not in str(caught.value)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("kind", "fact"),
    [
        (awkward.ReassignsBuffer, "changes its buffer 'seen'"),
        (awkward.Counts, "captured, the model has the loss"),
        (awkward.WritesThroughDropout, "captured, the model has the loss"),
    ],
)
def test_what_would_train_differently_is_refused(kind: type[nn.Module], fact: str) -> None:
    with pytest.raises(CaptureError, match=re.escape(fact)) as caught:
        capture(built(kind), F.cross_entropy, BATCH)
    assert caught.value.hint


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
def test_reentrant_checkpoint_is_refused() -> None:
    with pytest.raises(CaptureError, match="gradients are lost") as caught:
        capture(built(awkward.Reentrant), F.cross_entropy, BATCH)
    assert "use_reentrant=False" in caught.value.hint


def test_small_graph_by_hand() -> None:
    """z = 2 * y where y had one row filled: exactly the calls of the docstring's example."""

    class Small(nn.Module):
        def forward(self, y: torch.Tensor) -> torch.Tensor:
            y[1].fill_(0)
            return y * 2

    program = torch.export.export(Small(), (torch.ones(2, 3),), strict=False)
    code = fx.GraphModule(program.graph_module, program.graph)
    from partita.training.capture.captured import Binding

    functionalise(code, {"y": Binding("input", "0")})
    calls = [str(n.target) for n in code.graph.nodes if n.op == "call_function"]
    assert calls == ["aten.select.int", "aten.fill.Scalar", "aten.select_scatter.default", "aten.mul.Tensor"]
    batch = torch.ones(2, 3)
    (result,) = code(batch)
    assert result.tolist() == [[2, 2, 2], [0, 0, 0]]
    assert torch.equal(batch, torch.ones(2, 3))  # the caller's tensor is left alone


def test_an_error_names_no_line_of_ours() -> None:
    """A model out of torch's own modules has no line of the user's."""
    model = nn.Sequential(nn.Embedding(10, 4, max_norm=0.5), nn.Flatten(), nn.Linear(8, 3))
    batch = torch.randint(0, 10, (4, 2)), torch.randint(0, 3, (4,))
    with pytest.raises(CaptureError, match=r"its own parameter '0.weight'\. hint"):
        capture(model, nn.functional.cross_entropy, batch)
