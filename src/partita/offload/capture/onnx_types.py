"""Shapes and types of a model's values, as far as ONNX can infer them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto

from partita.errors import CaptureError, sentence_of

#: Numbers of which numpy has arrays that ONNX Runtime takes and gives: not bfloat16, none of less than a byte.
_ARRAYS = {
    *(TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BOOL),
    *(TensorProto.INT8, TensorProto.INT16, TensorProto.INT32, TensorProto.INT64),
    *(TensorProto.UINT8, TensorProto.UINT16, TensorProto.UINT32, TensorProto.UINT64),
}


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor of a model."""

    name: str
    shape: tuple[int, ...] | None  #: None: not known before it is computed
    element: int | None  #: ONNX's number of its type; None: not known, or no tensor

    @property
    def dtype(self) -> str | None:
        """numpy's name of its type, e.g. "float32"; None where it is no array of numbers: it cannot cross a cut."""
        if self.element not in _ARRAYS:
            return None
        return str(np.dtype(onnx.helper.tensor_dtype_to_np_dtype(self.element)).name)

    @property
    def strange(self) -> bool:
        """Whether it is a tensor that cannot enter or leave a model; text can, as an array of objects."""
        return self.dtype is None and self.element not in (TensorProto.STRING, None)

    @property
    def type_name(self) -> str:
        """ONNX's, in lower case."""
        return str(TensorProto.DataType.Name(self.element or 0)).lower()

    @property
    def size_bytes(self) -> float | None:
        """None where shape or type are not known, or it is text."""
        if self.shape is None or self.element in (None, TensorProto.STRING):
            return None
        return float(math.prod(self.shape) * onnx.helper.tensor_dtype_to_np_dtype(self.element).itemsize)

    @property
    def array_bytes(self) -> float | None:
        """What it weighs where it crosses a cut; None where it cannot: shape or type are not known, or it is no array of numbers."""
        return None if self.dtype is None else self.size_bytes

    def info(self) -> onnx.ValueInfoProto:
        """As an input or output of a model. Raises ValueError where its type is not known."""
        if self.element is None:
            raise ValueError(f"{self.name!r} has no known type")
        return onnx.helper.make_tensor_value_info(self.name, self.element, self.shape)


def refuse_strange(model: str, values: Iterable[Value]) -> None:
    """Raises CaptureError where one cannot enter or leave a model."""
    for v in values:
        if v.strange:
            raise CaptureError(
                f"{model}: {v.name!r} is of {v.type_name}: numpy has no arrays of it that ONNX Runtime takes and gives",
                hint="cast it inside the model, from or to another type",
            )


def value_of(name: str, shape: Sequence[object], type_name: str) -> Value:
    """Of what ONNX Runtime says of an input or output: `type_name` is e.g. "tensor(float)"."""
    kind, _, element = type_name.removesuffix(")").partition("(")
    number = dict(TensorProto.DataType.items()).get(element.upper()) if kind == "tensor" else None
    sizes = tuple(n for n in shape if isinstance(n, int) and n >= 0)
    return Value(name, sizes if len(sizes) == len(shape) else None, number)


def types_of(model: onnx.ModelProto, name: str) -> dict[str, Value]:
    """Name -> what is known of a value, for inputs, outputs and whatever nodes make. Raises CaptureError on a contradiction.

    Weights go into the inference by shape only, so that it costs no copy of them.
    """
    try:
        inferred = onnx.shape_inference.infer_shapes(_light(model), check_type=True, data_prop=True)
    except Exception as error:  # onnx.shape_inference.InferenceError, and RuntimeError from below it
        raise CaptureError(
            f"{name}: its shapes contradict each other: {sentence_of(error)}", hint="export it again"
        ) from error
    infos = (*inferred.graph.value_info, *inferred.graph.input, *inferred.graph.output)
    return {v.name: _value(v) for v in infos}


def _value(info: onnx.ValueInfoProto) -> Value:
    tensor = info.type.tensor_type
    element = tensor.elem_type if info.type.HasField("tensor_type") and tensor.elem_type else None
    dims = tensor.shape.dim
    known = tensor.HasField("shape") and all(d.HasField("dim_value") and d.dim_value >= 0 for d in dims)
    return Value(info.name, tuple(d.dim_value for d in dims) if known else None, element)


LARGEST_SHAPE = 1024  #: elements of a constant that may be a shape or an axis; larger ones are weights


def _light(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with its weights as inputs: shape inference reads the values of small constants only."""
    light = onnx.ModelProto(ir_version=model.ir_version, opset_import=model.opset_import)
    source, graph = model.graph, light.graph
    graph.name = source.name
    graph.node.extend(source.node)
    graph.input.extend(source.input)
    graph.output.extend(source.output)
    graph.sparse_initializer.extend(source.sparse_initializer)
    for t in source.initializer:
        if math.prod(t.dims) <= LARGEST_SHAPE:
            graph.initializer.append(t)
        else:
            graph.input.append(onnx.helper.make_tensor_value_info(t.name, t.data_type, list(t.dims)))
    return light
