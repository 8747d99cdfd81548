"""More tables of runs whose laws are known: one half to improve the performance models by, one to judge them by, looked at once.

    python benchmarks/fresh_tables.py [--set first|second] [--only WORD] [--seed N] [--json]

Written after the models and before their last change; their columns, constants and noise are none of those of `model_tables`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
from model_tables import Draw, Made, main, picks

from partita.models.capture.table import Table
from partita.nouns.graph import FloatArray


def told(c: Mapping[str, Any], chance: Draw, target: str, seconds: FloatArray, sd: float, unit: float = 1.0) -> Table:
    """The columns and the times, with noise, in another unit."""
    return Table({**c, target: unit * seconds * np.exp(sd * chance.normal(size=len(seconds)))})


def by(column: Any, **values: float) -> FloatArray:
    """[rows] the number that belongs to each text."""
    return np.array([values[str(v).replace("-", "_").replace(".", "_")] for v in column])


def sharded(chance: Draw) -> Table:
    """Fine-tuning with sharded parameters: gathered before use, half hidden behind computing."""
    c = picks(chance, 150, num_gpus=[1.0, 2, 4, 8, 16, 32], per_device_batch=[1.0, 2, 4, 8], seq_len=[512.0, 1024, 2048], params_b=[0.35, 1.3, 2.7, 6.7], precision=["bf16", "fp8"])  # fmt: skip
    work = 6 * c["params_b"] * 1e9 * c["per_device_batch"] * c["seq_len"] / by(c["precision"], bf16=1.7e14, fp8=2.6e14)
    sent = 3 * 2 * c["params_b"] * 1e9 * (c["num_gpus"] - 1) / c["num_gpus"] / np.where(c["num_gpus"] > 8, 2.5e10, 1.5e11)  # fmt: skip
    return told(c, chance, "step_s", np.maximum(work, sent) + 0.5 * np.minimum(work, sent) + 0.012, 0.03)


def transforms(chance: Draw) -> Table:
    """A Fourier transform over the ranks of a supercomputer: a transpose between all pairs."""
    c = picks(chance, 130, mpi_ranks=[4.0, 8, 16, 32, 64, 128], grid_points=[128.0, 256, 384, 512], repeats=[10.0, 50])
    cells = c["grid_points"] ** 3
    t = 5 * cells * np.log2(cells) / c["mpi_ranks"] / 2e9 + 16 * cells / c["mpi_ranks"] / 1e9 + c["mpi_ranks"] * 8e-6
    return told(c, chance, "wall_time_s", c["repeats"] * t + 0.2, 0.05)


def experts(chance: Draw) -> Table:
    """A mixture of experts over devices."""
    c = picks(chance, 150, world_size=[2.0, 4, 8, 16], experts=[8.0, 16, 64], top_k=[1.0, 2, 4], tokens_per_gpu=[2048.0, 4096, 8192], hidden=[1024.0, 2048, 4096])  # fmt: skip
    work = 16 * c["tokens_per_gpu"] * c["hidden"] ** 2 * (1 + c["top_k"]) * 6 / 1.2e14
    swapped = 4 * c["top_k"] * c["tokens_per_gpu"] * c["hidden"] * 2 * (1 - 1 / c["world_size"]) / 4e10
    return told(c, chance, "ms_per_step", work + swapped + 1e-4 * c["experts"] + 0.006, 0.04, 1e3)


def loading(chance: Draw) -> Table:
    """A data loader that keeps up, or does not."""
    c = picks(chance, 120, loader_workers=[1.0, 2, 4, 8, 16], batch_size=[32.0, 64, 128, 256], resolution=[160.0, 224, 320], augment=["light", "heavy"])  # fmt: skip
    pixels = c["batch_size"] * c["resolution"] ** 2
    loads = pixels * by(c["augment"], light=1.1e-7, heavy=2.9e-7) / np.minimum(c["loader_workers"], 9)
    return told(c, chance, "iter_s", np.maximum(loads, pixels * 1.5e-8) + 0.004, 0.04)


def encoding(chance: Draw) -> Table:
    """A video encoder under threads: part of it serial."""
    c = picks(chance, 120, threads=[1.0, 2, 4, 8, 16], frames=[300.0, 900, 3000], height=[480.0, 720, 1080, 2160], preset=["fast", "medium", "slow"])  # fmt: skip
    work = c["frames"] * c["height"] ** 2 * 16 / 9 * by(c["preset"], fast=6e-9, medium=1.5e-8, slow=4.4e-8)
    return told(c, chance, "encode_s", work * (0.07 + 0.93 / c["threads"]) + 0.4, 0.04)


def trees(chance: Draw) -> Table:
    """Boosted trees on cores."""
    c = picks(chance, 140, n_rows=[1e4, 1e5, 5e5, 1e6], n_features=[10.0, 50, 200], n_trees=[50.0, 100, 400], max_depth=[3.0, 6, 9], n_jobs=[1.0, 2, 4, 8])  # fmt: skip
    each = c["n_rows"] * c["n_features"] * c["max_depth"] * 1.1e-9 / c["n_jobs"] ** 0.8 + 2 ** c["max_depth"] * c["n_features"] * 1.5e-7 + 1e-3  # fmt: skip
    return told(c, chance, "fit_seconds", c["n_trees"] * each + c["n_rows"] * c["n_features"] * 2e-8, 0.05)


def actors(chance: Draw) -> Table:
    """Actors feed a learner: the slower one sets the pace."""
    c = picks(chance, 130, actors=[4.0, 8, 16, 32, 64], envs_per_actor=[1.0, 4, 16], batch=[256.0, 512, 1024], env=["atari", "mujoco", "grid"])  # fmt: skip
    feed = c["batch"] / c["actors"] * (by(c["env"], atari=2e-3, mujoco=8e-4, grid=1e-4) + 3e-3 / c["envs_per_actor"])
    return told(c, chance, "update_ms", np.maximum(feed, c["batch"] * 3e-5 + 0.008) + 0.002, 0.06, 1e3)


def serving(chance: Draw) -> Table:
    """The latency of a service under load: a queue before the replicas."""
    c = picks(chance, 140, replicas=[1.0, 2, 4, 8], requests_per_s=[5.0, 10, 20, 40], output_tokens=[32.0, 64, 128], model_gb=[3.0, 7, 14])  # fmt: skip
    each = 0.02 + c["output_tokens"] * c["model_gb"] / 9e3
    load = np.minimum(c["requests_per_s"] * each / (8 * c["replicas"]), 0.9)
    return told(c, chance, "latency_ms", each / (1 - load), 0.05, 1e3)


def recommender(chance: Draw) -> Table:
    """Embedding tables over devices, looked up by all."""
    c = picks(chance, 150, gpus=[1.0, 2, 4, 8, 16], embedding_dim=[32.0, 64, 128, 256], tables=[8.0, 26, 104], global_batch=[4096.0, 8192, 32768], pooling=[1.0, 10, 40])  # fmt: skip
    rows, share = c["global_batch"] * c["tables"], c["global_batch"] / c["gpus"]
    t = rows * c["pooling"] * c["embedding_dim"] * 4 / c["gpus"] / 6e11 + rows * c["embedding_dim"] * 8 / c["gpus"] * (1 - 1 / c["gpus"]) / 5e10 + share * 4e-7 + 0.003 + 8e-5 * np.log2(c["gpus"])  # fmt: skip
    return told(c, chance, "iteration_ms", t, 0.03, 1e3)


def sorting(chance: Draw) -> Table:
    """A sort over nodes, slower where a share does not fit into memory."""
    c = picks(chance, 130, nodes=[2.0, 4, 8, 16, 32], data_gb=[50.0, 100, 200, 400], mem_gb=[8.0, 16, 32], disk=["nvme", "sata"])  # fmt: skip
    each, rate = c["data_gb"] / c["nodes"], by(c["disk"], nvme=2.0, sata=0.45)
    t = 2 * each / rate * np.where(each > c["mem_gb"], 2.0, 1.0) + each * (1 - 1 / c["nodes"]) / 1.1 + 0.3 * c["nodes"] + 5  # fmt: skip
    return told(c, chance, "runtime_s", t, 0.05)


def hosts(chance: Draw) -> Table:
    """Replicas on hosts of several devices, gradients accumulated."""
    c = picks(chance, 150, nodes=[1.0, 2, 4, 8], gpus_per_node=[1.0, 2, 4, 8], batch_per_gpu=[8.0, 16, 32], accumulation=[1.0, 2, 4], model=["base", "large"], network_gbps=[10.0, 25, 100])  # fmt: skip
    weights, n = by(c["model"], base=1.1e8, large=3.4e8), c["nodes"] * c["gpus_per_node"]
    work = c["accumulation"] * (c["batch_per_gpu"] * weights * 6 * 256 / 4.5e13 + 0.006)
    sent = 8 * weights * (n - 1) / n / np.where(c["nodes"] > 1, c["network_gbps"] * 1e9 / 8, 6e10)
    return told(c, chance, "step_time_s", np.maximum(work, 0.5 * work + sent) + weights * 6e-11, 0.03)


def diffusion(chance: Draw) -> Table:
    """Images from noise on one device."""
    c = picks(chance, 110, denoise_steps=[10.0, 20, 30, 50], image_px=[256.0, 512, 768, 1024], batch=[1.0, 2, 4, 8], gpu=["t4", "a10", "a100"])  # fmt: skip
    latent = (c["image_px"] / 8) ** 2
    each = c["batch"] * (latent * 1.6e8 + latent**2 * 4e3) / by(c["gpu"], t4=2.2e13, a10=5.5e13, a100=1.4e14) + 0.014
    return told(c, chance, "seconds", c["denoise_steps"] * each + c["batch"] * latent * 2.5e-5 + 0.15, 0.03)


def neighbours(chance: Draw) -> Table:
    """A graph network with sampled neighbours: the sampler on the processor, the network on the device."""
    c = picks(chance, 130, fanout=[5.0, 10, 15, 25], gnn_layers=[1.0, 2, 3], batch_nodes=[256.0, 512, 1024], hidden_dim=[64.0, 128, 256], sampler_procs=[1.0, 2, 4])  # fmt: skip
    reached = np.minimum(c["batch_nodes"] * c["fanout"] ** c["gnn_layers"], 1.5e6)
    t = reached * 2.5e-7 / c["sampler_procs"] + reached * 4e-8 + reached * c["hidden_dim"] * 1.2e-10 + 0.005
    return told(c, chance, "batch_s", t, 0.05)


def clusters(chance: Draw) -> Table:
    """K-means on executors."""
    c = picks(chance, 130, executors=[1.0, 2, 4, 8, 16], points_m=[1.0, 5, 20, 80], k=[5.0, 20, 100], dims=[8.0, 32, 128], iterations=[5.0, 20])  # fmt: skip
    each = c["points_m"] * 1e6 * c["k"] * c["dims"] / (c["executors"] * 4 * 1.5e9) + 0.25 + 0.02 * c["executors"]
    return told(
        c, chance, "job_s", c["iterations"] * each + c["points_m"] * c["dims"] * 0.02 / c["executors"] + 6, 0.05
    )


def builds(chance: Draw) -> Table:
    """A build on cores: compile in parallel, link alone."""
    c = picks(
        chance, 110, cores=[2.0, 4, 8, 16, 32], files=[200.0, 800, 3000], opt=["O0", "O2", "O3"], lto=["on", "off"]
    )
    work = c["files"] * by(c["opt"], O0=0.5, O2=1.4, O3=1.8)
    return told(
        c, chance, "build_s", work / c["cores"] ** 0.92 + c["files"] * by(c["lto"], on=0.06, off=0.008) + 4, 0.05
    )


def nameless(chance: Draw) -> Table:
    """Columns without meaning, one of them without effect."""
    c = picks(chance, 120, a=[1.0, 2, 4, 8, 16], b=[3.0, 5, 9, 14], c=[100.0, 200, 500, 1000], d=[1.0, 2, 3], e=["p", "q", "r"])  # fmt: skip
    t = np.maximum(c["c"] ** 0.9 / c["a"], 3 * c["b"] ** 1.5) * by(c["e"], p=1.0, q=1.3, r=0.8) + 8 + 0.2 * c["a"]
    return told(c, chance, "value", t, 0.04)


FIRST: Mapping[str, Made] = {
    "sharded": (sharded, "step_s", (("num_gpus", 2), ("num_gpus", 8), ("params_b", 1.3), ("seq_len", 1024))),
    "transforms": (transforms, "wall_time_s", (("mpi_ranks", 16), ("mpi_ranks", 8), ("grid_points", 256))),
    "experts": (experts, "ms_per_step", (("world_size", 4), ("hidden", 2048), ("top_k", 2), (None, None))),
    "loading": (loading, "iter_s", (("loader_workers", 4), ("batch_size", 64), ("resolution", 224))),
    "encoding": (encoding, "encode_s", (("threads", 2), ("threads", 4), ("height", 720))),
    "trees": (trees, "fit_seconds", (("n_jobs", 2), ("n_rows", 1e5), ("max_depth", 6), (None, None))),
    "actors": (actors, "update_ms", (("actors", 16), ("actors", 8), ("batch", 512))),
    "serving": (serving, "latency_ms", (("replicas", 2), ("requests_per_s", 20), ("output_tokens", 64))),
}  # fmt: skip
SECOND: Mapping[str, Made] = {
    "recommender": (recommender, "iteration_ms", (("gpus", 2), ("gpus", 4), ("embedding_dim", 64), (None, None))),
    "sorting": (sorting, "runtime_s", (("nodes", 4), ("nodes", 8), ("data_gb", 100))),
    "hosts": (hosts, "step_time_s", (("nodes", 2), ("gpus_per_node", 4), ("batch_per_gpu", 16))),
    "diffusion": (diffusion, "seconds", (("image_px", 512), ("denoise_steps", 20), ("batch", 2))),
    "neighbours": (neighbours, "batch_s", (("fanout", 10), ("hidden_dim", 128), ("sampler_procs", 2))),
    "clusters": (clusters, "job_s", (("executors", 2), ("executors", 4), ("points_m", 5), (None, None))),
    "builds": (builds, "build_s", (("cores", 4), ("cores", 8), ("files", 800))),
    "nameless": (nameless, "value", (("a", 2), ("a", 4), ("b", 5), ("c", 200))),
}  # fmt: skip


if __name__ == "__main__":
    sys.exit(main({"first": FIRST, "second": SECOND}, __doc__))
