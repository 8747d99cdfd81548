"""ONNX models: tasks, cuts, halves that together equal the whole, and files that cannot be used."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from offload.hostile_models import doubling, reads_a_file
from onnx import TensorProto, helper, numpy_helper

from partita.errors import CaptureError
from partita.nouns.graph import TaskGraph
from partita.offload.capture.cut import NEVER_S, crossing
from partita.offload.capture.onnx_inputs import random_array, random_inputs
from partita.offload.capture.onnx_model import OnnxModel
from partita.offload.capture.onnx_weights import with_random_weights
from partita.offload.measure.cuts import feeds_of
from partita.offload.measure.in_turn import measure_in_turn
from partita.offload.onnx_session import Session

LIGHT = Path(onnx.__file__).parent / "backend/test/data/light"
TASKS = {
    "bvlc_alexnet": (24, "chain"),
    "densenet121": (668, "dag"),
    "inception_v1": (143, "dag"),
    "inception_v2": (371, "dag"),
    "resnet50": (176, "dag"),
    "shufflenet": (203, "dag"),
    "squeezenet": (66, "dag"),
    "vgg19": (46, "chain"),
    "zfnet512": (22, "chain"),
}
LARGE = {"bvlc_alexnet", "vgg19", "zfnet512"}


def light(name: str) -> OnnxModel:
    return OnnxModel.read(LIGHT / f"light_{name}.onnx")


def answers(data: bytes, feeds: dict[str, Any]) -> dict[str, Any]:
    return Session(data, "test").run(feeds)


def crossing_bytes(graph: TaskGraph, device: frozenset[str]) -> float:
    return float(graph.size_bytes[crossing(graph, device)].sum())


def in_two(model: OnnxModel, device: frozenset[str], feeds: dict[str, Any]) -> dict[str, Any]:
    """The answers of both halves, checking that what crosses is what was announced."""
    halves = model.halves(device)
    made = answers(halves.device, feeds) if halves.device else {}
    assert set(halves.crossing) <= set(made)
    assert sum(made[t].nbytes for t in halves.crossing) == crossing_bytes(model.graph, device)
    brought = {**feeds, **{t: made[t] for t in halves.crossing}}
    return {**made, **(answers(halves.server, brought) if halves.server else {})}


def assert_equal_split(model: OnnxModel, device: frozenset[str], feeds: dict[str, Any], whole: dict[str, Any]) -> None:
    found = in_two(model, device, feeds)
    for name, value in whole.items():
        np.testing.assert_allclose(found[name], value, atol=1e-5, rtol=0)


def random_downset(model: OnnxModel, chance: np.random.Generator) -> frozenset[str]:
    """A downset drawn by closing some random tasks under predecessors."""
    graph = model.graph
    stack = chance.integers(0, len(graph), chance.integers(1, 4)).tolist()
    found: set[int] = set()
    while stack:
        t = stack.pop()
        if t not in found:
            found.add(t)
            stack += graph.predecessors.row(t).tolist()
    return frozenset(graph.tasks[t].id for t in found)


@pytest.mark.parametrize("name", TASKS)
def test_the_nine_graphs_are_captured_with_every_size(name: str) -> None:
    model = light(name)
    assert (len(model.graph), model.shape) == TASKS[name]
    assert model.layout.pinned == frozenset()
    assert model.input_bytes == 4 * 3 * 224 * 224
    assert [o.shape[1] for o in model.outputs if o.shape] == [1000]
    assert (model.graph.size_bytes > 0).all()
    ran = [n for nodes in model.layout.nodes for n in nodes]
    assert sorted([*ran, *model.layout.constants]) == list(range(len(model.proto.graph.node)))


@pytest.mark.parametrize("name", TASKS)
def test_the_canonical_form_is_its_own(name: str) -> None:
    model = light(name)
    again = OnnxModel.from_bytes(model.data, name)
    assert again.data == model.data
    assert again.hash == model.hash
    assert again.graph.fingerprint == model.graph.fingerprint


@pytest.mark.parametrize("name", sorted(TASKS.keys() - LARGE))
def test_halves_equal_the_whole(name: str) -> None:
    model = with_random_weights(light(name))
    feeds = random_inputs(model, seed=1)
    whole = answers(model.data, feeds)
    value = whole[model.outputs[0].name].ravel()
    assert np.isfinite(value).all()
    assert (np.abs(value) > 1e-5).sum() > 20, "answers that differ by class"
    order, chance = model.tasks_topological, np.random.default_rng(2)
    for k in [0, *chance.integers(1, len(order), 3).tolist(), len(order)]:
        assert_equal_split(model, frozenset(order[:k]), feeds, whole)
    for _ in range(3):
        assert_equal_split(model, random_downset(model, chance), feeds, whole)


@pytest.mark.slow
@pytest.mark.parametrize("name", TASKS)
def test_halves_equal_the_whole_at_many_cuts(name: str) -> None:
    model = with_random_weights(light(name))
    feeds = random_inputs(model, seed=3)
    whole = answers(model.data, feeds)
    order, chance = model.tasks_topological, np.random.default_rng(4)
    cuts = range(len(order) + 1) if name == "squeezenet" else chance.integers(1, len(order), 6).tolist()
    for k in cuts:
        assert_equal_split(model, frozenset(order[:k]), feeds, whole)


def test_random_weights_depend_on_the_seed_alone() -> None:
    model = light("squeezenet")
    assert with_random_weights(model, 5).hash == with_random_weights(model, 5).hash
    assert with_random_weights(model, 5).hash != with_random_weights(model, 6).hash


def test_a_job_has_the_graphs_tasks_in_order_and_its_bytes() -> None:
    model = light("squeezenet")
    times = {t: float(k) for k, t in enumerate(model.tasks_topological)}
    job = model.offload_job(times, dict.fromkeys(times, 0.5))
    assert [t.id for t in job.tasks] == list(model.tasks_topological)
    assert [t.device_s for t in job.tasks] == list(times.values())
    sizes = {t.id: t.output_bytes for t in job.tasks}
    assert sum(sizes.values()) == model.graph.size_bytes.sum()
    with pytest.raises(CaptureError, match="66 of 66 have none"):
        model.offload_job({}, {})


# ---- small models, made here -------------------------------------------------------------------------------------------


def made(
    nodes: list[Any], inputs: list[Any], outputs: list[Any], weights: dict[str, Any] | None = None, opset: int = 17
) -> bytes:
    """A model of these nodes; inputs and outputs are (name, shape)."""
    value = [[helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in side] for side in (inputs, outputs)]
    graph = helper.make_graph(
        nodes, "small", *value, [numpy_helper.from_array(w, n) for n, w in (weights or {}).items()]
    )
    domains = {n.domain for n in nodes} - {""}
    opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(d, 1) for d in domains)]
    data: bytes = helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()
    return data


def test_inputs_and_outputs_on_both_sides_of_a_cut() -> None:
    nodes = [
        helper.make_node("Relu", ["x"], ["early"], name="first"),
        helper.make_node("Split", ["early"], ["p", "q"], name="split", axis=1),
        helper.make_node("Mul", ["p", "y"], ["m"], name="mul"),
        helper.make_node("Add", ["m", "q"], ["late"], name="add"),
    ]
    model = OnnxModel.from_bytes(
        made(nodes, [("x", [1, 4]), ("y", [1, 2])], [("early", [1, 4]), ("late", [1, 2])], opset=13), "two"
    )
    feeds = random_inputs(model)
    whole = answers(model.data, feeds)
    for device in ((), ("first",), ("first", "split"), ("first", "split", "mul"), ("first", "split", "mul", "add")):
        assert_equal_split(model, frozenset(device), feeds, whole)
    with pytest.raises(CaptureError, match="'mul' on the device reads 'split' on the server"):
        model.halves(frozenset({"first", "mul"}))
    with pytest.raises(CaptureError, match="unknown task 'nobody'"):
        model.halves(frozenset({"nobody"}))


def test_constants_are_no_tasks_and_lie_on_both_sides() -> None:
    nodes = [
        helper.make_node("Identity", ["w"], ["same"]),
        helper.make_node("Add", ["x", "same"], ["a"]),
        helper.make_node("Mul", ["a", "same"], ["b"]),
        helper.make_node("Exp", ["x"], ["nobody wants it"]),
    ]
    weights = {"w": np.array([1.0, 2.0], np.float32)}
    model = OnnxModel.from_bytes(made(nodes, [("x", [1, 2])], [("b", [1, 2])], weights), "constants")
    assert model.tasks_topological == ("Add_0", "Mul_1")
    assert [t.parameter_bytes for t in model.graph.tasks] == [8.0, 8.0]
    feeds = random_inputs(model)
    assert_equal_split(model, frozenset({"Add_0"}), feeds, answers(model.data, feeds))


def dynamic(unknown_output: bool) -> bytes:
    """x -> relu -> nonzero (unknown) -> cast -> reduce -> add; a shortcut relu -> reduced -> add."""
    nodes = [
        helper.make_node("Relu", ["x"], ["r"], name="relu"),
        helper.make_node("NonZero", ["r"], ["where"], name="nonzero"),
        helper.make_node("Cast", ["where"], ["f"], name="cast", to=TensorProto.FLOAT),
        helper.make_node("ReduceSum", ["f"], ["s"], name="sum", keepdims=0),
        helper.make_node("Add", ["s", "r"], ["y"], name="add"),
    ]
    return made(nodes, [("x", [1, 4])], [("f", [2, None])] if unknown_output else [("y", [1, 4])])


def test_no_cut_goes_through_a_tensor_of_unknown_size() -> None:
    model = OnnxModel.from_bytes(dynamic(False), "dynamic")
    assert model.tasks_topological == ("relu", "nonzero", "add")  # nonzero, cast and sum are one
    feeds = random_inputs(model)
    for k in range(4):
        assert_equal_split(model, frozenset(model.tasks_topological[:k]), feeds, answers(model.data, feeds))


@pytest.mark.parametrize("strange", ["BFLOAT16", "INT4", "FLOAT8E4M3FN"])
def test_no_cut_goes_through_what_numpy_has_no_array_for(strange: str) -> None:
    """relu -> cast to it -> cast back -> exp."""
    nodes = [
        helper.make_node("Relu", ["x"], ["r"], name="relu"),
        helper.make_node("Cast", ["r"], ["s"], name="there", to=getattr(TensorProto, strange)),
        helper.make_node("Cast", ["s"], ["f"], name="back", to=TensorProto.FLOAT),
        helper.make_node("Exp", ["f"], ["y"], name="exp"),
    ]
    model = OnnxModel.from_bytes(made(nodes, [("x", [1, 4])], [("y", [1, 4])], opset=21), "strange")
    assert model.tasks_topological == ("relu", "there", "exp")
    feeds = random_inputs(model)
    for k in range(4):
        assert_equal_split(model, frozenset(model.tasks_topological[:k]), feeds, answers(model.data, feeds))
    ends = OnnxModel.from_bytes(made(nodes[:2], [("x", [1, 4])], [], opset=21), "ends")
    ends.proto.graph.output.append(helper.make_tensor_value_info("s", getattr(TensorProto, strange), [1, 4]))
    with pytest.raises(CaptureError, match=r"ends: 's' is of .*: numpy has no arrays of it"):
        ends.layout  # noqa: B018 - raises
    with pytest.raises(CaptureError, match=r"ends: 's' is of .*: numpy has no arrays of it"):
        random_array("ends", ends.types["s"], np.random.default_rng(0))


def test_an_answer_that_is_text_is_made_on_the_device() -> None:
    nodes = [
        helper.make_node("Relu", ["x"], ["a"], name="relu"),
        helper.make_node("Cast", ["a"], ["label"], to=TensorProto.STRING, name="label"),
    ]
    proto = OnnxModel.from_bytes(made(nodes[:1], [("x", [1, 2])], [("a", [1, 2])]), "text").proto
    proto.graph.node.append(nodes[1])
    proto.graph.output.append(helper.make_tensor_value_info("label", TensorProto.STRING, [1, 2]))
    model = OnnxModel.from_bytes(proto.SerializeToString(), "text")
    assert model.layout.pinned == {"label"}
    assert answers(model.data, random_inputs(model))["label"].dtype == object


def test_inputs_are_made_up_for_whatever_type_crosses() -> None:
    """Also of a server's half that ONNX Runtime describes itself."""
    for element in (TensorProto.UINT16, TensorProto.INT16, TensorProto.UINT64, TensorProto.BOOL, TensorProto.FLOAT16):
        nodes = [
            helper.make_node("Cast", ["x"], ["a"], to=element, name="there"),
            helper.make_node("Cast", ["a"], ["y"], to=TensorProto.FLOAT, name="back"),
        ]
        model = OnnxModel.from_bytes(made(nodes, [("x", [1, 4])], [("y", [1, 4])]), "cast")
        half = Session(model.half(frozenset(["there"]), "server"), "half")
        for feeds in (half.zeros(1e9), feeds_of(model, frozenset(["there"]), half, random_inputs(model), None)):
            assert feeds is not None
            assert feeds["a"].dtype == model.types["a"].dtype
            half.run(feeds)


