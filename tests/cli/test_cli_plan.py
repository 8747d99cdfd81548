"""partita plan and partita explain, as scripts and as people call them."""

from __future__ import annotations

import dataclasses
import json
import math
import os
from pathlib import Path

import pytest
from pipeline.report.sample_run import make_plan

from partita.cli import main
from partita.nouns.cluster import Cluster, Device, Link
from partita.nouns.costs import CostTable
from partita.nouns.graph import SharedParameter, Task, TaskGraph
from partita.nouns.plan import PlanFile
from partita.nouns.probe import Probe, ProbePiece
from partita.nouns.profile import Profile, Sample
from partita.simulate.schedules import device_orders

DATA = Path(os.environ.get("PARTITA_DATA") or Path(__file__).parents[2].parent / "shared" / "data")
GRAPHS = DATA / "graphs"


def chain(tmp_path: Path, n: int = 6, **changes: object) -> Path:
    """A dnn-partitioning chain of n nodes of 1 ms on two accelerators; sending costs 0.25 ms."""
    nodes = [
        {"id": i, "supportedOnFpga": 1, "cpuLatency": 50.0, "fpgaLatency": 1.0, "size": 10, "isBackwardNode": 0, "name": f"layer {i}"}
        for i in range(n)
    ]  # fmt: skip
    edges = [{"sourceId": i, "destId": i + 1, "cost": 0.25} for i in range(n - 1)]
    value = {"maxSizePerFPGA": 1000, "maxFPGAs": 2, "maxCPUs": 1, "nodes": nodes, "edges": edges, **changes}
    path = tmp_path / "chain.json"
    path.write_text(json.dumps(value))
    return path


def profile(tmp_path: Path, memory: float = math.inf, size: int = 2) -> Path:
    n = 4
    tasks = [Task(f"t{i}", f"layer {i}", parameter_bytes=8.0, activation_bytes=4.0) for i in range(n)]
    tasks += [Task(f"b{i}", phase="backward", of=f"t{i}") for i in range(n)]
    tasks += [Task(f"u{i}", phase="update", of=f"t{i}") for i in range(n)]
    tensors = [(f"t{i}", 4.0, [*([f"t{i + 1}"] if i < n - 1 else []), f"b{i}"]) for i in range(n)]
    tensors += [(f"b{i + 1}", 4.0, [f"b{i}"]) for i in range(n - 1)] + [(f"b{i}", 0.0, [f"u{i}"]) for i in range(n)]
    graph = TaskGraph.build("model", tasks, tensors)
    costs = CostTable.given(("cpu",), [[0.01]] * n + [[0.02]] * n + [[0.001]] * n, [math.nan] * len(tensors))
    cluster = Cluster(tuple(Device(f"cpu{i}", "cpu", memory) for i in range(2)), (), Link("", "", 1e6, 1e-5))
    return Profile("job.py:job", 16, (Sample(size, graph, costs),), cluster, 1.0).write(tmp_path / "profile.json")


