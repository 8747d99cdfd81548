"""Public graph formats: what is read, in which units, and what is refused with which sentence."""

from __future__ import annotations

import json
import math
import os
import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from placement.plan.placement_contract import largest_load

from partita.errors import BadInput, ClusterError, GraphError, Infeasible, PartitaError
from partita.nouns.placement_problem import PlacementProblem
from partita.placement.capture import dnn_partitioning, pipedream
from partita.placement.capture.formats import read_problem, sniff

Json = dict[str, Any]
DATA = Path(os.environ.get("PARTITA_DATA", Path(__file__).parents[3] / ".." / "shared" / "data")) / "graphs"
FUZZ = settings(
    max_examples=150, derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck)
)


def node(i: int, **more: Any) -> Json:
    base = {"id": i, "supportedOnFpga": 1, "cpuLatency": 30.0, "fpgaLatency": 3.0, "size": 10.0, "isBackwardNode": 0}
    return {**base, **more}


def edge(u: int, v: int, cost: float = 0.5, **more: Any) -> Json:
    return {"sourceId": u, "destId": v, "cost": cost, **more}


def graph(nodes: list[Json] | None = None, edges: list[Json] | None = None, **more: Any) -> Json:
    base = {"maxSizePerFPGA": 100.0, "maxFPGAs": 2, "maxCPUs": 1}
    nodes = [node(0), node(1), node(2)] if nodes is None else nodes
    edges = [edge(0, 1), edge(0, 2), edge(1, 2, 0.25)] if edges is None else edges
    return {**base, "nodes": nodes, "edges": edges, **more}


def written(folder: Path, value: Any) -> Path:
    path = folder / "graph.json"
    path.write_text(value if isinstance(value, str) else json.dumps(value))
    return path


def profile(folder: Path, text: str) -> Path:
    path = folder / "profile.txt"
    path.write_text(text)
    return path


def line(i: int, name: str = "Conv2d(3, 64)", forward: str = "1.5", backward: str = "2.5", activation: str = "4e6", size: str = "256.0") -> str:  # fmt: skip
    return f"node{i} -- {name} -- forward_compute_time={forward}, backward_compute_time={backward}, activation_size={activation}, parameter_size={size}\n"


PROFILE = (
    line(1, "Input", "600.0")
    + line(2)
    + line(3, activation="[1e6; 2e6]")
    + line(4)
    + "\tnode1 -- node2\n\tnode2 -- node3\n\tnode2 -- node4\n\tnode3 -- node4\n"
)


# ---------------------------------------------------------------------------------------------------------------------
# dnn-partitioning


def test_a_graph_is_read_in_seconds_with_groups_and_phases(tmp_path: Path) -> None:
    nodes = [
        node(0, colorClass=7, name="conv"),
        node(1, supportedOnFpga=False),
        node(5, isBackwardNode=True, colorClass=7),
    ]
    problem = read_problem(written(tmp_path, graph(nodes, [edge(0, 1, 0.5, size=64.0), edge(0, 5, 0.5, size=80.0)])))
    tasks = problem.graph.tasks
    assert [(t.id, t.name, t.phase, t.group) for t in tasks] == [
        ("0", "conv", "forward", "7"), ("1", "", "forward", None), ("5", "", "backward", "7"),
    ]  # fmt: skip
    assert [d.name for d in problem.cluster.devices] == ["acc0", "acc1", "cpu0"]
    assert [d.memory_bytes for d in problem.cluster.devices] == [100.0, 100.0, math.inf]
    assert problem.costs.seconds[0, problem.costs.column("acc")] == 0.003
    assert problem.costs.seconds[1, problem.costs.column("acc")] == math.inf
    assert problem.costs.seconds[1, problem.costs.column("cpu")] == 0.03
    assert problem.costs.transfer_s.tolist() == [0.0005]  # one tensor a producer, whoever reads it
    assert problem.graph.size_bytes.tolist() == [80.0]
    assert problem.memory_bytes.tolist() == [10.0, 10.0, 10.0]
    assert problem.graph.atom.tolist() == [0, 1, 0]


