"""BatchNorm over a batch that lies in parts: each part's moments, and each part normalised by those of all.

    x_1 -> moments(x_1) \\            / -> normalised(x_1, .., both) -> y_1
                          both parts
    x_2 -> moments(x_2) /            \\ -> normalised(x_2, .., both) -> y_2

The moments are two numbers a channel, and so are their gradients, which go back the same way: what SyncBatchNorm sends. Values,
gradients and running statistics are those of one BatchNorm over the whole batch, but for rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

aten = torch.ops.aten


def batch_norm_moments(x: Tensor) -> Tensor:
    """[2, channels] mean and variance (not corrected) of a part [samples, channels, ...], in float32 at least."""
    return _Moments.apply(x)  # type: ignore[no-any-return, no-untyped-call]


def batch_norm_part(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    momentum: float,
    eps: float,
    shares: Sequence[float],
    samples: int,
    moments: Sequence[Tensor],
) -> Tensor:
    """A part normalised by the `moments` of all parts, each of which is a share of the batch; `samples`: of the whole batch, with
    the places of each, a channel. Moves the running statistics where it is given them."""
    return _Part.apply(  # type: ignore[no-any-return, no-untyped-call]
        x, weight, bias, running_mean, running_var, momentum, eps, shares, samples, *moments
    )


class _Moments(torch.autograd.Function):
    """In four passes over the part, none of which adds up one number after the other, as torch's own does on CPUs."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        over = [d for d in range(x.dim()) if d != 1]
        mean = wide.mean(over)
        var = (wide - _along(mean, x)).square_().mean(over)
        moments = torch.stack([mean, var])
        ctx.save_for_backward(x, moments)
        return moments

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        """d mean / dx = 1 / n; d var / dx = 2 (x - mean) / n"""
        x, moments = ctx.saved_tensors
        of_mean, of_var = _few(gradient)
        each = x.shape[1] / x.numel()
        slope = of_var * (2 * each)
        apart: Tensor = x.to(moments.dtype) - _along(
            moments[0], x
        )  # rounded once, at the end: else the errors of a channel add up
        return apart.mul_(_along(_tensor(slope), x)).add_(_along(_tensor(of_mean * each), x)).to(x.dtype)


class _Part(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        momentum: float,
        eps: float,
        shares: Sequence[float],
        samples: int,
        *moments: Tensor,
    ) -> Tensor:
        each = [_few(m) for m in moments]
        mean, var = sum(s * m for s, m in zip(shares, each, strict=True))
        for share, (own, _) in zip(shares, each, strict=True):
            var = var + share * (own - mean) ** 2
        _move(running_mean, mean, momentum)
        _move(running_var, var * (samples / max(samples - 1, 1)), momentum)
        kind = moments[0].dtype if weight is None else weight.dtype
        y, _, _ = torch.native_batch_norm(
            x, weight, bias, _tensor(mean).to(kind), _tensor(var).to(kind), False, 0.0, eps
        )
        ctx.save_for_backward(x, weight, *moments)
        ctx.known = mean, var, shares, eps, kind
        return y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """The sums over a part that the gradients of its weight and bias are tell those of mean and variance too."""
        x, weight, *moments = ctx.saved_tensors
        mean, var, shares, eps, kind = ctx.known
        of_x, of_weight, of_bias = aten.native_batch_norm_backward(
            gradient,
            x,
            weight,
            _tensor(mean).to(kind),
            _tensor(var).to(kind),
            None,
            None,
            False,
            eps,
            [True, True, True],
        )
        steep = (var + eps) ** -0.5
        slope = steep if weight is None else steep * _few(weight)
        of_mean, of_var = -slope * _few(of_bias), -0.5 * slope * steep * _few(of_weight)
        of_moments = [
            _stacked(share * (of_mean + 2 * (_few(m)[0] - mean) * of_var), share * of_var)
            for share, m in zip(shares, moments, strict=True)
        ]
        affine = (
            g if wanted else None for g, wanted in zip((of_weight, of_bias), ctx.needs_input_grad[1:3], strict=True)
        )
        return of_x, *affine, *(None,) * 6, *of_moments


def _move(running: Tensor | None, now: Any, momentum: float) -> None:
    if (
        running is not None
    ):  # as torch's own norm, which keeps them for its backward and does not say that it changes them
        running.data.lerp_(_tensor(now).to(running.dtype), momentum)


# ---- a few numbers a channel: on a CPU as NumPy sees them, which takes a third of the time for small operations --------------


def _few(t: Tensor) -> Any:
    t = t.detach()
    if t.device.type != "cpu":
        return t
    return t.numpy() if t.dtype in (torch.float32, torch.float64) else t.float().numpy()


def _tensor(few: Any) -> Tensor:
    return torch.from_numpy(few) if isinstance(few, np.ndarray) else few


def _stacked(one: Any, other: Any) -> Tensor:
    return torch.from_numpy(np.stack([one, other])) if isinstance(one, np.ndarray) else torch.stack([one, other])


def _along(channels: Tensor, x: Tensor) -> Tensor:
    """Of each channel, beside a part."""
    return channels.view(1, -1, *[1] * (x.dim() - 2))
