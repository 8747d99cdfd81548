"""Shared by all tests: the tests folder is importable (tests/training/runtime/helpers.py is `run.helpers`)."""

import signal
import sys
from pathlib import Path

from hypothesis import settings

settings.register_profile("partita", deadline=None, derandomize=True)  # the same examples everywhere, however slow
settings.load_profile("partita")

sys.path.insert(0, str(Path(__file__).parent))

# A shell that starts the tests in the background lets them ignore Ctrl-C, and every command they start would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