def test_devices_replace_the_number_of_accelerators(tmp_path: Path) -> None:
    path = written(tmp_path, graph())
    assert [d.name for d in read_problem(path, 3).cluster.devices] == ["acc0", "acc1", "acc2", "cpu0"]
    assert [d.name for d in read_problem(written(tmp_path, graph(maxFPGAs=0)), None).cluster.devices] == ["cpu0"]


def test_optional_fields_may_be_missing_or_null(tmp_path: Path) -> None:
    bare = {"id": 1, "supportedOnFpga": True, "cpuLatency": 1, "fpgaLatency": 1, "colorClass": None}
    problem = read_problem(written(tmp_path, graph([bare], [])))
    assert problem.graph.tasks[0].group is None
    assert problem.memory_bytes.tolist() == [0.0]


def test_fields_that_nobody_reads_are_ignored_and_named(tmp_path: Path) -> None:
    plain = read_problem(written(tmp_path, graph()))
    more = graph(
        [node(i, layerId=i, note={"a": [1]}) for i in range(3)], [edge(0, 1, weight=2), edge(0, 2), edge(1, 2, 0.25)]
    )
    problem = read_problem(written(tmp_path, {"deviceTopology": {"x": 1}, **more}))  # also where one comes first
    assert plain.remarks == ()
    assert problem.remarks == (
        "the file: the field 'deviceTopology' is not read",
        "nodes: the fields 'layerId', 'note' are not read",
        "edges: the field 'weight' is not read",
    )
    assert problem.graph.fingerprint == plain.graph.fingerprint
    assert problem.costs.to_json() == plain.costs.to_json()
    text = PROFILE.replace("parameter_size", "layer_id=3, parameter_size")
    assert read_problem(profile(tmp_path, text), 2).remarks == ("nodes: the field 'layer_id' is not read",)


def score(value: Json, placement: dict[str, str]) -> float:
    """The largest load in milliseconds, from the file alone, by the format's definition."""
    nodes = {str(n["id"]): n for n in value["nodes"]}
    load: dict[str, float] = {}
    for i, n in nodes.items():
        load[placement[i]] = (
            load.get(placement[i], 0.0) + n["fpgaLatency" if placement[i].startswith("acc") else "cpuLatency"]
        )
    crossing = {}
    for e in value["edges"]:
        u, v = placement[str(e["sourceId"])], placement[str(e["destId"])]
        if u != v:
            crossing.update({(d, e["sourceId"]): e["cost"] for d in (u, v) if d.startswith("acc")})
    for (d, _), cost in crossing.items():
        load[d] += cost
    return max(load.values())


