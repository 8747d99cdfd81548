"""Messages between device and server: a JSON head and named tensors, in the safetensors format.

Nothing here is ever unpickled. A message is checked where it comes in: its head is a JSON object, its tensors have the sizes
that their shapes say (safetensors checks that), and gRPC refuses messages above the limit before they come here.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load, save

from partita.errors import BadInput

Array = npt.NDArray[Any]
Head = Mapping[str, Any]

PROTOCOL = 3  #: a server and a device of different protocols do not work together
SERVICE = "partita.Offload"
HEALTH = "grpc.health.v1.Health"
MOST_MESSAGE_BYTES = 64 << 20  #: unless told otherwise
SLACK_BYTES = 64 << 10  #: room in a message beside its tensors
CHUNK_BYTES = 256 << 10  #: of a model on its way up, and at most of a measurement of the link ...
LEAST_CHUNK_BYTES = 1 << 10  #: ... at least

_HEAD = "partita"  #: key of the head in the metadata of safetensors
_LENGTH = struct.Struct("<Q")


class WireError(BadInput):
    """A message that is none."""


def pack(head: Head, tensors: Mapping[str, Array] | None = None) -> bytes:
    """One message. O(bytes). Raises WireError for a tensor that cannot travel.

    >>> head, tensors = unpack(pack({"kind": "job"}, {"x": np.arange(3)}))
    >>> head["kind"], tensors["x"].tolist()
    ('job', [0, 1, 2])
    """
    whole = {name: np.ascontiguousarray(t).reshape(np.shape(t)) for name, t in (tensors or {}).items()}
    try:
        return bytes(save(whole, {_HEAD: json.dumps(dict(head))}))
    except (SafetensorError, KeyError, ValueError) as error:  # a type or a name that the format does not have
        raise WireError(f"a message cannot be written: {first_line(error)}") from error


def unpack(raw: bytes) -> tuple[dict[str, Any], dict[str, Array]]:
    """Head and tensors of a message. Raises WireError where it is damaged. O(bytes)."""
    try:
        tensors = dict(load(raw))
        (length,) = _LENGTH.unpack_from(raw)
        head = json.loads(json.loads(raw[_LENGTH.size : _LENGTH.size + length])["__metadata__"][_HEAD])
    except (SafetensorError, ValueError, LookupError, TypeError, RecursionError, struct.error, AttributeError) as error:
        raise WireError(
            f"a message of {len(raw)} bytes is damaged: {type(error).__name__}",
            hint="use the same Partita on both sides",
        ) from error
    if not isinstance(head, dict):
        raise WireError(f"the head of a message is a {type(head).__name__}", hint="use the same Partita on both sides")
    return head, tensors


def zeros(size_bytes: int) -> Iterator[bytes]:
    """So many bytes in about 64 chunks, to measure a link with."""
    step = min(max(size_bytes // 64, LEAST_CHUNK_BYTES), CHUNK_BYTES)
    for at in range(0, size_bytes, step):
        yield bytes(min(step, size_bytes - at))


def first_line(error: BaseException) -> str:
    """The first line of an error's text, cut where it is long, fit to travel."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0][:300].encode(errors="backslashreplace").decode()


def message_bytes(tensors: Mapping[str, Array]) -> int:
    """Upper bound of the size of a message with these tensors and a small head."""
    return SLACK_BYTES + sum(int(t.nbytes) + 256 for t in tensors.values())
