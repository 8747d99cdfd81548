"""partita plan SOURCE: find a plan, with a bound that says how good it is."""

from __future__ import annotations

import argparse
import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, get_args

import numpy as np

from partita.cli.settings import check_budget
from partita.cli.talk import Talk
from partita.errors import BadInput
from partita.mapping.plan.jobs import plan_job
from partita.mapping.plan.planner import METHODS as MAPPINGS
from partita.mapping.plan.planner import plan_mapping
from partita.nouns.cluster import Cluster, expect_known
from partita.nouns.pipeline_plan import Asked, PipelinePlan
from partita.nouns.placement_problem import PlacementProblem
from partita.nouns.plan import PlanFile
from partita.nouns.profile import Profile
from partita.nouns.splits import counted, read_splits
from partita.page.plan_rows import is_mapping, load_rows, mapped_rows, stage_rows, visits
from partita.page.schedule_words import schedule_words, why_this_schedule
from partita.page.text import Kind, facts, percent, seconds, table
from partita.page.together import lines, together
from partita.pipeline.plan.planner import plan_pipeline
from partita.placement.capture.dnn_partitioning import unread
from partita.placement.capture.formats import read_problem, sniff
from partita.placement.capture.pipedream import read_profile
from partita.placement.plan.contiguous_plan import plan_contiguous

PROFILE_MARK = b"partita-profile"  #: within the first bytes of a profile, and of no other file
HEAD_BYTES = 512
KNOWN_TO_ALL = ("auto", "single")  #: methods that every planner has


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "source", metavar="SOURCE", help="profile.json (partita measure), a dnn-partitioning .json or a PipeDream .txt"
    )
    parser.add_argument("--cluster", metavar="TOML", help="plan for these machines instead of those in the source")
    parser.add_argument("--devices", type=int, metavar="N", help="plan for N devices")
    parser.add_argument(
        "--objective", choices=("throughput", "latency", "step"), help="profile: step; graph: throughput"
    )
    parser.add_argument(
        "--placement",
        choices=("contiguous", "free"),
        help="default: contiguous; of a graph for latency the better one",
    )
    parser.add_argument(
        "--method",
        default="auto",
        metavar="NAME",
        help="a planner's name; default: auto; of a job, and of a graph for latency, also heft, cp-sat, bayes, genetic, hybrid",
    )
    parser.add_argument("--micro-batches", type=int, metavar="M", help="so many micro-batches; default: the fastest")
    parser.add_argument("--in-flight", type=int, metavar="K", help="micro-batches in flight; default: the fastest")
    parser.add_argument("--schedule", choices=get_args(Asked), default="auto", help="default: auto, the fastest")
    parser.add_argument("--stages", type=int, metavar="K", help="exactly so many stages; default: the fastest")
    parser.add_argument("--no-replicas", action="store_true", help="one device a stage")
    parser.add_argument("--budget-s", type=float, default=10.0, metavar="S", help="seconds to search; default: 10")
    parser.add_argument(
        "--seed", type=int, default=0, metavar="N", help="the same seed gives the same plan; default: 0"
    )
    parser.add_argument(
        "--bandwidth",
        type=float,
        metavar="B",
        help="bytes/s between devices; default: as measured, 1e9 for PipeDream profiles",
    )
    parser.add_argument("-o", "--out", metavar="JSON", help="write the plan, with the problem it answers")


def run(options: argparse.Namespace, talk: Talk) -> dict[str, Any]:
    """Read, plan, write. Raises BadInput for a source that cannot be planned, Infeasible where nothing fits."""
    file = _planned(options, talk)
    if options.out:
        file.write(options.out)
        talk.say(f"   plan written to {options.out}")
    return document(file, options.out)


def _planned(options: argparse.Namespace, talk: Talk) -> PlanFile:
    source = options.source
    if ".py:" in source:
        raise BadInput(
            f"{source} is a job, which has to be measured before it can be planned",
            hint=f"run: partita measure {source} -o profile.json; partita plan profile.json",
        )
    check_budget(options.budget_s)
    if _is_profile(source):
        return _pipeline(options, talk)
    return _graph(options, talk)


def _is_profile(path: str) -> bool:
    try:
        with Path(path).open("rb") as file:
            return PROFILE_MARK in file.read(HEAD_BYTES)
    except OSError:
        return False


def _pipeline(options: argparse.Namespace, talk: Talk) -> PlanFile:
    profile = Profile.read(options.source)
    return _stages(profile, Cluster.read(options.cluster) if options.cluster else None, options, talk)