@FUZZ
@given(seed=st.integers(0, 10_000))
def test_loads_are_a_thousandth_of_what_the_file_says(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    chance = random.Random(seed)
    n = chance.randint(1, 9)
    cost = [chance.random() for _ in range(n)]
    value = graph(
        [node(i, fpgaLatency=chance.random(), cpuLatency=9 * chance.random()) for i in range(n)],
        [edge(u, v, cost[u]) for u in range(n) for v in range(u + 1, n) if chance.random() < 0.4],
    )
    problem = dnn_partitioning.from_json(value, "g", "g")
    placement = {str(i): chance.choice(["acc0", "acc1", "cpu0"]) for i in range(n)}
    assert 1e3 * largest_load(problem, placement) == pytest.approx(score(value, placement), rel=1e-12)


NO_FIELD = {k: v for k, v in node(4).items() if k != "fpgaLatency"}
BAD = [
    (graph([]), GraphError, "it has no nodes"),
    (graph([node(3), node(4, fpgaLatency=-1.0)], []), GraphError, "node 4 has fpgaLatency = -1.0"),
    (graph([node(3), node(4, cpuLatency=math.nan)], []), GraphError, "node 4 has cpuLatency = nan"),
    (graph([node(4, size=math.inf)], []), GraphError, "node 4 has size = inf"),
    (graph([node(4, fpgaLatency="3")], []), GraphError, "node 4 has fpgaLatency = '3'"),
    (graph([node(4, fpgaLatency=True)], []), GraphError, "node 4 has fpgaLatency = True"),
    (graph([node(4, cpuLatency=10**400)], []), GraphError, "node 4 has cpuLatency = 1000000"),
    (graph([node(4, size=-(10**400))], []), GraphError, "node 4 has size = -1000000"),
    (graph(None, [edge(0, 1, cost=10**400)]), GraphError, "edge 0 -> 1 has cost = 1000000"),
    (graph(maxSizePerFPGA=10**400), ClusterError, "maxSizePerFPGA is 1000000"),
    (graph(maxFPGAs=10**400), ClusterError, "maxFPGAs is 1000000"),
    (graph([node(4, supportedOnFpga=2)], []), GraphError, "node 4 has supportedOnFpga = 2, not true or false"),
    (graph([node(4, colorClass=[1])], []), GraphError, r"node 4 has colorClass = \[1\], not a number"),
    (graph([node(4, id=[1])], []), GraphError, r"node \[1\] has an id that is neither a number nor a word"),
    (graph([NO_FIELD], []), GraphError, "node 4 has no 'fpgaLatency'"),
    (graph([{"name": "x"}], []), GraphError, "node number 0 has no 'id'"),
    (graph([3], []), GraphError, r"nodes\[0\] is 3, not an object"),  # type: ignore[list-item]
    (graph([node(4), node(4)], []), GraphError, "node id 4 is used twice"),
    (graph(None, [edge(0, 9)]), GraphError, "edge 0 -> 9 names the unknown node 9"),
    (graph(None, [edge(0, 1), edge(1, 2), edge(2, 0)]), GraphError, "it has a circle: . -> . -> . -> ."),
    (graph(None, [edge(1, 1)]), GraphError, "edge 1 -> 1 is a circle"),
    (graph(None, [edge(0, 1, -2.0)]), GraphError, "edge 0 -> 1 has cost = -2.0"),
    (graph(None, [edge(0, 1, math.nan)]), GraphError, "edge 0 -> 1 has cost = nan"),
    (graph(None, [{"sourceId": 0, "destId": 1}]), GraphError, "edge number 0 has no 'cost'"),
    (graph(None, [edge(0, 1, 1.0), edge(0, 2, 2.0)]), GraphError, "node 0 sends at a cost of 1 ms and of 2 ms"),
    (graph(edges={"a": 1}), GraphError, "edges is not a list"),  # type: ignore[arg-type]
    ({"maxFPGAs": 1, "nodes": []}, GraphError, "the file has no 'maxSizePerFPGA'"),
    (graph(maxFPGAs=0, maxCPUs=0), ClusterError, "0 accelerators and 0 CPUs"),
    (graph(maxFPGAs=-1), ClusterError, "maxFPGAs is -1"),
    (graph(maxFPGAs=1.5), ClusterError, "maxFPGAs is 1.5"),
    (graph(maxCPUs=1e300), ClusterError, r"maxCPUs is 1e\+300, not a whole number up to 10000"),
    (graph(maxFPGAs=math.nan), ClusterError, "maxFPGAs is nan"),
    (graph(maxSizePerFPGA="big"), ClusterError, "maxSizePerFPGA is 'big'"),
    (graph(maxSizePerFPGA=math.nan), ClusterError, "maxSizePerFPGA is nan"),
]  # fmt: skip


@pytest.mark.parametrize(("value", "kind", "sentence"), BAD, ids=[b[2] for b in BAD])
def test_a_bad_graph_is_refused_with_the_place(value: Json, kind: type[BadInput], sentence: str) -> None:
    with pytest.raises(kind, match=sentence):
        dnn_partitioning.from_json(value, "graph", "graph.json")


def test_zero_and_countless_devices_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match="0 devices asked for"):
        read_problem(written(tmp_path, graph()), 0)
    with pytest.raises(ClusterError, match="-1 devices asked for"):
        read_problem(profile(tmp_path, PROFILE), -1)
    for path in (written(tmp_path, graph()), profile(tmp_path, PROFILE)):
        with pytest.raises(ClusterError, match="1000000000 devices asked for"):
            read_problem(path, 10**9)


