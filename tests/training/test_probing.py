"""Probing: the pieces are what the job calls, and short; shares are of the whole."""

import time
from dataclasses import replace

import pytest
import torch
from torch import nn

from partita.nouns.probe import Probe, ProbePiece
from partita.training.capture.model import capture
from partita.training.probing import Prober, long_enough, pieces_of, shares_of, with_shares

CPU = torch.device("cpu")


def captured(model: nn.Module, *shape: int):
    batch = (torch.randn(*shape), torch.zeros(shape[0], dtype=torch.long))
    return capture(model, nn.functional.cross_entropy, batch)


def small() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 16 * 16, 10))


MODELS = {
    "convolution": (small(), (4, 3, 16, 16)),
    "large": (
        nn.Sequential(nn.Conv2d(3, 64, 7, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        (8, 3, 160, 160),
    ),
    "grouped": (nn.Sequential(nn.Conv2d(8, 16, 3, groups=4), nn.Flatten(), nn.Linear(16 * 36, 4)), (2, 8, 8, 8)),
    "dilated": (nn.Sequential(nn.Conv2d(4, 32, 3, dilation=2), nn.Flatten()), (2, 4, 12, 12)),
    "one-dimensional": (nn.Sequential(nn.Conv1d(4, 32, 3), nn.Flatten()), (2, 4, 40)),
    "linear": (nn.Linear(2000, 3000), (64, 2000)),
    "no product": (nn.LayerNorm(32), (4, 32)),
}


@pytest.mark.parametrize("name", MODELS)
def test_pieces_run_and_are_short(name: str) -> None:
    model, shape = MODELS[name]
    pieces = pieces_of(captured(model, *shape))
    kinds = [p.kind for p in pieces]
    assert kinds[-2:] == ["memory", "calls"]
    assert (name == "no product") == (len(kinds) == 2)
    prober = Prober(long_enough(pieces, CPU), CPU)
    assert 0 < sum(prober.read(5)) < 0.02


@pytest.mark.parametrize("name", MODELS)
def test_a_probe_of_any_model_is_read_back_from_its_file(name: str) -> None:
    """A convolution without padding has a size of 0."""
    model, shape = MODELS[name]
    probe = Probe(tuple(replace(p, share=0.5, seconds=1e-3) for p in pieces_of(captured(model, *shape))))
    assert Probe.from_json(probe.to_json(), "it") == probe


def test_a_convolution_is_probed_with_its_own_channels_and_kernel() -> None:
    piece = pieces_of(captured(*MODELS["convolution"][:1], 4, 3, 16, 16))[0]
    assert piece.kind == "convolution"
    assert piece.sizes[1:] == (4, 3, 16, 16, 8, 3, 3, 1, 1, 1)


def test_a_large_product_is_cut_to_half_a_millisecond_or_so() -> None:
    piece = pieces_of(captured(nn.Linear(2000, 3000), 64, 2000))[0]
    times, rows, inner, columns = piece.sizes
    assert piece.kind == "product"
    assert 2 * times * rows * inner * columns < 4e7
    assert min(rows, inner, columns) > 32


def test_shares_are_of_the_whole_and_calls_are_counted() -> None:
    found = captured(small(), 4, 3, 16, 16)
    tasks = dict.fromkeys(found.task_nodes, 1e-3)
    shares = shares_of(found, tasks, call_s=1e-4)
    assert sum(shares.values()) == pytest.approx(1.0)
    assert shares["product"] > shares["memory"] / 3
    assert shares["calls"] == pytest.approx(sum(map(len, found.task_nodes.values())) * 1e-4 / (len(tasks) * 1e-3))
    tiny = shares_of(found, tasks, call_s=1.0)
    assert tiny["calls"] == pytest.approx(1.0)
    pieces = with_shares(pieces_of(found), shares)
    assert sum(p.share for p in pieces) == pytest.approx(1.0)


def test_a_reading_counts_work_and_not_the_time_that_others_take() -> None:
    prober = Prober((ProbePiece("calls", (4,), 1.0, 0.0),), CPU)
    began = time.perf_counter()
    read = sum(prober.read()[0] for _ in range(50))
    assert 0 < read <= time.perf_counter() - began
