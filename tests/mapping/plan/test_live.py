"""The search on real iterations, where the iterations are a simulator's with another machine's habits."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from mapping.worlds import problem_of

from partita.errors import BadInput
from partita.mapping.plan import surrogates
from partita.mapping.plan.decode import priorities_of, values_of
from partita.mapping.plan.features import NAMES, features
from partita.mapping.plan.jobs import as_placement
from partita.mapping.plan.live import Measured, Outcome, Trial, live
from partita.mapping.plan.planner import SEEDS
from partita.mapping.plan.question import Question

pytest.importorskip("sklearn")
pytest.importorskip("optuna")


def searched(name: str, taken_s, trials: int) -> tuple[Outcome, list[Trial]]:
    """A search whose budget is so many trials. `taken_s`: trial -> seconds of an iteration."""
    tried = list[Trial]()
    search = live(problem_of(name, ("cpu0", "cpu1")), trials, 1, lambda: float(len(tried)))
    trial = next(search)
    while True:
        tried.append(trial)
        try:
            found = taken_s(trial)
            trial = search.send(found if isinstance(found, Measured) else Measured(found))
        except StopIteration as end:
            return end.value, tried


def another_machine(trial: Trial) -> float:
    """Each segment costs another millisecond, which the simulator knows nothing of."""
    return trial.predicted_s + 1e-3 * len(trial.plan.stages)


@pytest.mark.slow
def test_a_search_goes_through_its_steps_and_finds_what_is_fast_there() -> None:
    outcome, tried = searched("inception", another_machine, 40)
    phases = [k for k, _ in itertools.groupby(t.phase for t in tried)]
    assert phases == ["seeds", "bayes", "genetic", "deferred", "finals"]
    assert outcome.measured_s == min(another_machine(t) for t in tried)
    assert outcome.measured_s < 0.8 * outcome.single_s
    assert {s.name for s in outcome.scores} == set(surrogates.KINDS)
    keys = [t.plan.stages for t in tried if t.phase not in ("deferred", "finals")]
    put_off = [t for t in tried if t.phase == "deferred"]
    assert len(set(keys)) == len(keys) == outcome.tried - len(put_off)  # nothing is measured twice before the finals
    assert all(t.expected_s > 0 for t in tried if t.phase == "genetic")


@pytest.mark.slow
def test_what_is_tried_in_a_slow_minute_is_not_taken_for_slow() -> None:
    """After twelve trials the machine is half as fast; what is found then may be the best there is."""
    count = itertools.count()

    def drifting(trial: Trial) -> Measured:
        slower = 1.0 if next(count) < 12 else 2.0
        return Measured(slower * trial.predicted_s, slower)

    outcome, tried = searched("inception", drifting, 40)
    assert outcome.best.predicted_s == min(t.predicted_s for t in tried)
    assert outcome.best.predicted_s < min(t.predicted_s for t in tried[:12])


def test_one_device_is_the_answer_where_nothing_is_faster() -> None:
    outcome, tried = searched("softmax", lambda t: 1.0 if len(t.plan.devices) == 1 else 0.98, 6)
    assert outcome.best.plan.devices in (("cpu0",), ("cpu1",))
    assert len(tried) < 30


def test_surrogates_learn_what_is_measured() -> None:
    question = Question.of(as_placement(problem_of("inception", ("cpu0", "cpu1"))))
    chance = np.random.default_rng(0)
    where = chance.integers(0, 2, (60, question.model.atoms))
    priority = np.stack([priorities_of(question.facts.topological)] * 60)
    value, orders = values_of(question, where, priority)
    rows = features(question, where, orders, value)
    assert rows.shape == (60, len(NAMES))
    taken = 0.5 * value + 2e-4 * rows[:, NAMES.index("turns")]
    scores = surrogates.compared(rows, taken)
    assert {s.name for s in scores} == set(surrogates.KINDS)
    assert [s.mape for s in scores] == sorted(s.mape for s in scores)
    assert scores[0].mape < 0.02
    assert scores[0].rank_correlation > 0.95
    again = surrogates.fitted(scores[0].name, rows, taken)(rows)
    assert np.abs(again / taken - 1).mean() < 0.02
    with pytest.raises(BadInput, match="needs 10"):
        surrogates.compared(rows[:9], taken[:9])


def test_features_of_one_device_and_of_two() -> None:
    question = Question.of(as_placement(problem_of("towers", ("cpu0", "cpu1"))))
    known = [m for make in SEEDS.values() for m in make(question)]
    one, other = known[0], next(m for m in known if len(set(m.where.tolist())) == 2)
    where = np.stack([one.where, other.where])
    orders = np.stack([one.order, other.order])
    rows = features(question, where, orders, np.array([one.value_s, other.value_s]))
    alone, apart = (dict(zip(NAMES, row.tolist(), strict=True)) for row in rows)
    assert (alone["devices"], alone["messages"], alone["hops"], alone["turns"]) == (1, 0, 0, 0)
    assert alone["busiest"] == pytest.approx(alone["makespan"])
    assert apart["devices"] == 2
    assert apart["messages"] >= 2  # there and back
    assert apart["hops"] >= 1
