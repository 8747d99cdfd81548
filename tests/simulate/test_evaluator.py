"""The evaluator against lowering and simulating every plan."""

import itertools
import math
import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from partita.errors import PlanError
from partita.nouns.cluster import Cluster, Device, Link
from partita.nouns.costs import CostTable
from partita.nouns.graph import SharedParameter, Task, TaskGraph
from partita.nouns.pipeline_plan import PipelinePlan, Slot, Stage
from partita.nouns.pipeline_problem import PipelineProblem
from partita.nouns.placement_plan import PlacementPlan
from partita.nouns.placement_problem import PlacementProblem
from partita.nouns.plan import GraphPlan
from partita.simulate.evaluator import Evaluator
from partita.simulate.lower import lower
from partita.simulate.predicted import durations_of
from partita.simulate.simulator import times

Random = np.random.Generator
NAMES = ("a", "b", "c", "d")


def random_cluster(random: Random) -> Cluster:
    beside = {"instruction_s": 0.1, "step_s": 0.3, "update_s": 0.2} if random.random() < 0.5 else {}
    cold = 0.2 * (random.random() < 0.5)
    devices = tuple(
        Device(n, ("cpu", "gpu")[random.integers(2)], speed=float(random.uniform(0.5, 2)), cold_s=k * cold, **beside)
        for k, n in enumerate(NAMES)
    )
    kind = random.integers(4)  # alike; a link of its own; one medium in turn; one medium shared fairly
    default = Link(
        "",
        "",
        float(random.uniform(1, 9)),
        float(random.uniform(0, 0.2)),
        "bus" if kind > 1 else "",
        bool(kind == 3),
        0.05,
        0.03,
    )
    own = (
        (
            Link("a", "b", 2.0, 0.3, message_s=0.02, message_s_per_byte=0.01, send_s_per_byte=0.02),
            Link("c", "a", 0.5, sum_s_per_byte=0.1),
        )
        if kind == 1
        else ()
    )
    return Cluster(devices, own, default)


def random_training(random: Random) -> tuple[TaskGraph, CostTable]:
    """2 to 7 layers with their backwards and updates; some readings return no gradient, some parameters are shared."""
    n = int(random.integers(2, 8))
    pairs = {(u, u + 1) for u in range(n - 1)} | {
        (u, v) for u in range(n) for v in range(u + 2, n) if random.random() < 0.3
    }
    tasks = [Task(f"t{i}", parameter_bytes=float(random.integers(2) * 8), activation_bytes=1.0) for i in range(n)]
    trains = random.random() < 0.8
    tasks += [Task(f"b{i}", phase="backward", of=f"t{i}") for i in range(n) if trains]
    tasks += [Task(f"u{i}", phase="update", of=f"t{i}") for i in range(n) if trains and random.random() < 0.8]
    tensors = [
        (f"t{i}", float(random.uniform(0, 3)), [*(f"t{v}" for u, v in sorted(pairs) if u == i), *[f"b{i}"] * trains])
        for i in range(n)
    ]
    tensors += [(f"b{v}", 1.0, [f"b{u}"]) for u, v in sorted(pairs) if trains and (v == u + 1 or random.random() < 0.7)]
    tensors += [(f"b{t.id[1:]}", 0.0, [t.id]) for t in tasks if t.phase == "update"]
    tied = [SharedParameter("tied", 8.0, ("t0", f"t{n - 1}"))] if random.random() < 0.3 else []
    if tied:
        tasks[0], tasks[n - 1] = (replace(tasks[i], parameter_bytes=8.0) for i in (0, n - 1))
    graph = TaskGraph.build("world", tasks, [t for t in tensors if t[2]], tied)
    seconds = random.uniform(0.1, 2, (len(graph), 2))
    transfer = np.where(random.random(len(graph.producer)) < 0.2, random.uniform(0, 1, len(graph.producer)), math.nan)
    costs = replace(CostTable.given(("cpu", "gpu"), seconds, transfer), low=0.8 * seconds, high=1.3 * seconds)
    return graph, replace(costs, weight_share=random.uniform(0, 1, seconds.shape))


