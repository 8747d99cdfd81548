"""An ONNX model in one form, whoever wrote it: what is hashed, sent to a server and cut.

    local functions inlined                     a cut sees operators, not calls
    initialisers are no inputs                  IR version 4 and later; older files list both
    a first dimension with a name becomes 1     a job is one inference
    what no output needs is dropped             nodes, initialisers, notes of shapes

The form of a model in this form is the same, byte for byte.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import onnx
from google.protobuf.message import Message
from onnx import inliner

from partita.errors import CaptureError, sentence_of
from partita.files import read_bytes

DOMAINS = ("", "ai.onnx", "ai.onnx.ml")  #: operators that ONNX defines
MOST_NODES = 1_000_000
OLDEST_IR = 4  #: from here on an initialiser need not be an input
IR = 8  #: what older files are lifted to: every ONNX Runtime of the last years reads it


def read(path: str | Path) -> onnx.ModelProto:
    """The canonical form of a model file; weights in files beside it are taken in. Raises CaptureError."""
    model = parse(read_bytes(path, CaptureError), str(path))
    folder = Path(path).resolve().parent
    for tensor in list(_outside(model)):
        try:
            onnx.external_data_helper.load_external_data_for_tensor(tensor, str(folder))
        except Exception as error:
            raise _no_weights(str(path), tensor) from error
        tensor.ClearField("external_data")
        tensor.ClearField("data_location")
    return canonical(model, str(path))


def _outside(message: Message) -> Iterator[onnx.TensorProto]:
    """The tensors whose values lie in another file, at every depth: weights, attributes, sub-graphs, functions, sparse ones."""
    if isinstance(message, onnx.TensorProto):
        if message.data_location == onnx.TensorProto.EXTERNAL or message.external_data:
            yield message
        return
    for field, value in message.ListFields():
        if field.message_type is not None:
            for part in [value] if isinstance(value, Message) else value:
                yield from _outside(part)


def parse(data: bytes, name: str) -> onnx.ModelProto:
    """The model in the bytes, as it is. Raises CaptureError where they hold none."""
    try:
        model = onnx.load_model_from_string(data)
    except Exception as error:  # protobuf's DecodeError, which onnx does not pass on by name
        raise CaptureError(
            f"{name} is no ONNX model: its bytes do not parse", hint="export or copy it again"
        ) from error
    if not model.graph.node:
        raise CaptureError(f"{name} is no ONNX model: it has no nodes", hint="export or copy it again")
    return model


def canonical(model: onnx.ModelProto, name: str) -> onnx.ModelProto:
    """The canonical form. Raises CaptureError for a model that is damaged, that would read other files, or that has
    operators that ONNX does not define."""
    outside = next(_outside(model), None)
    if outside is not None:
        raise _no_weights(name, outside)
    if model.functions:
        _refuse_growth(model, name)
        model = inliner.inline_local_functions(model)
    _refuse_custom(model, name)
    kept = onnx.ModelProto(ir_version=model.ir_version if model.ir_version >= OLDEST_IR else IR)
    kept.opset_import.extend(sorted(model.opset_import, key=lambda o: o.domain))
    kept.graph.name = model.graph.name or "model"
    _fill(kept.graph, model.graph)
    _one_inference(kept.graph)
    _check(kept, name)
    return kept


def _no_weights(name: str, tensor: onnx.TensorProto) -> CaptureError:
    place = next((e.value for e in tensor.external_data if e.key == "location"), "?")
    return CaptureError(
        f"{name}: the values {tensor.name!r} lie in another file, {place!r}, which is not here to be read",
        hint="copy that file too, or save the model with its weights inside",
    )


def _refuse_custom(model: onnx.ModelProto, name: str) -> None:
    odd = sorted({f"{n.domain}.{n.op_type}" for n in _nodes(model.graph.node) if n.domain not in DOMAINS})
    if odd:
        raise CaptureError(
            f"{name} has operators that ONNX does not define: {', '.join(odd[:6])}",
            hint="export the model without custom operators",
        )


def _nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """The nodes, and those of their sub-graphs."""
    for node in nodes:
        yield node
        for attribute in node.attribute:
            for graph in (attribute.g, *attribute.graphs):
                yield from _nodes(graph.node)


def _refuse_growth(model: onnx.ModelProto, name: str) -> None:
    """Functions that call functions can stand for more nodes than any memory holds: they are counted first."""
    bodies = {(f.domain, f.name): f.node for f in model.functions}
    sizes: dict[tuple[str, str], int] = {}

    def size(nodes: Iterable[onnx.NodeProto]) -> int:
        return sum(called((n.domain, n.op_type)) for n in _nodes(nodes))

    def called(function: tuple[str, str]) -> int:
        if function not in bodies:
            return 1
        if function not in sizes:
            sizes[function] = MOST_NODES  # until it is known: a function that calls itself never ends
            sizes[function] = size(bodies[function])
        return sizes[function]

    if size(model.graph.node) >= MOST_NODES:
        raise CaptureError(
            f"{name} has {MOST_NODES} nodes or more once its functions are written out", hint="export a smaller model"
        )


def _fill(kept: onnx.GraphProto, graph: onnx.GraphProto) -> None:
    """Copy inputs, outputs, and the nodes and initialisers that an output needs, in the file's order."""
    constants = {t.name for t in graph.initializer} | {t.values.name for t in graph.sparse_initializer}
    kept.input.extend(i for i in graph.input if i.name not in constants)
    kept.output.extend(graph.output)
    needed = {o.name for o in graph.output}
    nodes = []
    for node in reversed(graph.node):
        if needed.intersection(node.output):
            nodes.append(node)
            needed.update(reads(node))
    kept.node.extend(reversed(nodes))
    kept.initializer.extend(t for t in graph.initializer if t.name in needed)
    kept.sparse_initializer.extend(t for t in graph.sparse_initializer if t.values.name in needed)


def reads(node: onnx.NodeProto) -> Iterator[str]:
    """Names of the values that a node reads, those that its sub-graphs (If, Loop, Scan) take from outside among them."""
    yield from (i for i in node.input if i)
    for attribute in node.attribute:
        for graph in [attribute.g] if attribute.HasField("g") else attribute.graphs:
            yield from _from_outside(graph)


def _from_outside(graph: onnx.GraphProto) -> Iterator[str]:
    inside = {i.name for i in graph.input} | {t.name for t in graph.initializer}
    inside.update(o for n in graph.node for o in n.output)
    yield from (r for n in graph.node for r in reads(n) if r not in inside)
    yield from (o.name for o in graph.output if o.name not in inside)


def _one_inference(graph: onnx.GraphProto) -> None:
    """Give 1 to a first dimension that has no size, wherever its name occurs."""
    firsts = [i.type.tensor_type.shape.dim[0] for i in graph.input if i.type.tensor_type.shape.dim]
    names = {d.dim_param for d in firsts if d.dim_param}
    for value in (*graph.input, *graph.output):
        for k, d in enumerate(value.type.tensor_type.shape.dim):
            if d.dim_param in names or (k == 0 and not d.dim_value and not d.dim_param and value in graph.input):
                d.dim_value = 1


def _check(model: onnx.ModelProto, name: str) -> None:
    try:
        onnx.checker.check_model(model)
    except (onnx.checker.ValidationError, ValueError) as error:
        raise CaptureError(f"{name} is damaged: {sentence_of(error)}", hint="export or copy it again") from error
