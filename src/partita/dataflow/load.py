"""The flow that a Python file describes: FLOW.py, or FLOW.py:function for another function than `flow`."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from partita.dataflow.run.keeping import sources_behind
from partita.errors import FlowError, PartitaError, place_of, sentence_of


@dataclass(frozen=True)
class Loaded:
    """What a file's function returned, and where it came from."""

    value: Any  #: of `graph.unfold`
    module: ModuleType
    path: Path
    function: str
    sources: Mapping[str, str]  #: own files that it imports -> the sha256 of what is in them


def load_flow(source: str) -> Loaded:
    """Raises FlowError where the file or its function is missing, or raises itself."""
    told, colon, name = source.rpartition(":")
    path, name = (Path(told), name) if colon and told.endswith(".py") else (Path(source), "flow")
    if not path.is_file() or path.suffix != ".py":
        raise FlowError(
            f"{path} is no {'Python ' if path.is_file() else ''}file", hint="give a Python file with a function flow()"
        )
    if str(path.resolve().parent) not in sys.path:
        sys.path.append(str(path.resolve().parent))
    sources = sources_behind([path])  # before any of them is imported
    module = _module(path.resolve())
    function = getattr(module, name, None)
    if not callable(function):
        raise FlowError(f"{path} has no function {name!r}", hint="name it: FLOW.py:function")
    try:
        return Loaded(function(), module, path.resolve(), name, sources)
    except (PartitaError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise FlowError(f"{path}:{name} failed{place_of(error)}: {sentence_of(error)}", hint=f"call {name}() in Python to see the whole trace") from error  # fmt: skip


def _module(path: Path) -> ModuleType:
    """The file as a module; those beside it can be imported, now and when a step runs."""
    name = f"partita_flow_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (PartitaError, KeyboardInterrupt):
        raise
    except BaseException as error:
        sys.modules.pop(name, None)
        raise FlowError(f"{path} cannot be imported{place_of(error)}: {sentence_of(error)}", hint=f"run python {path}") from error  # fmt: skip
    return module
