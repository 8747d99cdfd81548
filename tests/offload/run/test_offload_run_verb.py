"""partita offload run, as a person calls it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from offload.run.small_nets import image, net, problem_of, served
from onnx import TensorProto, helper
from safetensors.numpy import load_file

from partita.cli import main
from partita.cli.offload.run import _cause
from partita.files import dump_json
from partita.nouns.timeline import Timeline
from partita.offload.capture import jobs as offload_jobs
from partita.offload.capture.jobs import JobSpec
from partita.offload.onnx_session import Session
from partita.offload.plan.planner import plan_offload
from partita.offload.run.problem import _difference, come_at_random, stream_plan

ONE, TWO = net(), net("two", 1, outputs=2)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with served(tmp_path_factory.mktemp("server")) as (where, _):
        yield where


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> list[JobSpec]:
    jobs = [JobSpec(f"job{k}", (ONE, TWO)[k % 2], image(k)) for k in range(5)]
    monkeypatch.setattr(offload_jobs, "read_jobs", lambda path: tuple(jobs))
    return jobs


@pytest.fixture
def costs(work: list[JobSpec], tmp_path: Path) -> str:
    problem = problem_of([w.model for w in work])
    (tmp_path / "costs.json").write_text(dump_json(problem.to_json()))
    return str(tmp_path / "costs.json")


def call(capsys: pytest.CaptureFixture[str], words: Sequence[str], code: int = 0) -> tuple[dict[str, Any], str]:
    assert main(["offload", "run", "JOBS.toml", "--json", *words]) == code
    out, err = capsys.readouterr()
    return (json.loads(out) if out else {}), err


def test_measured_planned_executed_and_checked(
    server: str, work: list[JobSpec], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--server", server, "--measure-s", "0.3", "--budget-s", "0.1", "--check", "-o", str(tmp_path / "out")]
    document, err = call(capsys, words)
    assert "measuring 2 models" in err
    assert document["largest_difference"] < 1e-5
    assert document["predicted_s"] > 0
    assert document["error"] == pytest.approx(document["predicted_s"] / document["makespan_s"] - 1)
    at_speed = document["predicted_at_run_speed_s"]
    assert document["error_at_run_speed"] == pytest.approx(at_speed / document["makespan_s"] - 1)
    assert document["error_of_machines"] == pytest.approx(document["predicted_s"] / at_speed - 1)
    assert all(set(document["speeds"][when]) == {"device", "server"} for when in ("measured", "run"))
    assert [j["name"] for j in document["jobs"]] == [w.name for w in work]
    assert {m["machine"] for m in document["machines"]} == {"device", "uplink", "server", "downlink"}
    assert Timeline.read(tmp_path / "out" / "timeline.json").source == "measured"
    assert Timeline.read(tmp_path / "out" / "predicted.json").source == "simulated"
    saved = load_file(tmp_path / "out" / "outputs" / "0001.safetensors")
    assert set(saved) == {"y", "early"}
    again, _ = call(capsys, ["--server", server, "--plan", str(tmp_path / "out" / "plan.json")])
    assert again["predicted_s"] == document["predicted_s"]
    assert again["speeds"]["measured"] == document["speeds"]["measured"]  # a plan file holds them


def test_a_jobs_file_with_models_and_counts(server: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "one.onnx").write_bytes(ONE.data)
    path = tmp_path / "JOBS.toml"
    path.write_text('[[job]]\nmodel = "one.onnx"\ncount = 3\n')
    words = ["offload", "run", str(path), "--server", server, "--measure-s", "0.2", "--check", "--json"]
    assert main(words) == 0
    document = json.loads(capsys.readouterr().out)
    assert [j["name"] for j in document["jobs"]] == ["one-0", "one-1", "one-2"]
    assert document["largest_difference"] < 1e-5


def test_costs_instead_of_measuring(server: str, costs: str, capsys: pytest.CaptureFixture[str]) -> None:
    document, err = call(capsys, ["--server", server, "--costs", costs, "--method", "server-only", "--check"])
    assert "measuring" not in err
    assert {j["where"] for j in document["jobs"]} == {"server"}
    assert document["method"] == "server-only"
    assert document["bytes_up"] > 5 * 3 * 24 * 24 * 4


@pytest.mark.parametrize("transfer", ["lossless", "int8"])
def test_coded_transfers(server: str, costs: str, transfer: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--server", server, "--costs", costs, "--method", "server-only", "--check", "--transfer", transfer]
    document, _ = call(capsys, words)
    assert document["transfer"] == transfer
    assert document["largest_difference"] < (1e-5 if transfer == "lossless" else 0.1)
    assert document["bytes_up"] < 5 * 3 * 24 * 24 * 4


def test_without_a_server_the_device_answers_with_one_sentence(
    work: list[JobSpec], capsys: pytest.CaptureFixture[str]
) -> None:
    document, err = call(capsys, ["--server", "127.0.0.1:9", "--check"])
    assert {j["where"] for j in document["jobs"]} == {"device"}
    assert document["predicted_s"] is None
    assert err.count("cannot be reached") == 1
    alone, _ = call(capsys, ["--check"])
    assert alone["largest_difference"] < 1e-5


def test_jobs_that_come_one_by_one(server: str, costs: str, capsys: pytest.CaptureFixture[str]) -> None:
    document, _ = call(capsys, ["--server", server, "--costs", costs, "--arrivals", "poisson:20", "--check"])
    assert document["method"] == "online"
    assert document["largest_difference"] < 1e-5
    assert document["makespan_s"] > 0.1
    assert document["latency_worst_s"] < document["makespan_s"]
    assert sorted(document["order"]) == list(range(5))


def test_arrivals_are_the_same_for_the_same_seed(work: list[JobSpec]) -> None:
    one, same, other = (come_at_random(work, 2.0, seed) for seed in (1, 1, 2))
    assert [w.release_s for w in one] == [w.release_s for w in same] != [w.release_s for w in other]
    problem = problem_of([w.model for w in one])
    file = stream_plan(problem)
    assert file.plan.check(problem) == []
    assert file.verdict.value_s > 0


def test_text_shows_the_figures(server: str, costs: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["offload", "run", "JOBS.toml", "--server", server, "--costs", costs, "--check"]) == 0
    out = capsys.readouterr().out
    for word in ("makespan", "predicted", "latency", "uplink", "differ from the whole model's"):
        assert word in out


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--server", "nowhere"], "no address"),
        (["--server", "10.1.2.3:7070"], "beyond loopback"),
        (["--method", "magic"], "unknown method"),
        (["--budget-s", "0"], "a budget of 0 seconds"),
        (["--patience-s", "nan"], "--patience-s is nan"),
        (["--arrivals", "poisson:-1"], "poisson:RATE"),
        (["--arrivals", "monday"], "poisson:RATE"),
        (["--plan", "a", "--costs", "b"], "give one of the two"),
        (["--plan", "missing.json"], "cannot be read"),
        (["--server", "127.0.0.1:9", "--token-file", "missing"], "cannot be read"),
    ],
)
def test_bad_flags_are_sentences(
    work: list[JobSpec], words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    _, err = call(capsys, words, 2)
    assert sentence in err
    assert "hint:" in err


def test_costs_of_other_jobs_are_refused(
    work: list[JobSpec], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "costs.json").write_text(dump_json(problem_of([ONE]).to_json()))
    _, err = call(capsys, ["--costs", str(tmp_path / "costs.json")], 2)
    assert "it has 1 jobs, there are 5" in err


def test_a_plan_file_must_be_one(work: list[JobSpec], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    problem = problem_of([w.model for w in work])
    good = plan_offload(problem).to_json()
    path = tmp_path / "plan.json"
    for value, sentence in (
        ({**good, "format": "partita-offload-plan"}, "partita-plan"),
        ({**good, "version": 1}, "version 1"),
        ({k: v for k, v in good.items() if k != "problem"}, "damaged"),
        ({**good, "kind": "placement", "placement": {}, "graph": "", "order": {}}, "for a problem of kind offload"),
        ({**good, "order": [0]}, "it orders 1 jobs"),
    ):
        path.write_text(json.dumps(value))
        _, err = call(capsys, ["--plan", str(path)], 2)
        assert sentence in err


def test_the_check_finds_a_wrong_answer(work: list[JobSpec]) -> None:
    from partita.offload.run.problem import largest_difference

    right = [Session(w.model.data, w.name).run(w.input) for w in work]
    assert largest_difference(work, right) == 0
    wrong = [{n: v + (0.5 if k == 3 and n == "y" else 0) for n, v in o.items()} for k, o in enumerate(right)]
    assert largest_difference(work, wrong) == pytest.approx(0.5)
    assert largest_difference(work, [*right[:4], {"y": right[4]["y"] * float("nan")}]) == float("inf")


def test_answers_of_text_and_maps_are_compared_and_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As a classifier exported from scikit-learn gives them."""
    nodes = [
        helper.make_node(
            "LinearClassifier", ["x"], ["label", "scores"], domain="ai.onnx.ml",
            coefficients=[1.0, -1.0, -1.0, 1.0], intercepts=[0.0, 0.0], classlabels_strings=["owl", "eel"],
        ),
        helper.make_node("ZipMap", ["scores"], ["chances"], domain="ai.onnx.ml", classlabels_strings=["owl", "eel"]),
    ]  # fmt: skip
    chances = helper.make_sequence_type_proto(
        helper.make_map_type_proto(TensorProto.STRING, helper.make_tensor_type_proto(TensorProto.FLOAT, []))
    )
    graph = helper.make_graph(
        nodes, "zoo", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 2])],
        [helper.make_tensor_value_info("label", TensorProto.STRING, [1]), helper.make_value_info("chances", chances)],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    (tmp_path / "zoo.onnx").write_bytes(model.SerializeToString())
    (tmp_path / "JOBS.toml").write_text('[[job]]\nname = "a"\nmodel = "zoo.onnx"\n')
    outputs = tmp_path / "out" / "outputs"
    outputs.mkdir(parents=True)
    theirs = {"mine.json", "7.json", "00012.json", "\u00b2.json", "0003.txt"}
    for name in ("0001.safetensors", "12345.json", *theirs):
        (outputs / name).write_text("of a run before, with more jobs, and the user's")
    (outputs / "0005.json").mkdir()
    words = ["offload", "run", str(tmp_path / "JOBS.toml"), "--check", "--json", "-o", str(tmp_path / "out")]
    assert main(words) == 0
    assert json.loads(capsys.readouterr().out)["largest_difference"] == 0
    assert {p.name for p in outputs.iterdir()} == {"0000.safetensors", "0000.json", "0005.json", *theirs}
    written = json.loads((outputs / "0000.json").read_text())
    assert written["label"][0] in ("owl", "eel")
    assert set(written["chances"][0]) == {"owl", "eel"}


