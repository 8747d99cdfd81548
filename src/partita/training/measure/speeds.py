"""How fast the devices are beside each other, told by readings of the probe that were taken on all of them at the same time.

Readings scatter, and the machine drifts under them: so the time is cut into spans, a device is compared with the measured
one within each, and it is called slower or faster only where the spans agree about it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from partita.nouns.cluster import Device
from partita.nouns.graph import FloatArray
from partita.nouns.probe import Probe, ProbePiece, middle_mean, per_work, scatter

ALIKE = 0.03  #: devices whose speeds differ by less are called equal
_SPANS = 8


def job_probe(
    pieces: Sequence[ProbePiece], micro_batch_size: int, own: FloatArray, work: FloatArray, core_share: float
) -> Probe:
    """The probe of a job on the device where it was measured; `own` [readings, 1 + pieces]: moment, seconds of each piece, nan
    where it was not read. Each was read at least once. `work` [readings]: what the job took around each, as a multiple of what the plan
    will be told; the pieces' seconds are those for a multiple of 1, by the same `per_work` as in a run."""
    beside = own[:, 1:] / work[:, None]
    typical = np.nanmedian(beside, axis=0)
    read, piece = np.nonzero(np.isfinite(beside))
    told = own[read, 1 + piece] / typical[piece]
    usual = per_work(told, work[read])
    known = tuple(replace(p, seconds=float(s) * usual) for p, s in zip(pieces, typical, strict=True))
    return Probe(known, micro_batch_size, core_share, spread=scatter(told))


def speed_of(probe: Probe, rows: FloatArray) -> float:
    """Speed of a device by what its companion wrote down: `rows` [steps, 3 + pieces], the moment when a step had ended, its
    CPU seconds, its seconds, and the pieces'; nan without a reading among them. At least one row."""
    return float(probe.speed(_told(probe, rows[:, 3:]), np.array(rows[:, 1].sum() / rows[:, 2].sum())))


def _told(probe: Probe, piece_s: FloatArray) -> FloatArray:
    told = probe.slowness(piece_s)
    return np.array(middle_mean(told[np.isfinite(told)]))


def relative_speed(probe: Probe, own: FloatArray, other: FloatArray) -> float:
    """Speed of another device, the measured one's being 1; exactly 1 where the readings do not tell them apart.

    `own` [readings, 1 + pieces]; `other` [steps, 3 + pieces] as in `speed_of`.
    """
    begin, end = max(own[0, 0], other[0, 0]), min(own[-1, 0], other[-1, 0])
    edges = np.linspace(begin, end, _SPANS + 1)
    ratios = []
    for low, high in pairwise(edges.tolist()):
        mine, its = (rows[(rows[:, 0] >= low) & (rows[:, 0] <= high)] for rows in (own, other))
        if len(mine) and len(its):
            measured = probe.speed(_told(probe, mine[:, 1:]), np.array(probe.core_share))
            ratios.append(speed_of(probe, its) / float(measured))
    found = np.array(ratios)
    return typical_ratio(found[np.isfinite(found)])


def typical_ratio(ratios: FloatArray) -> float:
    """The median of ratios taken in turn; exactly 1 where they do not agree that it is another."""
    if len(ratios) < 2:
        return 1.0
    logs = np.log(ratios)
    middle, error = float(np.median(logs)), float(np.std(logs, ddof=1) / np.sqrt(len(logs)))
    return float(np.exp(middle)) if abs(middle) > max(ALIKE, 2 * error) else 1.0


def speeds_by_steps(step_s: Sequence[Mapping[int, float]]) -> tuple[int, tuple[float, ...]]:
    """(The fastest device, [devices] speeds beside it), of seconds of a step [devices] by micro-batch size. The sizes that two
    devices have in common tell, and there is at least one; devices that these do not tell apart are equal, and the first is the
    fastest of equal ones.

    >>> speeds_by_steps([{8: 2.0, 16: 1.8}, {8: 1.0, 16: 0.9}, {8: 1.01}])
    (1, (0.5, 1.0, 1.0))
    """
    beside_first = [_by_steps(step_s[0], s) for s in step_s]
    fastest = beside_first.index(max(beside_first))
    return fastest, tuple(_by_steps(step_s[fastest], s) for s in step_s)


def _by_steps(one: Mapping[int, float], other: Mapping[int, float]) -> float:
    ratios = np.array([one[size] / other[size] for size in one.keys() & other.keys()])
    if len(ratios) > 1:
        return typical_ratio(ratios)
    return float(ratios[0]) if abs(np.log(ratios[0])) > ALIKE else 1.0


def unread(devices: Sequence[Device], others: Mapping[str, FloatArray]) -> tuple[str, ...]:
    """Those, beside the first, of whose speed nothing was read: GPUs, and cores whose companion did not get ready. They are taken for
    as fast as the first."""
    read = {devices[0].cores, *(d.cores for d in devices if len(others.get(d.name, ())))}
    return tuple(d.name for d in devices[1:] if d.kind != "cpu" or d.cores not in read)


def with_speeds(
    devices: Sequence[Device], probe: Probe, own: FloatArray, others: Mapping[str, FloatArray]
) -> tuple[Device, ...]:
    """The devices with their speeds; one that shares its cores with another has the other's."""
    speed = {d: relative_speed(probe, own, rows) for d, rows in others.items() if len(rows) and len(own)}
    by_cores = {d.cores: speed[d.name] for d in devices if d.name in speed}
    return tuple(replace(d, speed=speed.get(d.name, by_cores.get(d.cores, 1.0))) for d in devices)
