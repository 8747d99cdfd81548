"""Chance: random numbers inside compiled kernels, the same on every machine and with every version of numba."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from partita.solve.compiled import compiled

Words = npt.NDArray[np.uint64]


@compiled
def seeded(seed: int) -> Words:
    """A generator: one word of state, never zero for seeds below 2^31."""
    return np.array([np.uint64(seed) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(0xD1B54A32D192ED03)])


@compiled
def uniform(random: Words) -> float:
    """A number in [0, 1) from the generator's next state (xorshift64; Marsaglia, 2003)."""
    x = random[0]
    x ^= x << np.uint64(13)
    x ^= x >> np.uint64(7)
    x ^= x << np.uint64(17)
    random[0] = x
    return float(x >> np.uint64(11)) * (1.0 / 9007199254740992.0)


@compiled
def between(random: Words, low: int, high: int) -> int:
    """A whole number from low to high - 1."""
    return low + int(uniform(random) * (high - low))
