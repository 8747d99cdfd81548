"""Explore and choose: 144 configurations in three nested levels, ours beside what people do, and what happens when things go wrong.

    python benchmarks/flow.py explore  [--set digits|mnist|cifar10|a9a --data DIR] [--rows 1300] [--rounds 6] [--json]
    python benchmarks/flow.py memory   a third of what all intermediates take against plenty, and Dask's own spilling beside it
    python benchmarks/flow.py pruning  100 random convex and 100 monotone cases, and 100 that are declared wrongly
    python benchmarks/flow.py overhead 10,000 tiny tasks
    python benchmarks/flow.py kills    a worker killed at random moments, 20 runs
    python benchmarks/flow.py again    a second run with one option changed, over a store
    python benchmarks/flow.py predicted  the total foreseen after a tenth of the work against the total measured

`explore` takes turns: one configuration after another in this process; `dask.delayed` once a configuration; with the sharing
written out by hand; joblib with its Memory cache (a fresh one each round), used as scikit-learn's pipelines use it, which hand
intermediates on, and as somebody would who knows that joblib digests what is handed on; ours. Dask's alternatives and ours connect to the same
scheduler and workers, a process a core with one thread each; all scores are checked to be the same. `--skip` leaves some out.
One after another, BLAS has all cores, as by default in a script: that is its best setting (12 configurations of 1,300 rows: 4.9 s,
against 6.8 s with one thread; 2 cores of a Xeon at 2.5 GHz, 2026-11-22). The others have a process a core, and one thread in each.
Every alternative has one turn that does not count, and flows run as users' commands run them: some steps twice, to see whether they
give the same again. CPU time is that of all workers too.

`memory` limits what results take by the run's own account, in which a result that lies on two workers counts once. Beside it, in
rounds of their own: by how much the resident memory of all workers grew, looked at every 20 ms. In that is all there is: results,
copies of them that were moved, and what tasks work with, which no limit of results bounds.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import math
import multiprocessing
import os
import random
import shutil
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import dask
import flow_jobs as jobs
import joblib
import psutil
from distributed import Client, LocalCluster
from harness import Json, Machine, Samples, cpu_seconds, in_turn, order, parser, run_script, said, sandwiched
from intervals import (
    MOST_DRIFT_ALONE,
    WITHIN_ROUNDS,
    Claim,
    Interval,
    bootstrap,
    ratio,
    ratio_within_rounds,
    within_rounds,
)

from partita.cli.talk import Talk
from partita.dataflow import choose, explore, largest, step, unfold
from partita.dataflow.run.launch import run_flow
from partita.dataflow.run.numbers import Numbers
from partita.dataflow.run.on_dask import Place, cluster
from partita.dataflow.store import Store

HERE = Path(__file__).parent
CORES = len(os.sched_getaffinity(0))
ALONE, ONCE, BY_HAND, OURS = "one after another", "dask.delayed once a configuration", "dask.delayed, sharing by hand", "ours"  # fmt: skip
MEMORY, SHORT_KEYS = "joblib with Memory", "joblib with Memory, short keys by hand"

LESS = Claim("at least 90 % less time than one after another", low=0.90, most_drift=WITHIN_ROUNDS)
TWICE = "at least twice as fast as {}"
#: Both run the same tasks on the same workers: that two are alike can only be told within a margin.
NOT_SLOWER = Claim(
    "not slower by 3 % than dask.delayed with the sharing written by hand", low=0.97, most_drift=WITHIN_ROUNDS
)
FASTER = Claim("faster than joblib with Memory and short keys by hand", low=1.0, most_drift=WITHIN_ROUNDS)
SAME = Claim("the same answers", low=1.0, high=1.0, most_drift=math.inf)
LITTLE_MEMORY = Claim("with a third of the memory at most 1.3 times the time", high=1.3)
ACCOUNT = Claim("by the run's own account results never take more than was allowed", high=1.0, most_drift=math.inf)
REAL_MEMORY = Claim(
    "with a third the workers' resident memory grows by less than with plenty", high=1.0, most_drift=math.inf
)
ALL_CASES = Claim("all cases", low=1.0, high=1.0, most_drift=math.inf)
FLAT = Claim("the scheduler's memory grows by at most 100 bytes a task", high=100.0, most_drift=math.inf)
A_MS = Claim("at most 1 ms a task", high=1e-3, most_drift=MOST_DRIFT_ALONE)
#: A run is held against what was foreseen in it: how the machine drifts from run to run cancels out.
FORESEEN = Claim(
    "after a tenth of the work the median run's total is foreseen within 15 %", high=0.15, most_drift=WITHIN_ROUNDS
)


def source_of(given: Any) -> jobs.Source:
    return jobs.Source(given.set, given.data or "", given.rows, given.components)


@contextlib.contextmanager
def workers() -> Iterator[tuple[Place, Client]]:
    """Processes, one a core, that have imported what the steps need."""
    with cluster(CORES) as place, place.client() as client:
        client.run(_ready, str(HERE))
        yield place, client


def _ready(folder: str) -> None:
    if folder not in sys.path:
        sys.path.append(folder)
    import flow_jobs  # noqa: F401


def cpu_seconds_of_all() -> float:
    """CPU time of this process and of all that it has started, directly or not, whether it still runs or has ended."""
    total = cpu_seconds()
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            total += sum(process.cpu_times()[:4])  # its own, and that of its children that have ended
    return total


def turns(works: Mapping[str, Callable[[], Any]], rounds: int, machine: Machine) -> dict[str, Samples]:
    """All in turn, after one turn of each that is not counted."""
    return in_turn(works, rounds, warmup=1, between=lambda: machine.look_again(20.0), cpu=cpu_seconds_of_all)


# ---- explore ------------------------------------------------------------------------------------------------------------


def one_after_another(source: jobs.Source) -> dict[jobs.Config, float]:
    return {c: jobs.alone(source, c) for c in jobs.configs()}


def computed(place: Place, each: Mapping[jobs.Config, Any]) -> dict[jobs.Config, float]:
    """By the cluster there, which everybody connects to first: so does a script."""
    with place.client() as client:
        return dict(zip(each, client.gather(client.compute(list(each.values()))), strict=True))


def once_a_configuration(source: jobs.Source, place: Place) -> dict[jobs.Config, float]:
    return computed(place, {c: dask.delayed(jobs.alone, pure=False)(source, c) for c in jobs.configs()})


def by_hand(source: jobs.Source, place: Place) -> dict[jobs.Config, float]:
    """What somebody writes who knows what is shared."""
    plain = (jobs.load, jobs.prepare, jobs.features, jobs.moments, jobs.fit, jobs.accuracy)
    load, prepare, features, moments, fit, accuracy = (dask.delayed(f, pure=False) for f in plain)
    data = load(source)
    prepared = {p: prepare(data, p) for p in jobs.PREPARED}
    made = {(p, f): features(prepared[p], f, source.components) for p in jobs.PREPARED for f in jobs.FEATURES}
    known = {at: moments(x) for at, x in made.items()}
    each = {}
    for c in jobs.configs():
        at = c.prepared, c.features
        each[c] = accuracy(fit(known[at], c.model, c.strength), made[at])
    return computed(place, each)


def _prepared(source: jobs.Source, prepared: str, folder: str) -> Any:
    return jobs.prepare(_kept(folder, jobs.load)(source), prepared)


def _features(source: jobs.Source, prepared: str, features: str, folder: str) -> Any:
    return jobs.features(_kept(folder, _prepared)(source, prepared, folder), features, source.components)


def _moments(source: jobs.Source, prepared: str, features: str, folder: str) -> Any:
    return jobs.moments(_kept(folder, _features)(source, prepared, features, folder))


def _kept(folder: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Of short arguments: those that are arrays joblib would read whole, and digest, each time."""
    return joblib.Memory(folder, verbose=0, mmap_mode="r").cache(function, ignore=["folder"] if function is not jobs.load else [])  # type: ignore[no-any-return]  # fmt: skip


