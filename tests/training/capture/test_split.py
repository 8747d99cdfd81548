"""Operators in parts: loss, gradients and buffers stay what they are where the split says so; the rest is refused by name."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import training.capture.awkward as awkward
from torch import Tensor, nn
from training.capture.parts import cut_at, difference, forward_tasks, run_eagerly, run_in_parts
from training.runtime.helpers import source_of

from partita.errors import CaptureError
from partita.nouns.splits import Split, asked_splits
from partita.training.capture.model import Captured, capture
from partita.training.capture.norm_parts import batch_norm_moments, batch_norm_part
from partita.training.job import load_job

MODELS = ("branchy:alexnet", "branchy:inception", "branchy:towers", "vit", "gpt2", "bert")
IMAGES = (torch.randn(6, 4, 8, 8, generator=torch.Generator().manual_seed(1)), torch.tensor([0, 3, 1, 2, 0, 1]))
ROWS = (torch.randn(6, 5, 8, generator=torch.Generator().manual_seed(2)), torch.tensor([0, 3, 1, 2, 0, 1]))


def captured(model: nn.Module, batch: Any, *words: str) -> Captured:
    return capture(model, F.cross_entropy, batch, splits=asked_splits(words))


def tasks_like(found: Captured, *words: str) -> list[str]:
    return [t for t in forward_tasks(found) if any(w in t for w in words)]


def same(model: nn.Module, loss: Any, batch: Any, found: Captured, limit: float = 1e-5) -> None:
    """What the tasks compute, each by itself, is what the model computes."""
    wanted = run_eagerly(model, loss, batch)
    for parts in ([forward_tasks(found)], cut_at(found, range(1, len(forward_tasks(found))))):
        got = run_in_parts(found, model, batch, parts)
        assert torch.allclose(got.loss, wanted.loss, rtol=1e-5)
        assert difference(got.gradients, wanted.gradients) <= limit
        assert difference(got.buffers, wanted.buffers) <= limit


@pytest.mark.parametrize("name", MODELS)
def test_random_subsets_of_a_models_operators(name: str) -> None:
    if ":" not in name:
        pytest.importorskip("transformers")
    job = load_job(source_of(name), {})
    model, batch = job.build(), job.example()
    plain, chance = capture(model, job.loss, batch), random.Random(5)
    for share in (1.0, 0.4):
        splits = []
        for task in forward_tasks(plain):
            split = Split(task, chance.choice(["batch", "batch", "channel"]), chance.choice([2, 2, 3]))
            able = is_able(model, job.loss, batch, split)
            if able and able.exact and chance.random() < share:
                splits.append(split)
        found = capture(model, job.loss, batch, splits=splits)
        assert len(found.splits) == len(splits) > 4
        assert all(t in found.task_nodes for s in found.splits for t in s.tasks)
        single = [t for t in forward_tasks(found) if found.graph.tasks[found.graph.index[t]].group is None]
        assert len(single) > 2 * len(splits)
        got = run_in_parts(found, model, batch, [forward_tasks(found)])
        wanted = run_eagerly(model, job.loss, batch)
        assert torch.allclose(got.loss, wanted.loss, rtol=1e-5)
        assert difference(got.gradients, wanted.gradients) <= 1e-3  # sums in another order; of biases before a norm, 0
        assert difference(got.buffers, wanted.buffers) <= 1e-5


_PLAIN: dict[int, Any] = {}


def is_able(model: nn.Module, loss: Any, batch: Any, split: Split) -> Split | None:
    from partita.training.capture.split import Tasks, splittable

    if id(model) not in _PLAIN:
        _PLAIN[id(model)] = model, capture(model, loss, batch)
    plain = _PLAIN[id(model)][1]
    able = splittable(plain.code, Tasks(plain.task_nodes, plain.meta), split)
    return able if isinstance(able, Split) else None


class Calls(nn.Module):
    """A layer, a call, a layer."""

    def __init__(self, call: Any, images: bool) -> None:
        super().__init__()
        self.images = images
        self.first = nn.Conv2d(4, 8, 3, padding=1) if images else nn.Linear(8, 8)
        self.call = call if isinstance(call, nn.Module) else None
        self.function = call
        self.head = nn.LazyLinear(4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.function(self.first(x))
        return self.head(y.flatten(1))


def attention(mask: bool) -> Any:
    def call(y: Tensor) -> Tensor:
        q = y.view(y.shape[0], y.shape[1], 2, 4).transpose(1, 2)
        seen = torch.ones(y.shape[1], y.shape[1], dtype=torch.bool).tril() if mask else None
        return F.scaled_dot_product_attention(q, q * 2, q + 1, attn_mask=seen).transpose(1, 2).reshape(y.shape)

    return call


IMAGE_CALLS: dict[str, Any] = {
    "conv": nn.Conv2d(8, 6, 3, stride=2),
    "depthwise": nn.Conv2d(8, 8, 3, groups=8),
    "transposed": nn.ConvTranspose2d(8, 6, 2, stride=2),
    "group norm": nn.GroupNorm(2, 8),
    "max pool": nn.MaxPool2d(2),
    "average pool": nn.AvgPool2d(3, 2),
    "adaptive pool": nn.AdaptiveAvgPool2d(2),
    "norm": nn.BatchNorm2d(8),
    "plain norm": nn.BatchNorm2d(8, affine=False, track_running_stats=False),
    "frozen norm": nn.BatchNorm2d(8).eval(),
    "mean": lambda y: y.mean((2, 3)),
    "mean, kept": lambda y: y * y.mean((2, 3), keepdim=True),
    "cat": lambda y: torch.cat([y, y.relu()], 1),
    "softmax": lambda y: y.softmax(1),
    "permute": lambda y: y.permute(0, 2, 3, 1) * 2,
    "halves": lambda y: torch.mul(*y.chunk(2, 1)),
    "broadcast": lambda y: y + torch.arange(8.0).view(1, 8, 1, 1),
    "padded": lambda y: F.pad(y, (1, 1, 2, 0)),
    "upsampled": nn.Upsample(scale_factor=2),
    "in place": lambda y: y.mul_(2).add_(1),
    "where": lambda y: torch.where(y > 0, y, y * 0.1),
}
ROW_CALLS: dict[str, Any] = {
    "linear": nn.Linear(8, 6),
    "layer norm": nn.LayerNorm(8),
    "norm": nn.BatchNorm1d(5),
    "conv1d": nn.Conv1d(5, 6, 3),
    "attention": attention(False),
    "masked attention": attention(True),
    "matmul": lambda y: y @ y.transpose(1, 2),
    "bmm": lambda y: torch.bmm(y, y.transpose(1, 2)),
    "addmm": lambda y: torch.addmm(torch.ones(8), y.reshape(-1, 8), torch.ones(8, 8)).view(y.shape) + y,
    "gelu": F.gelu,
    "softmax": lambda y: y.softmax(-1),
    "select": lambda y: y[:, 2] + y[:, 0],
    "unbind": lambda y: sum(y.unbind(1)),
    "expand": lambda y: y[:, :1].expand(-1, 5, -1) * y,
    "sum": lambda y: y.sum(1),
    "rows": lambda y: F.relu(y.reshape(-1, 4)).view(y.shape),
}


@pytest.mark.parametrize("dim", ["batch", "channel"])
@pytest.mark.parametrize(("kind", "name"), [*(("images", n) for n in IMAGE_CALLS), *(("rows", n) for n in ROW_CALLS)])
def test_each_kind_of_call(kind: str, name: str, dim: str) -> None:
    torch.manual_seed(0)
    batch = IMAGES if kind == "images" else ROWS
    model = Calls((IMAGE_CALLS if kind == "images" else ROW_CALLS)[name], kind == "images")
    with torch.no_grad():
        model(batch[0])
    found = captured(model, batch, f"*:{dim}:2")
    assert len(found.splits) >= 2
    assert all(s.exact for s in found.splits)
    same(
        model, F.cross_entropy, batch, found, 1e-3 if "norm" in name else 1e-5
    )  # of a bias before a norm it is rounding
    if dim == "batch":
        assert len(found.splits) == len(forward_tasks(captured(model, batch))) - 1, "all but the loss"
        assert len(tasks_like(found, "joined")) <= 1


@pytest.mark.parametrize("kind", awkward.CAPTURED, ids=lambda k: k.__name__)
def test_whatever_of_an_awkward_model_can_be_split(kind: type[nn.Module]) -> None:
    torch.manual_seed(0)
    model = kind().train()
    batch = (torch.randn(4, 8, generator=torch.Generator().manual_seed(1)), torch.tensor([0, 3, 1, 2]))
    for word in ("*:batch:2", "*:channel:2"):
        found = captured(model, batch, word)
        if all(s.exact for s in found.splits) and kind is not awkward.Autocast:  # bfloat16 rounds by a hundredth
            got = run_in_parts(found, model, batch, [forward_tasks(found)])
            wanted = run_eagerly(model, F.cross_entropy, batch)
            assert (
                difference(got.gradients, wanted.gradients) <= 1e-4
            )  # two norms in a row: some are 0 but for rounding
            assert difference(got.buffers, wanted.buffers) <= 1e-6


def test_parts_stay_apart_along_a_chain_and_weights_are_shared() -> None:
    model = nn.Sequential(nn.Conv2d(4, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(128, 4))
    found = captured(model, IMAGES, "*:batch:3")
    assert tasks_like(found, "joined") == ["linear_joined"]
    assert {s.name: len(s.tasks) for s in found.graph.shared} == {n: 3 for n, _ in model.named_parameters()}
    part = {t: t[-1] for s in found.splits for t in s.tasks}
    ids = [t.id for t in found.graph.tasks]
    between = [(ids[a], ids[b]) for a, b in found.graph.edges.tolist() if ids[a] in part and ids[b] in part]
    assert between
    assert all(part[a] == part[b] for a, b in between)


def test_a_channel_split_sends_slices_of_a_weight_to_nobody() -> None:
    """Each part reads the whole parameter; what it uses of it is cut inside, and its gradients add up to one."""
    model = nn.Sequential(nn.Linear(8, 6), nn.Flatten(), nn.Linear(30, 4))
    found = captured(model, ROWS, "linear:channel:2")
    one, other = found.splits[0].tasks
    assert [s.tasks for s in found.graph.shared] == [(one, other)] * 2
    assert all(len(found.graph.predecessors.row(found.graph.index[t])) == 0 for t in (one, other))
    same(model, F.cross_entropy, ROWS, found)


class Normed(nn.Module):
    """A convolution and a norm, of the batch or of each half of it."""

    def __init__(self, halves: bool) -> None:
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(4, 8, 3, bias=False), nn.BatchNorm2d(8), nn.Linear(288, 4)
        self.halves = halves

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        if not self.halves:
            y = self.norm(y)
        else:
            one, other = y.chunk(2)
            fresh = F.batch_norm(other, None, None, self.norm.weight, self.norm.bias, True)
            y = torch.cat([self.norm(one), fresh])
        return self.head(F.relu(y).flatten(1))


def test_ghosts_are_what_halves_of_the_batch_give() -> None:
    torch.manual_seed(0)
    model = Normed(False)
    reference = Normed(True)
    reference.load_state_dict(model.state_dict())
    found = captured(model, IMAGES, "batch_norm:ghost:2", "conv2d:ghost:2", "relu:batch:2")
    assert {s.task: s.change for s in found.splits} == {"conv2d": "none", "batch_norm": "statistics", "relu": "none"}
    assert not any(t.group for t in found.graph.tasks), "the parts may lie on different devices"
    wanted = run_eagerly(reference, F.cross_entropy, IMAGES)
    got = run_in_parts(found, model, IMAGES, cut_at(found, range(1, len(forward_tasks(found)))))
    assert torch.allclose(got.loss, wanted.loss, rtol=1e-6)
    assert difference(got.gradients, wanted.gradients) <= 1e-5
    assert difference(got.buffers, wanted.buffers) <= 1e-6
    whole = run_eagerly(model, F.cross_entropy, IMAGES)
    assert difference(whole.buffers, wanted.buffers) > 1e-3


@pytest.mark.parametrize("parts", [2, 3])
def test_parts_of_a_norm_tell_each_other_their_moments(parts: int) -> None:
    torch.manual_seed(0)
    model = Normed(False)
    found = captured(model, IMAGES, f"batch_norm:batch:{parts}", f"conv2d:batch:{parts}")
    assert all(s.exact for s in found.splits)
    assert not any(t.group for t in found.graph.tasks), "the parts may lie on different devices"
    told = [b for v, b in zip(found.values, found.graph.size_bytes, strict=True) if "moments" in v]
    assert told == [2 * 8 * 4] * parts, "two numbers a channel"
    same(model, F.cross_entropy, IMAGES, found, 1e-6)


@pytest.mark.parametrize("word", ["batch_norm:batch:2", "batch_norm_1:batch:3"])
def test_one_of_two_calls_of_a_norm(word: str) -> None:
    """Torch's own norm keeps the running statistics for its backward, and does not mind that they move on meanwhile."""
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(4)
    model = nn.Sequential(norm, nn.Conv2d(4, 4, 1), norm, nn.Flatten(), nn.Linear(256, 4))
    same(model, F.cross_entropy, IMAGES, captured(model, IMAGES, word), 1e-3)


