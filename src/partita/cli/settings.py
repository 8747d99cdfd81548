"""What several commands are told alike: --set NAME=VALUE, keyword arguments for a job's function; --timeout-s; --budget-s; --seed; -o;
that they are ranks."""

from __future__ import annotations

import argparse
import os

from partita.errors import BadInput


def add_settings(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="an argument for the job's function; may be given several times",
    )


def is_rank() -> bool:
    """Whether something else started this process as one of several: torchrun, or a person."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


LONGEST_S = 1e7  #: that a peer may be waited for


def check_timeout(seconds: float) -> None:
    """Raise BadInput unless --timeout-s is a patience that can be had."""
    if not 0 < seconds <= LONGEST_S:
        raise BadInput(f"--timeout-s {seconds:g}", hint=f"give seconds above 0 and up to {LONGEST_S:g}, e.g. 300")


MOST_BUDGET_S = 1e6  #: for a search: eleven days


def check_budget(seconds: float, option: str = "--budget-s") -> None:
    """Raise BadInput for a budget that is none."""
    if not 0 < seconds <= MOST_BUDGET_S:
        raise BadInput(
            f"a budget of {seconds:g} seconds", hint=f"give {option} a positive number up to {MOST_BUDGET_S:g}"
        )


MOST_SEED = (1 << 31) - 1


def check_seed(seed: int | None) -> None:
    """Raise BadInput for a seed that generators of random numbers, or compiled loops, do not take."""
    if seed is not None and not 0 <= seed <= MOST_SEED:
        raise BadInput(f"a seed of {seed}", hint=f"give --seed a whole number from 0 to {MOST_SEED}")


def check_out(path: str | None) -> None:
    """Raise BadInput for a place that has no name, which would be the current folder."""
    if path == "":
        raise BadInput("-o '' names no place to write to", hint="give a path, or leave -o away")


def settings_of(options: argparse.Namespace) -> dict[str, str]:
    """The --set arguments as a dict. Raises BadInput for one without an equals sign."""
    pairs = [s.partition("=") for s in options.set]
    for name, equals, _ in pairs:
        if not equals or not name.isidentifier():
            raise BadInput(f"--set {name!r} is not NAME=VALUE", hint="e.g. --set data=cifar10")
    return {name: value for name, _, value in pairs}
