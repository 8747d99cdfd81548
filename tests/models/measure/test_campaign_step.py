"""Data-parallel training is training: the mean of two workers' gradients is the gradient of the joined batch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from partita.models.measure.crew import environment, installed
from partita.models.measure.networks import FRAMEWORKS

pytest.importorskip("keras")

WORKER = """
import sys
from dataclasses import replace
import numpy as np
from partita.models.measure.networks import Configuration, build_model, size_of
from partita.models.measure.step import build_step
from partita.models.measure.worker import _join

framework, rank, folder = sys.argv[1], int(sys.argv[2]), sys.argv[3]
spec = {"workers": 2, "rank": rank, "rendezvous": f"file://{folder}/rendezvous", "timeout_s": 60}
average = _join(spec)
for network, activation, optimizer, kernel in (("cnn", "relu", "adam", 3), ("autoencoder", "tanh", "rmsprop", 1), ("mlp", "gelu", "momentum", 1)):
    two = Configuration(network, framework, 2, 8, kernel, 4, 8, activation, optimizer, 2)
    one = replace(two, workers=1, batch=8)
    assert build_model(one).count_params() == size_of(one).parameters
    shared, alone = build_step(two, rank), build_step(one, 0)
    for _ in range(3):  # also after updates
        ours = average(shared.flat(shared.gradients())).copy()
        gradients = alone.gradients()
        joined = np.array(alone.flat(gradients))
        assert np.abs(ours - joined).max() <= 1e-5 * max(1.0, np.abs(joined).max()), (network, np.abs(ours - joined).max())
        assert np.abs(joined).max() > 0
        shared.take(average)
        alone.update(alone.parts(joined))
print("equal")
"""


@pytest.mark.parametrize("framework", installed(FRAMEWORKS))
def test_two_workers_gradients_equal_the_joined_batchs(framework: str, tmp_path: Path) -> None:
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, framework, str(rank), str(tmp_path)],
            env={**os.environ, **environment(framework)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        said = [w.communicate(timeout=120) for w in workers]
    finally:
        for w in workers:
            w.kill()
    assert [out.strip() for out, _ in said] == ["equal", "equal"], said[0][1][-2000:] + said[1][1][-2000:]
