"""Roles: what the columns of a table mean, said by the user in roles.toml or read off their names and values.

    [columns]                       role       meaning
    "# GPUs" = "devices"            devices    how many devices share the work
    "nodes" = "hosts"               hosts      how many machines the devices stand in
    "GPUs per node" = "per_host"    per_host   devices of each machine, where no column counts all of them
    "data parallelism" = "data"     data       ... as replicas, each with its share of the batch
    "tensor parallelism" = "tensor" tensor     ... as slices of every layer
    "pipeline parallelism"          pipeline   ... as stages
    "global batch" = "batch"        batch      samples a step, of all devices together
    "batch per GPU" = "local_batch" local_batch  samples a step, of one device
    "micro batch" = "micro_batch"   micro_batch  samples that go through at once
    "# micro batches"               micro_batches  how many of these make the batch of a replica
    "hidden size" = "size"          size       more of it is more work (layers, width, sequence, parameters, flops)
    "bandwidth" = "rate"            rate       more of it is less time
    "prefetch" = "other"            other      a number of which nothing is expected
    "tokens" = "derived"            derived    determined by other columns, which say it all
    "optimizer" = "kind"            kind       a category
    "seed" = "ignore"               ignore     no input

Without a file: text is a kind; names are looked up word by word; a numeric column with an unknown name is a size, or a
kind where it holds zeros or signs. A batch whose name says neither "global" nor "per device" stays open ("batch?"), and
the data decide.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast, get_args

import numpy as np

from partita.errors import refuse
from partita.files import read_toml
from partita.models.capture.table import Table, TableError
from partita.nouns.graph import FloatArray

Role = Literal[
    "devices", "hosts", "per_host", "data", "tensor", "pipeline", "batch", "local_batch", "batch?", "micro_batch", "micro_batches", "size", "rate", "other", "derived", "kind", "ignore"
]  # fmt: skip

DEVICE_WORDS = {
    "gpu", "gpus", "ngpu", "ngpus", "device", "devices", "worker", "workers", "node", "nodes", "rank", "ranks", "machine", "machines",
    "executor", "executors", "replicas", "npu", "npus", "tpu", "tpus", "chips", "accelerators", "instances", "hosts", "servers", "world",
    "processes", "procs", "learners", "n_gpu", "devs",
}  # fmt: skip
HOST_WORDS = {"node", "nodes", "host", "hosts", "machine", "machines", "server", "servers", "instances"}
RATE_WORDS = {
    "bandwidth",
    "gbps",
    "mbps",
    "mbit",
    "gbit",
    "clock",
    "ghz",
    "mhz",
    "speed",
    "tflops",
    "rate",
    "cores",
    "vcpus",
    "cpus",
    "threads",
}
PER_DEVICE = {"per", "local", "device", "gpu", "worker", "rank"}
GLOBAL = {"global", "total", "effective", "overall"}
COUNTING = (
    "devices",
    "hosts",
    "per_host",
    "data",
    "tensor",
    "pipeline",
)  #: roles that say over how many the work is spread
MANY = 12  #: distinct values from which a numeric column with zeros is a size and no kind


BATCHES = ("batch", "local_batch", "batch?", "micro_batch")

Exponents = tuple[float, float, float, float]


@dataclass(frozen=True)
class Family:
    """Sizes of one meaning, and what is expected of them before any row is seen."""

    name: str
    said: frozenset[str]  #: words of a column's name that tell
    exponents: Exponents  #: of compute, launch, exchange, activations
    composed: bool = False  #: a product of other sizes: what it says is said by them, where they are there


FAMILIES = (
    Family("operations", frozenset({"flops", "macs", "gflops", "tflop", "tflops"}), (1.0, 0.0, 0.0, 0.5), True),
    Family("parameters", frozenset({"parameters", "params", "weights", "billion", "billions"}), (0.8, 0.0, 1.0, 0.4), True),
    Family("activations", frozenset({"activations"}), (0.5, 0.0, 0.0, 1.0), True),
    Family("depth", frozenset({"layer", "layers", "depth", "blocks", "nlayers"}), (1.0, 1.0, 1.0, 1.0)),
    Family("width", frozenset({"hidden", "width", "channels", "filters", "units", "embedding", "dmodel", "dim"}), (1.7, 0.0, 2.0, 1.0)),
    Family("sequence", frozenset({"sequence", "seq", "seqlen", "context"}), (1.0, 0.0, 0.0, 1.0)),
    Family("tokens", frozenset({"tokens"}), (1.0, 0.0, 0.0, 1.0), True),
    Family("image", frozenset({"image", "resolution", "pixels"}), (1.7, 0.0, 0.0, 1.7)),
    Family("kernel", frozenset({"kernel"}), (1.5, 0.0, 1.5, 0.0)),
    Family("heads", frozenset({"heads", "head"}), (0.0, 0.0, 0.0, 0.0)),
    Family("repeats", frozenset({"steps", "iterations", "iters", "epochs", "timesteps"}), (1.0, 1.0, 1.0, 1.0)),
    Family("data", frozenset({"data", "input", "rows", "records", "samples", "examples", "images", "points", "cells", "items"}), (1.0, 0.0, 0.0, 1.0)),
    Family("tuning", frozenset({"lr", "learning", "momentum", "dropout", "decay", "temperature"}), (0.0, 0.0, 0.0, 0.0)),
    Family("room", frozenset({"memory", "ram", "vram", "price", "cost"}), (0.0, 0.0, 0.0, 0.0)),
)  # fmt: skip


def family(name: str) -> Family | None:
    """What a size is, by the words of its name.

    >>> family("# layers").name, family("frobs")
    ('depth', None)
    """
    said = {*words(name), "".join(words(name))}
    return next((f for f in FAMILIES if said & f.said), None)


def words(name: str) -> list[str]:
    """The words of a column's name.

    >>> words("nGPUs_perNode"), words("# GPUs")
    (['n', 'gpus', 'per', 'node'], ['gpus'])
    """
    split = re.sub(r"([a-z0-9])([A-Z])", r"\1 \2", name.replace("nGPU", "n GPU"))
    return [w for w in re.split(r"[^A-Za-z0-9]+", split.lower()) if w]


def infer(
    table: Table, inputs: Sequence[str], given: Mapping[str, Role] | None = None, split_by: str | None = None
) -> dict[str, Role]:
    """The role of every input column; `given` ones as given. The column that the data are split by counts devices where its
    name says so, or where its name says nothing, it holds few whole numbers and no other column counts devices."""
    given = given or {}
    roles: dict[str, Role] = {}
    for name in inputs:
        roles[name] = given.get(name) or ("kind" if table.is_text(name) else _numeric_role(name, table))
    counting = [n for n, r in roles.items() if r in COUNTING]
    if split_by in roles and split_by not in given and not counting and _may_count(table, split_by, roles[split_by]):
        roles[split_by] = "devices"
    return _one_total(table, roles, given)


def _may_count(table: Table, name: str, role: Role) -> bool:
    """Whether a column that the data are split by, and of which the name says nothing, looks like a count of devices."""
    few = role == "size" and len(np.unique(table.numbers(name))) <= MANY
    return few and _counts(table, name) and family(name) is None


def _one_total(table: Table, roles: dict[str, Role], given: Mapping[str, Role]) -> dict[str, Role]:
    """Of several columns that count devices, one that is always a multiple of another is the total.

    The other counts hosts if its name says so; it means nothing in particular otherwise. Devices per host count only where
    there is no total: else they are told by total and hosts.
    """
    found = [n for n, r in roles.items() if r in ("devices", "per_host")]
    totals = {
        part
        for part in found
        for total in found
        if total != part and _multiple(table.numbers(total), table.numbers(part))
    }
    for part in totals - set(given):
        roles[part] = "hosts" if set(words(part)) & HOST_WORDS and roles[part] == "devices" else "other"
    if "per_host" in roles.values():
        for name in [n for n, r in roles.items() if r == "devices" and set(words(n)) & HOST_WORDS and n not in given]:
            roles[name] = "hosts"
    return roles


def _multiple(total: FloatArray, part: FloatArray) -> bool:
    """Whether every number of one column is a multiple of the other's, and some are more than it."""
    return bool(np.all(total % part == 0) and np.any(total > part) and np.all(total >= part))


