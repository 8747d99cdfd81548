"""Shared by all tests: the tests folder is importable (tests/run/helpers.py is `run.helpers`)."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
