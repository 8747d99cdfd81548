"""Plan every graph of a folder, score every plan independently, compare with the best values known.

    python benchmarks/planner.py DIR [--placement contiguous|free|both] [--budget-s 10] [--rounds 1] [--json] [--plot out.svg]
    python benchmarks/planner.py DIR --budget-s 1,3,10 --plot quality.svg       quality against time
    python benchmarks/planner.py --synthetic 1000,10000,100000 --plot scale.svg  layered graphs on 8 and 64 devices
    python benchmarks/planner.py --calibrate    units of work a second, for the constants in partita.placement.plan

DIR is searched with all its folders for dnn-partitioning graphs (.json) and PipeDream profiles (.txt); what is neither is
left out. `partita plan` runs as a process of its own; its plan is scored by the evaluators below, which share no code with
the planner, or by `--scorer SCRIPT`, called as SCRIPT GRAPH PLAN.json, which prints {"value": .., "feasible": ..}. Values
are in the file's units: ms for dnn-partitioning, s for PipeDream. Best values are read from best_known.json in DIR or in
the folder above, if there is one.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from harness import Json, Machine, cpu_seconds, in_turn, parser, run_script, said
from intervals import Claim, Interval

from partita.cli.talk import Talk

PIPEDREAM_DEVICES = (4, 8, 16)
SCALE_DEVICES = (8, 64)

#: What each run is judged by; no time is in them: they hold on any machine.
FEASIBLE = Claim("every plan is feasible", high=0, most_drift=math.inf)
AS_CLAIMED = Claim("values are what the evaluators find, to 1e-6", high=1e-6, most_drift=math.inf)
NO_WORSE = Claim("no plan is worse than the best known by more than 1e-6", high=1e-6, most_drift=math.inf)
ALIKE = Claim("every round gives the same value", high=0, most_drift=math.inf)

# ---------------------------------------------------------------------------------------------------------------------
# independent evaluators


def score(graph: Path, plan: Json) -> Json:
    """{"value", "feasible", "faults"} of a plan, from the files alone."""
    if graph.suffix == ".txt":
        return score_stages(*read_profile(graph), plan)
    return score_placement(json.loads(graph.read_text()), plan["placement"], plan["devices"])


def score_placement(graph: Json, where: dict[str, str], devices: set[str]) -> Json:
    """Largest load, ms: an accelerator computes, and pays once for every producer whose output crosses its boundary."""
    nodes = {str(n["id"]): n for n in graph["nodes"]}
    faults = [f"task {i} is placed on {where.get(i)}" for i in nodes if where.get(i) not in devices]
    if faults:
        return {"value": None, "feasible": False, "faults": faults}
    load, size, classes = dict.fromkeys(devices, 0.0), dict.fromkeys(devices, 0.0), {}
    for i, n in nodes.items():
        fast = where[i].startswith("acc")
        load[where[i]] += n["fpgaLatency"] if fast else n["cpuLatency"]
        size[where[i]] += n.get("size", 0.0)
        if fast and not n["supportedOnFpga"]:
            faults.append(f"task {i} cannot run on {where[i]}")
        if n.get("colorClass") is not None:
            classes.setdefault(n["colorClass"], set()).add(where[i])
    sent = {(str(e["sourceId"]), d): e["cost"] for e in graph["edges"]
            for d in {where[str(e["sourceId"])], where[str(e["destId"])]}
            if where[str(e["sourceId"])] != where[str(e["destId"])] and d.startswith("acc")}  # fmt: skip
    for (_, d), cost in sent.items():
        load[d] += cost
    faults += [f"{d} holds {s} bytes" for d, s in size.items() if d.startswith("acc") and s > graph["maxSizePerFPGA"]]
    faults += [f"colour class {c} is on {sorted(ds)}" for c, ds in classes.items() if len(ds) > 1]
    return {"value": max(load.values()), "feasible": not faults, "faults": faults}


def read_profile(path: Path) -> tuple[dict[str, tuple[float, float, float]], list[tuple[str, str]]]:
    """({layer: (seconds, activation bytes, parameter bytes)}, edges) without the inputs."""
    layers: dict[str, tuple[float, float, float]] = {}
    edges: list[tuple[str, str]] = []
    for line in path.read_text().splitlines():
        parts = line.strip().split(" -- ")
        if line.startswith("\t"):
            edges.append((parts[0], parts[1]))
        elif not parts[1].startswith("Input"):
            sums = [
                sum(float(x) for x in re.findall(r"[0-9.]+(?:e[-+]?\d+)?", m))
                for m in re.findall(r"=(\[[^\]]*\]|[^,\s]+)", parts[2])
            ]
            layers[parts[0]] = ((sums[0] + sums[1]) / 1e3, sums[2], sums[3])
    return layers, [(u, v) for u, v in edges if u in layers and v in layers]


def score_stages(layers: dict[str, tuple[float, float, float]], edges: list[tuple[str, str]], plan: Json) -> Json:
    """Bottleneck, s: max over stages of replicated compute with its gradient exchange, and of what crosses its ends."""
    stages, rate = plan["stages"], plan["bandwidth_bytes_per_s"]
    at = {t: k for k, s in enumerate(stages) for t in s["tasks"]}
    faults = [] if at.keys() == layers.keys() else ["tasks are missing or unknown"]
    if faults:
        return {"value": None, "feasible": False, "faults": faults}
    faults = [f"edge {u} -> {v} runs back" for u, v in edges if at[u] > at[v]]
    cut = [0.0] * (len(stages) + 1)
    for k in range(1, len(stages)):
        cut[k] = sum(layers[u][1] for u in {u for u, v in edges if at[u] < k <= at[v]})
    worst = 0.0
    for k, s in enumerate(stages):
        m = s["replicas"]
        compute, weights = (sum(layers[t][i] for t in s["tasks"]) for i in (0, 2))
        worst = max(worst, (compute + 4 * (m - 1) * weights / (rate * m)) / m, 2 * max(cut[k], cut[k + 1]) / (rate * m))
    return {"value": worst, "feasible": not faults, "faults": faults, "devices": sum(s["replicas"] for s in stages)}


# ---------------------------------------------------------------------------------------------------------------------
# runs


def planned(graph: Path, placement: str, devices: int | None, budget_s: float, seed: int, scorer: str | None) -> Json:
    """One row: run the planner, score its plan."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "plan.json"
        words = ["plan", str(graph), "--placement", placement, "--objective", "throughput", "--budget-s", str(budget_s)]
        words += ["--seed", str(seed), "-o", str(out), "--json", *(["--devices", str(devices)] if devices else [])]
        began, used = time.monotonic(), cpu_seconds()
        run = subprocess.run([sys.executable, "-m", "partita", *words], capture_output=True, text=True)
        wall, cpu = time.monotonic() - began, cpu_seconds() - used
        row: Json = {
            "graph": graph.stem,
            "placement": placement,
            "devices": devices,
            "budget_s": budget_s,
            "seed": seed,
        }
        row |= {"wall_s": wall, "cpu_s": cpu, "load": os.getloadavg()[0]}
        if run.returncode:
            return {**row, "error": run.stderr.strip().splitlines()[-1] if run.stderr.strip() else "no message"}
        said, plan = json.loads(run.stdout), json.loads(out.read_text())
        plan["devices"] = {d["name"] for d in plan["problem"]["cluster"]["device"]}
        unit = 1.0 if graph.suffix == ".txt" else 1e3
        if scorer:
            found = subprocess.run([sys.executable, scorer, str(graph), str(out)], capture_output=True, text=True)
            scored = json.loads(found.stdout)
        else:
            scored = score(graph, plan)
    row |= {
        "tasks": len(plan["problem"]["graph"]["tasks"]),
        "format": "pipedream" if unit == 1.0 else "dnn-partitioning",
    }
    row |= {k: scored.get(k) for k in ("value", "feasible", "faults")}
    row |= {"claimed": unit * said["value_s"], "lower_bound": unit * said["lower_bound_s"], "bound": said["bound"]}
    gap = row["value"] / row["lower_bound"] - 1 if row["value"] and row["lower_bound"] > 0 else None
    return row | {"gap": gap, "method": said["method"], "seconds_spent": said["seconds_spent"]}


