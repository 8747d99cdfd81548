"""Models made for pricing messages: convolutions, as many as take so long, and the same behind a message of a given size."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from partita.offload.capture.onnx_model import OnnxModel

CHANNELS, SIDE = 64, 56  #: of each convolution


def computing(layers: int) -> OnnxModel:
    """So many convolutions, each with 0.15 MB of weights and 0.8 MB of output. The weights are products that a session makes when it is
    built: a model of 100 layers goes up a slow link in 50 kB."""
    shape = [1, CHANNELS, SIDE, SIDE]
    names = ["x", *(f"y{k}" for k in range(layers))]
    nodes = [helper.make_node("Mul", ["w", f"s{k}"], [f"w{k}"], f"w{k}") for k in range(layers)]
    nodes += [
        helper.make_node("Conv", [a, f"w{k}"], [b], b, pads=[1, 1, 1, 1]) for k, (a, b) in enumerate(pairwise(names))
    ]
    # an output is the mean of nine pixels of all inputs, or a little more: as large as it, however many layers
    columns = {"w": np.full((CHANNELS, 1, 3, 3), 1 / (9 * CHANNELS))}
    columns |= {f"s{k}": np.full((1, CHANNELS, 1, 1), 1 + 1e-4 * k) for k in range(layers)}
    weights = [numpy_helper.from_array(column.astype(np.float32), name) for name, column in columns.items()]
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n in (names[0], names[-1])]
    return OnnxModel.of(helper.make_graph(nodes, "computing", ends[:1], ends[1:], weights))


def behind_a_message(model: OnnxModel, floats: int) -> OnnxModel:
    """The same work, begun with one number of so many that are sent."""
    graph = onnx.load_from_string(model.data).graph
    start, end = graph.input[0], graph.output[0]
    shape = [d.dim_value for d in start.type.tensor_type.shape.dim]
    first = [
        helper.make_node("ReduceMax", ["message"], ["number"], name="max", keepdims=1),
        helper.make_node("Expand", ["number", "shape"], [start.name], name="begin"),
    ]
    last = helper.make_node("ReduceMax", [end.name], ["y"], name="end", keepdims=1)
    behind = helper.make_graph(
        [*first, *graph.node, last],
        "behind a message",
        [helper.make_tensor_value_info("message", TensorProto.FLOAT, [floats])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1] * len(shape))],
        [*graph.initializer, numpy_helper.from_array(np.array(shape, np.int64), "shape")],
    )
    return OnnxModel.of(behind)
