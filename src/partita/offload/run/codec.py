"""How the crossing tensors travel.

    raw        as they are
    lossless   bytes of equal significance together (a byte shuffle), then zlib level 1: exact
    int8       one byte a number, an affine map for each tensor: the answers then differ

Only float32 tensors are coded; others, and those that would not get smaller, travel raw.
"""

from __future__ import annotations

import math
import time
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from partita.nouns.offload import OffloadJob, OffloadProblem, OffloadTask
from partita.offload.run.wire import Array, WireError, first_line

Codec = Literal["raw", "lossless", "int8"]


def encode(tensors: Mapping[str, Array], codec: Codec) -> tuple[dict[str, Any], dict[str, Array]]:
    """(what `decode` needs to know of each coded tensor, tensors to send). O(bytes)."""
    coding: dict[str, Any] = {}
    sent: dict[str, Array] = {}
    for name, t in tensors.items():
        how, sent[name] = _encoded(t, codec) if t.dtype == np.float32 and t.size else (None, t)
        if how:
            coding[name] = {**how, "shape": list(t.shape)}
    return coding, sent


def _encoded(t: Array, codec: Codec) -> tuple[dict[str, Any] | None, Array]:
    if codec == "lossless":
        shuffled = np.ascontiguousarray(np.ascontiguousarray(t).view(np.uint8).reshape(-1, 4).T)
        packed = np.frombuffer(zlib.compress(shuffled.tobytes(), 1), np.uint8)
        return ({"codec": codec}, packed) if packed.nbytes < t.nbytes else (None, t)
    if codec == "int8":
        low, high = float(t.min()), float(t.max())
        step = (high - low) / 255 or 1.0
        if not max(abs(low), abs(step)) < 1e35:  # infinite, or about to become so
            return None, t
        return {"codec": codec, "low": low, "step": step}, np.rint((t - low) / step).astype(np.uint8)
    return None, t


def decode(coding: Any, tensors: Mapping[str, Array], most_bytes: int) -> dict[str, Array]:
    """The tensors as they were (int8: within half a step). O(bytes).

    Raises WireError where sizes do not fit, and before more than `most_bytes` are made of all coded tensors together.
    """
    if not isinstance(coding, Mapping):
        raise WireError(f"the coding of a message is a {type(coding).__name__}")
    out, room = dict(tensors), most_bytes
    for name, how in coding.items():
        try:
            shape = tuple(int(n) for n in how["shape"])
            out[name] = _decoded(how, shape, tensors[name], room)
        except (KeyError, TypeError, ValueError, IndexError, zlib.error, OverflowError) as error:
            raise WireError(
                f"tensor {name!r} cannot be decoded: {type(error).__name__}: {first_line(error)}"
            ) from error
        room -= out[name].nbytes
    return out


def _decoded(how: Mapping[str, Any], shape: tuple[int, ...], sent: Array, room: int) -> Array:
    count = math.prod(shape)
    if min(shape, default=0) < 0 or 4 * count > room:
        raise ValueError(f"shape {shape} is above {room} bytes")
    if how["codec"] == "lossless":
        machine = zlib.decompressobj()
        raw = machine.decompress(sent.tobytes(), 4 * count + 1)
        if len(raw) != 4 * count:
            raise ValueError(f"{len(raw)} bytes for shape {shape}")
        return np.ascontiguousarray(np.frombuffer(raw, np.uint8).reshape(4, -1).T).view(np.float32).reshape(shape)
    if how["codec"] == "int8":
        if sent.dtype != np.uint8 or sent.size != count:
            raise ValueError(f"{sent.size} numbers for shape {shape}")
        step, low = float(how["step"]), float(how["low"])
        if not max(abs(step), abs(low)) < 1e35:
            raise ValueError(f"low {low:g}, step {step:g}")
        return (sent.astype(np.float32) * np.float32(step) + np.float32(low)).reshape(shape)
    raise ValueError(f"unknown codec {how['codec']!r}")


@dataclass(frozen=True, slots=True)
class CodecCost:
    """What a codec does to a byte on this machine, in CPU seconds."""

    ratio: float  #: bytes sent for one byte of the tensor
    encode_s_per_byte: float
    decode_s_per_byte: float


def measure_codec(codec: Codec, sample: Mapping[str, Array], repeats: int = 3) -> CodecCost:
    """Ratio and times of coding a sample of crossing tensors here; the least of `repeats` runs each. Where nothing crosses, nothing is
    coded."""
    total = sum(t.nbytes for t in sample.values())
    if not total:
        return CodecCost(1.0, 0.0, 0.0)
    there, back, sent_bytes = [], [], 0
    for _ in range(repeats):
        began = time.thread_time()
        coding, sent = encode(sample, codec)
        there.append(time.thread_time() - began)
        sent_bytes = sum(t.nbytes for t in sent.values())
        began = time.thread_time()
        decode(coding, sent, 1 << 62)
        back.append(time.thread_time() - began)
    return CodecCost(sent_bytes / total, min(there) / total, min(back) / total)


def priced(problem: OffloadProblem, cost: CodecCost) -> OffloadProblem:
    """The problem as a planner should see it when crossing tensors travel coded: fewer bytes cross, and each that does takes of both
    sides the CPU time that it took to code and to decode it, the same there as here. Answers (outputs that no task reads) travel raw."""
    here, there = (problem.speeds.device.share, problem.speeds.server.share) if problem.speeds else (1.0, 1.0)
    link = replace(
        problem.link,
        send_s_per_byte=problem.link.send_s_per_byte + cost.encode_s_per_byte / cost.ratio / here,
        receive_s_per_byte=problem.link.receive_s_per_byte + cost.decode_s_per_byte / cost.ratio / there,
    )
    return replace(problem, link=link, jobs=tuple(_scaled(j, cost.ratio) for j in problem.jobs))


def _scaled(job: OffloadJob, factor: float) -> OffloadJob:
    read = {i for t in job.tasks for i in t.inputs}

    def task(t: OffloadTask) -> OffloadTask:
        return replace(t, output_bytes=t.output_bytes * factor) if t.id in read else t

    return replace(job, input_bytes=job.input_bytes * factor, tasks=tuple(task(t) for t in job.tasks))