def _cached(folder: str, source: jobs.Source, c: jobs.Config) -> float:
    keep = joblib.Memory(folder, verbose=0).cache
    data = keep(jobs.features)(keep(jobs.prepare)(keep(jobs.load)(source), c.prepared), c.features, source.components)
    return jobs.accuracy(jobs.fit(keep(jobs.moments)(data), c.model, c.strength), data)


def _cached_by_hand(folder: str, source: jobs.Source, c: jobs.Config) -> float:
    at = (source, c.prepared, c.features, folder)
    return jobs.accuracy(jobs.fit(_kept(folder, _moments)(*at), c.model, c.strength), _kept(folder, _features)(*at))


def joblib_memory(source: jobs.Source, cached: Callable[..., float] = _cached) -> dict[jobs.Config, float]:
    folder = tempfile.mkdtemp()
    try:
        each = list(jobs.configs())
        with joblib.parallel_config("loky", n_jobs=CORES, inner_max_num_threads=1):
            return dict(
                zip(each, joblib.Parallel()(joblib.delayed(cached)(folder, source, c) for c in each), strict=True)
            )
    finally:
        shutil.rmtree(folder)


def ours(source: jobs.Source, place: Place, **how: Any) -> Any:
    """The run's outcome; its scores by configuration are `scores_of`."""
    return run_flow(jobs.flow(source), scheduler=place, paths=[HERE], **how)


