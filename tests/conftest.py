"""Shared by all tests: the tests folder is importable (tests/training/runtime/helpers.py is `run.helpers`)."""

import signal
import sys
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("partita", deadline=None, derandomize=True)  # the same examples everywhere, however slow
settings.load_profile("partita")

sys.path.insert(0, str(Path(__file__).parent))

# A shell that starts the tests in the background lets them ignore Ctrl-C, and every command they start would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

#: Tests that pin cores, run several processes at once or measure time; `make test` runs them one at a time, after the others.
MACHINE = (
    "cli/test_cli_demo.py",
    "cli/test_cli_measure.py",
    "cli/test_cli_run.py",
    "models/measure",
    "offload/measure",
    "offload/run",
    "placement/plan/test_free_benchmark.py",
    "simulate/test_benchmark_simulator.py",
    "testbed",
    "training/measure",
    "training/runtime",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    tests = Path(__file__).parent
    for item in items:
        place = item.path.relative_to(tests).as_posix()
        if any(place == name or place.startswith(f"{name}/") for name in MACHINE):
            item.add_marker("machine")
