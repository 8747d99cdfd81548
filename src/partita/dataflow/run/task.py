"""One task, where it runs: on a worker, or in this process. What it took and what came of it is reported beside the result.

A task is told by its step's number; the functions travel once (`Functions`), not with every task. Some tasks are run twice
to see whether a step gives the same again and leaves its arguments as they were: what does not is never kept for later.
"""

from __future__ import annotations

import copy
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import lru_cache
from inspect import BoundArguments, Signature, isawaitable, signature
from types import FunctionType, MethodType, ModuleType
from typing import Any, Literal, NamedTuple

import numpy as np

from partita.dataflow.flow import Value
from partita.dataflow.graph import Slot
from partita.dataflow.keys import content_of
from partita.dataflow.plan.events import View, flat
from partita.dataflow.run.keeping import Keeping
from partita.dataflow.store import Absent, Put
from partita.errors import PartitaError, place_of, sentence_of

WRITE_BYTES_PER_S = 200e6
WRITE_S = 0.004  #: of a file, synchronised
DIGEST_BYTES_PER_S = 1e9  #: inputs that take longer to digest twice than a look may are not looked at
WORTH_KEEPING = 1.0  #: a result is stored when computing took so many times what storing takes


class Told(NamedTuple):
    """What a task needs to be told, apart from its inputs. A tuple, since ten thousand of them cross in pickles."""

    node: int
    turn: int
    step: int
    kind: Literal["compute", "load"]
    key: str
    label: str  #: of the step
    arguments: tuple[tuple[str, Any], ...]  #: with a `Slot` for each input
    keep: bool  #: whether the result may be stored
    #: see whether it leaves its inputs alone, and run it twice, where that takes no longer than this
    look_s: float = 0.0


class Order(NamedTuple):
    """A task for an engine."""

    told: Told
    inputs: tuple[View, ...]  #: for each need
    place: int  #: in the order
    brief: bool = False  #: so short and small that it travels with others
    seconds: float = 0.0  #: expected
    size_bytes: float | None = None  #: expected of its result; None: nothing like it has run


def needed(inputs: Sequence[View]) -> list[int]:
    """The results that inputs are made of, each once."""
    return list(dict.fromkeys(flat(inputs)))


class Report(NamedTuple):
    """How a task went; times are seconds since the epoch. All of it is plain, so that it may cross as a message."""

    node: int
    turn: int
    #: absent: the store does not have it after all; suspected: lost, and perhaps the reason why workers died; spoils: it changed
    #: what it was given, and others read the same
    state: Literal["done", "failed", "lost", "absent", "suspected", "spoils"]
    started_s: float
    ended_s: float
    size_bytes: float = 0.0
    value: float | None = None
    same: bool | None = None
    stored: bool = False
    reason: str = ""  #: why it failed; or, where it is done, why its result could not be kept
    look_s: float = 0.0  #: spent on looking whether it gives the same again, beside its time
    looked: bool = False  #: all that looking could tell is told
    sound: bool = True  #: whether it was computed by the code that is in its key


def missing(told: Told) -> Report:
    """Of a task that cannot run, since what it reads is lost."""
    now = time.time()
    return Report(told.node, told.turn, "lost", now, now, reason="what it needs is lost")


def execute(
    told: Told, function: Callable[..., Any], inputs: Sequence[Any], store: Keeping | None
) -> tuple[Any, Report]:
    """(result, report) of a task; the result of one that failed is None."""
    started = time.time()
    if told.kind == "load":
        return _loaded(told, started, store)
    before = None
    try:
        if told.look_s and 2 * size_of(list(inputs)) <= told.look_s * DIGEST_BYTES_PER_S:
            before = _content(list(inputs))
        second = with_own_constants(told) if before else told  # the first call may change the constants
        began = time.time()
        result = _called(function, told, inputs)
        if hasattr(type(result), "__next__") or isawaitable(result):
            raise PartitaError(f"it gives a {type(result).__name__}, which can be read only once", hint="return a list")
        if isinstance(result, Value):
            raise PartitaError("it gives a value of the flow, which nobody computes", hint="inside a step, call a plain function")  # fmt: skip
        took = time.time() - began
        ended = started + took
        if _changed(before, inputs):
            return None, Report(told.node, told.turn, "spoils", started, ended)
        size = size_of(result)
        enough = before is not None and took + 2 * size / DIGEST_BYTES_PER_S <= told.look_s
        same = _again(function, second, inputs, result) if enough else None
        look_s = time.time() - ended if before else 0.0
        changed = store.changed() if store is not None and told.keep else ""
        keep = told.keep and same is not False and not changed
        stored, why = _stored(told, store, result, took, size) if keep else (False, changed)
        number = number_of(result)
        return result, Report(
            told.node, told.turn, "done", started, ended, size, number, same, stored, why, look_s, enough, not changed
        )
    except BaseException as error:  # a library that wants to end the program loses its branch only
        if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
            raise  # the user's own; a worker runs tasks in other threads
        if _changed(before, inputs):
            return None, Report(told.node, told.turn, "spoils", started, time.time())
        said = str(error) if isinstance(error, PartitaError) else sentence_of(error) + place_of(error)
        return None, Report(told.node, told.turn, "failed", started, time.time(), reason=said)


def _loaded(told: Told, started: float, store: Keeping | None) -> tuple[Any, Report]:
    found = store.get(told.key) if store is not None else Absent("there is no store")
    if isinstance(found, Absent):
        return None, Report(told.node, told.turn, "absent", started, time.time(), reason=found.reason)
    size, number = size_of(found.value), number_of(found.value)
    return found.value, Report(told.node, told.turn, "done", started, time.time(), size, number, None, True)


