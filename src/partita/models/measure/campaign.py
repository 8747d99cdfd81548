"""A measurement campaign: the time of a training step over many configurations, repeatable on a machine that is not quiet.

The configurations, in random order, are cut into blocks. The workers keep a block's models compiled; the block is visited
`passes` times, each time in another order, so that what disturbs the machine for a while falls on configurations that have
nothing in common, and not on all visits of one. Configurations whose visits do not agree are visited again. Every visit goes to
the journal at once, so a campaign that was killed goes on where it was.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

from partita.errors import Interrupted, MissingDependency, PartitaError, WorkerFailed
from partita.models.measure.crew import Crew, installed
from partita.models.measure.draw import draw
from partita.models.measure.file import Campaign
from partita.models.measure.networks import Configuration
from partita.models.measure.rows import Journal, Visit, agree, rows_of, write_rows

Progress = Callable[[str, int, int], None]


def run_campaign(
    path: str | Path, out: str | Path, *, progress: Progress, say: Callable[[str], None]
) -> dict[str, Any]:
    """Measure what the TOML file asks for, write Parquet; the document for `partita measure --campaign`.

    Raises BadInput for a file that cannot be used, MissingDependency without Keras or pyarrow, Interrupted on Ctrl-C,
    PartitaError where not one configuration could be measured.
    """
    campaign, out = Campaign.read(path), Path(out)
    skipped = check_packages(campaign)
    for sentence in skipped:
        say(sentence)
    there = installed(campaign.frameworks)
    configurations = tuple(c for c in draw(campaign) if c.framework in there)
    journal = Journal.open(out.with_name(out.name + ".journal"), campaign)
    crews = Crews(campaign)
    try:
        began = time.monotonic()
        Visits(campaign, journal, crews, progress, say, len(configurations)).make(configurations)
        return _finish(campaign, configurations, journal, out, skipped, time.monotonic() - began)
    except KeyboardInterrupt:
        safe = sum(len(journal.visits.get(c.key(), ())) >= campaign.passes for c in configurations)
        raise Interrupted(
            f"interrupted: {safe} of {len(configurations)} rows are safe in {journal.path}",
            hint="the same command goes on from there",
        ) from None
    finally:
        crews.close()
        journal.close()


def check_packages(campaign: Campaign) -> list[str]:
    """A sentence for every framework that is not installed. Raises MissingDependency where nothing can be measured."""
    missing = [p for p in ("keras", "pyarrow") if find_spec(p) is None]
    lost = [f for f in campaign.frameworks if f not in installed(campaign.frameworks)]
    if missing or len(lost) == len(campaign.frameworks):
        raise MissingDependency(
            f"a campaign needs {' and '.join(missing or lost)}", hint="pip install 'partita[campaign,predict]'"
        )
    return [f"{f} is not installed: its configurations are skipped" for f in lost]


@dataclass
class Crews:
    """The crews that run, started when they are first asked."""

    campaign: Campaign
    running: dict[tuple[str, int], Crew] = field(default_factory=dict)

    def visit(self, c: Configuration) -> Visit:
        """Raises WorkerFailed, having ended the crew: the next visit gets a fresh one."""
        key = (c.framework, c.workers)
        try:
            if key not in self.running:
                self.running[key] = Crew.start(c.framework, c.workers, self.campaign.timeout_s)
            load = os.getloadavg()[0]
            answer = self.running[key].visit(c, self.campaign.visit_s)
        except WorkerFailed:
            if key in self.running:
                self.running.pop(key).close()
            raise
        return Visit(**answer, load1=load, time=time.strftime("%Y-%m-%d %H:%M:%S"))

    def drop(self) -> None:
        """Let every crew forget what it has compiled; one that cannot is ended."""
        for key, crew in list(self.running.items()):
            try:
                crew.ask({"do": "drop"})
            except WorkerFailed:
                self.running.pop(key).close()

    def close(self) -> None:
        for crew in self.running.values():
            crew.close()
        self.running.clear()


@dataclass
class Visits:
    """Makes the visits that are still missing."""

    campaign: Campaign
    journal: Journal
    crews: Crews
    progress: Progress
    say: Callable[[str], None]
    total: int
    made: int = 0  #: in this run

    def make(self, configurations: Sequence[Configuration]) -> None:
        """Block by block; which block a configuration belongs to depends on the campaign alone."""
        order = list(configurations)
        random.Random(self.campaign.seed).shuffle(order)
        planned = self.campaign.passes * len(order)
        self.left = planned - sum(min(self.campaign.passes, len(self._of(c))) for c in order)
        for i in range(0, len(order), self.campaign.block):
            self._block(order[i : i + self.campaign.block], random.Random(f"{self.campaign.seed} {i}"))

    def _block(self, block: list[Configuration], chance: random.Random) -> None:
        """Passes over the block, each in another order, until all visits agree or there have been enough of them."""
        most = self.campaign.passes + self.campaign.extra
        for count in range(1, most + 1):
            wanted = [c for c in block if len(self._of(c)) < count and self._unsettled(c)]
            chance.shuffle(block)
            for c in sorted(wanted, key=block.index):
                self._visit(c)
        self.crews.drop()

    def _of(self, c: Configuration) -> Sequence[Visit]:
        return self.journal.visits.get(c.key(), ())

    def _unsettled(self, c: Configuration) -> bool:
        return c.key() not in self.journal.failures and not agree(self._of(c), self.campaign)

    def _visit(self, c: Configuration) -> None:
        key = c.key()
        if key in self.journal.failures:
            return
        again = len(self._of(c)) >= self.campaign.passes
        try:
            self.journal.add(key, self.crews.visit(c))
        except WorkerFailed as error:
            self.journal.fail(key, str(error))
            self.say(f"{key}: {error}; it is left out")
        self.made += not again
        self.progress("visits", min(self.made, self.left), self.left)


def _finish(
    campaign: Campaign,
    configurations: Sequence[Configuration],
    journal: Journal,
    out: Path,
    skipped: Sequence[str],
    wall_s: float,
) -> dict[str, Any]:
    from partita.page.machine import machine_facts

    rows = rows_of(configurations, journal.visits, campaign)
    if not rows:
        raise PartitaError(
            f"none of {len(configurations)} configurations could be measured",
            hint=next(iter(journal.failures.values()), ""),
        )
    facts = {**machine_facts(), "wall_s": wall_s, "campaign": campaign.fingerprint()}
    write_rows(out, rows, facts)
    return {
        "rows": str(out),
        "journal": str(journal.path),
        "count": len(rows),
        "wanted": len(configurations),
        "agree": sum(r["agree"] for r in rows),
        "visits": sum(r["visits"] for r in rows),
        "failed": [{"configuration": k, "reason": s} for k, s in journal.failures.items()],
        "skipped": list(skipped),
        "groups": _groups(rows),
        "facts": facts,
    }


def _groups(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """A line for every network, framework and worker count: rows, and the range of a step."""
    found: dict[tuple[str, str, int], list[dict[str, Any]]] = {}
    for r in rows:
        found.setdefault((r["network"], r["framework"], r["workers"]), []).append(r)
    return [
        {
            "network": network,
            "framework": framework,
            "workers": workers,
            "rows": len(group),
            "shortest_s": min(r["step_s"] for r in group),
            "median_s": median(r["step_s"] for r in group),
            "longest_s": max(r["step_s"] for r in group),
        }
        for (network, framework, workers), group in sorted(found.items())
    ]
