"""The examples in the planners' docstrings do what they say."""

from __future__ import annotations

import doctest
import importlib

import pytest

MODULES = [
    "antichain", "antichain_dp", "blocks", "chain", "coarse", "contiguous", "contiguous_plan", "describe", "even", "latency",
    "linear", "linear_cut", "methods", "pipeline", "pipeline_task", "relaxation", "replicated", "single", "stage",
    "step_bound", "step_time", "throughput", "units", "what_if",
]  # fmt: skip


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str) -> None:
    failed, _ = doctest.testmod(importlib.import_module(f"partita.search.{name}"))
    assert failed == 0
