"""Engines compared in turn: the same steps by each, in blocks, another one first in each block; beside them, where they are
wanted, copies of the whole job side by side.

A block starts the workers anew and lets the engines take each step in turn (`compare_engines`), and where there are several
plans, or the copies, these too, round by round (`plans_in_turn`).
"""

from __future__ import annotations

import argparse
import contextlib
import math
import statistics
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import side_by_side
from crew import Crew
from harness import Json, Machine, order
from intervals import MOST_DRIFT_ALONE, Claim, Interval, over_medians, ratio_within_rounds, sentences, within_rounds

from partita.cli.talk import Talk
from partita.nouns.pipeline_plan import PipelinePlan
from partita.nouns.pipeline_problem import PipelineProblem
from partita.nouns.plan import PlanFile
from partita.page.text import NOTHING, percent, table
from partita.pipeline.run.loop import Comparison, check_rounds, compare_engines
from partita.simulate.run_speed import RunSpeed, run_speed
from partita.training.runtime.baton import Baton, Ring

WARMUP = side_by_side.WARMUP  #: rounds of a block that are not counted
#: Of the counted steps of a turn: a core that has slept while others had their turn may be another machine's for a moment.
#: Where an Inception's steps of 83 ms were counted after one other, 12 of 32 took 110 ms or more; 6 of 600 in a row did (2026-11-24).
TURN_S, MOST_IN_A_TURN = 0.4, 8

FORESEEN = Claim("the prediction is within 10 % of a step", low=0.9, high=1.1, most_drift=MOST_DRIFT_ALONE)
FORESEEN_AT_RUN_SPEED = Claim(
    "the prediction at the speed of the run is within 10 % of a step", low=0.9, high=1.1, most_drift=math.inf
)


