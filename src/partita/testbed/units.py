"""What a test bed's hosts may be told: rates and shares of a core, read from text and checked.

>>> parse_rate("5mbit"), parse_rate("500kbit"), parse_rate("1gbit"), parse_rate("20")
(5000000, 500000, 1000000000, 20000000)
"""

from __future__ import annotations

import re

from partita.errors import BadInput

SLOWEST_BIT_PER_S = 64_000  #: a full packet takes 0.19 s there; below, TCP times out
FASTEST_BIT_PER_S = 10_000_000_000
LEAST_PERCENT, MOST_PERCENT = 1.0, 6400.0
_UNITS = {"bit": 1.0, "kbit": 1e3, "mbit": 1e6, "gbit": 1e9, "": 1e6}
_RATE = re.compile(r"\s*([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*([a-z/]*)\s*", re.IGNORECASE)


def parse_rate(text: str) -> int:
    """Bits a second from 5mbit, 500kbit, 1gbit, 64000bit; a bare number is in Mbit/s.

    Raises BadInput for another unit (mbps among them: it means megabytes to tc and megabits to others), no number, or a
    rate outside 64 kbit/s to 10 Gbit/s.
    """
    found = _RATE.fullmatch(text)
    if found is None:
        raise BadInput(f"{text!r} is no rate", hint="write a number and a unit: 5mbit, 500kbit, 1gbit")
    unit = found[2].lower()
    if unit not in _UNITS:
        raise BadInput(f"the rate {text!r} has an unknown unit {found[2]!r}", hint="use bit, kbit, mbit or gbit")
    value = float(found[1]) * _UNITS[unit]
    if not SLOWEST_BIT_PER_S <= value <= FASTEST_BIT_PER_S:
        raise BadInput(f"the rate {text[:40]!r} is {value:g} bit/s", hint="rates go from 64kbit to 10gbit")
    return round(value)


def parse_percent(text: str) -> float | None:
    """Percent of one core: 25, 12.5, 200 for two cores; None for "max", no limit.

    Raises BadInput for anything else, and outside 1 to 6400.

    >>> parse_percent("25"), parse_percent("max")
    (25.0, None)
    """
    word = text.strip().removesuffix("%").strip()
    if word == "max":
        return None
    if re.fullmatch(r"[0-9]+(\.[0-9]*)?|\.[0-9]+", word) is None:
        raise BadInput(
            f"{text!r} is no share of a core", hint="write percent of one core: 25, 100, or max for no limit"
        )
    value = float(word)
    if not LEAST_PERCENT <= value <= MOST_PERCENT:
        raise BadInput(
            f"{text[:40]!r} is {value:g} percent of a core", hint=f"give {LEAST_PERCENT:g} to {MOST_PERCENT:g}, or max"
        )
    return value


def percent_text(percent: float | None) -> str:
    """A share of a core in words.

    >>> percent_text(25.0), percent_text(None)
    ('25 %', 'max')
    """
    return "max" if percent is None else f"{percent:g} %"


def rate_text(rate_bit_per_s: int) -> str:
    """As parse_rate reads it, in the largest unit that leaves a short number.

    >>> rate_text(5_000_000), rate_text(500_000), rate_text(2_500_000), rate_text(64_001)
    ('5mbit', '500kbit', '2500kbit', '64001bit')
    """
    for unit in ("gbit", "mbit", "kbit"):
        whole, rest = divmod(rate_bit_per_s, int(_UNITS[unit]))
        if rest == 0:
            return f"{whole}{unit}"
    return f"{rate_bit_per_s}bit"
