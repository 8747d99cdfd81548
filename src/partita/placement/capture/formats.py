"""Which public format a file has, told by its first bytes."""

from __future__ import annotations

import re
from pathlib import Path

from partita.errors import GraphError
from partita.nouns.placement_problem import PlacementProblem
from partita.placement.capture import dnn_partitioning, pipedream

HEAD_BYTES = 4096


def read_problem(path: str | Path, devices: int | None = None, bandwidth_bytes_per_s: float = 1e9) -> PlacementProblem:
    """The problem in a dnn-partitioning graph or a PipeDream profile.

    Raises GraphError where it is neither, and whatever the reader of its format raises.
    """
    return {"dnn-partitioning": dnn_partitioning.read, "pipedream": pipedream.read}[sniff(path)](
        path, devices, bandwidth_bytes_per_s
    )


def sniff(path: str | Path) -> str:
    """The name of a file's format: "dnn-partitioning" or "pipedream". Reads HEAD_BYTES at most.

    Raises GraphError where it is missing, empty, or neither.
    """
    try:
        with Path(path).open("rb") as file:
            head = file.read(HEAD_BYTES)
    except OSError as error:
        raise GraphError(f"{path} cannot be read: {error.strerror}", hint="check the path") from error
    text = head.decode("utf-8-sig", errors="replace").lstrip(" \r\n")
    if not text.strip():
        raise GraphError(f"{path} is empty", hint="give a graph with at least one node")
    if text.startswith("{"):
        key = re.match(r'\{\s*"([^"]*)"', text)
        if key and key[1] != "format" and set(re.findall(r'"(\w+)"\s*:', text)) & {*dnn_partitioning.TOP}:
            return "dnn-partitioning"
        found = f"its first field is {key[1][:40]!r}" if key else "it opens with a brace and no field"
        known = ", ".join(dnn_partitioning.TOP)
        raise GraphError(f"{path} is no dnn-partitioning graph: {found}", hint=f"known fields: {known}")
    first = text.splitlines()[0]
    if " -- " in first:
        return "pipedream"
    shown = re.sub(r"[^\x20-\x7e]", "?", first[:40])
    raise GraphError(
        f"{path} is neither a dnn-partitioning graph nor a PipeDream profile: line 1 begins {shown!r}",
        hint="see docs/reference/formats.md",
    )
