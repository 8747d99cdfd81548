"""Times of inference models: all time has a task, measurements are kept, JOBS.toml is checked at the door."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from partita.cli import main
from partita.errors import CostError, JobError
from partita.nouns.offload import OffloadLink, OffloadProblem
from partita.offload.capture.jobs import read_jobs
from partita.offload.capture.onnx_model import OnnxModel
from partita.offload.measure.cache import cached_times
from partita.offload.measure.cuts import cut_points, fitted
from partita.offload.measure.inference import InferenceTimes, measure_model
from partita.offload.measure.link import measure_link
from partita.offload.measure.profile import task_of_kernels

LIGHT = Path(onnx.__file__).parent / "backend/test/data/light"


@pytest.fixture(scope="module")
def squeezenet() -> OnnxModel:
    return OnnxModel.read(LIGHT / "light_squeezenet.onnx")


@pytest.fixture(scope="module")
def times(squeezenet: OnnxModel) -> InferenceTimes:
    return measure_model(squeezenet, budget_s=1.0)


def test_the_tasks_share_the_whole_time(squeezenet: OnnxModel, times: InferenceTimes) -> None:
    assert list(times.tasks) == [t.id for t in squeezenet.graph.tasks]
    assert sum(times.seconds.values()) == pytest.approx(times.whole.seconds)
    assert times.whole.low <= times.whole.seconds <= times.whole.high
    assert times.cpu_s > 0
    work = dict.fromkeys(("Conv", "Relu"), 0.0)
    for task in squeezenet.graph.tasks:
        if task.name in work:
            work[task.name] += times.seconds[task.id]
    assert work["Conv"] > times.whole.seconds / 2  # it is nearly all of SqueezeNet's arithmetic
    assert work["Relu"] == 0.0  # fused into the convolutions


def test_cut_points_are_crossed_by_one_tensor(squeezenet: OnnxModel) -> None:
    equal = np.ones(len(squeezenet.graph))
    points = cut_points(squeezenet, equal, 8)
    assert points == sorted(set(points))
    assert 4 <= len(points) <= 8
    for k in points:
        assert len(squeezenet.halves(frozenset(squeezenet.tasks_topological[:k])).crossing) == 1


def test_tasks_sum_to_what_halves_take() -> None:
    seconds, halves = np.array([1.0, 2.0, 0.0, 4.0, 3.0]), {2: 0.5, 3: 0.6}
    first = fitted(seconds, halves, "device").cumsum()
    assert first[[1, 2, 4]] == pytest.approx([5.0, 6.0, 10.0])
    last = fitted(seconds, halves, "server")[::-1].cumsum()[::-1]
    assert last[[0, 2, 3]] == pytest.approx([10.0, 5.0, 5.0])  # the shorter suffix is not slower than the longer one
    assert (fitted(seconds, {}, "device") == seconds).all()


def test_times_survive_a_file(times: InferenceTimes) -> None:
    assert InferenceTimes.from_json(json.loads(json.dumps(times.to_json()))) == times
    with pytest.raises(CostError, match="is damaged"):
        InferenceTimes.from_json({"format": "partita-inference", "version": 1})


def test_a_kernel_goes_to_the_task_that_it_executes() -> None:
    """Conv -> Relu fused and named after the last; a change of layout; a kernel named after its node."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], name="conv"),
        helper.make_node("Relu", ["c"], ["r_1"], name="relu"),
        helper.make_node("Gemm", ["r_1", "v"], ["g"], name="gemm"),
        helper.make_node("Relu", ["g"], ["y"], name="last"),
    ]
    shapes = {"x": [1, 2, 1, 1], "w": [2, 2, 1, 1], "v": [2, 2]}
    infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in shapes.items()]
    answer = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "fused", infos, [answer])
    opsets = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    for info in model.graph.output:
        info.type.tensor_type.shape.dim.add().dim_value = 1
        info.type.tensor_type.shape.dim.add().dim_value = 2
    del model.graph.node[2].input[:]
    model.graph.node[2].input.extend(["flat", "v"])
    model.graph.node.insert(2, helper.make_node("Flatten", ["r_1"], ["flat"], name="flatten"))
    found = OnnxModel.from_bytes(model.SerializeToString(), "fused")
    kernels = [("ReorderInput", "ReorderInput"), ("r_1_nchwc", "Conv"), ("ReorderOutput_token_7", "ReorderOutput")]
    kernels += [("flatten", "Flatten"), ("fused gemm", "FusedGemm"), ("last", "Relu")]
    ids = [t.id for t in found.graph.tasks]
    assert [ids[t] for t in task_of_kernels(found, kernels)] == ["conv", "conv", "conv", "flatten", "gemm", "last"]


