"""The driver: a process on a host that the workers reach. Rounds in, answers out, a line of JSON each.

    python -m partita.spawn partita.spark.run.driver told.json

A phase is one Spark job or a few, each marked by local properties, so that the event log tells what it was. Fetching: what a
stage reads of shuffles is kept (persisted) and counted. Computing: the stage's map side alone is submitted (Spark's
`submitMapStage`, as adaptive execution does), or, for a job's last stage, its action runs; either reads what is kept.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from partita.errors import BadInput, JobError, PartitaError, PlanError, sentence_of
from partita.files import parse_json, read_json
from partita.records import record
from partita.spark.problem import ShopJob, ShopProblem, ShopStage
from partita.spark.run.gate import Gate, Phase, needs_of, one_by_one, orders_of, pass_through
from partita.spark.run.lineage import LineageStage, entries, stages_of
from partita.spark.run.program import Work, load_jobs, work_of
from partita.spark.run.told import BEGAN, JOB, PARENTS, PHASE, POLICY, ROUND, Answer, Ask, Told
from partita.spark.schedule import ShopFile, Start

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LONGEST_RESULT = 200  #: characters of a result that are told
WAIT_S = 60.0  #: for executors: tasks that begin before all are there lie, with what they write, on the first one


def session_of(told: Told) -> SparkSession:
    """The session: an event log, no web page, pools that share fairly, everything on the one address."""
    from pyspark.sql import SparkSession

    conf = {
        "spark.driver.host": told.address,
        "spark.driver.bindAddress": told.address,
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": Path(told.events).absolute().as_uri(),
        "spark.eventLog.gcMetrics.youngGenerationGarbageCollectors": "G1 Young Generation,G1 Concurrent GC",
        "spark.cores.max": str(told.cores * told.executors),
        "spark.executor.cores": str(told.cores),
        "spark.executor.memory": f"{told.memory_mb}m",
        "spark.log.level": "ERROR",
        "spark.scheduler.mode": "FAIR",  # the default pool is served first in, first out within
        "spark.sql.adaptive.enabled": "false",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        **told.conf,
    }
    builder: Any = SparkSession.builder
    builder = builder.master(told.master).appName(Path(told.app).stem)
    for key, value in conf.items():
        builder = builder.config(key, value)
    session: SparkSession = builder.getOrCreate()
    _await_executors(session, told.executors)
    return session


def _await_executors(spark: SparkSession, wanted: int) -> None:
    tracker: Any = spark.sparkContext._jsc.sc().statusTracker()
    deadline = time.monotonic() + WAIT_S
    while (there := len(tracker.getExecutorInfos()) - 1) < wanted:  # the driver is one of them
        if time.monotonic() > deadline:
            raise PartitaError(
                f"{there} of {wanted} executors came within {WAIT_S:g} s",
                hint="give the workers the cores and the memory that --slots and --memory-mb ask for",
            )
        time.sleep(0.1)


class Cluster:
    """A session that carries phases out."""

    def __init__(self, spark: SparkSession) -> None:
        self.context = spark.sparkContext
        self._java: Any = self.context._jsc
        jvm: Any = self.context._jvm
        self._level = jvm.org.apache.spark.storage.StorageLevel
        self._threads = jvm.org.apache.spark.util.ThreadUtils
        self._forever = jvm.scala.concurrent.duration.Duration.create("Inf")
        self._held: dict[int, tuple[Any, set[Phase]]] = {}  # entry -> (it, computations that read it)
        self._lock = threading.Lock()

    def mark(self, **properties: str | None) -> None:
        """Set this thread's local properties, which its Spark jobs bear in the event log."""
        for key, value in properties.items():
            self.context.setLocalProperty(key, value)

    def fetch(self, phase: Phase, stage: LineageStage) -> None:
        """Keep and count what the stage reads of shuffles."""
        reader = phase._replace(machine="cpu")
        with self._lock:
            kept = self._kept_by_the_program()
            found = entries(stage, kept) if kept else stage.reads
            new = [rdd for rdd in found if rdd.id() not in self._held]
            ours = [rdd for rdd in new if not rdd.getStorageLevel().isValid()]  # others the program persists itself
            for rdd in ours:
                self._held[rdd.id()] = (rdd.persist(self._level_of(rdd)), set())
            for rdd in found:
                if rdd.id() in self._held:
                    self._held[rdd.id()][1].add(reader)
        for rdd in new:
            rdd.count()

    def compute(self, phase: Phase, stage: LineageStage, work: Work) -> Any:
        """Write the stage's shuffle, or act; what was kept for it alone is let go."""
        found = None
        if stage.dependency is None:
            found = work.act()
        else:
            self._threads.awaitResult(self._java.sc().submitMapStage(stage.dependency), self._forever)
        with self._lock:
            for number, (rdd, readers) in list(self._held.items()):
                readers.discard(phase)
                if not readers:
                    rdd.unpersist(False)
                    del self._held[number]
        return found

    def release(self) -> None:
        """Let go of whatever is still kept; phases may be on their way still."""
        with self._lock:
            for rdd, _ in self._held.values():
                rdd.unpersist(False)
            self._held.clear()

    def _kept_by_the_program(self) -> frozenset[int]:
        """Numbers of the RDDs that the program itself persists and of which every partition is there."""
        if self._java.sc().getPersistentRDDs().size() == len(self._held):
            return frozenset()
        rows = list(self._java.sc().getRDDStorageInfo())
        return frozenset(r.id() for r in rows if r.numCachedPartitions() == r.numPartitions()) - self._held.keys()

    def _level_of(self, rdd: Any) -> Any:
        """Rows of a DataFrame's shuffle are one buffer that is used again: those are kept in written form."""
        rows = str(rdd.getClass().getSimpleName()) == "ShuffledRowRDD"
        return self._level.MEMORY_AND_DISK_SER() if rows else self._level.MEMORY_AND_DISK()


