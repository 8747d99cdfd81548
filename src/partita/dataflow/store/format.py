"""A result as bytes and back: a tree of plain values whose arrays, tables and tensors are parts in formats of their own.

    part 0 | part 1 | .. | index (JSON) | length of the index, 8 bytes | sha256 of all before, 32 bytes

The index has the key, the seconds that the result took, the tree, and of each part kind, place and size. Kinds: `npy` numpy
(without objects), `arrow` a pandas table as an IPC stream, `safetensors` torch tensors, `bytes`, and `pickle` for what has
no other form; who reads decides whether a pickle may be loaded at all (private.py). In the tree a value stands for itself
where JSON has it; {"$": KIND, ..} is one that JSON has not: a tuple, a set, a table with keys that are no text, a part.
"""

from __future__ import annotations

import hashlib
import io
import json
import pickle
import struct
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import IO, Any

import numpy as np

from partita.errors import BadInput, sentence_of
from partita.files import parse_json

MAGIC = "partita-result"
VERSION = 1
ALIGNED = 64  #: bytes: where parts begin, so that arrays can lie where they were read
MOST_LEVELS = 50  #: of JSON in each other that a tree has, below what is read (files.py); what is deeper is pickled
MOST_ITEMS = 1 << 20  #: of lists and tables in the tree; larger results are pickled whole
TAIL = struct.Struct("<Q32s")


class Damaged(BadInput):
    """A stored result that is not what was written."""


class NotHere(BadInput):
    """A stored result that is sound, and cannot be made in this process: its class is missing, or the device that it was on."""


