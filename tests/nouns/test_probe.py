"""Probe and Readings: speeds from seconds and shares of a core, files that are damaged."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from partita.errors import BadInput
from partita.nouns.probe import Probe, ProbePiece, Readings, middle_mean, per_work

PROBE = Probe((ProbePiece(("conv",), 1e-3), ProbePiece(("norm", "relu"), 2e-3)), 4, core_share=0.9)
SAME = [1e-3, 2e-3]


def readings(piece_s: object, core_share: object, worked_s: object = None) -> Readings:
    """Nobody knows how long it computed, or `worked_s`."""
    pieces, share = np.array(piece_s, float), np.array(core_share, float)
    worked = np.full_like(share, np.nan) if worked_s is None else np.array(worked_s, float)
    return Readings(tuple(f"cpu{d}" for d in range(len(share))), pieces, share, worked)


def test_the_same_readings_mean_the_same_speed() -> None:
    assert PROBE.speed(PROBE.slowness(np.array([SAME])), np.array([0.9])) == pytest.approx([1.0])


def test_half_of_the_core_is_half_the_speed() -> None:
    assert PROBE.speed(PROBE.slowness(np.array([SAME])), np.array([0.45])) == pytest.approx([0.5])


def test_every_piece_counts_alike_where_it_was_read() -> None:
    rows = np.array([[2e-3, 2e-3], [1e-3, math.nan], [math.nan, 6e-3], [math.nan, math.nan]])
    assert PROBE.slowness(rows) == pytest.approx([1.5, 1.0, 3.0, math.nan], nan_ok=True)


NOTHING = [math.nan] * 2


def test_where_nobody_knows_how_long_it_computed_all_steps_go_by_all_readings() -> None:
    told = readings([[SAME, NOTHING, [3e-3, 6e-3]]], [[0.9, 0.9, 0.45]])
    assert told.speeds(PROBE)[0] == pytest.approx([0.5, 0.5, 0.25])


def test_steps_without_a_reading_go_by_what_they_computed_beside_those_that_were_read() -> None:
    """What a step computes says which was slow; how slow all of them were say the readings."""
    told = readings([[SAME, NOTHING, NOTHING, NOTHING]], [[0.9] * 4], [[7.0, 14.0, 7.0, 3.5]])
    assert told.speeds(PROBE)[0] == pytest.approx([1.0, 0.5, 1.0, 2.0])
    slower = replace(told, piece_s=1.25 * told.piece_s)
    assert slower.speeds(PROBE)[0] == pytest.approx([0.8, 0.4, 0.8, 1.6])


def test_a_job_that_takes_longer_than_foreseen_makes_no_device_slower() -> None:
    """Then nothing would be left to be wrong."""
    told = readings([[SAME, NOTHING, SAME]], [[0.9] * 3], [[1.0, 2.0, 1.0]])
    assert replace(told, worked_s=3 * told.worked_s).speeds(PROBE) == pytest.approx(told.speeds(PROBE))


def test_readings_of_slow_steps_only_do_not_make_all_of_a_run_slow() -> None:
    slow = [2e-3, 4e-3]
    told = readings([[slow, NOTHING, slow, NOTHING, NOTHING]], [[0.9] * 5], [[2.0, 1.0, 2.0, 1.0, 1.0]])
    assert told.speeds(PROBE)[0] == pytest.approx([0.5, 1.0, 0.5, 1.0, 1.0])


def test_a_step_with_less_to_do_is_taken_as_the_others() -> None:
    told = readings([[SAME, SAME, SAME]], [[0.9] * 3], [[4.0, math.nan, 4.0]])
    assert told.speeds(PROBE)[0] == pytest.approx([1.0] * 3)


def test_one_reading_beside_all_others_does_not_move_the_pace() -> None:
    work = np.linspace(1.0, 2.0, 20)
    told = 3 * work
    told[7] *= 100
    assert per_work(told, work) == pytest.approx(3.0)
    assert math.isnan(per_work(told[:0], work[:0]))


def test_a_device_that_was_never_read_has_no_speed() -> None:
    told = readings([[SAME] * 2, [[math.nan] * 2] * 2], [[0.9, 0.9], [0.9, 0.9]])
    speeds = told.speeds(PROBE)
    assert speeds[0] == pytest.approx([1.0, 1.0])
    assert np.isnan(speeds[1]).all()


def test_a_device_that_computed_nothing_in_a_step_is_taken_as_in_its_others() -> None:
    told = readings([[SAME] * 3], [[0.9, math.nan, 0.9]])
    assert told.speeds(PROBE) == pytest.approx(np.array([[1.0, 1.0, 1.0]]))


def test_what_a_core_is_shared_by_varies_as_well() -> None:
    """A process beside it that comes and goes takes time of the core, and no CPU time of the pieces."""
    told = readings([[SAME] * 4], [[1.0, 0.2, 1.0, math.nan]])
    assert told.spread(PROBE) == pytest.approx(np.std([1.0, 0.2, 1.0]) / np.mean([1.0, 0.2, 1.0]))


def test_warm_up_leaves_its_readings_to_the_first_step_that_counts() -> None:
    told = readings([[SAME, [3e-3, 6e-3], NOTHING, NOTHING]], [[0.1, 0.2, 0.3, 0.4]]).since(2)
    assert told.core_share.tolist() == [[0.3, 0.4]]
    assert told.piece_s[0, 0] == pytest.approx([2e-3, 4e-3])
    assert np.isnan(told.piece_s[0, 1]).all()


@pytest.mark.parametrize("warm_up_s", [1.0, 2.0, 40.0])
def test_what_was_read_in_warm_up_counts_and_how_long_its_steps_took_does_not(warm_up_s: float) -> None:
    """First calls take long, and the pieces have had theirs."""
    told = readings([[NOTHING, [3e-3, 6e-3], NOTHING, NOTHING]], [[0.9] * 4], [[warm_up_s, warm_up_s, 1.0, 2.0]])
    assert told.since(2).speeds(PROBE)[0] == pytest.approx([1 / 2, 1 / 4])
    both = readings([[NOTHING, [3e-3, 6e-3], [2e-3, 4e-3], NOTHING]], [[0.9] * 4], [[warm_up_s, warm_up_s, 1.0, 2.0]])
    assert both.since(2).speeds(PROBE)[0] == pytest.approx([1 / 2, 1 / 4])


@pytest.mark.parametrize("pieces", [1, 4])
def test_single_readings_have_their_own_spread_however_many_stand_in_a_row(pieces: int) -> None:
    """A row of four is no reading with half the scatter."""
    probe = Probe(tuple(ProbePiece((str(i),), 1e-3) for i in range(pieces)), 4)
    told = np.random.default_rng(0).normal(1.0, 0.2, (2, 400 // pieces, pieces)) * 1e-3
    told[1] = 1e-3  # the other device does not scatter
    found = Readings(("cpu0", "cpu1"), told, *2 * (np.ones(told.shape[:2]),))
    assert found.spread(probe) == pytest.approx(0.2, rel=0.1)
    assert found.error(probe) == pytest.approx(1.645 * 0.2 / math.sqrt(400), rel=0.1)


@pytest.mark.parametrize("readings", [1, 2, 3, 6, 30])
def test_the_interval_of_a_few_readings_holds_as_often_as_that_of_many(readings: int) -> None:
    """With what the measurement knows of their scatter; nine times in ten."""
    lots = np.random.default_rng(readings)
    probe = Probe((ProbePiece(("all",), 1e-3),), 4, spread=0.1)
    held = []
    for told in lots.normal(1.0, 0.1, (2000, readings)):
        found = Readings(("cpu0",), 1e-3 * told.reshape(1, -1, 1), *2 * (np.ones((1, readings)),))
        held.append(abs(told.mean() - 1.0) <= found.error(probe))
    assert 0.88 < np.mean(held) < 0.99


def test_one_outlier_does_not_move_the_mean_of_the_middle() -> None:
    assert middle_mean(np.array([1.0] * 19 + [100.0])) == pytest.approx(1.0)
    assert middle_mean(np.array([1.0, 3.0])) == pytest.approx(2.0)
    assert math.isnan(middle_mean(np.array([])))


def test_files_give_back_what_was_written(tmp_path: Path) -> None:
    told = readings([[SAME, NOTHING]], [[0.9, math.nan]], [[0.1, math.nan]])
    again = Readings.read(told.write(tmp_path / "readings.json"))
    np.testing.assert_array_equal(again.piece_s, told.piece_s)
    np.testing.assert_array_equal(again.core_share, told.core_share)
    np.testing.assert_array_equal(again.worked_s, told.worked_s)
    assert Probe.from_json(PROBE.to_json(), "it") == PROBE
    assert Probe.from_json(None, "it") is None


@pytest.mark.parametrize(
    "part",
    [
        {"piece_s": [[[1.0]]], "core_share": [[1.0, 1.0]]},
        {"core_share": "x"},
        {"devices": []},
        {"core_share": [[0.0]]},
        {"core_share": [[1.1]]},
        {"worked_s": [[0.0]]},
        {"worked_s": [[1.0, 1.0]]},
        {"core_share": [["0.9"]]},
        {"worked_s": [[True]]},
        {"devices": "a"},
        {"devices": [None]},
        {"devices": [["a"]]},
        *({"each": each} for each in (0, -1, True, 2.0, "2", math.inf, 1 << 41)),
    ],
)
def test_damaged_readings_are_refused(part: dict[str, object]) -> None:
    value = readings([[SAME]], [[0.9]]).to_json()
    assert Readings.from_json({**value, "each": 1 << 40}).each == 1 << 40
    with pytest.raises(BadInput):
        Readings.from_json({**value, **part})


def test_a_run_from_before_computations_were_noted_is_read() -> None:
    value = readings([[SAME] * 2], [[0.9] * 2]).to_json()
    del value["worked_s"]
    assert Readings.from_json(value).speeds(PROBE)[0] == pytest.approx([1.0, 1.0])


def test_a_device_s_readings_stand_once() -> None:
    value = readings([[SAME], [SAME]], [[0.9], [0.9]]).to_json()
    with pytest.raises(BadInput, match="named twice"):
        Readings.from_json({**value, "devices": ["cpu0", "cpu0"]})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"pieces": []}, "no pieces"),
        ({"core_share": 0}, "core_share is 0"),
        ({"core_share": 1e9}, "core_share is 1000000000"),
        ({"alone": -1.0}, "alone is -1"),
        ({"alone": 1e300}, "alone is 1e"),
        ({"spread": 1e300}, "spread is 1e"),
        ({"pieces": [{"tasks": ["a"], "seconds": 1e-300}]}, "takes 1e-300"),
        ({"micro_batch_size": 0}, "micro_batch_size is 0"),
        ({"pieces": [{"tasks": [], "seconds": 1e-3}]}, "no tasks"),
        ({"pieces": [{"tasks": ["a"], "seconds": 0.0}]}, "takes 0"),
        ({"pieces": [{"tasks": ["a"], "seconds": 1e-3, "runs": 31}]}, "runs 31 times"),
        ({"pieces": [{"tasks": ["a"], "seconds": 1e-3, "runs": 2}] * 2}, "that has no other runs more than once"),
        ({"pieces": [{"kind": "calls", "sizes": [1], "share": 1.0, "seconds": 1e-3}]}, "tasks"),
    ],
)
def test_impossible_probes_are_refused(change: dict[str, object], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        Probe.from_json({**PROBE.to_json(), **change}, "it")
