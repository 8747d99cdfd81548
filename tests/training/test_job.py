"""Jobs at the door: what is wrong with one is said in a sentence that names the line."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from partita.errors import BadInput, MissingDependency
from partita.training.capture.model import capture
from partita.training.job import TrainingJob, batch_size, check_alike, checked_batch, load_job, micro_batches

FAILING = Path(__file__).parents[1] / "jobs" / "failing.py"


def try_out(name: str) -> None:
    """All that a job goes through before its first step."""
    job = load_job(f"{FAILING}:{name}")
    model = job.build()
    capture(model, job.loss, next(micro_batches(job.example(), 2)))


@pytest.mark.parametrize(
    ("name", "fact"),
    [
        ("raises", r"raises failed at .*failing\.py:\d+ .*FileNotFoundError: data/train\.parquet"),
        ("exits", r"exits failed at .*: SystemExit: 7"),
        ("not_a_job", r"returned a dict, not a partita\.TrainingJob"),
        ("not_a_module", r"the job's model is a list, not a torch\.nn\.Module"),
        ("wrong_fields", r"its batches is a list, not a function \(epoch\); its optimizer is a SGD, not a function"),
        ("no_batches", r"the job's first epoch has no batches"),
        ("wrong_shape", r"the model refuses the batch.*: RuntimeError: mat1 and mat2 shapes cannot be multiplied"),
        ("branches", r"path depends on the values of a tensor at .*failing\.py:\d+ \(if y\.sum\(\) > 0:\)"),
        ("broken_loss", r"refuses the batch at .*failing\.py:\d+ \(raise KeyError\(.weights.\)\): KeyError: 'weights'"),
        ("missing", r"has no function 'missing'"),
        ("FEATURES", r"has no function 'FEATURES'"),
    ],
)
def test_what_is_wrong_is_one_sentence(name: str, fact: str) -> None:
    with pytest.raises(BadInput) as caught:
        try_out(name)
    assert re.search(fact, caught.value.message), caught.value.message
    assert caught.value.hint
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "fact"),
    [
        ("def job(:", r"cannot be imported: SyntaxError"),
        (
            "import no_such_module",
            r"cannot be imported at .*job\.py:1 .*ModuleNotFoundError: No module named 'no_such_module'",
        ),
        ("1/0", r"cannot be imported at .*job\.py:1 \(1/0\): ZeroDivisionError"),
        ("raise SystemExit", r"cannot be imported at .*: SystemExit"),
    ],
)
def test_files_that_cannot_be_imported(text: str, fact: str, tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(text)
    with pytest.raises(BadInput) as caught:
        load_job(f"{tmp_path / 'job.py'}:job")
    assert re.search(fact, caught.value.message), caught.value.message


@pytest.mark.parametrize("source", ["job", "job.py", "job.txt:job", ":job", "no/such/file.py:job"])
def test_sources_that_name_no_job(source: str) -> None:
    with pytest.raises(BadInput) as caught:
        load_job(source)
    assert caught.value.hint


def test_settings_are_keyword_arguments() -> None:
    assert callable(load_job(f"{FAILING}:good", {"seconds": "1"}).batches)
    with pytest.raises(BadInput, match="unexpected keyword argument 'colour'"):
        load_job(f"{FAILING}:good", {"colour": "red"})


def test_an_error_of_partita_passes_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(
        "from partita.errors import MissingDependency\ndef job(): raise MissingDependency('no pandas', hint='pip install pandas')"
    )
    with pytest.raises(MissingDependency, match="no pandas"):
        load_job(f"{tmp_path / 'job.py'}:job")


def build_with(model: Any) -> nn.Module:
    return TrainingJob(model, nn.functional.mse_loss, lambda e: [], lambda ps: torch.optim.SGD(ps, lr=0.1)).build()


def test_a_module_is_copied_and_a_function_is_seeded() -> None:
    module = nn.Linear(2, 2)
    copy = build_with(module)
    assert copy is not module
    assert copy.training
    first, second = build_with(lambda: nn.Linear(2, 2)), build_with(lambda: nn.Linear(2, 2))
    assert torch.equal(first.weight, second.weight)  # type: ignore[arg-type]


def test_an_error_in_the_models_function_names_its_line() -> None:
    def model() -> nn.Module:
        return nn.Linear(-1, 2)

    with pytest.raises(
        BadInput, match=r"the job failed in its model at .*test_job\.py:\d+ \(return nn\.Linear\(-1, 2\)\)"
    ):
        build_with(model)


@pytest.mark.parametrize("batch", [torch.ones(2), (torch.ones(2),), 3, (1, 2, 3)])
def test_a_batch_is_a_pair(batch: Any) -> None:
    with pytest.raises(BadInput, match=r"not an .inputs, target. pair"):
        checked_batch(batch)


@pytest.mark.parametrize("batch", [(1, 2), (torch.tensor(1.0), None), (torch.zeros(0, 3), torch.zeros(0))])
def test_a_batch_has_samples(batch: Any) -> None:
    with pytest.raises(BadInput):
        batch_size(batch)


def test_micro_batches_cut_what_has_the_batch_in_front() -> None:
    batch = ({"x": torch.arange(7), "mask": torch.ones(3, 3)}, (torch.arange(7) * 2, "mean"))
    parts = list(micro_batches(batch, 3))
    assert [p[0]["x"].tolist() for p in parts] == [[0, 1, 2], [3, 4, 5], [6]]
    assert all(torch.equal(p[0]["mask"], torch.ones(3, 3)) and p[1][1] == "mean" for p in parts)
    assert torch.cat([p[1][0] for p in parts]).tolist() == [0, 2, 4, 6, 8, 10, 12]


def tensors(n: int, *more: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.zeros(n, *more, dtype=dtype)


@pytest.mark.parametrize(
    ("batch", "fact"),
    [
        (lambda: (tensors(4, 5), 1), "leaf 0 is torch.float32 [*, 5], not torch.float32 [*, 3]"),
        (lambda: (tensors(4, 3, dtype=torch.float64), 1), "leaf 0 is torch.float64 [*, 3]"),
        (lambda: (tensors(4, 3), 2), "leaf 1 is 2, not 1"),
        (lambda: ([tensors(4, 3)], 1), "another structure"),
    ],
)
def test_batches_unlike_the_first_are_refused(batch: Callable[[], Any], fact: str) -> None:
    example = (tensors(8, 3), 1)
    check_alike((tensors(5, 3), 1), example, "batch 1")
    with pytest.raises(BadInput, match="batch 2 of epoch 0 is unlike the first") as caught:
        check_alike(batch(), example, "batch 2 of epoch 0")
    assert fact in caught.value.message
