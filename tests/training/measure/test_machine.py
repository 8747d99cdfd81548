"""This machine as devices, and the facts beside every figure."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest
import torch

from partita.errors import ClusterError
from partita.nouns.cluster import Cluster, Device
from partita.nouns.probe import ProbePiece
from partita.page.machine import machine_facts
from partita.training.capture.model import capture
from partita.training.job import load_job, micro_batches
from partita.training.measure.company import _pieces, company, pinned
from partita.training.measure.machine import local_devices

MODELS = Path(__file__).parents[2] / "jobs" / "small_models.py"


def tasks_of(name: str, size: int, settings: Mapping[str, str] = MappingProxyType({})) -> list[str]:
    job = load_job(f"{MODELS}:{name}", settings)
    part = next(micro_batches(job.example(), size))
    return [*capture(job.build(), job.loss, part).task_nodes]


cpu_only = pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has GPUs")


@cpu_only
def test_a_device_a_core() -> None:
    devices = local_devices()
    assert [d.cores[0] for d in devices] == sorted(os.sched_getaffinity(0))
    assert all(d.kind == "cpu" and d.memory_bytes > 1e6 for d in devices)


@cpu_only
def test_more_devices_than_cores_share_them() -> None:
    cores = len(os.sched_getaffinity(0))
    devices = local_devices(cores + 1)
    assert devices[0].cores == devices[cores].cores
    assert len({d.name for d in devices}) == cores + 1
    assert sum(d.memory_bytes for d in devices) < 1.1 * local_devices(1)[0].memory_bytes


@pytest.mark.parametrize("n", [0, -1])
def test_no_devices_are_refused(n: int) -> None:
    with pytest.raises(ClusterError, match="at least 1"):
        local_devices(n)


def test_the_cluster_is_sound_and_can_be_written() -> None:
    cluster = Cluster(local_devices(2), source="not measured")
    assert cluster.check() == []
    assert cluster.source == "not measured"
    assert Cluster.from_json(cluster.to_json()) == cluster


def test_facts_say_what_must_stand_beside_a_figure() -> None:
    facts = machine_facts()
    assert {"machine", "cores", "gpus", "load", "partita", "torch", "python", "time"} <= facts.keys()
    assert len(facts["load"]) == 3
    assert facts["torch"] == torch.__version__
    assert json.loads(json.dumps(facts)) == facts


def test_pinned_is_undone() -> None:
    cores, threads = os.sched_getaffinity(0), torch.get_num_threads()
    one = Device("cpu0", cores=(min(cores),))
    with pinned(one):
        assert os.sched_getaffinity(0) == {min(cores)}
        assert torch.get_num_threads() == 1
    assert os.sched_getaffinity(0) == cores
    assert torch.get_num_threads() == threads


def children() -> set[int]:
    return {int(p) for p in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()}


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="company needs a second core")
@cpu_only
def test_company_trains_on_the_other_cores_while_it_lasts() -> None:
    before = children()
    began = time.monotonic()
    pieces = [ProbePiece((t,), 1e-3) for t in tasks_of("two_inputs", 2)[:2]]
    with company(f"{MODELS}:two_inputs", {}, local_devices(2)[1:], 2, pieces) as others:
        started = children() - before
        assert len(started) == 1
        pid = started.pop()
        assert os.sched_getaffinity(pid) == set(local_devices(2)[1].cores)
        used, deadline = cpu_s(pid), time.monotonic() + 20
        while cpu_s(pid) < used + 0.2:
            assert time.monotonic() < deadline, "the companion does nothing"
            time.sleep(0.05)
        told = others.steps("cpu1", began)
        assert told.shape[1] == 3 + len(pieces)
        assert (told[:, 1] <= told[:, 2] + 1e-3).all()  # CPU time within the time
        assert (np.isfinite(told[:, 3:]).sum(axis=1) == 1).all()
        assert len(others.steps("cpu1", time.monotonic() + 60)) == 0
        with others.asleep():
            time.sleep(0.3)
            used = cpu_s(pid)
            time.sleep(0.3)
            assert cpu_s(pid) == used
        time.sleep(0.3)
        longest = others.steps("cpu1", began)[:, 2].max()
        assert longest < 0.6, "a step in which it slept counts"
    assert children() == before


def test_a_companion_reads_a_piece_as_often_as_the_measured_core_does() -> None:
    pieces = [ProbePiece(("a", "b"), 1e-3, runs=5)]
    assert _pieces(json.loads(json.dumps({"pieces": [asdict(p) for p in pieces]}))) == pieces


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="company needs a second core")
@cpu_only
def test_a_companion_of_an_autocast_job_trains_inside_autocast(tmp_path: Path) -> None:
    began, settings = time.monotonic(), {"note": str(tmp_path / "note")}
    pieces = [ProbePiece(tuple(tasks_of("noting_autocast", 2, settings)), 1e-3)]
    with company(f"{MODELS}:noting_autocast", settings, local_devices(2)[1:], 2, pieces) as others:
        deadline = time.monotonic() + 20
        while len(others.steps("cpu1", began)) < 3:
            assert time.monotonic() < deadline, "the companion does nothing"
            time.sleep(0.05)
    trained = (tmp_path / "note").read_text().splitlines()[-3:]
    assert trained == ["torch.bfloat16"] * 3


def test_one_device_has_no_company() -> None:
    before = children()
    with company(f"{MODELS}:two_inputs", {}, (), 2, ()):
        assert children() == before