def _stages(profile: Profile, cluster: Cluster | None, options: argparse.Namespace, talk: Talk) -> PlanFile:
    """A pipeline, or a mapping, of a job that was measured."""
    if options.objective not in (None, "step"):
        raise BadInput(
            f"a profile is planned for the training step, not for {options.objective}", hint="leave --objective out"
        )
    cluster = cluster or profile.cluster
    cluster = cluster.first(options.devices) if options.devices is not None else cluster
    if options.bandwidth is not None:
        cluster = at_rate(cluster, options.bandwidth)
    if (
        options.cluster
        and len(cluster.devices) > 1
        and any(np.isnan(s.costs.transfer_s).any() for s in profile.samples)
    ):
        expect_known(cluster.links_in_use())
    talk.step(f"planning {profile.job} on {len(cluster.devices)} devices")
    if options.placement == "free" or (options.method in MAPPINGS and options.method not in KNOWN_TO_ALL):
        _expect_no_pipeline(options)
        return plan_job(profile, cluster, method=options.method, budget_s=options.budget_s, seed=options.seed)
    return plan_pipeline(
        profile,
        cluster,
        method=options.method,
        micro_batches=options.micro_batches,
        in_flight=options.in_flight,
        schedule=options.schedule,
        budget_s=options.budget_s,
        seed=options.seed,
        stages=options.stages,
        allow_replicas=not options.no_replicas,
    )


def _expect_no_pipeline(options: argparse.Namespace) -> None:
    """Raise BadInput for wishes that a mapping has no place for, and for a placement that is none."""
    if options.placement == "contiguous":
        raise BadInput(f"method {options.method!r} places operators freely", hint="leave --placement out")
    names = ("micro_batches", "in_flight", "schedule", "stages")
    said = ["--" + n.replace("_", "-") for n in names if getattr(options, n) not in (None, "auto")]
    if said:
        raise BadInput(
            f"a mapping runs the whole batch at once: {', '.join(said)} are for pipelines", hint=f"leave {said[0]} out"
        )


def at_rate(cluster: Cluster, rate: float) -> Cluster:
    """The cluster with this rate on every link. Raises BadInput for a rate that is none."""
    if not rate > 0:
        raise BadInput(f"a bandwidth of {rate} bytes/s", hint="say --bandwidth, e.g. 1e9")
    links = tuple(replace(k, rate_bytes_per_s=rate) for k in cluster.links)
    return replace(cluster, links=links, default_link=replace(cluster.default_link, rate_bytes_per_s=rate))


def _graph(options: argparse.Namespace, talk: Talk) -> PlanFile:
    objective = options.objective or "throughput"
    if objective == "step":
        return _training(options, talk)
    problem = read_problem(options.source, options.devices, 1e9 if options.bandwidth is None else options.bandwidth)
    for remark in problem.remarks:
        talk.say(f"   {options.source}, {remark}")
    if options.cluster:
        problem = _moved(problem, Cluster.read(options.cluster), options.bandwidth)
    talk.step(f"planning {problem.graph.name}, {len(problem.graph)} tasks, on {len(problem.cluster.devices)} devices")
    if maps(options.method, options.placement, objective):
        found = plan_mapping(problem, method=options.method, budget_s=options.budget_s, seed=options.seed)
        return found if options.placement or options.method != "auto" else _or_contiguous(found, options.budget_s)
    if options.placement == "free":
        from partita.placement.plan.free import plan_free  # it needs optional solvers

        return plan_free(problem, objective, method=options.method, budget_s=options.budget_s, seed=options.seed)
    return plan_contiguous(
        problem, objective, method=options.method, budget_s=options.budget_s, replicas=not options.no_replicas
    )


def _training(options: argparse.Namespace, talk: Talk) -> PlanFile:
    """A pipeline that trains the layers of a PipeDream profile."""
    if sniff(options.source) != "pipedream":
        raise BadInput(
            "a graph with given costs has no training step to plan for", hint="say --objective throughput or latency"
        )
    if options.micro_batches is None:
        raise BadInput(
            f"{options.source} does not say how many micro-batches a step has; each is what it timed",
            hint="say --micro-batches M, e.g. 8",
        )
    cluster = Cluster.read(options.cluster) if options.cluster else None
    devices = len(cluster.devices) if cluster else options.devices
    rate = 1e9 if options.bandwidth is None else options.bandwidth
    profile, odd = read_profile(options.source, options.micro_batches, devices, rate)
    if odd:
        talk.say(f"   {options.source}, nodes: {unread(odd)}")
    if cluster and not (cluster.links or math.isfinite(cluster.default_link.rate_bytes_per_s)):
        cluster = at_rate(cluster, rate)
    return _stages(profile, cluster, options, talk)