def _numeric_role(name: str, table: Table) -> Role:
    said, values = words(name), table.numbers(name)
    has = set(said).intersection
    joined = "".join(said)
    parallel = bool(has({"parallel", "parallelism", "degree", "ways"})) or "parallel" in joined
    if joined in ("tp", "tpsize", "tpdegree") or ("tensor" in joined and parallel):
        return "tensor"
    if joined in ("pp", "ppsize", "ppdegree") or ("pipeline" in joined and (parallel or has({"stages", "size"}))):
        return "pipeline"
    if joined in ("dp", "dpsize", "dpdegree") or ("data" in joined and parallel):
        return "data"
    if "micro" in joined and "batch" in joined:
        return "micro_batches" if has({"number", "num", "n", "count", "batches"}) else "micro_batch"
    if "batch" in joined or joined in ("bs", "mbs", "gbs"):
        if has(GLOBAL) or joined == "gbs":
            return "batch"
        return "local_batch" if has(PER_DEVICE) else "batch?"
    if has(DEVICE_WORDS) and _counts(table, name) and not has({"memory", "speed", "clock", "bandwidth"}):
        if "per" in said:
            return "per_host" if set(said[said.index("per") :]) & HOST_WORDS else "size"
        return "devices"
    if has(RATE_WORDS) and not has({"learning"}) and np.all(values > 0):
        return "rate"
    if has({"seed", "run", "id", "index", "repeat", "trial"}):
        return "ignore"
    few = len(np.unique(values)) <= MANY
    return "kind" if np.any(values < 0) or (np.any(values == 0) and few) else "size"


def _counts(table: Table, name: str) -> bool:
    """Whether a column holds whole numbers from 1 on."""
    if table.is_text(name):
        return False
    values = table.numbers(name)
    return bool(np.all(values >= 1) and np.all(values == np.round(values)))


def read_roles(path: str | Path, table: Table) -> dict[str, Role]:
    """Roles from a file. Raises TableError with every unknown column and role at once."""
    value = read_toml(path, TableError).get("columns")
    if not isinstance(value, dict):
        raise TableError(f"{path} has no table [columns]", hint='write [columns], then "name of column" = "role"')
    known = [r for r in get_args(Role) if r != "batch?"]
    faults = [f"no column named {n!r}" for n in value if n not in table.names]
    faults += [f"column {n!r} has the unknown role {r!r}" for n, r in value.items() if r not in known]
    faults += [
        f"column {n!r} is text and cannot be {r!r}"
        for n, r in value.items()
        if n in table.names and table.is_text(n) and r not in ("kind", "ignore")
    ]
    refuse(TableError, faults, str(path), hint=f"columns: {', '.join(table.names)}; roles: {', '.join(known)}")
    return {str(n): cast(Role, r) for n, r in value.items()}
