"""What the interpreter's instructions cost: something, and little."""

import torch

from partita.training.measure.instructions import call_costs


def test_calls_cost_microseconds() -> None:
    cost = call_costs(torch.device("cpu"), repeats=8)
    assert 0 < cost.instruction_s < 5e-3
    assert 0 <= cost.around_s < 5e-3
    assert 0 < cost.step_s < 2e-2
