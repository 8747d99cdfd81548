"""Operators in parts: what it brings where a mapping alone brings nothing, and what BatchNorm over parts of a batch costs.

    python benchmarks/node_splitting.py [--only step,accuracy] [--rounds 18] [--blocks 2] [--seeds 5] [--epochs 15] [--data DIR] [--json]

step       Models that are one long chain (tests/jobs/branchy.py, random weights and data), planned by the same method as they are and
           in parts: AlexNet with `--split auto`, ResNet-18 with that and with `--split auto:ghost`; and an Inception, which has branches,
           with `--split '*:batch:2'`. In turn with one process and with copies of the whole job side by side, which are the limit.
accuracy   Networks with BatchNorm trained on real images (scikit-learn's digits; with --data also CIFAR-10's, whose train.parquet and
           test.parquet lie in DIR), whole and with every operator in 2, 4 and 8 parts by the batch: the code that workers run,
           in one process. The same seeds give the same first weights and batches, so differences are taken in pairs.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from engines import WARMUP, add_turns, figures, plans_in_turn
from harness import Json, Machine, order, parser, run_script, said
from intervals import WITHIN_ROUNDS, Claim, Interval, ratio_within_rounds
from scipy.stats import t as student
from torch import Tensor, nn

from partita.cli import demo_job
from partita.cli.talk import Talk
from partita.errors import BadInput
from partita.mapping.plan.jobs import plan_job
from partita.nouns.pipeline_plan import PipelinePlan
from partita.nouns.plan import PlanFile
from partita.nouns.splits import Split, counted
from partita.page.text import percent, seconds, table
from partita.pipeline.run.loop import check_rounds
from partita.training.capture.model import capture
from partita.training.job import TrainingJob, batch_size, load_job
from partita.training.measure.job import measure_job
from partita.training.runtime.stage import Stage, batch_leaves, stage_code

ROOT = Path(__file__).parents[1]
BRANCHY = ROOT / "tests" / "jobs" / "branchy.py"
CIFAR = ROOT / "examples" / "cifar_resnet.py"
MODELS: dict[str, dict[str, str]] = {
    "alexnet": {"batch": "64", "width": "16"},
    "resnet": {"batch": "16", "width": "32", "each": "2", "size": "32"},
    "inception": {"batch": "16", "width": "32", "blocks": "4", "size": "32"},
}
SPLITS = {"alexnet": ("auto",), "resnet": ("auto", "auto:ghost"), "inception": ("*:batch:2",)}
PARTS = (1, 2, 4, 8)
CPU = torch.device("cpu")

FASTER = Claim(
    "in parts, a chain's step is at least 1.1x faster than by the best mapping of whole operators",
    low=1.1,
    most_drift=WITHIN_ROUNDS,
)
NEAR_THE_LIMIT = Claim(
    "in parts, a chain reaches at least 0.8 of the machine's own limit", low=0.8, most_drift=WITHIN_ROUNDS
)
HARMLESS = Claim("BatchNorm over halves costs at most one point of accuracy", low=-0.01, most_drift=math.inf)


# ---- step ---------------------------------------------------------------------------------------------------------------


def planned(model: str, word: str, options: argparse.Namespace, talk: Talk) -> dict[str, PlanFile]:
    """The model's plans by one method, of whole operators and of parts, which `--split WORD` asks for."""
    source, settings = f"{BRANCHY}:{model}", MODELS[model]
    size = batch_size(load_job(source, settings).example())
    found = {}
    for name, splits in (("whole", ()), ("parts", (word,))):
        profile = measure_job(
            source, settings, devices=options.devices, sizes=(size,), splits=splits, budget_s=options.budget_s,
            progress=talk.progress,
        )  # fmt: skip
        found[name] = plan_job(profile, method=options.method, budget_s=options.search_s)
    return found


def chain(model: str, word: str, options: argparse.Namespace, machine: Machine, talk: Talk) -> Json:
    """A model: planned and run both ways."""
    since = len(machine.probed)
    machine.look_again(5.0)
    files = planned(model, word, options, talk)
    engines = dict.fromkeys(files, ("single", "pipeline"))
    runs = plans_in_turn(
        machine, files, f"{BRANCHY}:{model}", engines, settings=MODELS[model], rounds=options.rounds, blocks=options.blocks,
        talk=talk, with_copies=True,
    )  # fmt: skip
    machine.look("after")
    gains = {name: runs[name].ratio("single", "pipeline") for name in runs}
    against = ratio_within_rounds(runs["whole"].steps("pipeline"), runs["parts"].steps("pipeline"))
    copies = runs["parts"].copies
    near = runs["parts"].share_of_limit() if copies else None
    claims = {"faster": (FASTER, against), **({"near_the_limit": (NEAR_THE_LIMIT, near)} if near else {})}
    plans = {n: {**figures(files[n], runs[n]), **_of_plan(files[n]), "speedup": gains[n].value, "speedup_interval": gains[n].ends} for n in files}  # fmt: skip
    return {
        "model": model, "asked": word, "plans": plans, "parts_against_whole": against.value, "parts_against_whole_interval": against.ends,
        "limit": runs["parts"].limit.value if copies else None, "share_of_limit": near.value if near else None,
        "largest_loss_error": max(b.largest_loss_error for r in runs.values() for b in r.blocks),
        "verdicts": machine.verdicts(claims, since),
    }  # fmt: skip


