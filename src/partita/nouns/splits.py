"""Split: an operator in parts, along the batch or a channel dim, as a profile and a plan name it.

    conv2d:batch:2     conv2d_part1 on the first half of the batch, conv2d_part2 on the second
    conv2d:channel:2   the first half of the output channels, and the second
    norm:ghost:2       along the batch, and BatchNorm sees each half by itself, as if it were the batch

The parts are tasks of the graph like any others. What captures the model applies the same rewrites wherever it does so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, get_args

from partita.errors import BadInput
from partita.records import lean, record

Dim = Literal["batch", "channel", "ghost"]
Change = Literal["none", "moments", "random", "statistics"]
MOST_PARTS = 64
AUTO = ("auto", "auto:ghost")  #: the operators that are worth it by the batch, exactly; with BatchNorm by ghosts

#: What a split changes -> a sentence about it.
MEANING: Mapping[Change, str] = MappingProxyType(
    {
        "none": "exact",
        "moments": "exact: its parts tell each other their moments",
        "random": "draws other random numbers",
        "statistics": "not exact: each part is normalised by itself",
    }
)


@dataclass(frozen=True, slots=True)
class Split:
    """An operator in parts."""

    task: str  #: its id in the graph without splits; while it is asked for, also a pattern: conv2d*
    dim: Dim
    parts: int
    change: Change = "none"  #: what is different from the operator in one piece, but for rounding
    tasks: tuple[str, ...] = ()  #: ids of the parts; empty while it is only asked for

    @property
    def exact(self) -> bool:
        return self.change in ("none", "moments")

    @property
    def asked(self) -> str:
        """As it is written on the command line."""
        return f"{self.task}:{self.dim}:{self.parts}"

    def check(self) -> list[str]:
        """Every fault at once; empty when the split is possible."""
        faults = (
            []
            if self.dim in get_args(Dim)
            else [f"its dim is {self.dim!r}, not {', '.join(get_args(Dim)[:-1])} or {get_args(Dim)[-1]}"]
        )
        faults += [] if 2 <= self.parts <= MOST_PARTS else [f"it has {self.parts} parts, not 2 to {MOST_PARTS}"]
        return [f"split {self.asked}: {f}" for f in faults]


def read_splits(value: Any, error: type[BadInput], what: str) -> tuple[Split, ...]:
    """The splits in a parsed JSON list; none where there is no list. Raises `error` with every fault at once."""
    found = record(_Splits, {"splits": value or []}, error, what, hint="measure and plan again", known_only=True).splits
    faults = [f for s in found for f in s.check()]
    faults += [f"task {t!r} is split twice" for t, n in Counter(s.task for s in found).items() if n > 1]
    if faults:
        raise error(f"{what}: {'; '.join(faults)}", hint="measure and plan again")
    return found


def splits_json(splits: Sequence[Split]) -> list[dict[str, Any]]:
    return [{**lean(s), "change": s.change} for s in splits]


def asked_splits(words: Iterable[str]) -> tuple[Split, ...]:
    """Splits as asked for: TASK:batch:2. Raises BadInput.

    >>> asked_splits(["conv2d:batch:2"])[0].parts
    2
    """
    found = tuple(_asked(word) for word in words)
    faults = [f for s in found for f in s.check()]
    if faults:
        raise BadInput("; ".join(faults), hint="write it like conv2d_1:batch:2")
    return found


def _asked(word: str) -> Split:
    task, *rest = word.split(":")
    if not task or len(rest) != 2 or not rest[1].isdecimal():
        raise BadInput(f"{word!r} is no split", hint="write it like conv2d_1:batch:2, or auto")
    return Split(task, rest[0], int(rest[1]))  # type: ignore[arg-type]


def counted(splits: Sequence[Split]) -> list[str]:
    """What stands in one line each about splits, operators that are split alike together.

    >>> counted([Split("a", "batch", 2), Split("b", "batch", 2), Split("c", "ghost", 2, "statistics")])
    ['2 operators by batch into 2 (exact)', '1 operator by ghost into 2 (not exact: each part is normalised by itself): c']
    """
    alike = Counter((s.dim, s.parts, s.change) for s in splits)
    lines = []
    for (dim, parts, change), n in alike.items():
        line = f"{n} operator{'s' if n > 1 else ''} by {dim} into {parts} ({MEANING[change]})"
        named = [s.task for s in splits if (s.dim, s.parts, s.change) == (dim, parts, change) and change != "none"]
        lines.append(line + (f": {', '.join(named[:6])}{', ..' if len(named) > 6 else ''}" if named else ""))
    return lines


@dataclass(frozen=True)
class _Splits:
    """The list in a file."""

    splits: tuple[Split, ...]