IMPOSSIBLE = [
    (graph([node(0), node(7, size=101.0)], [], maxCPUs=0), "memory", "task '7' holds 101 bytes; the largest device that runs it has 100 bytes"),
    (graph([node(7, supportedOnFpga=0)], [], maxCPUs=0), "supported devices", "task '7' cannot run on any device"),
    (graph([node(i, size=60.0, colorClass=3) for i in range(2)], [], maxCPUs=0), "memory", r"colocation group '3' \(2 tasks: '0', '1'\) holds 120 bytes"),
    (graph([node(0, colorClass=3), node(1, colorClass=3, supportedOnFpga=0)], [], maxCPUs=0), "supported devices", "colocation group '3'"),
    (graph([node(i, size=70.0) for i in range(3)], [], maxCPUs=0), "memory", "the tasks hold 210 bytes; all 2 devices together have 200 bytes"),
]  # fmt: skip


@pytest.mark.parametrize(("value", "constraint", "sentence"), IMPOSSIBLE, ids=[b[2][:40] for b in IMPOSSIBLE])
def test_what_fits_nowhere_is_infeasible_and_says_why(
    tmp_path: Path, value: Json, constraint: str, sentence: str
) -> None:
    with pytest.raises(Infeasible, match=sentence) as caught:
        read_problem(written(tmp_path, value))
    assert caught.value.constraint == constraint
    assert caught.value.relaxation
    assert isinstance(read_problem(written(tmp_path, {**value, "maxCPUs": 1})), PlacementProblem)  # a CPU takes it


# ---------------------------------------------------------------------------------------------------------------------
# PipeDream


def test_a_profile_is_read_without_its_inputs(tmp_path: Path) -> None:
    problem = read_problem(profile(tmp_path, PROFILE), 4, 2e9)
    assert [(t.id, t.name, t.phase) for t in problem.graph.tasks] == [
        (f"node{i}", "Conv2d(3, 64)", "stage") for i in (2, 3, 4)
    ]
    assert problem.costs.seconds.tolist() == [[0.004]] * 3
    assert problem.graph.size_bytes.tolist() == [8e6, 6e6]  # there and back
    assert problem.transfer_s.tolist() == [0.004, 0.003]  # 2 x bytes / bandwidth
    assert np.isnan(problem.costs.transfer_s).all()  # the links decide
    assert [problem.graph.readers.row(k).tolist() for k in range(2)] == [[1, 2], [2]]
    assert problem.graph.tasks[0].parameter_bytes == 256.0
    assert [d.name for d in problem.cluster.devices] == ["acc0", "acc1", "acc2", "acc3"]
    assert problem.rule == "overlap"
    assert problem.bandwidth_bytes_per_s == 2e9


