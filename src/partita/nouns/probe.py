"""Probe: how fast a device is, told by tasks of the job itself, run by themselves when the job is measured and while it runs.

A device slows down in two ways. Others take a part of its core: told by the share of the time in which a computing thread
really was on it. And what it gets of the core does less in a second, because the core is a thread of a shared one, because
others fill its caches, because its clock is lower: told by the CPU time that the pieces take. Neither is taken from how
long the job's own instructions last, so a prediction at the speed of a run is still wrong by what the model missed.

A slow phase does not slow all work alike: a convolution that fills the caches suffers more than one that does not. So the
pieces are drawn from the job as its time is: cut the time of a pass into a dozen equal parts, and take the task that runs
at a moment of each; of a short pass, take all of it. What they took over what they took in measuring is then what the job
would have taken, whatever it consists of.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from partita.errors import BadInput, refuse
from partita.files import damaged, dump_json, read_json, write_whole
from partita.nouns.costs import MOST_SECONDS
from partita.nouns.graph import FloatArray
from partita.records import lean, record

LEAST = 1e-12  #: of a reading, and of a share of a core
MOST_TIMES = 1e3  #: that anything here is another
MOST_RUNS = 30  #: of a piece for a reading
MOST_STEPS = 1 << 40  #: that a row stands for
KNOWN = 3  #: readings that what the measurement knows of their scatter is worth
RESTLESS = 0.5  #: numbers from a device whose probe varies by more than this share are not to be trusted


@dataclass(frozen=True, slots=True)
class ProbePiece:
    """Tasks that follow each other, run forward and backward on one micro-batch."""

    tasks: tuple[str, ...]  #: ids of forward tasks
    seconds: float  #: CPU time they took on the device that was measured, while the job was measured
    runs: int = 1  #: in a row, of which the last one is the reading


@dataclass(frozen=True)
class Probe:
    """The pieces, each standing for an equal part of the job's time, and what they took while the job was measured."""

    pieces: tuple[ProbePiece, ...]
    micro_batch_size: int  #: samples that they run on
    core_share: float = 1.0  #: of its core that the measuring process got
    alone: float = 1.0  #: how much faster a device works while the others idle, one micro-batch in flight
    spread: float = 0.0  #: standard deviation of single readings about their mean, as a share

    @property
    def seconds(self) -> float:
        """All pieces once."""
        return sum(p.seconds for p in self.pieces)

    def speed(self, slowness: FloatArray, core_share: FloatArray) -> FloatArray:
        """How fast a device is, 1 being the measured device when it was measured."""
        return np.asarray(core_share / self.core_share / slowness)

    def slowness(self, piece_s: FloatArray) -> FloatArray:
        """[rows] of `piece_s` [rows, pieces] CPU seconds, nan where a piece was not read: CPU time for the job's work, as a
        multiple of what it was when the job was measured; nan in rows without a reading."""
        return row_means(piece_s / np.array([p.seconds for p in self.pieces]))

    def check(self) -> list[str]:
        """Every fault at once; empty when the numbers are possible."""
        faults = [] if self.pieces else ["the probe has no pieces"]
        for i, p in enumerate(self.pieces):
            faults += [] if p.tasks else [f"piece {i} has no tasks"]
            faults += [] if LEAST <= p.seconds <= MOST_SECONDS else [f"piece {i} takes {p.seconds} s"]
            faults += [] if 1 <= p.runs <= MOST_RUNS else [f"piece {i} runs {p.runs} times"]
        if len(self.pieces) > 1 and any(p.runs > 1 for p in self.pieces):
            faults.append("only the one piece of a probe that has no other runs more than once")
        faults += [] if self.micro_batch_size >= 1 else [f"micro_batch_size is {self.micro_batch_size}"]
        faults += [] if LEAST <= self.core_share <= 1 else [f"core_share is {self.core_share}"]
        faults += [] if 1 / MOST_TIMES <= self.alone <= MOST_TIMES else [f"alone is {self.alone}"]
        return faults + ([] if 0 <= self.spread <= MOST_TIMES else [f"spread is {self.spread}"])

    def to_json(self) -> dict[str, Any]:
        return lean(self)

    @staticmethod
    def from_json(value: Any, what: str) -> Probe | None:
        """The probe in a parsed JSON object; None for null. Raises BadInput with every fault at once."""
        if value is None:
            return None
        probe = record(Probe, value, BadInput, what)
        refuse(BadInput, probe.check(), what)
        return probe


