"""Roles: what columns mean by their names and values, and what a file says of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from partita.models.capture.roles import Role, infer, read_roles, words
from partita.models.capture.table import Table, TableError

COUNTS = np.array([1.0, 2.0, 4.0, 8.0])


def table(**columns: object) -> Table:
    return Table({n.replace("__", " "): np.array(v) for n, v in columns.items()})


@pytest.mark.parametrize(
    ("name", "role"),
    [
        ("# GPUs", "devices"), ("num_workers", "devices"), ("nGPUs", "devices"), ("world size", "devices"), ("executors", "devices"),
        ("GPUs per node", "per_host"), ("nGPUs_perNode", "per_host"),
        ("tensor parallelism", "tensor"), ("tp", "tensor"), ("TP_size", "tensor"), ("pipeline-parallel degree", "pipeline"),
        ("pp", "pipeline"), ("data parallelism", "data"), ("dp", "data"),
        ("global batch", "batch"), ("gbs", "batch"), ("total_batch_size", "batch"), ("batch per GPU", "local_batch"),
        ("local batch size", "local_batch"), ("batch_size", "batch?"), ("bs", "batch?"), ("micro batch", "micro_batch"),
        ("microBatchSize", "micro_batch"), ("number of micro batches", "micro_batches"), ("num_micro_batches", "micro_batches"),
        ("hidden size", "size"), ("# layers", "size"), ("frobs", "size"), ("GPU memory", "size"),
        ("bandwidth (Gbps)", "rate"), ("clock MHz", "rate"), ("learning rate", "size"), ("seed", "ignore"), ("run id", "ignore"),
    ],
)  # fmt: skip
def test_a_number_by_its_name(name: str, role: Role) -> None:
    assert infer(Table({name: COUNTS}), [name]) == {name: role}


def test_a_column_by_its_values() -> None:
    t = table(
        optimizer=["sgd", "adam"] * 2, flag=[0.0, 1.0, 0.0, 1.0], sign=[-1.0, 1.0, -1.0, 1.0], gpus=[0.5, 1, 2, 4]
    )
    assert infer(t, t.names) == {"optimizer": "kind", "flag": "kind", "sign": "kind", "gpus": "size"}


def test_what_is_given_is_not_doubted() -> None:
    t = table(gpus=COUNTS, batch=COUNTS)
    assert infer(t, t.names, {"gpus": "size", "batch": "kind"}) == {"gpus": "size", "batch": "kind"}


def test_of_two_counts_the_multiple_is_the_total() -> None:
    t = table(gpus=[2.0, 4.0, 8.0, 16.0], nodes=[1.0, 1.0, 2.0, 4.0])
    assert infer(t, t.names) == {"gpus": "devices", "nodes": "hosts"}
    t = table(nodes=[1.0, 2.0, 4.0], gpus__per__node=[4.0, 2.0, 8.0])
    assert infer(t, t.names) == {"nodes": "hosts", "gpus per node": "per_host"}


def test_the_column_that_data_are_split_by_counts_devices_where_nothing_else_does() -> None:
    t = table(n=COUNTS, layers=[3.0, 5.0, 9.0, 2.0])
    assert infer(t, t.names, split_by="n")["n"] == "devices"
    assert infer(t, t.names)["n"] == "size"
    assert infer(t, t.names, split_by="layers")["layers"] == "size"  # a name that says something else
    t = table(n=COUNTS, gpus=COUNTS[::-1])
    assert infer(t, t.names, split_by="n") == {"n": "size", "gpus": "devices"}


def test_words_of_names_people_write() -> None:
    assert words("globalBatchSize") == words("global_batch-size") == ["global", "batch", "size"]


def roles_file(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "roles.toml"
    path.write_text(text)
    return path


def test_a_file_of_roles(tmp_path: Path) -> None:
    t = table(a=COUNTS, b=["x", "y", "x", "y"])
    assert read_roles(roles_file(tmp_path, '[columns]\na = "devices"\nb = "kind"\n'), t) == {
        "a": "devices",
        "b": "kind",
    }


def test_every_fault_of_a_file_is_named_at_once(tmp_path: Path) -> None:
    t = table(a=COUNTS, b=["x", "y", "x", "y"])
    with pytest.raises(TableError) as caught:
        read_roles(roles_file(tmp_path, '[columns]\na = "gpus"\nb = "size"\nc = "kind"\n'), t)
    for fault in ("unknown role 'gpus'", "column 'b' is text and cannot be 'size'", "no column named 'c'"):
        assert fault in str(caught.value)
    with pytest.raises(TableError, match="no table"):
        read_roles(roles_file(tmp_path, 'a = "devices"\n'), t)
    with pytest.raises(TableError):
        read_roles(roles_file(tmp_path, '[columns]\na = "batch?"\n'), t)  # left open is nothing that one can say
