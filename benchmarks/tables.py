"""Write the tables in README.md from the raw results in benchmarks/results.

    python benchmarks/tables.py [--results DIR] [--readme FILE] [--check]

A table stands between `<!-- NAME table: benchmarks/SCRIPT.py -->` and `<!-- end -->`. Its figures come from
results/SCRIPT.json, which that script printed with --json; where there is no such file the table stays as it is.
`--check` writes nothing and ends with 1 where a table is not what the results say.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from partita.page.text import percent, seconds, times

HERE = Path(__file__).parent
MARK = re.compile(r"(<!-- \w+ table: benchmarks/(\w+)\.py -->\n).*?(<!-- end -->)", re.DOTALL)
ENGINES = {"single": "one process", "pipeline": "Partita, 2 workers", "torch": "torch's own pipeline, same plan"}
LOADED = 0.5  #: a load before the run from which a table says so


def markdown(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table whose columns but the first are numbers.

    >>> print(markdown(["a", "b"], [["x", "1"]]))
    | a | b |
    | --- | ---: |
    | x | 1 |
    """
    rule = ["---", *["---:"] * (len(heads) - 1)]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (heads, rule, *rows))


def prediction(rows: Sequence[Mapping[str, Any]]) -> str:
    """benchmarks/prediction.py: a row a model and plan, then median and worst."""
    errors = [r["predicted_step_s"] / r["measured_step_s"] - 1 for r in rows]
    body = [
        [
            f"{r['model']}, {r['plan']} plan",
            seconds(r["predicted_step_s"]),
            seconds(r["measured_step_s"]),
            percent(e, signed=True),
        ]
        for r, e in zip(rows, errors, strict=True)
    ]
    sizes = [abs(e) for e in errors]
    load = max((float(r.get("load", 0.0)) for r in rows), default=0.0)
    end = f"Median error {percent(statistics.median(sizes))}, worst {percent(max(sizes))}"
    return f"{markdown(['model', 'predicted step', 'measured step', 'error'], body)}\n\n{end}. Highest load average after a run: {load:.1f}."


def pipeline(found: Mapping[str, Any]) -> str:
    """benchmarks/pipeline.py: the three engines, and what the prediction was."""
    single = found["single_step_s"]
    body = [
        [name, seconds(found[f"{key}_step_s"]), times(single / found[f"{key}_step_s"]), seconds(found["cpu_s"][key])]
        for key, name in ENGINES.items()
    ]
    error = found["predicted_step_s"] / found["pipeline_step_s"] - 1
    end = (
        f"CIFAR-10 ResNet, batch 64, {found['plan']['micro_batches']} micro-batches, medians of one interleaved run; the limit is "
        f"{times(found['limit'])}. Predicted {seconds(found['predicted_step_s'])} ({percent(error, signed=True)}). "
        f"{_machine(found['facts'], found['load'])}"
    )
    return f"{markdown(['engine', 'step', 'speed-up', 'CPU time'], body)}\n\n{end}"


def simulator(found: Mapping[str, Any]) -> str:
    """benchmarks/simulator.py: one sentence."""
    return (
        f"The simulator takes {found['small_us']:.2f} µs an evaluation of {found['small_tasks']} tasks on 4 devices (one of many in a call), "
        f"and {found['million_ms']:.0f} ms for a program of {found['million_instructions']:,} instructions, after compilation. "
        f"{_machine(found, found['load'])}"
    )


def _machine(facts: Mapping[str, Any], load: Sequence[float]) -> str:
    versions = ", ".join(f"{k} {facts[k]}" for k in ("torch", "numba") if k in facts)
    busy = f"; load {load[0]:.2f} before it began" + (", not idle" if load[0] > LOADED else "")
    return f"{facts['machine']}, {facts['cores']} cores, {versions}, {facts['time'][:10]}{busy}."


def models(found: Mapping[str, Any]) -> str:
    """benchmarks/models.py: a column a model, a row a question; then the best explainable model's intervals and the seeds."""
    names = [m["name"] for m in found["questions"][0]["models"]]
    body, coverage = [], []
    for q in found["questions"]:
        by = {m["name"]: m for m in q["models"]}
        body.append([q["question"], *(percent(by[n]["mape"]) for n in names)])
        coverage.append(f"{percent(by[q['best_explainable']]['coverage'])} ({q['question']})")
    end = f"Mean absolute errors. The 90 % intervals of the best explainable model held {', '.join(coverage)} of the held-out rows."
    if "seeds" in found:
        end += f" Ten seeds: predictions of 1,440 rows at most {percent(found['seeds']['largest'])} from their mean."
    return f"{markdown(['question', *names], body)}\n\n{end} {_machine(found['facts'], found['load'])}"


def offload(found: Mapping[str, Any]) -> str:
    """benchmarks/offload.py: the mixed jobs, a row a setting; measured seconds, and how far auto's prediction was off."""
    settings = found["mixed"]["settings"]
    names = [n for n in settings[0]["methods"] if n != "exact"]
    body = []
    for s in settings:
        rows = s["methods"]
        cells = [
            seconds(rows[n]["measured_s"]) if rows[n].get("runs") else f"({seconds(rows[n]['predicted_s'])})"
            for n in names
        ]
        errors = [percent(rows["auto"].get(e, 0.0), signed=True) for e in ("error", "error_at_run_speed")]
        body.append([f"{s['device_percent']} %, {s['mbit_per_s']} Mbit/s", *cells, *errors])
    figures, rounds = found["mixed"]["figures"], len(settings[0]["methods"]["auto"]["runs"])
    end = (
        f"30 jobs of 5 models; the device has that share of a core; measured makespans, in brackets predicted ones of plans that were not run. "
        f"Last columns: predicted over measured of auto, as planned and at the speed that the machines had in the run. Of all plans the "
        f"median error at run speed is {percent(figures['error_at_run_speed_median'])}, the worst {percent(figures['error_at_run_speed_worst'])}; "
        f"as planned {percent(figures['error_median'])} and {percent(figures['error_worst'])}. "
        f"Medians of {rounds} runs in turn on a machine that others used too, {found['time'][:10]}."
    )
    return f"{markdown(['setting', *names, 'error', 'at run speed'], body)}\n\n{end}"


TABLES: Mapping[str, Callable[[Any], str]] = {
    "prediction": prediction,
    "pipeline": pipeline,
    "simulator": simulator,
    "models": models,
    "offload": offload,
}


def filled(text: str, results: Path) -> str:
    """The text with every table for which there are results."""

    def table(found: re.Match[str]) -> str:
        path = results / f"{found[2]}.json"
        if not path.is_file():
            return found[0]
        return f"{found[1]}\n{TABLES[found[2]](json.loads(path.read_text()))}\n\n{found[3]}"

    return MARK.sub(table, text)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=HERE / "results", metavar="DIR")
    parser.add_argument("--readme", type=Path, default=HERE.parent / "README.md", metavar="FILE")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    before = options.readme.read_text()
    after = filled(before, options.results)
    if options.check:
        return int(after != before)
    options.readme.write_text(after)
    return 0


if __name__ == "__main__":
    sys.exit(main())
