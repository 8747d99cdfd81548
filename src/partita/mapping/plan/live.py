"""The framework in steps, on real iterations: what comes to mind and Bayesian optimisation, then generations judged by a
surrogate of what was measured, then the best of all in turn.

    step      share of the budget   what is tried
    seeds     up to 30 %            single, then by prediction intuitive, heft, heft-links, what the simulator's own search finds
    bayes     up to 50 %            Optuna's trials, each one measured
    genetic   up to 80 %            the best that a surrogate of all measurements knows, bred anew when they are measured
    deferred  up to 90 %            the fastest three with weights' gradients put off, where that is predicted to be shorter
    finals    the rest              the three fastest and one device, in turn: thrice, or as often as there is time, at least once

Between two trials all ranks wait for the next one: joining segments and putting gradients off are cut short (`limit`), so that
no thought takes longer than it may, whatever the size of the job.

A search is a generator: a trial comes out, what its iterations took goes in. It does no input or output and knows no clock
but the one that it is given, so it runs on a training run (`mapping.run`) as on a simulator (the tests).

Trials follow each other for a minute or more, and a machine may be half as fast in one minute as in the next: what is tried
first would look slow. So trials are compared by what they would have taken at one speed (`Measured.settled_s`); in the finals, which
follow each other within seconds, by what they took, round by round.
Source: "Deep Learning Performance Optimization via Model Parallelization", UC Irvine.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from partita.mapping.plan import bayes, surrogates
from partita.mapping.plan.decode import priorities_of, values_of
from partita.mapping.plan.deferred import deferred
from partita.mapping.plan.features import features
from partita.mapping.plan.genetic import Worth, bred, generations
from partita.mapping.plan.jobs import as_placement, candidate
from partita.mapping.plan.limit import Limit
from partita.mapping.plan.parts import beside
from partita.mapping.plan.planner import begun_with, compile_kernels
from partita.mapping.plan.polish import polished
from partita.mapping.plan.question import Mapped, Question
from partita.nouns.graph import FloatArray, IntArray
from partita.nouns.pipeline_plan import PipelinePlan
from partita.nouns.pipeline_problem import PipelineProblem
from partita.nouns.placement_problem import PlacementProblem

SEEDS_UNTIL, BAYES_UNTIL, GENETIC_UNTIL, DEFERRED_UNTIL = 0.3, 0.5, 0.8, 0.9  #: shares of the budget
SIMULATED_SHARE = 0.02  #: of it, for a search on the simulator among the seeds
JOINED_SHARE, DEFERRED_SHARE = 0.02, 0.03  #: of it, for a trial's segments, and for its weights' gradients
THOUGHT_S = 5.0  #: between two trials, at most
GENERATIONS = 40
BATCH = 4  #: mappings that a surrogate proposes before it is fitted again
FINALISTS, ROUNDS = 3, 3
MOST_REPEATED = 10  #: trials in a row that are known already, after which the sampler has nothing new to say
TIE = 0.01  #: of the simulated makespan, so that what a forest takes for equal is not
#: A mapping that is faster than one device by less is taken for no faster: the luckiest of three rivals in three rounds, each 2 % off,
#: seemed 2 % faster than the device that it tied with, and ran at 0.988 of its speed (an AlexNet, 2-core Xeon, 2026-11-25).
WORTH = 0.03


class Measured(NamedTuple):
    """What an iteration by a trial's plan took."""

    step_s: float
    slower: float = 1.0  #: as many times as long as predicted took what was computed in it: mostly what the machine is like just now

    @property
    def settled_s(self) -> float:
        """What it would have taken where computing takes what is predicted."""
        return self.step_s / self.slower


@dataclass(frozen=True, eq=False)
class Trial:
    """A mapping to be tried on a few iterations."""

    phase: str  #: seeds, bayes, genetic, deferred, finals
    mapped: Mapped
    plan: PipelinePlan
    predicted_s: float  #: by the simulator
    expected_s: float = math.nan  #: by the surrogate; nan: it was not asked

    @property
    def name(self) -> str:
        return self.mapped.name


@dataclass(frozen=True, eq=False)
class Outcome:
    """What a search came to."""

    best: Trial
    measured_s: float  #: its iteration, in the finals; median over the rounds
    single_s: float  #: that of one device, in turn with it
    scores: tuple[surrogates.Score, ...]  #: of the surrogates, over all that was measured; empty where too little was
    tried: int


Search = Generator[Trial, Measured, Outcome]
Trials = Generator[Trial, Measured, None]


def live(
    problem: PipelineProblem, budget_s: float, seed: int, elapsed: Callable[[], float], thought_s: float = THOUGHT_S
) -> Search:
    """Trials until the budget is spent by `elapsed()`, a clock that begins at 0; wants what an iteration of each took.
    Between two trials it thinks for about `thought_s` at most."""
    compile_kernels()
    s = _Live(problem, as_placement(problem), seed, budget_s, elapsed, thought_s)
    yield from s.seeds(min(SIMULATED_SHARE * budget_s, thought_s))
    if s.question.devices > 1:
        yield from s.bayes(s.until(BAYES_UNTIL))
        yield from s.genetic(s.until(GENETIC_UNTIL))
        yield from s.deferred()
    return (yield from s.finals())