def scores_of(outcome: Any) -> dict[jobs.Config, float]:
    """The scores that the innermost choices compared."""
    found = {}
    for choice in outcome.record.choices:
        if choice.name == "model":
            for row in choice.scores:
                model = row.options["model"]
                strength = row.options[f"strength of {model}"]
                found[jobs.Config(choice.options["prepared"], choice.options["features"], model, float(strength))] = (
                    row.score
                )
    return found


def explored(given: Any, machine: Machine, talk: Talk) -> Json:
    source = source_of(given)
    with workers() as (place, _):
        works: dict[str, Callable[[], Any]] = {
            ALONE: lambda: one_after_another(source),
            ONCE: lambda: once_a_configuration(source, place),
            BY_HAND: lambda: by_hand(source, place),
            MEMORY: lambda: joblib_memory(source),
            SHORT_KEYS: lambda: joblib_memory(source, _cached_by_hand),
            OURS: lambda: ours(source, place),
        }
        works = {n: w for n, w in works.items() if n not in given.skip}
        talk.step(
            f"{len(list(jobs.configs()))} configurations of {source.name}, {given.rounds} rounds of {', '.join(works)}"
        )
        samples, beside = sandwiched(
            OURS, works, given.rounds, between=lambda: machine.look_again(20.0), cpu=cpu_seconds_of_all
        )
    outcomes = samples[OURS].results
    answers = {n: [scores_of(r) if n == OURS else r for r in s.results] for n, s in samples.items()}
    first = answers[next(iter(answers))][0]
    same = {n: all(_same(first, a) for a in rows) for n, rows in answers.items()}
    best = max(first, key=lambda c: first[c])
    claims: dict[str, tuple[Claim, Interval]] = {"same": (SAME, Interval.exact(float(all(same.values()))))}
    if ALONE in samples:
        claims["less"] = (LESS, within_rounds(lambda a, b: 1 - a / b, beside[ALONE], samples[ALONE].wall_s))
    for name in (ONCE, MEMORY):
        if name in samples:
            claim = Claim(TWICE.format(name), low=2.0, most_drift=WITHIN_ROUNDS)
            claims[name] = (claim, ratio_within_rounds(samples[name].wall_s, beside[name]))
    if SHORT_KEYS in samples:
        claims["short keys"] = (FASTER, ratio_within_rounds(samples[SHORT_KEYS].wall_s, beside[SHORT_KEYS]))
    if BY_HAND in samples:
        claims["by hand"] = (NOT_SLOWER, ratio_within_rounds(samples[BY_HAND].wall_s, beside[BY_HAND]))
    record = outcomes[-1].record
    return {
        "setting": {"set": source.name, "rows": source.rows, "configurations": len(first), "workers": CORES},
        "samples": {n: s.to_json() for n, s in samples.items()},
        "same": same,
        "best": {"configuration": vars(best), "score": first[best]},
        "chosen": [c.options for c in record.chosen],
        "totals": {k: v for k, v in record.totals().items() if k != "chosen"},
        **_judged(machine, claims),
    }


