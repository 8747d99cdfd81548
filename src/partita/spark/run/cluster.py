"""A standalone master and workers on shaped hosts of the test bed, and a driver on a host of its own.

    h0, h1, ..    a worker each, on one core, with a link of the rate asked for
    the last      the master and the driver, with a link that does not count

All of it listens on addresses of the test bed's own namespaces, and ends with it: also when whoever started it is killed.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from partita.errors import BadInput, PartitaError
from partita.spark.run.java import environment, java_home, spark_home
from partita.spawn import end, ended_how, last_line
from partita.temporary import temporary_folder
from partita.testbed.hosts import Testbed

PORT = 7077
START_S = 60.0  #: the longest that master and workers may take to find each other
WIDE = "1gbit"  #: the driver's link
FREE_MB = 256  #: of a worker's memory, beyond its executor's


@dataclass(frozen=True)
class Part:
    """One process of the cluster."""

    name: str  #: "the worker on h1"
    process: subprocess.Popen[bytes]
    log: Path


@dataclass(frozen=True)
class SparkCluster:
    """Where a driver finds its master."""

    master: str
    address: str  #: that the driver listens on
    environment: Mapping[str, str]
    launch: Callable[[Sequence[str]], Sequence[str]]  #: the words that run words where the driver is to run
    parts: tuple[Part, ...] = ()

    def check(self) -> None:
        """Raise PartitaError where a part has ended."""
        for part in self.parts:
            code = part.process.poll()
            if code is not None:
                raise PartitaError(
                    f"{part.name} {ended_how(code)}: {last_line(part.log) or 'it said nothing'}",
                    hint="start the run again",
                )


def existing(master: str) -> SparkCluster:
    """The cluster behind spark://HOST:PORT, with the driver on this machine. Raises BadInput where nothing answers."""
    home, java = spark_home(), java_home()
    host, port = _parts(master)
    try:
        with socket.create_connection((host, port), timeout=5.0) as reached:
            address = str(reached.getsockname()[0])
    except OSError as error:
        raise BadInput(f"nothing answers at {master}: {error}", hint="start a master, or give --rate for hosts made here") from error  # fmt: skip
    return SparkCluster(master, address, environment(home, java), list)


def _parts(master: str) -> tuple[str, int]:
    with contextlib.suppress(ValueError):
        found = urlsplit(master)
        if found.scheme == "spark" and found.hostname and found.port and not found.path:
            return found.hostname, found.port
    raise BadInput(f"{master!r} is no master", hint="write spark://HOST:PORT")


@contextlib.contextmanager
def shaped(workers: int, rate: str, cores: int, memory_mb: int) -> Iterator[SparkCluster]:
    """A cluster of `workers` hosts whose links have a rate; each runs `cores` tasks at once on one core of this machine.

    Raises MissingDependency without PySpark or Java, BadInput where no test bed can be made, PartitaError where a part
    does not start.
    """
    home, java = spark_home(), java_home()
    env = environment(home, java)
    allowed = sorted(os.sched_getaffinity(0))
    with (
        temporary_folder("spark") as logs,
        Testbed.up(hosts=workers + 1, rates=[*[rate] * workers, WIDE]) as bed,
    ):
        last = f"h{workers}"
        url = f"spark://{bed.address(last)}:{PORT}"

        def start(host: str, core: int | None, name: str, *words: str) -> Part:
            log = logs / f"{host}-{name}.log"
            own = {**env, "SPARK_LOCAL_IP": bed.address(host), "SPARK_LOCAL_DIRS": str(logs / host)}
            pin = ["taskset", "-c", str(core)] if core is not None else []
            spark = [
                str(home / "bin" / "spark-class"),
                f"org.apache.spark.deploy.{name}",
                "--host",
                bed.address(host),
            ]
            with log.open("wb") as out:
                process = bed.popen(
                    host, [*pin, *spark, "--webui-port", "0", *words],
                    stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=own, start_new_session=True,
                )  # fmt: skip
            return Part(f"the {name.rpartition('.')[2].lower()} on {host}", process, log)

        parts: list[Part] = []
        try:
            parts.append(start(last, None, "master.Master", "--port", str(PORT)))
            _await(parts[-1:], "I have been elected leader")
            for k in range(workers):
                room = [
                    "--cores",
                    str(cores),
                    "--memory",
                    f"{memory_mb + FREE_MB}m",
                    "--work-dir",
                    str(logs / f"work{k}"),
                ]
                parts.append(start(f"h{k}", allowed[k % len(allowed)], "worker.Worker", *room, url))
            _await(parts[1:], "Successfully registered with master")
            driver = {**env, "SPARK_LOCAL_IP": bed.address(last), "SPARK_LOCAL_DIRS": str(logs / "driver")}
            yield SparkCluster(url, bed.address(last), driver, lambda words: bed.command(last, words), tuple(parts))
        finally:
            end([part.process for part in parts])


def _await(parts: Sequence[Part], sentence: str) -> None:
    """Wait until all have written the sentence. Raises PartitaError where one ends first, or takes longer than START_S."""
    deadline = time.monotonic() + START_S
    for part in parts:
        while sentence not in part.log.read_text(errors="replace"):
            if part.process.poll() is not None or time.monotonic() > deadline:
                late = part.process.poll() is None
                how = f"did not start within {START_S:g} s" if late else ended_how(part.process.returncode)
                raise PartitaError(f"{part.name} {how}: {last_line(part.log) or 'it said nothing'}", hint="see whether Java runs and memory is free")  # fmt: skip
            time.sleep(0.05)
