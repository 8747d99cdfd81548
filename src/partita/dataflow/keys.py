"""Keys of results: what is computed, of what, as one short text that is the same in every process and on every machine.

    key_of(function, arguments, version)   sha256 over the function (functions.py) or its named version, and the arguments' content
    Ref(key)                               stands for an upstream result among the arguments: its key, not its value
    Memo                                   what was digested already in one run, so that large arrays are read once

Values by content: numbers, texts, containers (in order; sets sorted), dataclasses, enums, numpy, pandas, scipy.sparse and
torch where they are loaded, scikit-learn estimators by their parameters, a Path to a file by the file's bytes; anything
else by what `copy` would copy of it (`__reduce_ex__`) and its class. A type is always part of it: 1, 1.0 and True differ.
"""

from __future__ import annotations

import copyreg
import enum
import hashlib
import logging
import re
import stat
import struct
import sys
import zlib
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from functools import WRAPPER_ASSIGNMENTS, cached_property
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np

from partita.dataflow.flow import Value
from partita.dataflow.functions import (
    class_parts,
    function_parts,
    is_named,
    is_own,
    made_parts,
    module_parts,
    named_parts,
    version_of,
)
from partita.errors import FlowError, sentence_of

LENGTH = 40  #: characters of a key: 160 bits
FORMAT = b"partita key 6"  #: another number where the meaning of keys changes
LARGE_BYTES = 1 << 14  #: arrays from here on are digested once in a run
MOST_DEPTH = 80  #: of values in values


@dataclass(frozen=True, slots=True)
class Ref:
    """An upstream result, by its key."""

    key: str


@dataclass(frozen=True)
class Memo:
    """Digests of one run: of functions, classes and large arrays, by identity. What is in it must not be changed meanwhile."""

    digests: dict[int, tuple[object, bytes]] = field(
        default_factory=dict
    )  #: the object is held, so that its id stays its own
    files: dict[tuple[object, ...], bytes] = field(
        default_factory=dict
    )  #: what tells a file and its state -> its digest

    def find(self, item: object) -> bytes | None:
        found = self.digests.get(id(item))
        return None if found is None else found[1]

    def keep(self, item: object, digest: bytes) -> bytes:
        self.digests[id(item)] = (item, digest)
        return digest


def key_of(function: Callable[..., Any], arguments: Mapping[str, object], version: str | None = None, memo: Memo | None = None) -> str:  # fmt: skip
    """The key of `function(**arguments)`; where a `version` is named, it and the function's name stand for the code.

    Deterministic over processes, machines and hash seeds, for one version of Python and of the libraries. The order of
    `arguments` does not matter. Raises FlowError for what has no content that can be told: open files, locks, generators;
    its hint says to name a version, or to hand in something else. O(bytes of the arguments).

    >>> key_of(max, {"a": 1, "b": Ref("x")}) == key_of(max, {"b": Ref("x"), "a": 1})
    True
    >>> key_of(max, {"a": 1}) == key_of(max, {"a": 1.0})
    False
    """
    digest = _Digester(memo or Memo())
    what = _named(function, version) if version is not None else digest.told(function, _name(function))
    rows = [
        (name, digest.told(value, f"argument {name} of {_name(function)}")) for name, value in sorted(arguments.items())
    ]
    return _sealed("key", [FORMAT, what, *(x for row in rows for x in row)]).hex()[:LENGTH]


def content_of(value: object, memo: Memo | None = None, brief: bool = False) -> str:
    """The digest of a value's content. Raises FlowError as `key_of`. `brief`: of arrays a check sum stands for the bytes, which
    is seven times as fast and enough to tell whether a value has changed or was made again alike.

    >>> content_of((1, "a")) == content_of((1, "a")), content_of([1, 2]) == content_of((1, 2))
    (True, False)
    """
    return _Digester(memo or Memo(), brief).told(value, "a value").hex()[:LENGTH]


def _named(function: Callable[..., Any], version: str) -> bytes:
    kind = type(function)
    names = [getattr(function, n, getattr(kind, n)) for n in ("__module__", "__qualname__")]
    return _sealed("version", [*names, version])


def _name(function: object) -> str:
    return str(getattr(function, "__name__", None) or type(function).__name__)


_LENGTH = struct.Struct("<q").pack


