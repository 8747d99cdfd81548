"""Write the tables in README.md, docs/concepts/mapping.md and docs/concepts/spark.md from the raw results in benchmarks/results.

    python benchmarks/tables.py [--results DIR] [--check] [FILE ..]

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

from partita.page.text import NOTHING, percent, seconds, times

HERE = Path(__file__).parent
DOCUMENTS = [HERE.parent / name for name in ("README.md", "docs/concepts/mapping.md", "docs/concepts/spark.md")]
MARK = re.compile(r"(<!-- \w+ table: benchmarks/(\w+)\.py -->\n).*?(<!-- end -->)", re.DOTALL)
ENGINES = {"single": "one process", "pipeline": "Partita, 2 workers", "torch": "torch's own pipeline, same plan"}
TAKEN = " of a core taken"  #: beside a competitor, in the name of a plan
MATTERS = 0.02  #: that one device or heft is above the best mapping, for this to be shown
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
    """benchmarks/prediction.py: a row a model and plan, then median and worst; at the run's speed where that is known. Runs beside a
    competitor are summed up."""
    beside = [r for r in rows if TAKEN in r["plan"]]
    rows = [r for r in rows if TAKEN not in r["plan"]]
    errors = [r["predicted_step_s"] / r["measured_step_s"] - 1 for r in rows]
    heads = ["model", "predicted step", "measured step", "error"]
    columns = [
        [f"{r['model']}, {r['plan']} plan" for r in rows],
        [seconds(r["predicted_step_s"]) for r in rows],
        [seconds(r["measured_step_s"]) for r in rows],
        [percent(e, signed=True) for e in errors],
    ]
    ends = [f"Median error {_middle_and_worst(errors)}"]
    ran = [r.get("predicted_at_run_speed_s") for r in rows]
    missed = [None if v is None else v / r["measured_step_s"] - 1 for v, r in zip(ran, rows, strict=True)]
    if known := [e for e in missed if e is not None]:
        heads.append("error at the run's speed")
        columns.append([NOTHING if e is None else percent(e, signed=True) for e in missed])
        ends.append(f"At the speed that the machine had in the run: {_middle_and_worst(known)}")
    load = max((float(r.get("load", 0.0)) for r in rows), default=0.0)
    ends.append(f"Highest load average after a run: {load:.1f}")
    if beside:
        raw, ran = ([abs(r[e]) for r in beside if r[e] is not None] for e in ("error", "error_at_run_speed"))
        share = beside[0]["plan"].rpartition(", ")[2].removesuffix(TAKEN)
        ends.append(
            f"The same plans beside a process that takes {share} of the last core and was not there when they were measured: "
            f"{percent(min(raw))} to {percent(max(raw))} off, at the run's speed {_middle_and_worst(ran)}"
        )
    if drifts := [r["machine_record"]["drift"]["drift"] for r in rows if "machine_record" in r]:
        ends.append(f"The machine drifted by {percent(min(drifts))} to {percent(max(drifts))}")
    return f"{markdown(heads, zip(*columns, strict=True))}\n\n{'. '.join(ends)}.{_held([*rows, *beside])}"


def small(rows: Sequence[Mapping[str, Any]]) -> str:
    """benchmarks/small.py: no table of so many rows, but what they come to."""
    known = [r for r in rows if r["error_at_run_speed"] is not None]
    ran, raw = [r["error_at_run_speed"] for r in known], [r["error"] for r in rows]
    low, high = (end(r["single_step_s"] for r in rows) for end in (min, max))
    chosen = [r["of_one_process"] for r in rows if r["chosen"]]
    return (
        f"{len(chosen)} small models, one process takes {seconds(low)} to {seconds(high)} a step; on one device, on two, and as planned, where that is another plan: "
        f"{sum(abs(e) <= 0.15 for e in ran)} of {len(ran)} predictions are within 15 % at the run's speed (median {_middle_and_worst(ran)}; as predicted "
        f"{_middle_and_worst(raw)}). What `partita plan` chooses takes {min(chosen):.2f} to {max(chosen):.2f} of the step of one process."
        f"{_held(rows)} Claims: {_claims(_by_row(rows))}. {_recorded(rows[0])}"
    )


def _by_row(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, Mapping[str, Any]]]:
    """The verdicts of all rows with their models and plans."""
    return [(f"{r['model']} {r['plan']}", v) for r in rows for v in r["verdicts"].values()]


def _held(rows: Sequence[Mapping[str, Any]]) -> str:
    """How often the intervals held."""
    held = [h for r in rows for h in r.get("interval_held", ())]
    return f" The 90 % intervals at the run's speed held in {sum(held)} of {len(held)} runs." if held else ""


def _middle_and_worst(errors: Sequence[float]) -> str:
    sizes = [abs(e) for e in errors]
    return f"{percent(statistics.median(sizes))}, worst {percent(max(sizes))}"


def unequal(found: Mapping[str, Any]) -> str:
    """benchmarks/unequal.py: the plans in turn on hosts with a share of a core each."""
    names = {
        "chosen": "what `partita plan` chooses",
        "even": "a stage on each host, taken for equal",
        "equal shares": "data parallelism, equal shares",
    }
    body = []
    for key, name in names.items():
        plan, of = found["plans"][key], found["ratio"].get(key)
        used = len({d for s in plan["stages"] for d in s["devices"]})
        body.append(
            [
                name,
                str(used),
                seconds(plan["measured_s"]),
                seconds(plan["predicted_s"]),
                f"{times(of[0])} ({_span(of[1:], times)})" if of else "-",
            ]
        )
    of = found["ratio"]["one device"]
    body.append(
        [
            "one process, on the fastest host",
            "1",
            seconds(found["single_step_s"]),
            "-",
            f"{times(of[0])} ({_span(of[1:], times)})",
        ]
    )
    shares = ", ".join(f"{s:g}" for s in found["shares"])
    heads = ["plan", "hosts", "a step", "predicted", "of the chosen one"]
    ends = f"A plain CNN on CIFAR-10, batch 64, on four hosts with {shares} % of a core and links of {found['rate']}, plans in turn; gradients are those of one process."
    return f"{markdown(heads, body)}\n\n{ends}{_verdicts(found)} {_recorded(found)}"


def pipeline(found: Mapping[str, Any]) -> str:
    """benchmarks/pipeline.py: the engines, the limit, what the prediction was; intervals and verdicts where they are known."""
    single, intervals = found["single_step_s"], found.get("ratio_interval", {})
    heads = ["engine", "step", "speed-up", *(["95 % of it"] if intervals else []), "CPU time"]
    body = []
    for key, name in ENGINES.items():
        step_s = found[f"{key}_step_s"]
        of_it = [_span(intervals.get(f"single/{key}"), times)] if intervals else []
        body.append([name, seconds(step_s), times(single / step_s), *of_it, seconds(found["cpu_s"][key])])
    if "single_at_once_step_s" in found:
        step_s, none = found["single_at_once_step_s"], [NOTHING] if intervals else []
        body.insert(1, ["one process, the batch at once", seconds(step_s), times(single / step_s), *none, NOTHING])
    if "side_by_side_step_s" in found:
        limit = [_span(found.get("limit_interval"), times)] if intervals else []
        copies = f"the limit: {len(found['side_by_side_each_s'])} copies of the job side by side"
        body.append([copies, seconds(found["side_by_side_step_s"]), times(found["limit"]), *limit, NOTHING])
    error = found["predicted_step_s"] / found["pipeline_step_s"] - 1
    share, even = found.get("of_side_by_side"), found.get("of_side_by_side_evenly")
    of_copies = (
        f"The pipeline does {share['value']:.3f} of what the copies do side by side, and {even['value']:.3f} of it without what it waits "
        f"because one core takes longer than the other. "
        if share and even
        else ""
    )
    end = (
        f"CIFAR-10 ResNet, batch 64, {found['plan']['micro_batches']} micro-batches, medians of one interleaved run; the limit is "
        f"{times(found.get('fill_limit', found['limit']))}{' on cores that do not slow each other' if 'fill_limit' in found else ''}. "
        f"{of_copies}Predicted {seconds(found['predicted_step_s'])} ({percent(error, signed=True)}).{_verdicts(found)} "
        f"{_machine(found['facts'], found['load'])}"
    )
    return f"{markdown(heads, body)}\n\n{end}"


def _span(ends: Sequence[float] | None, written: Callable[[float], str]) -> str:
    return f"{written(ends[0])} to {written(ends[1])}" if ends else NOTHING


def _short(verdict: Mapping[str, Any] | None) -> str:
    """A verdict in a cell."""
    said = verdict["verdict"] if verdict else NOTHING
    return said if said in ("met", "missed", NOTHING) else "too restless to tell"


def _verdicts(found: Mapping[str, Any]) -> str:
    """Every claim and whether it was met, and how restless the machine was; empty for results without them."""
    if "verdicts" not in found:
        return ""
    return f" Claims: {_claims(found['verdicts'].items())}. The machine drifted by {percent(found['machine_record']['drift']['drift'])}."


def _claims(verdicts: Iterable[tuple[str, Mapping[str, Any]]]) -> str:
    """Claim by claim. Where several results are judged by one, the names of those that did not meet it.

    >>> fast = {"claim": "fast", "verdict": "met"}
    >>> _claims([("a", fast), ("b", fast | {"verdict": "missed"}), ("c", fast | {"verdict": "missed"}), ("d", fast | {"claim": "right"})])
    'fast: 1 of 3 met, missed: b, c; right: met'
    """
    by_claim: dict[str, dict[str, list[str]]] = {}
    for name, v in verdicts:
        by_claim.setdefault(v["claim"], {}).setdefault(_short(v), []).append(name)
    said = []
    for claim, of in by_claim.items():
        met, judged = len(of.pop("met", ())), sum(map(len, of.values()))
        others = "".join(f", {v}: {', '.join(names)}" for v, names in of.items())
        said.append(
            f"{claim}: " + (f"{met} of {met + judged} met{others}" if met + judged > 1 else next(iter(of), "met"))
        )
    return "; ".join(said)


def mapping(found: Mapping[str, Any]) -> str:
    """benchmarks/mapping.py: how far methods are above the best that any of them found; only where one device or heft is."""
    methods = ("single", "intuitive", "heft", "bayes", "bayes-tpe", "bayes-random", "genetic", "cp-sat", "hybrid")
    body = []
    for c in found["cases"]:
        runs = {row["method"]: [r["value_s"] / c["best_s"] - 1 for r in row["runs"]] for row in c["rows"]}
        if max(*runs["single"], *runs["heft"]) < MATTERS:
            continue
        cells = [NOTHING if m not in runs else _above(runs[m]) for m in methods]
        body.append([f"{c['graph']}, {c['devices']}, {c['rate'] / 1e9:g} GB/s", seconds(c["best_s"]), percent(c["best_s"] / c["bound_s"] - 1), *cells])  # fmt: skip
    longest = max(
        r["wall_s"] for c in found["cases"] for row in c["rows"] if row["method"] == "hybrid" for r in row["runs"]
    )
    heads = ["graph, devices, links", "best", "above the bound", *methods]
    ends = (
        f"Iterations above the best that any method found, medians over the seeds, and the range where it is 0.1 % or wider; `hybrid` took at most "
        f"{seconds(longest)}. On the other graphs and rates one device and `heft` are within {percent(MATTERS)} of the optimum, and `hybrid` met that."
    )
    return f"{markdown(heads, body)}\n\n{ends} {_recorded(found)}"


def _above(shares: Sequence[float]) -> str:
    """The median, with the range where there is one."""
    low, high = min(shares), max(shares)
    return percent(statistics.median(shares)) + (f" ({_span([low, high], percent)})" if high - low >= 1e-3 else "")


def mapping_run(found: Mapping[str, Any]) -> str:
    """benchmarks/mapping_run.py: a model a row, the mapping that a search while training found against one process."""
    body = [
        [
            r["model"], seconds(r["single_step_s"]), seconds(r["step_s"]), seconds(r["predicted_step_s"]),
            f"{times(r['speedup'])} ({_span(r['speedup_interval'], times)})", times(r["limit"]), percent(r["share_of_limit"]),
        ]
        for r in found["rows"]
    ]  # fmt: skip
    budget_s = found["rows"][0]["search"]["budget_s"]
    heads = ["model", "one process", "mapped", "predicted", "speed-up", "limit", "of the limit"]
    ends = f"2 workers; searched for during {seconds(budget_s)} of training, then in turn with one process and with copies of the whole job, which are the limit."
    return f"{markdown(heads, body)}\n\n{ends} {_recorded(found)}"


def adapting(found: Mapping[str, Any]) -> str:
    """benchmarks/adapting.py: two sentences."""
    rows, quiet = found["slowed"]["rounds"], found["quiet"]
    noticed, soon = (found["verdicts"][k]["value"] for k in ("noticed", "soon"))
    return (
        f"A core is slowed to 40 % in the middle of a run, {len(rows)} times: noticed after {noticed:g} steps, another mapping in place and within 5 % of the "
        f"new optimum after {soon:g} (medians), in the end {times(found['slowed']['after_over_optimum'])} of it; no step is lost. "
        f"{quiet['steps']:,} quiet steps: {quiet['switched']} changes of mapping. Watching costs {percent(found['verdicts']['cheap']['value'] - 1)} "
        f"of the steps' time. {_recorded(found)}"
    )


def simulator(found: Mapping[str, Any]) -> str:
    """benchmarks/simulator.py: one sentence."""
    return (
        f"The simulator takes {found['small_us']:.2f} µs an evaluation of {found['small_tasks']} tasks on 4 devices (one of many in a call), "
        f"and {found['million_ms']:.0f} ms for a program of {found['million_instructions']:,} instructions, after compilation.{_verdicts(found)} "
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
    return (
        f"{markdown(['question', *names], body)}\n\n{end}{_verdicts(found)} {_machine(found['facts'], found['load'])}"
    )


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
        errors = [
            percent(rows["auto"][e], signed=True) if e in rows["auto"] else NOTHING
            for e in ("error", "error_at_run_speed")
        ]
        body.append([f"{s['device_percent']} %, {s['mbit_per_s']} Mbit/s", *cells, *errors])
    figures = found["mixed"]["figures"]
    rounds = [len(m["runs"]) for s in settings for m in s["methods"].values() if m.get("runs")]
    drifts, days = [s["drift"]["drift"] for s in settings], sorted({s["time"][:10] for s in settings})
    end = (
        f"30 jobs of 5 models; the device has that share of a core; measured makespans, in brackets predicted ones of plans that were not run. "
        f"Last columns: predicted over measured of auto, as planned and at the speed that the machines had in the run. Of all plans the "
        f"median error at run speed is {percent(figures['error_at_run_speed_median'])}, the worst {percent(figures['error_at_run_speed_worst'])}; "
        f"as planned {percent(figures['error_median'])} and {percent(figures['error_worst'])}. "
        f"Medians of {min(rounds)} to {max(rounds)} runs in turn, of short ones each the middle one of three. Claims: {_claims(found['verdicts'].items())}. "
        f"The machine drifted by {percent(min(drifts))} to {percent(max(drifts))} within a setting, {' and '.join(days)}."
    )
    return f"{markdown(['setting', *names, 'error', 'at run speed'], body)}\n\n{end}"


def flow(found: Mapping[str, Any]) -> str:
    """benchmarks/flow.py explore: an alternative a row, its time and how many times ours that is."""
    medians = {name: statistics.median(s["wall_s"]) for name, s in found["samples"].items()}
    ours, what = medians["ours"], found["setting"]
    body = [[name, seconds(t), times(t / ours) if t != ours else NOTHING] for name, t in medians.items()]
    end = (
        f"{what['configurations']} configurations over {what['rows']} rows of {what['set']} in three nested levels, {what['workers']} workers; all give the same answers. "
        f"Medians of {min(len(s['wall_s']) for s in found['samples'].values())} rounds in turn, ours before and after each of the others.{_verdicts(found)} {_recorded(found)}"
    )
    return f"{markdown(['alternative', 'time', 'of ours'], body)}\n\n{end}"


def schedules(found: Mapping[str, Any]) -> str:
    """benchmarks/schedules.py: of each job and number of micro-batches our schedules and torch's best, against the chosen one."""
    words = {"chosen by pipeline": "chosen", "1f1b by pipeline": "1F1B, best cuts and micro-batches in flight", "textbook by pipeline": "1F1B, two in flight"}  # fmt: skip
    body = []
    for name, job in found["jobs"].items():
        best = job["best_of_torch"]
        shown = {**words, best: f"torch's best: {best.removesuffix(' by torch')}"}
        for plan, said in shown.items():
            value, *ends = job["ratio"][plan]
            near = NOTHING if plan in list(words)[:1] else f"{times(value)} ({_span(ends, times)})"
            body.append([name, said, seconds(job["median_s"][plan]), near])
    end = f"Jobs with so many micro-batches, 2 workers, a step each in turn within seconds; gradients are those of one process.{_verdicts(found)} {_recorded(found)}"
    return f"{markdown(['job', 'schedule', 'a step', 'of the chosen one'], body)}\n\n{end}"


