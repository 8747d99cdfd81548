"""The same command inside torchrun, and ranks that were started by hand: all on loopback, none left behind."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from training.runtime.helpers import plan_file, source_of
from training.runtime.runs import JOBS, LOOPBACK, Run, alone, listening, losses, metrics, start

from partita.cli import main
from partita.cli import run as run_verb
from partita.errors import BadInput
from partita.spawn import process_state
from partita.training.job import load_job
from partita.training.runtime import worker
from partita.training.runtime.checkpoint import examine
from partita.training.runtime.folder import LOCK
from partita.training.runtime.worker import expect_unclaimed
from partita.training.runtime.worker_status import Board


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return plan_file("failing:good", stages=2).write(tmp_path_factory.mktemp("plan") / "plan.json")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as s:
        return int(s.getsockname()[1])


def words(plan: Path, out: Path, *options: str) -> list[str]:
    return ["run", f"{JOBS / 'failing.py'}:good", "--plan", str(plan), "-o", str(out), *options]


def by_hand(folder: Path, ranks: Sequence[int], command: list[str], port: int, world: int = 2) -> list[Run]:
    """Ranks as another launcher would start them."""
    env = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(world)}
    return [start(folder / f"rank{r}", command, {**env, "RANK": str(r), "LOCAL_RANK": str(r)}) for r in ranks]


def by_agent(folder: Path, command: list[str], *options: str) -> Run:
    """Two ranks under torchrun."""
    agent = ["torch.distributed.run", "--nproc-per-node", "2", "--master-addr", "127.0.0.1", *options]
    with open(folder / "stderr", "wb") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", *agent, "--master-port", str(free_port()), "-m", "partita", *command],
            stdout=subprocess.DEVNULL,
            stderr=stderr,
        )
    return Run(process, folder, folder / "run")


def test_torchrun_trains_like_one_process(tmp_path: Path, plan: Path) -> None:
    env = {k: v for k, v in os.environ.items() if k != "GLOO_SOCKET_IFNAME"}
    done = subprocess.run(
        [
            sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-addr", "127.0.0.1",
            "--master-port", str(free_port()), "-m", "partita", *words(plan, tmp_path / "run", "--steps", "5", "--json"),
        ],
        env=env, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    wanted, _ = alone(load_job(source_of("failing:good")), 5, 2)
    assert losses(tmp_path / "run") == pytest.approx(wanted, rel=1e-6)
    assert (tmp_path / "run" / "measured.json").exists()
    assert not list((tmp_path / "run").glob(".board*"))
    assert [p.name for p in (tmp_path / "run" / "checkpoints").iterdir()] == ["step-00000005"]


@pytest.mark.slow
def test_a_lost_rank_is_named_by_the_other_one(tmp_path: Path, plan: Path) -> None:
    """Who is gone, what it was doing, and what this one was doing; meanwhile all listen on loopback only."""
    ranks = by_hand(tmp_path, (0, 1), words(plan, tmp_path / "run", "--steps", "1000000"), free_port())
    try:
        ranks[0].wait_until(lambda: len(metrics(tmp_path / "run")) >= 5, "step 5")
        for rank in ranks:
            assert listening(rank.process.pid)
            assert listening(rank.process.pid) <= LOOPBACK
        ranks[1].process.kill()
        ranks[1].process.wait()
        began = time.monotonic()
        assert ranks[0].wait(10) == 1
        assert time.monotonic() - began < 10
        what = r"step \d+, ((compute|recv|send|update) [FBU]\S+( micro-batch \d+)?|between instructions)"
        error = ranks[0].error()
        assert re.match(rf"rank 1 is gone; it was in {what}, and rank 0 in {what}", error), error
    finally:
        for rank in ranks:
            rank.end()


@pytest.mark.parametrize("sent", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_a_signal_to_one_rank_stops_all_after_the_same_step_and_saves(
    sent: signal.Signals, tmp_path: Path, plan: Path
) -> None:
    ranks = by_hand(tmp_path, (0, 1), words(plan, tmp_path / "run", "--steps", "1000000"), free_port())
    try:
        ranks[0].wait_until(lambda: len(metrics(tmp_path / "run")) >= 3, "step 3")
        ranks[1].process.send_signal(sent)
        assert [r.wait(20) for r in ranks] == [130, 130], [r.stderr for r in ranks]
        last = max(losses(tmp_path / "run"))
        for rank in ranks:
            assert rank.error().startswith(f"stopped after step {last}, which is saved. hint: go on with --resume")
        assert examine(tmp_path / "run" / "checkpoints")[1].step == last
    finally:
        for rank in ranks:
            rank.end()


@pytest.mark.slow
def test_torchrun_asked_to_end_saves(tmp_path: Path, plan: Path) -> None:
    """As a batch system asks: SIGTERM to the agent."""
    run = by_agent(tmp_path, words(plan, tmp_path / "run", "--steps", "1000000"))
    run.wait_for_step(3)
    run.process.terminate()
    assert run.wait(40) != 0
    assert examine(tmp_path / "run" / "checkpoints")[1].step == max(losses(tmp_path / "run"))


@pytest.mark.parametrize(("written", "expected"), [(True, "step-00000005"), (False, "given")])
def test_a_restarted_rank_prefers_its_own_runs_checkpoint_to_the_one_it_began_with(
    written: bool, expected: str, tmp_path: Path, plan: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torchrun starts it with the same --resume again, which is older than what the run has written since."""
    told: list[str] = []
    monkeypatch.setattr(worker, "run_rank_alone", lambda spec, *_: told.append(spec.resume))
    monkeypatch.setattr(run_verb, "_outcome", lambda *_: {})
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    own = tmp_path / "run" / "checkpoints" / "step-00000005"
    note = tmp_path / "run" / ".began-0"
    note.parent.mkdir()
    note.write_text("0.0")
    if written:
        own.mkdir(parents=True)
        (own / "state.json").write_text('{"step": 5}')
    given = tmp_path / "given"
    given.mkdir()
    (given / "state.json").write_text('{"step": 2}')
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    command = ["run", "x.py:job", "--plan", str(plan), "-o", str(tmp_path / "run"), "--resume", str(given), "--json"]
    main(command)
    assert [Path(t).name for t in told] == [expected]


