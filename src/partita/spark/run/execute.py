"""Rounds of a program on a cluster: starts the driver, asks it, watches everything, leaves nothing behind."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import IO

from partita.errors import BadInput, PartitaError
from partita.files import dump_json, parse_json, write_whole
from partita.records import record
from partita.spark.run.cluster import SparkCluster
from partita.spark.run.told import Answer, Ask, Policy, Told
from partita.spawn import PARENT, end, ended_how, last_line

MOST_S = 86_400.0


class Driver:
    """A driver that runs."""

    def __init__(self, process: subprocess.Popen[bytes], cluster: SparkCluster, log: Path) -> None:
        self._process, self._cluster, self._log = process, cluster, log
        self._asked = 0

    def round(self, policy: Policy, plan: Path | None = None, limit_s: float = MOST_S) -> tuple[int, Answer]:
        """(its number in the event log, how it went). Raises PartitaError where it failed, or a part of the cluster ended."""
        ask = Ask(self._asked, policy, None if plan is None else str(plan.absolute()))
        self._asked += 1
        out = self._process.stdin
        assert out is not None
        with contextlib.suppress(BrokenPipeError):  # the answer tells why
            out.write(json.dumps(asdict(ask)).encode() + b"\n")
            out.flush()
        return ask.number, self.answer(limit_s)

    def answer(self, limit_s: float) -> Answer:
        """The next line. Raises PartitaError for an error in it, an end, and a silence of `limit_s`."""
        into = self._process.stdout
        assert into is not None
        deadline = time.monotonic() + limit_s
        while not _readable(into, 0.2):
            self._cluster.check()
            if time.monotonic() > deadline:
                raise PartitaError(f"the driver has not answered for {limit_s:g} s", hint=f"last it said: {last_line(self._log)}")  # fmt: skip
        line = into.readline()
        if not line:
            self._cluster.check()
            code = self._process.wait()
            raise PartitaError(f"the driver {ended_how(code)}: {last_line(self._log) or 'it said nothing'}", hint="run the program by itself first")  # fmt: skip
        answer = record(Answer, parse_json(line, BadInput, "the driver's answer"), BadInput, "the driver's answer")
        if answer.error:
            raise PartitaError(answer.error, hint=answer.hint)
        return answer


def _readable(file: IO[bytes], wait_s: float) -> bool:
    return bool(select.select([file], [], [], wait_s)[0])


@contextlib.contextmanager
def driver(cluster: SparkCluster, told: Told, folder: Path, start_s: float = 120.0) -> Iterator[Driver]:
    """A driver with a session, its log in `folder`; ended, with its Java, on leaving the block."""
    path = write_whole(folder / "driver.json", dump_json(asdict(told)))
    log = folder / "driver.log"
    words = [sys.executable, "-P", "-m", "partita.spawn", "partita.spark.run.driver", str(path)]
    source = str(Path(__file__).parents[3])  # partita may lie on no path that a new interpreter has
    paths = os.pathsep.join([source, *filter(None, [os.environ.get("PYTHONPATH")])])
    env = {**cluster.environment, "PYTHONPATH": paths, "PYTHONUNBUFFERED": "1", PARENT: str(os.getpid())}
    with log.open("wb") as out:
        process = subprocess.Popen(
            cluster.launch(words),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=out,
            env=env,
            start_new_session=True,
        )
    try:
        found = Driver(process, cluster, log)
        found.answer(start_s)
        yield found
        assert process.stdin is not None
        process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(20.0)  # the event log gets its last line
    finally:
        end([process])
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