@dataclass(frozen=True)
class Compared:
    """All blocks together; a round's values stand at the same place in every list."""

    blocks: list[Comparison] = field(default_factory=list)
    sides: list[list[side_by_side.Steps]] = field(default_factory=list)  #: [blocks][copies]; empty without copies
    ran: list[RunSpeed | None] = field(
        default_factory=list
    )  #: [blocks] the pipeline's prediction at the speed of the run

    def steps(self, engine: str) -> list[float]:
        """Seconds of every counted step. [rounds]"""
        return [s for b in self.blocks for s in b.step_s[engine]]

    def cpu_s(self, engine: str) -> list[float]:
        """CPU seconds of all ranks. [rounds]"""
        return [s for b in self.blocks for s in b.cpu_s[engine]]

    @property
    def copies(self) -> list[list[float]]:
        """Seconds of every counted step of each copy. [copies][rounds]"""
        return (
            [[s for block in self.sides for s in block[k].wall_s] for k in range(len(self.sides[0]))]
            if self.sides
            else []
        )

    def median_s(self, engine: str) -> float:
        return statistics.median(self.steps(engine))

    def ratio(self, above: str, below: str) -> Interval:
        """A step of one engine over a step of another, round by round."""
        return ratio_within_rounds(self.steps(above), self.steps(below))

    @property
    def limit(self) -> Interval:
        """How often as much w copies side by side do as one process alone."""
        return within_rounds(
            lambda one, *many: len(many) * one / side_by_side.step_s(many), self.steps("single"), *self.copies
        )

    def share_of_limit(self, filled: float = 1.0, *, even: bool = False) -> Interval:
        """How much of what w copies side by side do in a second the pipeline does, where it can be at work for a share `filled`
        of its step; one process cancels out. `even`: without what it waited because one core took longer than the others."""
        steps = self.steps("pipeline")
        ours = [s - lost_s for s, lost_s in zip(steps, self.uneven_s, strict=True)] if even else steps
        return within_rounds(
            lambda step_s, *many: side_by_side.step_s(many) / len(many) / filled / step_s, ours, *self.copies
        )

    @property
    def uneven_s(self) -> list[float]:
        """What the core that computed longest in a step of the pipeline computed beyond the mean of all; 0 where nothing was read. [rounds]"""
        if not all("pipeline" in b.readings for b in self.blocks):
            return [0.0] * len(self.steps("pipeline"))
        worked = np.concatenate([b.readings["pipeline"].worked_s for b in self.blocks], axis=1)
        return [float(s) for s in np.nan_to_num(worked.max(axis=0) - worked.mean(axis=0))]

    @property
    def gradient_errors(self) -> dict[str, float]:
        return {e: max(b.gradient_errors[e] for b in self.blocks) for e in self.blocks[0].gradient_errors}

    @property
    def at_run_speed_s(self) -> float | None:
        """What would have been predicted for the pipeline at the speed of the run, median of the blocks; None where that is
        not known."""
        known = [r.step_s for r in self.ran if r]
        return statistics.median(known) if known else None

    @property
    def held(self) -> list[bool]:
        """[blocks with a known speed] whether the 90 % interval at the speed of the run held the median of the block."""
        pairs = zip(self.blocks, self.ran, strict=True)
        return [r.low_s <= b.median_s("pipeline") <= r.high_s for b, r in pairs if r]

    def over(self, predicted_s: float) -> Interval:
        """A prediction of the pipeline's step over what was measured."""
        return over_medians([predicted_s] * len(self.blocks), [b.step_s["pipeline"] for b in self.blocks])

    @property
    def at_run_speed(self) -> Interval | None:
        """The prediction at the speed of each block over what was measured in it; None where that is not known."""
        known = [(r.step_s, b.step_s["pipeline"]) for b, r in zip(self.blocks, self.ran, strict=True) if r]
        return over_medians(*zip(*known, strict=True)) if known else None

    def foreseen(self, predicted_s: float) -> dict[str, tuple[Claim, Interval]]:
        """What is claimed of a prediction of the pipeline's step, and of the one at the speed of the run where it is known."""
        claims = {"prediction": (FORESEEN, self.over(predicted_s))}
        if at_run_speed := self.at_run_speed:
            claims["prediction_at_run_speed"] = (FORESEEN_AT_RUN_SPEED, at_run_speed)
        return claims

    def raw(self) -> Json:
        """Every sample, block by block."""
        return {
            "step_s": [dict(b.step_s) for b in self.blocks],
            "cpu_s": [dict(b.cpu_s) for b in self.blocks],
            "load": [b.load for b in self.blocks],
            "side_by_side": [[{"wall_s": c.wall_s, "cpu_s": c.cpu_s} for c in block] for block in self.sides],
            "run_speed": [r.to_json() if r else None for r in self.ran],
        }


def figures(file: PlanFile, run: Compared, single: Compared | None = None) -> Json:
    """What was predicted of a plan and what was measured, beside one process, which may have run with another plan, `single`."""
    predicted, measured, at_run_speed = file.verdict.value_s, run.median_s("pipeline"), run.at_run_speed
    return {
        "predicted_step_s": predicted,
        "predicted_at_run_speed_s": run.at_run_speed_s,
        "interval_held": run.held,
        "measured_step_s": measured,
        "error": predicted / measured - 1,
        "error_at_run_speed": at_run_speed.value - 1 if at_run_speed else None,
        "single_step_s": (single or run).median_s("single"),
        "samples": run.raw(),
    }


def foretold(row: Json, digits: int) -> str:
    """What was predicted and what was measured, so many decimals of a millisecond, for a sentence."""
    told, took = (f"{row[key] * 1e3:.{digits}f} ms" for key in ("predicted_step_s", "measured_step_s"))
    return f"predicted {told}, measured {took}, {_signed(row['error'])}, {_signed(row['error_at_run_speed'])} at the run's speed"


def _signed(error: float | None) -> str:
    return NOTHING if error is None else percent(error, signed=True)


