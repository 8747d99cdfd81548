"""The scripts of benchmarks/, which is no package, as modules."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

FOLDER = Path(__file__).parents[1] / "benchmarks"


def loaded(name: str) -> ModuleType:
    """A script as the module `benchmark_NAME`, since `offload` or `models` are folders of tests, too.

    What it imports of its own folder (harness, intervals ..) keeps its plain name; no folder of tests is called so.
    """
    alias = f"benchmark_{name}"
    if alias in sys.modules:
        return sys.modules[alias]
    spec = importlib.util.spec_from_file_location(alias, FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    sys.modules[alias] = module = importlib.util.module_from_spec(spec)
    sys.path.append(str(FOLDER))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(FOLDER))
    return module