BAD_PROFILES = [
    (line(1) + line(2, forward="-1"), "line 2: node 'node2' has forward_compute_time = -1"),
    (line(1) + line(2, backward="nan"), "line 2: node 'node2' has backward_compute_time = nan"),
    (line(1, activation="[1;x]"), r"line 1: node 'node1' has activation_size = \[1;x\]"),
    (line(1).replace(", parameter_size=256.0", ""), "line 1: node 'node1' has no parameter_size"),
    (line(1) + line(1), "line 2: node 'node1' is described twice"),
    (line(1) + "\tnode1 -- node9\n", "line 2: edge to the unknown node 'node9'"),
    (line(1) + "\tnode1 -- node1\n", "line 2: edge node1 -> node1 is a circle"),
    (line(1) + line(2) + "\tnode1 -- node2\n\tnode2 -- node1\n", "circle: node"),
    (line(1) + "\tnode1\n", "line 2: 'node1' is no edge"),
    (line(1) + "hello\n", "line 2: 'hello' is no node"),
    (line(1, "Input0"), "it has no nodes besides inputs"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "sentence"), BAD_PROFILES, ids=[b[1][:50] for b in BAD_PROFILES])
def test_a_bad_profile_is_refused_with_its_line(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(GraphError, match=sentence):
        read_problem(profile(tmp_path, text), 2)


def test_a_profile_needs_devices_and_a_bandwidth(tmp_path: Path) -> None:
    path = profile(tmp_path, PROFILE)
    with pytest.raises(ClusterError, match="names no devices"):
        read_problem(path)
    for rate in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ClusterError, match="bandwidth"):
            read_problem(path, 2, rate)


# ---------------------------------------------------------------------------------------------------------------------
# which is which


def test_the_format_is_told_by_the_first_bytes(tmp_path: Path) -> None:
    assert sniff(written(tmp_path, graph())) == "dnn-partitioning"
    assert sniff(written(tmp_path, "\ufeff\n " + json.dumps(graph(), indent=1))) == "dnn-partitioning"
    assert sniff(profile(tmp_path, PROFILE)) == "pipedream"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "is empty"),
        (" \n ", "is empty"),
        ("{}", "opens with a brace and no field"),
        ('{"format": "partita-plan"}', "its first field is 'format'"),
        ("[1, 2]", "is neither"),
        ("\x00\x01garbage", "is neither"),
        ('{"nodes": [', "is not JSON: line 1 column"),
        ('{"nodes":' * 100_000, "is not JSON: nested too deeply"),
    ],
)
def test_another_file_is_refused(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(GraphError, match=sentence):
        read_problem(written(tmp_path, text))


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "nothing.json", tmp_path):
        with pytest.raises(GraphError, match="cannot be read"):
            read_problem(path)
        with pytest.raises(GraphError, match="cannot be read"):
            pipedream.read(path, 2)


@pytest.mark.parametrize(
    "opening", [b"", b'{"nodes": [', b"node1 -- Conv -- ", b'{"maxFPGAs": 1, "nodes": [' + b'{"id": 1}, ' * 9]
)
def test_a_large_file_of_garbage_is_refused_fast(tmp_path: Path, opening: bytes) -> None:
    path = tmp_path / "garbage"
    block = random.Random(0).randbytes(1 << 20)
    with path.open("wb") as file:
        file.write(opening)
        file.write(block)
        file.truncate(200 << 20)
    began = time.process_time()
    with pytest.raises(GraphError):
        read_problem(path, 2)
    assert time.process_time() - began < 2.0


@FUZZ
@given(text=st.text(max_size=200), opening=st.sampled_from(["", '{"nodes": ', "node1 -- a -- forward_compute_time="]))
def test_no_text_makes_it_fail_in_another_way(
    tmp_path_factory: pytest.TempPathFactory, text: str, opening: str
) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzz"
    path.write_text(opening + text, encoding="utf-8", errors="replace")
    with pytest.raises(PartitaError):
        read_problem(path, 2)


SCALAR = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 3), st.floats(), st.text(max_size=3), st.just([]), st.just({})
)