def figures_table(rows: Sequence[Json]) -> str:
    """`figures` of models and plans, and what they say together."""
    columns = [("model", "text"), ("plan", "text"), ("predicted", "s"), ("measured", "s"), ("error", "error"), ("at the run's speed", "error"), ("one process", "s")]  # fmt: skip
    keys = ("model", "plan", "predicted_step_s", "measured_step_s", "error", "error_at_run_speed", "single_step_s")
    lines = [table(columns, [[r[k] for k in keys] for r in rows])]  # type: ignore[arg-type]
    for what, key in (("", "error"), (" at the run's speed", "error_at_run_speed")):
        errors = [abs(r[key]) for r in rows if r[key] is not None]
        if errors:
            lines.append(f"median error{what} {percent(statistics.median(errors))}, worst {percent(max(errors))}")
    held = [h for r in rows for h in r["interval_held"]]
    return "\n".join([*lines, f"the 90 % intervals at the run's speed held in {sum(held)} of {len(held)} blocks"])


def verdict_lines(rows: Sequence[Json]) -> list[str]:
    """The verdicts of models and plans, a line each."""
    return [f"{r['model']}, {r['plan']}: {line}" for r in rows for line in sentences(r["verdicts"]).splitlines()]


def add_turns(options: argparse.ArgumentParser, rounds: int, blocks: int) -> None:
    """--rounds and --blocks, with these defaults."""
    options.add_argument(
        "--rounds", type=int, default=rounds, help=f"{WARMUP} of them are not counted; default: {rounds}"
    )
    options.add_argument(
        "--blocks", type=int, default=blocks, help=f"the rounds are taken in so many blocks; default: {blocks}"
    )


def with_models(options: argparse.ArgumentParser, known: Sequence[str]) -> argparse.Namespace:
    """The arguments given, --only MODEL[,MODEL] as a list of known names."""
    options.add_argument("--only", default=",".join(known), metavar="MODEL[,MODEL]")
    given = options.parse_args()
    given.only = given.only.split(",")
    if unknown := set(given.only) - set(known):
        options.error(f"--only {', '.join(sorted(unknown))}: known are {', '.join(known)}")
    return given


def in_a_turn(files: Iterable[PlanFile]) -> int:
    """Steps of a turn, by the fastest of the plans."""
    shortest_s = min(f.verdict.value_s for f in files)
    return 1 + min(max(1, math.ceil(TURN_S / shortest_s)), MOST_IN_A_TURN)