def sampled(problem: PipelineProblem, mappings: int, rounds: int, seed: int) -> Search:
    """So many mappings drawn by lot, torn to pieces or in stretches, after those that come to mind: to see how well
    predictions agree with what is measured, and to learn surrogates from all kinds of mappings. All are tried in so many rounds,
    each time in the same order: one trial is as long as a mood of the machine's."""
    compile_kernels()
    s = _Live(problem, as_placement(problem), seed, thought_s=THOUGHT_S)
    chance = np.random.default_rng(seed)
    yield from s.seeds(1.0)
    while len(s.measured_s) < mappings and s.question.devices > 1:
        stays, where, at = chance.choice([0.5, 0.8, 0.95]), np.zeros(s.question.model.atoms, np.int64), 0
        for atom in s.question.by_place.tolist():
            at = at if chance.random() < stays else int(chance.integers(0, s.question.devices))
            where[atom] = at
        mapped = s.question.listed(where, "by lot")
        if math.isfinite(mapped.value_s):
            yield from s.tried(s.trial("by lot", mapped))
    seen = {key: [taken] for key, taken in s.measured_s.items()}
    for _ in range(rounds - 1):
        for key, t in s.trials.items():
            seen[key].append((yield replace(t, phase="by lot")).settled_s)
    s.measured_s |= {key: statistics.median(taken) for key, taken in seen.items()}
    return (yield from s.finals())


