"""The probe is read for a hundredth of a run's time, every piece in its turn."""

from __future__ import annotations

import math
from typing import cast

import numpy as np
import pytest

from partita.nouns.probe import Probe, ProbePiece
from partita.training.probing import Prober
from partita.training.runtime.recorder import Recorder

PROBE = Probe((ProbePiece(("a",), 1e-3), ProbePiece(("b",), 2e-3)), 1)


class Counting:
    """Stands in for a prober: as long as measured, one piece after the other, beside what does not count."""

    def __init__(self, calls: float = 1.0) -> None:
        self.each_s = calls * PROBE.seconds / 2
        self.taken: list[int] = []
        self.spent_s = 0.0

    def takes_s(self, times: int) -> float:
        return (times + 4 / 3) * self.each_s if times else 0.0

    def read(self, times: int) -> np.ndarray:
        found = np.full(2, math.nan)
        self.spent_s += self.takes_s(times)
        for _ in range(times):
            i = len(self.taken) % 2
            found[i] = PROBE.pieces[i].seconds
            self.taken.append(i)
        return found


@pytest.mark.parametrize("calls", [1.0, 1.5, 2.0])
@pytest.mark.parametrize("step_s", [1e-3, 0.05, 0.7, 20.0])
def test_readings_take_a_hundredth_of_the_time(step_s: float, calls: float) -> None:
    prober = Counting(calls)
    noted = Recorder(PROBE, cast(Prober, prober), 1000)
    for _ in range(1000):
        noted.after(step_s, 0.9, 0.7)
    assert prober.spent_s <= 0.01 * 1000 * step_s + 6 * prober.takes_s(1) + 1e-9  # six are lent
    assert len(prober.taken) >= min(1000, 0.9 * 0.01 * 1000 * step_s / prober.takes_s(1))
    rows = noted.rows()
    assert rows.shape == (1000, 4)
    assert float(rows[0, 2]) == pytest.approx(1e-3)
    assert math.isnan(float(rows[1, 2])) == (step_s < 0.1)


def test_a_short_run_reads_every_piece_over_all_of_it() -> None:
    """And not at its beginning, as long as there are steps for it."""
    pieces = tuple(ProbePiece((str(i),), 1e-3) for i in range(12))

    def read_after(steps: int | None) -> list[int]:
        prober = Counting()
        noted, seen = Recorder(Probe(pieces, 1), cast(Prober, prober), steps), [0]
        for _ in range(steps or 12):
            noted.after(1e-4, 1.0, 0.7)
            seen.append(len(prober.taken))
        return np.diff(seen).tolist()

    assert read_after(12) == read_after(None) == [1] * 12
    assert read_after(6) == [2] * 6
    assert read_after(24) == [1, 0] * 12
    assert read_after(2) == [4, 4]


@pytest.mark.parametrize("steps", [6, 10, 60, 600])
def test_a_short_run_with_one_piece_reads_it_more_than_once_and_over_all_of_it(steps: int) -> None:
    prober = Counting()
    noted, seen = Recorder(Probe(PROBE.pieces[:1], 1), cast(Prober, prober), steps), list[int]()
    for step in range(steps):
        before = len(prober.taken)
        noted.after(1e-4, 1.0, 0.7)
        seen += [step] * (len(prober.taken) - before)
    assert len(seen) == 6
    assert np.diff(seen).max() <= math.ceil(steps / 6)
    assert seen[-1] >= steps * 5 // 6 - 1


def test_what_is_lent_to_a_long_run_is_read_at_its_beginning() -> None:
    prober = Counting(1e6)  # nothing is ever saved up
    noted = Recorder(Probe(PROBE.pieces[:1], 1), cast(Prober, prober), 100_000)
    for _ in range(100):
        noted.after(1.0, 1.0, 0.7)
    assert len(prober.taken) == 6


def test_what_belongs_to_another_plan_is_forgotten_and_it_begins_again() -> None:
    """Also where too little of the run is left to save up for a reading."""
    noted = Recorder(PROBE, cast(Prober, Counting()), None)
    for _ in range(20):
        noted.after(1e-3, 0.5, 0.7)
    noted.forget()
    for _ in range(3):
        noted.after(1e-3, 0.9, 0.7)
    rows = noted.rows()
    assert rows[:, 0].tolist() == [0.9] * 3
    assert np.isfinite(rows[:, 2:].numpy()).any(axis=0).all()


def test_what_another_plan_computed_is_not_compared_with_what_this_one_does() -> None:
    noted = Recorder(PROBE, cast(Prober, Counting()), None)
    noted.after(1e-3, 0.5, 0.7)
    noted.compute_otherwise()
    noted.after(1e-3, 0.6, 0.5)  # the first by a plan is slow
    noted.after(1e-3, 0.6, 0.2)
    rows = noted.rows().numpy()
    assert rows[:, 0].tolist() == [0.5, 0.6, 0.6]
    np.testing.assert_array_equal(rows[:, 1], [math.nan, math.nan, 0.2])
    assert np.isfinite(rows[:, 2:]).any(axis=1).all()


def test_without_steps_there_are_no_rows() -> None:
    assert Recorder(PROBE, cast(Prober, Counting()), None).rows().shape == (0, 4)
