"""Training: an evolution of weights on episodes of the compiled simulators, in steps that can be stopped and gone on with.

The same lesson and seed give the same weights after the same number of generations, whether or not training was stopped in
between.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from safetensors.numpy import save

from partita.errors import CheckpointError
from partita.files import read_bytes, write_whole
from partita.nouns.graph import FloatArray
from partita.solve.evolution import Evolution, drawn, moved
from partita.spark.plan.learned.lessons import Episode, Lesson
from partita.spark.plan.learned.policy import LENGTHS, Mode, facts_of, read_tensors

FORMAT, VERSION = "partita-spark-training", 2
POINTS = 20  #: weights tried in a generation
SAVE_S = 20.0  #: between checkpoints


@dataclass(frozen=True, eq=False)
class Training:
    """Where training stands."""

    mode: Mode
    search: Evolution
    of: str = ""  #: a digest of what is trained on
    spent_s: float = 0.0

    @staticmethod
    def begun(lesson: Lesson, seed: int, of: str = "") -> Training:
        return Training(lesson.mode, Evolution.at(lesson.start, lesson.spread, seed), of)

    def write(self, path: str | Path) -> Path:
        s = self.search
        numbers = np.array([s.size, s.generation, s.seed, self.spent_s])
        tensors = {"mean": s.mean, "shape": s.shape, "path": s.path, "size_path": s.size_path, "numbers": numbers}
        return write_whole(
            path, save(tensors, {"format": FORMAT, "version": str(VERSION), "mode": self.mode, "of": self.of})
        )

    @staticmethod
    def read(path: str | Path, mode: Mode, seed: int, of: str = "") -> Training:
        """Raises BadInput for what is no checkpoint of this version, CheckpointError for one of another training."""
        found = read_tensors(path, FORMAT, VERSION)
        says = facts_of(read_bytes(path, CheckpointError))
        try:
            size, generation, search_seed, spent = found["numbers"].tolist()
            mean, shape, step, size_path = (found[k] for k in ("mean", "shape", "path", "size_path"))
            n = len(mean)
            sound = n == LENGTHS[mode] and shape.shape == (n, n) and step.shape == size_path.shape == mean.shape == (n,)
            sound = sound and all(np.isfinite(t).all() for t in found.values()) and size > 0
        except (LookupError, ValueError, TypeError) as error:
            raise CheckpointError(f"{path} is damaged: {error}", hint="delete it and train again") from error
        hint = "give the same flags as before, another -o, or delete it"
        if (says.get("mode"), search_seed) != (mode, seed):
            raise CheckpointError(f"{path} is of a training of mode {says.get('mode')!r} with seed {search_seed:g}, not {mode!r} with {seed}", hint=hint)  # fmt: skip
        if not sound:
            raise CheckpointError(f"{path} is damaged: its tensors do not fit", hint="delete it and train again")
        if says.get("of") != of:
            raise CheckpointError(f"{path} is of a training on other jobs, or executors", hint=hint)
        search = Evolution(mean, shape, step, size_path, size, int(generation), seed)
        return Training(mode, search, of, spent)


def trained(
    lesson: Lesson,
    training: Training,
    *,
    budget_s: float,
    threads: int = 1,
    keep: Callable[[Training], None],
    most_generations: int = 1 << 30,
) -> Training:
    """Go on until training has taken `budget_s` in all; `keep` is called every SAVE_S seconds, and at the end."""
    saved = time.monotonic()
    with ThreadPoolExecutor(threads) as pool:
        while training.spent_s < budget_s and training.search.generation < most_generations:
            began = time.monotonic()
            training = _generation(lesson, training, pool)
            training = replace(training, spent_s=training.spent_s + time.monotonic() - began)
            if time.monotonic() - saved > SAVE_S:
                keep(training)
                saved = time.monotonic()
    keep(training)
    return training


def _generation(lesson: Lesson, training: Training, pool: ThreadPoolExecutor) -> Training:
    """One more; every point plays every episode."""
    search = training.search
    points = drawn(search, POINTS)

    def played(episode: Episode) -> FloatArray:
        found = np.array([episode(w) for w in points])
        return np.asarray(found / found.mean(), np.float64)

    values = np.sum(list(pool.map(played, lesson.episodes(search.generation))), axis=0)
    return replace(training, search=moved(search, points, values))
