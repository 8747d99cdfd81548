"""Steps on one device: the same gradients as the whole batch's, a time for every part; and where a model is cut in two."""

from __future__ import annotations

import time

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from partita.nouns.graph import Task, TaskGraph
from partita.training.capture.model import Captured, capture
from partita.training.job import Batch, micro_batches
from partita.training.measure.steps import Kept, Steps, crossing_bytes, in_two, tearing, without_rest_s

CPU = torch.device("cpu")


def network() -> tuple[nn.Module, Batch, Captured]:
    """Wide at first, narrow in the middle."""
    torch.manual_seed(0)
    layers = [nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 2), nn.Tanh(), nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 3)]
    model, batch = nn.Sequential(*layers), (torch.randn(8, 6), torch.randint(0, 3, (8,)))
    return model, batch, capture(model, nn.functional.cross_entropy, next(micro_batches(batch, 4)))


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
@pytest.mark.parametrize("halves", [False, True])
def test_a_step_makes_the_gradients_of_the_batch(schedule: str, halves: bool) -> None:
    model, batch, captured = network()
    parts = in_two(captured, [1.0] * len(captured.task_nodes)) if halves else []
    updates: list[int] = []
    steps = Steps(
        captured, dict(model.named_parameters()), batch, 4, CPU, parts,
        schedule=schedule, update=lambda: updates.append(1),  # type: ignore[arg-type]
    )  # fmt: skip
    found = steps.times()
    made = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    nn.functional.cross_entropy(model(batch[0]), batch[1]).backward()
    assert made.keys() == dict(model.named_parameters()).keys()
    for name, p in model.named_parameters():
        torch.testing.assert_close(made[name], p.grad)
    assert len(found.forward) == len(found.backward) == 2 * (2 if halves else 1)
    assert min(found.forward + found.backward) > 0
    assert found.update >= 0
    assert found.rest >= 0
    assert updates == [1]


def test_ranks_one_after_the_other_make_the_gradients_of_the_batch() -> None:
    model, batch, _ = network()
    captured = capture(model, nn.functional.cross_entropy, batch)
    parts, others = in_two(captured, [1.0] * len(captured.task_nodes)), Kept(CPU)
    tensors = dict(model.named_parameters())
    first, second = (Steps(captured, tensors, batch, 8, CPU, parts, rank=(k, others)) for k in (0, 1))
    assert first.receives
    assert second.receives
    first.times()  # its gradients come from nobody yet
    second.times()
    model.zero_grad()
    began = time.perf_counter()
    found = [steps.times(wait_s) for steps, wait_s in ((first, 0.0), (second, 0.02))]
    took_s = time.perf_counter() - began
    made = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    nn.functional.cross_entropy(model(batch[0]), batch[1]).backward()
    for name, p in model.named_parameters():
        torch.testing.assert_close(made[name], p.grad)
    assert [len(f.forward) for f in found] == [len(f.backward) for f in found] == [1, 1]
    assert 0.02 + without_rest_s(found[1]) <= took_s  # a wait is part of no pass


def test_a_model_is_cut_where_little_crosses() -> None:
    _, _, captured = network()
    first, second = in_two(captured, [1.0] * len(captured.task_nodes))
    assert first + second == [*captured.task_nodes]
    assert len(first) in (3, 4)  # before or behind the narrow activation
    assert (
        in_two(captured, [1.0, 1.0] + [0.0] * (len(first + second) - 2))[0] == first[:1]
    )  # between all the work there is


@given(st.integers(2, 7), st.data())
def test_bytes_that_cross_are_those_of_tensors_made_before_and_read_behind(n: int, data: st.DataObject) -> None:
    tasks = [Task(f"t{k}") for k in range(n)]
    tensors = [
        (f"t{k}", float(data.draw(st.integers(0, 9))), [f"t{r}" for r in data.draw(st.sets(st.integers(k + 1, n - 1)))])
        for k in data.draw(st.lists(st.integers(0, n - 2), max_size=8))
    ]
    found = crossing_bytes(TaskGraph.build("some", tasks, tensors))
    told = [sum(b for p, b, rs in tensors if int(p[1:]) < c and any(int(r[1:]) >= c for r in rs)) for c in range(1, n)]
    assert found.tolist() == pytest.approx(told)


@given(st.lists(st.sampled_from("ab-"), min_size=1, max_size=7))
def test_a_cut_between_tasks_of_a_group_tears_it(groups: list[str]) -> None:
    tasks = [Task(f"t{k}", group=None if g == "-" else g) for k, g in enumerate(groups)]
    told = [bool({*groups[:c]} & {*groups[c:]} - {"-"}) for c in range(1, len(groups))]
    assert tearing(TaskGraph.build("some", tasks, [])).tolist() == told