@pytest.mark.slow
def test_restarted_ranks_go_on_from_the_last_checkpoint(tmp_path: Path, plan: Path) -> None:
    """torchrun --max-restarts: it starts all ranks again when one has died. What an earlier run left is not taken up."""
    old = tmp_path / "run" / "checkpoints" / "step-99999999"
    old.mkdir(parents=True)
    (old / "state.json").write_text("{}")
    os.utime(old / "state.json", (0, 0))
    job = f"{JOBS / 'failing.py'}:good"
    command = [
        "run", job, "--plan", str(plan), "-o", str(tmp_path / "run"), "--steps", "40", "--set", "seconds=0.05",
        "--checkpoint-every", "5",
    ]  # fmt: skip
    run = by_agent(tmp_path, command, "--max-restarts", "2")
    run.wait_for_step(13)
    os.kill(children_of(run.process.pid)[1], signal.SIGKILL)
    assert run.wait(100) == 0, run.stderr
    assert "started again: going on from" in run.stderr
    assert [m["step"] for m in metrics(tmp_path / "run")] == list(range(1, 41))
    wanted, _ = alone(load_job(source_of("failing:good")), 40, 2)
    assert losses(tmp_path / "run") == pytest.approx(wanted, rel=1e-5)
    assert not list((tmp_path / "run").glob(".began*"))


def children_of(pid: int) -> list[int]:
    return sorted(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))


@pytest.mark.slow
def test_two_workers_claim_one_rank(tmp_path: Path, plan: Path) -> None:
    """The second is told who it is already; the first ones go on."""
    port = free_port()
    command = words(plan, tmp_path / "run", "--steps", "1000000")
    ranks = by_hand(tmp_path, (0, 1), command, port)
    try:
        ranks[0].wait_until(lambda: len(metrics(tmp_path / "run")) >= 3, "step 3")
        (second,) = by_hand(tmp_path / "second", (1,), command, port)
        assert second.wait(60) == 2, second.stderr
        assert f"two workers claim rank 1 of 2: process {ranks[1].process.pid} on " in second.error()
        step = len(metrics(tmp_path / "run"))
        ranks[0].wait_until(lambda: len(metrics(tmp_path / "run")) > step, "another step")
    finally:
        for rank in ranks:
            rank.end()