def _of_plan(file: PlanFile) -> Json:
    assert isinstance(file.plan, PipelinePlan)
    splits = getattr(file.problem, "splits", ())
    return {"method": file.verdict.method, "bound_s": file.verdict.lower_bound_s, "devices": len(file.plan.devices), "splits": counted(splits)}  # fmt: skip


# ---- accuracy -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Images:
    """A network and real images to train and judge it on."""

    job: TrainingJob
    train: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]
    batch: int


def digits() -> Images:
    """1,437 of scikit-learn's digits to train on, every fifth one to judge."""
    x, y = demo_job.digits()
    judged = torch.arange(len(x)) % 5 == 0
    small = partial(demo_job.DigitNet, 16, 1)
    job = TrainingJob(small, nn.functional.cross_entropy, lambda epoch: iter(()), _sgd)
    return Images(job, (x[~judged], y[~judged]), (x[judged], y[judged]), 64)


def cifar(data: str, most: int) -> Images:
    """CIFAR-10's images, so many to train on and half as many to judge."""
    sys.path.insert(0, str(CIFAR.parent))
    try:
        from cifar_resnet import ResNet, images  # type: ignore[import-not-found]
    finally:
        sys.path.remove(str(CIFAR.parent))
    train, test = (images(str(Path(data) / f"{n}.parquet"), k) for n, k in (("train", most), ("test", most // 2)))
    job = TrainingJob(partial(ResNet, 16, 1), nn.functional.cross_entropy, lambda epoch: iter(()), _sgd)
    return Images(job, train, test, 64)


def _sgd(parameters: object) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)  # type: ignore[arg-type]


def accuracy(images: Images, parts: int, epochs: int, seed: int) -> float:
    """Share of the judged images that are told rightly by a network trained in so many parts; 1: whole."""
    torch.manual_seed(seed)
    model = images.job.build()
    x, y = images.train
    first = (x[: images.batch], y[: images.batch])
    splits = [Split("*", "ghost", parts)] if parts > 1 else []
    captured = capture(model, images.job.loss, first, splits=splits)
    tensors: dict[str, Tensor] = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    stage = Stage(stage_code(captured, captured.task_nodes, ()), captured.bindings, tensors, device=CPU)
    optimizer = images.job.optimizer(list(model.named_parameters()))  # type: ignore[arg-type]
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    for epoch in range(epochs):
        shuffled = torch.randperm(len(x), generator=torch.Generator().manual_seed(1000 * seed + epoch))
        for chosen in shuffled.split(images.batch):
            if len(chosen) == images.batch:
                optimizer.zero_grad()
                stage.forward(0, batch_leaves((x[chosen], y[chosen]), CPU), {}, seed)
                stage.backward(0, [], 1.0)
                optimizer.step()
        schedule.step()
    model.eval()
    with torch.no_grad():
        told = torch.cat([model(part).argmax(1) for part in images.test[0].split(256)])
    return float((told == images.test[1]).float().mean())


def trained(name: str, images: Images, options: argparse.Namespace, machine: Machine, talk: Talk) -> Json:
    """A data set: every number of parts with every seed."""
    found: dict[int, list[float]] = {p: [] for p in PARTS}
    for seed in range(options.seeds):
        for k, p in enumerate(order(PARTS, seed)):
            talk.progress(f"{name}: seed {seed + 1} of {options.seeds}", k, len(PARTS))
            found[p].append(accuracy(images, p, options.epochs, seed))
    rows = []
    for p in PARTS:
        change = [a - b for a, b in zip(found[p], found[1], strict=True)]
        mean = statistics.mean(change)
        half = float(student.ppf(0.975, len(change) - 1)) * statistics.stdev(change) / math.sqrt(len(change)) if len(change) > 2 and p > 1 else math.nan  # fmt: skip
        interval = None if math.isnan(half) else [mean - half, mean + half]
        rows.append({"parts": p, "images_a_part": images.batch // p, "accuracy": found[p], "mean": statistics.mean(found[p]), "change": mean, "change_interval": interval})  # fmt: skip
    halves = rows[1]
    claimed = Interval(halves["change"], *(halves["change_interval"] or (math.nan, math.nan)))  # type: ignore[misc]
    return {"data": name, "epochs": options.epochs, "trained_on": len(images.train[0]), "rows": rows, "verdicts": machine.verdicts({"halves": (HARMLESS, claimed)})}  # fmt: skip


# ---- both -----------------------------------------------------------------------------------------------------------------


def benchmark(options: argparse.Namespace, machine: Machine, talk: Talk) -> Json:
    chains = (
        [chain(m, w, options, machine, talk) for m in options.models for w in SPLITS[m]]
        if "step" in options.only
        else []
    )
    sets: dict[str, Callable[[], Images]] = {"digits": digits}
    if options.data:
        sets["CIFAR-10"] = lambda: cifar(options.data, options.images)
    torch.set_num_threads(options.threads)
    curves = (
        [trained(n, make(), options, machine, talk) for n, make in sets.items()] if "accuracy" in options.only else []
    )
    verdicts = {
        f"{r['model']} {r['asked']} {k}" if "model" in r else f"{r['data']} {k}": v
        for r in (*chains, *curves)
        for k, v in r["verdicts"].items()
    }
    return {"step": chains, "accuracy": curves, "verdicts": verdicts, "machine_record": machine.finished()}  # fmt: skip


def text(document: Json) -> str:
    blocks = []
    if document["step"]:
        columns = [("model", "text"), ("split", "text"), ("plan", "text"), ("one process", "s"), ("predicted", "s"), ("measured", "s"), ("speed-up", "ratio"), ("limit", "ratio")]  # fmt: skip
        rows = [[r["model"], r["asked"], n, p["single_step_s"], p["predicted_step_s"], p["measured_step_s"], p["speedup"], r["limit"]] for r in document["step"] for n, p in r["plans"].items()]  # fmt: skip
        blocks.append(table(columns, rows))  # type: ignore[arg-type]
        for r in document["step"]:
            parts = r["plans"]["parts"]
            blocks.append(f"{r['model']} {r['asked']}: {'; '.join(parts['splits']) or 'nothing is worth splitting'}; {r['parts_against_whole']:.2f}x the step by whole operators, bound {seconds(parts['bound_s'])}")  # fmt: skip
    for r in document["accuracy"]:
        columns = [
            ("parts", "count"),
            ("images a part", "count"),
            ("accuracy", "text"),
            ("change", "text"),
            ("95 %", "text"),
        ]
        rows = [[x["parts"], x["images_a_part"], percent(x["mean"]), _points(x["change"]), " to ".join(map(_points, x["change_interval"] or ()))] for x in r["rows"]]  # fmt: skip
        blocks.append(f"{r['data']}, {r['trained_on']} images, {r['epochs']} epochs, {len(r['rows'][0]['accuracy'])} seeds\n{table(columns, rows)}")  # type: ignore[arg-type]  # fmt: skip
    return "\n\n".join([*blocks, said(document)])


def _points(share: float) -> str:
    return f"{100 * share:+.2f} points"


def main() -> int:
    options = parser(__doc__)
    options.add_argument("--only", default="step,accuracy", metavar="PART[,PART]")
    options.add_argument("--models", default=",".join(MODELS), metavar="MODEL[,MODEL]")
    add_turns(options, 18, 2)
    options.add_argument("--devices", type=int, default=2)
    options.add_argument("--method", default="hybrid", help="of both plans; default: hybrid")
    options.add_argument("--budget-s", type=float, default=10.0, help="for measuring a model; default: 10")
    options.add_argument("--search-s", type=float, default=10.0, help="for each plan; default: 10")
    options.add_argument("--seeds", type=int, default=5)
    options.add_argument("--epochs", type=int, default=15)
    options.add_argument("--data", metavar="DIR", help="where CIFAR-10's train.parquet and test.parquet lie")
    options.add_argument("--images", type=int, default=4096, help="of CIFAR-10, to train on; default: 4096")
    options.add_argument("--threads", type=int, default=1, help="that train for accuracy; default: 1")
    given = options.parse_args()
    given.only, given.models = given.only.split(","), given.models.split(",")
    if strange := {*given.only} - {"step", "accuracy"} | {*given.models} - MODELS.keys():
        options.error(f"unknown: {', '.join(sorted(strange))}")
    check_rounds(given.rounds, WARMUP)
    if given.seeds < 1 or given.epochs < 1:
        raise BadInput("--seeds and --epochs count from 1", hint="e.g. --seeds 5 --epochs 15")
    return run_script(given, lambda m, t: benchmark(given, m, t), text, ("torch", "scikit-learn"))


if __name__ == "__main__":
    sys.exit(main())