@pytest.mark.parametrize("far", [0.0, 1e3], ids=["near 0", "far from 0"])
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("kind", [torch.float32, torch.float64, torch.bfloat16])
def test_a_norm_over_uneven_parts(kind: torch.dtype, affine: bool, far: float) -> None:
    torch.manual_seed(0)
    x = (3 * torch.randn(7, 4, 5) + far).to(kind).requires_grad_()
    norm = nn.BatchNorm1d(4, affine=affine).to(kind)
    if affine:
        nn.init.uniform_(norm.weight, 0.5, 2.0)
    arrived = torch.randn(7, 4, 5).to(kind)
    running = [norm.running_mean.clone(), norm.running_var.clone()]
    wanted = torch.autograd.grad(y := norm(x), [x, *norm.parameters()], arrived)
    parts, n = x.split([4, 1, 2]), 7 * 5
    told = [batch_norm_moments(p) for p in parts]
    shares = [len(p) / 7 for p in parts]
    made = [
        batch_norm_part(
            p, norm.weight, norm.bias, *(running if k == 0 else (None, None)), 0.1, norm.eps, shares, n, told
        )
        for k, p in enumerate(parts)
    ]
    got = torch.autograd.grad(z := torch.cat(made), [x, *norm.parameters()], arrived)
    limit = {torch.float64: 1e-9, torch.float32: 2e-3 if far else 1e-5, torch.bfloat16: 0.05}[kind]
    if kind == torch.bfloat16 and far:
        return  # one number in a hundred is left of what varies
    for a, b in zip([z, *got, *running], [y, *wanted, norm.running_mean, norm.running_var], strict=True):
        assert a.dtype == b.dtype
        assert torch.allclose(a, b, rtol=limit, atol=limit * float(b.detach().abs().max()))


