"""Three Spark jobs with shuffles, to be run by themselves or under a plan.

    python examples/spark_jobs.py
    partita spark run examples/spark_jobs.py --rate 20mbit -o first

join        orders and their lines meet, matched rows are scored by a small network, and meet again by region
aggregate   events are grouped by user, then by region; each group's medians with bootstrapped errors
iterative   rounds of gradient descent on rows that are dealt anew between the rounds

Tables are made from a seed: blocks of random rows, so that nothing has to be downloaded and nothing compresses. The size of
one, how much is computed on each row, partitions and rounds:

    --conf spark.app.megabytes=10 --conf spark.app.effort=1 --conf spark.app.partitions=4 --conf spark.app.rounds=4
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

Pair = tuple[int, np.ndarray]  #: a partition's number and a block of rows for it
COLUMNS = 64


def jobs(spark):
    """Name -> (RDD, what to do with it). Nothing runs before that is done."""
    ask = spark.conf.get
    megabytes, effort = float(ask("spark.app.megabytes", "10")), float(ask("spark.app.effort", "1"))
    parts, rounds = int(ask("spark.app.partitions", "4")), int(ask("spark.app.rounds", "4"))

    def rows_of(share: float) -> int:
        return max(8, int(share * megabytes * 1e6 / parts / COLUMNS / 8))

    def table(seed: int, share: float, ids: int | None = None):
        """[rows, COLUMNS] random numbers, whole ones below `ids` in column 0, or each once; `share` times the megabytes in all."""
        rows = rows_of(share)

        def make(part: int) -> Iterator[Pair]:
            found = np.random.default_rng([seed, part]).random((rows, COLUMNS))
            found[:, 0] = np.arange(part, rows * parts, parts) if ids is None else np.floor(found[:, 0] * ids)
            return dealt(found, parts)

        return spark.sparkContext.parallelize(range(parts), parts).flatMap(make)

    def times(count: float) -> int:
        return max(1, round(count * effort))

    orders, lines = table(1, 0.4), table(2, 2.6, rows_of(0.4) * parts)
    events, points = table(3, 2.2, 1000), table(4, 0.6, 1000)
    matched = orders.cogroup(lines, parts).flatMap(lambda row: dealt(joined(*row[1], times(10)), parts, 2))
    join = matched.groupByKey(parts).map(lambda row: scored(gathered(row[1]), times(12)))

    users = events.groupByKey(parts).flatMap(lambda row: dealt(medians(gathered(row[1]), times(60)), parts, 2))
    aggregate = users.groupByKey(parts).map(lambda row: medians(gathered(row[1]), times(30)))

    for k in range(rounds):
        points = points.partitionBy(parts, int).mapPartitions(Epoch(times(1000), parts, k + 2))
    iterative = points.map(lambda pair: pair[1])

    return {"join": (join, total), "aggregate": (aggregate, total), "iterative": (iterative, total)}


def total(rdd) -> float:
    return round(sum(rdd.map(lambda rows: float(rows.sum())).collect()), 3)


def dealt(rows: np.ndarray, parts: int, column: int = 0) -> Iterator[Pair]:
    """The rows by the remainder of column 0, or by the size of what stands in another."""
    owner = (
        rows[:, column].astype(np.int64) % parts if column == 0 else (np.argsort(np.argsort(rows[:, column])) % parts)
    )
    return ((p, rows[owner == p]) for p in range(parts))


def gathered(blocks: Iterable[np.ndarray]) -> np.ndarray:
    """The rows of all blocks, in an order that does not depend on which came first."""
    rows = np.concatenate(list(blocks))
    return rows[np.argsort(rows[:, 1], kind="stable")]


def joined(orders: Iterable[np.ndarray], lines: Iterable[np.ndarray], times: int) -> np.ndarray:
    """Lines and their orders added up and scored; column 0 stays."""
    left, right = gathered(orders), gathered(lines)
    left = left[np.argsort(left[:, 0])]
    place = np.searchsorted(left[:, 0], right[:, 0]).clip(max=len(left) - 1)
    found = left[place, 0] == right[:, 0]
    return np.concatenate([right[found, :1], scored(left[place[found]] + right[found], times)[:, 1:]], axis=1)


def scored(rows: np.ndarray, times: int) -> np.ndarray:
    """Rows through a network of `times` layers."""
    weights = np.random.default_rng(0).normal(0, COLUMNS**-0.5, (COLUMNS, COLUMNS))
    for _ in range(times):
        rows = np.maximum(rows @ weights, 0.01 * rows)
    return rows


def medians(rows: np.ndarray, times: int) -> np.ndarray:
    """Rows less the mean of `times` bootstrapped medians of their columns; column 0 stays."""
    rng = np.random.default_rng(0)
    found = [np.median(rows[rng.integers(0, len(rows), len(rows) // 8 + 1)], axis=0) for _ in range(times)]
    return np.concatenate([rows[:, :1], rows[:, 1:] - np.mean(found, axis=0)[1:]], axis=1)


def descended(rows: np.ndarray, times: int) -> np.ndarray:
    """Rows less what `times` steps of gradient descent explain of column 1; column 0 stays."""
    weights = np.zeros(COLUMNS - 2)
    for _ in range(times):
        weights -= 0.01 * rows[:, 2:].T @ (rows[:, 2:] @ weights - rows[:, 1]) / len(rows)
    rows[:, 1] -= rows[:, 2:] @ weights
    return rows


class Epoch:
    """One round on the rows of a partition, which are then dealt by the size of what stands in a column."""

    def __init__(self, times: int, parts: int, column: int) -> None:
        self.times, self.parts, self.column = times, parts, column

    def __call__(self, pairs: Iterable[Pair]) -> Iterator[Pair]:
        rows = gathered(block for _, block in pairs)
        return dealt(descended(rows, self.times), self.parts, self.column)


if __name__ == "__main__":
    from pyspark.sql import SparkSession

    session = SparkSession.builder.getOrCreate()
    for name, (rdd, action) in jobs(session).items():
        print(name, action(rdd))
    session.stop()
