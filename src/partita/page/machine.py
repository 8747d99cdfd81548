"""The facts about this machine that stand beside every figure."""

from __future__ import annotations

import os
import platform
import sys
import time
from importlib.metadata import version
from typing import Any

from partita import __version__
from partita.spawn import usable_cores


def machine_facts() -> dict[str, Any]:
    """What to note beside a figure: machine, versions, load, time of day."""
    return {
        "machine": _cpu_name(),
        "cores": usable_cores(),
        "gpus": _gpu_names(),
        "load": list(os.getloadavg()),
        "partita": __version__,
        "torch": version("torch"),
        "python": platform.python_version(),
        "time": time.strftime("%Y-%m-%d %H:%M:%S"),
    }


def _cpu_name() -> str:
    with open("/proc/cpuinfo") as file:
        for line in file:
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def _gpu_names() -> list[str]:
    """The GPUs that torch sees; none where no torch is loaded, so that nobody waits for it here."""
    torch = sys.modules.get("torch")
    return [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] if torch else []
