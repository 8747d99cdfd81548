"""Exported PyTorch models: tasks with bytes, jobs for the planner, and halves that together give what the whole gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from partita.capture import cut
from partita.capture.exported import ExportedModel
from partita.errors import CaptureError
from partita.offload import OffloadLink, OffloadProblem
from partita.report.offload_text import bytes_up
from partita.search.offload.plan import plan_offload


class Residual(nn.Module):
    """A small CNN: a skip, a write in place, batch norm, a call with several results."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.one = nn.Conv2d(8, 8, 3, padding=1)
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm(self.stem(x)), inplace=True)
        z = self.one(y)
        z += y
        a, b = z.chunk(2, dim=1)
        return self.head(F.adaptive_avg_pool2d(torch.cat([b, a], 1), 1).flatten(1))


def residual() -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
    torch.manual_seed(0)
    return Residual().eval(), (torch.randn(2, 3, 16, 16),), {}


def bert() -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    config = BertConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, vocab_size=50, num_labels=3)  # fmt: skip
    ids = torch.randint(0, 50, (1, 12))
    return BertForSequenceClassification(config).eval(), (), {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


@pytest.fixture(scope="module", params=[residual, bert], ids=["cnn", "bert"])
def case(request: pytest.FixtureRequest) -> Any:
    model, args, kwargs = request.param()
    return model, args, kwargs, ExportedModel.of(model, args, kwargs)


def downsets(graph: Any, n: int) -> list[set[str]]:
    """The empty one, the whole, prefixes of the order, and random ones that follow no order."""
    order = [graph.tasks[i].id for i in graph.order.tolist()]
    found = [set(order[:k]) for k in np.linspace(0, len(order), n).astype(int).tolist()]
    rng = np.random.default_rng(0)
    for _ in range(n):
        inside: set[int] = set()
        for i in graph.order.tolist():
            if set(graph.predecessors.row(i).tolist()) <= inside and rng.random() < 0.9:
                inside.add(i)
        found.append({graph.tasks[i].id for i in inside})
    return found


def leaves(value: Any) -> list[Tensor]:
    return [v for v in torch.utils._pytree.tree_leaves(value) if isinstance(v, Tensor)]


def test_halves_give_what_the_whole_gives(case: Any) -> None:
    model, args, kwargs, captured = case
    with torch.no_grad():
        whole = model(*args, **kwargs)
    for device in downsets(captured.graph, 6):
        halves = captured.halves(device)
        assert (halves.device is None) == (not device)
        assert (halves.server is None) == (len(device) == len(captured.graph))
        given = captured.run(halves, args, kwargs)
        assert type(given) is type(whole)
        for a, b in zip(leaves(given), leaves(whole), strict=True):
            assert torch.allclose(a, b, rtol=1e-5, atol=1e-6)


def test_what_crosses_weighs_what_the_graph_says(case: Any) -> None:
    _, args, kwargs, captured = case
    flat = torch.utils._pytree.arg_tree_leaves(*args, **kwargs)
    assert captured.input_bytes == sum(t.nbytes for t in flat)
    for device in downsets(captured.graph, 5):
        halves = captured.halves(device)
        if halves.device is None:
            continue
        made = halves.device(dict(zip(captured.inputs, flat, strict=True)))
        assert sum(made[name].nbytes for name in halves.crossing) == cut.crossing_bytes(captured.graph, device)


def test_each_half_holds_only_what_it_reads(case: Any) -> None:
    model, _, _, captured = case
    order = [captured.graph.tasks[i].id for i in captured.graph.order.tolist()]
    first = captured.halves(set(order[:1])).device
    held = sum(t.numel() for t in first.code.state_dict().values())
    assert held < 0.6 * sum(p.numel() for p in model.parameters())


def test_the_planner_takes_its_job_and_its_plan_can_be_run(case: Any) -> None:
    model, args, kwargs, captured = case
    ids = [t.id for t in captured.graph.tasks]
    job = captured.offload_job(dict.fromkeys(ids, 0.01), dict.fromkeys(ids, 0.001))
    problem = OffloadProblem(OffloadLink(1e6, 1e6, 0.001), (job,))
    assert problem.check() == []
    plan = plan_offload(problem, budget_s=0.1)
    assert bytes_up(job, plan.cuts[0]) >= cut.crossing_bytes(captured.graph, plan.cuts[0])
    with torch.no_grad():
        whole = leaves(model(*args, **kwargs))
    given = leaves(captured.run(captured.halves(plan.cuts[0]), args, kwargs))
    assert all(torch.allclose(a, b, rtol=1e-5, atol=1e-6) for a, b in zip(given, whole, strict=True))


def test_tasks_say_where_they_come_from_and_the_shape_is_a_dag(case: Any) -> None:
    captured = case[3]
    assert captured.shape == "dag"
    assert any(t.name.split(" ")[0] in ("stem", "bert.pooler.dense") for t in captured.graph.tasks)


def test_the_module_is_left_as_it_was() -> None:
    model = Residual().train()
    before = {n: v.clone() for n, v in model.state_dict().items()}
    ExportedModel.of(model, (torch.randn(2, 3, 16, 16),))
    assert all(m.training for m in model.modules())
    assert all(torch.equal(v, before[n]) for n, v in model.state_dict().items())


def test_an_exported_program_is_taken_as_it_is() -> None:
    model, args, _ = residual()
    program = torch.export.export(model, args)
    captured = ExportedModel.from_program(program, "mine")
    assert captured.graph.name == "mine"
    tasks = [captured.graph.tasks[i].id for i in captured.graph.order.tolist()]
    with torch.no_grad():
        assert torch.allclose(captured.run(captured.halves(set(tasks[:4])), args), model(*args), atol=1e-6)


class Twice(nn.Module):
    def forward(self, x: Tensor) -> dict[str, Tensor | None]:
        y = x * 2
        return {"same": x, "twice": y, "again": y, "nothing": None}


def test_outputs_that_are_inputs_or_nothing_come_back() -> None:
    x = torch.randn(3)
    captured = ExportedModel.of(Twice(), (x,))
    given = captured.run(captured.halves(set()), (x,))
    assert given["nothing"] is None
    assert torch.equal(given["same"], x)
    assert torch.equal(given["twice"], 2 * x)
    assert torch.equal(given["again"], 2 * x)


class Branching(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 2 if x.sum() > 0 else x


class Noisy(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + torch.rand_like(x)


class Constant(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x * 2, torch.arange(3)


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("n", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.n.add_(1)  # type: ignore[operator]
        return x * self.n


@pytest.mark.parametrize(
    ("model", "said"),
    [(Branching(), "cannot be exported"), (Noisy(), "random numbers"), (Constant(), "depends on no input"), (Counting(), "changes 'n'")],
)  # fmt: skip
def test_what_cannot_be_cut_is_refused_in_a_sentence(model: nn.Module, said: str) -> None:
    with pytest.raises(CaptureError, match=said):
        ExportedModel.of(model, (torch.ones(3),))


def test_shapes_that_are_not_fixed_are_refused() -> None:
    program = torch.export.export(
        nn.Linear(4, 2), (torch.randn(3, 4),), dynamic_shapes={"input": {0: torch.export.Dim("n")}}
    )
    with pytest.raises(CaptureError, match="not fixed"):
        ExportedModel.from_program(program, "loose")


def test_a_cut_that_is_no_downset_is_refused(case: Any) -> None:
    captured = case[3]
    last = captured.graph.tasks[int(captured.graph.order[-1])].id
    with pytest.raises(CaptureError, match="on the device reads"):
        captured.halves({last})