def test_a_port_in_use(tmp_path: Path, plan: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = int(taken.getsockname()[1])
        (rank,) = by_hand(tmp_path, (0,), words(plan, tmp_path / "run"), port)
        assert rank.wait() == 2
    assert rank.error() == (
        f"rank 0 cannot listen at 127.0.0.1:{port}: Address already in use. "
        "hint: choose another MASTER_PORT that is free, or this machine's address as MASTER_ADDR"
    )


def test_a_rank_that_stays_away(tmp_path: Path, plan: Path) -> None:
    (rank,) = by_hand(tmp_path, (1,), words(plan, tmp_path / "run", "--timeout-s", "2"), free_port())
    assert rank.wait() == 1
    assert re.match(r"rank 1 of 2 does not reach 127\.0\.0\.1:\d+ within 2 s: ", rank.error()), rank.error()


@pytest.mark.parametrize(
    ("env", "fact"),
    [
        ({"RANK": "0", "WORLD_SIZE": "3"}, "the plan uses 2 devices, 3 workers were started"),
        ({"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "x"}, "MASTER_PORT 'x'"),
    ],
)
def test_an_environment_that_does_not_fit(env: dict[str, str], fact: str, tmp_path: Path, plan: Path) -> None:
    left = earlier(tmp_path / "run")
    run = start(tmp_path, words(plan, tmp_path / "run"), {"MASTER_ADDR": "", "MASTER_PORT": "", **env})
    assert run.wait() == 2, run.stderr
    assert fact in run.error()
    assert documents(tmp_path / "run") == left
    assert not (tmp_path / "run" / LOCK).exists()


@pytest.mark.parametrize(("job", "codes"), [("wider", [2, 2]), ("raises_on", [1, 2])])
def test_what_an_earlier_run_left_stays_until_all_ranks_are_ready(
    job: str, codes: list[int], tmp_path: Path, plan: Path
) -> None:
    """The plan is another job's, or one rank alone cannot load it."""
    left = earlier(tmp_path / "run")
    command = ["run", f"{JOBS / 'failing.py'}:{job}", "--plan", str(plan), "-o", str(tmp_path / "run")]
    ranks = by_hand(tmp_path, (0, 1), command, free_port())
    try:
        assert [r.wait(60) for r in ranks] == codes, [r.stderr for r in ranks]
    finally:
        for rank in ranks:
            rank.end()
    assert documents(tmp_path / "run") == left


def earlier(folder: Path) -> dict[str, str]:
    """What a run has left in a folder."""
    folder.mkdir()
    for name in ("plan.json", "readings.json"):
        (folder / name).write_text(f"{name} of an earlier run")
    return documents(folder)


def documents(folder: Path) -> dict[str, str]:
    return {p.name: p.read_text() for p in folder.glob("*.json*")}


@pytest.mark.parametrize(
    ("rank", "ranks", "options", "fact"),
    [
        ("2", "2", ["--plan", "p.json"], "RANK is '2' and WORLD_SIZE '2'"),
        ("one", "2", ["--plan", "p.json"], "RANK is 'one'"),
        ("\u00b2", "4", ["--plan", "p.json"], "RANK is '\u00b2'"),
        ("0", "999999999999", ["--plan", "p.json"], "WORLD_SIZE '999999999999'"),
        ("0", "2", [], "inside torchrun a plan is needed"),
        ("0", "2", ["--plan", "no.json"], "no.json cannot be read: No such file"),
    ],
)
def test_told_before_anything_starts(
    rank: str,
    ranks: str,
    options: list[str],
    fact: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("WORLD_SIZE", ranks)
    assert main(["run", "x.py:job", "-o", str(tmp_path / "run"), *options]) == 2
    assert fact in capsys.readouterr().err


@pytest.mark.slow
def test_torchrun_ends_when_a_rank_is_killed(tmp_path: Path, plan: Path) -> None:
    """The remaining rank still says who was lost, before or after torchrun asks it to end."""
    run = by_agent(tmp_path, words(plan, tmp_path / "run", "--steps", "1000000"))
    run.wait_for_step(3)
    pids = [Board.open(tmp_path / "run" / f".board-{r}", 2).row(r).pid for r in (0, 1)]
    os.kill(pids[1], signal.SIGKILL)
    assert run.wait(15) != 0
    assert all(process_state(pid) == "X" for pid in pids)
    assert "partita: rank 1 is gone; it was in step" in run.stderr


def test_a_rank_of_a_living_process_is_not_touched(tmp_path: Path) -> None:
    """Before anything is written; one whose process has ended, or is done, is free."""
    board = Board.create(tmp_path / ".board-1", 2)
    board.enter(1, "running", os.getpid())
    with pytest.raises(BadInput, match=f"two workers claim rank 1 of 2: process {os.getpid()} on "):
        expect_unclaimed(str(tmp_path), 1, 2)
    expect_unclaimed(str(tmp_path), 0, 2)
    board.enter(1, "done", os.getpid())
    expect_unclaimed(str(tmp_path), 1, 2)
    board.enter(1, "running", subprocess.Popen(["true"]).wait() or 2**22 - 1)
    expect_unclaimed(str(tmp_path), 1, 2)


def test_a_new_board_leaves_the_old_one_to_who_has_it(tmp_path: Path) -> None:
    old = Board.create(tmp_path / "board", 2)
    old.enter(1, "running", 7)
    assert Board.create(tmp_path / "board", 2).row(1).pid == 0
    assert old.row(1).pid == 7
