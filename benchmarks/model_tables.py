"""Tables of runs whose laws are known, of many shapes: what the performance models are judged by beside measured data.

    python benchmarks/model_tables.py [--only WORD] [--seed N] [--json]

Every table has other columns, names, units, constants and noise: training with replicas, slices and stages, inference,
HPC, Spark, cloud instances, times of an epoch, columns without meaning. Each is split by devices, by size or by batch:
fitted to the small, judged by the large. Nothing here is known to the models but names and numbers.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from partita.models.capture.table import Table
from partita.models.opponents import OPPONENTS, threadpool_limits
from partita.models.study import prepare, study
from partita.nouns.graph import FloatArray
from partita.page.text import table as text_table

Draw = np.random.Generator


@dataclass(frozen=True)
class Question:
    """A table and how it is split."""

    table: str
    column: str | None
    up_to: float | None


def noisy(chance: Draw, seconds: FloatArray, sd: float) -> FloatArray:
    times: FloatArray = seconds * np.exp(sd * chance.normal(size=len(seconds)))
    return times


def picks(chance: Draw, rows: int, **values: Any) -> dict[str, Any]:
    """Columns of which each row takes one of the values."""
    return {n: chance.choice(np.array(v), rows) for n, v in values.items()}


def ring(replicas: FloatArray, size_bytes: FloatArray, rate: float, latency: float = 2e-5) -> FloatArray:
    seconds: FloatArray = 2 * (replicas - 1) / replicas * size_bytes / rate + 2 * (replicas - 1) * latency
    return seconds


def ddp_networks(chance: Draw) -> Table:
    """Image networks, replicas with a batch each, exchange half hidden."""
    c = picks(chance, 160, gpus=[1.0, 2, 4, 8, 16], batch_per_gpu=[16.0, 32, 64, 128], image_size=[160.0, 224, 288], network=["resnet18", "resnet50", "resnet101", "vgg16"])  # fmt: skip
    flops = np.select([c["network"] == n for n in ("resnet18", "resnet50", "resnet101")], [1.8e9, 4.1e9, 7.8e9], 15.5e9)
    weights = np.select([c["network"] == n for n in ("resnet18", "resnet50", "resnet101")], [11.7e6, 25.6e6, 44.5e6], 138e6)  # fmt: skip
    work = 3 * 2 * flops * (c["image_size"] / 224) ** 2 * c["batch_per_gpu"] / 5e13 + 8e-3
    sent = ring(c["gpus"], 4 * weights, 1e10)
    t = np.maximum(work, 0.4 * work + sent) + weights * 4 / 1e11
    return Table({**c, "step_ms": 1e3 * noisy(chance, t, 0.03)})


def gpt_sizes(chance: Draw) -> Table:
    """Language models on one machine: many columns say the same."""
    models = np.array([(6, 512), (12, 768), (24, 1024), (24, 1536), (24, 2048), (32, 2560), (32, 4096), (40, 5120)])
    m = models[chance.integers(0, len(models), 140)]
    layers, hidden = m[:, 0].astype(float), m[:, 1].astype(float)
    c = picks(chance, 140, micro_batch_size=[1.0, 2, 4, 8], seq_length=[512.0, 1024, 2048])
    parameters = 12 * layers * hidden**2 + 51200 * hidden
    tokens = c["micro_batch_size"] * c["seq_length"]
    flops = 6 * parameters * tokens + 12 * layers * hidden * c["seq_length"] * tokens
    t = flops / (1.6e14 * (1 - np.exp(-hidden / 900))) + layers * 4e-4 + parameters * 16 / 1.5e12
    return Table({"num_layers": layers, "hidden_size": hidden, "ffn_hidden_size": 4 * hidden, "num_attention_heads": hidden / 64, "params_billion": parameters / 1e9, **c, "tokens": tokens, "iteration_s": noisy(chance, t, 0.02)})  # fmt: skip


def weak_scaling(chance: Draw) -> Table:
    """Models that grow with the devices: the smallest count knows one model only."""
    sizes = [(32.0, 24.0, 2304.0, 24.0), (64.0, 30.0, 3072.0, 32.0), (128.0, 36.0, 4096.0, 32.0), (256.0, 48.0, 5120.0, 40.0), (512.0, 60.0, 6144.0, 48.0)]  # fmt: skip
    rows = []
    for n, layers, hidden, heads in sizes:
        for t in (1.0, 2.0, 4.0, 8.0):
            for p in (1.0, 2.0, 4.0):
                for m in (1.0, 2.0, 4.0):
                    rows.append((n, layers, hidden, heads, t, p, n / t / p, 512.0 if n < 200 else 1024.0, m))
    a = np.array(rows)[chance.permutation(len(rows))[:150]]
    n, layers, hidden, heads, t, p, d, batch, m = a.T
    parameters = 12 * layers * hidden**2 * (1 + 13 / (12 * hidden)) + 51200 * hidden
    slots = np.maximum(batch / d / m, 1) + p - 1
    compute = slots * 6 * 2048 * m * parameters / (t * p) / 1.4e14 * (1 + 0.08 * (t - 1)) * (1 + 0.3 / m)
    slices = slots * layers / p * 8 * 2048 * m * hidden * (t - 1) / t / 2e11
    sent = ring(d, 2 * parameters / t / p, 2e10)
    c = {"GPUs": n, "layers": layers, "hidden size": hidden, "attention heads": heads, "parameters (B)": parameters / 1e9, "tensor parallel": t, "pipeline parallel": p, "data parallel": d, "global batch": batch, "micro batch": m}  # fmt: skip
    return Table({**c, "iteration time (s)": noisy(chance, compute + slices + sent, 0.02)})


def inference(chance: Draw) -> Table:
    """Latency of text generation on one GPU."""
    c = picks(chance, 150, batch_size=[1.0, 2, 4, 8, 16, 32, 64], prompt_len=[64.0, 128, 512, 1024], new_tokens=[16.0, 64, 128, 256], model=["opt-1.3b", "opt-6.7b", "llama-13b"], dtype=["fp16", "int8"])  # fmt: skip
    weights = np.select([c["model"] == "opt-1.3b", c["model"] == "opt-6.7b"], [1.3e9, 6.7e9], 13e9)
    size = np.where(c["dtype"] == "fp16", 2.0, 1.2) * weights
    prefill = 2 * weights * c["batch_size"] * c["prompt_len"] / 1.5e14 + 0.01
    each = np.maximum(size / 1.3e12, 2 * weights * c["batch_size"] / 1e14) + 2e-3 + c["batch_size"] * c["prompt_len"] * 4e-8  # fmt: skip
    return Table({**c, "latency_s": noisy(chance, prefill + c["new_tokens"] * each, 0.04)})


def stencil(chance: Draw) -> Table:
    """A stencil over a grid on the nodes of a supercomputer."""
    c = picks(chance, 150, nodes=[1.0, 2, 4, 8, 16, 32], ranks_per_node=[8.0, 16, 32], nx=[128.0, 256, 512], ny=[128.0, 256, 512], nz=[128.0, 256], steps=[100.0, 1000])  # fmt: skip
    ranks = c["nodes"] * c["ranks_per_node"]
    cells = c["nx"] * c["ny"] * c["nz"]
    t = c["steps"] * (cells / ranks * 2e-8 + 6 * (cells / ranks) ** (2 / 3) * 8 / 2e9 + 1e-5 * np.log2(ranks))
    return Table({**c, "walltime_s": noisy(chance, t + 0.5, 0.04)})


def epochs(chance: Draw) -> Table:
    """Seconds of an epoch of a fixed data set, replicas with a batch each."""
    c = picks(chance, 120, workers=[1.0, 2, 4, 8], batch_size=[16.0, 32, 64, 128, 256], lr=[0.1, 0.01], optimizer=["sgd", "adam"])  # fmt: skip
    steps = 50_000 / (c["batch_size"] * c["workers"])
    step = 0.004 + c["batch_size"] * 3e-4 + np.where(c["workers"] > 1, ring(c["workers"], np.full(120, 1e8), 3e9), 0)
    t = steps * step * np.where(c["optimizer"] == "adam", 1.08, 1.0) + 2.0
    return Table({**c, "epoch_s": noisy(chance, t, 0.03)})


def cloud(chance: Draw) -> Table:
    """A batch job on instances of several types: a serial part, a part that divides, a start-up."""
    kinds = {"m5.large": (2.0, 8.0, 0.096), "m5.2xlarge": (8.0, 32.0, 0.384), "c5.4xlarge": (16.0, 32.0, 0.68), "r5.2xlarge": (8.0, 64.0, 0.504)}  # fmt: skip
    c = picks(chance, 140, instance_type=list(kinds), instances=[1.0, 2, 4, 8, 16], input_gb=[5.0, 10, 20, 40, 80])
    v, m, price = (np.array([kinds[k][i] for k in c["instance_type"]]) for i in range(3))
    work = c["input_gb"] * 30 * np.where(np.char.startswith(c["instance_type"], "c5"), 0.8, 1.0)
    short = np.where(c["input_gb"] / c["instances"] > m / 2, 1.4, 1.0)
    t = 20 + 0.04 * work + work * short / (v * c["instances"]) * 4 + 1.5 * c["instances"]
    return Table({"instance_type": c["instance_type"], "vcpus": v, "memory_gb": m, "price_per_h": price, "instances": c["instances"], "input_gb": c["input_gb"], "runtime_s": noisy(chance, t, 0.05)})  # fmt: skip


def spark(chance: Draw) -> Table:
    """Waves of tasks over executors."""
    c = picks(chance, 150, executors=[2.0, 4, 8, 16], cores_per_executor=[2.0, 4, 8], input_gb=[10.0, 20, 50, 100, 200], partitions=[64.0, 128, 256, 512], compression=["lz4", "zstd"])  # fmt: skip
    slots = c["executors"] * c["cores_per_executor"]
    task = c["input_gb"] / c["partitions"] * 22 * np.where(c["compression"] == "zstd", 1.15, 1.0) + 0.15
    t = 8 + np.ceil(c["partitions"] / slots) * task + c["input_gb"] * 0.6 / c["executors"]
    return Table({**c, "duration_min": noisy(chance, t, 0.05) / 60})


def sliced_inference(chance: Draw) -> Table:
    """A language model cut into slices, time to the first token."""
    c = picks(chance, 130, tp=[1.0, 2, 4, 8], hidden_dim=[2048.0, 4096, 5120, 8192], n_layers=[24.0, 32, 48, 80], batch=[1.0, 2, 4, 8, 16], input_len=[128.0, 512, 2048])  # fmt: skip
    tokens = c["batch"] * c["input_len"]
    weights = 12 * c["n_layers"] * c["hidden_dim"] ** 2
    t = np.maximum(2 * weights * tokens / 1.8e14, 2 * weights / 1.5e12) / c["tp"] + c["n_layers"] * (1.5e-4 + np.where(c["tp"] > 1, 4e-5 + 4 * tokens * c["hidden_dim"] * (1 - 1 / c["tp"]) / 2e11, 0))  # fmt: skip
    return Table({**c, "ttft_ms": 1e3 * noisy(chance, t, 0.03)})


def parameter_servers(chance: Draw) -> Table:
    """Workers that push to servers over a shared network."""
    c = picks(chance, 150, num_workers=[1.0, 2, 4, 8, 16], ps_count=[1.0, 2, 4], bandwidth_gbps=[1.0, 10, 25], params_m=[5.0, 25, 60, 140], gflops=[0.5, 2, 4, 15], batch_size=[16.0, 32, 64])  # fmt: skip
    work = 3 * c["gflops"] * 1e9 * c["batch_size"] / 6e12 + 0.01
    sent = 2 * c["params_m"] * 4e6 * 8 * c["num_workers"] / (c["ps_count"] * c["bandwidth_gbps"] * 1e9)
    return Table({**c, "step_time": noisy(chance, np.maximum(work, sent) + 0.3 * np.minimum(work, sent), 0.05)})


def anonymous(chance: Draw) -> Table:
    """Columns without meaning: two laws added."""
    c = picks(chance, 120, x1=[1.0, 2, 3, 5, 8], x2=[10.0, 20, 40, 80, 160], x3=[0.5, 1, 2, 4], x4=[1.0, 3, 9, 27])
    t = 0.3 * c["x1"] ** 0.7 * c["x2"] ** 1.3 / c["x3"] + 2 * c["x4"] ** 0.4 * c["x3"] ** 0.5 + 4
    return Table({**c, "y": noisy(chance, t, 0.03)})


def pipelines(chance: Draw) -> Table:
    """Stages and micro-batches, one replica."""
    c = picks(chance, 130, pp=[1.0, 2, 4, 8], num_micro_batches=[4.0, 8, 16, 32], micro_batch_size=[1.0, 2, 4], layers=[16.0, 32, 48], d_model=[1024.0, 2048, 4096])  # fmt: skip
    each = (
        c["layers"] / c["pp"] * (72 * c["d_model"] ** 2 * 1024 * c["micro_batch_size"] / 1.5e14 + 3e-4)
        + (c["pp"] > 1) * c["micro_batch_size"] * c["d_model"] * 4096 / 2e10
    )
    t = (c["num_micro_batches"] + c["pp"] - 1) * each + 12 * c["layers"] * c["d_model"] ** 2 / c["pp"] * 16 / 1.5e12
    return Table({**c, "global_batch_size": c["micro_batch_size"] * c["num_micro_batches"], "time_per_iter_ms": 1e3 * noisy(chance, t, 0.02)})  # fmt: skip


def noisy_replicas(chance: Draw) -> Table:
    """Replicas on machines that others use: 15 % of noise, some rows twice as slow."""
    c = picks(chance, 110, num_gpus=[1.0, 2, 4, 8], total_batch=[64.0, 128, 256, 512], depth=[20.0, 32, 56, 110], width=[16.0, 32, 64])  # fmt: skip
    work = c["total_batch"] / c["num_gpus"] * c["depth"] * c["width"] ** 1.5 * 2e-7 + c["depth"] * 3e-4
    sent = ring(c["num_gpus"], c["depth"] * c["width"] ** 2 * 40, 1e9, 3e-4)
    t = noisy(chance, work + sent, 0.15) * np.where(chance.random(110) < 0.05, 2.0, 1.0)
    return Table({**c, "seconds": t})


def time_to_train(chance: Draw) -> Table:
    """Minutes to an accuracy: larger batches need more epochs."""
    c = picks(chance, 120, accelerators=[8.0, 16, 32, 64, 128, 256], chip=["a100", "h100", "tpuv4"], local_batch=[8.0, 16, 32, 64])  # fmt: skip
    batch = c["local_batch"] * c["accelerators"]
    epochs_ = 34 * (1 + (batch / 8000) ** 1.2)
    speed = np.select([c["chip"] == "a100", c["chip"] == "h100"], [2500.0, 5200.0], 2900.0)
    step = c["local_batch"] / speed + 2e-3 + 2.5e-4 * np.log2(c["accelerators"])
    t = epochs_ * 1.28e6 / batch * step / 60 + 1.5
    return Table({**c, "train_minutes": noisy(chance, t, 0.03)})


def threads(chance: Draw) -> Table:
    """A database under threads: the universal scalability law."""
    c = picks(chance, 110, threads=[1.0, 2, 4, 8, 16, 32], rows_million=[1.0, 5, 10, 50], query=["q1", "q5", "q9"], disk=["ssd", "hdd"])  # fmt: skip
    rate = c["threads"] / (1 + 0.05 * (c["threads"] - 1) + 0.002 * c["threads"] * (c["threads"] - 1))
    heavy = np.select([c["query"] == "q1", c["query"] == "q5"], [1.0, 3.2], 5.0)
    t = c["rows_million"] * heavy * np.where(c["disk"] == "hdd", 1.6, 1.0) / rate + 0.3
    return Table({**c, "elapsed_s": noisy(chance, t, 0.05)})


def campaign(chance: Draw) -> Table:
    """Small networks on cores of one machine, with flops, parameters and activations counted."""
    c = picks(chance, 180, devices=[1.0, 2, 4], batch=[8.0, 16, 32, 64], layers=[2.0, 4, 8, 16], width=[64.0, 128, 256, 512], activation=["relu", "gelu"])  # fmt: skip
    parameters = c["layers"] * c["width"] ** 2 + 784 * c["width"]
    flops, kept = 6 * parameters * c["batch"], c["layers"] * c["width"] * c["batch"]
    t = flops / c["devices"] / 3e10 + 2e-4 * c["layers"] + kept * np.where(c["activation"] == "gelu", 9e-9, 4e-9)
    t = t + ring(c["devices"], 4 * parameters, 1.5e9, 2e-4)
    return Table({**c, "parameters": parameters, "flops": flops, "activations": kept, "step_s": noisy(chance, t, 0.05)})


Made = tuple[Callable[[Draw], Table], str, tuple[tuple[str | None, float | None], ...]]  #: table, target, splits
TABLES: Mapping[str, Made] = {
    "ddp networks": (ddp_networks, "step_ms", (("gpus", 2), ("gpus", 4), ("batch_per_gpu", 32), (None, None))),
    "gpt sizes": (gpt_sizes, "iteration_s", (("hidden_size", 1024), ("params_billion", 0.5), ("micro_batch_size", 2), (None, None))),
    "weak scaling": (weak_scaling, "iteration time (s)", (("GPUs", 32), ("GPUs", 64), ("hidden size", 4096), (None, None))),
    "inference": (inference, "latency_s", (("batch_size", 8), ("new_tokens", 64), ("prompt_len", 128))),
    "stencil": (stencil, "walltime_s", (("nodes", 4), ("nodes", 2), ("nx", 256), (None, None))),
    "epochs": (epochs, "epoch_s", (("workers", 2), ("workers", 4), ("batch_size", 64))),
    "cloud": (cloud, "runtime_s", (("instances", 4), ("instances", 2), ("input_gb", 20), (None, None))),
    "spark": (spark, "duration_min", (("executors", 4), ("input_gb", 50), ("partitions", 128))),
    "sliced inference": (sliced_inference, "ttft_ms", (("tp", 2), ("tp", 4), ("hidden_dim", 4096), ("batch", 4))),
    "parameter servers": (parameter_servers, "step_time", (("num_workers", 4), ("num_workers", 2), ("params_m", 25), (None, None))),
    "anonymous": (anonymous, "y", (("x2", 40), ("x1", 3), ("x4", 3))),
    "pipelines": (pipelines, "time_per_iter_ms", (("pp", 2), ("pp", 4), ("d_model", 2048), ("num_micro_batches", 8))),
    "noisy replicas": (noisy_replicas, "seconds", (("num_gpus", 2), ("num_gpus", 4), ("width", 32), (None, None))),
    "time to train": (time_to_train, "train_minutes", (("accelerators", 32), ("accelerators", 64), ("local_batch", 16))),
    "threads": (threads, "elapsed_s", (("threads", 4), ("threads", 8), ("rows_million", 5))),
    "campaign": (campaign, "step_s", (("devices", 2), ("width", 128), ("batch", 16), (None, None))),
}  # fmt: skip


def asked(question: Question, made: Made, seed: int) -> dict[str, Any]:
    """Errors and coverage of the hybrid and of the plain regressors on one question."""
    make, target, _ = made
    began = time.process_time()
    prepared = prepare(make(np.random.default_rng(seed)), target, split_by=question.column, up_to=question.up_to)
    found = study(prepared, models=("hybrid", *OPPONENTS))
    row: dict[str, Any] = {s.name: s.mape for s in found.scores}
    plain = min(row[n] for n in OPPONENTS)
    best = next((s for s in found.scores if s.name == found.best), found.scores[0])
    return {
        "table": question.table, "split": f"{question.column} <= {question.up_to:g}" if question.column else "folds", **row,
        "worse": max(0.0, row["hybrid"] - plain), "ratio": row["hybrid"] / plain, "inside": float(found.scores[0].inside.mean()),
        "best": best.name, "best_error": best.mape, "cpu_s": time.process_time() - began,
    }  # fmt: skip


def main(sets: Mapping[str, Mapping[str, Made]], about: str | None) -> int:
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--set", default=next(iter(sets)), choices=sets)
    parser.add_argument("--only", default="", metavar="WORD", help="tables whose name holds it")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = []
    with threadpool_limits(1):
        for name, made in sets[options.set].items():
            for column, up_to in made[2] if options.only in name else ():
                rows.append(asked(Question(name, column, up_to), made, options.seed))
                print(f"   {rows[-1]['table']}, {rows[-1]['split']}: {rows[-1]['hybrid']:.1%}, best plain x {rows[-1]['ratio']:.2f}, inside {rows[-1]['inside']:.0%}", file=sys.stderr, flush=True)  # fmt: skip
    if options.json:
        print(json.dumps({"seed": options.seed, "rows": rows}, indent=1))
        return 0
    columns = [("table", "text"), ("split", "text"), ("hybrid", "share"), *((n, "share") for n in OPPONENTS), ("ratio", "ratio"), ("90 % hold", "share"), ("chosen", "text"), ("cpu", "s")]  # fmt: skip
    cells = [[r["table"], r["split"], r["hybrid"], *(r[n] for n in OPPONENTS), r["ratio"], r["inside"], r["best"], r["cpu_s"]] for r in rows]  # fmt: skip
    print(text_table(columns, cells))  # type: ignore[arg-type]
    extrapolated = [r for r in rows if r["split"] != "folds"]
    print(f"\nworse than the best plain by more than 15 % and 2 points: {sum(r['ratio'] > 1.15 and r['worse'] > 0.02 for r in rows)} of {len(rows)}; intervals held {np.mean([r['inside'] for r in extrapolated]):.1%} when extrapolating")  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main({"known": TABLES}, __doc__))
