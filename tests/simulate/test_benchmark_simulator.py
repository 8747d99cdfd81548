"""The simulator's benchmark measures what it says, here on sizes that take a moment."""

from __future__ import annotations

import json
import sys
from types import ModuleType

import numpy as np
import pytest
from benchmark_scripts import loaded

from partita.nouns.program import Op
from partita.simulate.simulator import Simulator, times


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    return loaded("simulator")


def test_the_small_program_is_300_tasks_on_four_devices_with_transfers(benchmark: ModuleType) -> None:
    program, d = benchmark.small_program()
    assert program.devices == 4
    assert int((program.op == Op.COMPUTE).sum()) == 300
    assert int((program.op == Op.SEND).sum()) == int((program.op == Op.RECV).sum()) > 100
    assert Simulator(program).evaluate(d.busy_s, d.lag_s) == pytest.approx(times(program, d)[1].max(), rel=1e-12)


def test_the_large_program_has_the_size_asked_for(benchmark: ModuleType) -> None:
    program, costed = benchmark.large_pipeline(5000)
    assert 5000 <= len(program) < 5100
    assert np.isfinite(times(program, costed())[1]).all()


def test_it_prints_one_json_object(
    benchmark: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    small, million = benchmark.small, benchmark.million
    monkeypatch.setattr(benchmark, "small", lambda: small(64, 8))
    monkeypatch.setattr(benchmark, "million", lambda: million(5000))
    monkeypatch.setattr(sys, "argv", ["simulator.py", "--repeats", "3", "--json"])
    assert benchmark.main() == 0
    found = json.loads(capsys.readouterr().out)
    assert {"small_us", "million_ms", "machine", "numba", "load", "cpu_s", "repeats"} <= set(found)
    assert set(found["verdicts"]) == {"small_us", "million_ms"}
    assert all(len(s["wall_s"]) == 3 for s in found["samples"].values())
    for name in ("small_us", "million_ms"):
        low, high = found[f"{name}_range"]
        assert 0 < low <= found[name] <= high
    assert "median" in benchmark.readable(found)