def _same(one: dict[jobs.Config, float], two: dict[jobs.Config, float]) -> bool:
    return one.keys() == two.keys() and all(two[c] is not None and abs(one[c] - two[c]) < 1e-12 for c in one)


def explored_text(d: Json) -> str:
    s, mine = d["setting"], statistics.median(d["samples"][OURS]["wall_s"])
    lines = [
        f"{s['configurations']} configurations of {s['set']}, {s['rows']} rows, {s['workers']} workers; best: {d['best']}"
    ]
    for name, sample in d["samples"].items():
        t = statistics.median(sample["wall_s"])
        lines.append(
            f"{name}: {t:.2f} s ({min(sample['wall_s']):.2f} to {max(sample['wall_s']):.2f}), {t / mine:.2f} times ours, {statistics.median(sample['cpu_s']):.2f} CPU-s; same answers: {d['same'][name]}"
        )
    return "\n".join([*lines, said(d)])


# ---- memory -------------------------------------------------------------------------------------------------------------


def memory(given: Any, machine: Machine, talk: Talk) -> Json:
    source = source_of(given)
    with workers() as (place, client):
        plenty = ours(source, place)
        all_bytes = sum(t.bytes for t in plenty.record.tasks)
        third = all_bytes / 3
        with spilling(third) as spiller:
            works: dict[str, tuple[Client, Callable[[], Any]]] = {
                "plenty": (client, lambda: ours(source, place)),
                "a third": (client, lambda: ours(source, place, memory_bytes=third)),
                "dask by hand, plenty": (client, lambda: by_hand(source, place)),
                "dask by hand, spilling at a third": (
                    spiller,
                    lambda: by_hand(source, Place(spiller.scheduler.address)),
                ),
            }
            samples = turns({name: work for name, (_, work) in works.items()}, given.rounds, machine)
            grown: dict[str, list[float]] = {name: [] for name in works}
            for turn in range(given.rounds):
                talk.progress("rounds of looking at memory", turn, given.rounds)
                for name in order(list(works), turn):
                    grown[name].append(grown_bytes(*works[name]))
    tight = [o.record for o in samples["a third"].results]
    claims = {
        "time": (LITTLE_MEMORY, ratio(samples["a third"].wall_s, samples["plenty"].wall_s)),
        "account": (ACCOUNT, Interval.exact(max(r.peak_bytes for r in tight) / third)),
        "real": (REAL_MEMORY, ratio(grown["a third"], grown["plenty"])),
    }
    return {
        "all_bytes": all_bytes, "resident_growth_bytes": grown, "peaks_by_account": {n: [o.record.peak_bytes for o in samples[n].results] for n in ("plenty", "a third")},
        "computed_again": [sum(t.runs - 1 for t in r.tasks if t.runs > 1) for r in tight], "dropped": [r.dropped for r in tight],
        "samples": {n: s.to_json() for n, s in samples.items()}, **_judged(machine, claims),
    }  # fmt: skip


def grown_bytes(client: Client, work: Callable[[], Any]) -> float:
    """By how much the resident memory of all workers together grew at most, while some work ran."""
    client.run(_tidied)
    with resident(list(client.run(os.getpid).values())) as seen:
        work()
    return float(max(seen) - seen[0])