@dataclass(frozen=True, eq=False)
class Readings:
    """What the probe said of every device of a run, step by step; of a long run a row, below called a step, is the mean of several."""

    devices: tuple[str, ...]
    piece_s: FloatArray  #: [devices, steps, pieces] CPU seconds; nan where no reading was taken in the step
    core_share: FloatArray  #: [devices, steps] of its core while it computed; nan where it did not
    worked_s: FloatArray  #: [devices, steps] seconds of its computations by the clock of the pieces; nan where that is not known
    each: int = 1  #: steps that a row stands for

    @property
    def steps(self) -> int:
        """How many rows."""
        return int(self.core_share.shape[1])

    def speeds(self, probe: Probe) -> FloatArray:
        """[devices, steps] the speed of each device in each step: the share of its core in that step, what the readings say of the whole
        run, and from step to step what its computations took beside those of the other steps, where that is known (not of a GPU, nor of
        plans that came before the last one). A machine changes by a third within a second, and a reading tells of a hundredth of one.
        nan where a device was never read."""
        found = np.full(self.core_share.shape, np.nan)
        for d, (told, work) in enumerate(self.told(probe)):
            if len(told):
                share = _filled(self.core_share[d], probe.core_share)
                found[d] = probe.speed(per_work(told, work) * self._work(d), share)
        return found

    def told(self, probe: Probe) -> list[tuple[FloatArray, FloatArray]]:
        """[devices] of ([readings] what each took as a multiple of what its piece took in measuring, [readings] what the computations
        of its step took as a multiple of their mean)."""
        slowness = self.piece_s / np.array([p.seconds for p in probe.pieces])
        at = [np.nonzero(np.isfinite(rows)) for rows in slowness]
        return [
            (rows[where], self._work(d)[where[0]]) for d, (rows, where) in enumerate(zip(slowness, at, strict=True))
        ]

    def _work(self, device: int) -> FloatArray:
        """[steps] what its computations took as a multiple of their mean; 1 where that is not known."""
        filled = _filled(self.worked_s[device], 1.0)
        return np.asarray(filled / filled.mean())

    def spread(self, probe: Probe) -> float:
        """Standard deviation, as a share of the mean, of how fast a device was: of single readings and of its share of its core, step by
        step; the largest of any device's."""
        shares = (row[np.isfinite(row)] for row in self.core_share)
        both = zip(self.told(probe), shares, strict=True)
        return max((math.hypot(scatter(told), scatter(share)) for (told, _), share in both), default=0.0)

    def error(self, probe: Probe) -> float:
        """Half of the interval that holds a device's true mean slowness nine times in ten, as a share: the largest of any device's. Few
        readings tell little of how much they scatter; the measurement's stand for KNOWN more of them."""
        known = (told / work for told, work in self.told(probe) if len(told))
        return max((_half_width(values, probe.spread) for values in known), default=0.0)

    def only(self, devices: Sequence[str]) -> Readings:
        """Those of some devices."""
        at = [i for i, d in enumerate(self.devices) if d in devices]
        return replace(
            self,
            devices=tuple(self.devices[i] for i in at),
            piece_s=self.piece_s[at], core_share=self.core_share[at], worked_s=self.worked_s[at],
        )  # fmt: skip

    def since(self, step: int) -> Readings:
        """Without the rows before; what was read during them stays with the first that is left, as it would have been there.

        What a short run reads behind its first step, while it warms up, counts. How long its steps took meanwhile does not: that tells of
        first calls, and not of the machine."""
        if not step or step >= self.steps:
            return self
        kept = replace(
            self,
            piece_s=self.piece_s[:, step:].copy(), core_share=self.core_share[:, step:], worked_s=self.worked_s[:, step:],
        )  # fmt: skip
        first = np.array([kept._work(d)[0] for d in range(len(self.devices))])
        early = np.concatenate(
            [self.piece_s[:, :step] * first[:, None, None], self.piece_s[:, step : step + 1]], axis=1
        )
        kept.piece_s[:, 0] = row_means(np.moveaxis(early, 1, 2))
        return kept

    def to_json(self) -> dict[str, Any]:
        return {
            "format": "partita-readings",
            "version": 1,
            "devices": list(self.devices),
            "piece_s": _numbers(self.piece_s),
            "core_share": _numbers(self.core_share),
            "worked_s": _numbers(self.worked_s),
            "each": self.each,
        }

    def write(self, path: str | Path) -> Path:
        return write_whole(path, dump_json(self.to_json()))

    @staticmethod
    def from_json(value: Mapping[str, Any], what: str = "readings") -> Readings:
        """Raises BadInput where it is damaged."""
        with damaged(BadInput, what, hint="run again"):
            pieces, share = (_read_numbers(value[k], k) for k in ("piece_s", "core_share"))
            worked = (
                _read_numbers(value["worked_s"], "worked_s") if "worked_s" in value else np.full_like(share, np.nan)
            )
            if not isinstance(value["devices"], list):
                raise TypeError(f"devices is {value['devices']!r}, not a list")
            readings = Readings(tuple(value["devices"]), pieces, share, worked, value.get("each", 1))
        refuse(BadInput, readings.check(), what, hint="run again")
        return readings

    def check(self) -> list[str]:
        """Every fault at once; empty when the numbers are possible."""
        named, shapes = self.devices, (self.piece_s.shape[:2], self.core_share.shape, self.worked_s.shape)
        faults = ["a device's name is no text"] if any(not isinstance(d, str) for d in named) else []
        faults += ["a device is named twice"] if not faults and len(set(named)) < len(named) else []
        if self.piece_s.ndim != 3 or {*shapes} != {shapes[0]} or shapes[0][0] != len(named):
            faults.append(f"shapes {self.piece_s.shape}, {shapes[1]} and {shapes[2]} do not fit {len(named)} devices")
        if type(self.each) is not int or not 1 <= self.each <= MOST_STEPS:
            faults.append(f"a row stands for {self.each!r} steps")
        told = np.concatenate([self.piece_s.ravel(), self.core_share.ravel(), self.worked_s.ravel()])
        if not ((told >= LEAST) & (told <= MOST_SECONDS) | np.isnan(told)).all() or (self.core_share > 1).any():
            faults.append(f"a time is not from {LEAST:g} to {MOST_SECONDS:g} s, or a share above 1")
        return faults

    @staticmethod
    def read(path: str | Path) -> Readings:
        """The readings in a file."""
        return Readings.from_json(read_json(path, BadInput, "partita-readings"), str(path))


