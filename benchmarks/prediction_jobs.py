"""Four transformers models built from configs, at sizes whose training step takes a few tenths of a second on one core."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from partita.training.job import Batch, TrainingJob

BATCH = 16


def _endless(make: Callable[[torch.Generator], Batch]) -> Callable[[int], Iterable[Batch]]:
    """64 random batches an epoch, the same in every process."""

    def batches(epoch: int) -> Iterator[Batch]:
        generator = torch.Generator().manual_seed(epoch)
        for _ in range(64):
            yield make(generator)

    return batches


def _images(size: int) -> Callable[[int], Iterable[Batch]]:
    return _endless(
        lambda g: (torch.randn(BATCH, 3, size, size, generator=g), torch.randint(0, 10, (BATCH,), generator=g))
    )


def _tokens(length: int, vocabulary: int, classes: int | None) -> Callable[[int], Iterable[Batch]]:
    def make(g: torch.Generator) -> Batch:
        ids = torch.randint(0, vocabulary, (BATCH, length), generator=g)
        return {"input_ids": ids}, ids if classes is None else torch.randint(0, classes, (BATCH,), generator=g)

    return _endless(make)


def _sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.01, momentum=0.9)


def _loss(output: Any, target: Tensor) -> Tensor:
    return F.cross_entropy(output.logits, target)


def _next_token(output: Any, target: Tensor) -> Tensor:
    logits = output.logits[:, :-1]
    return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), target[:, 1:].reshape(-1))


def resnet() -> TrainingJob:
    from transformers import ResNetConfig, ResNetForImageClassification

    config = ResNetConfig(
        depths=[2, 2, 2, 2], hidden_sizes=[32, 64, 128, 256], layer_type="basic", embedding_size=32, num_labels=10
    )
    return TrainingJob(lambda: ResNetForImageClassification(config), _loss, _images(128), _sgd)


def vit() -> TrainingJob:
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=192, num_hidden_layers=6, num_attention_heads=3, intermediate_size=768, image_size=96, patch_size=8, num_labels=10,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    return TrainingJob(lambda: ViTForImageClassification(config), _loss, _images(96), _sgd)


def bert() -> TrainingJob:
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        hidden_size=256, num_hidden_layers=6, num_attention_heads=4, intermediate_size=1024, vocab_size=4000, num_labels=4,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    return TrainingJob(lambda: BertForSequenceClassification(config), _loss, _tokens(96, 4000, 4), _sgd)


def gpt2() -> TrainingJob:
    """Its embedding and its head are one tied weight, shared by the first and the last stage."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        n_embd=256, n_layer=6, n_head=4, vocab_size=4000, n_positions=128, bos_token_id=0, eos_token_id=0, resid_pdrop=0.0, embd_pdrop=0.0,
        attn_pdrop=0.0, use_cache=False,
    )  # fmt: skip
    return TrainingJob(lambda: GPT2LMHeadModel(config), _next_token, _tokens(96, 4000, None), _sgd)
