"""Speeds of devices from readings that scatter, on series whose truth is known."""

import numpy as np
import pytest

from partita.nouns.cluster import Device
from partita.nouns.probe import Probe, ProbePiece, Readings
from partita.training.measure.speeds import job_probe, relative_speed, unread, with_speeds

PIECES = (ProbePiece(("a",), 4e-3), ProbePiece(("b", "c"), 2e-3))


def series(seed: int, slower: float = 1.0, share: float = 1.0, n: int = 60, scatter: float = 0.15) -> np.ndarray:
    """[n, 3 + pieces] of a device over ten seconds, while the machine drifts by a third."""
    draw = np.random.default_rng(seed)
    moments = np.sort(draw.uniform(0, 10, n))
    drift = 1 + 0.3 * np.sin(moments / 3)
    pieces = np.array([4e-3, 2e-3]) * slower * drift[:, None] * np.exp(scatter * draw.standard_normal((n, 2)))
    pieces[np.arange(n), np.arange(n) % 2] = np.nan  # one of them at a time
    step_s = 0.05 * slower * drift
    return np.column_stack([moments, step_s, step_s / share, pieces])


def own(seed: int) -> np.ndarray:
    return series(seed)[:, [0, 3, 4]]


def probe_of(mine: np.ndarray, core_share: float) -> Probe:
    return job_probe(PIECES, 4, mine, np.ones(len(mine)), core_share)


@pytest.mark.parametrize("seed", range(20))
def test_equal_devices_are_called_equal_or_nearly(seed: int) -> None:
    mine = own(seed)
    speed = relative_speed(probe_of(mine, 1.0), mine, series(100 + seed))
    assert speed == 1.0 or speed == pytest.approx(1.0, abs=0.08)


def test_most_equal_devices_are_called_exactly_equal() -> None:
    found = [relative_speed(probe_of(own(s), 1.0), own(s), series(100 + s)) for s in range(100)]
    assert sum(f == 1.0 for f in found) >= 75


@pytest.mark.parametrize(("slower", "share"), [(1.4, 1.0), (1.0, 0.7), (1.2, 0.8), (0.8, 1.0)])
def test_a_slower_device_is_found_with_its_speed(slower: float, share: float) -> None:
    found = [relative_speed(probe_of(own(s), 1.0), own(s), series(100 + s, slower, share)) for s in range(20)]
    assert found == pytest.approx([share / slower] * 20, rel=0.12)


def test_what_the_measuring_process_lost_of_its_core_counts() -> None:
    mine = own(1)
    speed = relative_speed(probe_of(mine, 0.5), mine, series(101))
    assert speed == pytest.approx(2.0, rel=0.1)


def test_readings_of_other_times_say_nothing() -> None:
    mine, later = own(1), series(101)
    later[:, 0] += 100
    assert relative_speed(probe_of(mine, 1.0), mine, later) == 1.0


def test_devices_on_one_core_have_one_speed() -> None:
    devices = [
        Device("cpu0", cores=(0,)),
        Device("cpu1", cores=(1,)),
        Device("cpu2", cores=(0,)),
        Device("cpu3", cores=(1,)),
    ]
    mine = own(1)
    found = with_speeds(devices, probe_of(mine, 1.0), mine, {"cpu1": series(2, 2.0)})
    speeds = {d.name: d.speed for d in found}
    assert speeds["cpu1"] == speeds["cpu3"] == pytest.approx(0.5, rel=0.1)
    assert speeds["cpu0"] == speeds["cpu2"] == 1.0


def test_devices_that_nobody_read_are_named() -> None:
    devices = [
        Device("cpu0", cores=(0,)),
        Device("cpu1", cores=(1,)),
        Device("cpu2", cores=(0,)),
        Device("gpu", "cuda"),
    ]
    assert unread(devices, {"cpu1": series(2)}) == ("gpu",)
    assert unread(devices, {"cpu1": series(2)[:0]}) == ("cpu1", "gpu")


def test_the_device_that_was_measured_has_its_own_speed_however_its_readings_scatter() -> None:
    """Some readings take much longer than the others; a run's mean must not lie below measuring's for it."""
    found, pieces = [], [ProbePiece((str(i),), 1e-3) for i in range(12)]
    for seed in range(100):
        draw = np.random.default_rng(seed)
        turn = np.arange(400) % 12
        rows = np.full((400, 12), np.nan)
        rows[np.arange(400), turn] = np.linspace(1e-3, 4e-3, 12)[turn] * np.exp(0.5 * draw.exponential(0.5, 400))
        own = np.column_stack([np.arange(48.0), rows[:48]])
        run = Readings(("cpu0",), rows[None, 48:], *2 * (np.ones((1, 352)),))
        found.append(float(np.mean(run.speeds(job_probe(pieces, 1, own, np.ones(48), 1.0)))))
    assert np.mean(found) == pytest.approx(1.0, abs=0.015)


@pytest.mark.parametrize("pieces", [1, 12])
@pytest.mark.parametrize("slow", [1.3, 1.5, 2.0])
def test_a_device_of_two_kinds_is_as_fast_as_it_was_when_most_of_its_steps_are_as_they_were(
    pieces: int, slow: float
) -> None:
    """It is slow for three readings and steps of ten, whenever: a step with its readings is of one kind. Speed 1 is that of the mean."""
    found = []
    for seed in range(40):
        draw = np.random.default_rng(seed)
        kind = np.where(np.repeat(draw.random(200) < 0.3, 3), slow, 1.0)
        rows = np.full((600, pieces), np.nan)
        rows[np.arange(600), np.arange(600) % pieces] = 1e-3 * kind * np.exp(0.1 * draw.standard_normal(600))
        probe = job_probe(
            [ProbePiece((str(i),), 1e-3) for i in range(pieces)], 1,
            np.column_stack([np.arange(120.0), rows[:120]]), kind[:120] / kind[:120].mean(), 1.0,
        )  # fmt: skip
        run = Readings(("cpu0",), rows[None, 120:], np.ones((1, 480)), kind[None, 120:])
        found.append(float(np.median(run.speeds(probe))) / kind[:120].mean())
    assert found == pytest.approx([1.0] * 40, rel=0.08)
    assert np.median(found) == pytest.approx(1.0, abs=0.02)


def test_a_device_that_slows_down_as_its_work_does_is_known_by_few_readings() -> None:
    """The machine is another for seconds at a time, in measuring and in the run; what is read tells how much, and not when."""
    errors = []
    for seed in range(60):
        draw = np.random.default_rng(seed)
        state = np.exp(0.3 * np.repeat(draw.standard_normal(40), 5))
        rows = 1e-3 * state[:, None] * np.exp(0.1 * draw.standard_normal((200, 1)))
        measured = state[:60] / state[:60].mean()
        probe = job_probe([ProbePiece(("all",), 1e-3)], 1, np.column_stack([np.arange(60.0), rows[:60]]), measured, 1.0)
        told = np.where(np.arange(140)[:, None] % 12 == 0, rows[60:], np.nan)
        run = Readings(("cpu0",), told[None], np.ones((1, 140)), state[None, 60:])
        true = state[:60].mean() / state[60:]
        errors.append(np.log(float(np.median(run.speeds(probe))) / np.median(true)))
    assert np.std(errors) < 0.05
