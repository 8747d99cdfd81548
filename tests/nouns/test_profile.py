"""Profile: a job measured, from file to file."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from small_worlds import damaged, given_costs, refused_or, training_chain

from partita.errors import BadInput, CostError, GraphError
from partita.files import write_whole
from partita.nouns.cluster import Cluster
from partita.nouns.profile import Profile, Sample
from partita.nouns.splits import Split, asked_splits

CHAIN = training_chain(2)
PROFILE = Profile(
    "job.py:make",
    32,
    (Sample(8, CHAIN, given_costs(CHAIN, 2.0), 0.5), Sample(4, training_chain(2, size_bytes=0.5), given_costs(CHAIN))),
    Cluster.uniform(2, rate_bytes_per_s=1e9),
    1.0,
    {"load": 0.1},
    splits=(Split("whole", "batch", 2, "statistics", ("f0", "f1")),),
)


def test_a_file_gives_the_same_profile(tmp_path: Path) -> None:
    again = Profile.read(PROFILE.write(tmp_path / "profile.json"))
    for name in (
        "job",
        "batch_size",
        "cluster",
        "optimizer_bytes_per_parameter_byte",
        "facts",
        "fingerprint",
        "splits",
    ):
        assert getattr(again, name) == getattr(PROFILE, name)
    for a, b in zip(again.samples, PROFILE.samples, strict=True):
        assert a.micro_batch_size == b.micro_batch_size
        assert a.graph.size_bytes.tolist() == b.graph.size_bytes.tolist()
        np.testing.assert_array_equal(a.costs.seconds, b.costs.seconds)
    assert again.samples[0].single_step_s == 0.5
    assert math.isnan(again.samples[1].single_step_s)


def test_a_sample_is_found_by_its_size() -> None:
    assert PROFILE.sample(4) is PROFILE.samples[1]
    with pytest.raises(CostError, match="no measurement at micro-batch size 16; measured: 8, 4"):
        PROFILE.sample(16)


@pytest.mark.parametrize(
    ("change", "kind", "says"),
    [
        ({"format": "partita-plan"}, CostError, "is 'partita-plan', not 'partita-profile'"),
        ({"samples": []}, CostError, "has no samples"),
        ({"samples": 3}, CostError, "is damaged: TypeError"),
        ({"batch_size": "many"}, CostError, "is damaged: ValueError"),
        ({"batch_size": math.inf}, CostError, "is damaged: OverflowError"),
        ({"cluster": 3}, BadInput, "cluster: it is 3, not a table"),
    ],
)
def test_a_damaged_file_is_told(change: dict[str, Any], kind: type[BadInput], says: str) -> None:
    with pytest.raises(kind, match=says):
        Profile.from_json({**PROFILE.to_json(), **change})


def test_samples_of_different_structure_are_told() -> None:
    other = training_chain(3)
    torn = dataclasses.replace(PROFILE, samples=(*PROFILE.samples, Sample(2, other, given_costs(other))))
    with pytest.raises(GraphError, match="graphs of different structure"):
        Profile.from_json(torn.to_json())


@settings(max_examples=400)
@given(damaged(PROFILE.to_json()))
def test_damage_is_refused_or_harmless(tmp_path_factory: pytest.TempPathFactory, value: dict[str, Any]) -> None:
    path = write_whole(tmp_path_factory.getbasetemp() / "profile.json", json.dumps(value))
    profile = refused_or(lambda: Profile.read(path), BadInput, str(path))
    assert profile is None or profile.samples


@pytest.mark.parametrize(
    ("row", "fault"),
    [
        ({"task": "a", "dim": "time", "parts": 2}, "'time'"),
        ({"task": "a", "dim": "batch", "parts": 1}, "1 parts"),
        ({"task": "a", "dim": "batch", "parts": 10**9}, "1000000000 parts"),
        ({"task": "a", "dim": "batch", "parts": 2, "change": "all"}, "change"),
        ({"task": "a", "dim": "batch", "parts": 2, "tasks": ["nobody"]}, "'nobody' of a split is no task"),
        ({"task": "a", "dim": "batch"}, "parts is missing"),
        ("a:batch:2", "splits"),
    ],
)
def test_splits_that_cannot_be_are_refused(row: Any, fault: str) -> None:
    with pytest.raises(CostError, match=fault):
        Profile.from_json({**PROFILE.to_json(), "splits": [row]})


def test_an_operator_is_split_once() -> None:
    row = {"task": "a", "dim": "batch", "parts": 2}
    with pytest.raises(CostError, match="'a' is split twice"):
        Profile.from_json({**PROFILE.to_json(), "splits": [row, row]})


@pytest.mark.parametrize("word", ["conv2d", "conv2d:batch", "conv2d:batch:x", "conv2d:batch:-2", ":batch:2", "conv2d:height:2", "conv2d:batch:1", "a:batch:2:3"])  # fmt: skip
def test_words_that_ask_for_no_split(word: str) -> None:
    with pytest.raises(BadInput) as refused:
        asked_splits([word])
    assert refused.value.hint