class NeedsPickle(BadInput):
    """A result that only pickle can hold or read, where pickle is not allowed; the message says what and why."""


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of a result in a format of its own."""

    kind: str
    data: Callable[[IO[bytes]], object]  #: writes it


@dataclass(frozen=True, slots=True)
class Read:
    """A result that was read."""

    key: str
    value: Any
    seconds: float
    bytes: int


# ---- a value as a tree and parts


@dataclass
class _Taken:
    """Takes a value apart. `why_no_pickle`: "" where pickle is allowed."""

    why_no_pickle: str
    parts: list[Part] = field(default_factory=list)
    tensors: dict[str, Any] = field(default_factory=dict)
    items: int = 0

    def tree(self, value: Any, level: int = 0) -> Any:
        kind = type(value)
        if kind in _JSON or (kind is int and -(1 << 62) < value < 1 << 62) or (kind is str and _is_unicode(value)):
            return value
        if level > MOST_LEVELS or self.items > MOST_ITEMS:
            return self.pickled(value)
        if kind is list:
            return self._row(value, level)
        if kind is dict:
            return self._table(value, level)
        for made in (self._container, self._array, self._pandas, self._torch, self._sparse):
            found = made(value, level)
            if found is not None:
                return found
        return self.pickled(value)

    def pickled(self, value: Any) -> Any:
        """The value as a pickle. Raises NeedsPickle where that is not allowed, or where it cannot be done."""
        if self.why_no_pickle:
            raise NeedsPickle(
                f"a {_kind(value)} needs pickle, and {self.why_no_pickle}", hint="return arrays, tables or plain values"
            )
        try:
            raw = pickle.dumps(value, protocol=5)
        except Exception as error:  # whatever the value's own code raises
            raise NeedsPickle(f"a {_kind(value)} cannot be pickled: {sentence_of(error)}", hint="return arrays, tables or plain values") from error  # fmt: skip
        return self.part("pickle", lambda file: file.write(raw))

    def part(self, kind: str, data: Callable[[IO[bytes]], object], **more: Any) -> Any:
        self.parts.append(Part(kind, data))
        return {"$": kind, "part": len(self.parts) - 1, **more}

    def _row(self, value: Any, level: int) -> list[Any]:
        self.items += len(value)
        return [self.tree(x, level + 1) for x in value]

    def _table(self, value: Mapping[Any, Any], level: int) -> Any:
        self.items += len(value)
        if "$" not in value and all(type(k) is str and _is_unicode(k) for k in value):
            return {k: self.tree(v, level + 1) for k, v in value.items()}
        return {"$": "dict", "items": [[self.tree(k, level + 3), self.tree(v, level + 3)] for k, v in value.items()]}

    def _container(self, value: Any, level: int) -> Any:
        kind = type(value)
        if kind is tuple or kind is set or kind is frozenset:
            return {"$": kind.__name__, "items": self._row(value, level + 1)}
        if kind is complex:
            return {"$": "complex", "items": [value.real, value.imag]}
        if kind is int:
            return {"$": "int", "hex": hex(value)} if value.bit_length() < 1 << 16 else None
        if kind is bytes or kind is bytearray:
            return self.part("bytes", lambda file: file.write(value), mutable=kind is bytearray)
        return None

    def _array(self, value: Any, level: int) -> Any:
        scalar = isinstance(value, np.generic)
        if not (scalar or type(value) in (np.ndarray, np.memmap)) or not _npy(value.dtype):
            return None
        array = np.asarray(value)
        return self.part("npy", lambda file: np.lib.format.write_array(file, array, allow_pickle=False), scalar=scalar)

    def _pandas(self, value: Any, level: int) -> Any:
        pandas = sys.modules.get("pandas")
        if pandas is None or type(value) not in (pandas.DataFrame, pandas.Series):
            return None
        frame = value if type(value) is pandas.DataFrame else value.to_frame("values")
        raw = _arrow(frame)
        if raw is None:
            return None
        if frame is value:
            return self.part("arrow", lambda file: file.write(raw))
        name = self.tree(value.name, level + 1)
        return self.part("arrow", lambda file: file.write(raw), series=name)

    def _torch(self, value: Any, level: int) -> Any:
        torch = sys.modules.get("torch")
        if (
            torch is None
            or type(value) is not torch.Tensor
            or value.layout != torch.strided
            or value.is_quantized
            or value.is_complex()
        ):
            return None
        plain = value.detach().cpu().contiguous()
        if plain.untyped_storage().data_ptr() in {t.untyped_storage().data_ptr() for t in self.tensors.values()}:
            plain = plain.clone()
        name = str(len(self.tensors))
        self.tensors[name] = plain
        return {"$": "tensor", "name": name, "device": str(value.device), "grad": bool(value.requires_grad)}

    def _sparse(self, value: Any, level: int) -> Any:
        sparse = sys.modules.get("scipy.sparse")
        kinds = (
            {getattr(sparse, f"{f}_{k}"): (f, k) for f in ("csr", "csc") for k in ("matrix", "array")} if sparse else {}
        )
        if type(value) not in kinds or not _npy(value.dtype):
            return None
        parts = [self._array(np.asarray(getattr(value, a)), level) for a in ("data", "indices", "indptr")]
        return {"$": "sparse", "format": "_".join(kinds[type(value)]), "shape": list(value.shape), "parts": parts}


def _is_unicode(text: str) -> bool:
    """Whether a text has no half of a surrogate pair, which JSON readers refuse."""
    return text.isascii() or not any("\ud800" <= c <= "\udfff" for c in text)


def _kind(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")


def _npy(dtype: np.dtype[Any]) -> bool:
    """Whether an .npy file holds this dtype as it is."""
    try:
        return not dtype.hasobject and np.lib.format.descr_to_dtype(np.lib.format.dtype_to_descr(dtype)) == dtype
    except (TypeError, ValueError):
        return False


def _arrow(frame: Any) -> bytes | None:
    """A table as an Arrow stream; None where it would not come back as it is."""
    try:
        import pyarrow as pa

        table = pa.Table.from_pandas(frame)
        sink = io.BytesIO()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        raw = sink.getvalue()
        again = _frame(raw)
    except Exception:  # columns of mixed kinds, doubled names, pyarrow missing ..
        return None
    same = frame.equals(again) and (frame.dtypes == again.dtypes).all() and frame.attrs == again.attrs
    plain = frame.flags.allows_duplicate_labels and _cells(frame) == _cells(again)
    axes = ((frame.index, again.index), (frame.columns, again.columns))
    alike = (a.dtype == b.dtype and a.names == b.names and type(a) is type(b) and getattr(a, "freq", None) == getattr(b, "freq", None) for a, b in axes)  # fmt: skip
    return raw if same and plain and all(alike) else None


def _cells(frame: Any) -> list[list[Any]]:
    """The kinds of the cells of columns of objects: `equals` finds b"x" and bytearray(b"x") the same. In a cell that
    holds others they would not be seen: its own identity stands there, which no other table shares."""
    levels = [frame.index.get_level_values(k) for k in range(frame.index.nlevels)]
    columns = [*levels, *(frame.iloc[:, k] for k in range(frame.shape[1]))]
    holds = (list, dict, tuple, np.ndarray)
    return [[id(v) if isinstance(v, holds) else type(v) for v in c] for c in columns if c.dtype == object]


def _frame(raw: Any) -> Any:
    import pyarrow as pa

    table = pa.ipc.open_stream(pa.py_buffer(raw)).read_all()
    table.validate(full=True)
    return table.to_pandas()


# ---- written


@dataclass
class _Hashed:
    """A file that is hashed while it is written."""

    file: IO[bytes]
    sha: Any = field(default_factory=hashlib.sha256)
    size: int = 0

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B") if not isinstance(data, bytes) else data
        self.file.write(view)
        self.sha.update(view)
        self.size += len(view)
        return len(view)

    def pad(self) -> None:
        self.write(b"\0" * (-self.size % ALIGNED))


def write_result(file: IO[bytes], key: str, value: Any, seconds: float, why_no_pickle: str = "") -> int:
    """Write a result; the bytes written. `why_no_pickle` says why pickle is not allowed, "" where it is.

    Raises NeedsPickle where only pickle could hold it and it is not allowed; OSError as the file does. O(bytes).
    """
    taken = _Taken(why_no_pickle)
    try:
        tree = taken.tree(value)
    except RecursionError:
        taken = _Taken(why_no_pickle)
        tree = taken.pickled(value)
    if taken.tensors:
        from safetensors.torch import save

        raw = save(taken.tensors)
        taken.parts.append(Part("safetensors", lambda f: f.write(raw)))
    out = _Hashed(file)
    rows = []
    for part in taken.parts:
        out.pad()
        start = out.size
        part.data(out)  # type: ignore[arg-type]
        rows.append([part.kind, start, out.size - start])
    index = {"format": MAGIC, "version": VERSION, "key": key, "seconds": seconds, "parts": rows, "tree": tree}
    raw_index = json.dumps(index, separators=(",", ":")).encode("utf-8", "surrogatepass")
    out.write(raw_index)
    out.write(struct.pack("<Q", len(raw_index)))
    file.write(out.sha.digest())
    return out.size + 32


# ---- read


def sealed(raw: bytes | bytearray) -> bool:
    """Whether the bytes are those that were written: the last 32 are the sha256 of the others."""
    return len(raw) > TAIL.size and hashlib.sha256(memoryview(raw)[:-32]).digest() == bytes(raw[-32:])


def read_result(raw: bytearray, what: str, why_no_pickle: str = "") -> Read:
    """The result in these bytes; arrays lie in them, and may be written to.

    Raises Damaged where they are not what was written, NotHere where their value cannot be made, NeedsPickle where a pickle is in
    them and may not be loaded.
    """
    if not sealed(raw):
        raise Damaged(f"{what} is damaged: its sha256 is another", hint="it is computed again")
    try:
        return _read(raw, what, why_no_pickle)
    except (Damaged, NeedsPickle):
        raise
    except Exception as error:  # whatever a library raises, for bytes that somebody made up too
        raise NotHere(f"{what} cannot be made here: {sentence_of(error)}", hint="it is computed again") from error


def _read(raw: bytearray, what: str, why_no_pickle: str) -> Read:
    (size,) = struct.unpack_from("<Q", raw, len(raw) - TAIL.size)
    start = len(raw) - TAIL.size - size
    if start < 0:
        raise Damaged(f"{what} is damaged: an index of {size} bytes", hint="it is computed again")
    index = index_of(bytes(memoryview(raw)[start : start + size]), what)
    view = memoryview(raw)
    parts = [(kind, view[at : at + n]) for kind, at, n in index["parts"] if 0 <= at <= at + n <= start]
    if len(parts) != len(index["parts"]):
        raise Damaged(f"{what} is damaged: a part lies outside of it", hint="it is computed again")
    value = _Joined(parts, what, why_no_pickle).value(index["tree"])
    return Read(index["key"], value, float(index["seconds"]), len(raw))


def index_of(raw: bytes, what: str) -> dict[str, Any]:
    """The index of a result. Raises Damaged where it is none."""
    index = parse_json(raw, Damaged, what)
    if not isinstance(index, dict) or (index.get("format"), index.get("version")) != (MAGIC, VERSION):
        raise Damaged(f"{what} is no result of this Partita", hint="it is computed again")
    return index


@dataclass
class _Joined:
    """Puts a value together again."""

    parts: list[tuple[str, memoryview]]
    what: str
    why_no_pickle: str
    tensors: dict[str, Any] | None = None

    def value(self, tree: Any) -> Any:
        if isinstance(tree, list):
            return [self.value(x) for x in tree]
        if not isinstance(tree, dict):
            return tree
        if "$" not in tree:
            return {k: self.value(v) for k, v in tree.items()}
        made = getattr(self, f"_{tree['$']}", None)
        if made is None or tree["$"] not in _KINDS:
            raise Damaged(f"{self.what} is damaged: a value of kind {str(tree['$'])[:40]}", hint="it is computed again")
        return made(tree)

    def raw(self, tree: Mapping[str, Any]) -> memoryview:
        data: memoryview
        kind, data = self.parts[tree["part"]]
        if kind != tree["$"]:
            raise Damaged(
                f"{self.what} is damaged: a part is {str(kind)[:40]}, not {tree['$']}", hint="it is computed again"
            )
        return data

    def _tuple(self, tree: Mapping[str, Any]) -> Any:
        return tuple(map(self.value, tree["items"]))

    def _set(self, tree: Mapping[str, Any]) -> Any:
        return set(map(self.value, tree["items"]))

    def _frozenset(self, tree: Mapping[str, Any]) -> Any:
        return frozenset(map(self.value, tree["items"]))

    def _dict(self, tree: Mapping[str, Any]) -> Any:
        return {self.value(k): self.value(v) for k, v in tree["items"]}

    def _complex(self, tree: Mapping[str, Any]) -> Any:
        return complex(*tree["items"])

    def _int(self, tree: Mapping[str, Any]) -> Any:
        return int(tree["hex"], 16)

    def _bytes(self, tree: Mapping[str, Any]) -> Any:
        return (bytearray if tree["mutable"] else bytes)(self.raw(tree))

    def _npy(self, tree: Mapping[str, Any]) -> Any:
        array = _array(self.raw(tree))
        return array[()] if tree["scalar"] else array

    def _arrow(self, tree: Mapping[str, Any]) -> Any:
        frame = _frame(self.raw(tree))
        return frame["values"].rename(self.value(tree["series"])) if "series" in tree else frame

    def _tensor(self, tree: Mapping[str, Any]) -> Any:
        if self.tensors is None:
            from safetensors.torch import load

            self.tensors = load(bytes(next(data for kind, data in self.parts if kind == "safetensors")))
        tensor = self.tensors[tree["name"]].to(tree["device"])
        return tensor.requires_grad_() if tree["grad"] else tensor

    def _sparse(self, tree: Mapping[str, Any]) -> Any:
        import scipy.sparse

        if tree["format"] not in ("csr_matrix", "csr_array", "csc_matrix", "csc_array"):
            raise Damaged(
                f"{self.what} is damaged: a matrix of format {str(tree['format'])[:40]}", hint="it is computed again"
            )
        shape = tuple(map(int, tree["shape"]))
        made = getattr(scipy.sparse, tree["format"])(tuple(map(self.value, tree["parts"])), shape=shape)
        made.check_format(full_check=True)
        return made

    def _pickle(self, tree: Mapping[str, Any]) -> Any:
        if self.why_no_pickle:
            raise NeedsPickle(
                f"{self.what} holds a pickle, and {self.why_no_pickle}", hint="keep results in a folder of your own"
            )
        return pickle.loads(self.raw(tree))


_HEADERS: Mapping[tuple[int, int], Callable[..., Any]] = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}  # fmt: skip


def _array(raw: memoryview) -> np.ndarray[Any, Any]:
    """The array of an .npy file, lying in its bytes."""
    head = io.BytesIO(bytes(raw[: 1 << 16]))
    read = _HEADERS.get(np.lib.format.read_magic(head))
    if read is None:  # field names beyond latin-1
        return np.lib.format.read_array(io.BytesIO(raw), allow_pickle=False)
    shape, fortran, dtype = read(head)
    if dtype.hasobject:
        raise ValueError("an array of objects")
    flat = (
        np.frombuffer(raw, dtype, count=-1, offset=head.tell())
        if dtype.itemsize and 0 not in shape
        else np.zeros(0, dtype)
    )
    return flat.reshape(shape, order="F" if fortran else "C")


_JSON = frozenset({type(None), bool, float})
_KINDS = frozenset({"tuple", "set", "frozenset", "dict", "complex", "int", "bytes", "npy", "arrow", "tensor", "sparse", "pickle"})  # fmt: skip
