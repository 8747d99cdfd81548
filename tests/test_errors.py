"""The tree of errors: codes, sentences, and that they cross processes whole."""

from __future__ import annotations

import pickle
from collections.abc import Iterator

import pytest

from partita.errors import BadInput, CostError, GraphError, Infeasible, PartitaError, WorkerFailed, refuse


def below(kind: type[PartitaError]) -> Iterator[type[PartitaError]]:
    for k in kind.__subclasses__():
        yield k
        yield from below(k)


def test_every_bad_input_exits_with_2_and_each_kind_explains_itself() -> None:
    assert {k.exit_code for k in below(BadInput)} == {2}
    assert (PartitaError.exit_code, Infeasible.exit_code, WorkerFailed.exit_code) == (1, 3, 1)
    assert all(k.__doc__ for k in below(PartitaError))


@pytest.mark.parametrize(
    ("fact", "hint", "sentence"),
    [
        ("it is full", "", "it is full"),
        ("it is full", "empty it", "it is full. hint: empty it"),
        ("it is full!", "empty it", "it is full! hint: empty it"),
        ("is it full?  ", "look", "is it full? hint: look"),
    ],
)
def test_an_error_is_a_fact_and_a_hint(fact: str, hint: str, sentence: str) -> None:
    assert str(PartitaError(fact, hint=hint)) == sentence


def test_infeasible_names_what_binds_and_what_would_help() -> None:
    error = Infeasible("no room", constraint="memory of cpu0", relaxation="give it 2 GiB more")
    assert error.constraint == "memory of cpu0"
    assert str(error) == "no room. hint: give it 2 GiB more"


@pytest.mark.parametrize(
    "error",
    [
        CostError("no times", hint="measure"),
        Infeasible("no room", constraint="memory", relaxation="buy"),
        WorkerFailed("rank 1 is gone", rank=1, doing="recv F0>F1", hint="look at its log"),
    ],
)
def test_errors_cross_processes_whole(error: PartitaError) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert (str(again), vars(again)) == (str(error), vars(error))


def test_refuse_says_all_faults_at_once_up_to_a_number() -> None:
    refuse(GraphError, [], "g.json")
    with pytest.raises(GraphError, match=r"^g.json: one; two. hint: mend it$"):
        refuse(GraphError, ["one", "two"], "g.json", hint="mend it")
    with pytest.raises(GraphError) as caught:
        refuse(GraphError, [f"fault {i}" for i in range(20)], "g.json", most=3)
    assert caught.value.message == "g.json: fault 0; fault 1; fault 2; and 17 more"
