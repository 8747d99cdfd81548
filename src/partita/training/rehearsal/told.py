"""What the ranks of a rehearsal are told beyond a run's spec, and the file in which they answer."""

from __future__ import annotations

from dataclasses import dataclass

RESULT = "rehearsal.json"  #: in the rehearsal's folder


@dataclass(frozen=True)
class Told:
    """How a plan is emulated."""

    pace: float  #: seconds of the rehearsal for a second of the plan
    cap_bytes: int  #: more of a tensor is not sent, but its time is paid for
