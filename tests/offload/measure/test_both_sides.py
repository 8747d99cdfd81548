"""What `partita offload measure` finds on a server, sending included, so that a plan can have it."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from offload.run.small_nets import net, plan_of, served

from partita.cli import main
from partita.errors import CaptureError
from partita.nouns.offload import OffloadLink, OffloadProblem, Speed
from partita.offload.capture.jobs import JobSpec
from partita.offload.measure.in_turn import Item, Turns
from partita.offload.measure.link import LinkTimes
from partita.offload.plan.lower import part_times
from partita.offload.run.both_sides import BothSides, SideTimes, _at_once, _with_halves
from partita.offload.run.client import Client
from partita.offload.run.message_cost import MessageCost


def test_the_verb_measures_what_messages_take_of_both_sides(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "small.onnx").write_bytes(net(side=64).data)
    out = str(tmp_path / "costs.json")
    with served(tmp_path) as (where, _):
        words = ["offload", "measure", str(tmp_path / "small.onnx"), "--server", where, "--budget-s", "0.3"]
        assert main([*words, "--cache", str(tmp_path / "kept"), "-o", out, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    problem = OffloadProblem.read(out)
    assert document["link"]["send_s"] == problem.link.send_s
    assert 1e-5 < problem.link.send_s < 0.1
    assert 0 <= problem.link.send_s_per_byte < 1e-6
    cost = document["measured"]["message_cpu_s"]
    share = document["measured"]["models"][0]["device_cpu_share"]
    assert problem.link.send_s == pytest.approx(cost["device"][0] / min(1.0, share))
    assert 0 < cost["idle_s"] < 0.1
    assert problem.link.receive_s > 0
    assert (
        part_times(problem, plan_of(problem, [0]))[0][0, 0] >= problem.link.send_s
    )  # of the device, before the upload
    assert problem.speeds is not None
    assert min(problem.speeds.device.probe_s, problem.speeds.server.probe_s) > 1e-6
    assert 0.05 < problem.speeds.device.share <= 1.0
    assert OffloadProblem.from_json(problem.to_json()) == problem


def test_costs_read_as_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "small.onnx").write_bytes(net(side=64).data)
    with served(tmp_path) as (where, _):
        words = ["offload", "measure", str(tmp_path / "small.onnx"), "--server", where, "--budget-s", "0.3"]
        assert main([*words, "--cache", str(tmp_path / "kept")]) == 0
    assert "sending" in capsys.readouterr().out


TURNS = Turns(((2.0,),), Speed(1e-3))


def test_a_side_is_slowed_by_the_other_as_long_as_that_computes() -> None:
    quiet, beside = Turns(((2.0,),), Speed(1e-3, share=0.25)), Turns(((3.0,),), Speed(1.2e-3, share=0.25))
    side = SideTimes((net(side=64),), {}, beside, quiet)
    for share, took_s, probe_s in ((0.0, 8.0, 1e-3), (0.5, 10.0, 1.1e-3), (1.0, 12.0, 1.2e-3)):
        now = replace(side, beside=share)
        assert now.whole(0).seconds == pytest.approx(took_s)
        assert now.speed.probe_s == pytest.approx(probe_s)


def test_a_model_whose_tasks_are_too_short_to_tell_takes_what_it_takes() -> None:
    model = net(side=64)
    side = SideTimes((model,), {model.hash: dict.fromkeys(model.tasks_topological, 0.0)}, TURNS, TURNS)
    assert sum(side.seconds()[model.hash].values()) == pytest.approx(2.0)


@pytest.mark.parametrize(("cut", "device", "server"), [(-1, 1.0, 0.0), (0, 0.0, 1.0)])
def test_a_plan_tells_how_busy_the_sides_are(cut: int, device: float, server: float) -> None:
    model = net(side=64)
    job = JobSpec("j", model, {})
    side = SideTimes((model,), {model.hash: dict.fromkeys(model.tasks_topological, 1.0)}, TURNS, TURNS)
    link = OffloadLink(1e12, 1e12)
    found = BothSides((job,), 1, side, side, LinkTimes(link, link, link), MessageCost((0.0, 0.0), (0.0, 0.0)))
    now = found.during(plan_of(found.problem, [cut]))
    assert (now.server.beside, now.device.beside) == pytest.approx((device, server), abs=1e-6)
    assert now.during(plan_of(now.problem, [cut])) is now


def test_a_side_that_fails_ends_the_other() -> None:
    """Whoever leaves does not wait for the server's answer."""
    gone = threading.Event()

    class Waiting(Client):
        def close(self) -> None:
            super().close()
            gone.set()

    def fail() -> int:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        _at_once(Waiting("127.0.0.1:9"), fail, lambda: gone.wait(20))
    assert gone.is_set()


def test_a_half_that_is_refused_leaves_the_others_their_times() -> None:
    model = net(side=64)
    tasks = model.tasks_topological
    good, bad = frozenset(tasks[:1]), frozenset(tasks[:2])
    side = SideTimes((model,), {model.hash: dict.fromkeys(tasks, 1.0)}, TURNS, TURNS)
    said: list[str] = []

    def measure(items: list[Item]) -> Turns:
        if any(cut == bad for _, cut in items):
            raise CaptureError("no such half")
        return Turns(tuple((float(len(cut)),) for _, cut in items), Speed(1e-3))

    found = _with_halves(side, [(model, bad), (model, good)], "device", measure, said.append)
    assert found.halves == {(model.hash, good): pytest.approx(1 / len(tasks))}
    assert [line.strip() for line in said] == ["no such half"]
    assert _with_halves(side, [(model, bad)], "device", measure, said.append) is side


def test_an_open_connection_takes_of_a_side_what_it_takes_of_its_share() -> None:
    """3 ms a second are a 33rd of a tenth of a core; never more than half is given up."""
    model = net(side=64)
    turns = Turns(((2.0,),), Speed(1e-3, share=0.1))
    assert SideTimes((model,), {}, turns, turns, taken=3e-3).whole(0).seconds == pytest.approx(2.0 / 0.097)
    assert SideTimes((model,), {}, turns, turns, taken=0.5).whole(0).seconds == pytest.approx(2.0 / 0.05)


@pytest.mark.parametrize("share", [0.9, 1.0, 1.3])
def test_a_half_that_takes_all_of_its_model_leaves_it_its_time(share: float) -> None:
    model = net(side=64)
    first, *others = model.tasks_topological
    tasks = {first: 0.0, **dict.fromkeys(others, 1e-3)}
    side = SideTimes((model,), {model.hash: tasks}, TURNS, TURNS, halves={(model.hash, frozenset([first])): share})
    assert sum(side.seconds()[model.hash].values()) == pytest.approx(2.0)
