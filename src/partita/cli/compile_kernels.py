"""Compile the planners' and the simulator's kernels now, so that the first plan does not wait for it.

    python -m partita.cli.compile_kernels

Kernels are compiled when they are first called and then kept on disk. This plans one tiny problem of each kind.
"""

from __future__ import annotations

import contextlib
import io
import json
import multiprocessing
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np

from partita.cli import main
from partita.nouns.cluster import Cluster
from partita.nouns.costs import CostTable
from partita.nouns.graph import Task, TaskGraph
from partita.nouns.profile import Profile, Sample
from partita.spawn import usable_cores


def tiny_graph() -> dict[str, object]:
    """Twelve tasks in two branches, in the dnn-partitioning format."""
    nodes = [
        {
            "id": i,
            "supportedOnFpga": 1,
            "cpuLatency": 9.0 + i,
            "fpgaLatency": 1.0 + i % 3,
            "size": 10.0,
            "isBackwardNode": 0,
        }
        for i in range(12)
    ]
    edges = [{"sourceId": i, "destId": j, "cost": 0.1} for i in range(12) for j in (i + 1, i + 2) if j < 12]
    return {"maxSizePerFPGA": 100.0, "maxFPGAs": 2, "maxCPUs": 1, "nodes": nodes, "edges": edges}


def tiny_layers() -> str:
    """Six layers with a way round, in the PipeDream format."""
    fields = "forward_compute_time=1.0, backward_compute_time=2.0, activation_size=1000.0, parameter_size=2000.0"
    edges = [(1, 2), (2, 3), (1, 3), (3, 4), (4, 5), (5, 6)]
    return "".join(f"node{i} -- Layer -- {fields}\n" for i in range(1, 7)) + "".join(
        f"\tnode{a} -- node{b}\n" for a, b in edges
    )


def tiny_profile() -> Profile:
    """Six layers with a way round, forward, backward and update, measured at one micro-batch size."""
    names, edges = [f"layer{i}" for i in range(6)], [(0, 1), (1, 2), (0, 2), (2, 3), (3, 4), (4, 5)]
    tasks = [Task(n, parameter_bytes=1e4, activation_bytes=1e4) for n in names]
    tasks += [Task(f"{n}.backward", phase="backward", of=n) for n in reversed(names)]
    tasks += [Task(f"{n}.update", phase="update", of=n) for n in names]
    tensors = [(names[a], 1e3, [names[b]]) for a, b in edges]
    tensors += [(f"{names[b]}.backward", 1e3, [f"{names[a]}.backward"]) for a, b in edges]
    tensors += [(n, 0.0, [f"{n}.backward"]) for n in names] + [(f"{n}.backward", 0.0, [f"{n}.update"]) for n in names]
    graph = TaskGraph.build("tiny", tasks, tensors)
    costs = CostTable.given(("cpu",), np.full((len(graph), 1), 1e-3), np.full(len(graph.producer), np.nan))
    alike = Cluster.uniform(2, rate_bytes_per_s=1e9)
    cluster = replace(alike, devices=tuple(replace(d, cold_s=1e-4) for d in alike.devices))
    return Profile("tiny.py:job", 8, (Sample(2, graph, costs),), cluster)


def tiny_offload() -> dict[str, object]:
    """Three jobs: a chain, twice, and a network with two branches too wide to list its cuts."""
    chain = [
        {
            "id": f"t{i}",
            "device_s": 1.0 + i,
            "server_s": 0.4,
            "output_bytes": 9.0 - i,
            "inputs": [f"t{i - 1}"] * (i > 0),
        }
        for i in range(4)
    ]
    wide = [{"id": f"w{i}", "device_s": 0.3, "server_s": 0.1, "output_bytes": 1.0 + i % 3} for i in range(20)]
    jobs = [{"name": name, "input_bytes": 12.0, "tasks": t} for name, t in (("a", chain), ("b", chain), ("c", wide))]
    return {"link": {"up_bytes_per_s": 4.0, "down_bytes_per_s": 5.0, "round_trip_s": 0.1}, "jobs": jobs}


def tiny_spark() -> dict[str, object]:
    """Two jobs of a few stages."""
    stages = [{"network_s": 1.0 + i % 3, "cpu_s": 3.0 - i % 2, "parents": [i - 2] * (i > 1)} for i in range(5)]
    return {"jobs": [{"release_s": r, "stages": stages} for r in (0.0, 2.0)]}


def tiny_traces() -> dict[str, object]:
    """A query of two stages."""
    waves = {"fresh_durations": {"5": [900.0]}, "first_wave": {"5": [900.0, 500.0]}, "rest_wave": {"5": [400.0] * 8}}
    return {"1": {"edges": [[0, 1]], "stages": [waves, waves]}}


def compile_kernels() -> None:
    """Plan a tiny problem of each kind, a process a core."""
    with tempfile.TemporaryDirectory() as folder:
        groups = _calls(Path(folder))
        with ProcessPoolExecutor(usable_cores(), multiprocessing.get_context("spawn")) as pool:
            list(pool.map(_called, groups))


def _calls(folder: Path) -> list[list[list[str]]]:
    """Groups of command lines that share few kernels, those that take longest first; within a group one after another."""
    names = ("graph.json", "layers.txt", "profile.json", "costs.json", "offload.json", "spark.json")
    graph, layers, profile, costs, offload, spark = (folder / n for n in names)
    costs.write_text(json.dumps(tiny_offload()))
    spark.write_text(json.dumps(tiny_spark()))
    graph.write_text(json.dumps(tiny_graph()))
    layers.write_text(tiny_layers())
    tiny_profile().write(profile)
    traces = folder / "traces"
    traces.mkdir()
    (traces / "1g.json").write_text(json.dumps(tiny_traces()))

    def plan(path: Path, *flags: str) -> list[str]:
        return ["plan", str(path), *flags, "-o", str(folder / f"{path.stem}-{len(flags)}-plan.json")]

    def simulated(source: list[str], *policies: str) -> list[list[str]]:
        return [["spark", "simulate", *source, "--policy", p] for p in policies]

    return [
        [plan(layers, "--devices", "2", "--objective", "latency", "--method", "hybrid", "--budget-s", "0.1")],
        [
            *(["spark", "plan", str(spark), "--objective", o, "--budget-s", "0.1"] for o in ("makespan", "mean-completion")),
            *simulated([str(spark)], "srpt", "replan", "learned"),
        ],
        [plan(profile), plan(layers, "--devices", "4")],
        [plan(graph, "--placement", "free", "--objective", "throughput", "--budget-s", "2")],
        [
            ["offload", "plan", "--costs", str(costs), "-o", str(offload)],
            ["offload", "simulate", str(offload), "--arrivals", "poisson:1", "--count", "3"],
            ["offload", "simulate", str(offload)],
        ],
        simulated(["--traces", str(traces)], "fifo", "weighted-fair", "learned"),
        [plan(graph, "--placement", "contiguous", "--objective", "throughput")],
    ]  # fmt: skip


def _called(calls: list[list[str]]) -> None:
    for words in calls:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            code = main(words)
        if code:
            print(f"the kernels of {' '.join(words[:2])} could not be compiled now (exit code {code})", file=sys.stderr)


if __name__ == "__main__":
    began = time.monotonic()
    compile_kernels()
    print(f"kernels compiled in {time.monotonic() - began:.0f} s", file=sys.stderr)