def test_a_shape_that_crosses_is_what_the_device_makes_of_it() -> None:
    """Zeros are none: such a half is built without a run, and measured on real numbers."""
    nodes = [
        helper.make_node("Shape", ["x"], ["size"], name="size"),
        helper.make_node("Expand", ["one", "size"], ["wide"], name="expand"),
        helper.make_node("Reshape", ["wide", "size"], ["same"], name="reshape"),
        helper.make_node("Add", ["x", "same"], ["y"], name="add"),
    ]
    weights = {"one": np.array([1.0], np.float32)}
    model = OnnxModel.from_bytes(made(nodes, [("x", [2, 3])], [("y", [2, 3])], weights), "shapes")
    cut = frozenset(["size"])
    Session(model.half(cut, "server") or b"", "half").warm()
    assert len(measure_in_turn([(model, cut)], "server", 0.01).cpu_s) == 1


def test_a_scale_that_crosses_beside_a_picture_is_no_fault_of_a_half() -> None:
    """ONNX Runtime resizes nothing by zero, which is what a half is warmed with."""
    nodes = [
        helper.make_node("Relu", ["x"], ["a"], "relu"),
        helper.make_node("ReduceMax", ["x"], ["most"], "most", keepdims=0),
        helper.make_node("Div", ["most", "most"], ["one"], "one"),
        helper.make_node("Mul", ["one", "twice"], ["scales"], "scales"),
        helper.make_node("Resize", ["a", "", "scales"], ["y"], "resize"),
    ]
    weights = {"twice": np.array([1, 1, 2, 2], np.float32)}
    ends = [("x", [1, 1, 4, 4])], [("y", [1, 1, 8, 8])]
    model = OnnxModel.from_bytes(made(nodes, *ends, weights), "scales")
    cut = frozenset(model.tasks_topological) - {"resize"}
    half = Session(model.half(cut, "server") or b"", "half")
    assert len(half.inputs) == 2
    with pytest.raises(CaptureError):
        half.run(half.zeros(1e9) or {})
    half.warm()