def maps(method: str, placement: str | None, objective: str) -> bool:
    """Whether the mapping wing answers. Its methods place tasks freely, said or not; "auto" and "single" are known to all:
    for latency the mapping wing has them where nobody asks for a contiguous placement.

    Raises BadInput for one of its methods with another objective.
    """
    if method not in MAPPINGS or (method in KNOWN_TO_ALL and (placement == "contiguous" or objective != "latency")):
        return False
    if objective != "latency":
        raise BadInput(f"method {method!r} is for latency, not for {objective}", hint="say --objective latency")
    return True


def _or_contiguous(found: PlanFile, budget_s: float) -> PlanFile:
    """The mapping, or the contiguous plan where that is quicker; a contiguous plan is a mapping, so the bound holds for both."""
    assert isinstance(found.problem, PlacementProblem)
    other = plan_contiguous(found.problem, "latency", budget_s=budget_s)
    verdict = found.verdict
    compared = {**verdict.compared_s, "contiguous": other.verdict.value_s}
    if other.verdict.value_s >= verdict.value_s:
        return replace(found, verdict=replace(verdict, compared_s=compared))
    value, name = other.verdict.value_s, "auto (contiguous)"
    return replace(other, verdict=replace(verdict, value_s=value, method=name, compared_s={**compared, "auto": value}))


def _moved(problem: PlacementProblem, cluster: Cluster, bandwidth: float | None) -> PlacementProblem:
    """The problem on other machines. Where their file says no rate, a profile's is that of the problem or of the flag."""
    for kind in cluster.kinds:
        problem.costs.column(kind)
    said = cluster.links or math.isfinite(cluster.default_link.rate_bytes_per_s)
    if problem.bandwidth_bytes_per_s is None:
        return problem.on(cluster)
    if bandwidth is not None or not said:
        cluster = at_rate(cluster, problem.bandwidth_bytes_per_s)
    rate = cluster.default_link.rate_bytes_per_s
    return replace(problem.on(cluster), bandwidth_bytes_per_s=rate if math.isfinite(rate) else None)


def document(file: PlanFile, out: str | None = None) -> dict[str, Any]:
    """What is printed: the plan without its problem, and what a person wants to know of it."""
    verdict = file.verdict
    rows = (
        mapped_rows(file) if is_mapping(file) else stage_rows(file) if verdict.objective == "step" else load_rows(file)
    )
    value = {**file.shown(), "gap": _finite(verdict.gap), **visits(file), **placed(file), "plan": out}
    return {**value, "table": [{k: _finite(v) for k, v in asdict(r).items()} for r in rows]}


def placed(file: PlanFile) -> dict[str, Any]:
    """Forward task -> device, where a plan maps a job's operators, and what it could not part."""
    if not is_mapping(file):
        return {}
    assert isinstance(file.plan, PipelinePlan)
    return {"placement": {t: s.devices[0] for s in file.plan.stages for t in s.tasks}, "together": together(file)}


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def text(document: dict[str, Any]) -> str:
    if document["objective"] == "step":
        return "\n\n".join(filter(None, [_step_facts(document), step_table(document), _comparison(document)]))
    return "\n\n".join(filter(None, [_graph_facts(document), load_table(document["table"]), _comparison(document)]))


def _graph_facts(d: dict[str, Any]) -> str:
    what = {"throughput": "largest load", "latency": "one sample"}[d["objective"]]
    used = sum(len(r["devices"]) for r in d["table"])
    visits = [f"{n} serves {v} virtual stages" for n, v in d.get("virtual_stages", {}).items() if v > 1]
    return facts(
        [
            (what, f"{seconds(d['value_s'])}, predicted"),
            *bound_facts(d),
            ("devices", f"{used} used" + (f"; {'; '.join(visits)}" if visits else "")),
            ("method", f"{d['method']}, {seconds(d['seconds_spent'])}"),
        ]
    )


def bound_facts(d: dict[str, Any]) -> list[tuple[str, str]]:
    """Bound and gap as lines."""
    return [
        ("bound", f"{seconds(d['lower_bound_s'])} ({d['bound']})"),
        ("gap", "unknown" if d["gap"] is None else "none, it is optimal" if d["gap"] < 5e-10 else f"at most {percent(d['gap'])}"),
    ]  # fmt: skip


