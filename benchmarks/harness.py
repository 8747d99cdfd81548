"""What all benchmarks share: alternatives in turn, a machine that is watched, one document, verdicts on what is claimed.

    order(names, round)        who goes first in this round: everybody equally often
    in_turn(works, rounds)     every alternative once a round -> its samples, [rounds] each
    sandwiched(mine, works, rounds)   likewise, with one of them before and after each of the others
    Machine                    probes before, between and after; `finished()` goes into the document
    run_script(...)            a benchmark's `main`: options, errors, --json

intervals.py makes intervals of ratios and verdicts, machine_probe.py the probes, side_by_side.py the limit of the machine.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import resource
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import ModuleType
from typing import Any

from intervals import Claim, Interval, sentences, verdict
from machine_probe import cores_to_probe, drift_of, probes

from partita.cli.talk import Talk
from partita.errors import PartitaError
from partita.page.machine import machine_facts

Json = dict[str, Any]


def loaded(path: Path) -> ModuleType:
    """A file as a module, wherever it lies: a wing's name may also be a script's of this folder."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# ---- taking turns -------------------------------------------------------------------------------------------------------


def order(names: Sequence[str], turn: int) -> list[str]:
    """The names as they go in round number `turn` (from 0): rotated by one each round, backwards in every other cycle.

    In each cycle of len(names) rounds everybody is first once; over two of them everybody follows others equally often
    from both sides, so that what one leaves behind in caches falls on all alike.

    >>> [" ".join(order("abc", k)) for k in range(6)]
    ['a b c', 'b c a', 'c a b', 'c b a', 'b a c', 'a c b']
    """
    cycle, k = divmod(turn, len(names))
    rotated = [*names[k:], *names[:k]]
    return rotated[::-1] if cycle % 2 else rotated


@dataclass(frozen=True)
class Samples:
    """An alternative's counted calls, one a round or several."""

    wall_s: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)  #: by `in_turn`'s `cpu`
    results: list[Any] = field(default_factory=list)

    @property
    def median_s(self) -> float:
        return statistics.median(self.wall_s)

    @property
    def range_s(self) -> list[float]:
        return [min(self.wall_s), max(self.wall_s)]

    def take(self, work: Callable[[], Any], cpu: Callable[[], float]) -> None:
        """Call it, and count that."""
        used, began = cpu(), time.perf_counter()
        result = work()
        self.wall_s.append(time.perf_counter() - began)
        self.cpu_s.append(cpu() - used)
        self.results.append(result)

    def to_json(self) -> Json:
        return {"wall_s": self.wall_s, "cpu_s": self.cpu_s}


def in_turn(
    works: Mapping[str, Callable[[], Any]],
    rounds: int,
    *,
    warmup: int = 0,
    between: Callable[[], object] | None = None,
    cpu: Callable[[], float] | None = None,
) -> dict[str, Samples]:
    """Call every alternative once a round, in the order of `order`; `warmup` rounds before are not counted.

    `between` is called before every counted round, e.g. to probe the machine. `cpu`: CPU seconds so far; those of this process
    and its ended children where it is left out. O(rounds x alternatives).
    """
    names, found = list(works), {n: Samples() for n in works}
    for turn in range(-warmup, rounds):
        if between is not None and turn >= 0:
            between()
        for name in order(names, turn):
            (found[name] if turn >= 0 else Samples()).take(works[name], cpu or cpu_seconds)
    return found


def sandwiched(
    mine: str,
    works: Mapping[str, Callable[[], Any]],
    rounds: int,
    *,
    between: Callable[[], object] | None = None,
    cpu: Callable[[], float] | None = None,
) -> tuple[dict[str, Samples], dict[str, list[float]]]:
    """As `in_turn` after a warm-up, with `mine` before and after each of the others: (samples; for each of the others the mean
    seconds of the two of `mine` beside it, [rounds]), so that what the machine drifts by from one to the next cancels out."""
    others = {n: w for n, w in works.items() if n != mine}
    found, beside = {n: Samples() for n in works}, dict[str, list[float]]((n, []) for n in others)
    for work in works.values():
        work()
    for turn in range(rounds):
        if between is not None:
            between()
        found[mine].take(works[mine], cpu or cpu_seconds)
        for name in order(list(others), turn):
            for which in (name, mine):
                found[which].take(works[which], cpu or cpu_seconds)
            beside[name].append(statistics.fmean(found[mine].wall_s[-2:]))
    return found, beside