def timed(cases: Mapping[str, Callable[[], Json]], rounds: int, machine: Machine) -> Iterator[Json]:
    """Rows of cases that take turns: the first round's, its times the medians of all rounds."""
    machine.look_again(every_s=30.0)
    for found in in_turn(cases, rounds).values():
        samples = {key: [r[key] for r in found.results] for key in ("wall_s", "cpu_s")}
        medians = {key: statistics.median(values) for key, values in samples.items()}
        yield {**found.results[0], **medians, "samples": samples, "values": [r.get("value") for r in found.results]}


def wanted(folder: Path, placement: str, devices: list[int] | None) -> Iterator[tuple[Path, str, int | None]]:
    """(graph, placement, devices) of every run. PipeDream's objective has stages with replicas: contiguous only."""
    for path in sorted((*folder.rglob("*.json"), *folder.rglob("*.txt"))):
        with path.open("rb") as file:
            head = file.read(4096)
        if path.suffix == ".txt" and b" -- " in head and placement != "free":
            yield from ((path, "contiguous", n) for n in devices or PIPEDREAM_DEVICES)
        if path.suffix == ".json" and re.match(rb'\s*\{\s*"(maxSizePerFPGA|maxFPGAs|maxCPUs|nodes|edges)"', head):
            names = ("contiguous", "free") if placement == "both" else (placement,)
            yield from ((path, name, n) for name in names for n in devices or (None,))


