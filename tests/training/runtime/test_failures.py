"""What goes wrong in a run: one sentence, a hint, the right exit code, and nothing left behind."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import time
from pathlib import Path

import pytest
from training.runtime.helpers import plan_file, source_of
from training.runtime.runs import LOOPBACK, listening, losses, start, train, workers_of

from partita.nouns.plan import PlanFile
from partita.nouns.program import Op
from partita.nouns.timeline import Timeline
from partita.pipeline.run.loop import compare_engines
from partita.simulate.lower import program_of
from partita.training.runtime.checkpoint import examine
from partita.training.runtime.failure import failure
from partita.training.runtime.folder import held
from partita.training.runtime.spec import Spec
from partita.training.runtime.worker_status import Board

MANY = ("--steps", "1000000")


@pytest.fixture(scope="module")
def plans(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with plans for the jobs of tests/jobs."""
    folder = tmp_path_factory.mktemp("plans")
    plan_file("failing:good", stages=2).write(folder / "good.json")
    plan_file("failing:good", stages=3).write(folder / "good3.json")
    plan_file("failing:optimizer_fails", stages=2).write(folder / "optimizer.json")
    return folder


def gone(pids: list[int], within_s: float) -> bool:
    deadline = time.monotonic() + within_s
    while any(Path(f"/proc/{p}").exists() for p in pids):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def test_a_killed_worker_ends_the_run_with_its_name_and_what_it_did(tmp_path: Path, plans: Path) -> None:
    run = train(tmp_path, "failing:good", plans / "good3.json", *MANY, "--checkpoint-every", "5")
    run.wait_for_step(12)
    workers = run.workers()
    assert sorted(workers) == [0, 1, 2]
    os.kill(workers[1], signal.SIGKILL)
    began = time.monotonic()
    assert run.wait(10) == 1
    assert time.monotonic() - began < 10
    assert gone(list(workers.values()), 0)
    error = run.error()
    assert re.match(
        rf"rank 1 \(process {workers[1]}\) was killed by SIGKILL during (saving a checkpoint after step \d+|step \d+, "
        r"((compute|recv|send|update) [FBU]\S+( micro-batch \d+)?|between instructions))\. hint: ",
        error,
    ), error
    assert f"--resume {run.out / 'checkpoints'}" in error
    assert "nothing here ran out of memory: somebody, or a batch system, killed it" in error
    assert run.stdout == ""
    examine(run.out / "checkpoints")


@pytest.mark.slow
def test_a_signal_has_its_own_words(tmp_path: Path, plans: Path) -> None:
    """And no hint at a checkpoint, where there is none. Those of other signals are in test_full_disks."""
    run = train(tmp_path, "failing:good", plans / "good.json", *MANY)
    run.wait_for_step(2)
    os.kill(run.workers()[1], signal.SIGSEGV)
    assert run.wait(10) == 1
    words = r"was killed by SIGSEGV .* hint: it crashed in compiled code.*; see .*worker-rank1\.log"
    assert re.search(words, run.error()), run.error()
    assert "--resume" not in run.error()


@pytest.mark.slow
def test_two_runs_into_one_folder(tmp_path: Path, plans: Path) -> None:
    """The second is told who has it, the first goes on; when it is killed, the folder is free."""
    first = train(tmp_path, "failing:good", plans / "good.json", *MANY)
    first.wait_for_step(2)
    second = start(tmp_path / "second", ["run", "x.py:job", "--plan", plans / "good.json", "-o", first.out])
    assert second.wait() == 2
    assert f"another run is writing into {first.out}: process {first.process.pid} on " in second.error()
    first.wait_for_step(4)
    first.process.kill()
    first.wait()
    with held(first.out):
        pass


