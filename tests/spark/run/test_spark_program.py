"""The program's contract, the lineage's stages, Java, and what a run refuses: all without Spark."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from partita.cli import main
from partita.errors import BadInput, JobError, MissingDependency, PlanError
from partita.spark.plan.planner import plan_spark
from partita.spark.problem import ShopJob, ShopProblem, ShopStage
from partita.spark.run import java
from partita.spark.run.cluster import existing
from partita.spark.run.driver import gate_of, matched, problem_of
from partita.spark.run.gate import Phase
from partita.spark.run.lineage import entries, stages_of
from partita.spark.run.program import load_jobs, work_of
from partita.spark.run.told import Ask

# ---- a lineage that stands in for Java's --------------------------------------------------------------------------------


class Rows(list[Any]):
    def size(self) -> int:
        return len(self)

    def apply(self, k: int) -> Any:
        return self[k]


@dataclass
class Named:
    name: str

    def getSimpleName(self) -> str:
        return self.name


@dataclass
class Dependency:
    of: FakeRdd
    kind: str

    def rdd(self) -> FakeRdd:
        return self.of

    def getClass(self) -> Named:
        return Named(self.kind)


@dataclass
class FakeRdd:
    number: int
    narrow: list[FakeRdd] = field(default_factory=list)
    wide: list[FakeRdd] = field(default_factory=list)

    def id(self) -> int:
        return self.number

    def dependencies(self) -> Rows:
        return Rows([Dependency(r, "OneToOneDependency") for r in self.narrow] + [Dependency(r, "ShuffleDependency") for r in self.wide])  # fmt: skip

    def getCreationSite(self) -> str:
        return f"made at {self.number}"


def joined() -> FakeRdd:
    """left 0-1, right 2-3, both shuffled into 4 and 5, joined in 6, shuffled into 8."""
    left, right = FakeRdd(1, [FakeRdd(0)]), FakeRdd(3, [FakeRdd(2)])
    both = FakeRdd(6, [FakeRdd(5, wide=[right]), FakeRdd(4, wide=[left])])
    return FakeRdd(9, [FakeRdd(8, wide=[both])])


def test_stages_are_cut_at_shuffles_and_numbered_as_made() -> None:
    stages = stages_of(joined())
    assert [(s.rdd.id(), s.parents, s.dependency is None) for s in stages] == [(1, (), False), (3, (), False), (6, (0, 1), False), (9, (2,), True)]  # fmt: skip
    assert [r.id() for r in entries(stages[2], frozenset())] == [4, 5]
    assert stages[2].name == "made at 6"


def test_what_stands_behind_a_kept_rdd_is_not_read_again() -> None:
    stage = stages_of(joined())[2]
    assert [r.id() for r in entries(stage, frozenset({5}))] == [4]
    assert entries(stage, frozenset({6})) == []


def test_a_shuffle_read_twice_is_one_stage() -> None:
    source = FakeRdd(0)
    stages = stages_of(FakeRdd(5, [FakeRdd(3, wide=[source]), FakeRdd(4, wide=[source])]))
    assert [(s.rdd.id(), s.parents) for s in stages] == [(0, ()), (5, (0,))]


# ---- plans ----------------------------------------------------------------------------------------------------------------


def test_a_plan_of_the_same_jobs_fits_in_any_order(tmp_path: Path) -> None:
    chain = (ShopStage(0.0, 1.0), ShopStage(1.0, 1.0, (0,)))
    seen = problem_of(["a", "b"], [stages_of(FakeRdd(3, wide=[FakeRdd(0)]))] * 2)
    plan = tmp_path / "plan.json"
    planned = ShopProblem((ShopJob(chain, name="b"), ShopJob(chain, name="a")))
    plan_spark(planned, "fifo").write(plan)
    assert matched(planned, seen, "it") == [1, 0]
    gate = gate_of(Ask(0, "plan", str(plan)), ["a", "b"], [stages_of(FakeRdd(3, wide=[FakeRdd(0)]))] * 2)
    for phase in gate.begin():
        gate.done(phase)
    assert gate.begin() == [Phase(1, 0, "cpu")]


@pytest.mark.parametrize(
    ("jobs", "said"),
    [
        ((ShopJob((ShopStage(0, 1),), name="c"),), "the program has a"),
        ((ShopJob((ShopStage(0, 1),), name="a"),), "1 stages of job 'a' and the program 2"),
        ((ShopJob((ShopStage(0, 1), ShopStage(0, 1)), name="a"),), "other parents"),
    ],
)
def test_a_plan_of_other_jobs_is_refused(jobs: tuple[ShopJob, ...], said: str) -> None:
    seen = problem_of(["a"], [stages_of(FakeRdd(3, wide=[FakeRdd(0)]))])
    with pytest.raises(PlanError, match=said) as found:
        matched(ShopProblem(jobs), seen, "plan.json")
    assert found.value.hint


# ---- the program ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = 1", "no function jobs"),
        ("1 / 0", "division by zero"),
        ("import nothing_of_that_name", "nothing_of_that_name"),
        ("def jobs(spark): raise ValueError('no table')", "no table"),
        ("def jobs(spark): return []", "gave list"),
        ("def jobs(spark): return {}", "gave no job"),
        ("def jobs(spark): return {'a': 3}", "'a' is a int"),
        ("def jobs(spark): return {'a': (spark, 3)}", "'a' is a int"),
    ],
)
def test_a_program_of_another_shape_is_refused(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "app.py").write_text(text)
    with pytest.raises(JobError, match=said) as found:
        work_of(load_jobs(tmp_path / "app.py"), "rdd", lambda x: x == "rdd")
    assert found.value.hint


def test_a_program_gives_its_jobs_and_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text("def jobs(spark): return {'a': (spark, lambda r: r + '!'), 'b': spark}")
    one, two = work_of(load_jobs(tmp_path / "app.py"), "rdd", lambda x: x == "rdd")
    assert (one.name, one.act(), two.name) == ("a", "rdd!", "b")


def test_the_example_defines_jobs() -> None:
    assert callable(load_jobs(Path(__file__).parents[3] / "examples" / "spark_jobs.py"))


# ---- what is missing --------------------------------------------------------------------------------------------------------


def test_without_pyspark_or_java_it_says_how_to_get_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(java.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingDependency, match="PySpark is not installed") as found:
        java.spark_home()
    assert "partita[spark]" in found.value.hint
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(MissingDependency, match="there is none") as lost:
        java.java_home()
    assert "partita[spark]" in lost.value.hint


@pytest.mark.parametrize(("said", "version"), [('openjdk version "17.0.15" 2025', 17), ('java version "1.8.0_301"', 8), ('openjdk version "25" 2025', 25), ("nothing", None)])  # fmt: skip
def test_the_version_of_a_java(tmp_path: Path, said: str, version: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "java"
    program.write_text(f"#!/bin/sh\necho '{said}' >&2\n")
    os.chmod(program, 0o755)
    assert java.java_version(tmp_path) == version
    monkeypatch.setattr(java, "_candidates", lambda: [("that", tmp_path)])
    if version in java.VERSIONS:
        assert java.java_home() == tmp_path
    else:
        with pytest.raises(MissingDependency, match="that is"):
            java.java_home()


@pytest.mark.parametrize(
    "url", ["local[2]", "spark://", "spark://h", "http://h:1", "spark://h:99999999", "spark://h:x"]
)
def test_a_master_of_another_kind_is_refused(url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("partita.spark.run.cluster.spark_home", lambda: tmp_path)
    monkeypatch.setattr("partita.spark.run.cluster.java_home", lambda: tmp_path)
    with pytest.raises(BadInput, match="no master"):
        existing(url)


def test_a_master_that_does_not_answer_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("partita.spark.run.cluster.spark_home", lambda: tmp_path)
    monkeypatch.setattr("partita.spark.run.cluster.java_home", lambda: tmp_path)
    with pytest.raises(BadInput, match="nothing answers"):
        existing("spark://127.0.0.1:9")


@pytest.mark.parametrize(
    "flags",
    [
        [],
        ["--rate", "20mbit", "--master", "spark://h:1"],
        ["--rate", "20mbps"],
        ["--rate", "20mbit", "--slots", "0"],
        ["--rate", "20mbit", "--rounds", "0"],
        ["--rate", "20mbit", "--conf", "x"],
        ["--rate", "20mbit", "--order", "p", "--policy", "fifo"],
        ["--rate", "20mbit", "--order", "none.json"],
    ],
)
def test_flags_that_make_no_sense_end_with_2(tmp_path: Path, flags: list[str]) -> None:
    (tmp_path / "app.py").write_text("def jobs(spark): ...")
    assert main(["spark", "run", str(tmp_path / "app.py"), *flags]) == 2
