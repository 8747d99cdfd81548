"""A log becomes a problem: phases, ranges, parents, and what is to be said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from spark.small_logs import (  # fmt: skip
    ZERO_MS,
    completed,
    end,
    gated,
    head,
    job_end,
    job_start,
    stage_info,
    submitted,
    task,
    two_stages,
    written,
)

from partita.cli import main
from partita.errors import CaptureError
from partita.spark.capture.event_log import read_event_log
from partita.spark.capture.shop import Captured, capture
from partita.spark.problem import ShopProblem


def captured(tmp_path: Path, events: list[dict[str, Any]], **how: Any) -> Captured:
    (tmp_path / "app").write_bytes(written(events))
    return capture(read_event_log(tmp_path / "app"), **how)


def test_phases_come_from_the_tasks(tmp_path: Path) -> None:
    found = captured(tmp_path, two_stages())
    (job,) = found.problem.jobs
    first, second = job.stages
    assert (first.network_s, first.cpu_s, first.parents) == (0.0, 2.0, ())
    assert (second.network_s, second.cpu_s, second.parents) == (3.0, 2.0, (0,))
    assert second.network_range_s == (2.0, 3.0)  # what was fetched beside computing is hidden from Fetch Wait Time
    assert second.cpu_range_s == (2.0, 4.0)
    assert (found.source, found.notes, found.problem.check()) == ("tasks", (), [])


def test_with_the_rate_of_the_links_bytes_tell(tmp_path: Path) -> None:
    (job,) = captured(tmp_path, two_stages(), rate_bytes_per_s=2e6).problem.jobs
    assert job.stages[1].network_s == 1.5


def test_tasks_of_other_stages_widen_the_range_of_the_cpu(tmp_path: Path) -> None:
    one, two = stage_info(0), stage_info(1)
    events = [*head(), job_start(0, 0.0, [one]), job_start(1, 0.0, [two]), submitted(one), submitted(two)]
    events += [
        task(0, 0, 0.0, 4.0),
        task(1, 0, 0.0, 4.0),
        completed(one),
        completed(two),
        job_end(0, 4),
        job_end(1, 4),
        *end(),
    ]
    jobs = captured(tmp_path, events).problem.jobs
    assert [j.stages[0].cpu_range_s for j in jobs] == [(2.0, 4.0)] * 2


def test_of_rounds_without_phases_the_last_whole_one_is_taken(tmp_path: Path) -> None:
    events = head()
    for k in range(3):
        one = stage_info(k)
        marks = {"partita__round": str(k), "partita__job": "a", "partita__policy": "fifo"}
        events += [job_start(k, 10 * k, [one], **marks), submitted(one), task(k, 0, 10 * k, 10 * k + 3 - k)]
        events += [completed(one), job_end(k, 10 * k + 3 - k)] if k < 2 else []
    found = captured(tmp_path, events)
    (job,) = found.problem.jobs
    assert (job.name, job.stages[0].cpu_s) == ("a", 2.0)
    assert "of 3 rounds the last whole one is here: Java was warm" in found.notes


def test_releases_are_when_jobs_were_submitted_or_together(tmp_path: Path) -> None:
    one, two = stage_info(0), stage_info(1)
    events = [*head(), job_start(0, 0.0, [one]), submitted(one), task(0, 0, 0, 1), completed(one), job_end(0, 1)]
    events += [job_start(1, 2.5, [two]), submitted(two), task(1, 0, 2.5, 3), completed(two), job_end(1, 3), *end()]
    assert [j.release_s for j in captured(tmp_path, events).problem.jobs] == [0.0, 2.5]
    assert [j.release_s for j in captured(tmp_path, events, together=True).problem.jobs] == [0.0, 0.0]


def test_stages_are_numbered_as_the_program_made_them(tmp_path: Path) -> None:
    late, early, last = stage_info(0, rdd=9), stage_info(1, rdd=4), stage_info(2, [0, 1], rdd=12)
    events = [*head(), job_start(0, 0, [last, late, early])]
    for k, info in enumerate((late, early, last)):
        events += [submitted(info), task(k, 0, k, k + 1.0 + k), completed(info)]
    (job,) = captured(tmp_path, [*events, job_end(0, 6), *end()]).problem.jobs
    assert [s.cpu_s for s in job.stages] == [2.0, 1.0, 3.0]
    assert job.stages[2].parents == (0, 1)


def test_a_stage_tried_again_for_one_lost_partition_keeps_the_others(tmp_path: Path) -> None:
    """The second attempt counts its tasks from 0; partition 1 is what it computes."""
    first, again = stage_info(0), stage_info(0, attempt=1)
    events = [
        *head(),
        job_start(0, 0, [first]),
        submitted(first),
        task(0, 0, 0, 5, partition=0),
        task(0, 1, 0, 2, executor="1", partition=1),
        completed(first, "it was lost"),
        submitted(again),
        task(0, 0, 5, 8, executor="1", partition=1),
        completed(again),
        job_end(0, 8),
        *end(),
    ]
    (job,) = captured(tmp_path, events).problem.jobs
    assert job.stages[0].cpu_s == 5.0  # of the slower executor: partition 0's, not lost, beside 3 s of the new one


def test_skipped_retried_failed_and_unfinished_stages_are_said(tmp_path: Path) -> None:
    first, again = stage_info(0), stage_info(0, attempt=1)
    shared, second = stage_info(0), stage_info(1, [0])
    left = stage_info(3)
    events = [
        *head(),
        job_start(0, 0, [first]),
        submitted(first),
        task(0, 0, 0, 1, reason="FetchFailed"),
        completed(first, "it was lost"),
        submitted(again),
        task(0, 0, 1, 3),
        completed(again),
        job_end(0, 3),
        job_start(1, 3, [shared, second]),
        submitted(second),
        task(1, 0, 3, 4),
        completed(second),
        job_end(1, 4, "JobFailed"),
        job_start(2, 4, [left]),
        submitted(left),
    ]
    found = captured(tmp_path, events)
    assert [[s.cpu_s for s in j.stages] for j in found.problem.jobs] == [[2.0], [1.0]]
    assert found.problem.jobs[1].stages[0].parents == ()
    said = " ".join(found.notes)
    for words in ("1 tasks failed", "1 stages were skipped", "tried more than once", "1 jobs failed", "1 stages were not finished", "running or had crashed"):  # fmt: skip
        assert words in said


def test_adaptive_execution_is_said_where_it_split_a_query(tmp_path: Path) -> None:
    events = head(**{"spark.sql.adaptive.enabled": "true"})
    for k in (0, 1):
        info = stage_info(k)
        events += [job_start(k, k, [info], spark__sql__execution__id="7"), submitted(info), task(k, 0, k, k + 1), completed(info), job_end(k, k + 1)]  # fmt: skip
    assert any(
        "adaptive" in n and "spark.sql.adaptive.enabled=false" in n for n in captured(tmp_path, [*events, *end()]).notes
    )


def test_a_log_without_a_network_or_its_times_says_what_to_do(tmp_path: Path) -> None:
    info = stage_info(0)
    run = [job_start(0, 0, [info]), submitted(info), task(0, 0, 0, 1), completed(info), job_end(0, 1), *end()]
    local = captured(tmp_path, [*head(**{"spark.master": "local[2]"}), *run])
    assert any("local[2]" in n and "standalone" in n for n in local.notes)
    run[2] = task(0, 0, 0, 1, wait_s=0.5, remote=10, old=True)
    old = captured(tmp_path, [*head("3.3.0"), *run])
    assert any("Remote Requests Duration" in n and "--rate" in n for n in old.notes)


def test_names_of_events_reach_no_method_that_is_none_of_theirs(tmp_path: Path) -> None:
    plain = captured(tmp_path, two_stages())
    odd = [{"a": 1, "Event": "SparkListener_init__"}, {"a": 1, "Event": "SparkListenerhead"}, {"a": 1, "Event": "_job"}]
    assert captured(tmp_path, [*two_stages()[:-1], *odd, two_stages()[-1]]).problem == plain.problem


def test_a_log_without_tasks_or_jobs_is_refused_with_a_hint(tmp_path: Path) -> None:
    info = stage_info(0)
    with pytest.raises(CaptureError, match="no tasks") as found:
        captured(tmp_path, [*head(), job_start(0, 0, [info]), submitted(info), completed(info), job_end(0, 1), *end()])
    assert "spark.eventLog.enabled" in found.value.hint
    with pytest.raises(CaptureError, match="no Spark job"):
        captured(tmp_path, [*head(), *end()])


def test_phases_of_our_own_run_are_taken_as_they_were(tmp_path: Path) -> None:
    found = captured(tmp_path, gated(2))
    (job,) = found.problem.jobs
    assert (found.source, job.name) == ("phases", "a")
    assert [(s.network_s, s.cpu_s, s.parents, s.name) for s in job.stages] == [
        (0.0, 1.0, (), "map at app.py:0"),
        (1.5, 2.0, (0,), "map at app.py:1"),
    ]
    assert job.stages[1].network_range_s == (1.5, 1.5)


def test_of_three_rounds_the_first_does_not_count(tmp_path: Path) -> None:
    events = gated(4)
    for e in events:  # the first round takes long
        if e["Event"].endswith("JobEnd") and e["Job ID"] == 2:
            e["Completion Time"] += 60_000
    assert captured(tmp_path, events).problem.jobs[0].stages[1].cpu_s == 2.0


@pytest.mark.parametrize(
    ("where", "value"),
    [
        (("Stage Infos",), None),
        (("Submission Time",), "soon"),
        (("Submission Time",), -1),
        (("Submission Time",), 1e30),
        (("Stage Infos", 0, "Parent IDs"), 3),
        (("Stage Infos", 0, "Stage ID"), None),
        (("Properties",), 5),
        (("Job ID",), {}),
    ],
)
def test_jobs_of_another_shape_are_refused(tmp_path: Path, where: tuple[Any, ...], value: Any) -> None:
    events = two_stages()
    at: Any = next(e for e in events if e["Event"].endswith("JobStart"))
    for key in where[:-1]:
        at = at[key]
    at[where[-1]] = value
    with pytest.raises(CaptureError):
        captured(tmp_path, events)


@pytest.mark.parametrize(("key", "value"), [("partita.phase", "x"), ("partita.phase", "1"), ("partita.parents", "[[1]]"), ("partita.began_ms", "no"), ("partita.parents", "[7]")])  # fmt: skip
def test_marks_that_make_no_sense_are_refused(tmp_path: Path, key: str, value: str) -> None:
    events = gated()
    for e in events:
        if e["Event"].endswith("JobStart") and e["Job ID"] == 2:
            e["Properties"][key] = value
    with pytest.raises(CaptureError):
        captured(tmp_path, events)


def test_the_verb_writes_a_problem_that_can_be_planned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "app").write_bytes(written(two_stages()))
    out = tmp_path / "problem.json"
    assert main(["spark", "capture", str(tmp_path / "app"), "-o", str(out), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["source"], said["spark"], len(said["jobs"])) == ("tasks", "3.5.8", 1)
    assert len(ShopProblem.read(out)) == 2
    assert main(["spark", "capture", str(tmp_path / "app")]) == 0
    assert "2.00 s .. 3.00 s" in capsys.readouterr().out
    assert main(["spark", "capture", str(tmp_path / "none")]) == 2


def test_the_clock_of_the_log_is_known(tmp_path: Path) -> None:
    (tmp_path / "app").write_bytes(written(two_stages()))
    assert read_event_log(tmp_path / "app").zero_s == ZERO_MS / 1e3
