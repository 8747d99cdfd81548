"""A run's folder: what an earlier run left in it stays where a new one is refused."""

import resource
from pathlib import Path

import pytest

from partita.errors import PlanError, WorkerFailed
from partita.training.runtime.folder import LOCK, held, kept_if_refused


def earlier(folder: Path) -> dict[str, bytes]:
    (folder / "plan.json").write_text("of the earlier run")
    (folder / "metrics.jsonl").write_text("its steps\n")
    (folder / "measured.json").write_text("its timeline")
    (folder / "checkpoints").mkdir()
    return documents(folder)


def documents(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in folder.iterdir() if p.is_file()}


def overwritten_until(folder: Path, metrics: str, error: Exception) -> None:
    (folder / "plan.json").write_text("of the new run")
    (folder / "drift.jsonl").write_text("")
    (folder / "measured.json").unlink()
    (folder / "metrics.jsonl").unlink()
    if metrics:
        (folder / "metrics.jsonl").write_text(metrics)
    raise error


@pytest.mark.parametrize("metrics", ["", "its steps\n"])  # begun anew, or gone on with
def test_a_refused_run_leaves_the_folder_as_it_was(metrics: str, tmp_path: Path) -> None:
    before = earlier(tmp_path)
    with pytest.raises(PlanError), kept_if_refused(tmp_path):
        overwritten_until(tmp_path, metrics, PlanError("the plan is of another model"))
    assert documents(tmp_path) == before


@pytest.mark.parametrize(
    ("metrics", "error"), [("one step\n", PlanError("later")), ("", WorkerFailed("it died", rank=0, doing="a step"))]
)
def test_a_run_that_began_stays(metrics: str, error: Exception, tmp_path: Path) -> None:
    earlier(tmp_path)
    with pytest.raises(type(error)), kept_if_refused(tmp_path):
        overwritten_until(tmp_path, metrics, error)
    assert (tmp_path / "plan.json").read_text() == "of the new run"


def test_a_full_disk_is_told_by_whoever_needs_it(tmp_path: Path) -> None:
    """And not by the lock, neither when it is written nor when it is closed."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        with held(tmp_path):
            assert (tmp_path / LOCK).stat().st_size == 0
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not documents(tmp_path)