def cpu_seconds() -> float:
    """CPU time of this process and of its children that have ended."""
    rows = (resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN))
    return sum(r.ru_utime + r.ru_stime for r in rows)


# ---- the machine --------------------------------------------------------------------------------------------------------


def facts(*packages: str) -> Json:
    """Machine, versions, load, time; versions of these packages too, where they are installed."""
    found = machine_facts()
    for name in ("numpy", *packages):
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


@dataclass(frozen=True)
class Machine:
    """The machine of a run, watched by probes."""

    probe: Callable[[str], Json]
    facts: Json
    probed: list[Json] = field(default_factory=list)
    began_s: float = field(default_factory=time.monotonic)
    cpu_before_s: float = field(default_factory=cpu_seconds)

    def look(self, when: str) -> None:
        """Probe now."""
        self.probed.append(self.probe(when))

    def look_again(self, every_s: float = 0.0) -> None:
        """Probe between two parts, unless the last probe is younger than `every_s`."""
        if not self.probed or time.monotonic() - self.probed[-1]["at_s"] >= every_s:
            self.look("between")

    def drift(self, since: int = 0) -> Json:
        """What the probes say so far, from number `since` on; see machine_probe.drift_of."""
        return drift_of(self.probed[since:])

    def verdicts(self, claims: Mapping[str, tuple[Claim, Interval]], since: int = 0) -> Json:
        """A verdict for each claimed figure, by what the probes say so far."""
        drift = self.drift(since)["drift"]
        return {name: verdict(claim, found, drift) for name, (claim, found) in claims.items()}

    def record(self, since: int = 0) -> Json:
        """What stands beside the figures: the probes from number `since` on. CPU time is of this process and its ended children."""
        return {
            "facts": self.facts, "load": [self.facts["load"], list(os.getloadavg())], "drift": self.drift(since),
            "probes": self.probed[since:], "wall_s": time.monotonic() - self.began_s, "cpu_s": cpu_seconds() - self.cpu_before_s,
        }  # fmt: skip

    def finished(self) -> Json:
        """Probes once more; the record of all."""
        self.look("after")
        return self.record()


@contextlib.contextmanager
def watched(*packages: str) -> Iterator[Machine]:
    """This machine, probed once before anything else."""
    with probes(cores_to_probe()) as probe:
        machine = Machine(probe, facts(*packages))
        machine.look("before")
        yield machine


# ---- a script -----------------------------------------------------------------------------------------------------------


def parser(doc: str | None) -> argparse.ArgumentParser:
    """With the script's own text as its help, and --json."""
    found = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--json", action="store_true", help="one JSON document on stdout, every sample in it")
    return found


def run_script(
    options: argparse.Namespace,
    benchmark: Callable[[Machine, Talk], Any],
    text: Callable[[Any], str],
    packages: Sequence[str] = (),
    failed: Callable[[Any], bool] = lambda document: False,
) -> int:
    """Run a benchmark on the watched machine and print its document, as JSON or as text; returns the exit code."""
    talk = Talk.to_stderr()
    try:
        with watched(*packages) as machine:
            document = benchmark(machine, talk)
    except PartitaError as error:
        talk.error(str(error))
        return error.exit_code
    print(json.dumps(document) if options.json else text(document))
    sys.stdout.flush()
    return int(failed(document))


def said(document: Mapping[str, Any]) -> str:
    """Verdicts and the machine, for a terminal."""
    return f"{sentences(document['verdicts'])}\n{machine_line(document['machine_record'])}"


def machine_line(record: Mapping[str, Any]) -> str:
    """The machine in a line."""
    about, drift = record["facts"], record["drift"]
    return (
        f"{about['machine']}, {about['cores']} cores; {len(record['probes'])} probes: a core's speed varied by {drift['spread']:.0%}, "
        f"at least {drift['least_share']:.0%} of it was received, all at once are {drift['together']:.2f} of one; "
        f"load {about['load'][0]:.2f} before; {record['cpu_s']:.1f} CPU-s in {record['wall_s']:.1f} s"
    )