@pytest.mark.parametrize(
    ("found", "wanted", "off"),
    [
        (np.array(["owl"], object), np.array(["owl"], object), 0.0),
        (np.array(["owl"], object), np.array(["eel"], object), np.inf),
        ([{"owl": 0.5}], [{"owl": 0.25}], 0.25),
        ([{"owl": 0.5}], [{"eel": 0.5}], np.inf),
        ([{"owl": 0.5}], [{"owl": 0.5}] * 2, np.inf),
        ([np.zeros(2)], [np.zeros(2), np.zeros(2)], np.inf),
        (np.zeros(2), np.zeros((1, 2)), np.inf),
        (None, [1.0], np.inf),
        (np.array([-np.inf, 1.0]), np.array([-np.inf, 1.5]), 0.5),
        (np.array([np.inf, 1.0]), np.array([-np.inf, 1.0]), np.inf),
        (np.array([np.inf]), np.array([1.0]), np.inf),
        (np.array([np.nan]), np.array([np.nan]), np.inf),
        (np.array([1.0 + 1.0j]), np.array([1.0]), np.inf),
        (np.array([True]), np.array([1.0]), np.inf),
        (np.array(["1.5"], object), np.array([1.5]), np.inf),
        ({"owl": 0.5}, np.array(0.5), np.inf),
        ([[1.0], [1.0, 2.0]], np.array([1.0, 2.0]), np.inf),
        (np.array([1e308]), np.array([-1e308]), np.inf),
    ],
)
def test_how_far_apart_answers_are(found: object, wanted: object, off: float) -> None:
    assert _difference(found, wanted) == off


def test_what_an_error_is_put_down_to() -> None:
    said = {"replans": 0, "lost": 0, "as_planned": True, "up_bytes_per_s": {"planned": 1e6, "run": 1e6}}
    said |= {"error_of_machines": 0.1, "error_at_run_speed": -0.2}
    assert _cause(said) == "mostly the model"
    assert _cause(said | {"error_of_machines": -0.3}) == "mostly the machines"
    assert "uplink carried" in _cause(said | {"up_bytes_per_s": {"planned": 1e6, "run": 0.5e6}})
    for changed in ({"replans": 1}, {"lost": 1}, {"as_planned": False}):
        assert _cause(said | changed) == "what ran is not what was predicted"
