"""Partita: measure a deep-learning job and the machines, find a provably good split, run it, and keep it fast."""

__version__ = "0.1.0"