def random_pipeline(random: Random, graph: TaskGraph) -> PipelinePlan:
    """Any stages on any devices; replicas in equal and unequal shares; sometimes one device's backwards split in two."""
    tasks = [graph.tasks[i].id for i in graph.order if graph.tasks[i].phase == "forward"]
    k, n = int(random.integers(1, len(tasks) + 1)), int(random.integers(1, 6))
    ends = sorted(random.choice(np.arange(1, len(tasks)), k - 1, replace=False).tolist())
    stages = [random_stage(random, tasks[a:b]) for a, b in zip([0, *ends], [*ends, len(tasks)], strict=True)]
    plan = PipelinePlan(
        graph.fingerprint, tuple(stages), n, int(random.integers(1, 6)), ("1f1b", "gpipe")[random.integers(2)]
    )
    backward = any(t.phase == "backward" for t in graph.tasks)
    if backward and k == 1 and random.random() < 0.5:
        stage = replace(stages[0], devices=("b",), shares=())
        order = [Slot(part, 0, m) for m in range(n) for part in ("F", "B", *["W"] * (m % 2))]
        plan = replace(plan, stages=(stage,), schedule="given", orders={"b": tuple(order)})
    return plan


def random_stage(random: Random, tasks: Sequence[str]) -> Stage:
    devices = tuple(random.choice(NAMES, random.integers(1, 4), replace=False).tolist())
    shares = tuple(random.integers(1, 4, len(devices)).tolist()) if random.random() < 0.3 else ()
    return Stage(tuple(tasks), devices, bool(random.integers(2)), shares)


def random_placement(random: Random, graph: TaskGraph) -> PlacementPlan:
    where = {t.id: str(random.choice(NAMES)) for t in graph.tasks}
    order: dict[str, list[str]] = {}
    for i in graph.order.tolist():
        order.setdefault(where[graph.tasks[i].id], []).append(graph.tasks[i].id)
    return PlacementPlan(
        graph.fingerprint, where, {d: tuple(ts) for d, ts in order.items()} if random.integers(2) else {}
    )


def simulated(problem: PipelineProblem | PlacementProblem, plan: GraphPlan, seconds: np.ndarray) -> float:
    costs = replace(problem.costs, seconds=seconds, low=seconds, high=seconds)
    clips = isinstance(problem, PipelineProblem) and problem.clips
    program = lower(problem.graph, problem.cluster, plan, clips=clips)
    priced = replace(problem, costs=costs)
    return float(times(program, durations_of(priced, plan, program))[1].max())


@pytest.mark.parametrize("seed", range(60))
def test_an_estimate_is_what_simulating_the_plan_gives(seed: int) -> None:
    random = np.random.default_rng(seed)
    graph, costs = random_training(random)
    cluster = random_cluster(random)
    pipelines = PipelineProblem(graph, cluster, costs, "job", 8, 1, clips=bool(random.integers(2)))
    placements = PlacementProblem(graph, cluster, costs, np.zeros(len(graph)))
    drawn = [(pipelines, [random_pipeline(random, graph) for _ in range(15)])]
    drawn += [(placements, [random_placement(random, graph) for _ in range(5)])]
    for problem, plans in drawn:
        evaluator = Evaluator(problem)
        for plan in plans:
            found = evaluator.estimate(plan)
            wanted = [simulated(problem, plan, table) for table in (costs.seconds, costs.low, costs.high)]
            assert [found.seconds, found.low, found.high] == pytest.approx(
                [wanted[0], min(wanted), max(wanted)], rel=1e-9
            )
            assert found.low <= found.seconds <= found.high


def test_plans_differ_where_other_stages_of_a_device_return_gradients_of_what_came_once() -> None:
    """Tensor t0 goes to y once, for stages 1 and 3; only q and r send gradients back."""
    names = ("t0", "p", "q", "z", "r")
    tasks = [Task(n) for n in names] + [Task(f"b{n}", phase="backward", of=n) for n in names]
    tensors = [("t0", 3.0, ["p", "q", "r", "bt0"]), ("p", 1.0, ["z", "bp"]), ("z", 1.0, ["r", "bz"])]
    tensors += [("bq", 3.0, ["bt0"]), ("br", 3.0, ["bt0", "bz"]), ("bz", 1.0, ["bp"])]
    graph = TaskGraph.build("riders", tasks, tensors)
    costs = CostTable.given(("cpu",), np.linspace(1, 2, 10)[:, None], np.full(len(graph.producer), math.nan))
    problem = PipelineProblem(graph, Cluster.uniform(2, rate_bytes_per_s=2.0), costs, "job", 4, 1)
    evaluator = Evaluator(problem)
    for parts in ((("p",), ("q", "r")), (("p", "q"), ("r",))):
        stages = [(("t0",), "cpu0"), (parts[0], "cpu1"), (("z",), "cpu0"), (parts[1], "cpu1")]
        plan = PipelinePlan(graph.fingerprint, tuple(Stage(ts, (d,)) for ts, d in stages), 4, 4, "1f1b")
        assert evaluator.estimate(plan).seconds == pytest.approx(simulated(problem, plan, costs.seconds), rel=1e-9)


