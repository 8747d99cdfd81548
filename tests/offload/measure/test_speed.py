"""Speeds: the probe costs little and sees no jobs; models and halves in turn; a problem at other speeds."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from offload.run.small_nets import image, net, plan_of, problem_of

from partita.errors import CaptureError, CostError
from partita.nouns.offload import FOLLOWS, OffloadProblem, OffloadSpeeds, Speed
from partita.offload.measure.cuts import proportioned
from partita.offload.measure.in_turn import Turns, measure_in_turn
from partita.offload.measure.speed import MOST_SHARE, Sightings, Speedometer
from partita.offload.onnx_session import Session
from partita.offload.plan.lower import simulate_offload

NET = net(side=96)
HALF = frozenset(NET.tasks_topological[:4])


def test_probes_take_little_of_the_time_between_inferences() -> None:
    session, meter, seen = Session(NET.data, "net"), Speedometer(), Sightings()
    spent_s = 0.0
    for k in range(150):
        _, lap = meter.infer(lambda k=k: session.run(image(k, 96)))  # type: ignore[misc]
        seen.add(lap.wall_s, lap.received_s)
        seen.probes += meter.look()
        spent_s += lap.cpu_s
    assert len(seen.probes) >= 1
    took = [probe_s for probe_s, _ in seen.probes]
    assert sum(took) <= MOST_SHARE * spent_s + max(took)
    speed = seen.speed()
    assert speed is not None
    assert 0 < speed.share <= 1


def test_what_was_not_seen_is_as_before() -> None:
    before = Speed(1e-3, 0.5)
    assert Sightings().speed() is None
    assert Sightings().speed(before) == before
    few = Sightings(probes=[(2e-3, 0.1)] * 4).speed(before)
    assert few == before
    seen = Sightings(probes=[*[(2e-3, 0.1)] * 4, (9e-3, 0.1)]).speed(before)  # one that something came into
    assert seen is not None
    assert (seen.probe_s, seen.share) == (2e-3, 0.5)


def test_the_more_probes_the_smaller_their_error_and_what_it_explains_is_no_change() -> None:
    draw = np.random.default_rng(0)
    off, found = [], []
    for _ in range(200):
        few, many, slow = (
            Sightings(probes=[(p, 1.0) for p in draw.normal(s, 0.15 * s, n)]).speed(Speed(1.0))
            for s, n in ((1, 6), (1, 60), (1.5, 6))
        )
        assert few
        assert many
        assert slow
        assert many.error < few.error
        found.append(slow.slower_than(many))
        off.append(abs(math.log(few.slower_than(many))) / FOLLOWS / abs(math.log(few.probe_s / many.probe_s)))
    assert np.mean(off) < 0.4  # where nothing has changed, most of what the probes say is not believed
    real = 1.5**FOLLOWS
    assert np.median(found) == pytest.approx(real, rel=0.1)
    assert np.mean(np.abs(np.array(found) / real - 1) < 0.25) > 0.9


def test_only_probes_behind_long_inferences_count_where_there_are_some() -> None:
    behind_long, behind_short = [(2e-4, 0.05), (2.2e-4, 0.03)] * 3, [(1e-4, 5e-3)] * 9
    then = Sightings([*behind_long, *behind_short], 1.0, 1.0).speed()
    assert then is not None
    assert (then.probe_s, then.behind_s) == (pytest.approx(2.1e-4), pytest.approx(1e-2))
    now = Sightings(behind_short, 1.0, 1.0).speed(then)
    assert now is not None
    assert now.slower_than(then) == 1.0  # nothing was seen that compares
    small = Sightings([*behind_short, (1e-3, 0.03)], 1.0, 1.0).speed()  # one that was held up
    assert small is not None
    assert (small.probe_s, small.behind_s) == (1e-4, 0.0)
    session, meter = Session(NET.data, "net"), Speedometer()
    _, lap = meter.infer(lambda: session.run(image(0, 96)))
    assert meter.look(2 * lap.cpu_s) == []
    assert [behind_s for _, behind_s in meter.look(lap.cpu_s)] == [lap.cpu_s]


def test_a_problem_at_other_speeds() -> None:
    problem = problem_of([NET, NET])
    plan = plan_of(problem, [-1, -1])
    then, now = (OffloadSpeeds(Speed(p, s), Speed(1e-3)) for p, s in ((1e-3, 1.0), (1.5e-3, 0.5)))
    assert problem.at_speeds(now) is problem  # nobody knows what they were
    known = OffloadProblem(problem.link, problem.jobs, 1, then)
    slower = known.at_speeds(now)
    assert slower.speeds == now
    assert simulate_offload(slower, plan).duration_s == pytest.approx(
        2 * 1.5**FOLLOWS * simulate_offload(known, plan).duration_s
    )
    for wrong in (0.0, -1.0, math.inf, math.nan):
        bad = OffloadProblem(problem.link, problem.jobs, 1, OffloadSpeeds(Speed(wrong), Speed(1e-3)))
        with pytest.raises(CostError, match="the device's speed has probe_s"):
            OffloadProblem.from_json(bad.to_json())


def test_models_and_halves_in_turn() -> None:
    whole = frozenset(NET.tasks_topological)
    turns = measure_in_turn([(NET, whole), (NET, HALF)], "device", 0.1)
    assert len(turns.cpu_s) == 2
    assert 0 < turns.ratio(1, 0) < 1.5
    estimate = turns.seconds(0)
    assert 0 < estimate.low <= estimate.seconds <= estimate.high
    assert Turns.from_json(json.loads(json.dumps(turns.to_json())), 2, "it") == turns
    for damaged in (
        {},
        turns.to_json() | {"cpu_s": [[]]},
        turns.to_json() | {"speed": {"probe_s": 0, "share": 1}},
        turns.to_json() | {"speed": {"probe_s": 1, "share": 1, "error": -1}},
        turns.to_json() | {"speed": {"probe_s": 1, "strange": 1}},
    ):
        with pytest.raises(CostError):
            Turns.from_json(damaged, 2, "it")
    with pytest.raises(CaptureError, match="leaves nothing for the server"):
        measure_in_turn([(NET, whole)], "server", 0.1)


def test_tasks_have_the_shares_of_the_halves_they_make() -> None:
    ids = ("a", "b", "c", "d")
    even = dict.fromkeys(ids, 1.0)
    nested = {frozenset("a"): 0.5, frozenset("ab"): 0.6, frozenset("abc"): 0.9}
    made = proportioned(even, nested)
    assert sum(made.values()) == pytest.approx(4.0)
    for half, share in nested.items():
        assert sum(made[t] for t in half) == pytest.approx(4 * share)
    crossed = proportioned(even, {frozenset("ab"): 0.6, frozenset("ac"): 0.7})  # neither lies in the other
    assert crossed["a"] + crossed["b"] == pytest.approx(2.4, rel=1e-3)
    assert crossed["a"] + crossed["c"] == pytest.approx(2.8, rel=1e-3)
    assert proportioned(dict.fromkeys(ids, 0.0), nested) == dict.fromkeys(ids, 0.0)
