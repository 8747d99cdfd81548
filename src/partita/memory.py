"""Let a process keep the memory it frees.

glibc hands large freed blocks back to the kernel, and a training step allocates the same blocks again and again: the page
faults cost 1 to 15 % of a step on the models tried (a transformers ResNet with 256 channels: 26,000 faults and 245 ms a
step; 30 faults and 213 ms with the memory kept; Xeon, 2 cores, 2026-11-21, `benchmarks/prediction_jobs.py:resnet`, micro-
batches of 2). The memory held at the peak is the same.
"""

from __future__ import annotations

import ctypes
import ctypes.util

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3  # mallopt(3)
_LARGEST_OLD_GLIBC = 32 << 20


def keep_freed_memory() -> bool:
    """Returns whether the C library took it; elsewhere than on glibc nothing changes."""
    try:
        mallopt = ctypes.CDLL(ctypes.util.find_library("c")).mallopt
    except (OSError, AttributeError):
        return False
    mapped = mallopt(_MMAP_THRESHOLD, 1 << 30) or mallopt(_MMAP_THRESHOLD, _LARGEST_OLD_GLIBC)
    return bool(mapped and mallopt(_TRIM_THRESHOLD, (1 << 31) - 1) and mallopt(_TOP_PAD, 64 << 20))