def play(cluster: Cluster, works: Sequence[Work], ask: Ask) -> tuple[Any, ...]:
    """One round. [jobs] what the actions gave. Raises PlanError for a plan of another program."""
    from pyspark import InheritableThread

    cluster.mark(**{ROUND: str(ask.number), POLICY: ask.policy})
    results: list[Any] = [None] * len(works)
    if ask.policy in ("fifo", "fair"):
        errors: list[BaseException] = []

        def run_whole(j: int) -> None:
            pool = works[j].name if ask.policy == "fair" else None
            cluster.mark(**{JOB: works[j].name, BEGAN: _now_ms(), "spark.scheduler.pool": pool})
            try:
                results[j] = works[j].act()
            except BaseException as error:
                errors.append(error)

        threads = [InheritableThread(target=run_whole, args=(j,), daemon=True) for j in range(len(works))]
        for t in threads:
            t.start()
            time.sleep(0.02)  # first in, first out needs a first
        for t in threads:
            t.join()
        if errors:
            raise errors[0]
        return tuple(results)
    stages = [stages_of(w.rdd._jrdd.rdd()) for w in works]
    _refuse_shared(works, stages)
    gate = gate_of(ask, [w.name for w in works], stages)

    def carry_out(phase: Phase) -> None:
        stage, work = stages[phase.job][phase.stage], works[phase.job]
        if phase.machine == "network" and not stage.parents:
            return
        marks = {JOB: work.name, PHASE: f"{phase.stage} {phase.machine}", PARENTS: json.dumps(stage.parents)}
        cluster.mark(
            **marks, **{BEGAN: _now_ms(), "spark.scheduler.pool": f"{work.name} {phase.stage} {phase.machine}"}
        )
        cluster.context.setJobDescription(f"{work.name}, stage {phase.stage}, {phase.machine}: {stage.name}")
        if phase.machine == "network":
            cluster.fetch(phase, stage)
        else:
            found = cluster.compute(phase, stage, work)
            if stage.dependency is None:
                results[phase.job] = found

    try:
        pass_through(gate, carry_out, InheritableThread)
    except BaseException:
        cluster.context.cancelAllJobs()
        raise
    finally:
        cluster.release()
    return tuple(results)


def _now_ms() -> str:
    return f"{time.time() * 1e3:.0f}"


def gate_of(ask: Ask, names: Sequence[str], stages: Sequence[Sequence[LineageStage]]) -> Gate:
    """The gate of a plan, or of one phase at a time. Raises PlanError for a plan of another program."""
    seen = problem_of(names, stages)
    if ask.plan is None:
        rows = [range(len(row)) for row in stages]
        each = [
            Start(j, s, float(k), float(k))
            for k, (j, s) in enumerate((j, s) for j, row in enumerate(rows) for s in row)
        ]
        orders, needs = orders_of(each, seen), one_by_one(seen, rows)
    else:
        file = ShopFile.read(ask.plan)
        at = matched(file.problem, seen, ask.plan)
        orders = orders_of([Start(at[r.job], r.stage, r.network_start_s, r.cpu_start_s) for r in file.schedule], seen)
        needs = needs_of(seen)
    free = frozenset(p for p in needs if p.machine == "network" and not seen.jobs[p.job].stages[p.stage].parents)
    return Gate(orders, needs, free)