def scatter(values: FloatArray) -> float:
    """Standard deviation about the mean, as a share of it; 0 of less than two."""
    return float(values.std() / values.mean()) if len(values) > 1 else 0.0


def _half_width(values: FloatArray, known: float) -> float:
    """Student's, of the mean of [n >= 1] values as a share of it, by their variance pooled with a `known` one."""
    from scipy.special import stdtrit  # it takes a while to load

    freedom = KNOWN + len(values) - 1
    scattered = float(((values / values.mean() - 1) ** 2).sum())
    return float(stdtrit(freedom, 0.95) * math.sqrt((KNOWN * known**2 + scattered) / freedom / len(values)))


def row_means(values: FloatArray) -> FloatArray:
    """[...] means over the last axis of what is not nan; nan where nothing is."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # an empty row is an answer
        return np.asarray(np.nanmean(values, axis=-1))


def middle_mean(values: FloatArray) -> float:
    """Mean of [n] without the highest and the lowest tenth of them; nan of none.

    What a job takes is the sum of all that its time was like: so a mean, and not a median.
    """
    cut = len(values) // 10
    return float(np.sort(values)[cut : len(values) - cut].mean()) if len(values) else math.nan


def per_work(told: FloatArray, work: FloatArray) -> float:
    """Seconds of [n] readings for one of the job's work around them: a ratio of sums, for both scatter, without the tenth of the pairs
    that say most and the tenth that say least; nan of none.

    >>> per_work(np.array([1.0, 1.5, 2.0]), np.array([1.0, 1.5, 2.0]))
    1.0
    """
    cut = len(told) // 10
    kept = np.argsort(told / work)[cut : len(told) - cut]
    return float(told[kept].sum() / work[kept].sum()) if len(told) else math.nan


def _filled(values: FloatArray, unknown: float) -> FloatArray:
    """With the median of those that are known for the others, and `unknown` where none is."""
    known = values[np.isfinite(values)]
    return np.where(np.isfinite(values), values, np.median(known) if len(known) else unknown)


def _read_numbers(value: Any, name: str) -> FloatArray:
    """An array of nested lists; nan for null. Raises ValueError where rows differ in length, TypeError for what is no number."""
    plain = np.array(value, dtype=object).ravel()
    strange = next((x for x in plain if x is not None and type(x) not in (int, float)), None)
    if strange is not None:
        raise TypeError(f"{name} holds {strange!r}, not a number")
    return np.array(value, np.float64)


def _numbers(values: FloatArray) -> Any:
    """Nested lists; null for nan."""
    plain = values.astype(object)
    plain[~np.isfinite(values)] = None
    return plain.tolist()