@pytest.mark.slow
def test_a_stopped_replica_is_noticed_after_the_timeout(tmp_path: Path) -> None:
    """The others wait for it in a group of their own, whose patience is the run's."""
    plan_file("failing:good", stages=1, replicas=[2]).write(tmp_path / "plan.json")
    run = train(tmp_path, "failing:good", tmp_path / "plan.json", *MANY, "--timeout-s", "3")
    run.wait_for_step(3)
    os.kill(run.workers()[1], signal.SIGSTOP)
    assert run.wait(3 + 15) == 1
    assert "is stopped (SIGSTOP) during step" in run.error()


def test_a_stopped_worker_is_noticed_after_the_timeout(tmp_path: Path, plans: Path) -> None:
    run = train(tmp_path, "failing:good", plans / "good3.json", *MANY, "--timeout-s", "3")
    run.wait_for_step(3)
    workers = run.workers()
    os.kill(workers[2], signal.SIGSTOP)
    assert run.wait(3 + 10) == 1
    assert gone(list(workers.values()), 0)
    error = run.error()
    assert f"rank 2 (process {workers[2]}) is stopped (SIGSTOP) during step" in error


def test_workers_listen_on_loopback_only_and_end_with_their_launcher(tmp_path: Path, plans: Path) -> None:
    run = train(tmp_path, "failing:good", plans / "good.json", *MANY, env={"GLOO_SOCKET_IFNAME": ""})
    run.wait_for_step(2)
    workers = run.workers()
    assert len(workers) == 2
    for pid in workers.values():
        assert listening(pid)
        assert listening(pid) <= LOOPBACK
    assert listening(run.process.pid) == set()
    run.process.kill()
    run.process.wait()
    assert gone(list(workers.values()), 5)


def test_ctrl_c_stops_gracefully_and_saves(tmp_path: Path, plans: Path) -> None:
    """Exit code 130, all steps so far saved; that a resumed run takes the next one, test_resume shows."""
    run = train(tmp_path, "failing:good", plans / "good.json", *MANY, "--json")
    run.wait_for_step(5)
    workers = run.workers()
    run.process.send_signal(signal.SIGINT)
    assert run.wait(20) == 130
    assert gone(list(workers.values()), 0)
    error = run.error()
    last = max(losses(run.out))
    assert error == f"stopped after step {last}, which is saved. hint: go on with --resume {run.out / 'checkpoints'}"
    assert "Ctrl-C again ends at once" in run.stderr
    path, progress = examine(run.out / "checkpoints")
    assert (progress.step, path.name) == (last, f"step-{last:08d}")
    assert not list((run.out / "checkpoints").glob(".*"))
    assert run.stdout == ""


@pytest.mark.slow
def test_sigterm_is_as_graceful(tmp_path: Path, plans: Path) -> None:
    run = train(tmp_path, "failing:good", plans / "good.json", *MANY)
    run.wait_for_step(2)
    run.process.terminate()
    assert run.wait(20) == 130
    assert "stopped after step" in run.error()


@pytest.mark.slow
def test_second_ctrl_c_ends_at_once(tmp_path: Path, plans: Path) -> None:
    """Batches come every 30 s after the first few: the graceful end would take long."""
    run = train(tmp_path, "failing:good", plans / "good.json", *MANY, "--set", "seconds=2")
    run.wait_for_step(1)
    workers = run.workers()
    run.process.send_signal(signal.SIGINT)
    run.wait_until(lambda: "Ctrl-C again" in run.stderr, "word of stopping")
    began = time.monotonic()
    run.process.send_signal(signal.SIGINT)
    assert run.wait(10) == 130
    assert time.monotonic() - began < 3
    assert gone(list(workers.values()), 0)
    assert run.error() == "interrupted"


def test_ctrl_c_before_the_first_step_ends_at_once(tmp_path: Path, plans: Path) -> None:
    run = train(tmp_path, "failing:good", plans / "good.json", *MANY)
    run.wait_until(lambda: len(run.workers()) == 2, "workers")
    workers = run.workers()
    run.process.send_signal(signal.SIGINT)
    assert run.wait(10) == 130
    assert gone(list(workers.values()), 2)  # killed, but perhaps not yet buried
    assert run.error() == "interrupted"
    assert not (run.out / "checkpoints").exists()