def _tidied() -> None:
    """On a worker: what is free goes back to the system."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)


@contextlib.contextmanager
def resident(pids: Sequence[int], every_s: float = 0.02) -> Iterator[list[int]]:
    """Bytes of processes together: at first, and then again and again."""
    processes = [psutil.Process(p) for p in pids]

    def total() -> int:
        return sum(p.memory_info().rss for p in processes)

    seen, over = [total()], threading.Event()

    def look() -> None:
        while not over.wait(every_s):
            seen.append(total())

    looking = threading.Thread(target=look)
    looking.start()
    try:
        yield seen
    finally:
        over.set()
        looking.join()


@contextlib.contextmanager
def spilling(most_bytes: float) -> Iterator[Client]:
    """Workers of Dask that spill what is least recently used as soon as results take more than that, all together."""
    limit = 8 << 30
    how = {"target": most_bytes / CORES / limit, "spill": False, "pause": False, "terminate": False}
    with dask.config.set({f"distributed.worker.memory.{k}": v for k, v in how.items()}):
        made = LocalCluster(
            n_workers=CORES,
            threads_per_worker=1,
            host="127.0.0.1",
            dashboard_address="127.0.0.1:0",
            memory_limit=limit,
            silence_logs=50,
        )
        with made, Client(made, set_as_default=False) as client:
            client.run(_ready, str(HERE))
            yield client


def memory_text(d: Json) -> str:
    lines = [
        f"all intermediates: {d['all_bytes'] / 1e6:.0f} MB; by the run's own account at most {max(d['peaks_by_account']['plenty']) / 1e6:.0f} MB were held with plenty, {max(d['peaks_by_account']['a third']) / 1e6:.0f} MB with a third (a result on two workers counts once); computed again: {d['computed_again']}"
    ]
    lines += [
        f"{n}: {statistics.median(s['wall_s']):.2f} s; resident memory of all workers grew by {statistics.median(d['resident_growth_bytes'][n]) / 1e6:.0f} MB at most (results, copies, and what tasks work with)"
        for n, s in d["samples"].items()
    ]
    return "\n".join([*lines, said(d)])


# ---- pruning ------------------------------------------------------------------------------------------------------------


@step
def value_at(values: tuple[float, ...], k: int) -> float:
    return values[k]


@step
def itself(value: float) -> float:
    return value


def shaped_case(kind: str, dice: random.Random) -> tuple[float, ...]:
    """Scores of 5 to 60 options: convex (rises to its best, falls after it, at any speed), monotone, or neither."""
    n = dice.randrange(5, 61)
    if kind == "convex":
        top = dice.randrange(n)
        down = sorted((-dice.expovariate(1.0) for _ in range(n)), reverse=True)
        found = [0.0] * n
        for k in sorted(range(n), key=lambda k: abs(k - top)):
            found[k] = 0.0 if k == top else found[k + 1 if k < top else k - 1] + down[k]
        return tuple(found)
    if kind == "monotone":
        rows = sorted(dice.random() for _ in range(n))
        return tuple(rows if dice.random() < 0.5 else rows[::-1])
    return tuple(dice.random() for _ in range(n))


def chosen_by_flow(values: tuple[float, ...], shape: str | None) -> Any:
    at = explore("k", list(range(len(values))), ordered=True)
    found = value_at(values, at)
    return run_flow(choose(found, by=itself(found), over="k", select=largest(), shape=shape), workers=0)


def pruning(given: Any, machine: Machine, talk: Talk) -> Json:
    rows: dict[str, list[Json]] = {}
    for kind, shape in (("convex", "convex"), ("monotone", "monotone"), ("declared wrongly", "convex")):
        dice = random.Random(kind)
        rows[kind] = []
        for k in range(given.cases):
            talk.progress(f"{kind} cases", k, given.cases)
            values = shaped_case(kind, dice)
            record = (outcome := chosen_by_flow(values, shape)).record
            told = any(c.contradiction for c in record.choices)
            seen = [s.score for s in record.choices[0].scores if s.score is not None]
            rows[kind].append(
                {
                    "options": len(values),
                    "never_run": record.branches_pruned,
                    "right": outcome.value == max(values),
                    "told": told,
                    "seen": not one_peak(seen),
                }
            )
    share = {kind: statistics.fmean(r["right"] for r in found) for kind, found in rows.items()}
    honest = [r["told"] or not r["seen"] for r in rows["declared wrongly"]]
    claims = {
        "convex": (ALL_CASES, Interval.exact(share["convex"])),
        "monotone": (ALL_CASES, Interval.exact(share["monotone"])),
        "no alarm where the declaration is right": (
            ALL_CASES,
            Interval.exact(float(not any(r["told"] for kind in ("convex", "monotone") for r in rows[kind]))),
        ),
        "declared wrongly: told wherever a score that was seen contradicts it": (
            ALL_CASES,
            Interval.exact(statistics.fmean(honest)),
        ),
    }
    return {"cases": rows, "right": share, **_judged(machine, claims)}


def one_peak(scores: Sequence[float]) -> bool:
    """Whether scores rise to a peak and fall from there: all that a few of a convex sequence can tell.

    >>> one_peak([1.0, 2.0, 2.0, 0.5]), one_peak([1.0, 0.0, 2.0])
    (True, False)
    """
    top = scores.index(max(scores))
    rising, falling = scores[: top + 1], scores[top:]
    return list(rising) == sorted(rising) and list(falling) == sorted(falling, reverse=True)


def pruning_text(d: Json) -> str:
    lines = []
    for kind, rows in d["cases"].items():
        never, options = sum(r["never_run"] for r in rows), sum(r["options"] for r in rows)
        lines.append(
            f"{kind}: {never} of {options} branches never ran; the exhaustive choice in {sum(r['right'] for r in rows)} of {len(rows)}; a contradiction seen in {sum(r['seen'] for r in rows)}, told in {sum(r['told'] for r in rows)}"
        )
    return "\n".join([*lines, said(d)])


# ---- overhead -----------------------------------------------------------------------------------------------------------


@step
def number_of(a: int, b: int) -> int:
    return a + b


@step
def plus(a: int, b: int) -> int:
    return a + b


def tiny(tasks: int) -> Any:
    """Two levels of tasks that do nothing, and a choice over all: about `tasks` of them."""
    side = int((tasks / 2) ** 0.5)
    found = number_of(explore("a", list(range(side))), explore("b", list(range(side))))
    return choose(found, by=plus(found, 1), select=largest())


def overhead(given: Any, machine: Machine, talk: Talk) -> Json:
    rows: Json = {}
    with workers() as (place, _):
        for tasks in (given.tasks // 4, given.tasks):
            began = time.perf_counter()
            graph = unfold(tiny(tasks))
            unfolded = time.perf_counter() - began
            works = {"in this process": lambda g=graph: run_flow(g, workers=0), "on Dask": lambda g=graph: run_flow(g, scheduler=place, paths=[HERE])}  # fmt: skip
            samples = turns(works, given.rounds, machine)
            rows[str(graph.tasks)] = {"unfold_s": unfolded, "samples": {n: s.to_json() for n, s in samples.items()}}
    n = max(map(int, rows))
    last = rows[str(n)]
    claims = {
        name: (A_MS, bootstrap(lambda t: (t + last["unfold_s"]) / n, s["wall_s"]))
        for name, s in last["samples"].items()
    }
    sizes = [given.tasks // 4, given.tasks, 4 * given.tasks]
    peaks = [scheduler_peaks(sizes) for _ in range(given.rounds)]
    claims["flat"] = FLAT, bootstrap(lambda b: b, [(row[-1] - row[0]) / (sizes[-1] - sizes[0]) for row in peaks])
    return {"tasks": rows, "scheduler_bytes": peaks, **_judged(machine, claims)}


def scheduler_peaks(sizes: Sequence[int]) -> list[int]:
    """[sizes] the most memory that a scheduler in a process of its own takes while flows of so many tasks run, one after another."""
    peaks = []
    with scheduler_apart() as (place, pid):
        run_flow(tiny(100), scheduler=place, paths=[HERE])  # imports
        for tasks in sizes:
            with resident([pid]) as seen:
                run_flow(tiny(tasks), scheduler=place, paths=[HERE])
            peaks.append(max(seen))
    return peaks


@contextlib.contextmanager
def scheduler_apart() -> Iterator[tuple[Place, int]]:
    """A cluster as flows begin it, but with its scheduler in another process than who runs flows: that process' number beside it."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs,))
    process.start()
    try:
        yield ours.recv(), int(process.pid or 0)
        ours.send(None)
    finally:
        ours.close()  # in any case it ends
        process.join()


