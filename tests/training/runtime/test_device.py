"""Which GPU a device is, who shares one, how patient groups are, clocks between hosts: what can be told without a GPU."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist

from partita.errors import ClusterError
from partita.nouns.cluster import Cluster, Device
from partita.training.runtime.clock import Clock
from partita.training.runtime.device import backend_for, gpu_number, share_gpus, subgroup, torch_device


def cluster(**hosts: list[str]) -> Cluster:
    return Cluster(tuple(Device(n, "cuda", host=h) for h, names in hosts.items() for n in names))


def test_numbers_are_those_of_the_devices_own_host() -> None:
    one = cluster(a=["cuda:2", "cuda:3"])
    assert [gpu_number(one, d, 4) for d in one.devices] == [2, 3]
    each = cluster(a=["a/cuda:0", "a/cuda:1"], b=["b/cuda:0", "b/cuda:1"])
    assert [gpu_number(each, d, 2) for d in each.devices] == [0, 1, 0, 1]
    going_on = cluster(a=[f"cuda:{i}" for i in range(4)], b=[f"cuda:{i}" for i in range(4, 8)])
    assert [gpu_number(going_on, d, 4) for d in going_on.devices] == [0, 1, 2, 3, 0, 1, 2, 3]


def test_a_gpu_that_its_host_has_not_is_refused() -> None:
    """Silently taking another one would put two workers on it."""
    c = cluster(a=["cuda:0", "cuda:5"])
    with pytest.raises(ClusterError, match="cuda:5 is GPU 5 of a, which has 2"):
        gpu_number(c, c.devices[1], 2)
    with pytest.raises(ClusterError, match="which has 0"):
        torch_device(c, "cuda:0") if torch.cuda.device_count() == 0 else gpu_number(c, c.devices[0], 0)
    assert torch_device(Cluster((Device("cpu0"),)), "cpu0") == torch.device("cpu")


def test_nccl_only_where_every_rank_has_a_gpu_of_its_own() -> None:
    assert backend_for(cluster(a=["cuda:0", "cuda:1"]), ["cuda:0", "cuda:1"]) == "cpu:gloo,cuda:nccl"
    shared = cluster(a=["first:0", "second:0"])
    assert share_gpus(shared, ["first:0", "second:0"])
    assert backend_for(shared, ["first:0", "second:0"]) == "gloo"
    assert backend_for(shared, ["first:0"]) == "cpu:gloo,cuda:nccl"


def test_a_subgroup_is_as_patient_as_the_whole(tmp_path: Path) -> None:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1, timeout=timedelta(seconds=7))  # fmt: skip
    try:
        group = subgroup([0])
        assert group._get_backend(torch.device("cpu")).options._timeout == timedelta(seconds=7)
    finally:
        dist.destroy_process_group()


def test_clocks_are_taken_to_drift_evenly_between_two_comparisons() -> None:
    """A clock that runs 100 ppm fast: compared once at the start it is off by 10 ms after 100 s."""
    clock = Clock(1, 2, [0.0, 100.0], [3.0, 2.99])
    true = np.array([3.0, 53.0, 103.0])
    mine = np.array([0.0, 50.005, 100.01])
    assert np.abs(clock.to_rank_0(mine) - true).max() < 1e-4
    once = Clock(1, 2, [0.0], [3.0])
    assert abs(once.to_rank_0(mine)[2] - true[2]) > 9e-3