def best_known(folder: Path) -> Json:
    """The parsed best_known.json of the folder or the one above, or nothing."""
    for path in (folder / "best_known.json", folder.parent / "best_known.json"):
        if path.is_file():
            found: Json = json.loads(path.read_text())
            return found
    return {}


def compared(row: Json, best: Json) -> Json:
    """The row with the best value known for it, where there is one."""
    known = best.get(row.get("format"), {}).get(row["graph"], {})
    if row.get("format") == "pipedream":
        value = known.get(str(row["devices"]), {}).get("bottleneck_s")
    else:
        same = row["devices"] in (None, known.get("accelerators"))
        value = known.get("contiguous_optimum" if row["placement"] == "contiguous" else "best_free") if same else None
    return row | {"best_known": None if value is None else float(value)}


def layered(tasks: int, devices: int, seed: int = 0) -> Json:
    """A synthetic dnn-partitioning graph: layers of random width, each node reading one to three of the layer before.

    Times are exponential with mean 1 ms, transfers with mean 0.1 ms; one CPU, ten times slower.
    """
    chance = random.Random(seed)
    nodes: list[Json] = []
    pairs: list[tuple[int, int]] = []
    before: list[int] = []
    while len(nodes) < tasks:
        layer = range(len(nodes), min(tasks, len(nodes) + chance.randint(1, 2 * max(2, int(tasks**0.4)))))
        for v in layer:
            ms = chance.expovariate(1.0)
            nodes.append(
                {"id": v, "supportedOnFpga": 1, "cpuLatency": 10 * ms, "fpgaLatency": ms, "size": 1e6 * chance.random()}
            )
            pairs += [(u, v) for u in chance.sample(before, min(len(before), chance.randint(1, 3)))]
        before = list(layer)
    cost = [chance.expovariate(10.0) for _ in nodes]
    edges = [{"sourceId": u, "destId": v, "cost": cost[u]} for u, v in pairs]
    return {"maxSizePerFPGA": 1e12, "maxFPGAs": devices, "maxCPUs": 1, "nodes": nodes, "edges": edges}


def synthetic(sizes: list[int], options: argparse.Namespace, machine: Machine) -> Iterator[Json]:
    """Rows of the scale test."""
    for n in sizes:
        for d in options.devices or SCALE_DEVICES:
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / f"layered-{n}.json"
                path.write_text(json.dumps(layered(n, d, options.seed)))
                yield from timed(
                    {"free": _case(path, "free", d, options.budgets[-1], options)}, options.rounds, machine
                )