@dataclass(eq=False)
class _Live:
    """What a search knows."""

    problem: PipelineProblem
    asked: PlacementProblem
    seed: int
    budget_s: float = math.inf
    elapsed: Callable[[], float] = float  #: seconds since the search began
    thought_s: float = math.inf
    trials: dict[Any, Trial] = field(default_factory=dict)  #: by their stages
    measured_s: dict[Any, float] = field(default_factory=dict)  #: settled
    scores: tuple[surrogates.Score, ...] = ()

    def __post_init__(self) -> None:
        self.question = Question.of(self.asked)

    def until(self, share: float) -> Callable[[], bool]:
        """Whether less of the budget is spent."""
        return lambda: self.elapsed() < share * self.budget_s

    def limit(self, share: float) -> Limit:
        """What one thought may come to, which begins now: a share of the budget."""
        began, most_s = self.elapsed(), min(self.thought_s, share * self.budget_s)
        return Limit(most_s, lambda: self.elapsed() <= began + most_s)

    # ---- steps ------------------------------------------------------------------------------------------------------

    def seeds(self, simulated_s: float) -> Trials:
        """One device, whatever it takes, and what else is quick by the simulator while there is time for it."""
        known = begun_with(self.question)
        beside_each = [beside(self.problem, self.question)] if self.problem.splits else []
        known += [m for m in beside_each if math.isfinite(m.value_s)]
        known.append(polished(self.question, known, simulated_s, self.seed).best)
        goes_on = self.until(SEEDS_UNTIL)
        for mapped in sorted(known, key=lambda m: (m.name != "single", m.value_s)):
            if not self.trials or goes_on():
                yield from self.tried(self.trial("seeds", mapped))

    def bayes(self, goes_on: Callable[[], bool]) -> Trials:
        """Optuna's suggestions, told what they took; what is known stands at the beginning."""
        if not bayes.available():
            return
        with bayes.silenced():
            study = bayes.study("tpe", self.seed)
        encoding, repeated = bayes.Encoding.of(self.question), 0
        for key, trial in list(self.trials.items()):
            study.enqueue_trial(encoding.numbers(trial.mapped))
            noted = study.ask()
            encoding.suggested(noted)
            study.tell(noted, self.measured_s[key])
        while goes_on() and repeated < MOST_REPEATED:
            asked = study.ask()
            mapped = encoding.mapped(encoding.suggested(asked))
            if not math.isfinite(mapped.value_s):
                study.tell(asked, 10 * max(self.measured_s.values()))
                repeated += 1
                continue
            trial = self.trial("bayes", mapped)
            repeated = repeated + 1 if _key(trial) in self.measured_s else 0
            yield from self.tried(trial)
            study.tell(asked, self.measured_s[_key(trial)])

    def genetic(self, goes_on: Callable[[], bool]) -> Trials:
        """Generations on a surrogate of all that was measured: the best kind, fitted anew each time."""
        generation = 0
        while goes_on() and surrogates.available() and len(self.measured_s) >= surrogates.FEWEST:
            rows, taken_s = self.rows(), np.array([*self.measured_s.values()])
            if not self.scores:
                self.scores = surrogates.compared(rows, taken_s, self.seed)
            predict = surrogates.fitted(self.scores[0].name, rows, taken_s, self.seed)
            known = [Mapped(self.measured_s[k], t.mapped.where, t.mapped.order, t.name) for k, t in self.trials.items()]
            number = min(GENERATIONS, generations(self.question, self.thought_s))
            found, _ = bred(self.question, known, number, self.seed + generation, judged_by(predict))
            before = len(self.trials)
            for trial in self._fresh(found):
                yield from self.tried(trial)
            generation += 1
            if len(self.trials) == before:
                return

    def deferred(self) -> Trials:
        """The fastest ones with weights' gradients put off."""
        goes_on = self.until(DEFERRED_UNTIL)
        for trial in [self.trials[k] for k in self.fastest()]:
            if not goes_on():
                return
            plan, step_s = deferred(self.problem, trial.plan, self.limit(DEFERRED_SHARE))
            if step_s < trial.predicted_s:
                yield from self.tried(
                    replace(trial, phase="deferred", plan=plan, predicted_s=step_s, expected_s=math.nan)
                )

    def fastest(self) -> list[Any]:
        return sorted(self.measured_s, key=lambda k: self.measured_s[k])[:FINALISTS]

    def finals(self) -> Search:
        """The fastest and one device in turn; the median of the rounds decides, and a mapping has to be worth it."""
        fastest = self.fastest()
        single = next((k for k, t in self.trials.items() if t.name == "single"), fastest[0])
        rivals = list(dict.fromkeys([*fastest, single]))
        rounds: list[list[float]] = []
        while len(rounds) < ROUNDS and (not rounds or self.elapsed() < self.budget_s):
            row = []
            for key in rivals:
                t = self.trials[key]
                row.append((yield replace(t, phase="finals")).step_s)
            rounds.append(row)
        took = np.array(rounds)
        against = dict(zip(rivals, np.median(took / took.mean(axis=1, keepdims=True), axis=0).tolist(), strict=True))
        best = min(rivals, key=lambda k: against[k])
        if against[best] > (1 - WORTH) * against[single]:
            best = single
        if surrogates.available() and len(self.measured_s) >= surrogates.FEWEST:
            self.scores = surrogates.compared(self.rows(), np.array([*self.measured_s.values()]), self.seed)
        median_s = dict(zip(rivals, np.median(took, axis=0).tolist(), strict=True))
        return Outcome(self.trials[best], median_s[best], median_s[single], self.scores, len(self.measured_s))

    # ---- what they share --------------------------------------------------------------------------------------------

    def rows(self) -> FloatArray:
        """[mappings measured, features]"""
        where = np.stack([t.mapped.where for t in self.trials.values()])
        priority = np.stack([priorities_of(t.mapped.order) for t in self.trials.values()])
        value, orders = values_of(self.question, where, priority)
        return features(self.question, where, orders, value)

    def trial(self, phase: str, mapped: Mapped, expected_s: float = math.nan) -> Trial:
        found = candidate(self.problem, self.asked, mapped, self.limit(JOINED_SHARE))
        return Trial(phase, mapped, found.plan, found.step_s, expected_s)

    def tried(self, trial: Trial) -> Trials:
        """The trial, unless it was measured before."""
        key = _key(trial)
        if key not in self.measured_s:
            self.measured_s[key] = (yield trial).settled_s
            self.trials[key] = trial

    def _fresh(self, found: list[Mapped]) -> Iterator[Trial]:
        """The first few that were not measured yet."""
        met: set[bytes] = {t.mapped.where.tobytes() for t in self.trials.values()}
        new = known = 0
        for mapped in found:
            if new == BATCH or known == MOST_REPEATED or not math.isfinite(mapped.value_s):
                return
            if mapped.where.tobytes() in met:
                continue
            met.add(mapped.where.tobytes())
            trial = self.trial("genetic", mapped, mapped.value_s)
            if _key(trial) in self.measured_s:
                known += 1
            else:
                new += 1
                yield trial


def judged_by(predict: Callable[[FloatArray], FloatArray]) -> Worth:
    """What mappings are worth by a surrogate, ties by the simulator; infinite where one does not fit."""

    def worth(question: Question, where: IntArray, priority: FloatArray) -> tuple[FloatArray, IntArray]:
        makespan_s, orders = values_of(question, where, priority)
        fits = np.isfinite(makespan_s)
        seconds = predict(features(question, where, orders, np.where(fits, makespan_s, 0.0)))
        return np.where(fits, seconds + TIE * makespan_s, np.inf), orders

    return worth


def _key(trial: Trial) -> Any:
    """Mappings that become the same segments in the same order are one, unless weights' gradients come at other times."""
    put_off = [(d, k, s) for d, slots in trial.plan.orders.items() for k, s in enumerate(slots) if s.part == "W"]
    return trial.plan.stages, tuple(put_off)
