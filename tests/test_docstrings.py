"""The examples in the docstrings of the nouns, the schedules, lower and simulate do what they say."""

from __future__ import annotations

import doctest
import importlib

import pytest

MODULES = [
    "errors",
    "files",
    "graph",
    "cluster",
    "costs",
    "plan",
    "program",
    "timeline",
    "profile",
    "lower",
    "simulate",
    "kernel",
    "schedules",
    "schedules.gpipe",
    "schedules.one_forward_one_backward",
]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str) -> None:
    failed, _ = doctest.testmod(importlib.import_module(f"partita.{name}"))
    assert failed == 0


def test_there_are_examples() -> None:
    found = [doctest.testmod(importlib.import_module(f"partita.{name}")).attempted for name in MODULES]
    assert sum(map(bool, found)) >= 8
