"""What a stage costs beside its tasks: something, and little."""

import pytest
import torch

from partita.training.measure.instructions import instruction_s


@pytest.mark.parametrize("job_bytes", [0.0, 4e6])
def test_calls_cost_microseconds(job_bytes: float) -> None:
    assert 0 < instruction_s(torch.device("cpu"), job_bytes, repeats=8) < 5e-3