def shares(rounds: int, blocks: int) -> list[int]:
    """Rounds of each block.

    >>> shares(22, 4), shares(2, 3)
    ([6, 6, 5, 5], [1, 1])
    """
    n = min(rounds, blocks)
    return [rounds // n + (k < rounds % n) for k in range(n)]


def compare_in_turn(
    machine: Machine, file: PlanFile, source: str, engines: Sequence[str], *, rounds: int, blocks: int, talk: Talk,
    settings: Mapping[str, str] = MappingProxyType({}), with_copies: bool = False, out: Path | None = None,
) -> Compared:  # fmt: skip
    """`plans_in_turn` of one plan: its engines, and the copies where they are wanted. `out`: keeps the timelines."""
    return plans_in_turn(
        machine, {"": file}, source, {"": engines}, rounds=rounds, blocks=blocks, talk=talk, settings=settings,
        with_copies=with_copies, out=out,
    )[""]  # fmt: skip


def plans_in_turn(
    machine: Machine,
    files: Mapping[str, PlanFile],
    source: str,
    engines: Mapping[str, Sequence[str]],
    *,
    rounds: int,
    blocks: int,
    talk: Talk,
    settings: Mapping[str, str] = MappingProxyType({}),
    with_copies: bool = False,
    in_a_row: int = 0,
    out: Path | None = None,
) -> dict[str, Compared]:
    """Plans of a job, each under its own engines: `rounds` less WARMUP counted rounds in so many blocks, each with a warm-up of
    its own and a probe before it; another plan and another engine first each time.

    In a block all have their processes, and take turns round by round (`Ring`): round k of one was within seconds of round k of
    another, so that ratios by `ratio_within_rounds` know nothing of how the machine drifts. A turn has
    `in_a_row` steps of which the mean counts, without the first; of as many that they take TURN_S where it is 0. Raises BadInput
    where no round would be counted, and what a worker failed with.
    """
    check_rounds(rounds, WARMUP)
    found = {n: Compared() for n in files}
    widest = max(files.values(), key=lambda f: len(getattr(f.plan, "devices", ())))
    with _copies(widest, source, settings) if with_copies else contextlib.nullcontext() as side:
        for k, counted in enumerate(shares(rounds - WARMUP, blocks)):
            machine.look_again(every_s=5.0)
            talk.progress(f"block {k + 1} of {blocks}", 0, counted)
            spec = _Block(source, settings, counted, in_a_row or in_a_turn(files.values()), out)
            block, copies = spec.run({n: (files[n], order(engines[n], k)) for n in order(list(files), k)}, side)
            for name, comparison in block.items():
                found[name].blocks.append(comparison)
                found[name].ran.append(run_speed(files[name], comparison.readings.get("pipeline")))
                found[name].sides.extend([copies] if copies else [])
    return found


def all_done(ring: Ring, members: Sequence[Future[Any]]) -> None:
    """Wait for all that take turns. Raises what the first of them fails with; the others, who wait for a turn that will not
    come, are told."""
    try:
        for done in as_completed(members):
            done.result()
    except BaseException:  # also Ctrl-C
        ring.end()
        raise


@dataclass(frozen=True)
class _Block:
    """So many rounds of a job by several plans, and by copies of it, all at once and one at a time."""

    source: str
    settings: Mapping[str, str]
    counted: int
    in_a_row: int
    out: Path | None  #: a folder for each plan; None: nothing is kept

    def run(
        self, plans: Mapping[str, tuple[PlanFile, Sequence[str]]], side: Crew | None
    ) -> tuple[dict[str, Comparison], list[side_by_side.Steps]]:
        """(a comparison for each (plan, engines), the copies' steps)"""
        with (
            tempfile.TemporaryDirectory() as folder,
            Ring.started(Path(folder), len(plans) + (side is not None)) as ring,
            ThreadPoolExecutor(len(plans) + 1) as pool,
        ):
            runs = {
                name: pool.submit(
                    compare_engines, file, self.source, self.settings, (self.out or Path(folder)) / name, engines=names,
                    rounds=WARMUP + self.counted, warmup=WARMUP, in_a_row=self.in_a_row, ring=ring.place(k),
                )
                for k, (name, (file, names)) in enumerate(plans.items())
            }  # fmt: skip
            copies = pool.submit(self._step, side, ring.place(len(plans))) if side is not None else None
            all_done(ring, [*runs.values(), *([copies] if copies else [])])
            return {name: run.result() for name, run in runs.items()}, copies.result() if copies else []

    def _step(self, side: Crew, place: Sequence[str]) -> list[side_by_side.Steps]:
        """The copies' rounds."""
        baton = Baton.of(place, 0)
        rows = []
        baton.ready()
        for _ in range(WARMUP + self.counted):
            baton.wait()
            rows.append([side_by_side.mean(s) for s in side_by_side.turn(side, self.in_a_row - 1, warmup=1)])
            baton.give()
        return [side_by_side.joined(copy[WARMUP:]) for copy in zip(*rows, strict=True)]


def _copies(file: PlanFile, source: str, settings: Mapping[str, str]) -> Any:
    """A copy on the first core of each of the plan's devices; no copies where a device is no core."""
    assert isinstance(file.plan, PipelinePlan)
    assert isinstance(file.problem, PipelineProblem)
    cores = {c for d in file.plan.devices for c in file.cluster.by_name[d].cores[:1]}
    if len(cores) < len(file.plan.devices):
        return contextlib.nullcontext()
    return side_by_side.copies(source, settings, file.problem.micro_batch_size, sorted(cores))