def test_dropout_says_that_it_draws_other_numbers() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Flatten(), nn.Linear(40, 4))
    found = captured(model, ROWS, "*:batch:2")
    assert {s.task: s.change for s in found.splits}["dropout"] == "random"
    off = captured(model.eval(), ROWS, "*:batch:2")
    assert all(s.exact for s in off.splits)


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(8, 8), nn.Linear(40, 4)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        self.seen.add_(y.detach().sum())
        return self.head(y.flatten(1))


@pytest.mark.parametrize(
    ("model", "batch", "word", "reason"),
    [
        (nn.Sequential(nn.Flatten(), nn.Linear(40, 4)), ROWS, "cross_entropy_loss:batch:2", "it sums over the batch"),
        (nn.Sequential(nn.Flatten(), nn.Linear(40, 4)), ROWS, "linear:batch:7", "it is 6 long there"),
        (nn.Sequential(nn.Flatten(), nn.Linear(40, 4)), ROWS, "linaer:batch:2", "there is no operator 'linaer'"),
        (Normed(False), IMAGES, "batch_norm:channel:2", "its running statistics stay in one place"),
        (Counting(), ROWS, "add_:batch:2", "it writes to its argument"),
        (nn.Sequential(nn.Conv2d(4, 8, 3, groups=2), nn.Flatten(), nn.Linear(288, 4)), IMAGES, "conv2d:channel:2", "grouped"),
        (nn.Sequential(nn.LayerNorm(8), nn.Flatten(), nn.Linear(40, 4)), ROWS, "layer_norm:channel:2", "normalised over that dim"),
    ],
)  # fmt: skip
def test_what_cannot_be_split_is_refused_by_name(model: nn.Module, batch: Any, word: str, reason: str) -> None:
    with pytest.raises(CaptureError, match=reason) as refused:
        captured(model, batch, word)
    assert word.split(":")[0] in refused.value.message
    assert refused.value.hint


def test_a_pattern_takes_what_can_be_split() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Flatten(), nn.Linear(40, 4))
    assert [s.task for s in captured(model, ROWS, "*:channel:2").splits] == ["linear", "linear_1"]
