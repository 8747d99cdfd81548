"""What bytes take of the inferences that run meanwhile: the run that tells, and the price made of it."""

from __future__ import annotations

import pytest
from offload.run.small_nets import net

from partita.nouns.offload import OffloadLink
from partita.offload.run.company import Inferring, _message, _price, _round, _Turn
from partita.offload.run.record import JobTimes

LINK = OffloadLink(1e6, 1e6, 0.01)


def test_apart_nothing_is_under_way_while_an_inference_runs() -> None:
    each = [Inferring(net(side=24 + 8 * k), 0.05, 0.02) for k in range(3)]
    message = _message(20_000)
    turns, end_s = _round(each, message, LINK)
    there = [t for t in turns if t.side == "server" and not t.together]
    assert there[0].release_s > 3 * 0.05
    for a, b in zip(there, [*there[1:], next(t for t in turns if t.together)], strict=True):
        e = each[a.model]
        assert b.release_s - a.release_s > e.model.input_bytes / 1e6 + LINK.round_trip_s + e.server_s
    together = [t for t in turns if t.together]
    assert len({t.release_s for t in together}) == 1
    assert [t.side for t in together] == ["device", None, "server"] * 3
    assert end_s > together[0].release_s + sum(e.model.input_bytes + message.input_bytes for e in each) / 1e6


def turn(together: bool, device_cpu_s: float, uplink: tuple[float, float] | None = None) -> tuple[_Turn, JobTimes]:
    """An inference on the device from 10 to 11 s, or a transfer."""
    if uplink:
        return _Turn(together, 1, None, 0.0), JobTimes(uplink=uplink)
    return _Turn(together, 0, "device", 0.0), JobTimes(device=(10.0, 11.0), device_cpu_s=device_cpu_s)


def test_the_price_is_what_inferences_take_more_by_the_bytes_that_passed_meanwhile() -> None:
    half = turn(True, 0.0, (10.5, 12.0))
    assert _price([turn(False, 0.4), turn(True, 0.5), half], "device", LINK) == pytest.approx(0.1 / 0.5e6)
    assert _price([turn(False, 0.5), turn(True, 0.4), half], "device", LINK) == 0.0  # never a reward
    assert _price([turn(False, 0.4), turn(True, 0.5)], "device", LINK) == 0.0  # nothing passed
    assert _price([turn(True, 0.5), half], "device", LINK) == 0.0  # never seen apart
    assert _price([turn(False, 0.4), turn(True, 0.5), half], "server", LINK) == 0.0