def test_weights_of_four_bits_give_every_half_what_they_give_the_whole() -> None:
    chance, nodes, width = np.random.default_rng(0), list[Any](), 128
    for k in range(4):
        read = "x" if k == 0 else f"h{k - 1}"
        nodes += [
            helper.make_node("DequantizeLinear", [f"w{k}", f"s{k}"], [f"d{k}"], f"d{k}", axis=0, block_size=32),
            helper.make_node("MatMul", [read, f"d{k}"], [f"m{k}"], f"m{k}"),
            helper.make_node("Relu", [f"m{k}"], ["y" if k == 3 else f"h{k}"], f"h{k}"),
        ]
    scales = {f"s{k}": np.full((width // 32, width), 0.05, np.float32) for k in range(4)}
    proto = onnx.ModelProto.FromString(made(nodes, [("x", [1, width])], [("y", [1, width])], scales, opset=21))
    proto.ir_version = 10
    for k in range(4):
        four_bits = chance.integers(-8, 8, width * width).tolist()
        proto.graph.initializer.append(helper.make_tensor(f"w{k}", TensorProto.INT4, [width, width], four_bits))
    model = OnnxModel.from_bytes(proto.SerializeToString(), "four bits")
    feeds = random_inputs(model)
    whole = answers(model.data, feeds)
    for k in range(1, len(model.tasks_topological)):
        assert_equal_split(model, frozenset(model.tasks_topological[:k]), feeds, whole)


def test_what_onnx_runtime_cannot_compute_is_a_sentence() -> None:
    nodes = [helper.make_node("Gather", ["x", "far"], ["y"], name="gather")]
    model = OnnxModel.from_bytes(made(nodes, [("x", [4])], [("y", [1])], {"far": np.array([9])}), "far")
    with pytest.raises(CaptureError, match=r"test: ONNX Runtime .* cannot compute it: .*\[-4,3\]"):
        answers(model.data, random_inputs(model))


def test_an_answer_of_unknown_size_is_made_on_the_device() -> None:
    model = OnnxModel.from_bytes(dynamic(True), "dynamic")
    assert model.layout.pinned == {"nonzero"}
    times = dict.fromkeys(model.tasks_topological, 1.0)
    assert [t.server_s for t in model.offload_job(times, times).tasks] == [1.0, NEVER_S]


def test_where_nothing_is_known_there_is_one_task_for_the_device() -> None:
    nodes = [helper.make_node("Relu", ["x"], ["a"]), helper.make_node("Exp", ["a"], ["y"])]
    model = OnnxModel.from_bytes(made(nodes, [("x", [1, "length"])], [("y", [1, "length"])]), "unknown")
    assert len(model.graph) == 1
    assert model.layout.pinned == set(model.tasks_topological)
    with pytest.raises(CaptureError, match="the shape or type of its input 'x' is not known"):
        random_inputs(model)


def test_a_named_batch_is_one_inference() -> None:
    nodes = [helper.make_node("Relu", ["x"], ["a"]), helper.make_node("Exp", ["a"], ["y"])]
    model = OnnxModel.from_bytes(made(nodes, [("x", ["batch", 3])], [("y", ["batch", 3])]), "batch")
    assert model.inputs[0].shape == (1, 3)
    assert len(model.graph) == 2
    assert model.graph.size_bytes.tolist() == [12.0, 12.0]


def test_a_way_around_a_joined_part_joins_it() -> None:
    """a -(unknown)-> c and a -> b -> c: without b the joined task would read what it feeds."""
    nodes = [
        helper.make_node("NonZero", ["x"], ["where"], name="a"),
        helper.make_node("Shape", ["where"], ["n"], name="b"),
        helper.make_node("Expand", ["zero", "n"], ["e"], name="c"),
        helper.make_node("ReduceSum", ["e"], ["y"], name="d", keepdims=0),
    ]
    weights = {"zero": np.ones(1, np.float32)}
    model = OnnxModel.from_bytes(made(nodes, [("x", [1, 4])], [("y", [])], weights), "around")
    model.graph.order  # noqa: B018 - raises where there is a circle
    feeds = random_inputs(model)
    for k in range(len(model.graph) + 1):
        assert_equal_split(model, frozenset(model.tasks_topological[:k]), feeds, answers(model.data, feeds))


# ---- files that cannot be used -----------------------------------------------------------------------------------------


def test_damaged_files_are_a_sentence(tmp_path: Path) -> None:
    whole = (LIGHT / "light_squeezenet.onnx").read_bytes()
    for data in (b"", b"no model at all", whole[: len(whole) // 2]):
        path = tmp_path / "damaged.onnx"
        path.write_bytes(data)
        with pytest.raises(CaptureError, match=r"damaged\.onnx (is no ONNX model|is damaged)"):
            OnnxModel.read(path)
    with pytest.raises(CaptureError, match="cannot be read"):
        OnnxModel.read(tmp_path / "missing.onnx")


def test_custom_operators_are_named() -> None:
    data = made([helper.make_node("Fancy", ["x"], ["y"], domain="my.ops")], [("x", [1])], [("y", [1])])
    with pytest.raises(CaptureError, match=r"operators that ONNX does not define: my\.ops\.Fancy"):
        OnnxModel.from_bytes(data, "custom")


def test_weights_beside_the_file(tmp_path: Path) -> None:
    weights = {"w": np.arange(2000, dtype=np.float32)}
    data = made([helper.make_node("Add", ["x", "w"], ["y"])], [("x", [1, 2000])], [("y", [1, 2000])], weights)
    path = tmp_path / "model.onnx"
    onnx.save_model(onnx.load_model_from_string(data), path, save_as_external_data=True, location="weights.bin")
    assert OnnxModel.read(path).hash == OnnxModel.from_bytes(data, "model").hash
    (tmp_path / "weights.bin").unlink()
    with pytest.raises(CaptureError, match=r"the values 'w' lie in another file, 'weights\.bin'"):
        OnnxModel.read(path)


def test_an_output_that_nothing_computes_is_named() -> None:
    nodes = [helper.make_node("Relu", ["x"], ["y"])]
    with pytest.raises(CaptureError, match="no node computes the output 'x'"):
        OnnxModel.from_bytes(made(nodes, [("x", [1])], [("y", [1]), ("x", [1])]), "through").graph  # noqa: B018


@pytest.mark.parametrize("where", reads_a_file("weights.bin"))
def test_values_in_another_file_are_found_at_every_depth(where: str, tmp_path: Path) -> None:
    """In bytes that came from elsewhere they are refused; beside a file of one's own they are taken in."""
    place = tmp_path / "weights.bin"
    with pytest.raises(CaptureError, match="lie in another file"):
        OnnxModel.from_bytes(reads_a_file(str(place))[where].SerializeToString(), "hostile")
    model = reads_a_file("weights.bin")[where]
    (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(CaptureError, match="lie in another file"):
        OnnxModel.read(tmp_path / "model.onnx")
    place.write_bytes(np.array([3.5], np.float32).tobytes())
    taken = OnnxModel.read(tmp_path / "model.onnx")
    assert answers(taken.data, {"x": np.ones(1, np.float32)})["y"].tolist() == [4.5]


def test_functions_that_double_are_refused_before_they_are_written_out() -> None:
    with pytest.raises(CaptureError, match="1000000 nodes or more"):
        OnnxModel.from_bytes(doubling().SerializeToString(), "doubling")
    assert len(OnnxModel.from_bytes(doubling(3).SerializeToString(), "doubling").graph) == 8


def test_custom_operators_in_a_branch_are_named() -> None:
    model = reads_a_file("")["branch"]
    branch = next(a for a in model.graph.node[0].attribute if a.name == "then_branch").g
    branch.node[0].CopyFrom(helper.make_node("EPContext", [], ["c"], domain="com.microsoft"))
    del next(a for a in model.graph.node[0].attribute if a.name == "else_branch").g.initializer[:]
    with pytest.raises(CaptureError, match=r"com\.microsoft\.EPContext"):
        OnnxModel.from_bytes(model.SerializeToString(), "custom")
