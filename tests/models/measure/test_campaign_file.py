"""campaign.toml at the door, and the configurations drawn from it."""

from __future__ import annotations

from collections import Counter
from math import prod
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partita.errors import BadInput
from partita.models.measure.draw import draw, even_shares
from partita.models.measure.file import Campaign
from partita.models.measure.networks import FACTORS, size_of

EXAMPLE = Path(__file__).parents[3] / "examples" / "campaign.toml"

MLP = """
[network.mlp]
layers = [1, 2]
width = [8, 16]
batch = [4]
input_size = [8]
activation = ["relu"]
optimizer = ["sgd", "adam"]
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "campaign.toml"
    path.write_text(text)
    return path


def test_the_example_is_drawn_evenly_and_always_the_same() -> None:
    campaign = Campaign.read(EXAMPLE)
    rows = draw(campaign)
    assert rows == draw(Campaign.read(EXAMPLE))
    assert len(rows) == len({c.key() for c in rows}) == campaign.rows
    cells = Counter((c.network, c.framework, c.workers) for c in rows)
    assert len(cells) == len(campaign.networks) * len(campaign.frameworks) * len(campaign.workers)
    assert max(cells.values()) - min(cells.values()) <= 1
    for network, factors in FACTORS.items():
        for factor in factors:
            found = Counter(getattr(c, factor) for c in rows if c.network == network)
            levels = campaign.networks[network][factor]
            share = sum(found.values()) / len(levels)
            assert set(found) == set(levels)
            assert min(found.values()) > 0.5 * share, (network, factor, found)
    assert all(campaign.least_flops <= size_of(c).flops * c.batch <= campaign.most_flops for c in rows)


def test_a_small_product_is_measured_whole(tmp_path: Path) -> None:
    campaign = Campaign.read(written(tmp_path, "[campaign]\nrows = 1000\n" + MLP))
    assert len(draw(campaign)) == prod((2, 2, 1, 1, 1, 2)) * 3 * 2
    other = Campaign.read(written(tmp_path, "[campaign]\nrows = 1000\nseed = 7\n" + MLP))
    assert set(draw(campaign)) == set(draw(other))
    assert campaign.fingerprint() != other.fingerprint()


def test_another_seed_draws_others(tmp_path: Path) -> None:
    drawn = [draw(Campaign.read(written(tmp_path, f"[campaign]\nrows = 12\nseed = {s}\n" + MLP))) for s in (1, 2)]
    assert set(drawn[0]) != set(drawn[1])


@settings(deadline=None)
@given(st.integers(0, 60), st.lists(st.integers(0, 12), min_size=1, max_size=6))
def test_shares_are_even_and_fit(total: int, room: list[int]) -> None:
    shares = even_shares(total, room)
    assert sum(shares) == min(total, sum(room))
    assert all(0 <= s <= r for s, r in zip(shares, room, strict=True))
    open_shares = [s for s, r in zip(shares, room, strict=True) if s < r]
    assert all(s <= min(open_shares) + 1 for s in shares) if open_shares else True


def test_all_faults_are_told_at_once(tmp_path: Path) -> None:
    text = """
[campaign]
rows = 0
seed = "one"
frameworks = ["torch", "mxnet"]
workers = []
visit_s = -1
passess = 3
[network.mlp]
layers = [1, 1]
width = "wide"
kernel = [3]
batch = [true]
activation = ["rellu"]
optimizer = ["sgd"]
[network.transformer]
layers = [1]
"""
    with pytest.raises(BadInput) as caught:
        Campaign.read(written(tmp_path, text))
    for part in (
        "campaign.rows is 0",
        "campaign.seed is 'one'",
        "'mxnet' is unknown",
        "campaign.workers is []",
        "campaign.visit_s is -1",
        "'campaign.passess' is unknown (campaign.passes?)",
        "network.mlp.layers has 1 twice",
        "network.mlp.width is 'wide'",
        "'kernel' is unknown",
        "network.mlp.batch has True",
        "network.mlp.input_size is missing",
        "'rellu' is unknown (relu?)",
        "and 1 more",
    ):
        assert part in caught.value.message
    assert "campaigns.md" in caught.value.hint


@pytest.mark.parametrize("text", ["", "[campaign]\nrows = 3", MLP, "campaign = 3\nnetwork = 4", "[campaign"])
def test_files_that_are_no_campaign(tmp_path: Path, text: str) -> None:
    with pytest.raises(BadInput):
        Campaign.read(written(tmp_path, text))


def test_bounds_that_leave_nothing(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no configuration of mlp"):
        draw(Campaign.read(written(tmp_path, "[campaign]\nrows = 3\nleast_flops = 1e15\n" + MLP)))
