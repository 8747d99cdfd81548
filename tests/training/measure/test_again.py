"""Speeds taken again before a run: of every device of the plan, or it is said of which not."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest
from pipeline.plan.planning_worlds import chain_profile

from partita.nouns.cluster import Cluster, Device
from partita.nouns.graph import FloatArray
from partita.nouns.probe import Probe, ProbePiece
from partita.pipeline.plan.planner import plan_pipeline
from partita.training.measure import again
from partita.training.measure.again import speeds_now


class Companions:
    """Who writes a line every tenth of a second, of readings that take this many times as long as in measuring."""

    def __init__(self, slowness: dict[str, float]) -> None:
        self.logs, self._slowness = dict.fromkeys(["cpu0", "cpu1"]), slowness

    def steps(self, device: str, _: float) -> FloatArray:
        if device not in self._slowness:
            return np.zeros((0, 4))
        return np.array([[0.1 * k, 0.1, 0.1, 1e-3 * self._slowness[device]] for k in range(20)])


def changes(monkeypatch: pytest.MonkeyPatch, devices: Sequence[Device], slowness: dict[str, float]) -> dict[str, float]:
    @contextlib.contextmanager
    def company(*_: object) -> Iterator[Companions]:
        yield Companions(slowness)

    monkeypatch.setattr(again, "company", company)
    monkeypatch.setattr(again, "_SECONDS", 0.0)
    problem = plan_pipeline(chain_profile(), stages=2, allow_replicas=False).problem
    problem = replace(problem, probe=Probe((ProbePiece(("t0",), 1e-3),), 1))
    cluster = Cluster(tuple(devices), (), problem.cluster.default_link)
    return {s.device: round(s.change, 6) for s in speeds_now(problem.on(cluster), "", {})}


def test_a_device_that_shares_its_core_has_changed_as_the_other_has(monkeypatch: pytest.MonkeyPatch) -> None:
    devices = [Device(f"cpu{k}", speed=1 + k, cores=(k % 2,)) for k in range(4)]
    assert changes(monkeypatch, devices, {"cpu0": 1.0, "cpu1": 2.0}) == {
        "cpu0": 1.0,
        "cpu1": 0.25,
        "cpu2": 1.0,
        "cpu3": 0.25,
    }


def test_a_device_of_which_nothing_was_read_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    devices = [Device("cpu0", cores=(0,)), Device("cpu1", cores=(1,)), Device("cuda:0", "cuda", cores=(0,))]
    devices.append(Device("far", host="elsewhere", cores=(0,)))
    assert changes(monkeypatch, devices, {"cpu0": 1.0}) == {"cpu0": 1.0}
