"""campaign.toml: what is to be measured, checked at the door."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from partita.errors import BadInput, refuse
from partita.files import read_toml
from partita.models.measure.networks import ACTIVATIONS, FACTORS, FRAMEWORKS, OPTIMIZERS

Level = int | str
MOST_WORKERS = 64
MOST_NUMBER = 1e100  #: whole numbers of a file may be too large for a float


@dataclass(frozen=True)
class Campaign:
    """What a campaign measures, and how."""

    rows: int  #: configurations to draw; the full product where that is smaller
    networks: Mapping[str, Mapping[str, tuple[Level, ...]]]  #: network -> factor -> levels
    frameworks: tuple[str, ...] = FRAMEWORKS
    workers: tuple[int, ...] = (1, 2)
    seed: int = 0
    passes: int = 3  #: visits of each configuration that must agree
    extra: int = 3  #: further visits of a configuration whose visits do not agree, at most
    spread: float = 0.03  #: visits agree when the largest is at most this share above the smallest
    visit_s: float = 0.4  #: about how long a visit times steps
    block: int = 60  #: configurations that are kept compiled at a time
    least_flops: float = 0.0  #: of a forward pass of a worker's batch; smaller configurations are not drawn
    most_flops: float = float("inf")  #: likewise for larger ones
    timeout_s: float = 120.0  #: a visit, compilation included, that takes longer has failed

    @staticmethod
    def read(path: str | Path) -> Campaign:
        """The campaign in a TOML file. Raises BadInput with all its faults."""
        value = read_toml(path, BadInput)
        faults = _faults(value)
        refuse(BadInput, faults, str(path), hint="see docs/guides/campaigns.md for a whole file")
        networks = {n: {f: tuple(levels) for f, levels in t.items()} for n, t in value["network"].items()}
        head: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in value["campaign"].items()}
        return Campaign(networks=networks, **head)

    def fingerprint(self) -> str:
        """Tells campaigns apart: equal for two files that ask for the same rows measured in the same way."""
        told = json.dumps(asdict(self), sort_keys=True)
        return hashlib.sha256(told.encode()).hexdigest()[:16]


_WHOLE = {"rows": (1, 10**6), "seed": (0, 2**63 - 1), "passes": (1, 1000), "extra": (0, 1000), "block": (1, 10**6)}
_NUMBERS = ("spread", "visit_s", "least_flops", "most_flops", "timeout_s")
_HEAD = (*_WHOLE, *_NUMBERS, "frameworks", "workers")
_WORDS = {"activation": ACTIVATIONS, "optimizer": OPTIMIZERS}


def _faults(value: Mapping[str, Any]) -> list[str]:
    faults = [_unknown("table", t, ("campaign", "network")) for t in value if t not in ("campaign", "network")]
    head, networks = value.get("campaign"), value.get("network")
    faults += _head_faults(head) if isinstance(head, dict) else ["no table [campaign]"]
    if not isinstance(networks, dict) or not networks:
        return [*faults, "no table [network.NAME]"]
    for name, table in networks.items():
        if name not in FACTORS:
            faults.append(_unknown("network", name, tuple(FACTORS)))
        elif not isinstance(table, dict):
            faults.append(f"network.{name} is no table")
        else:
            faults += _network_faults(name, table)
    return faults


def _head_faults(head: Mapping[str, Any]) -> list[str]:
    faults = [_unknown("key", f"campaign.{k}", tuple(f"campaign.{h}" for h in _HEAD)) for k in head if k not in _HEAD]
    faults += [] if "rows" in head else ["campaign.rows is missing"]
    for key, (least, most) in _WHOLE.items():
        if key in head and not (_is_whole(head[key]) and least <= head[key] <= most):
            faults.append(f"campaign.{key} is {head[key]!r}, not a whole number from {least} to {most}")
    for key in _NUMBERS:
        if key in head and not _is_positive(head[key], zero=key == "least_flops"):
            faults.append(f"campaign.{key} is {head[key]!r}, not a number above 0")
    faults += _list_faults("campaign.frameworks", head.get("frameworks", list(FRAMEWORKS)), FRAMEWORKS)
    return faults + _list_faults("campaign.workers", head.get("workers", [1]), None, most=MOST_WORKERS)


def _network_faults(name: str, table: Mapping[str, Any]) -> list[str]:
    faults = []
    for factor in table:
        if factor not in FACTORS[name]:
            faults.append(_unknown(f"factor of {name}", factor, FACTORS[name]))
    for factor in FACTORS[name]:
        if factor not in table:
            faults.append(f"network.{name}.{factor} is missing")
        else:
            faults += _list_faults(f"network.{name}.{factor}", table[factor], _WORDS.get(factor))
    return faults


def _list_faults(key: str, levels: Any, words: Sequence[str] | None, *, most: int = 1 << 16) -> list[str]:
    """What is wrong with a list of levels: words where `words` are given, else whole numbers from 1 to `most`."""
    if not isinstance(levels, list) or not levels:
        return [f"{key} is {levels!r}, not a list with at least one level"]
    if words is not None:
        wrong = [_unknown(key, str(x), words) for x in levels if not isinstance(x, str) or x not in words]
    else:
        wrong = [
            f"{key} has {x!r}, not a whole number from 1 to {most}"
            for x in levels
            if not _is_whole(x) or not 1 <= x <= most
        ]
    twice = sorted({str(x) for x in levels if levels.count(x) > 1})
    return wrong + [f"{key} has {x} twice" for x in twice]


def _unknown(what: str, found: str, known: Sequence[str]) -> str:
    close = get_close_matches(found, known, 1)
    return f"{what} {found!r} is unknown" + (f" ({close[0]}?)" if close else f" (there are {', '.join(known)})")


def _is_whole(x: Any) -> bool:
    return isinstance(x, int) and not isinstance(x, bool)


def _is_positive(x: Any, *, zero: bool = False) -> bool:
    number = isinstance(x, int | float) and not isinstance(x, bool) and abs(x) < MOST_NUMBER
    return number and (x > 0 or (zero and x == 0))
