"""Models that are hard to capture, each small, each hard in one way."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


class Plain(nn.Module):
    """Two linear layers, 8 -> 8 -> 4; the others override what happens between them."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(8, 8)
        self.b = nn.Linear(8, 4)

    def between(self, y: Tensor, x: Tensor) -> Tensor:
        return torch.tanh(y)

    def forward(self, x: Tensor) -> Any:
        return self.b(self.between(self.a(x), x))


class InPlace(Plain):
    """Chains of in-place calls, one of which reads what another one wrote."""

    def between(self, y: Tensor, x: Tensor) -> Tensor:
        y += 1
        y.add_(x).mul_(2)
        r = torch.relu_(y)
        return r + y


class SliceAssignment(Plain):
    """Writes through views: a row, a view of a view, a strided slice, a transposed row; read again through old views."""

    def between(self, y: Tensor, x: Tensor) -> Tensor:
        folded = y.view(2, 2, 8)
        row, rows = folded[0], y[1:3]
        y.mul_(2)
        row.add_(1)
        row.mul_(3)
        rows[:, ::2] = x[1:3, ::2]
        y.transpose(0, 1)[3].copy_(x[:, 0])
        y.permute(1, 0)[2:4].clamp_(-1, 1)
        y.diagonal().mul_(0.5)
        return y + folded.flatten(0, 1) + row.sum() * rows.sum()


class WritesIntoConstants(Plain):
    """A mask that is filled in place, depends on no parameter at first, and then on one."""

    def between(self, y: Tensor, x: Tensor) -> Tensor:
        mask = torch.zeros(4, 8)
        mask[:, 2:] = 1
        mask.masked_fill_(x > 0, 0.5)
        halves = torch.ones(8).split(4)
        halves[1].mul_(7)
        mask[0] = y[1]
        mask.unsqueeze_(0)
        return y * mask[0] * torch.cat(halves)


class IndexPut(Plain):
    def between(self, y: Tensor, x: Tensor) -> Tensor:
        y = y.clone()
        y[torch.tensor([0, 2])] = 1.0
        y.index_put_((torch.tensor([1]), torch.tensor([1, 2])), y[0, :2] * 2, accumulate=True)
        return y


class RunningMean(Plain):
    """A running mean and a counter kept by hand, written under no_grad, by a chain of calls and through a view."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(8))
        self.register_buffer("counts", torch.zeros(2))

    def between(self, y: Tensor, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.mean.mul_(0.9).add_(0.1 * y.mean(0))
        self.counts[0] += 1
        scale = 1 / (1 + self.counts.sum())
        return (y - self.mean) * scale


class SharedNorm(Plain):
    """One batch norm called twice: both calls write to the same statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(8)

    def between(self, y: Tensor, x: Tensor) -> Tensor:
        return self.norm(torch.tanh(self.norm(y)))


class NoGradBlock(Plain):
    def between(self, y: Tensor, x: Tensor) -> Tensor:
        with torch.no_grad():
            weight = torch.softmax(y, 1)
            weight = weight / weight.amax(1, keepdim=True)
        return y * weight


class Checkpointed(Plain):
    def between(self, y: Tensor, x: Tensor) -> Tensor:
        result = checkpoint(lambda t: torch.tanh(t) * torch.sigmoid(t), y, use_reentrant=False)
        assert isinstance(result, Tensor)
        return result