def _case(
    path: Path, placement: str, devices: int | None, budget_s: float, options: argparse.Namespace
) -> Callable[[], Json]:
    return lambda: planned(path, placement, devices, budget_s, options.seed, options.scorer)


def calibrated() -> Json:
    """Units of work in a second of one thread, least and most over layered graphs of several sizes."""
    import numpy as np

    from partita.placement.capture.dnn_partitioning import from_json
    from partita.placement.plan.anneal import anneal
    from partita.placement.plan.free import compile_kernels
    from partita.placement.plan.load import load_model
    from partita.placement.plan.min_cut import anchors, network

    compile_kernels()
    rates: dict[str, list[float]] = {"anneal.UNITS_PER_S": [], "rounds.ARCS_PER_S": []}
    for n, d in ((30, 4), (300, 8), (3000, 8), (30_000, 64)):
        model = load_model(from_json(layered(n, d), "layers", "layers"))
        began = time.process_time()
        anneal(model, np.zeros(model.atoms, np.int64), units=2e7, seed=0)
        rates["anneal.UNITS_PER_S"].append(2e7 / (time.process_time() - began))
        net = network(model, 0)
        began = time.process_time()
        anchors(model, {0: net}, most_arcs=3e7)
        rates["rounds.ARCS_PER_S"].append(float(net.spent[0]) / (time.process_time() - began))
    return {k: [min(v), max(v)] for k, v in rates.items()}


# ---------------------------------------------------------------------------------------------------------------------
# what is shown


COLUMNS = (
    "graph",
    "tasks",
    "placement",
    "devices",
    "value",
    "best known",
    "change",
    "bound",
    "gap",
    "how",
    "wall s",
    "CPU s",
)


def table(rows: list[Json]) -> str:
    cells = [COLUMNS, *(tuple(_cells(r)) for r in rows)]
    width = [max(len(c[k]) for c in cells) for k in range(len(COLUMNS))]
    return "\n".join("  ".join(x.ljust(w) for x, w in zip(c, width, strict=True)).rstrip() for c in cells)


def _cells(r: Json) -> Iterator[str]:
    yield from (r["graph"], str(r.get("tasks", "")), r["placement"], str(r["devices"] or "file"))
    if "error" in r:
        yield from ("-", "-", "-", "-", "-", r["error"][:60], f"{r['wall_s']:.2f}", f"{r['cpu_s']:.2f}")
        return
    known = r.get("best_known")
    yield (f"{r['value']:.6g}" if r["value"] is not None else "-") + ("" if r["feasible"] else " INFEASIBLE")
    yield "-" if known is None else f"{known:.6g}"
    yield "-" if known is None or r["value"] is None else f"{100 * (r['value'] / known - 1):+.3f} %"
    yield f"{r['lower_bound']:.6g}"
    yield "-" if r["gap"] is None else f"{100 * max(0.0, r['gap']):.3f} %"
    yield from (r["bound"], f"{r['wall_s']:.2f}", f"{r['cpu_s']:.2f}")