def _serve(pipe: Connection) -> None:
    with cluster(CORES) as place, contextlib.suppress(EOFError):
        pipe.send(place)
        pipe.recv()


def overhead_text(d: Json) -> str:
    lines = []
    for tasks, row in d["tasks"].items():
        each = ", ".join(
            f"{n} {1e3 * statistics.median(s['wall_s']) / int(tasks):.2f} ms" for n, s in row["samples"].items()
        )
        lines.append(f"{tasks} tasks: unfolding {1e3 * row['unfold_s'] / int(tasks):.3f} ms a task; {each}")
    sizes = [statistics.median(column) / 1e6 for column in zip(*d["scheduler_bytes"], strict=True)]
    lines.append(
        f"memory of a scheduler apart with a quarter of that, all, and four times that: {', '.join(f'{s:.1f} MB' for s in sizes)}"
    )
    return "\n".join([*lines, said(d)])


# ---- kills --------------------------------------------------------------------------------------------------------------


def kills(given: Any, machine: Machine, talk: Talk) -> Json:
    """Runs are repeated until so many were struck: a worker may be killed just after the end of a short one."""
    source, dice, rows = source_of(given), random.Random(0), []
    with workers() as (place, client):
        ours(source, place)  # imports
        quiet = ours(source, place)
        took, right = quiet.record.seconds, scores_of(quiet)
        while sum(r["struck"] for r in rows) < given.kills and len(rows) < 3 * given.kills:
            talk.progress("workers killed", len(rows), given.kills)
            victim, at = dice.choice(all_pids(client)), dice.uniform(0.0, took)
            outcome, killed_s, ended_s = struck_by(lambda: ours(source, place), victim, at)
            again = sum(t.runs > 1 for t in outcome.record.tasks)
            rows.append({"at_s": at, "seconds": outcome.record.seconds, "struck": killed_s < ended_s, "same": _same(right, scores_of(outcome)), "computed_again": again})  # fmt: skip
            while victim in all_pids(client):
                time.sleep(0.1)
    struck = [r["same"] for r in rows if r["struck"]]
    claims = {"same": (SAME, Interval.exact(statistics.fmean(struck) if len(struck) == given.kills else 0.0))}
    return {"undisturbed_s": took, "runs": rows, **_judged(machine, claims)}