@FUZZ
@given(where=st.sampled_from(["top", "node", "edge"]), drop=st.booleans(), value=SCALAR, data=st.data())
def test_no_value_makes_it_fail_in_another_way(where: str, drop: bool, value: Any, data: st.DataObject) -> None:
    whole = json.loads(json.dumps(graph()))
    part = {"top": whole, "node": whole["nodes"][1], "edge": whole["edges"][0]}[where]
    key = data.draw(st.sampled_from(sorted([*part, "extra"])))
    if drop:
        part.pop(key, None)
    else:
        part[key] = value
    try:
        assert isinstance(dnn_partitioning.from_json(whole, "g", "g"), PlacementProblem)
    except PartitaError as error:
        assert len(str(error)) > 10  # noqa: PT017 (anything else than a sentence fails)


HOSTILE: list[Any] = [
    None, True, False, 0, -1, 1, 10**400, -(10**400), 1e308, 5e-324, math.inf, -math.inf, math.nan, "", "0", "1e400", "\ud800",
    "x" * 5000, [], {}, [[[[]]]], {"id": 0}, [None] * 50,
]  # fmt: skip


def _mutated(chance: random.Random, value: Any) -> Any:
    """A JSON value with one to three places of it replaced, dropped, doubled or made hostile."""
    whole = json.loads(json.dumps(value))
    for _ in range(chance.randint(1, 3)):
        part = whole
        while True:
            keys = list(part) if isinstance(part, dict) else list(range(len(part)))
            if not keys:
                break
            key = chance.choice(keys)
            if isinstance(part[key], dict | list) and chance.random() < 0.8:
                part = part[key]
                continue
            act = chance.randrange(4)
            if act == 0:
                del part[key]
            elif act == 1 and isinstance(part, list):
                part.append(part[key])
            elif act == 2 and isinstance(part, dict):
                part[chance.choice(["extra", "id", "size", "cost", "name", "colorClass"])] = chance.choice(HOSTILE)
            else:
                part[key] = chance.choice(HOSTILE)
            break
    return whole


def _garbled(chance: random.Random, text: str) -> bytes:
    """A text with a few bytes changed, cut out, doubled or put in."""
    raw = bytearray(text.encode())
    for _ in range(chance.randint(1, 3)):
        i = chance.randrange(len(raw))
        j = min(len(raw), i + chance.randint(1, 20))
        act = chance.randrange(4)
        raw[i:j] = [b"", bytes(raw[i:j]) * 2, chance.randbytes(1), b"9" * 400][act] or b" "
    return bytes(raw)


def test_two_thousand_mutated_files_are_read_or_refused_with_a_sentence(tmp_path: Path) -> None:
    chance, path = random.Random(9), tmp_path / "file"
    refusals: list[str] = []
    text = json.dumps(graph(), indent=1)
    for k in range(2000):
        kind = k % 4
        if kind == 0:
            path.write_text(json.dumps(_mutated(chance, graph())))
        else:
            path.write_bytes(_garbled(chance, text if kind == 1 else PROFILE))
        try:
            problem = read_problem(path, 2 if kind > 1 else None)
            assert len(problem.graph) <= 10
        except PartitaError as error:
            refusals.append(str(error))
    assert 500 < len(refusals) < 1950
    assert all(10 < len(sentence) < 5000 for sentence in refusals)


@pytest.mark.skipif(not DATA.is_dir(), reason="no public graphs here: set PARTITA_DATA")
def test_the_published_graphs_are_read_whole() -> None:
    for path in sorted(DATA.glob("dnn-partitioning/*.json")):
        value, problem = json.loads(path.read_text()), read_problem(path)
        assert len(problem.graph) == len(value["nodes"])
        placement = {t.id: "acc0" if i % 2 else "acc1" for i, t in enumerate(problem.graph.tasks)}
        assert 1e3 * largest_load(problem, placement) == pytest.approx(score(value, placement), rel=1e-12)
    for path in sorted(DATA.glob("pipedream/*.txt")):
        problem = read_problem(path, 4)
        lines = path.read_text().splitlines()
        assert len(problem.graph) == sum(not x.startswith("\t") and " -- Input" not in x for x in lines)