class Autocast(Plain):
    """bfloat16 inside, with a batch norm whose statistics are written there."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(8)
        self.c = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            y = self.c(torch.relu(self.norm(self.a(x))))
            out = self.b(y)
        return out.float()


class Integers(Plain):
    """Whole numbers and truth values go from task to task."""

    def between(self, y: Tensor, x: Tensor) -> Tensor:
        best = y.argmax(1)
        z = torch.tanh(y)
        return z * F.one_hot(best, 8) + z.gather(1, best[:, None]) * (y > 0)


class Frozen(Plain):
    """The first layers are frozen: no backward there."""

    def __init__(self) -> None:
        super().__init__()
        self.c = nn.Linear(8, 8)
        self.a.requires_grad_(False)

    def between(self, y: Tensor, x: Tensor) -> Tensor:
        return self.c(torch.tanh(y))


class Unused(Plain):
    """A layer nobody calls, and a head whose result nobody reads, with a batch norm that learns all the same."""

    def __init__(self) -> None:
        super().__init__()
        self.never = nn.Linear(3, 3)
        self.head = nn.Linear(8, 8)
        self.norm = nn.BatchNorm1d(8)

    def between(self, y: Tensor, x: Tensor) -> Tensor:
        self.norm(self.head(y))
        return torch.tanh(y)


class ControlFlow(Plain):
    """Python loops and branches on shapes are followed."""

    def between(self, y: Tensor, x: Tensor) -> Tensor:
        for _ in range(x.shape[0] // 2):
            y = torch.tanh(self.a(y)) if y.shape[1] == 8 else y
        return y


class Cond(Plain):
    def between(self, y: Tensor, x: Tensor) -> Tensor:
        result = torch.cond(y.sum() > 0, lambda t: t * 2, lambda t: t.sin(), (y,))
        assert isinstance(result, Tensor)
        return result


class DataDependentShape(Plain):
    """The positive numbers only: how many there are shows at run time."""

    def between(self, y: Tensor, x: Tensor) -> Tensor:
        return y + y[y > 0].sum()


class Views(Plain):
    """Splits, chunks and transposes, read by several later calls."""

    def between(self, y: Tensor, x: Tensor) -> Tensor:
        left, right = y.chunk(2, dim=1)
        first, *_ = y.unbind(0)
        return torch.cat([right.t().t(), left * first[:4]], dim=1) + first


class NestedInputs(nn.Module):
    """A dict with a tuple and a list of tensors in it, beside one given by position."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(8, 8)
        self.b = nn.Linear(8, 4)

    def forward(self, x: Tensor, extra: dict[str, Any]) -> dict[str, Tensor]:
        left, (right, scale) = extra["left"], extra["right"]
        return {"logits": self.b(torch.tanh(self.a(x + left[0])) * right * scale)}


class Unread(Plain):
    """A value that nobody reads, in front of a block under no_grad: torch takes the calls behind it for users of some that are gone."""

    def between(self, y: Tensor, x: Tensor) -> Tensor:
        y.exp()
        with torch.no_grad():
            z = y * 2
        return y + z


class UnreadInPlace(Plain):
    """Rows that are written to, and a buffer under no_grad behind them."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("fade", torch.ones(8))

    def between(self, y: Tensor, x: Tensor) -> Tensor:
        y = y.clone()
        y[:, 0] = 0.0
        y[:, 1:3] += 1
        with torch.no_grad():
            self.fade.mul_(0.5)
        return torch.tanh(y * self.fade)


CAPTURED = [
    Plain, InPlace, SliceAssignment, WritesIntoConstants, IndexPut, RunningMean, SharedNorm, NoGradBlock, Checkpointed, Autocast,
    Integers, Frozen, Unused, ControlFlow, DataDependentShape, Views, Unread, UnreadInPlace,
]  # fmt: skip


class Branch(Plain):
    def between(self, y: Tensor, x: Tensor) -> Tensor:
        if y.sum() > 0:  # the line to name
            return y * 2
        return y


class NumberOut(Plain):
    def between(self, y: Tensor, x: Tensor) -> Tensor:
        return y * int(y.sum().item())  # the line to name


class ChangesParameter(Plain):
    def forward(self, x: Tensor) -> Any:
        with torch.no_grad():
            self.a.weight.clamp_(-1, 1)  # the line to name
        return self.b(self.a(x))


class ReassignsBuffer(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))

    def between(self, y: Tensor, x: Tensor) -> Tensor:
        self.seen = self.seen + 1
        return y


class Reentrant(Plain):
    def between(self, y: Tensor, x: Tensor) -> Tensor:
        result = checkpoint(torch.tanh, y, use_reentrant=True)
        assert isinstance(result, Tensor)
        return result


class Counts(Plain):
    """Every call gives another result, and nothing in the graph says so."""

    calls = 0

    def between(self, y: Tensor, x: Tensor) -> Tensor:
        self.calls += 1
        return y * self.calls


class WritesThroughDetach(Plain):
    def forward(self, x: Tensor) -> Any:
        y = self.a(x)
        y.detach().mul_(2)  # the line to name
        return self.b(y)


class OutArgument(Plain):
    def forward(self, x: Tensor) -> Any:
        room = torch.empty(4, 8)
        torch.add(x, 1, out=room)  # the line to name
        return self.b(self.a(x) + room)


class WritesThroughDropout(Plain):
    """Dropout in evaluation mode gives its argument back: a write to the one is a write to the other."""

    def between(self, y: Tensor, x: Tensor) -> Tensor:
        z = F.dropout(y, 0.5, training=False)
        z.mul_(2)
        return y + z