def all_pids(client: Client, patience_s: float = 60.0) -> list[int]:
    """Of all workers, once all are there. Raises TimeoutError."""
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        found = [p for p in client.run(os.getpid, on_error="ignore").values() if isinstance(p, int)]
        if len(found) == CORES:
            return found
        time.sleep(0.1)
    raise TimeoutError(f"{CORES} workers were not there within {patience_s:.0f} s")


def struck_by(work: Callable[[], Any], victim: int, after_s: float) -> tuple[Any, float, float]:
    """(what the work gave, when the process was killed, when the work ended)."""
    when: list[float] = []

    def kill() -> None:
        when.append(time.monotonic())
        os.kill(victim, signal.SIGKILL)

    killer = threading.Timer(after_s, kill)
    killer.start()
    found = work()
    ended = time.monotonic()
    killer.join()
    return found, when[0], ended


def kills_text(d: Json) -> str:
    runs = [r for r in d["runs"] if r["struck"]]
    slower = statistics.median(r["seconds"] for r in runs) / d["undisturbed_s"] if runs else math.nan
    return f"a worker killed in each of {len(runs)} runs: the same answers in {sum(r['same'] for r in runs)}; {slower:.2f} times the time; tasks computed again: {[r['computed_again'] for r in runs]}\n{said(d)}"


# ---- again --------------------------------------------------------------------------------------------------------------


def again(given: Any, machine: Machine, talk: Talk) -> Json:
    """A run over an empty folder; then, in turn, the run with another last strength for ridge over that folder, and without any.

    A first round does not count.
    """
    source = source_of(given)
    rows: dict[str, list[float]] = {"first": [], "one option changed": [], "without a store": []}
    ran: dict[str, list[int]] = {name: [] for name in rows}
    with workers() as (place, _):
        for turn in range(-1, given.rounds):
            talk.progress("rounds", max(0, turn), given.rounds)
            machine.look_again(20.0)
            with tempfile.TemporaryDirectory() as folder:
                for name in ("first", *order(list(rows)[1:], turn)):
                    flow = jobs.flow(source, jobs.STRENGTHS if name == "first" else changed_strengths())
                    kept = {} if name == "without a store" else kept_in(Path(folder))
                    record = run_flow(flow, scheduler=place, paths=[HERE], **kept).record
                    if turn >= 0:
                        rows[name].append(record.seconds)
                        ran[name].append(record.tasks_run)
    claims = {
        "less": (
            Claim("less time than without a store", low=1.0),
            ratio(rows["without a store"], rows["one option changed"]),
        )
    }
    return {"seconds": rows, "tasks_run": ran, **_judged(machine, claims)}


