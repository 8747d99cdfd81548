"""Explore and choose: many configurations of a pipeline as one job (docs/concepts/dataflow.md)."""

from partita.dataflow.flow import Step, Value, choose, explore, gather, step
from partita.dataflow.graph import FlowGraph, unfold
from partita.dataflow.run.launch import run_flow
from partita.dataflow.select import at_least, at_most, first_over, first_under, halving, largest, smallest, top
from partita.errors import FlowError

__all__ = [
    "FlowError",
    "FlowGraph",
    "Step",
    "Value",
    "at_least",
    "at_most",
    "choose",
    "explore",
    "first_over",
    "first_under",
    "gather",
    "halving",
    "largest",
    "run_flow",
    "smallest",
    "step",
    "top",
    "unfold",
]
