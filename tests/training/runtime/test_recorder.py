"""The probe is read for a hundredth of a run's time, and alike whatever the steps last."""

from __future__ import annotations

import math

import pytest
import torch

from partita.nouns.probe import AT_ONCE, Probe, ProbePiece
from partita.training.runtime import recorder

PROBE = Probe((ProbePiece("calls", (1,), 1.0, 1e-3),))


@pytest.mark.parametrize("step_s", [1e-3, 0.05, 0.7, 20.0])
def test_readings_take_a_hundredth_of_the_time(step_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []
    monkeypatch.setattr(recorder.Prober, "read", lambda self, times=1: taken.append(times) or (1e-3,))
    noted = recorder.Recorder(PROBE, torch.device("cpu"))
    taken.clear()  # a prober warms up
    for _ in range(1000):
        noted.after(step_s, 0.9)
    spent = sum(taken) * PROBE.seconds
    assert set(taken) == {AT_ONCE}
    assert spent <= 0.01 * 1000 * step_s + AT_ONCE * PROBE.seconds + 1e-9
    assert len(taken) >= min(1000, 0.9 * 0.01 * 1000 * step_s / (AT_ONCE * PROBE.seconds))
    rows = noted.rows()
    assert rows.shape == (1000, 2)
    assert float(rows[0, 1]) == pytest.approx(1e-3)
    assert math.isnan(float(rows[1, 1])) == (step_s < 0.3)
