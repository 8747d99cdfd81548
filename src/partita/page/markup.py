"""The little HTML and SVG that the page needs: elements with escaped attributes, escaped text, scales."""

from __future__ import annotations

import html
from dataclasses import dataclass

from partita.page.text import nice_step

Attribute = str | int | float | None


def words(text: object) -> str:
    """Text made safe to stand in a page.

    >>> words("a < b")
    'a &lt; b'
    """
    return html.escape(str(text))


def tag(name: str, *inner: str, **attributes: Attribute) -> str:
    """An element around markup that is safe already; attributes are escaped, `class_` is class, None is left out.

    >>> tag("text", words("F0 > B0"), class_="tick", x=1.50, data_i=3)
    '<text class="tick" x="1.5" data-i="3">F0 &gt; B0</text>'
    """
    pairs = "".join(
        f' {k.rstrip("_").replace("_", "-")}="{html.escape(number(v))}"' for k, v in attributes.items() if v is not None
    )
    return f"<{name}{pairs}>{''.join(inner)}</{name}>"


def number(value: Attribute) -> str:
    """A number without needless digits.

    >>> number(1.50), number(2), number(0.00004), number("50%")
    ('1.5', '2', '0', '50%')
    """
    if isinstance(value, float):
        text = f"{value:.3f}".rstrip("0").rstrip(".")
        return "0" if text == "-0" else text
    return str(value)


@dataclass(frozen=True, slots=True)
class Scale:
    """A line from values to pixels."""

    low: float
    high: float
    start: float  #: where `low` is drawn
    end: float  #: where `high` is drawn

    def __call__(self, value: float) -> float:
        return self.start + (value - self.low) / ((self.high - self.low) or 1.0) * (self.end - self.start)

    def clamped(self, value: float) -> float:
        return self(min(max(value, self.low), self.high))

    def ticks(self, most: int) -> list[float]:
        """Round values between low and high.

        >>> Scale(0.0, 1.0, 0, 100).ticks(5)
        [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
        """
        step = nice_step(self.high - self.low, most)
        first = -int(-self.low // step) if self.low % step else round(self.low / step)
        values = [round(k * step, 12) for k in range(first, first + most + 2)]
        return [v for v in values if self.low - 1e-9 * step <= v <= self.high + 1e-9 * step]
