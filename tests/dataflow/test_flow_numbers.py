"""Scores from run to run: what is withdrawn is not known any longer, here and in later runs."""

from __future__ import annotations

from pathlib import Path

from partita.dataflow.run.keeping import Keeping
from partita.dataflow.run.numbers import Numbers, numbers_in
from partita.dataflow.run.task import Told, execute
from partita.dataflow.store import Store

ONE, TWO, THREE = "a" * 40, "b" * 40, "c" * 40


def test_what_is_withdrawn_is_unknown_here_and_later(tmp_path: Path) -> None:
    path = tmp_path / "scores.jsonl"
    Numbers.open(path).add({ONE: 0.5, TWO: 0.6})
    numbers = Numbers.open(path)
    numbers.add({THREE: 0.7})
    numbers.remove([ONE, THREE, "d" * 40])
    numbers.remove([])
    assert numbers.found == {TWO: 0.6}
    assert Numbers.open(path).found == {TWO: 0.6}
    numbers.add({ONE: 0.8})
    assert Numbers.open(path).found == {TWO: 0.6, ONE: 0.8}


def test_half_a_line_does_not_hide_what_is_withdrawn(tmp_path: Path) -> None:
    path = tmp_path / "scores.jsonl"
    numbers = Numbers.open(path)
    numbers.add({ONE: 0.5})
    with open(path, "a") as file:
        file.write('["bbbb", 0.')
    numbers.remove([ONE])
    assert Numbers.open(path).found == {}


def test_numbers_that_are_not_there_are_none(tmp_path: Path) -> None:
    assert numbers_in(tmp_path / "scores.jsonl") == {}
    assert list(tmp_path.iterdir()) == []


def test_a_task_that_cannot_be_loaded_says_why(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "store")
    keeping = Keeping(store)
    told = Told(0, 1, 0, "load", ONE, "step", (), True)
    _, report = execute(told, len, [], keeping)
    assert (report.state, report.reason) == ("absent", "the store has it no longer")
    store.put(ONE, [1], 1.0)
    assert execute(told, len, [], keeping)[0] == [1]
    store.entries()[0].path.write_bytes(b"damaged")
    _, report = execute(told, len, [], keeping)
    assert report.state == "absent"
    assert str(tmp_path) in report.reason
    assert report.reason.endswith(": dropped")