def chain(layers: int) -> PipelineProblem:
    random = np.random.default_rng(0)
    tasks = [Task(f"t{i}") for i in range(layers)] + [
        Task(f"b{i}", phase="backward", of=f"t{i}") for i in range(layers)
    ]
    tensors = [(f"t{i}", 1.0, [f"t{i + 1}", f"b{i}"]) for i in range(layers - 1)] + [
        (f"t{layers - 1}", 1.0, [f"b{layers - 1}"])
    ]
    tensors += [(f"b{i + 1}", 1.0, [f"b{i}"]) for i in range(layers - 1)]
    graph = TaskGraph.build("chain", tasks, tensors)
    costs = CostTable.given(("cpu",), random.uniform(1, 2, (2 * layers, 1)), np.full(len(graph.producer), math.nan))
    return PipelineProblem(graph, Cluster.uniform(4, rate_bytes_per_s=5.0), costs, "job", 16, 1)


def test_plans_of_one_shape_cost_a_fraction_of_lowering_them() -> None:
    problem = chain(200)
    evaluator, names = Evaluator(problem), [f"t{i}" for i in range(200)]
    stages = [(0, a, 100, 150, 200) for a in range(1, 99)]
    plans = [
        PipelinePlan(
            problem.graph.fingerprint,
            tuple(Stage(tuple(names[a:b]), (f"cpu{k}",)) for k, (a, b) in enumerate(itertools.pairwise(ends))),
            16, 4, "1f1b",
        )
        for ends in stages
    ]  # fmt: skip
    evaluator.estimate(plans[0])
    began = time.process_time()
    found = [evaluator.estimate(plan).seconds for plan in plans]
    quick = time.process_time() - began
    began = time.process_time()
    wanted = [simulated(problem, plan, problem.costs.seconds) for plan in plans]
    assert found == pytest.approx(wanted, rel=1e-9)
    assert quick < 0.2 * (time.process_time() - began)


@pytest.mark.parametrize("fair", [False, True])
def test_a_task_that_cannot_run_takes_for_ever(fair: bool) -> None:
    graph = TaskGraph.build("two", [Task("a"), Task("b")], [("a", 1.0, ["b"])])
    costs = CostTable.given(("cpu", "gpu"), [[1.0, 2.0], [math.inf, 1.0]], [math.nan])
    cluster = Cluster((Device("cpu0", "cpu"), Device("gpu0", "gpu")), (), Link("", "", 1.0, fair=fair))
    problem = PlacementProblem(graph, cluster, costs, np.zeros(2))
    on = {d: PlacementPlan(graph.fingerprint, {"a": "cpu0", "b": d}) for d in ("cpu0", "gpu0")}
    assert Evaluator(problem).estimate(on["cpu0"]).seconds == math.inf
    assert Evaluator(problem).estimate(on["gpu0"]).seconds == 3.0
    pipeline = PipelinePlan(graph.fingerprint, (Stage(("a", "b"), ("cpu0",)),), 2, 1, "1f1b")
    assert Evaluator(PipelineProblem(graph, cluster, costs, "job", 2, 1)).estimate(pipeline).seconds == math.inf


def test_plans_of_another_kind_or_graph_are_refused() -> None:
    problem = chain(3)
    with pytest.raises(PlanError, match="asks for a pipeline"):
        Evaluator(problem).estimate(PlacementPlan(problem.graph.fingerprint, {}))
    with pytest.raises(PlanError, match="for graph nothing"):
        Evaluator(problem).estimate(PipelinePlan("nothing", (), 1, 1, "1f1b"))
    with pytest.raises(PlanError, match="asked of a pipeline"):
        Evaluator(problem).placed_s(np.zeros(6, np.int64), problem.graph.order)
