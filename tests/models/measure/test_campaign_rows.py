"""The journal survives a kill; a row is made of the visits that agree."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_campaign_file import MLP, written

from partita.errors import BadInput
from partita.models.measure.draw import draw
from partita.models.measure.file import Campaign
from partita.models.measure.rows import Journal, Visit, agree, closest, rows_of


def visit(step_s: float, reference_s: float = 1.0) -> Visit:
    return Visit(step_s, reference_s, step_s, 10, 0.0, "now")


@pytest.fixture
def campaign(tmp_path: Path) -> Campaign:
    return Campaign.read(written(tmp_path, "[campaign]\nrows = 4\npasses = 2\n" + MLP))


def test_a_line_that_a_kill_cut_off_is_dropped(tmp_path: Path, campaign: Campaign) -> None:
    path = tmp_path / "journal"
    journal = Journal.open(path, campaign)
    journal.add("a", visit(1.0))
    journal.add("a", visit(2.0))
    journal.fail("b", "worker 0 was killed")
    journal.close()
    whole = path.read_bytes()
    for cut in range(len(whole)):
        path.write_bytes(whole[:cut])
        again = Journal.open(path, campaign)
        assert len(again.visits.get("a", ())) == max(0, whole[:cut].count(b"\n") - 1 - (cut == len(whole)))
        again.add("c", visit(3.0))
        again.close()
        last = Journal.open(path, campaign)
        assert last.visits["c"] == [visit(3.0)]
        last.close()


def test_a_failure_is_tried_again_when_the_campaign_goes_on(tmp_path: Path, campaign: Campaign) -> None:
    journal = Journal.open(tmp_path / "journal", campaign)
    journal.fail("b", "worker 0 was killed")
    journal.close()
    again = Journal.open(tmp_path / "journal", campaign)
    assert again.failures == {}
    again.close()


def test_another_campaign_and_a_second_writer_are_refused(tmp_path: Path, campaign: Campaign) -> None:
    journal = Journal.open(tmp_path / "journal", campaign)
    with pytest.raises(BadInput, match="in use"):
        Journal.open(tmp_path / "journal", campaign)
    journal.close()
    other = Campaign.read(written(tmp_path, "[campaign]\nrows = 5\n" + MLP))
    with pytest.raises(BadInput, match="another campaign"):
        Journal.open(tmp_path / "journal", other)


def test_a_damaged_line_is_named(tmp_path: Path, campaign: Campaign) -> None:
    path = tmp_path / "journal"
    Journal.open(path, campaign).close()
    path.write_bytes(path.read_bytes() + b'{"key": "a"}\n')
    with pytest.raises(BadInput, match="line 2 is no visit"):
        Journal.open(path, campaign)


def test_the_closest_visits_make_the_row(campaign: Campaign) -> None:
    visits = [visit(1.00), visit(1.50), visit(1.01)]
    assert sorted(v.step_s for v in closest(visits, 2)) == [1.00, 1.01]
    assert agree(visits, campaign)
    assert not agree(visits[:2], campaign)
    assert not agree(visits[:1], campaign)
    one, *_ = draw(campaign)
    (row,) = rows_of([one], {one.key(): visits}, campaign)
    assert row["step_s"] == pytest.approx(1.005)
    assert (row["step_low_s"], row["step_high_s"], row["visits"], row["agree"]) == (1.00, 1.50, 3, True)


def test_correction_takes_the_machines_drift_out(campaign: Campaign) -> None:
    """The machine runs at half speed while one of two equal configurations is visited."""
    one, other = [c for c in draw(campaign) if c.workers == 1][:2]
    visits = {one.key(): [visit(1.0, 0.1)] * 2, other.key(): [visit(2.0, 0.2)] * 2}
    rows = rows_of([one, other], visits, campaign)
    assert rows[0]["step_s"] * 2 == rows[1]["step_s"]
    assert rows[0]["corrected_s"] == pytest.approx(rows[1]["corrected_s"])
