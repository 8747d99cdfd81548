"""A program that can be run by a plan: a Python file with a function `jobs(spark)`.

    def jobs(spark):
        pairs = spark.sparkContext.textFile("visits").map(parse).groupByKey().mapValues(summary)
        return {"visits": (pairs, lambda rdd: rdd.collect())}

It returns name -> (RDD, action), or name -> RDD, which is then counted. What `jobs` makes is lazy: it starts no Spark job
of its own; the action is the one thing that does. Of a DataFrame give `df.rdd`.
"""

from __future__ import annotations

import runpy
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from partita.errors import JobError, place_of, sentence_of

SHAPE = 'return {"name": (rdd, lambda rdd: rdd.collect()), ..}'
Jobs = Callable[[Any], Any]


class Work(NamedTuple):
    """One job."""

    name: str
    rdd: Any  #: a pyspark RDD
    action: Callable[[Any], Any]

    def act(self) -> Any:
        return self.action(self.rdd)


def load_jobs(path: str | Path) -> Jobs:
    """The file's function `jobs`. Raises JobError where there is none, or where the file fails."""
    if not Path(path).is_file():
        raise JobError(f"{path} is no file", hint="give a Python file with a function jobs(spark)")
    try:
        found = runpy.run_path(str(path), run_name="partita_spark_app").get("jobs")
    except Exception as error:
        raise JobError(
            f"{path} failed{place_of(error)}: {sentence_of(error)}", hint="run it by itself first"
        ) from error
    if not callable(found):
        raise JobError(f"{path} has no function jobs(spark)", hint=SHAPE)
    jobs: Jobs = found
    return jobs


def work_of(jobs: Jobs, spark: Any, is_rdd: Callable[[Any], bool]) -> tuple[Work, ...]:
    """What the function gives for a session. Raises JobError where it fails, or gives something else."""
    try:
        found = jobs(spark)
    except Exception as error:
        raise JobError(f"jobs(spark) failed{place_of(error)}: {sentence_of(error)}", hint="run the program by itself first") from error  # fmt: skip
    if not isinstance(found, Mapping) or not found:
        raise JobError(
            f"jobs(spark) gave {type(found).__name__ if not isinstance(found, Mapping) else 'no job'}", hint=SHAPE
        )
    return tuple(_work(str(name), row, is_rdd) for name, row in found.items())


def _work(name: str, row: Any, is_rdd: Callable[[Any], bool]) -> Work:
    rdd, action = row if isinstance(row, tuple) and len(row) == 2 else (row, lambda rdd: rdd.count())
    if not is_rdd(rdd) or not callable(action):
        wrong = type(rdd).__name__ if not is_rdd(rdd) else type(action).__name__
        hint = "give df.rdd of a DataFrame" if wrong == "DataFrame" else SHAPE
        raise JobError(f"job {name!r} is a {wrong}, not an RDD and what to do with it", hint=hint)
    return Work(name, rdd, action)
