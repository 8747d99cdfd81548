"""What the interpreter's instructions cost: something, and little."""

import pytest
import torch

from partita.training.measure.instructions import call_costs


@pytest.mark.parametrize("job_bytes", [0.0, 4e6])
def test_calls_cost_microseconds(job_bytes: float) -> None:
    cost = call_costs(torch.device("cpu"), job_bytes, repeats=8)
    assert 0 < cost.instruction_s < 5e-3
    assert 0 <= cost.around_s < 5e-3
    assert 0 < cost.step_s < 2e-2
