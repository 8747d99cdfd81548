"""Small training profiles and every plan there is for them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from partita.nouns.cluster import Cluster, Device, Link
from partita.nouns.costs import CostTable
from partita.nouns.graph import SharedParameter, Task, TaskGraph
from partita.nouns.profile import Profile, Sample

QUIET = [HealthCheck.too_slow, HealthCheck.data_too_large]
FEW = settings(max_examples=25, deadline=None, database=None, suppress_health_check=QUIET)
MANY = settings(max_examples=60, deadline=None, database=None, suppress_health_check=QUIET)
SECONDS = st.floats(0.01, 2.0)


def training_graph(
    n: int, pairs: list[tuple[int, int]], sizes: list[float], parameters: list[float], kept: list[float],
    groups: dict[int, str] | None = None, tied: tuple[int, ...] = (), frozen: int = 0,
) -> TaskGraph:  # fmt: skip
    """Forward tasks t0 .., a backward each with the edges turned round, an update each; neither of the first `frozen`."""
    groups, trained = groups or {}, range(frozen, n)
    tasks = [
        Task(f"t{i}", f"layer {i}", group=groups.get(i), parameter_bytes=parameters[i], activation_bytes=kept[i])
        for i in range(n)
    ]
    tasks += [Task(f"b{i}", phase="backward", of=f"t{i}") for i in trained]
    tasks += [Task(f"u{i}", phase="update", of=f"t{i}") for i in trained]
    tensors = [
        (f"t{i}", sizes[i], [f"t{v}" for u, v in pairs if u == i] + [f"b{i}"] * (i in trained)) for i in range(n)
    ]
    tensors += [(f"b{v}", sizes[u], [f"b{u}"]) for u, v in pairs if u in trained]
    tensors += [(f"b{i}", 0.0, [f"u{i}"]) for i in trained]
    shared = [SharedParameter("tied", min(parameters[i] for i in tied), tuple(f"t{i}" for i in tied))] if tied else []
    return TaskGraph.build("world", tasks, tensors, shared)


@st.composite
def pairs_of(draw: st.DrawFn, n: int) -> list[tuple[int, int]]:
    """Edges of a random graph on 0 .. n-1; most are near-chains, as models are."""
    every = [(u, v) for u in range(n) for v in range(u + 1, n)]
    chosen = draw(st.lists(st.sampled_from(every), unique=True)) if every else []
    return sorted({*chosen, *((u, u + 1) for u in range(n - 1) if draw(st.integers(0, 3)))})


@st.composite
def profiles(
    draw: st.DrawFn, most_tasks: int = 4, most_devices: int = 3, tight: bool = False, equal: bool = False
) -> Profile:
    """A random job on a random cluster, with up to two micro-batch sizes."""
    n = draw(st.integers(1, most_tasks))
    pairs = draw(pairs_of(n))
    devices = draw(st.integers(1, most_devices))
    two_kinds = not equal and draw(st.booleans())
    memory = draw(st.floats(5.0, 60.0)) if tight else math.inf
    beside = draw(st.sampled_from([(0.0, 0.0, 0.0, 0.0), (0.1, 0.2, 0.05, 0.15)]))
    cluster = Cluster(
        tuple(
            Device(f"d{i}", "gpu" if two_kinds and i % 2 else "cpu", memory, 1.0 if equal else draw(st.sampled_from([1.0, 2.0])), instruction_s=beside[0], step_s=beside[1], update_s=beside[3])
            for i in range(devices)
        ),
        (),
        Link(
            "", "", draw(st.floats(1.0, 100.0)), draw(st.floats(0.0, 0.1)), message_s=draw(st.floats(0.0, 0.02)),
            send_s=beside[2], sum_s_per_byte=draw(st.floats(0.0, 0.1)),
            send_s_per_byte=draw(st.floats(0.0, 0.01)), message_s_per_byte=draw(st.floats(0.0, 0.01)),
        ),
    )  # fmt: skip
    kinds = ("cpu", "gpu") if two_kinds else ("cpu",)
    sizes = [draw(st.floats(0.0, 5.0)) for _ in range(n)]
    parameters = [draw(st.floats(0.5, 4.0)) for _ in range(n)]
    kept = [draw(st.floats(0.0, 3.0)) for _ in range(n)]
    groups = {i: "g" for i in range(n) if draw(st.integers(0, 4)) == 0}
    tied = (0, n - 1) if n > 1 and draw(st.integers(0, 3)) == 0 else ()
    samples = []
    for size in draw(st.sampled_from([(2,), (4, 1), (1,)])):
        scale = size / 2
        graph = training_graph(
            n, pairs, [s * scale for s in sizes], parameters, [k * scale for k in kept], groups, tied
        )
        times = [[draw(SECONDS) * scale for _ in kinds] for _ in range(2 * n)] + [[0.01] * len(kinds)] * n
        costs = CostTable.given(kinds, times, np.full(len(graph.producer), math.nan))
        samples.append(Sample(size, graph, costs))
    return Profile("job.py:job", 4, tuple(samples), cluster, draw(st.sampled_from([0.0, 2.0])))


def chain_profile(
    n: int = 6, devices: int = 2, memory: float = math.inf, kept: float = 1.0, skips: Sequence[tuple[int, int]] = (),
    frozen: int = 0,
) -> Profile:  # fmt: skip
    """n tasks in a row, a second forward and two backward each, on equal devices; `skips`: further readers, (of, by); the first
    `frozen` train nothing."""
    pairs = sorted([*((i, i + 1) for i in range(n - 1)), *skips])
    graph, m = training_graph(n, pairs, [1.0] * n, [2.0] * n, [kept] * n, frozen=frozen), n - frozen
    costs = CostTable.given(("cpu",), [[1.0]] * n + [[2.0]] * m + [[0.0]] * m, [math.nan] * len(graph.producer))
    cluster = Cluster(tuple(Device(f"cpu{i}", "cpu", memory) for i in range(devices)), (), Link("", "", 1e6))
    return Profile("job.py:job", 8, (Sample(1, graph, costs),), cluster)
