"""Functions as machine code, compiled when first called and kept on disk."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

F = TypeVar("F", bound=Callable[..., Any])


def compiled(function: F) -> F:
    """The function as machine code, kept on disk where a folder for it can be written, else for this process only."""
    try:
        return cast(F, numba.njit(cache=True, nogil=True)(function))
    except RuntimeError:  # numba found no folder for its cache
        return cast(F, numba.njit(nogil=True)(function))