def changed_strengths() -> dict[str, tuple[float, ...]]:
    return {**jobs.STRENGTHS, "ridge": (*jobs.STRENGTHS["ridge"][:-1], 1.0)}


def kept_in(folder: Path) -> dict[str, Any]:
    """What `partita flow run` keeps in a folder: results and scores."""
    return {"store": Store.open(folder / "store"), "numbers": Numbers.open(folder / "scores.jsonl")}


def again_text(d: Json) -> str:
    lines = [
        f"{name}: {statistics.median(s):.2f} s, {d['tasks_run'][name][0]} tasks run" for name, s in d["seconds"].items()
    ]
    return "\n".join([*lines, said(d)])


# ---- predicted ----------------------------------------------------------------------------------------------------------


def predicted(given: Any, machine: Machine, talk: Talk) -> Json:
    source, rows = source_of(given), []
    with workers() as (place, _):
        ours(source, place)
        for _ in range(given.rounds):
            machine.look_again(20.0)
            record = ours(source, place).record
            part = record.predictions[0][2] if record.predictions else None
            rows.append({"predicted_s": record.predicted_s, "part_done": part, "seconds": record.seconds, "predictions": record.predictions})  # fmt: skip
    errors = [1.0 if r["predicted_s"] is None else abs(r["predicted_s"] / r["seconds"] - 1) for r in rows]
    claims = {"error": (FORESEEN, bootstrap(lambda e: e, errors))}
    return {"runs": rows, "errors": errors, **_judged(machine, claims)}


def predicted_text(d: Json) -> str:
    told = [f"{e:.0%} (at {r['part_done']:.0%} of the work)" if r["predicted_s"] is not None else "nothing early enough (counts as 100 %)" for e, r in zip(d["errors"], d["runs"], strict=True)]  # fmt: skip
    return f"errors of the total after a tenth of the work: {', '.join(told)}\n{said(d)}"


# ---- the script ---------------------------------------------------------------------------------------------------------


def _judged(machine: Machine, claims: dict[str, tuple[Claim, Interval]]) -> Json:
    record = machine.finished()
    return {"verdicts": machine.verdicts(claims), "machine_record": record}


PARTS = {
    "explore": (explored, explored_text), "memory": (memory, memory_text), "pruning": (pruning, pruning_text), "overhead": (overhead, overhead_text),
    "kills": (kills, kills_text), "again": (again, again_text), "predicted": (predicted, predicted_text),
}  # fmt: skip


def main() -> int:
    options = parser(__doc__)
    options.add_argument("part", choices=PARTS)
    options.add_argument("--set", choices=jobs.SETS, default="digits")
    options.add_argument("--data", metavar="DIR", help="holds mnist/train.parquet, cifar10/train.parquet, a9a/a9a")
    options.add_argument("--rows", type=int, default=1300, help="for training; default: 1300")
    options.add_argument("--components", type=int, default=400, help="of a kernel; default: 400")
    options.add_argument("--rounds", type=int, default=6)
    options.add_argument(
        "--skip", nargs="*", default=[], metavar="ALTERNATIVE", help="of explore, e.g. 'one after another'"
    )
    options.add_argument("--cases", type=int, default=100, help="of pruning, each kind; default: 100")
    options.add_argument("--tasks", type=int, default=10_000, help="of overhead; default: 10,000")
    options.add_argument("--kills", type=int, default=20, help="runs with a worker killed; default: 20")
    given = options.parse_args()
    if given.set != "digits" and not given.data:
        options.error(f"--set {given.set} needs --data DIR")
    work, text = PARTS[given.part]
    return run_script(given, lambda m, t: work(given, m, t), text, ("dask", "distributed", "joblib", "scikit-learn"))


if __name__ == "__main__":
    sys.exit(main())