def _sealed(tag: str, parts: Iterable[object]) -> bytes:
    """sha256 over parts whose lengths are in it, so that no two lists of parts look alike."""
    sha = hashlib.sha256(tag.encode() + b"\0")
    for part in parts:
        if type(part) is bytearray or type(part) is memoryview:  # may be large: not copied
            sha.update(_LENGTH(memoryview(part).nbytes))
            sha.update(part)
        else:
            raw = part if type(part) is bytes else str(part).encode("utf-8", "surrogatepass")
            sha.update(_LENGTH(len(raw)) + raw)
    return sha.digest()


class _Untold(Exception):
    """A value without a content."""


class _Misplaced(Exception):
    """A value of the flow where `graph` does not look for it: in a set, an object, or what a step's function reads."""


@dataclass
class _Digester:
    """Digests values.

    Functions and classes of the user's own are numbered in the order in which they are met and digested one by one when
    the value is done, so that any number of them may call each other in circles, in time linear in their code.
    """

    memo: Memo
    brief: bool = False  #: a check sum in place of an array's bytes
    path: list[int] = field(
        default_factory=list
    )  #: the containers it is in right now, so that one that holds itself ends
    code: list[Any] = field(default_factory=list)  #: functions and classes met
    number: dict[int, int] = field(default_factory=dict)  #: id -> place in `code`

    def told(self, value: object, what: str) -> bytes:
        """The digest of a value and of all code that it leads to."""
        is_code = isinstance(value, FunctionType | type)
        known = self.memo.find(value) if is_code else None
        if known is not None:
            return known
        self.code, self.number = [], {}
        try:
            found = self._with_code(self(value))
        except RecursionError:
            raise
        except _Misplaced as error:
            raise FlowError(f"{what} holds a value of the flow where it is not looked for", hint="hand it in by itself, or in a list, a tuple or as what a dict holds") from error  # fmt: skip
        except (
            _Untold,
            AttributeError,
            RuntimeError,
            TypeError,
            ValueError,
        ) as error:  # but for the first: a value's own methods
            raise FlowError(
                f"{what} cannot be told by content: {error if isinstance(error, _Untold) else sentence_of(error)}",
                hint='name a version for the step, e.g. version="1", or hand in plain values, arrays or tables',
            ) from error
        return self.memo.keep(value, found) if is_code else found

    def _with_code(self, found: bytes) -> bytes:
        """The digest of a value and of all code that was met in it."""
        parts = [found]
        for item in self.code:  # grows meanwhile
            parts.append(self._function(item) if isinstance(item, FunctionType) else self._class(item))
        return _sealed("told", parts)

    def __call__(self, value: object) -> bytes:
        simple = _SIMPLE.get(type(value))
        if simple is not None:
            return _sealed(type(value).__name__, [simple(value)])
        if isinstance(value, FunctionType | type):
            return self._code(value)
        known = self.memo.find(value)
        if known is not None:
            return known
        if id(value) in self.path:
            return _sealed("again", [len(self.path) - self.path.index(id(value))])
        if len(self.path) > MOST_DEPTH:
            raise _Untold(f"values in values more than {MOST_DEPTH} deep")
        self.path.append(id(value))
        try:
            return self._large(value) if _is_large(value) else self._compound(value)
        finally:
            self.path.pop()

    def _large(self, value: object) -> bytes:
        """Digested once in a run, so with the code that it leads to, whose numbers mean something in one digest only."""
        apart = _Digester(self.memo, self.brief, self.path)
        return self.memo.keep(value, apart._with_code(apart._compound(value)))

    def _code(self, item: Any) -> bytes:
        """A function or class: a library's by name, one's own, or one that a library made, by its place among those met."""
        if is_named(item):
            return _sealed("named", named_parts(item))
        if id(item) not in self.number:
            self.number[id(item)] = len(self.code)
            self.code.append(item)
        return _sealed("code", [self.number[id(item)]])

    # ---- one kind of value after the other

    def _compound(self, value: Any) -> bytes:
        for kind, method in self._kinds:
            if isinstance(value, kind):
                return method(value)
        for module, found in _LIBRARIES:
            if module in sys.modules and isinstance(value, _types(module, found)):
                return getattr(self, f"_{module.partition('.')[0]}")(value)  # type: ignore[no-any-return]
        return self._object(value)

    @cached_property
    def _kinds(self) -> tuple[tuple[Any, Callable[[Any], bytes]], ...]:
        return (
            (Value, self._misplaced),
            (ModuleType, lambda v: _sealed("module", module_parts(v))),
            (MethodType, lambda v: _sealed("method", [self(v.__self__), self(v.__func__)])),
            (BuiltinFunctionType, self._builtin),
            (CodeType, lambda v: self._untold(v)),
            (logging.Logger, lambda v: _sealed("logger", [v.name])),
            (re.Pattern, lambda v: _sealed("pattern", [self(v.pattern), v.flags])),
            (enum.Enum, lambda v: _sealed("enum", [self(type(v)), v.name])),
            (Path, self._file),
            (np.ndarray, self._array),
            (np.generic, lambda v: _sealed("scalar", [_dtype(v.dtype), v.tobytes()])),
            (np.dtype, lambda v: _sealed("dtype", [_dtype(v)])),
            (defaultdict, lambda v: _sealed("default", [self(v.default_factory), self._table(v)])),
            (tuple | list, self._row),
            (dict, self._table),
            (set | frozenset, self._set),
        )

    def _typed(self, value: object, parts: Iterable[object]) -> bytes:
        """Parts with the value's type; a subclass of one's own brings its code, and what was set on it."""
        kind = type(value)
        own = [b""] if kind in _PLAIN else [self(kind), *self._set_on(value)]
        return _sealed(kind.__name__, [*own, *parts])

    def _set_on(self, value: object, told: Container[str] = ()) -> list[bytes]:
        """The attributes of an object that are not told otherwise."""
        rest = sorted((k, v) for k, v in getattr(value, "__dict__", {}).items() if k not in told)
        return [self(rest)] if rest else []

    def _row(self, value: Iterable[object]) -> bytes:
        return self._typed(value, map(self, value))

    def _table(self, value: Mapping[object, object]) -> bytes:
        return self._typed(value, (self(x) for pair in value.items() for x in pair))

    def _set(self, values: Iterable[object]) -> bytes:
        """Sorted; by name first, since functions are numbered in the order in which they are met."""
        named = sorted(values, key=lambda v: str(getattr(v, "__qualname__", "")))
        return self._typed(values, sorted(map(self, named)))

    def _function(self, function: FunctionType) -> bytes:
        parts = function_parts if is_own(function) else made_parts
        return _sealed("function", map(self._part, parts(function, self._read(function))))

    def _read(self, function: FunctionType) -> Callable[[object], bytes]:
        """Digests what a function reads, and says which function it was where there is no content."""

        def content(value: object) -> bytes:
            try:
                return self(value)
            except _Untold as error:
                raise _Untold(f"{function.__name__} reads {error}") from error

        return content

    def _part(self, part: object) -> bytes:
        return part if isinstance(part, bytes) else self(part)

    def _class(self, kind: type) -> bytes:
        return _sealed("class", map(self._part, class_parts(kind, self)))

    def _builtin(self, function: Any) -> bytes:
        if isinstance(function.__self__, ModuleType | None):
            return _sealed("named", named_parts(function))
        return _sealed("method", [self(function.__self__), function.__name__])

    def _file(self, path: Path) -> bytes:
        """A path to a file by the bytes in it; one to nothing by its text."""
        try:
            found = path.stat()
        except (OSError, ValueError):  # there is none; or there cannot be
            return _sealed("path", [path])
        if stat.S_ISDIR(found.st_mode):
            raise _Untold(f"the folder {path}")
        if not stat.S_ISREG(found.st_mode):
            return _sealed("path", [path])
        state = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)
        if state not in self.memo.files:
            with open(path, "rb") as file:
                self.memo.files[state] = hashlib.file_digest(file, "sha256").digest()
        return _sealed("file", [path.suffix, self.memo.files[state]])

    def _array(self, array: np.ndarray[Any, Any]) -> bytes:
        masked = [self(np.asarray(array.mask)), self(array.fill_value)] if isinstance(array, np.ma.MaskedArray) else []
        head = [_dtype(array.dtype), str(array.shape), *masked, *self._kind(array, _ARRAYS, _OF_MASKED)]
        if array.dtype.hasobject:
            return _sealed("objects", [*head, *self._objects(np.asarray(array))])
        plain: Any = np.ascontiguousarray(array)
        raw = self._raw(plain.reshape(-1).view(np.uint8)) if plain.size and plain.dtype.itemsize else b""
        return _sealed("array", [*head, raw])

    def _kind(self, value: Any, usual: Container[type], told: Container[str] = ()) -> list[bytes]:
        """The class of a library's value where it is not the usual one, and what was set on it: np.matrix multiplies otherwise."""
        return [] if type(value) in usual else [self(type(value)), *self._set_on(value, told)]

    def _objects(self, array: np.ndarray[Any, Any]) -> Iterable[object]:
        """Texts at once, other things one by one."""
        values = array.ravel().tolist()
        if all(type(v) is str for v in values):
            encoded = [v.encode("utf-8", "surrogatepass") for v in values]
            return [np.array([len(e) for e in encoded], np.int64).tobytes(), b"".join(encoded)]
        return map(self, values)

    def _pandas(self, value: Any) -> bytes:
        pandas = sys.modules["pandas"]
        if isinstance(value, pandas.MultiIndex):
            codes = map(np.asarray, value.codes)
            return _sealed("levels", [self(list(value.names)), *map(self, value.levels), *map(self, codes)])
        if isinstance(value, pandas.Index):
            freq = getattr(value, "freqstr", None)
            return _sealed("column", [str(value.dtype), self(value.name), freq, self._cells(value)])
        more = [
            *map(self, (value.index, value.attrs)),
            *self._kind(value, (pandas.DataFrame, pandas.Series), _OF_TABLES),
        ]
        if isinstance(value, pandas.Series):
            return _sealed("column", [str(value.dtype), self(value.name), self._cells(value), *more])
        columns = (self(value.iloc[:, k]) for k in range(value.shape[1]))
        return _sealed("frame", [self(value.columns), *more, *columns])

    def _cells(self, column: Any) -> bytes:
        if isinstance(column.dtype, np.dtype):
            return self(column.to_numpy())
        if hasattr(column.dtype, "categories"):
            categories = column.array if hasattr(column, "array") else column
            return _sealed(
                "categories", [self(np.asarray(categories.codes)), self(categories.categories), categories.ordered]
            )
        missing = np.asarray(column.isna())
        known = column.to_numpy(dtype=object)[~missing]
        return _sealed("cells", [self(missing), self(known)])

    def _scipy(self, matrix: Any) -> bytes:
        """In canonical form: asking a matrix for its largest element, say, brings it there."""
        parts = ("data", "indices", "indptr") if matrix.format in ("csr", "csc") else None
        if parts is not None and not matrix.has_canonical_format:
            matrix = matrix.copy()
            matrix.sum_duplicates()
        if parts is None:
            coo = matrix.tocoo(copy=True)
            coo.sum_duplicates()
            return _sealed("sparse", [type(matrix).__name__, str(matrix.shape), self(coo.data), *map(self, coo.coords)])
        return _sealed("sparse", [type(matrix).__name__, str(matrix.shape), *(self(getattr(matrix, p)) for p in parts)])

    def _torch(self, tensor: Any) -> bytes:
        torch = sys.modules["torch"]
        if tensor.layout != torch.strided or tensor.is_quantized:
            raise _Untold(f"a {tensor.layout} tensor")
        if tensor.is_meta:
            raise _Untold("a tensor on the device meta")
        plain = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
        raw = (
            plain.as_strided((plain.numel(),), (1,)).view(torch.uint8).numpy()
        )  # one of a single number may have any stride
        return _sealed(
            "tensor",
            [str(tensor.dtype), str(tuple(tensor.shape)), str(tensor.device), tensor.requires_grad, self._raw(raw), *self._kind(tensor, (torch.Tensor,))],
        )  # fmt: skip

    def _raw(self, array: Any) -> bytes | memoryview:
        """What stands for an array's bytes."""
        raw = memoryview(array)
        return zlib.crc32(raw).to_bytes(4) if self.brief else raw

    def _sklearn(self, estimator: Any) -> bytes:
        """Parameters by name, then what fitting added."""
        given = estimator.get_params(deep=False)
        rest = {k: v for k, v in sorted(vars(estimator).items()) if k not in given}
        return _sealed("estimator", [self(type(estimator)), self(sorted(given.items())), self(rest)])

    def _object(self, value: Any) -> bytes:
        """Anything else: what `copy` copies of it, and its class."""
        if is_dataclass(value):
            rows = [(f.name, getattr(value, f.name)) for f in fields(value) if hasattr(value, f.name)]
            return _sealed("dataclass", [self(type(value)), self(rows), *self._set_on(value, dict(rows))])
        wrapped = getattr(value, "__wrapped__", None)
        if isinstance(wrapped, FunctionType):  # a decorator's object around a function
            return _sealed("wrapped", [self(type(value)), self(wrapped), self._wrapping(value)])
        if hasattr(value, "__next__") or isinstance(value, ModuleType):
            self._untold(value)
        try:
            registered = copyreg.dispatch_table.get(type(value))
            reduced = registered(value) if registered else value.__reduce_ex__(4)
        except Exception as error:
            raise _Untold(f"{_shown(value)} ({sentence_of(error)})") from error
        if isinstance(reduced, str):
            module = str(getattr(value, "__module__", None) or type(value).__module__)
            if getattr(sys.modules.get(module), reduced, None) is not value:  # a ufunc made of a function, say
                self._untold(value)
            return _sealed("named", (reduced, module, version_of(module), *named_parts(type(value))))
        make, args, state, *rest = (*reduced, None)[:6]
        items = [list(r) for r in rest if r is not None]
        return _sealed("object", [self(type(value)), self(make), self(args), self(state), self(items)])

    def _wrapping(self, value: Any) -> bytes:
        """What a decorator's object has beside the function's own; of a library's, a compiler's, say, which cannot be told, nothing."""
        try:
            return self([(k, v) for k, v in sorted(vars(value).items()) if k not in _OF_THE_WRAPPED])
        except (_Untold, TypeError, RecursionError):
            if is_own(type(value)):
                raise
            return b""

    def _misplaced(self, value: Value) -> bytes:
        raise _Misplaced

    def _untold(self, value: object) -> bytes:
        raise _Untold(_shown(value))


