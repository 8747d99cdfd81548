"""A flow, written like the pipeline itself: steps, options to explore, and choices between what they gave.

    @step
    def scale(data, how): ...

    def flow():
        data = load("digits")
        scaled = scale(data, explore("scaling", ["none", "standard"]))
        model = fit(scaled, explore("C", [0.01, 0.1, 1, 10], ordered=True))
        best = choose(model, by=accuracy(model, data), over="C", select=largest(), shape="convex")
        return choose(best, by=accuracy(best, data), over="scaling")

Calling a step computes nothing: it gives a `Value` that says what would be computed. A value that depends on an `explore`
stands for one result for each of its options, and a step applied to several such values for one for each combination of the
options they depend on; the same name is the same option everywhere. An option may itself be a value, with options of its
own: then those names exist only where that option is taken. `choose` keeps the best results over some of the names and
takes those names away, `gather` makes a list over one. `graph.unfold` turns the value that a flow returns into tasks.
"""

from __future__ import annotations

import inspect
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import numpy as np

from partita.dataflow.select import Best, Select
from partita.errors import FlowError

Shape: TypeAlias = Literal["monotone", "convex"] | None
MOST_OPTIONS, MOST_LEVELS = 100_000, 50
MOST_LABEL = 200  #: characters
MOST_BITS = 10_000  #: of a whole number that Python writes in decimals


@dataclass(frozen=True, eq=False)
class Value:
    """What a flow will compute; equal only to itself."""

    def __bool__(self) -> bool:
        raise FlowError(
            "a flow asks whether a value is true, and nothing is computed yet", hint="put the if into a step"
        )

    def __iter__(self) -> Any:
        raise FlowError("a flow unpacks a value, and nothing is computed yet", hint="take its parts in a step")


@dataclass(frozen=True, eq=False)
class Call(Value):
    """A step applied to arguments, in the order of its parameters; lists, tuples and dicts in them may hold values."""

    step: Step
    arguments: tuple[tuple[str, Any], ...]  #: (parameter, argument)


@dataclass(frozen=True, eq=False)
class Explore(Value):
    """One of several options, by a name."""

    name: str
    labels: tuple[str, ...]  #: of the options, each one's own
    options: tuple[Any, ...]  #: plain arguments, or values
    ordered: bool


@dataclass(frozen=True, eq=False)
class Choose(Value):
    """The results that a selection keeps, over some names, by their scores."""

    name: str
    value: Value
    by: Value
    over: tuple[str, ...]
    select: Select
    shape: Shape


@dataclass(frozen=True, eq=False)
class Gather(Value):
    """The list of the results over some names, in the order of the options."""

    value: Value
    over: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Step:
    """A function whose calls are parts of a flow; `.function` is the plain one.

    `version` stands for the function's code in the keys of its results: name another one where they change. `cache` says
    whether results, and what follows from them, may be kept from run to run.
    """

    function: Callable[..., Any]
    version: str | None = None
    cache: bool = True
    signature: inspect.Signature = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise FlowError(f"a step of {self.function!r}, which is no function", hint="put @step above a def")
        try:
            signature = inspect.signature(self.function)
        except ValueError as error:
            raise FlowError(f"a step of {self.name}, whose parameters cannot be told", hint="call it in a function of your own: then its def tells") from error  # fmt: skip
        defaults = [p.default for p in signature.parameters.values()]
        if any(isinstance(d, Value) for d in defaults):
            raise FlowError(f"step {self.name} has a value of the flow as a default", hint="hand it in as an argument")
        object.__setattr__(self, "signature", signature)
        object.__setattr__(self, "__doc__", self.function.__doc__)
        object.__setattr__(self, "__wrapped__", self.function)

    @property
    def name(self) -> str:
        return getattr(self.function, "__name__", type(self.function).__name__).strip("<>")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Raises FlowError where the arguments do not fit the function's parameters."""
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError as error:
            raise FlowError(f"step {self.name}: {error}", hint=f"it takes {self.signature}") from error
        return Call(self, tuple((k, frozen(v)) for k, v in bound.arguments.items()))


def step(function: Callable[..., Any] | None = None, *, version: str | None = None, cache: bool = True) -> Any:
    """Make a function a step of flows.

    >>> @step
    ... def double(x): return 2 * x
    >>> double.function(3)
    6
    """
    if function is None:
        return lambda f: Step(f, version, cache)
    return Step(function, version, cache)