def problem_of(names: Sequence[str], stages: Sequence[Sequence[LineageStage]]) -> ShopProblem:
    """The program as a problem whose times are not known."""
    return ShopProblem(
        tuple(
            ShopJob(tuple(ShopStage(0.0, 0.0, s.parents, s.name) for s in row), 0.0, name)
            for name, row in zip(names, stages, strict=True)
        )
    )


def matched(planned: ShopProblem, seen: ShopProblem, path: str) -> list[int]:
    """[planned jobs] the job of the program that each is, by name. Raises PlanError where they are not the same jobs."""
    at = {job.name: j for j, job in enumerate(seen.jobs)}
    names = [job.name for job in planned.jobs]
    if sorted(names) != sorted(at):
        raise PlanError(f"{path} is for the jobs {', '.join(names)}; the program has {', '.join(at)}", hint="plan a log of this program")  # fmt: skip
    for job in planned.jobs:
        here = seen.jobs[at[job.name]]
        one, two = ([tuple(sorted(set(s.parents))) for s in j.stages] for j in (job, here))
        if one != two:
            raise PlanError(
                f"{path} has {len(one)} stages of job {job.name!r} and the program {len(two)}, or other parents",
                hint="capture a log of this program as it is now, and plan again",
            )
    return [at[name] for name in names]


def _refuse_shared(works: Sequence[Work], stages: Sequence[Sequence[LineageStage]]) -> None:
    """Raise JobError where two jobs read one shuffle: whose it is nobody could tell."""
    owner: dict[int, str] = {}
    for work, row in zip(works, stages, strict=True):
        for stage in row:
            other = owner.setdefault(stage.rdd.id(), work.name)
            if other != work.name:
                raise JobError(f"jobs {other!r} and {work.name!r} share the stage {stage.name}", hint="make them one job, or build the RDD twice")  # fmt: skip


def answer_to(cluster: Cluster, told: Told, spark: SparkSession, ask: Ask) -> Answer:
    """A round, and how it went. A Partita error is told with its hint, another one by its first sentence."""
    from pyspark import RDD

    try:
        cluster.mark(**dict.fromkeys((ROUND, POLICY)))  # what the program starts by itself belongs to no round
        works = work_of(load_jobs(told.app), spark, lambda x: isinstance(x, RDD))
        began = time.monotonic()
        results = play(cluster, works, ask)
        return Answer(
            time.monotonic() - began, tuple(w.name for w in works), tuple(repr(r)[:LONGEST_RESULT] for r in results)
        )
    except PartitaError as error:
        return Answer(error=error.message, hint=error.hint)
    except Exception as error:
        return Answer(
            error=_reason(error), hint="the job fails under a plan as it does without one: run the program by itself"
        )


def _reason(error: Exception) -> str:
    """The cause that a Java error names, or the error's first sentence."""
    java = getattr(error, "java_exception", None)
    if java is None:
        return sentence_of(error)
    lines = [line.strip() for line in str(java.toString()).splitlines() if line.strip()]
    cause = next((line for line in lines if "Error:" in line and not line.startswith("org.apache")), "")
    return f"{lines[0][:300]}{'; ' + cause[:300] if cause else ''}"


def _hint(reason: str) -> str:
    if "BindException" in reason or "Address already in use" in reason:
        return "the port is in use: leave spark.driver.port and spark.blockManager.port out, or give free ones"
    return "see the driver's log"


def main(path: str) -> None:
    """Start, say so, answer until the input ends."""
    out = _own_output()
    told = record(Told, read_json(path, BadInput), BadInput, path)
    try:
        spark = session_of(told)
    except PartitaError as error:
        _tell(out, Answer(error=error.message, hint=error.hint))
        return
    except Exception as error:
        _tell(out, Answer(error=_reason(error), hint=_hint(_reason(error))))
        return
    _tell(out, Answer())
    cluster = Cluster(spark)
    for line in sys.stdin:
        _tell(
            out,
            answer_to(cluster, told, spark, record(Ask, parse_json(line, BadInput, "a round"), BadInput, "a round")),
        )
    spark.stop()


def _own_output() -> TextIO:
    """stdout as it was; what the program and Java print there goes to stderr from now on."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return out


def _tell(out: TextIO, answer: Answer) -> None:
    out.write(json.dumps(asdict(answer)) + "\n")
    out.flush()


if __name__ == "__main__":
    main(sys.argv[1])
