"""Capture of real models: tasks, edges, bytes, shared weights; any cut computes what the model computes."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import training.capture.awkward as awkward
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from training.capture.parts import allowed_cuts, cut_at, difference, run_eagerly, run_in_parts

from partita.errors import CaptureError
from partita.training.capture.model import Captured, bound_values, capture
from partita.training.job import Batch, call, load_job, micro_batches

transformers = pytest.importorskip("transformers")

JOBS = f"{__file__.rpartition('/training/')[0]}/jobs/small_models.py"


def llama() -> tuple[nn.Module, Any, Batch]:
    """Rotary positions, grouped queries, RMS norms, a gate."""
    config = transformers.LlamaConfig(
        hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, vocab_size=50,
        max_position_embeddings=32, use_cache=False, pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    ids = torch.randint(0, 50, (2, 12), generator=torch.Generator().manual_seed(5))
    return transformers.LlamaForCausalLM(config), _next_token, ({"input_ids": ids}, ids)


def t5() -> tuple[nn.Module, Any, Batch]:
    """Encoder and decoder; one embedding is read by both and by the head."""
    config = transformers.T5Config(
        d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, vocab_size=50, dropout_rate=0.0, use_cache=False,
        decoder_start_token_id=0,
    )  # fmt: skip
    ids = torch.randint(0, 50, (2, 10), generator=torch.Generator().manual_seed(6))
    return (
        transformers.T5ForConditionalGeneration(config),
        _next_token,
        ({"input_ids": ids, "decoder_input_ids": ids}, ids),
    )


def _next_token(output: Any, target: Tensor) -> Tensor:
    logits = output.logits[:, :-1]
    return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), target[:, 1:].reshape(-1))


NAMES = ("resnet", "vit", "bert", "gpt2", "long_skip", "llama", "t5")


@functools.cache
def case(name: str) -> tuple[nn.Module, Any, Batch, Captured]:
    """A model, its loss, a micro-batch of two and what was captured of them."""
    if name in ("llama", "t5"):
        torch.manual_seed(0)
        model, loss, batch = globals()[name]()
        model.train()
    else:
        job = load_job(f"{JOBS}:{name}")
        model, loss, batch = job.build(), job.loss, next(micro_batches(job.example(), 2))
    return model, loss, batch, capture(model, loss, batch)


@pytest.mark.parametrize("name", NAMES)
def test_graph_is_sound(name: str) -> None:
    """Every trained task has a backward, every task with parameters an update; edges are mirrored; nothing is isolated."""
    model, _, _, captured = case(name)
    graph = captured.graph
    assert graph.check() == []
    tasks = {t.id: t for t in graph.tasks}
    forward = {t.id for t in graph.tasks if t.phase == "forward"}
    backward = {t.of for t in graph.tasks if t.phase == "backward"}
    update = {t.of for t in graph.tasks if t.phase == "update"}
    assert backward <= forward
    assert update <= backward
    ids = [t.id for t in graph.tasks]
    pairs = {(ids[u], ids[v]) for u, v in graph.edges}
    for u, v in pairs:
        if u in backward and v in backward and tasks[v].phase == "forward":
            value_goes_back = (f"{v}.backward", f"{u}.backward") in pairs
            trained = any(
                captured.meta[captured.values[k]].requires_grad
                for k in graph.tensors_of.row(graph.index[u]).tolist()
                if captured.values[k]
            )
            assert value_goes_back or not trained, (u, v)
        if tasks[u].phase == tasks[v].phase == "backward":
            assert (tasks[v].of, tasks[u].of) in pairs
    touched = {x for pair in pairs for x in pair if tasks[x].phase == "forward"}
    assert touched == forward
    held = sum(t.parameter_bytes for t in graph.tasks) - sum(s.size_bytes * (len(s.tasks) - 1) for s in graph.shared)
    assert held == sum(p.numel() * p.element_size() for p in model.parameters())


def bytes_kept(forward: Callable[[], object], parameters: Iterable[Tensor]) -> int:
    """What autograd keeps of a forward: each storage once, the parameters left out."""
    own = {p.untyped_storage().data_ptr() for p in parameters}
    kept: dict[int, Tensor] = {}

    def keep(t: Tensor) -> Tensor:
        if t.untyped_storage().data_ptr() not in own:
            kept.setdefault(t.untyped_storage().data_ptr(), t)
        return t

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        forward()
    return sum(t.untyped_storage().nbytes() for t in kept.values())


@pytest.mark.parametrize("name", NAMES)
def test_kept_bytes_add_up(name: str) -> None:
    """To what a whole forward of the captured code keeps; the model itself may do without a mask of ones, say."""
    model, loss, batch, captured = case(name)
    tensors: dict[str, Tensor] = dict(model.named_parameters(remove_duplicate=False))
    tensors |= {n: b.clone() for n, b in model.named_buffers(remove_duplicate=False)}
    values = bound_values(captured.bindings, tensors, batch)
    counted = sum(t.activation_bytes for t in captured.graph.tasks)
    assert counted == bytes_kept(lambda: captured.code(*values.values()), model.parameters())
    buffers = {n: b.clone() for n, b in model.named_buffers()}
    assert counted == pytest.approx(
        bytes_kept(lambda: loss(call(model, batch[0]), batch[1]), model.parameters()), rel=0.1
    )
    with torch.no_grad():
        for n, b in model.named_buffers():
            b.copy_(buffers[n])


@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
@settings(max_examples=5, deadline=None)
def test_any_cut_computes_what_the_model_computes(name: str, data: st.DataObject) -> None:
    """Up to six consecutive parts, or every task alone: the loss is equal bit for bit, so are the buffers."""
    model, loss, batch, captured = case(name)
    allowed = allowed_cuts(captured)
    cuts = data.draw(st.sets(st.sampled_from(allowed), max_size=5) | st.just(set(allowed)))
    wanted = run_eagerly(model, loss, batch)
    found = run_in_parts(captured, model, batch, cut_at(captured, sorted(cuts)))
    assert torch.equal(found.loss, wanted.loss)
    assert difference(found.buffers, wanted.buffers) == 0
    assert difference(found.gradients, wanted.gradients) <= 2e-6


@pytest.mark.parametrize("name", ["resnet", "long_skip"])
def test_gradients_are_equal_bit_for_bit_where_no_value_has_three_readers(name: str) -> None:
    """Sums of two gradients do not depend on their order, so nothing can differ."""
    model, loss, batch, captured = case(name)
    wanted = run_eagerly(model, loss, batch)
    for cuts in ([], allowed_cuts(captured)[::3], allowed_cuts(captured)):
        found = run_in_parts(captured, model, batch, cut_at(captured, cuts))
        assert difference(found.gradients, wanted.gradients) == 0


def test_tied_weight_is_shared_under_its_first_name() -> None:
    model, _, _, captured = case("gpt2")
    (shared,) = captured.graph.shared
    assert shared.name == "transformer.wte.weight"
    assert dict(captured.aliases) == {"transformer.wte.weight": ("lm_head.weight",)}
    assert len(shared.tasks) == 2
    assert set(captured.saved) == set(model.state_dict())


def test_one_embedding_with_three_readers() -> None:
    _, _, _, captured = case("t5")
    embedding = next(s for s in captured.graph.shared if s.name == "shared.weight")
    assert len(embedding.tasks) == 3


def test_counters_of_batch_norm_belong_to_their_module() -> None:
    _, _, _, captured = case("resnet")
    homes = {n: t for t, nodes in captured.task_nodes.items() for n in nodes}
    counters = [
        n.name for n in captured.code.graph.nodes if any("num_batches" in b for b in n.meta.get("partita_writes", ()))
    ]
    assert len(counters) == sum(isinstance(m, nn.BatchNorm2d) for m in case("resnet")[0].modules())
    assert all(homes[c].startswith("batch_norm") for c in counters)


def test_tasks_carry_the_names_of_modules() -> None:
    _, _, _, captured = case("vit")
    names = [t.name for t in captured.graph.tasks if t.phase == "forward"]
    assert any(re.search(r"layers?\.1\..*linear", n) for n in names), names


def test_another_micro_batch_size_is_the_same_graph() -> None:
    """A plan made for one size runs at another: the last micro-batch may be smaller."""
    for name in ("long_skip", "gpt2"):
        job = load_job(f"{JOBS}:{name}")
        sizes = [capture(job.build(), job.loss, next(micro_batches(job.example(), n))).graph for n in (1, 2, 3)]
        assert len({g.fingerprint for g in sizes}) == 1


def test_bfloat16_model() -> None:
    torch.manual_seed(0)
    model = awkward.ControlFlow().to(torch.bfloat16).train()
    batch = (torch.randn(4, 8).bfloat16(), torch.tensor([0, 1, 2, 3]))
    captured = capture(model, F.cross_entropy, batch)
    wanted = run_eagerly(model, F.cross_entropy, batch)
    found = run_in_parts(captured, model, batch, cut_at(captured, allowed_cuts(captured)))
    assert torch.equal(found.loss, wanted.loss)
    assert all(captured.meta[v].dtype == torch.bfloat16 for v in captured.values if v)
    assert (
        difference(found.gradients, wanted.gradients) <= 0.02
    )  # bfloat16 has 8 bits; sums of three depend on the order


@pytest.mark.parametrize("form", ["positions", "keywords"])
def test_nested_inputs(form: str) -> None:
    torch.manual_seed(0)
    model = awkward.NestedInputs().train()
    extra = {"left": torch.ones(1, 4, 8), "right": (torch.rand(4, 8), 0.5)}
    inputs: Any = (torch.rand(4, 8), extra) if form == "positions" else {"x": torch.rand(4, 8), "extra": extra}
    batch = (inputs, {"labels": torch.tensor([0, 1, 2, 3])})

    def loss(output: Any, target: Any) -> Tensor:
        return F.cross_entropy(output["logits"], target["labels"])

    captured = capture(model, loss, batch)
    found = run_in_parts(captured, model, batch, cut_at(captured, allowed_cuts(captured)))
    assert torch.equal(found.loss, run_eagerly(model, loss, batch).loss)
    leaves = pytree.tree_leaves(batch)
    assert {int(b.name) for b in captured.bindings.values() if b.kind == "input"} <= set(range(len(leaves)))


def small() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(inplace=True), nn.Linear(8, 4)).train()


X, Y = torch.randn(4, 8), torch.tensor([0, 1, 2, 3])


@pytest.mark.parametrize(
    ("model", "loss", "batch", "fact"),
    [
        (42, F.cross_entropy, (X, Y), "a int cannot be captured"),
        (F.relu, F.cross_entropy, (X, Y), "a function cannot be captured"),
        (small(), F.cross_entropy, (X[:, :5], Y), "refuses the batch: RuntimeError: mat1 and mat2 shapes"),
        (small(), F.cross_entropy, ((X, X), Y), "refuses the batch: TypeError"),
        (small(), F.cross_entropy, (X, Y[:3]), "refuses the batch: ValueError: Expected input batch_size (4)"),
        (small(), F.cross_entropy, (X, Y + 7), "refuses the batch: IndexError: Target"),
        (awkward.Plain(), lambda o, t: o.logits.mean(), (X, Y), "'Tensor' object has no attribute 'logits'"),
        (small(), lambda o, t: F.cross_entropy(o, t, reduction="none"), (X, Y), "torch.float32 tensor of shape (4,)"),
        (small(), lambda o, t: o.argmax(), (X, Y), "torch.int64 tensor of shape ()"),
        (small(), lambda o, t: 3.0, (X, Y), "the loss gives a float"),
        (small(), lambda o, t: o.detach().mean(), (X, Y), "depends on no parameter"),
        (small().requires_grad_(False), F.cross_entropy, (X, Y), "depends on no parameter"),
    ],
)
def test_refused_in_one_sentence(
    model: Any, loss: Any, batch: Batch, fact: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(CaptureError, match=re.escape(fact)) as caught:
        capture(model, loss, batch)
    assert caught.value.hint
    assert "\n" not in str(caught.value)
    assert capfd.readouterr() == ("", "")


def test_error_in_the_users_loss_names_its_line() -> None:
    def broken(output: Tensor, target: Tensor) -> Tensor:
        raise KeyError("weights")  # this line

    with pytest.raises(CaptureError, match=r"test_model\.py:\d+ \(raise KeyError") as caught:
        capture(small(), broken, (X, Y))
    assert "KeyError: 'weights'" in caught.value.message