def _step_facts(d: dict[str, Any]) -> str:
    what = f"{len(d['stages'])} stages" if len(d["stages"]) > 1 else "one stage"
    return facts(
        [
            ("step", f"{seconds(d['value_s'])}, predicted"),
            *bound_facts(d),
            ("mapping", f"{len(d['placement'])} operators in {len(d['stages'])} segments, the whole batch at once")
            if "placement" in d else
            ("pipeline", f"{what}, {d['micro_batches']} micro-batches of {d['micro_batch_size']}, {d['in_flight']} in flight, {schedule_words(d['schedule'])}"),
            *choice_facts(d),
            *split_facts(d),
            *(("together", line) for line in lines(d.get("together", {}))),
            ("method", f"{d['method']}, {seconds(d['seconds_spent'])}"),
        ]
    )  # fmt: skip


def choice_facts(d: dict[str, Any]) -> list[tuple[str, str]]:
    """Why this schedule; or one device, where more would be faster by less than predictions can be trusted to."""
    value, compared = d["value_s"], d.get("compared_s", {})
    saved = 1 - min(compared.values(), default=math.inf) / value if value > 0 else 0.0
    if d["objective"] == "step" and d["method"] == "single" and saved > 0.0005:
        return [
            ("devices", f"one: the best plan for more would save {percent(saved)}, less than a prediction is sure of")
        ]
    why = why_this_schedule(d.get("schedule", ""), value, compared)
    return [("schedule", why)] if why else []


def split_facts(d: dict[str, Any]) -> list[tuple[str, str]]:
    """Operators in parts as lines, those that are split alike together."""
    return [("split", line) for line in counted(read_splits(d.get("splits"), BadInput, "splits"))]


def step_table(document: dict[str, Any]) -> str:
    """Stages of a training pipeline, devices of a mapping."""
    return (device_table if "placement" in document else stage_table)(document["table"])


def stage_table(rows: list[dict[str, Any]]) -> str:
    """Stages of a training pipeline."""
    columns: list[tuple[str, Kind]] = [
        ("stage", "count"), ("from", "text"), ("to", "text"), ("tasks", "count"), ("devices", "text"),
        ("forward", "s"), ("backward", "s"), ("share", "share"), ("memory", "bytes"),
    ]  # fmt: skip
    return table(
        columns,
        [
            [r["stage"], _short(r["first"]), _short(r["last"]), r["tasks"], _listed(r["devices"]) + (" (recompute)" if r["recompute"] else ""), r["forward_s"], r["backward_s"], r["share"], r["need_bytes"]]
            for r in rows
        ],
    )  # fmt: skip


def device_table(rows: list[dict[str, Any]]) -> str:
    """Devices of a mapping."""
    columns: list[tuple[str, Kind]] = [
        ("device", "text"), ("operators", "count"), ("segments", "count"), ("forward", "s"), ("backward", "s"), ("share", "share"),
        ("memory", "bytes"),
    ]  # fmt: skip
    return table(columns, [[r[k] for k in ("device", "tasks", "segments", "forward_s", "backward_s", "share", "need_bytes")] for r in rows])  # fmt: skip


def load_table(rows: list[dict[str, Any]]) -> str:
    """Devices of a placement, or stages with replicas."""
    columns: list[tuple[str, Kind]] = [
        ("devices", "text"), ("from", "text"), ("to", "text"), ("tasks", "count"), ("compute", "s"), ("in", "s"), ("out", "s"),
        ("gradients", "s"), ("load", "s"), ("memory", "bytes"),
    ]  # fmt: skip
    cells = [
        [_listed(r["devices"]), _short(r["first"]), _short(r["last"]), r["tasks"], r["compute_s"], r["in_s"], r["out_s"], r["sync_s"], r["load_s"], r["memory_bytes"]]
        for r in rows
    ]  # fmt: skip
    keep = [k for k, (name, _) in enumerate(columns) if name != "gradients" or any(r["sync_s"] for r in rows)]
    return table([columns[k] for k in keep], [[row[k] for k in keep] for row in cells])


def _short(name: str, most: int = 34) -> str:
    return name if len(name) <= most else name[: most // 2 - 1] + "…" + name[-(most // 2) :]


def _listed(names: list[str], most: int = 4) -> str:
    return " ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _comparison(d: dict[str, Any]) -> str:
    """What the plan was compared with."""
    method = d["method"].partition(" (")[0]
    compared = {n: v for n, v in d.get("compared_s", {}).items() if n == method or n not in get_args(Asked)}
    if method not in compared:
        return ""
    what = "step" if d["objective"] == "step" else "one sample"
    rows = [
        [name, value, compared.get("single", math.nan) / value if value > 0 else math.nan]
        for name, value in compared.items()
    ]
    return table([("method", "text"), (what, "s"), ("against single", "ratio")], rows)