def plot(rows: list[Json], path: str, scale: bool) -> None:
    """Quality against time: gap to the bound over wall-clock seconds; for synthetic graphs, seconds over tasks."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9, 5))
    groups: dict[str, list[Json]] = {}
    for r in (r for r in rows if r.get("gap") is not None):
        name = (
            f"{r['devices']} devices"
            if scale
            else f"{r['graph']} {r['placement']}" + (f" n={r['devices']}" if r["devices"] else "")
        )
        groups.setdefault(name, []).append(r)
    for name, group in groups.items():
        xs = [r["tasks"] if scale else r["wall_s"] for r in group]
        ys = [r["wall_s"] if scale else 100 * max(r["gap"], 1e-5) for r in group]
        axes.plot(xs, ys, marker="o", markersize=4, linewidth=1, label=name)
    axes.set(xscale="log", yscale="log")
    axes.set_xlabel("tasks" if scale else "seconds, the process as a whole")
    axes.set_ylabel("seconds, the process as a whole" if scale else "certified gap, %")
    axes.grid(True, alpha=0.3)
    axes.legend(fontsize=7, ncols=1 if scale else 2)
    figure.tight_layout()
    figure.savefig(path)


def benchmark(options: argparse.Namespace, machine: Machine, talk: Talk) -> Json:
    """All rows, the claims about them, and the machine."""
    rows: list[Json] = []
    for row in _rows(options, machine):
        rows.append(row)
        talk.say("   " + "  ".join(_cells(row)))
    if options.plot:
        plot(rows, options.plot, scale=options.synthetic is not None)
    record = machine.finished()
    return {
        "rows": rows, "python": sys.version.split()[0], "verdicts": machine.verdicts(claimed(rows)), "machine_record": record,
    }  # fmt: skip


def _rows(options: argparse.Namespace, machine: Machine) -> Iterator[Json]:
    if options.synthetic:
        yield from synthetic([int(x) for x in options.synthetic.split(",")], options, machine)
        return
    best = best_known(options.folder)
    graphs: dict[Path, dict[str, Callable[[], Json]]] = {}
    for path, placement, devices in wanted(options.folder, options.placement, options.devices):
        for budget_s in options.budgets if placement == "free" else options.budgets[-1:]:
            name = f"{placement} {devices} {budget_s}"
            graphs.setdefault(path, {})[name] = _case(path, placement, devices, budget_s, options)
    for cases in graphs.values():
        yield from (compared(row, best) for row in timed(cases, options.rounds, machine))


def claimed(rows: list[Json]) -> dict[str, tuple[Claim, Interval]]:
    """Claims about all rows together: the worst row counts."""
    scored = [r for r in rows if r.get("value") is not None]
    faults = len(rows) - sum(bool(r.get("feasible")) for r in rows)
    found = {"feasible": (FEASIBLE, Interval.exact(faults))}
    if scored:
        off = max(abs(r["claimed"] / r["value"] - 1) if r["value"] else 0.0 for r in scored)
        apart = max(max(r["values"]) - min(r["values"]) for r in scored if None not in r["values"])
        found |= {"as_claimed": (AS_CLAIMED, Interval.exact(off)), "alike": (ALIKE, Interval.exact(apart))}
    above = [r["value"] / r["best_known"] - 1 for r in scored if r.get("best_known")]
    if above:
        found["best_known"] = (NO_WORSE, Interval.exact(max(above)))
    return found


def main() -> int:
    options = parser(__doc__)
    options.add_argument("folder", metavar="DIR", nargs="?", type=Path)
    options.add_argument("--budget-s", default="10", metavar="S[,S]", help="seconds to search; default: 10")
    options.add_argument("--placement", choices=("contiguous", "free", "both"), default="both")
    options.add_argument("--devices", metavar="N[,N]", help="default: the file's; PipeDream 4,8,16; synthetic 8,64")
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--rounds", type=int, default=1, help="how often each plan is made; default: 1")
    options.add_argument("--scorer", metavar="SCRIPT", help="score with this script instead")
    options.add_argument("--synthetic", metavar="N[,N]", help="layered graphs of so many tasks instead of DIR")
    options.add_argument("--plot", metavar="SVG")
    options.add_argument("--calibrate", action="store_true")
    given = options.parse_args()
    if given.calibrate:
        print(json.dumps(calibrated()))
        return 0
    given.budgets = [float(x) for x in given.budget_s.split(",")]
    given.devices = [int(x) for x in given.devices.split(",")] if given.devices else None
    if given.synthetic is None and (given.folder is None or not given.folder.is_dir()):
        options.error("give a folder of graphs, or --synthetic")
    return run_script(
        given,
        lambda m, t: benchmark(given, m, t),
        lambda found: f"{table(found['rows'])}\n{said(found)}",
        failed=lambda found: not (found["rows"] and all(r.get("feasible") for r in found["rows"])),
    )


if __name__ == "__main__":
    sys.exit(main())
