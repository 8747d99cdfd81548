"""Records: dataclasses as JSON values. The annotations of a class are its format, and are checked when it is read.

    float, int, str, bool, Literal    as they are; true is no number, 2.0 no whole one
    X | None, Any                     null, anything
    tuple[X, ...], frozenset[X]       a list
    tuple[X, Y], a NamedTuple         a list of that length
    Mapping[str, X], a dataclass      an object; a field that has a default may be missing or null; `from_` is "from"

Whether the numbers make sense is for the class's own `check` to tell.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from functools import cache
from types import NoneType
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from partita.errors import ANEW, BadInput, refuse

T = TypeVar("T")
_SCALARS: dict[type, tuple[str, Any]] = {float: ("a number", (int, float)), int: ("a whole number", int), str: ("text", str), bool: ("true or false", bool)}  # fmt: skip
_LARGEST = 1 << 1000  #: integers beyond have no float


def record(
    kind: type[T], value: Any, error: type[BadInput], what: str, *, hint: str = ANEW, known_only: bool = False
) -> T:
    """The `kind` that a JSON value says; with `known_only` a key that no field bears is a fault too, at any depth.

    Raises `error` with every fault at once. O(values).

    >>> from partita.nouns.cluster import Device
    >>> record(Device, {"name": "a", "cores": [0]}, BadInput, "it").cores
    (0,)
    >>> record(Device, {"speed": "high", "cores": [0.5]}, BadInput, "it")
    Traceback (most recent call last):
    partita.errors.BadInput: it: name is missing; speed is 'high', not a number; cores[0] is 0.5, not a whole number. hint: correct it, or make it anew
    """
    reader = _Reader(known_only)
    found: T = reader.read(kind, value, "")
    refuse(error, reader.faults, what, hint=hint)
    return found


def lean(item: Any) -> dict[str, Any]:
    """A dataclass as JSON values, without what is left at its default.

    >>> from partita.nouns.cluster import Device
    >>> lean(Device("a", cores=(0, 1)))
    {'name': 'a', 'cores': [0, 1]}
    """
    pairs = ((f, getattr(item, f.name)) for f in fields(item))
    return {f.name.rstrip("_"): _plain(value) for f, value in pairs if not f.init or value != _default(f)}


def _plain(item: Any) -> Any:
    if isinstance(item, Mapping):
        return {key: _plain(value) for key, value in item.items()}
    if isinstance(item, tuple | list | frozenset):
        return [_plain(x) for x in (sorted(item) if isinstance(item, frozenset) else item)]
    return lean(item) if is_dataclass(item) else item


def _default(f: Field[Any]) -> Any:
    return f.default if f.default_factory is MISSING else f.default_factory()


@cache
def _parts(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    """What a generic type is of, and its arguments; of a NamedTuple its fields' types."""
    origin, args = get_origin(hint), get_args(hint)
    return origin, args or (tuple(get_type_hints(hint).values()) if hasattr(hint, "_fields") else ())


@cache
def _format(kind: Any) -> dict[str, tuple[Any, bool]]:
    """Field -> (its type, whether it has a default)."""
    hints = get_type_hints(kind)
    return {f.name.rstrip("_"): (hints[f.name], _default(f) is not MISSING) for f in fields(kind) if f.init}


@dataclass
class _Reader:
    """Reads values; what does not fit becomes a fault, and what was read then means nothing."""

    known_only: bool
    faults: list[str] = field(default_factory=list)

    def read(self, hint: Any, value: Any, at: str) -> Any:
        if hint in _SCALARS:
            return self._scalar(hint, value, at)
        origin, args = _parts(hint)
        if hint is Any or (value is None and NoneType in args):
            return value
        if NoneType in args:
            return self.read(next(a for a in args if a is not NoneType), value, at)
        if origin is Literal:
            return value if value in args else self._misfit(value, f"one of {', '.join(map(repr, args))}", at)
        if is_dataclass(hint) or origin is Mapping:
            if not isinstance(value, Mapping):
                return self._misfit(value, "a table", at)
            if is_dataclass(hint):
                return self._instance(hint, value, at)
            return {k: self.read(args[1], v, f"{at}.{k}") for k, v in value.items()}
        return self._row(hint, value, at) if isinstance(value, list | tuple) else self._misfit(value, "a list", at)

    def _row(self, hint: Any, row: Sequence[Any], at: str) -> Any:
        """A tuple, a frozenset or a NamedTuple."""
        origin, args = _parts(hint)
        each = args[:1] * len(row) if origin is frozenset or args[-1] is ... else args
        if len(each) != len(row):
            return self._misfit(row, f"a list of {len(each)}", at)
        if args == (float, ...) and _are_numbers(row):
            return tuple(map(float, row))  # one by one, long rows take seconds
        values = [self.read(h, x, f"{at}[{k}]") for k, (h, x) in enumerate(zip(each, row, strict=True))]
        return origin(values) if origin else hint(*values)

    def _instance(self, kind: Any, table: Mapping[str, Any], at: str) -> Any:
        before, known = len(self.faults), _format(kind)
        if self.known_only:
            named = f" (known: {', '.join(known)})"
            self.faults += [_place(at, k) + " is unknown" + named for k in table if k not in known]
        self.faults += [_place(at, k) + " is missing" for k, (_, free) in known.items() if not free and k not in table]
        given = [k for k, (_, free) in known.items() if k in table and not (free and table[k] is None)]
        values = {k: self.read(known[k][0], table[k], f"{at}.{k}") for k in given}
        return (
            kind(**{k if k in kind.__dataclass_fields__ else f"{k}_": v for k, v in values.items()})
            if len(self.faults) == before
            else None
        )

    def _scalar(self, kind: Any, value: Any, at: str) -> Any:
        name, fits = _SCALARS[kind]
        if not isinstance(value, fits) or isinstance(value, bool) != (kind is bool):
            return self._misfit(value, name, at)
        large = isinstance(value, int) and abs(value) > _LARGEST
        return self._misfit("a whole number of hundreds of digits", name, at) if large else kind(value)

    def _misfit(self, value: Any, wanted: str, at: str) -> None:
        self.faults.append(f"{at.lstrip('.') or 'it'} is {repr(value)[:80]}, not {wanted}")


def _are_numbers(row: Sequence[Any]) -> bool:
    """Whether all of it are floats, or all whole numbers that have a float."""
    kinds = set(map(type, row))
    return kinds == {float} or (kinds == {int} and max(max(row), -min(row)) <= _LARGEST)


def _place(at: str, key: str) -> str:
    return f"{at}.{key}".lstrip(".")
