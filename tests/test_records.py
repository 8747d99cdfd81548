"""Dataclasses as JSON: what is written is read back, what does not fit is told with its place, all at once."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import pytest

from partita.errors import BadInput
from partita.records import lean, record


class Slot(NamedTuple):
    part: str
    number: int


@dataclass(frozen=True)
class Part:
    name: str
    size: float = 1.0


@dataclass(frozen=True)
class Whole:
    from_: str
    kind: Literal["a", "b"]
    parts: tuple[Part, ...]
    slots: Mapping[str, tuple[Slot, ...]] = field(default_factory=dict)
    pair: tuple[int, str] = (1, "x")
    maybe: float | None = None
    names: frozenset[str] = frozenset()
    extra: Any = None
    sure: bool = False


WHOLE = Whole("f", "a", (Part("p"), Part("q", 2.0)), {"d": (Slot("F", 1),)}, (2, "y"), 0.5, extra={"x": [1]}, sure=True)
JSON: dict[str, Any] = {
    "from": "f", "kind": "a", "parts": [{"name": "p"}, {"name": "q", "size": 2.0}], "slots": {"d": [["F", 1]]},
    "pair": [2, "y"], "maybe": 0.5, "extra": {"x": [1]}, "sure": True,
}  # fmt: skip


def test_both_ways() -> None:
    assert lean(WHOLE) == JSON
    assert record(Whole, json.loads(json.dumps(JSON)), BadInput, "it") == WHOLE
    assert record(Whole, {**JSON, "names": ["n", "m"], "parts": [], "maybe": None}, BadInput, "it").names == {"m", "n"}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"from": 1, "kind": "c"}, "from is 1, not text; kind is 'c', not one of 'a', 'b'"),
        ({"parts": {}}, "parts is {}, not a list"),
        ({"parts": [{}, 3, {"name": "p", "size": True}]}, "parts[0].name is missing; parts[1] is 3, not a table; parts[2].size is True, not a number"),
        ({"slots": {"d": [["F"]]}}, "slots.d[0] is ['F'], not a list of 2"),
        ({"slots": {"d": [["F", 1.0]]}}, "slots.d[0][1] is 1.0, not a whole number"),
        ({"pair": "xy"}, "pair is 'xy', not a list"),
        ({"maybe": "x", "sure": 1}, "maybe is 'x', not a number; sure is 1, not true or false"),
        ({"maybe": 10**400}, "maybe is 'a whole number of hundreds of digits', not a number"),
        ({"parts": [{"name": "p", "colour": 1}]}, "parts[0].colour is unknown (known: name, size)"),
    ],
)  # fmt: skip
def test_faults_have_their_place(change: dict[str, Any], says: str) -> None:
    with pytest.raises(BadInput) as caught:
        record(Whole, {**JSON, **change}, BadInput, "it", hint="mend it", known_only=True)
    assert caught.value.message == f"it: {says}"
    assert caught.value.hint == "mend it"


def test_what_is_no_object_at_all() -> None:
    with pytest.raises(BadInput, match="it: it is None, not a table"):
        record(Part, None, BadInput, "it")
    assert record(Part, {"name": "p", "colour": 1}, BadInput, "it") == Part("p")