def with_own_constants(told: Told) -> Told:
    """The same with constants that nobody else holds, so that a step may change them as if they had travelled to a worker."""
    return told._replace(arguments=tuple((name, _copied(a)) for name, a in told.arguments))


def _copied(argument: Any) -> Any:
    try:
        return copy.deepcopy(argument)
    except Exception:  # what cannot be copied cannot travel either
        return argument


def _called(function: Callable[..., Any], told: Told, inputs: Sequence[Any]) -> Any:
    """By position up to the first parameter that was left to its default, by name from there on."""
    arguments = OrderedDict((name, _filled(a, inputs)) for name, a in told.arguments)
    bound = BoundArguments(_signature(function), arguments)
    return function(*bound.args, **bound.kwargs)


@lru_cache(maxsize=1024)
def _signature(function: Callable[..., Any]) -> Signature:
    return signature(function)


def _filled(argument: Any, inputs: Sequence[Any]) -> Any:
    if isinstance(argument, Slot):
        return inputs[argument.place]
    if type(argument) in (list, tuple):
        return type(argument)(_filled(x, inputs) for x in argument)
    if type(argument) is dict:
        return {k: _filled(x, inputs) for k, x in argument.items()}
    return argument


def _changed(before: str | None, inputs: Sequence[Any]) -> bool:
    """Whether inputs are seen to be no longer what they were."""
    after = _content(list(inputs)) if before else None
    return after is not None and after != before


def _again(function: Callable[..., Any], told: Told, inputs: Sequence[Any], result: Any) -> bool | None:
    """Whether the same comes out again; None where results cannot be compared. A second time that raises gives something else."""
    first = _content(result)
    if first is None:
        return None
    try:
        return _content(_called(function, told, inputs)) == first
    except Exception:  # it makes a folder, say
        return False


def _content(value: Any) -> str | None:
    try:
        return content_of(value, brief=True)
    except Exception:  # it cannot be told, or its class fails when it is asked: that is no fault of the step
        return None


def _stored(told: Told, store: Keeping | None, result: Any, took_s: float, size_bytes: float) -> tuple[bool, str]:
    """Keep what would cost more to compute again than to write: whether it is kept, and why it could not be."""
    if store is None or took_s < WORTH_KEEPING * (WRITE_S + size_bytes / WRITE_BYTES_PER_S):
        return False, ""
    put = store.put(told.key, result, took_s)
    return (True, "") if isinstance(put, Put) else (False, put.reason)


def number_of(result: Any) -> float | None:
    """A result as a float, infinity and NaN too; None where it is no real number, or too large for a float."""
    try:
        if isinstance(result, bool | int | float | np.integer | np.floating | np.bool_):
            return float(result)
        if isinstance(result, np.ndarray) and result.size == 1 and result.dtype.kind in "biuf":
            return float(result.reshape(-1)[0])
        item = getattr(result, "item", None)
        if getattr(result, "ndim", None) == 0 and callable(item):
            found = item()
            return float(found) if isinstance(found, int | float) else None
    except (OverflowError, TypeError, ValueError):  # a whole number of hundreds of digits; a complex one
        pass
    return None


def size_of(value: Any) -> float:
    """Bytes a result takes in memory, about: arrays exactly, containers and objects by their parts; 0 where its class fails when it
    is asked."""
    try:
        return _size_of(value, 0)
    except Exception:
        return 0.0


def _object_columns(table: Any) -> list[Any]:
    if table.ndim == 2:
        return [
            table.iloc[:, k].to_numpy() for k, dtype in enumerate(table.dtypes) if getattr(dtype, "hasobject", False)
        ]
    return [table.to_numpy()] if getattr(table.dtype, "hasobject", False) and not hasattr(table, "levels") else []


def _cells(objects: Any, level: int) -> float:
    """Bytes of the objects in an array, by a hundred of them; where many of those are the same one, each counts once."""
    few = objects[:: max(1, len(objects) // 100)] if level <= 6 else []
    each = {id(v): v for v in few}
    found = sum(_size_of(v, level + 1) for v in each.values())
    return found * len(objects) / len(few) if 2 * len(each) > len(few) else found


def _size_of(value: Any, level: int) -> float:
    found = getattr(value, "nbytes", None)
    usage = getattr(value, "memory_usage", None)
    if callable(usage):  # pandas
        return float(np.sum(usage(deep=False))) + sum(_cells(o, level) for o in _object_columns(value))
    if isinstance(found, int):
        objects_too = isinstance(value, np.ndarray) and value.dtype.hasobject
        return float(found) + (_cells(value.ravel(), level) if objects_too else 0.0)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.nn.Module):
        return 64.0 + sum(float(t.nbytes) for t in (*value.parameters(), *value.buffers()))
    if level > 6:
        return float(sys.getsizeof(value, 64))
    if isinstance(value, dict):
        return 64.0 + sum(_size_of(v, level + 1) + 64 for v in value.values())
    if isinstance(value, list | tuple | set | frozenset):
        if len(value) > 1000 and not isinstance(value, set | frozenset):
            few = value[:: len(value) // 100]
            return 64.0 + len(value) * sum(_size_of(v, level + 1) for v in few) / len(few)
        return 64.0 + sum(_size_of(v, level + 1) for v in value)
    own = getattr(value, "__dict__", None)
    if own and not isinstance(value, FunctionType | MethodType | ModuleType | type):
        return 64.0 + _size_of(own, level + 1)
    state = getattr(value, "__getstate__", None)
    if callable(state) and type(value).__module__.startswith(
        ("sklearn", "scipy")
    ):  # compiled classes keep their arrays there
        try:
            return 64.0 + _size_of(state(), level + 1)
        except TypeError:
            return float(sys.getsizeof(value, 64))
    return float(sys.getsizeof(value, 64))
