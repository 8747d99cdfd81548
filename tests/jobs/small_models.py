"""Jobs for tests: four transformers models built from configs (random weights) and a CNN with a skip over three stages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from partita.training.job import Batch, TrainingJob

SAMPLES = 24


class LongSkip(nn.Module):
    """The stem's output is read again by the last block: with three stages, a value that skips the middle one."""

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.blocks = nn.ModuleList(
            [
                nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(inplace=True))
                for _ in range(6)
            ]
        )
        self.last = nn.Conv2d(2 * width, width, 3, padding=1)
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        first = self.stem(x)
        y = first
        for block in self.blocks:
            y = block(y) + y
        y = self.last(torch.cat([y, first], dim=1))
        return self.head(y.mean((2, 3)))


class TwoInputs(nn.Module):
    """Two inputs, the second read by the last layers only; dropout on the way."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(*[nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Dropout(0.1)) for _ in range(4)])
        self.gate = nn.Linear(8, 16)
        self.head = nn.Linear(16, 4)

    def forward(self, x: Tensor, side: Tensor) -> Tensor:
        return self.head(self.body(x) * torch.sigmoid(self.gate(side)))


def _images(batch: int, size: int, classes: int) -> Any:
    def batches(epoch: int) -> Iterator[Batch]:
        g = torch.Generator().manual_seed(1000 + epoch)
        for start in range(0, SAMPLES, batch):
            n = min(batch, SAMPLES - start)
            yield torch.randn(n, 3, size, size, generator=g), torch.randint(0, classes, (n,), generator=g)

    return batches


def _tokens(batch: int, length: int, vocabulary: int, target: str) -> Any:
    def batches(epoch: int) -> Iterator[Batch]:
        g = torch.Generator().manual_seed(2000 + epoch)
        for start in range(0, SAMPLES, batch):
            n = min(batch, SAMPLES - start)
            ids = torch.randint(0, vocabulary, (n, length), generator=g)
            inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
            yield inputs, (ids if target == "next" else torch.randint(0, 4, (n,), generator=g))

    return batches


def _sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)


def _adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-3)


def _logits_loss(output: Any, target: Tensor) -> Tensor:
    return F.cross_entropy(output.logits, target)


def _next_token_loss(output: Any, target: Tensor) -> Tensor:
    logits = output.logits[:, :-1]
    return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), target[:, 1:].reshape(-1))


def resnet(batch: str = "8", scale: str = "1") -> TrainingJob:
    from transformers import ResNetConfig, ResNetForImageClassification

    k = int(scale)
    config = ResNetConfig(
        depths=[1, 1, 2],
        hidden_sizes=[16 * k, 32 * k, 64 * k],
        layer_type="basic",
        embedding_size=16 * k,
        num_labels=10,
    )
    return TrainingJob(
        lambda: ResNetForImageClassification(config), _logits_loss, _images(int(batch), 32 * k, 10), _sgd
    )


def vit(batch: str = "8", scale: str = "1") -> TrainingJob:
    from transformers import ViTConfig, ViTForImageClassification

    k = int(scale)
    config = ViTConfig(
        hidden_size=64 * k, num_hidden_layers=3 * k, num_attention_heads=4, intermediate_size=128 * k, image_size=32, patch_size=8 // min(k, 2),
        num_labels=10, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    return TrainingJob(lambda: ViTForImageClassification(config), _logits_loss, _images(int(batch), 32, 10), _adam)


def bert(batch: str = "8", scale: str = "1") -> TrainingJob:
    from transformers import BertConfig, BertForSequenceClassification

    k = int(scale)
    config = BertConfig(
        hidden_size=64 * k, num_hidden_layers=3 * k, num_attention_heads=4, intermediate_size=128 * k, vocab_size=200, num_labels=4,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    return TrainingJob(
        lambda: BertForSequenceClassification(config), _logits_loss, _tokens(int(batch), 32 * k, 200, "class"), _adam
    )


def gpt2(batch: str = "8", scale: str = "1") -> TrainingJob:
    """Its embedding and its head are one tied weight."""
    from transformers import GPT2Config, GPT2LMHeadModel

    k = int(scale)
    config = GPT2Config(
        n_embd=64 * k, n_layer=3 * k, n_head=4, vocab_size=200, n_positions=64 * k, bos_token_id=0, eos_token_id=0, resid_pdrop=0.0, embd_pdrop=0.0,
        attn_pdrop=0.0, use_cache=False,
    )  # fmt: skip
    return TrainingJob(
        lambda: GPT2LMHeadModel(config), _next_token_loss, _tokens(int(batch), 32 * k, 200, "next"), _sgd
    )


def long_skip(batch: str = "8", scale: str = "1") -> TrainingJob:
    return TrainingJob(lambda: LongSkip(12 * int(scale)), F.cross_entropy, _images(int(batch), 16, 10), _sgd)


class Bag(nn.Module):
    """An embedding with sparse gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(20, 8, sparse=True)
        self.head = nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.words(x).mean(1))  # type: ignore[no-any-return]


def sparse(batch: str = "8") -> TrainingJob:
    def batches(epoch: int) -> Iterator[Batch]:
        g = torch.Generator().manual_seed(epoch)
        for _ in range(8):
            yield torch.randint(0, 20, (int(batch), 4), generator=g), torch.randint(0, 10, (int(batch),), generator=g)

    return TrainingJob(Bag, F.cross_entropy, batches, lambda parameters: torch.optim.SGD(parameters, lr=0.05))


def two_inputs(batch: str = "8") -> TrainingJob:
    size = int(batch)

    def batches(epoch: int) -> Iterator[Batch]:
        g = torch.Generator().manual_seed(3000 + epoch)
        for start in range(0, SAMPLES, size):
            n = min(size, SAMPLES - start)
            yield (
                (torch.randn(n, 16, generator=g), torch.randn(n, 8, generator=g)),
                torch.randint(0, 4, (n,), generator=g),
            )

    return TrainingJob(
        TwoInputs,
        F.cross_entropy,
        batches,
        _adam,
        scheduler=lambda o: torch.optim.lr_scheduler.StepLR(o, step_size=3, gamma=0.5),
    )


def noting_autocast(note: str = "") -> TrainingJob:
    """Its loss adds a line to the file `note`: the type of what it is given."""

    def loss(output: Tensor, target: Tensor) -> Tensor:
        with open(note, "a") as file:
            print(output.dtype, file=file)
        return F.cross_entropy(output, target)

    def batches(epoch: int) -> Iterator[Batch]:
        g = torch.Generator().manual_seed(4000 + epoch)
        for _ in range(SAMPLES // 8):
            yield torch.randn(8, 16, generator=g), torch.randint(0, 4, (8,), generator=g)

    return TrainingJob(lambda: nn.Linear(16, 4), loss, batches, _adam, autocast=torch.bfloat16)
