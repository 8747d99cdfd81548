"""Shared by all tests: the tests folder is importable (tests/training/runtime/helpers.py is `run.helpers`)."""

import os
import signal
import sys
from pathlib import Path

import pytest
from hypothesis import settings

if (
    "PYTEST_XDIST_WORKER" in os.environ
):  # two at a time: more threads of the linear algebra would only wait for each other
    os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}

settings.register_profile("partita", deadline=None, derandomize=True)  # the same examples everywhere, however slow
settings.load_profile("partita")

sys.path.insert(0, str(Path(__file__).parent))

# A shell that starts the tests in the background lets them ignore Ctrl-C, and every command they start would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

#: Tests that measure time or what a machine does; `make test` runs them one at a time, after the others.
MACHINE = (
    "benchmarks/test_harness_processes.py",
    "cli/test_cli_measure.py",
    "dataflow/run/test_flow_dask.py",
    "models/measure/test_campaign.py",
    "models/measure/test_campaign_step.py",
    "offload/measure",
    "offload/run/test_offload_link.py",
    "offload/run/test_offload_run_verb.py",
    "simulate/test_benchmark_simulator.py",
    "spark/run/test_spark_end_to_end.py",
    "testbed",
    "training/measure/test_links.py",
    "training/measure/test_machine.py",
    "training/measure/test_together.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    tests = Path(__file__).parent
    for item in items:
        place = item.path.relative_to(tests).as_posix()
        if any(place == name or place.startswith(f"{name}/") for name in MACHINE):
            item.add_marker("machine")