def explore(name: str, options: Mapping[str, Any] | Iterable[Any], *, ordered: bool = False) -> Any:
    """One of `options`, by a name; a mapping gives them labels. `ordered`: their order means something, as numbers' does.

    Raises FlowError where there are none, or two with the same label.
    """
    if isinstance(options, str | bytes):
        raise FlowError(f"explore {name!r} over the text {options!r}", hint=f"give a list: [{options!r}]")
    if not isinstance(options, Mapping | Sequence):
        options = list(options)
    if not 0 < len(options) <= MOST_OPTIONS:
        raise FlowError(f"explore {name!r} has {len(options)} options", hint=f"give 1 to {MOST_OPTIONS:,}")
    values = list(options.values()) if isinstance(options, Mapping) else list(options)
    labels = [shortened(str(k)) for k in options] if isinstance(options, Mapping) else _labels(values)
    twice = sorted(label for label, n in Counter(labels).items() if n > 1)
    if twice:
        raise FlowError(f"explore {name!r} has the option {twice[0]} twice", hint="name them: {'a': ..., 'b': ...}")
    return Explore(str(name), tuple(labels), tuple(frozen(v) for v in values), ordered)


def _labels(values: Sequence[Any]) -> list[str]:
    """Short and each its own: a number stays as it is, a value is its step's name."""
    found = [label(v) for v in values]
    count = Counter(found)
    return [f"{x} {k}" if count[x] > 1 and isinstance(v, Value) else x for k, (x, v) in enumerate(zip(found, values, strict=True))]  # fmt: skip


def label(value: Any) -> str:
    """A few words for an option."""
    if isinstance(value, Call):
        return value.step.name
    if isinstance(value, Choose | Gather):
        return label(value.value)
    if isinstance(value, Explore):
        return value.name
    if isinstance(value, int) and value.bit_length() > MOST_BITS:
        return shortened(hex(value))
    value = value.item() if isinstance(value, np.generic) else value
    if isinstance(value, str | int | float | bool | None):
        return shortened(str(value))
    told = getattr(value, "__name__", None) or repr(value)
    return " ".join(str(told).split())[:60]


def shortened(text: str) -> str:
    """A text that may be of megabytes as one for people, each still its own: with its length and a check sum."""
    return text if len(text) <= MOST_LABEL else f"{text[:40]}... ({len(text):,} characters, {zlib.crc32(text.encode('utf-8', 'surrogatepass')):08x})"  # fmt: skip


def choose(
    value: Any,
    *,
    by: Any,
    over: str | Sequence[str] = (),
    select: Select | None = None,
    shape: Shape = None,
    name: str = "",
) -> Any:
    """Keep the results that `select` says (default: the one with the largest score), over the names `over` (default: all).

    `by` is a value with one number for each result, or a step that makes one of it. With `largest`, `smallest` and `halving`
    the result is what was kept; with the others the list of it: of `top` the best first, of thresholds in the order of the options.
    `shape` says what scores do over the one, ordered name: monotone (rise or fall throughout) or convex (worse on both
    sides of the best); then options that cannot win are never run. A sample that contradicts it is told, and all are run.
    """
    if not isinstance(value, Value):
        raise FlowError(f"choose of {value!r}, which depends on no explore", hint="choose between results of steps")
    by = by(value) if isinstance(by, Step) else by
    if not isinstance(by, Value):
        raise FlowError(f"choose by {by!r}, which is no result of a step", hint="give a step that returns a number")
    if shape not in (None, "monotone", "convex"):
        raise FlowError(f"shape {shape!r}", hint="monotone or convex")
    names = (over,) if isinstance(over, str) else tuple(over)
    return Choose(name, value, by, names, select or Best(1, largest=True, single=True), shape)


def gather(value: Any, *, over: str | Sequence[str]) -> Any:
    """The list of a value's results over some names: folds to be averaged, models to be voted."""
    if not isinstance(value, Value):
        raise FlowError(f"gather of {value!r}, which depends on no explore", hint="gather results of steps")
    return Gather(value, (over,) if isinstance(over, str) else tuple(over))


def frozen(argument: Any, level: int = 0) -> Any:
    """An argument whose lists and dicts nobody else holds, so that values in them stay what they are.

    Values that lie elsewhere, in a set, say, are found and refused by `keys`. Raises FlowError for a list that holds itself.
    """
    if level > MOST_LEVELS:
        raise FlowError(
            f"an argument with more than {MOST_LEVELS} lists in each other: a cycle", hint="a flow has no circles"
        )
    if type(argument) in (list, tuple):
        return type(argument)(frozen(x, level + 1) for x in argument)
    if type(argument) is dict and not any(isinstance(k, Value) for k in argument):
        return {k: frozen(x, level + 1) for k, x in argument.items()}
    return argument.function if isinstance(argument, Step) else argument
