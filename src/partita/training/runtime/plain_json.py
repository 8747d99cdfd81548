"""Values of optimizers and schedulers as JSON that gives them back as they were: nothing is pickled.

JSON's own values stay what they are; the rest is an object with one key that begins with "~":

    {"~tuple": [0.9, 0.999]}   {"~dict": [[2, 1], [4, 1]]}   {"~counter": [[2, 1]]}   {"~number": "inf"}
    {"~tensor": [0.1], "dtype": "float32", "shape": []}
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any

import torch
from torch import Tensor

from partita.errors import CheckpointError

MOST_ELEMENTS = 4096  #: of a tensor inside JSON: a learning rate, not a weight
_NUMBERS = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}


def to_plain(value: Any, what: str) -> Any:
    """The value as JSON. Raises CheckpointError for what JSON cannot give back; it begins with `what`: "SGD's field 'lr'".

    >>> to_plain({"betas": (0.9, math.inf)}, "it")
    {'betas': {'~tuple': [0.9, {'~number': 'inf'}]}}
    """
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):  # also numpy's: a schedule may be computed with it
        return float(value) if math.isfinite(value) else {"~number": str(float(value))}
    if isinstance(value, list):
        return [to_plain(v, what) for v in value]
    if type(value) is tuple:
        return {"~tuple": [to_plain(v, what) for v in value]}
    if isinstance(value, dict) and type(value) in (dict, Counter):
        return _dict_to_plain(value, what)
    if isinstance(value, Tensor) and value.numel() <= MOST_ELEMENTS and not value.is_complex():
        flat = [to_plain(v, what) for v in value.detach().reshape(-1).tolist()]
        return {"~tensor": flat, "dtype": str(value.dtype).removeprefix("torch."), "shape": list(value.shape)}
    raise CheckpointError(
        f"{what} is a {type(value).__name__}, which no checkpoint holds",
        hint="keep numbers, texts, lists and tensors there; a class of one's own can say so in its state_dict()",
    )


def _dict_to_plain(value: Mapping[Any, Any], what: str) -> Any:
    if type(value) is dict and all(isinstance(k, str) and not k.startswith("~") for k in value):
        return {k: to_plain(v, what) for k, v in value.items()}
    tag = "~counter" if isinstance(value, Counter) else "~dict"
    return {tag: [[to_plain(k, what), to_plain(v, what)] for k, v in value.items()]}


def from_plain(value: Any) -> Any:
    """What `to_plain` was given. Raises ValueError, TypeError or KeyError for anything that it never wrote.

    >>> from_plain(to_plain({"a": (1, {2: float("inf")})}, "it"))
    {'a': (1, {2: inf})}
    """
    if isinstance(value, list):
        return [from_plain(v) for v in value]
    if not isinstance(value, dict):
        return value
    tag = next((k for k in value if k.startswith("~")), "")
    if not tag:
        return {k: from_plain(v) for k, v in value.items()}
    held = value[tag]
    if tag == "~number":
        return _NUMBERS[held]
    if not isinstance(held, list):
        raise ValueError(f"{tag} of a {type(held).__name__}")
    if tag == "~tuple":
        return tuple(from_plain(v) for v in held)
    if tag in ("~dict", "~counter"):
        pairs = {from_plain(k): from_plain(v) for k, v in held}
        return Counter(pairs) if tag == "~counter" else pairs
    if tag == "~tensor":
        dtype = getattr(torch, str(value["dtype"]))
        if not isinstance(dtype, torch.dtype):
            raise ValueError(f"{value['dtype']} is no type of tensor")
        return torch.tensor([from_plain(v) for v in held], dtype=dtype).reshape(value["shape"])
    raise ValueError(f"unknown {tag}")
