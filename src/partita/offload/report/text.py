"""Cuts of jobs in words and bytes."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from partita.nouns.offload import OffloadJob, OffloadTask


def cut_words(tasks: Sequence[OffloadTask], cut: AbstractSet[str]) -> str:
    """Where a job is cut, in words: the tasks whose outputs cross. O(tasks).

    >>> a, b = OffloadTask("a", 1.0, 1.0, 8.0), OffloadTask("b", 1.0, 1.0, 8.0, ("a",))
    >>> cut_words((a, b), {"a"}), cut_words((a, b), {"a", "b"}), cut_words((a, b), set())
    ('cut after a', 'stays on the device', 'goes to the server whole')
    """
    if len(cut) == len(tasks):
        return "stays on the device"
    if not cut:
        return "goes to the server whole"
    names = [*(["its input"] if _input_crosses(tasks, cut) else []), *_crossing(tasks, cut)]
    return "cut after " + (", ".join(names) if len(names) <= 3 else f"{', '.join(names[:2])} and {len(names) - 2} more")


def bytes_up(job: OffloadJob, cut: AbstractSet[str]) -> float:
    """What a cut sends: each tensor once, and the job's input where a task on the server reads it. O(tasks)."""
    task = {t.id: t for t in job.tasks}
    tensors = sum(task[i].output_bytes for i in _crossing(job.tasks, cut))
    return tensors + (job.input_bytes if _input_crosses(job.tasks, cut) else 0.0)


def _crossing(tasks: Sequence[OffloadTask], cut: AbstractSet[str]) -> list[str]:
    return list(dict.fromkeys(i for t in tasks if t.id not in cut for i in t.inputs if i in cut))


def _input_crosses(tasks: Sequence[OffloadTask], cut: AbstractSet[str]) -> bool:
    return any(not t.inputs and t.id not in cut for t in tasks)
