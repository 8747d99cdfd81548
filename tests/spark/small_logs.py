"""Event logs as Spark 3.5 writes them, a few events long, made here line by line."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

ZERO_MS = 1_700_000_000_000

Event = dict[str, Any]


def head(spark: str = "3.5.8", **conf: str) -> list[Event]:
    properties = {"spark.master": "spark://10.0.0.1:7077", "spark.sql.adaptive.enabled": "false", **conf}
    return [
        {"Event": "SparkListenerLogStart", "Spark Version": spark},
        {"Event": "SparkListenerResourceProfileAdded", "Resource Profile Id": 0},
        {"Event": "SparkListenerEnvironmentUpdate", "Spark Properties": properties},
    ]


def end() -> list[Event]:
    return [{"Event": "SparkListenerApplicationEnd", "Timestamp": ZERO_MS + 99_000}]


def stage_info(
    number: int, parents: Sequence[int] = (), attempt: int = 0, name: str = "", rdd: int | None = None
) -> Event:
    last = number * 10 + 5 if rdd is None else rdd
    rdds = [{"RDD ID": last, "Name": "x"}, {"RDD ID": last - 1, "Name": "y"}]
    return {
        "Stage ID": number,
        "Stage Attempt ID": attempt,
        "Stage Name": name or f"map at app.py:{number}",
        "RDD Info": rdds,
        "Parent IDs": list(parents),
    }


def job_start(number: int, at_s: float, stages: Sequence[Event], **properties: str) -> Event:
    named = {k.replace("__", "."): v for k, v in properties.items()}
    return {
        "Event": "SparkListenerJobStart",
        "Job ID": number,
        "Submission Time": ZERO_MS + round(1000 * at_s),
        "Stage Infos": list(stages),
        "Stage IDs": [s["Stage ID"] for s in stages],
        "Properties": named,
    }


def job_end(number: int, at_s: float, result: str = "JobSucceeded") -> Event:
    return {
        "Event": "SparkListenerJobEnd",
        "Job ID": number,
        "Completion Time": ZERO_MS + round(1000 * at_s),
        "Job Result": {"Result": result},
    }


def submitted(info: Event) -> Event:
    return {"Event": "SparkListenerStageSubmitted", "Stage Info": info}


def completed(info: Event, why: str | None = None) -> Event:
    return {
        "Event": "SparkListenerStageCompleted",
        "Stage Info": info if why is None else {**info, "Failure Reason": why},
    }


def task(
    stage: int, index: int, start_s: float, end_s: float, *, wait_s: float = 0.0, requests_s: float = 0.0, remote: int = 0,
    executor: str = "0", reason: str = "Success", old: bool = False, partition: int | None = None,
) -> Event:  # fmt: skip
    """A task that runs from its launch to its end; `old`: as Spark before 3.5 tells it."""
    reads: dict[str, Any] = {
        "Fetch Wait Time": round(1000 * wait_s),
        "Remote Bytes Read": remote,
        "Local Bytes Read": 0,
    }
    if not old:
        reads["Remote Requests Duration"] = round(1000 * requests_s)
    return {
        "Event": "SparkListenerTaskEnd",
        "Stage ID": stage,
        "Stage Attempt ID": 0,
        "Task End Reason": {"Reason": reason},
        "Task Info": {
            "Index": index,
            **({} if partition is None else {"Partition ID": partition}),
            "Launch Time": ZERO_MS + round(1000 * start_s),
            "Finish Time": ZERO_MS + round(1000 * end_s),
            "Executor ID": executor,
        },
        "Task Metrics": {
            "Executor Run Time": round(1000 * (end_s - start_s)),
            "Executor CPU Time": 0,
            "Shuffle Read Metrics": reads,
        },
    }


def written(events: Sequence[Mapping[str, Any]]) -> bytes:
    return b"".join(json.dumps(e).encode() + b"\n" for e in events)


def two_stages() -> list[Event]:
    """A job whose first stage computes for 2 s, and whose second fetches for 3 s (2 of them waited for), then computes 1 s."""
    first, second = stage_info(0), stage_info(1, [0])
    return [
        *head(),
        job_start(0, 0.0, [second, first]),
        submitted(first),
        task(0, 0, 0.0, 2.0),
        task(0, 1, 0.0, 2.0, executor="1"),
        completed(first),
        submitted(second),
        task(1, 0, 2.0, 6.0, wait_s=2.0, requests_s=3.0, remote=3_000_000),
        task(1, 1, 2.0, 5.0, wait_s=1.0, requests_s=2.0, remote=2_000_000, executor="1"),
        completed(second),
        job_end(0, 6.0),
        *end(),
    ]


def gated(rounds: int = 1, policy: str = "one-by-one", network_s: float = 1.5) -> list[Event]:
    """What `partita spark run` leaves of one job of two stages: compute 1 s, fetch `network_s`, compute 2 s."""
    events, number, at = head(), 0, 0.0
    for k in range(rounds):
        for stage, machine, parents, length in (
            (0, "cpu", "[]", 1.0),
            (1, "network", "[0]", network_s),
            (1, "cpu", "[0]", 2.0),
        ):
            marks = {
                "partita__round": str(k), "partita__job": "a", "partita__policy": policy, "partita__parents": parents,
                "partita__phase": f"{stage} {machine}", "partita__began_ms": str(ZERO_MS + round(1000 * at)),
                "spark__job__description": f"a, stage {stage}, {machine}: map at app.py:{stage}",
            }  # fmt: skip
            events += [job_start(number, at + 0.1, [stage_info(number)], **marks), job_end(number, at + length)]
            number, at = number + 1, at + length
    return [*events, *end()]