def said(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main([str(w) for w in words])
    out = capsys.readouterr()
    return code, out.out, out.err


def test_a_graph_is_planned_written_and_explained(tmp_path, capsys):
    source, out = chain(tmp_path), tmp_path / "plan.json"
    code, text, _ = said(
        capsys, "plan", source, "--placement", "contiguous", "--objective", "throughput", "-o", out, "--json"
    )
    assert code == 0
    d = json.loads(text)
    assert d["value_s"] == pytest.approx(0.00325)
    assert (d["lower_bound_s"], d["bound"], d["gap"]) == (d["value_s"], "exact", 0.0)
    assert {"method", "seconds_spent"} <= d.keys()
    assert sorted(d["placement"]) == [str(i) for i in range(6)]
    assert set(d["placement"].values()) <= {"acc0", "acc1", "cpu0"}
    assert json.loads(out.read_text())["placement"] == d["placement"]
    code, text, _ = said(capsys, "explain", out, "--json")
    assert code == 0
    e = json.loads(text)
    changes = {row["change"]: row["value_s"] for row in e["what_if"]}
    assert changes["as it is"] == pytest.approx(0.00325)
    assert changes["one more device"] == pytest.approx(0.0025)
    assert changes["twice the bandwidth"] == pytest.approx(0.003125)
    assert e["binding"] == "bandwidth"
    assert max(r["load_s"] for r in e["table"]) == pytest.approx(e["value_s"])
    code, text, _ = said(capsys, "explain", out)
    assert "█" in text
    assert "none, it is optimal" in text


def test_a_pipedream_profile_gives_stages_with_replicas(tmp_path, capsys):
    source = tmp_path / "layers.txt"
    rows = [
        f"node{i} -- Layer{i}() -- forward_compute_time={t}, backward_compute_time={t}, activation_size=1000.0, parameter_size=0.0"
        for i, t in enumerate((3.0, 3.0, 1.0), 1)
    ]
    source.write_text("\n".join([*rows, "\tnode1 -- node2", "\tnode2 -- node3"]) + "\n")
    out = tmp_path / "plan.json"
    code, text, _ = said(capsys, "plan", source, "--devices", "7", "--bandwidth", "1e8", "-o", out, "--json")
    assert code == 0
    d = json.loads(text)
    assert d["value_s"] == pytest.approx(0.014 / 7)
    assert sum(s["replicas"] for s in d["stages"]) <= 7
    assert sorted(t for s in d["stages"] for t in s["tasks"]) == ["node1", "node2", "node3"]
    assert d["bandwidth_bytes_per_s"] == 1e8
    code, text, _ = said(capsys, "explain", out)
    assert code == 0
    assert "one more device" in text


def test_a_profile_is_planned_for_the_step(tmp_path, capsys):
    source, out = profile(tmp_path), tmp_path / "plan.json"
    code, text, _ = said(capsys, "plan", source, "--no-replicas", "--schedule", "1f1b", "-o", out, "--json")
    assert code == 0
    d = json.loads(text)
    assert d["objective"] == "step"
    assert [len(s["tasks"]) for s in d["stages"]] == [2, 2]
    assert d["micro_batches"] == 8
    assert 0 <= d["gap"] < 0.1
    assert d["compared_s"]["single"] > d["value_s"]
    assert PlanFile.read(out).verdict.value_s == d["value_s"]
    code, text, err = said(capsys, "plan", source, "--no-replicas")
    assert "less than 1F1B" in text
    assert "layer 1" in text
    assert "against single" in text
    assert "planning" in err
    code, text, _ = said(capsys, "explain", out, "--json")
    assert code == 0
    e = json.loads(text)
    assert e["what_if"][0]["value_s"] == pytest.approx(d["value_s"])
    assert e["what_if"][1]["value_s"] < d["value_s"]


def test_one_device_is_explained_where_two_would_hardly_be_faster(tmp_path, capsys):
    probe = Probe((ProbePiece(("t0",), 1e-3),), 1)
    base = Profile.read(profile(tmp_path))
    link = Link("", "", 1e6, message_s=0.0446)  # messages take all but 2 % of what a second device saves
    probed = dataclasses.replace(base.samples[0], probe=probe)
    cluster = dataclasses.replace(base.cluster, default_link=link)
    dataclasses.replace(base, samples=(probed,), cluster=cluster).write(tmp_path / "slow.json")
    words = ["--no-replicas", "--schedule", "1f1b", "-o", tmp_path / "plan.json"]
    code, text, _ = said(capsys, "plan", tmp_path / "slow.json", *words)
    assert code == 0
    assert "one: the best plan for more would save" in text
    code, text, _ = said(capsys, "explain", tmp_path / "plan.json")
    assert code == 0
    assert "less than a prediction is sure of" in text


@pytest.mark.parametrize(
    ("words", "code", "fact"),
    [
        (["job.py:train"], 2, "partita measure job.py:train"),
        (["{profile}", "--objective", "throughput"], 2, "leave --objective out"),
        (["{profile}", "--placement", "free", "--micro-batches", "8"], 2, "leave --micro-batches out"),
        (["{profile}", "--placement", "contiguous", "--method", "heft"], 2, "leave --placement out"),
        (["{profile}", "--method", "heft"], 2, "--micro-batch-sizes"),
        (["{profile}", "--devices", "3"], 2, "3 devices asked for, 2 are there"),
        (["{profile}", "--devices", "0"], 2, "0 devices asked for"),
        (["{profile}", "--micro-batches", "5"], 2, "5 micro-batches were not measured; measured: 8"),
        (["{profile}", "--stages", "5"], 3, "5 stages asked for"),
        (["{tight}"], 3, "its device has 20 bytes"),
        (["{profile}", "--method", "magic"], 2, "unknown method 'magic'"),
        (["{chain}", "--objective", "step"], 2, "no training step"),
        (["{chain}", "--method", "magic"], 2, "unknown method 'magic'"),
        (["{chain}", "--budget-s", "-1"], 2, "a budget of -1 seconds"),
        (["{chain}", "--devices", "-2"], 2, "-2 devices asked for"),
        (["{profile}", "--bandwidth", "0"], 2, "a bandwidth of 0.0 bytes/s"),
        (["{chain}", "--cluster", "{cluster}"], 2, "no costs for devices of kind 'tpu'"),
        (["{profile}", "--cluster", "{unlinked}"], 2, "nothing is known of links that no [[links]] names"),
        (["{profile}", "--cluster", "{half}"], 2, "nothing is known of links that no [[links]] names"),
        (["{missing}"], 2, "cannot be read"),
        (["{chain}", "-o", "{missing}/deeper.json"], 2, "cannot be written"),
    ],
)
def test_bad_input(tmp_path, capsys, words, code, fact):
    (tmp_path / "tight").mkdir()
    (tmp_path / "cluster.toml").write_text("[[device]]\nname = 'a'\nkind = 'tpu'\n")
    unlinked = "".join(f"[[device]]\nname = '{n}'\nkind = 'cpu'\n" for n in ("a", "b"))
    (tmp_path / "unlinked.toml").write_text(unlinked)
    (tmp_path / "half.toml").write_text(f"{unlinked}[[links]]\nsource = 'a'\ntarget = 'b'\nrate_bytes_per_s = 1e9\n")
    places = {
        "profile": profile(tmp_path), "tight": profile(tmp_path / "tight", 20.0), "chain": chain(tmp_path),
        "missing": tmp_path / "no such file", "cluster": tmp_path / "cluster.toml",
        "unlinked": tmp_path / "unlinked.toml", "half": tmp_path / "half.toml",
    }  # fmt: skip
    found, text, err = said(capsys, "plan", *(w.format(**places) for w in words))
    assert found == code
    assert text == ""
    assert fact in err
    assert "hint:" in err


@pytest.mark.parametrize(
    ("change", "fact"),
    [
        ({"nodes": []}, "no nodes"),
        ({"maxFPGAs": 0, "maxCPUs": 0}, "0 accelerators and 0 CPUs"),
        ({"edges": [{"sourceId": 0, "destId": 1, "cost": 1.0}, {"sourceId": 1, "destId": 0, "cost": 1.0}]}, "circle"),
        ({"edges": [{"sourceId": 0, "destId": 1, "cost": math.nan}]}, "cost"),
        ({"edges": [{"sourceId": 0, "destId": 1, "cost": -1.0}]}, "edge 0 -> 1 has cost"),
        ({"maxCPUs": 10**18}, "maxCPUs is 10000"),
    ],
)
def test_bad_graphs(tmp_path, capsys, change, fact):
    code, _, err = said(capsys, "plan", chain(tmp_path, **change))
    assert code == 2
    assert fact in err


@pytest.mark.parametrize("budget", ["1e308", "nan", "-1"])
def test_a_budget_that_is_none_is_refused_before_the_plan_is_read(tmp_path, capsys, budget):
    code, _, err = said(capsys, "explain", tmp_path / "no such plan", "--budget-s", budget)
    assert code == 2
    assert f"a budget of {float(budget):g} seconds" in err


def test_a_damaged_plan_is_not_explained(tmp_path, capsys):
    path = tmp_path / "plan.json"
    path.write_text('{"format": "partita-plan", "version": 1, "kind": "pipeline"}')
    code, _, err = said(capsys, "explain", path)
    assert code == 2
    assert "damaged" in err


def known() -> list[tuple[str, float]]:
    path = GRAPHS / "best_known.json"
    if not path.is_file():
        return []
    rows = json.loads(path.read_text())["dnn-partitioning"]
    return [(name, row["contiguous_optimum"]) for name, row in rows.items()]


@pytest.mark.skipif(not known(), reason="the published graphs are not here")
@pytest.mark.parametrize(("name", "optimum"), known())
def test_published_graphs_reach_the_known_optimum(capsys, name, optimum):
    code, text, _ = said(capsys, "plan", GRAPHS / "dnn-partitioning" / f"{name}.json", "--json")
    d = json.loads(text)
    assert code == 0
    assert d["value_s"] * 1e3 == pytest.approx(optimum, rel=1e-5)
    assert d["bound"] == "exact"


def test_a_plan_with_given_orders_is_explained_and_reported(tmp_path, capsys):
    file = make_plan(2, 4, 4)
    plan = dataclasses.replace(file.plan, schedule="given", orders=device_orders(file.plan))
    PlanFile(plan, file.verdict, file.problem).write(tmp_path / "plan.json")
    for words in (["explain", str(tmp_path / "plan.json")], ["report", str(tmp_path)]):
        assert main([*words, "--json"]) == 0, capsys.readouterr().err


LAYER = "forward_compute_time=2.0, backward_compute_time=4.0, activation_size=1000.0, parameter_size=2000.0"
DIAMOND = "".join(f"node{i} -- Layer -- {LAYER}\n" for i in range(1, 7)) + "".join(
    f"\tnode{a} -- node{b}\n" for a, b in [(1, 2), (1, 3), (2, 4), (3, 5), (4, 6), (5, 6)]
)


@pytest.mark.parametrize("method", ["heft", "cp-sat", "bayes", "genetic", "hybrid"])
def test_a_mapping_has_a_placement_an_order_and_a_value(tmp_path, capsys, method):
    source, plan = tmp_path / "layers.txt", tmp_path / "plan.json"
    source.write_text(DIAMOND)
    words = ["--devices", "2", "--bandwidth", "1e9", "--objective", "latency", "--method", method]
    words += ["--budget-s", "0.2", "--seed", "1", "-o", str(plan)]
    code, out, _ = said(capsys, "plan", str(source), *words, "--json")
    assert code == 0
    document, written = json.loads(out), json.loads(plan.read_text())
    assert document["value_s"] == pytest.approx(0.024002)  # four layers, and one message of 2 us on their way
    assert document["placement"].keys() == {f"node{i}" for i in range(1, 7)}
    assert document["order"] == written["order"]
    assert sorted(t for ts in written["order"].values() for t in ts) == sorted(document["placement"])
    assert document["compared_s"]["single"] == pytest.approx(0.036)
    assert document["lower_bound_s"] <= document["value_s"]
    code, out, _ = said(capsys, "simulate", str(plan), "--json")
    assert code == 0
    code, out, _ = said(capsys, "plan", str(source), *words)
    assert "against single" in out
    assert "1.50x" in out
    code, out, _ = said(capsys, "explain", str(plan), "--budget-s", "0.1")
    assert code == 0


@pytest.mark.parametrize(
    "method",
    [
        "single",
        "heft",
        "cp-sat",
        "bayes",
        *(pytest.param(m, marks=pytest.mark.slow) for m in ("genetic", "hybrid")),
        "auto",
    ],
)
def test_a_job_is_mapped(tmp_path, capsys, method):
    """A chain: only weights' gradients and updates run beside anything, so no method wins much over one device, and no search loses."""
    source, out = profile(tmp_path, size=16), tmp_path / "plan.json"
    words = [source, "--placement", "free", "--method", method, "--budget-s", "0.1", "-o", out]
    code, text, _ = said(capsys, "plan", *words, "--json")
    assert code == 0
    d = json.loads(text)
    assert d["placement"].keys() == {f"t{i}" for i in range(4)}
    assert d["objective"] == "step"
    assert d["lower_bound_s"] <= d["value_s"] * (1 + 1e-9)
    assert 0.1 < d["value_s"] < (0.2 if method == "heft" else 0.124001)
    assert {t for s in d["stages"] for t in s["tasks"]} == d["placement"].keys()
    code, text, _ = said(capsys, "plan", *words)
    assert "4 operators" in text
    for verb in ("simulate", "explain"):
        code, text, _ = said(capsys, verb, out)
        assert code == 0
    assert PlanFile.read(out).plan.micro_batches == 1


def test_operators_that_cannot_be_parted_are_named(tmp_path, capsys):
    base = Profile.read(profile(tmp_path, size=16))
    sample, shared = base.samples[0], SharedParameter("head.weight", 8.0, ("t0", "t3"))
    tasks = tuple(
        dataclasses.replace(t, group="buffer mean" if t.id in ("t1", "t2") else None) for t in sample.graph.tasks
    )
    graph = dataclasses.replace(sample.graph, tasks=tasks, shared=(shared,))
    source, out = tmp_path / "grouped.json", tmp_path / "out"
    dataclasses.replace(base, samples=(dataclasses.replace(sample, graph=graph),)).write(source)
    words = ["plan", source, "--placement", "free", "--method", "heft"]
    d = json.loads(said(capsys, *words, "--json")[1])
    assert d["together"] == {"buffer mean": ["t1", "t2"], "parameter head.weight": ["t0", "t3"]}
    assert d["placement"]["t1"] == d["placement"]["t2"]
    text = said(capsys, *words)[1]
    assert "t1, t2: buffer mean" in text
    assert "t0, t3: parameter head.weight" in text
    out.mkdir()
    assert said(capsys, *words, "-o", out / "plan.json")[0] == 0
    assert said(capsys, "report", out)[0] == 0
    assert "Kept together: t1, t2: buffer mean; t0, t3" in (out / "report.html").read_text()


@pytest.mark.parametrize("method", ["single", "intuitive", "heft", "heft-links", "hybrid"])
def test_a_job_without_room_for_a_mapping_is_infeasible(tmp_path, capsys, method):
    """Four layers of 8 bytes, gradients and activations on two devices: none of them holds all, 30 bytes hold no layer."""
    for memory, fits in ((30.0, False), (80.0, method != "single")):
        source = profile(tmp_path, memory=memory, size=16)
        words = [source, "--placement", "free", "--method", method, "--budget-s", "0.1", "--json"]
        code, text, err = said(capsys, "plan", *words)
        assert code == (0 if fits else 3), err
        if not fits:
            assert text == ""
            assert "hint: " in err
            assert "bytes" in err


def test_auto_is_as_good_as_every_method_of_its_question(tmp_path, capsys):
    """Where nobody asks for a contiguous placement, the answer to "the least latency" may be any mapping."""
    (tmp_path / "layers.txt").write_text(DIAMOND)
    words = [tmp_path / "layers.txt", "--devices", "2", "--bandwidth", "1e9", "--objective", "latency", "--json"]
    words += ["--budget-s", "0.2"]
    values = {}
    for method in ("auto", "heft", "intuitive", "single"):
        values[method] = json.loads(said(capsys, "plan", *words, "--method", method)[1])["value_s"]
    values["contiguous"] = json.loads(said(capsys, "plan", *words, "--placement", "contiguous")[1])["value_s"]
    assert values["auto"] == min(values.values())


def test_a_mapping_is_for_latency(tmp_path, capsys):
    (tmp_path / "layers.txt").write_text(DIAMOND)
    code, _, err = said(capsys, "plan", str(tmp_path / "layers.txt"), "--devices", "2", "--method", "heft")
    assert code == 2
    assert "--objective latency" in err
