"""The probe is read for a hundredth of a run's time, every piece in its turn."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
from training.runtime.helpers import plan_file
from training.runtime.runs import losses, train

from partita.cli.run import UNREAD
from partita.nouns.pipeline_plan import PipelinePlan
from partita.nouns.pipeline_problem import PipelineProblem
from partita.nouns.probe import Probe, ProbePiece, Readings
from partita.simulate.schedules import needed_bytes
from partita.training.probing import Prober
from partita.training.runtime.recorder import Recorder
from partita.training.runtime.session import Session

PROBE = Probe((ProbePiece(("a",), 1e-3), ProbePiece(("b",), 2e-3)), 1)


class Counting:
    """Stands in for a prober: as long as measured, one piece after the other, beside what does not count."""

    def __init__(self, calls: float = 1.0, pieces: int = 2) -> None:
        self.pieces = pieces
        self.each_s = calls * PROBE.seconds / 2
        self.taken: list[int] = []
        self.spent_s = 0.0

    def takes_s(self, times: int) -> float:
        return (times + 4 / 3) * self.each_s if times else 0.0

    def read(self, times: int) -> np.ndarray:
        found = np.full(self.pieces, math.nan)
        self.spent_s += self.takes_s(times)
        for _ in range(times):
            i = len(self.taken) % self.pieces
            found[i] = (i + 1) * 1e-3
            self.taken.append(i)
        return found


def step(noted: Recorder, step_s: float, core_share: float, worked_s: float, *, waits: bool = False) -> None:
    meanwhile = noted.begin()
    if meanwhile and waits:
        meanwhile(math.inf)
    noted.after(step_s, core_share, worked_s)


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("calls", [1.0, 1.5, 2.0])
@pytest.mark.parametrize("step_s", [1e-3, 0.05, 0.7, 20.0])
def test_readings_take_a_hundredth_of_the_time(step_s: float, calls: float, waits: bool) -> None:
    prober = Counting(calls)
    noted = Recorder(PROBE, cast(Prober, prober), 1000)
    for _ in range(1000):
        step(noted, step_s, 0.9, 0.7, waits=waits)
    saved_s, lent_s = 0.01 * 1000 * step_s, 6 * prober.takes_s(1)
    most_s = saved_s + lent_s if waits else max(saved_s, lent_s)  # who waits anyway pays nothing back
    assert prober.spent_s <= most_s + 1e-9
    assert len(prober.taken) >= min(1000, 0.9 * saved_s / prober.takes_s(1))
    rows = noted.rows()
    assert rows.shape == (1000, 4)
    assert bool(rows[0, 2:].isnan().all())
    assert float(rows[1, 2]) == pytest.approx(1e-3)
    owes = (step_s, calls, waits) == (0.7, 2.0, False)  # what was lent in the second step is not paid back in the third
    assert bool(rows[2, 2:].isnan().all()) == (step_s < 0.1 or owes)


def test_a_short_run_reads_every_piece_over_all_of_it() -> None:
    """And not at its beginning, as long as there are steps for it; nor in the first, which is slow, where there is another."""
    pieces = tuple(ProbePiece((str(i),), 1e-3) for i in range(12))

    def read_after(steps: int | None) -> list[int]:
        prober = Counting(pieces=12)
        noted, seen = Recorder(Probe(pieces, 1), cast(Prober, prober), steps), [0]
        for _ in range(steps or 13):
            step(noted, 1e-4, 1.0, 0.7)
            seen.append(len(prober.taken))
        return np.diff(seen).tolist()

    assert read_after(13) == read_after(None) == [0] + [1] * 12
    assert read_after(7) == [0] + [2] * 6
    assert read_after(25) == [0] + [1, 0] * 12
    assert read_after(2) == [0, 2]
    assert read_after(1) == [2]


@pytest.mark.parametrize("steps", [6, 10, 60, 600])
def test_a_short_run_with_one_piece_reads_it_more_than_once_and_over_all_of_it(steps: int) -> None:
    prober = Counting(pieces=1)
    noted, seen = Recorder(Probe(PROBE.pieces[:1], 1), cast(Prober, prober), steps), list[int]()
    for k in range(steps):
        before = len(prober.taken)
        step(noted, 1e-4, 1.0, 0.7)
        seen += [k] * (len(prober.taken) - before)
    assert len(seen) == min(6, steps - 1)
    assert np.diff(seen).max() <= math.ceil(steps / 6)
    assert seen[0] == 1
    assert seen[-1] >= steps * 5 // 6 - 1


@pytest.mark.parametrize("steps", [11, 111])
def test_what_is_left_of_a_resumed_run_reads_every_piece(steps: int) -> None:
    prober = Counting(1e6, pieces=12)
    probe = Probe(tuple(ProbePiece((str(i),), 1e-3) for i in range(12)), 1)
    it = SimpleNamespace(probe=probe, engines={"it": 1}, _prober=lambda _: prober, spec=SimpleNamespace(steps=steps))
    noted = Session.recorder(cast(Session, it), "it", done=steps - 11)
    assert noted
    for _ in range(11):
        step(noted, 1e-3, 1.0, 0.7)
    assert prober.taken == [*range(12)]


def test_what_is_lent_to_a_long_run_is_read_at_its_beginning() -> None:
    prober = Counting(1e6, pieces=1)  # nothing is ever saved up
    noted = Recorder(Probe(PROBE.pieces[:1], 1), cast(Prober, prober), 100_000)
    for _ in range(100):
        step(noted, 1.0, 1.0, 0.7)
    assert len(prober.taken) == 6


def test_what_belongs_to_another_plan_is_forgotten_and_it_begins_again() -> None:
    """Also where too little of the run is left to save up for a reading."""
    noted = Recorder(PROBE, cast(Prober, Counting()), None)
    for _ in range(20):
        step(noted, 1e-3, 0.5, 0.7)
    noted.forget()
    for _ in range(3):
        step(noted, 1e-3, 0.9, 0.7)
    rows = noted.rows()
    assert rows[:, 0].tolist() == [0.9] * 3
    assert np.isfinite(rows[:, 2:].numpy()).any(axis=0).all()


def test_what_another_plan_computed_is_not_compared_with_what_this_one_does() -> None:
    noted = Recorder(PROBE, cast(Prober, Counting()), None)
    step(noted, 1e-3, 0.5, 0.7)
    noted.compute_otherwise()
    step(noted, 1e-3, 0.6, 0.5)  # the first by a plan is slow
    step(noted, 1e-3, 0.6, 0.2)
    rows = noted.rows().numpy()
    assert rows[:, 0].tolist() == [0.5, 0.6, 0.6]
    np.testing.assert_array_equal(rows[:, 1], [math.nan, math.nan, 0.2])
    assert np.isfinite(rows[:, 2:]).any(axis=1).tolist() == [False, False, True]


@pytest.mark.parametrize("waits", [True, False])
def test_what_is_lent_is_paid_back_but_by_a_rank_that_waits_anyway(waits: bool) -> None:
    prober = Counting()
    noted = Recorder(PROBE, cast(Prober, prober), 1000)
    for _ in range(2):
        step(noted, 0.0, 1.0, 0.7, waits=waits)
    assert len(prober.taken) == 1
    assert noted._saved_s == pytest.approx(0.0 if waits else -prober.takes_s(1))


def test_what_is_owed_is_owed_by_the_next_plan() -> None:
    prober = Counting()
    noted = Recorder(PROBE, cast(Prober, prober), None)
    for _ in range(50):
        noted.forget()
        for _ in range(8):
            step(noted, 0.01 * prober.takes_s(1), 1.0, 0.7)
    assert noted._saved_s < -100 * prober.takes_s(1)


def test_without_steps_there_are_no_rows() -> None:
    assert Recorder(PROBE, cast(Prober, Counting()), None).rows().shape == (0, 4)


def test_what_a_rank_reads_while_it_waits_is_not_read_again() -> None:
    """However often it is called in a step."""
    prober = Counting()
    noted = Recorder(PROBE, cast(Prober, prober), 7)
    step(noted, 1e-4, 1.0, 0.7)
    for k in range(6):
        meanwhile = noted.begin()
        assert meanwhile
        meanwhile(1.0)
        meanwhile(1.0)
        assert len(prober.taken) == k + 1
        noted.after(1e-4, 1.0, 0.7)
        assert len(prober.taken) == k + 1
    assert np.isfinite(noted.rows()[:, 2:].numpy()).sum(axis=1).tolist() == [0] + [1] * 6


@pytest.mark.parametrize(("waits", "meanwhile", "after"), [(0, 0, 2), (1, 1, 1), (2, 2, 0), (9, 2, 0)])
def test_as_much_as_there_is_time_for_is_read_while_a_rank_waits(waits: int, meanwhile: int, after: int) -> None:
    """What is lent is then read behind the step."""
    prober = Counting(pieces=12)
    noted = Recorder(Probe(tuple(ProbePiece((str(i),), 1e-3) for i in range(12)), 1), cast(Prober, prober), 1)
    wait = noted.begin()
    assert wait
    wait(prober.takes_s(waits))
    assert len(prober.taken) == meanwhile
    noted.after(1e-4, 1.0, 0.7)
    assert len(prober.taken) - meanwhile == after
    assert int(np.isfinite(noted.rows()[0, 2:].numpy()).sum()) == 2


def test_of_a_long_run_each_row_stands_for_several_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("partita.training.runtime.recorder._MOST_ROWS", 8)
    noted = Recorder(PROBE, cast(Prober, Counting()), None)
    for k in range(21):
        noted._note((0.5, float(k), k if k % 4 == 0 else math.nan, math.nan))
    rows = noted.rows().numpy()
    assert rows[:, 1].tolist() == [1.5, 5.5, 9.5, 13.5, 17.5, 20.0]
    assert rows[:, 2].tolist() == [0, 4, 8, 12, 16, 20]
    assert np.isnan(rows[:, 3]).all()
    noted.compute_otherwise()
    assert noted.rows()[:, 1].isnan().all()
    noted.forget()
    assert len(noted.rows()) == 0


def test_a_run_that_is_probed_computes_the_same(tmp_path: Path) -> None:
    """Bit for bit, with dropout, batches drawn by the global generator and a stage that computes its forward again; and both devices are
    read, in the middle of steps."""
    plain = plan_file("failing:shuffled", stages=2, size=2, recompute=[0])
    assert isinstance(plain.problem, PipelineProblem)
    tasks = [t.id for t in plain.problem.graph.tasks if t.phase == "forward"]
    probe = Probe(tuple(ProbePiece((t,), 1e-4) for t in tasks[:12]), 2)
    found = {}
    for name, file in (("plain", plain), ("probed", replace(plain, problem=replace(plain.problem, probe=probe)))):
        (tmp_path / name).mkdir()
        run = train(tmp_path / name, "failing:shuffled", file.write(tmp_path / name / "plan.json"), "--steps", "20")
        assert run.wait(120) == 0, run.stderr
        found[name] = losses(run.out)
    assert len(found["plain"]) == 20
    assert found["probed"] == found["plain"]
    assert not (tmp_path / "plain" / "run" / "readings.json").exists()
    readings = Readings.read(tmp_path / "probed" / "run" / "readings.json")
    assert readings.devices == ("cpu0", "cpu1")
    assert np.isfinite(readings.piece_s).any(axis=(1, 2)).all()


def test_where_there_is_no_room_for_the_probe_a_run_says_so(tmp_path: Path) -> None:
    """Its devices hold what the plan needs, and one byte more."""
    file = plan_file("failing:good", stages=2)
    problem = file.problem
    assert isinstance(problem, PipelineProblem)
    assert isinstance(file.plan, PipelinePlan)
    needs = needed_bytes(problem.graph, file.plan, problem.optimizer_bytes_per_parameter_byte)
    devices = tuple(replace(d, memory_bytes=needs[d.name] + 1) for d in problem.cluster.devices)
    task = next(t.id for t in problem.graph.tasks if t.phase == "forward")
    narrow = replace(
        problem, cluster=replace(problem.cluster, devices=devices), probe=Probe((ProbePiece((task,), 1e-4),), 2)
    )
    plan = replace(file, problem=narrow).write(tmp_path / "plan.json")
    run = train(tmp_path, "failing:good", plan, "--steps", "5", "--json")
    assert run.wait(120) == 0, run.stderr
    told = json.loads(run.stdout)
    assert told["machine"] == [UNREAD]
    assert told["predicted_at_run_speed_s"] is None
