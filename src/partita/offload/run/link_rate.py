"""The uplink's rate as the transfers show it."""

from __future__ import annotations

from dataclasses import dataclass

_WEIGHT = 0.4  #: of the newest transfer
_LEAST_S = 10e-3  #: transfers that should take less tell more of the overhead than of the rate ...
_LONG_S = 0.1  #: ... unless they take so long


@dataclass(slots=True)
class RateEstimate:
    """Exponentially weighted mean of the transfers' rates, beginning with what the plan assumed."""

    planned: float  #: bytes a second
    now: float = 0.0
    seen: float = 0.0  #: as transfers that ended tell: one that is under way for ever does not lower it

    def __post_init__(self) -> None:
        self.now = self.seen = self.now or self.planned

    def saw(self, size_bytes: float, seconds: float) -> None:
        """A transfer that took so long."""
        if self._tells(size_bytes, seconds):
            self.now += _WEIGHT * (size_bytes / seconds - self.now)
            self.seen = self.now

    def still_waiting(self, size_bytes: float, seconds: float) -> None:
        """A transfer under way for so long cannot be faster than this."""
        if self._tells(size_bytes, seconds):
            self.now = min(self.now, size_bytes / seconds)

    def _tells(self, size_bytes: float, seconds: float) -> bool:
        return seconds > 0 and (size_bytes >= _LEAST_S * self.planned or seconds >= _LONG_S)

    def drifted(self, share: float) -> bool:
        """Whether the rate is off the planned one by more than a share of it.

        >>> rate = RateEstimate(1e6)
        >>> for _ in range(9): rate.saw(1e5, 0.2)
        >>> round(rate.now / 1e6, 1), rate.drifted(0.25)
        (0.5, True)
        """
        return abs(self.now - self.planned) > share * self.planned
