"""Which operators are worth splitting: a chain's, where messages are cheap; none where a mapping alone will do."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from training.runtime.helpers import source_of

from partita.errors import BadInput, CaptureError
from partita.nouns.cluster import Link
from partita.nouns.splits import Split
from partita.training.capture.model import Captured, capture
from partita.training.job import load_job
from partita.training.measure.job import measure_job
from partita.training.measure.worth_splitting import is_automatic, named_splits, worthwhile_splits

LINK = Link("", "", 1e9, 1e-5, message_s=1e-5, send_s=1e-5)


def of_job(name: str) -> Captured:
    job = load_job(source_of(name), {})
    return capture(job.build(), job.loss, job.example())


def chosen(found: Captured, link: Link = LINK, *, task_s: float = 5e-3, ghosts: bool = False, parts: int = 2) -> tuple[Split, ...]:  # fmt: skip
    return worthwhile_splits(found, np.full(len(found.task_nodes), task_s).tolist(), link, parts, ghosts=ghosts)


def test_all_of_a_chain_but_its_loss() -> None:
    found = of_job("branchy:alexnet")
    splits = chosen(found)
    assert [s.task for s in splits] == [*found.task_nodes][:-1]
    assert {(s.dim, s.parts, s.change) for s in splits} == {("batch", 2, "none")}


@pytest.mark.parametrize(
    "link", [replace(LINK, rate_bytes_per_s=1e5), replace(LINK, latency_s=0.05)], ids=["narrow", "far"]
)
def test_nothing_where_messages_cost_more_than_they_save(link: Link) -> None:
    assert chosen(of_job("branchy:alexnet"), link) == ()
    assert chosen(of_job("branchy:alexnet"), task_s=1e-6) == ()


def test_nothing_where_a_mapping_alone_will_do() -> None:
    towers = of_job("branchy:towers")
    wide = {f"linear{n}" for n in ("", "_1", "_2", "_3", "_4", "_5")}  # and not the head, where they meet
    task_s = [5e-3 if t in wide else 1e-4 for t in towers.task_nodes]
    assert worthwhile_splits(towers, task_s, LINK, 2, ghosts=False) == ()
    assert chosen(of_job("branchy:alexnet"), parts=1) == ()


def test_norms_are_split_exactly_or_as_ghosts() -> None:
    found = of_job("normed:whole")
    exact, ghosts = chosen(found), chosen(found, ghosts=True)
    assert {s.change for s in exact} == {"none", "moments"}
    assert {s.change for s in ghosts} == {"none", "statistics"}
    assert len(exact) == len(ghosts) == len(found.task_nodes) - 1
    far = replace(LINK, latency_s=4e-3)  # ghosts wait for each other at the chain's end only
    assert chosen(found, far) == ()
    assert chosen(found, far, ghosts=True)
    first = dict.fromkeys(found.task_nodes, 1e-5) | {"conv2d": 1.0}
    some = worthwhile_splits(found, [first[t] for t in found.task_nodes], far, 2, ghosts=False)
    assert [s.task for s in some] == ["conv2d"], "what ends at a norm"


def test_what_lies_beside_the_critical_path_goes_along() -> None:
    """ResNet's way round a block: its convolution reads what is in parts, and is read by what is."""
    found = of_job("branchy:resnet")
    long = dict.fromkeys(found.task_nodes, 0.005) | {"conv2d_5": 1e-4, "batch_norm_5": 1e-4}
    splits = worthwhile_splits(found, [long[t] for t in found.task_nodes], LINK, 2, ghosts=True)
    assert {"conv2d_5", "batch_norm_5"} <= {s.task for s in splits}


def test_words() -> None:
    assert is_automatic(["auto"])
    assert is_automatic(["auto:ghost"])
    assert not is_automatic(["a:batch:2", "b:batch:2"])
    assert not is_automatic([])
    with pytest.raises(BadInput, match="--split auto beside"):
        is_automatic(["auto", "a:batch:2"])
    found = of_job("branchy:alexnet")
    assert [s.task for s in named_splits(found, ["conv2d_[12]:channel:3"])] == ["conv2d_1", "conv2d_2"]
    with pytest.raises(CaptureError, match=r"cross_entropy_loss .* cannot be split by batch into 2"):
        named_splits(found, ["cross_entropy_loss:batch:2"])


@pytest.mark.machine
def test_a_profile_holds_its_splits() -> None:
    source = source_of("branchy:alexnet")
    profile = measure_job(source, devices=1, splits=["conv2d*:batch:2", "linear:channel:2"], budget_s=0.1)
    assert profile.splits[0].asked == "conv2d:batch:2"
    assert profile.splits[-1].tasks == ("linear_part1", "linear_part2")
    assert [s.micro_batch_size for s in profile.samples] == [4]
    tasks = {t.id for t in profile.samples[0].graph.tasks}
    assert {t for s in profile.splits for t in s.tasks} <= tasks
    assert "linear" not in tasks
    assert math.isfinite(profile.samples[0].single_step_s)