_OF_THE_WRAPPED = frozenset((*WRAPPER_ASSIGNMENTS, "__wrapped__"))


def _shown(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _is_large(value: Any) -> bool:
    """Whether a value is digested once in a run: large arrays, and tables, sparse matrices and tensors in any case."""
    if isinstance(value, np.ndarray):
        return value.nbytes >= LARGE_BYTES and not value.dtype.hasobject
    return any(m in sys.modules and isinstance(value, _types(m, names)) for m, names in _LIBRARIES[:3])


def _dtype(dtype: np.dtype[Any]) -> str:
    return repr(dtype) if dtype.names else dtype.str if dtype.kind != "V" else f"{dtype.str} {dtype}"


def _types(module: str, names: tuple[str, ...]) -> tuple[type, ...]:
    loaded = sys.modules[module]
    return tuple(getattr(loaded, name) for name in names if hasattr(loaded, name))


_LIBRARIES = (
    ("pandas", ("DataFrame", "Series", "Index")),
    ("scipy.sparse", ("spmatrix", "sparray")),
    ("torch", ("Tensor",)),
    ("sklearn.base", ("BaseEstimator",)),
)
_SIMPLE: Mapping[type, Callable[[Any], object]] = {
    type(None): lambda v: b"",
    bool: lambda v: b"1" if v else b"0",
    int: hex,  # of any length
    float: lambda v: struct.pack("<d", v),
    complex: lambda v: struct.pack("<dd", v.real, v.imag),
    str: lambda v: v,
    Ref: lambda v: v.key,
    bytes: lambda v: v,
    bytearray: lambda v: v,
    type(Ellipsis): lambda v: b"",
    range: lambda v: f"{v.start} {v.stop} {v.step}",
}
_PLAIN = frozenset({tuple, list, dict, set, frozenset})
_ARRAYS = frozenset({np.ndarray, np.memmap})
_OF_MASKED = frozenset(vars(np.ma.array([0])))  #: what numpy sets on those itself
_OF_TABLES = frozenset({"_mgr", "_item_cache", "_attrs", "_flags", "_name"})  #: what pandas does