def spark(found: Mapping[str, Any]) -> str:
    """benchmarks/spark.py: small problems against what is proven best, layers of stages against the bound."""
    body = [
        [f"{r['instances']} random problems of up to 12 stages, {r['objective']}", f"{percent(r['mean_gap'])} above the optimum", percent(r["worst_gap"]), NOTHING]
        for r in found["against_exact"]
    ]  # fmt: skip
    layers: dict[str, list[Mapping[str, Any]]] = {}
    for r in found["layers"]:
        jobs = f" of {r['jobs']} jobs" if r["jobs"] > 1 else ""
        layers.setdefault(
            f"{r['stages']:,} stages in {'dense ' * r['dense']}layers{jobs}, {r['objective']}", []
        ).append(r)
    for name, rows in layers.items():
        gaps = [r["gap"] for r in rows]
        body.append([name, f"{percent(statistics.fmean(gaps))} above the bound", percent(max(gaps)), seconds(max(r["wall_s"] for r in rows))])  # fmt: skip
    return f"{markdown(['problem', 'on average', 'worst', 'longest'], body)}\n\nThe search of a small problem had {seconds(found['budget_s'])}, that of layers {seconds(found['layers_budget_s'])}.{_verdicts(found)} {_recorded(found)}"


def spark_learned(found: Mapping[str, Any]) -> str:
    """benchmarks/spark_learned.py: mean job times of the best rule, of planning anew and of the learned policy, and how much lower."""
    body = []
    for r in found["shop"]:
        took, rule = r["mean_job_s"], r["best_rule"]
        lower = [_lower(found, f"shop {r['jobs']} {r['load']:g} {than}") for than in (rule, "replan")]
        times_s = [statistics.fmean(v) for v in (took[rule], took["replan"], took["learned"], r["bound_s"])]
        body.append([f"shop, {r['jobs']} jobs, load {r['load']:g}", f"{seconds(times_s[0])} ({rule})", *map(seconds, times_s[1:]), *lower])  # fmt: skip
    for r in found["executors"]:
        took = r["mean_job_s"]
        lower = _lower(found, f"executors {r['traces']} {r['setting']}")
        best, ours = (seconds(statistics.fmean(took[p])) for p in ("weighted-fair", "learned"))
        body.append([f"executors, traces {r['traces']}, {r['setting']}", f"{best} (weighted fair)", NOTHING, ours, NOTHING, lower, NOTHING])  # fmt: skip
    heads = ["jobs", "best rule", "planned anew", "learned", "bound, all known", "lower than the rule", "than planned anew"]  # fmt: skip
    end = "Mean job times over episodes whose seeds no training has seen; the exponent of weighted fair is the best of 17 in these very episodes."
    return f"{markdown(heads, body)}\n\n{end} {_recorded(found)}"


def _lower(found: Mapping[str, Any], name: str) -> str:
    v = found["verdicts"][name]
    return f"{percent(v['value'])} ({_span(v['interval'], percent)})"


def _recorded(found: Mapping[str, Any]) -> str:
    return _machine(found["machine_record"]["facts"], found["machine_record"]["load"][0])


TABLES: Mapping[str, Callable[[Any], str]] = {
    "prediction": prediction,
    "small": small,
    "pipeline": pipeline,
    "mapping": mapping,
    "mapping_run": mapping_run,
    "adapting": adapting,
    "simulator": simulator,
    "models": models,
    "offload": offload,
    "flow": flow,
    "schedules": schedules,
    "unequal": unequal,
    "spark": spark,
    "spark_learned": spark_learned,
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
    parser.add_argument("--check", action="store_true")
    parser.add_argument("files", nargs="*", type=Path, default=DOCUMENTS, metavar="FILE")
    options = parser.parse_args()
    stale = 0
    for file in options.files:
        before = file.read_text()
        after = filled(before, options.results)
        stale += after != before
        if not options.check:
            file.write_text(after)
    return int(options.check and stale > 0)


if __name__ == "__main__":
    sys.exit(main())