@pytest.mark.slow
def test_an_unexpected_exception_goes_to_a_log(tmp_path: Path, plans: Path) -> None:
    """The traceback is in worker-rank1.log, the terminal has one sentence with place and log."""
    run = train(tmp_path, "failing:optimizer_fails", plans / "optimizer.json", *MANY)
    assert run.wait() == 1
    error = run.error()
    assert "rank 1 failed during step 4, update U1 at " in error
    assert re.search(
        r"failing\.py:\d+ \(raise ArithmeticError\(.*\)\): ArithmeticError: the moon is in the wrong phase", error
    )
    log = run.out / "worker-rank1.log"
    assert error.endswith(f"see {log}")
    assert "Traceback (most recent call last)" in log.read_text()
    assert losses(run.out).keys() == {1, 2, 3}


BAD_JOBS = {
    "raises": r"raises failed at .*failing\.py:\d+ .*FileNotFoundError: data/train\.parquet",
    "branches": r"the model's path depends on the values of a tensor at .*failing\.py:\d+ \(if y\.sum\(\) > 0:\)",
    "wider": r"the plan was made for graph \w+, the job's model is graph \w+",
    "batches_fail": r"the job failed in its batches at .*failing\.py:\d+ .*: OSError: disk on fire",
    "changing_shapes": r"batch 2 of epoch 0 is unlike the first batch of the first epoch: leaf 0 is torch\.float32 \[\*, 32\], not torch\.float32 \[\*, 16\]",
    "different_batches": r"the ranks got different batches in epoch 0",
}  # fmt: skip


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[] if n == "different_batches" else pytest.mark.slow) for n in BAD_JOBS],
)
def test_bad_jobs(name: str, tmp_path: Path, plans: Path) -> None:
    run = train(tmp_path, f"failing:{name}", plans / "good.json", "--epochs", "2")
    assert run.wait() == 2, run.stderr
    error = run.error()
    assert re.search(BAD_JOBS[name], error), error
    assert " hint: " in error
    assert run.stdout == ""
    assert not (run.out / "checkpoints").exists()
    assert workers_of(run.process.pid) == {}


@pytest.mark.parametrize("how", ["stop", pytest.param("replace", marks=pytest.mark.slow)])
def test_a_jobs_error_is_its_own_whatever_words_it_uses(how: str, tmp_path: Path, plans: Path) -> None:
    """As gloo speaks of a lost peer; it would come again, so nothing is begun anew."""
    says = "connection to the data server timed out"
    run = train(tmp_path, "failing:batches_fail", plans / "good.json", "--epochs", "2", "--set", f"says={says}", "--on-failure", how)  # fmt: skip
    assert run.wait() == 2, run.stderr
    assert re.search(rf"the job failed in its batches at .*failing\.py:\d+ .*: OSError: {says}", run.error())
    assert "going on" not in run.stderr


def test_no_folder_to_write_into(tmp_path: Path, plans: Path) -> None:
    (tmp_path / "file").write_text("")
    run = start(tmp_path, ["run", "x.py:job", "--plan", plans / "good.json", "-o", tmp_path / "file" / "run"])
    assert run.wait() == 2
    assert f"{tmp_path / 'file' / 'run'} cannot be made: Not a directory" in run.error()


class Ended:
    """A worker as `failure` sees it; code None: it lives."""

    def __init__(self, code: int | None) -> None:
        self.pid, self.code = os.getpid(), code

    def poll(self) -> int | None:
        return self.code


