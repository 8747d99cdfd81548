"""Drift: a change of a device's speed told from noise, by two-sided cumulative sums.

    x = log(seconds it computed in a step / what it computed when things were quiet)     clipped, so that one slow step is one
    up = max(0, up + x - k), down = max(0, down - x - k)                                 an alarm where one of them exceeds h

k is half of the least change that matters, or what noise does by itself; h grows with the noise, too. Slowed to 40 percent a
device is noticed within four steps; noise of 5 percent gives no alarm in many thousands.
Source: Page, "Continuous Inspection Schemes", Biometrika 41, 1954.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

LEAST = 0.12  #: allowance k at least: changes up to twice as large are not looked for
CLIP = 0.7  #: a step counts as twice as slow, or fast, at most
NOISE = 1.5  #: times its spread that k is at least
PATIENCE, NOISY_PATIENCE = 1.5, 12.0  #: h: at least the one, and so many times the spread


@dataclass(frozen=True)
class Drift:
    """One device's sums. `after` gives the next state."""

    usual_s: float
    spread: float  #: of log seconds while it was quiet
    up: float = 0.0
    down: float = 0.0

    @staticmethod
    def of(quiet_s: Sequence[float]) -> Drift:
        """From the steps in which nothing happened: median, and a spread that outliers do not widen.

        >>> Drift.of([1.0, 1.1, 0.9, 1.0, 9.0]).usual_s
        1.0
        """
        usual = statistics.median(quiet_s)
        off = [abs(math.log(max(s, 1e-9) / max(usual, 1e-9))) for s in quiet_s]
        return Drift(usual, 1.4826 * statistics.median(off))

    @property
    def alarmed(self) -> bool:
        return max(self.up, self.down) > max(PATIENCE, NOISY_PATIENCE * self.spread)

    def after(self, seconds: float) -> Drift:
        """The state after a step in which the device computed for so long."""
        x = math.log(max(seconds, 1e-9) / max(self.usual_s, 1e-9))
        x, k = min(max(x, -CLIP), CLIP), max(LEAST, NOISE * self.spread)
        return replace(self, up=max(0.0, self.up + x - k), down=max(0.0, self.down - x - k))
