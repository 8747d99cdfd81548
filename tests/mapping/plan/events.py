"""What a mapping takes, event by event, from its file alone: plain Python that shares nothing with the house.

    tasks     {id: {device: seconds}}
    tensors   [(maker, bytes or seconds by link, [readers])]
    plan      {"placement": {id: device}, "order": {device: [ids]}}

A device runs its tasks in its order, each once what it reads is there. What a task makes leaves when the task has ended, once
to every other device that reads it; a direction of a link serves one transfer at a time, the one that was ready first.
"""

from __future__ import annotations

import heapq
import re
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

Tensor = tuple[str, float, Sequence[str]]


def iteration_s(
    seconds: Callable[[str, str], float],
    tensors: Sequence[Tensor],
    transfer_s: Callable[[int, str, str], float],
    lag_s: Callable[[str, str], float],
    plan: Mapping[str, Any],
) -> float:
    """Seconds of one iteration. Raises RuntimeError where the devices wait for each other for ever."""
    where: Mapping[str, str] = plan["placement"]
    queues = {d: deque(ids) for d, ids in plan["order"].items()}
    reads: dict[str, set[int]] = defaultdict(set)
    for k, (_, _, readers) in enumerate(tensors):
        for r in readers:
            reads[r].add(k)
    there: set[tuple[int, str]] = set()
    running: dict[str, str] = {}
    line: dict[tuple[str, str], deque[int]] = defaultdict(deque)
    busy: set[tuple[str, str]] = set()
    events: list[tuple[float, int, str, Any]] = []
    clock, count, ended = 0.0, 0, 0

    def later(at: float, what: str, about: Any) -> None:
        nonlocal count
        heapq.heappush(events, (at, count, what, about))
        count += 1

    def start_what_can() -> None:
        for device, queue in queues.items():
            if device not in running and queue and all((k, device) in there for k in reads[queue[0]]):
                task = running[device] = queue.popleft()
                later(clock + seconds(task, device), "ended", task)
        for link, waiting in line.items():
            if link not in busy and waiting:
                k = waiting.popleft()
                busy.add(link)
                later(clock + transfer_s(k, *link), "sent", (k, link))

    start_what_can()
    while events:
        clock, _, what, about = heapq.heappop(events)
        if what == "ended":
            ended += 1
            device = where[about]
            del running[device]
            for k, (maker, _, readers) in enumerate(tensors):
                if maker == about:
                    there.add((k, device))
                    for other in dict.fromkeys(where[r] for r in readers):
                        if other != device:
                            line[device, other].append(k)
        elif what == "sent":
            k, link = about
            busy.remove(link)
            later(clock + lag_s(*link), "arrived", (k, link[1]))
        else:
            there.add(about)
        start_what_can()
    if ended < len(where):
        raise RuntimeError(f"{len(where) - ended} tasks never ran")
    return clock


def of_profile(path: Path, plan: Mapping[str, Any], bytes_per_s: float) -> float:
    """The same for a PipeDream profile: a task is a layer, forward and backward; what it makes crosses there and, as a
    gradient, back; `Input` nodes are dropped."""
    seconds: dict[str, float] = {}
    size: dict[str, float] = {}
    edges: dict[str, list[str]] = defaultdict(list)
    for text in path.read_text().splitlines():
        if text.startswith("\t"):
            u, v = text.strip().split(" -- ")
            edges[u].append(v)
        elif " -- Input" not in text:
            name = text.split(" -- ")[0]

            def total(key: str, text: str = text) -> float:
                found = re.search(rf"{key}=(\[[^\]]*\]|[^,\s]+)", text)
                assert found is not None
                return sum(float(x) for x in re.split(r"[;,\s\[\]]+", found[1]) if x)

            seconds[name] = (total("forward_compute_time") + total("backward_compute_time")) / 1e3
            size[name] = 2 * total("activation_size")
    tensors = [(u, size[u], edges[u]) for u in seconds if edges[u]]
    return iteration_s(
        lambda t, d: seconds[t], tensors, lambda k, p, d: tensors[k][1] / bytes_per_s, lambda p, d: 0.0, plan
    )
