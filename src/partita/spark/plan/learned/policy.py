"""Trained weights in a file: safetensors, with the version of the features that they were trained for.

    executors   [cluster.WEIGHTS] of executors/learned.py; may be missing
    shop        [shop.WEIGHTS] of online/learned.py; may be missing

Weights mean nothing to other features. So whoever changes a feature raises VERSION, and trains again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from partita.errors import BadInput
from partita.files import read_bytes, write_whole
from partita.nouns.graph import FloatArray
from partita.spark.plan.executors import learned as cluster
from partita.spark.plan.online import learned as shop

Mode = Literal["executors", "shop"]
FORMAT, VERSION = "partita-spark-policy", 1
SHIPPED = Path(__file__).with_name("policy.safetensors")
MOST_BYTES = 1 << 24
LENGTHS: dict[str, int] = {"executors": cluster.WEIGHTS, "shop": shop.WEIGHTS}


@dataclass(frozen=True, eq=False)
class Policy:
    """Weights of one mode or of both."""

    executors: FloatArray | None = None
    shop: FloatArray | None = None

    def weights(self, mode: Mode, what: str = "the policy") -> FloatArray:
        """Raises BadInput where the policy has none of this mode."""
        found: FloatArray | None = getattr(self, mode)
        if found is None:
            raise BadInput(f"{what} has no weights for the mode {mode!r}", hint="train it: partita spark train")
        return found

    def having(self, mode: Mode, weights: FloatArray) -> Policy:
        """The policy with other weights of this mode."""
        return replace(self, **{mode: weights})

    def write(self, path: str | Path) -> Path:
        tensors = {m: np.asarray(w, np.float32) for m in LENGTHS if (w := getattr(self, m)) is not None}
        return write_whole(path, save(tensors, {"format": FORMAT, "version": str(VERSION)}))

    @staticmethod
    def read(path: str | Path) -> Policy:
        """Raises BadInput for what is no policy, one of another version, and one whose weights do not fit."""
        tensors = read_tensors(path, FORMAT, VERSION)
        unknown = sorted(set(tensors) - set(LENGTHS))
        faults = [f"it has unknown weights {unknown}"] if unknown else []
        faults += [fault for mode, w in tensors.items() if mode in LENGTHS for fault in _faults(mode, w)]
        if faults or not tensors:
            raise BadInput(f"{path}: {'; '.join(faults) or 'it has no weights'}", hint="train it again")
        return Policy(**{mode: w.astype(np.float64) for mode, w in tensors.items()})


@cache
def shipped() -> Policy:
    """The policy that comes with the package."""
    return Policy.read(SHIPPED)


def read_tensors(path: str | Path, format: str, version: int) -> Mapping[str, FloatArray]:
    """The tensors of a safetensors file of ours. Raises BadInput, also for another format or version."""
    raw = read_bytes(path, BadInput, MOST_BYTES)
    try:
        says = facts_of(raw)
        if says.get("format") == format and says.get("version") != str(version):
            raise BadInput(
                f"{path} has version {says.get('version')!r}; this Partita reads version {version}",
                hint="train it again with this Partita: partita spark train",
            )
        if says.get("format") != format:
            raise BadInput(f"{path} is no {format}", hint="give a file that partita spark train wrote")
        found: dict[str, FloatArray] = load(raw)
    except (SafetensorError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise BadInput(f"{path} is damaged: {error}", hint="train it again: partita spark train") from error
    return found


def facts_of(raw: bytes) -> dict[str, Any]:
    """The metadata at the head of a safetensors file. Raises ValueError and the like for anything else."""
    length = int.from_bytes(raw[:8], "little")
    if len(raw) < 8 or length > len(raw) - 8:
        raise ValueError("its head is longer than the file")
    return dict(json.loads(raw[8 : 8 + length])["__metadata__"])


def _faults(mode: str, weights: FloatArray) -> list[str]:
    if weights.shape != (LENGTHS[mode],) or weights.dtype not in (np.float32, np.float64):
        return [f"its weights {mode!r} are {list(weights.shape)} of {weights.dtype}, not {[LENGTHS[mode]]} of float32"]
    return [] if np.isfinite(weights).all() else [f"its weights {mode!r} are not all finite numbers"]
