"""Random weights for a model whose own weights say nothing.

Graphs are passed around without their weights: constants take their place, and every answer is the same. To see whether
two ways of executing such a graph agree, it needs weights whose answers differ from class to class: normal ones, scaled by
what a unit reads (He et al. 2015), so that values neither vanish nor explode over many layers.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import onnx

from partita.offload.capture.onnx_canonical import reads
from partita.offload.capture.onnx_model import OnnxModel

_Array = npt.NDArray[np.float32]


def with_random_weights(model: OnnxModel, seed: int = 0) -> OnnxModel:
    """The model with each of its 32-bit constants replaced by random ones that fit their reader; shapes stay.

    The same seed gives the same bytes.
    """
    chance = np.random.default_rng(seed)
    proto = onnx.ModelProto()
    proto.CopyFrom(model.proto)
    graph = proto.graph
    role = _roles(model)
    filled = {
        o for n in model.layout.constants if graph.node[n].op_type == "ConstantOfShape" for o in graph.node[n].output
    }
    shapes = {t.name: tuple(t.dims) for t in graph.initializer if t.data_type == onnx.TensorProto.FLOAT}
    shapes |= {o: model.types[o].shape or () for o in sorted(filled) if model.types[o].dtype == "float32"}
    replaced = {name: _draw(chance, shape, *role[name]) for name, shape in shapes.items() if name in role}
    nodes = [n for n in graph.node if not replaced.keys() & set(n.output)]
    kept = [t for t in graph.initializer if t.name not in replaced]
    del graph.node[:], graph.initializer[:]
    graph.node.extend(nodes)
    graph.initializer.extend([*kept, *(onnx.numpy_helper.from_array(v, name) for name, v in replaced.items())])
    return OnnxModel.from_bytes(proto.SerializeToString(), model.name)


def _roles(model: OnnxModel) -> dict[str, tuple[onnx.NodeProto, int]]:
    """Constant -> the node of a task that reads it, and as which input; seen through what only reshapes constants."""
    nodes, constants = model.proto.graph.node, set(model.layout.constants)
    role: dict[str, tuple[onnx.NodeProto, int]] = {}
    for n in reversed(range(len(nodes))):
        for k, value in enumerate(reads(nodes[n])):
            if n not in constants:
                role[value] = (nodes[n], k)
            elif nodes[n].output[0] in role:
                role.setdefault(value, role[nodes[n].output[0]])
    return role


def _draw(chance: np.random.Generator, shape: tuple[int, ...], reader: onnx.NodeProto, position: int) -> _Array:
    """Values for one constant. Factors are around 1/2 and variances around 1, so that sums over skips grow slowly."""
    if reader.op_type == "Mul" or (reader.op_type == "BatchNormalization" and position == 1):
        return chance.uniform(0.4, 0.8, shape).astype(np.float32)
    if reader.op_type == "BatchNormalization" and position == 4:
        return chance.uniform(0.5, 1.5, shape).astype(np.float32)
    spread = 0.1
    if position == 1 and shape and reader.op_type in ("Conv", "Gemm", "MatMul"):
        spread = math.sqrt(2 / _fan_in(shape, reader))
    return chance.standard_normal(shape, np.float32) * np.float32(spread)


def _fan_in(shape: tuple[int, ...], reader: onnx.NodeProto) -> int:
    if reader.op_type == "Conv":
        return max(1, math.prod(shape[1:]))
    turned = any(a.name == "transB" and a.i for a in reader.attribute)
    return max(1, shape[-1] if turned or len(shape) < 2 else shape[-2])
