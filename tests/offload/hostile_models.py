"""ONNX models that nobody wants on a server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

FLOAT, BOOL, INT = TensorProto.FLOAT, TensorProto.BOOL, TensorProto.INT64


def made(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, Sequence[int]],
    outputs: Mapping[str, Sequence[Any]],
    constants: Mapping[str, Any] | None = None,
    functions: Sequence[onnx.FunctionProto] = (),
    domains: Sequence[str] = ("",),
) -> onnx.ModelProto:
    weights = [numpy_helper.from_array(np.asarray(v), k) for k, v in (constants or {}).items()]
    ends = [[helper.make_tensor_value_info(n, FLOAT, s) for n, s in side.items()] for side in (inputs, outputs)]
    graph = helper.make_graph(list(nodes), "hostile", *ends, weights)
    opsets = [helper.make_opsetid(d, 17 if not d else 1) for d in domains]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8, functions=list(functions))


def outside(place: str, name: str = "secret") -> TensorProto:
    """A tensor whose values lie in a file."""
    tensor = TensorProto(name=name, dims=[1], data_type=FLOAT, data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value=place)
    return tensor


def reads_a_file(place: str) -> dict[str, onnx.ModelProto]:
    """Where the tensor hides -> a model that adds what lies in a file to its input."""
    x, y = {"x": [1]}, {"y": [1]}
    add = helper.make_node("Add", ["x", "c"], ["y"])
    constant = helper.make_node("Constant", [], ["c"], value=outside(place))
    weight = made([add], x, y)
    weight.graph.initializer.append(outside(place, "c"))
    values = helper.make_sparse_tensor(outside(place, "c"), numpy_helper.from_array(np.array([0])), [1])
    sparse = made([add], x, y)
    sparse.graph.sparse_initializer.append(values)
    inner = helper.make_graph([constant], "then", [], [helper.make_tensor_value_info("c", FLOAT, [1])])
    own = helper.make_graph([], "else", [], [helper.make_tensor_value_info("c", FLOAT, [1])], [outside(place, "c")])
    branch = helper.make_node("If", ["yes"], ["c"], then_branch=inner, else_branch=own)
    deeper = helper.make_graph([branch], "deeper", [], [helper.make_tensor_value_info("c", FLOAT, [1])])
    deep = helper.make_node("If", ["yes"], ["c"], then_branch=deeper, else_branch=deeper)
    function = helper.make_function("f", "F", ["x"], ["y"], [constant, add], [helper.make_opsetid("", 17)])
    unsaid = outside(place, "c")
    unsaid.ClearField("data_location")
    plain = made([add], x, y)
    plain.graph.initializer.append(unsaid)
    return {
        "weight": weight,
        "weight that does not say so": plain,
        "constant": made([constant, add], x, y),
        "sparse weight": sparse,
        "sparse constant": made([helper.make_node("Constant", [], ["c"], sparse_value=values), add], x, y),
        "branch": made([branch, add], x, y, {"yes": True}),
        "branch of a branch": made([deep, add], x, y, {"yes": True}),
        "function": made([helper.make_node("F", ["x"], ["y"], domain="f")], x, y, {}, [function], ["", "f"]),
    }


def endless(more: str = "first") -> onnx.ModelProto:
    """Adds its input to itself 2^62 times. Models with another `more` have another hash."""
    body = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["on"]), helper.make_node("Add", ["v", "v"], ["w"])],
        "body",
        [helper.make_tensor_value_info(n, t, s) for n, t, s in (("i", INT, []), ("go", BOOL, []), ("v", FLOAT, [1]))],
        [helper.make_tensor_value_info(n, t, s) for n, t, s in (("on", BOOL, []), ("w", FLOAT, [1]))],
    )
    relu, loop = (
        helper.make_node("Relu", ["x"], ["r"], more),
        helper.make_node("Loop", ["n", "go0", "r"], ["y"], body=body),
    )
    return made([relu, loop], {"x": [1]}, {"y": [1]}, {"n": np.int64(2**62), "go0": True})


def gluttonous(numbers: int = 10**10) -> onnx.ModelProto:
    """Makes so many numbers out of one."""
    nodes = [
        helper.make_node("Relu", ["x"], ["r"], "relu"),
        helper.make_node("Expand", ["r", "s"], ["e"], "expand"),
        helper.make_node("ReduceSum", ["e"], ["y"], "sum", keepdims=0),
    ]
    return made(nodes, {"x": [1]}, {"y": []}, {"s": np.array([numbers])})


def talkative(numbers: int) -> onnx.ModelProto:
    """Answers one number with so many."""
    nodes = [helper.make_node("Expand", ["x", "s"], ["y"], "expand")]
    return made(nodes, {"x": [1]}, {"y": [numbers]}, {"s": np.array([numbers])})


def doubling(depth: int = 40) -> onnx.ModelProto:
    """Function k calls function k - 1 twice: 2^depth nodes in a few kilobytes."""
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("f", 1)]
    functions = []
    for k in range(depth):
        call = ("Relu", "") if k == 0 else (f"F{k - 1}", "f")
        nodes = [helper.make_node(call[0], [a], [b], domain=call[1]) for a, b in (("x", "m"), ("m", "y"))]
        functions.append(helper.make_function("f", f"F{k}", ["x"], ["y"], nodes, opsets))
    call = helper.make_node(f"F{depth - 1}", ["x"], ["y"], domain="f")
    return made([call], {"x": [1]}, {"y": [1]}, {}, functions, ["", "f"])