@pytest.mark.parametrize(("computing", "named", "blamed"), [(2, 2, 2), (1, 2, 1), (None, 2, 2), (None, None, 0)])
def test_who_fell_silent_is_who_was_waited_for(
    computing: int | None, named: int | None, blamed: int, tmp_path: Path, plans: Path
) -> None:
    """Rank 2 of three, whose patience ended first, has left word; the others have not yet. No rank that waits itself is blamed
    as long as one computes."""
    file = PlanFile.read(plans / "good3.json")
    program = program_of(file.problem, file.plan)  # type: ignore[arg-type]
    receive = next(i for i in range(len(program)) if program.op[i] == Op.RECV)
    compute = next(i for i in range(len(program)) if program.op[i] == Op.COMPUTE)
    spec = Spec("j", {}, str(tmp_path / "plan"), str(tmp_path), board=str(tmp_path / "board"))
    board = Board.create(spec.board, 4)
    for rank in range(4):
        board.enter(rank, "running", os.getpid())
        board.begin_step(rank, 7, file.problem.batch_size)  # type: ignore[union-attr]
        board.instruction_cell(rank)[0] = compute if rank == computing else receive
    word = {"message": "lost", "hint": "", "place": "", "code": 1, "lost_peer": True, "doing": "x", "peer": named}
    (tmp_path / "error-rank3.json").write_text(json.dumps(word))
    workers = [Ended(None), Ended(None), Ended(None), Ended(1)]
    assert failure(workers, board, spec, file, time.time(), 0).gone == (blamed,)  # type: ignore[arg-type]


@pytest.mark.parametrize("replicas", [pytest.param((), marks=pytest.mark.slow), (2,)])
def test_a_loss_that_is_no_number_is_told(replicas: tuple[int, ...], tmp_path: Path) -> None:
    """By every step's line too, also where several ranks add up their parts of it."""
    plan = plan_file("failing:diverges", stages=len(replicas) or 2, replicas=replicas).write(tmp_path / "plan.json")
    run = train(tmp_path, "failing:diverges", plan, "--epochs", "2", "--json")
    assert run.wait() == 0, run.stderr
    found = losses(run.out)
    assert list(found) == [1, 2, 3, 4, 5, 6]
    assert [math.isnan(v) for v in found.values()] == 3 * [False] + 3 * [True]
    told = json.loads(run.stdout)
    assert (told["steps"], told["loss"], told["not_finite_since"]) == (6, None, 4)
    assert "the loss is not finite from step 4 on. hint: lower the learning rate" in run.stderr


def test_a_run_of_one_step_has_a_timeline(tmp_path: Path, plans: Path) -> None:
    run = train(tmp_path, "failing:good", plans / "good.json", "--steps", "1")
    assert run.wait() == 0, run.stderr
    assert Timeline.read(run.out / "measured.json").facts["steps_traced"] == 1


def test_engines_whose_losses_are_no_numbers_are_compared(tmp_path: Path) -> None:
    """What was measured is there all the same."""
    file = plan_file("failing:diverges", stages=2)
    found = compare_engines(file, source_of("failing:diverges"), {}, tmp_path, engines=("single", "pipeline"), rounds=5)
    for known in found.losses.values():
        assert [math.isnan(x) for x in known] == 3 * [False] + 2 * [True]


@pytest.mark.parametrize("where", ["0", "1"])
def test_a_job_that_ends_its_own_process_has_not_trained(where: str, tmp_path: Path, plans: Path) -> None:
    run = train(tmp_path, "failing:leaves", plans / "good.json", "--epochs", "3", "--set", f"where={where}")
    assert run.wait(60) == 1, run.stderr
    assert re.match(rf"rank {where} \(process \d+\) ended with exit code 0 during ", run.error()), run.error()
    assert "something in the job, or a library that it uses, ended its process" in run.error()


def test_more_in_flight_than_there_are_messages(tmp_path: Path) -> None:
    plan = plan_file("failing:good", stages=2, in_flight=10**12).write(tmp_path / "plan.json")
    run = train(tmp_path, "failing:good", plan, "--steps", "3")
    assert run.wait(60) == 0, run.stderr