def test_a_model_is_measured_once(squeezenet: OnnxModel, tmp_path: Path) -> None:
    first, fresh = cached_times(squeezenet, tmp_path / "new", 0.3)
    assert fresh
    assert cached_times(squeezenet, tmp_path / "new", 0.3) == (first, False)
    (file,) = (tmp_path / "new").iterdir()
    file.write_text("{")
    assert cached_times(squeezenet, tmp_path / "new", 0.3)[1]


def test_a_link_has_medians_and_extremes() -> None:
    seen = iter([OffloadLink(1.0, 5.0, 0.3), OffloadLink(3.0, 4.0, 0.1), OffloadLink(2.0, 6.0, 0.2)])
    found = measure_link(lambda: next(seen), 3)
    assert found.link == OffloadLink(2.0, 5.0, 0.2)
    assert (found.low, found.high) == (OffloadLink(1.0, 4.0, 0.1), OffloadLink(3.0, 6.0, 0.3))


def test_jobs_from_a_file(tmp_path: Path) -> None:
    model = LIGHT / "light_squeezenet.onnx"
    frame = np.ones((1, 3, 224, 224), np.float32)
    np.savez(tmp_path / "frame.npz", data_0=frame)
    path = tmp_path / "jobs.toml"
    path.write_text(
        f'[[job]]\nmodel = "{model}"\ncount = 2\n[[job]]\nmodel = "{model}"\nname = "camera"\n'
        'input = "frame.npz"\nrelease_s = 1\ndeadline_s = 2.5\n'
    )
    jobs = read_jobs(path)
    assert [j.name for j in jobs] == ["light_squeezenet-0", "light_squeezenet-1", "camera"]
    assert jobs[0].model is jobs[2].model
    assert (jobs[0].input["data_0"] != jobs[1].input["data_0"]).any()
    assert (jobs[2].input["data_0"] == frame).all()
    assert (jobs[2].release_s, jobs[2].deadline_s) == (1.0, 2.5)


def test_faults_of_a_jobs_file_are_told_at_once(tmp_path: Path) -> None:
    path = tmp_path / "jobs.toml"
    path.write_text('[[job]]\ncount = 0\nmodel = "a.onnx"\n[[job]]\ncolour = "red"\n[[job]]\nmodel = 3\n')
    with pytest.raises(JobError, match=r"count = 0.*unknown key 'colour'; job 1: it names no model; job 2: model = 3"):
        read_jobs(path)
    path.write_text('[[job]]\nmodel = "a.onnx"\n[[job]]\nmodel = "b.onnx"\n')
    with pytest.raises(JobError, match=r"job 0: .*a\.onnx cannot be read.*job 1: .*b\.onnx cannot be read"):
        read_jobs(path)
    path.write_text("")
    with pytest.raises(JobError, match="has no jobs"):
        read_jobs(path)


def test_the_verb_writes_costs_for_the_planner(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, out = str(LIGHT / "light_squeezenet.onnx"), tmp_path / "costs.json"
    words = ["offload", "measure", model, "--cache", str(tmp_path), "--budget-s", "0.4"]
    assert main(words) == 2
    assert "hint: give --server HOST:PORT" in capsys.readouterr().err
    assert main([*words, "--server-speedup", "4", "--link", "2.5e6,5e6,0.01", "-o", str(out)]) == 0
    assert "light_squeezenet" in capsys.readouterr().out
    problem = OffloadProblem.read(out)
    assert problem.link == OffloadLink(2.5e6, 5e6, 0.01)
    assert [len(j.tasks) for j in problem.jobs] == [66]
    assert all(t.device_s == pytest.approx(4 * t.server_s) for t in problem.jobs[0].tasks)
