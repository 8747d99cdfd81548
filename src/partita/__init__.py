"""Partita: measure a deep-learning job and the machines, find a provably good split, run it, and keep it fast."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from partita.training.job import TrainingJob as TrainingJob

__version__ = "0.1.0"
__all__ = ["TrainingJob", "__version__"]


def __getattr__(name: str) -> Any:
    """`partita.TrainingJob`, fetched when first used: planning must not wait for torch."""
    if name == "TrainingJob":
        return importlib.import_module("partita.training.job").TrainingJob
    raise AttributeError(f"module 'partita' has no attribute {name!r}")
