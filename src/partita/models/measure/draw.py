"""Which configurations a campaign measures: drawn from the product of the levels, every level about equally often."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from itertools import product
from math import prod

import numpy as np

from partita.errors import BadInput
from partita.models.measure.file import Campaign, Level
from partita.models.measure.networks import FACTORS, Configuration, size_of
from partita.nouns.graph import BoolArray

MOST_CANDIDATES = 20_000  #: of one cell; larger products are thinned out at random first

Cell = tuple[str, str, int]  #: network, framework, workers


def draw(campaign: Campaign) -> tuple[Configuration, ...]:
    """The campaign's configurations: distinct, the same for the same campaign, in the order of their cells.

    Every cell (network, framework, workers) gets the same number of rows, as far as its product allows. Within a cell
    one configuration after another is chosen: the one whose levels have been taken least so far, chance deciding between
    equals. O(rows x candidates). Raises BadInput where the bounds of flops leave nothing.
    """
    cells: list[Cell] = list(product(campaign.networks, campaign.frameworks, campaign.workers))
    found = {cell: _candidates(campaign, cell) for cell in cells}
    empty = sorted({cell[0] for cell in cells if not found[cell]})
    if empty:
        raise BadInput(
            f"no configuration of {', '.join(empty)} has between {campaign.least_flops:.3g} and {campaign.most_flops:.3g} flops",
            hint="widen campaign.least_flops and campaign.most_flops, or change the levels",
        )
    quotas = even_shares(campaign.rows, [len(found[cell]) for cell in cells])
    return tuple(
        c
        for cell, quota in zip(cells, quotas, strict=True)
        for c in balanced(found[cell], FACTORS[cell[0]], quota, _chance(campaign, cell))
    )


def _chance(campaign: Campaign, cell: Cell) -> np.random.Generator:
    return np.random.default_rng([campaign.seed, zlib.crc32(repr(cell).encode())])


def _candidates(campaign: Campaign, cell: Cell) -> list[Configuration]:
    """The cell's product within the bounds of flops, thinned out where it is very large."""
    network, framework, workers = cell
    levels = campaign.networks[network]
    chosen = (_configuration(levels, network, framework, workers, i) for i in _places(levels, _chance(campaign, cell)))
    return [c for c in chosen if campaign.least_flops <= size_of(c).flops * c.batch <= campaign.most_flops]


def _places(levels: Mapping[str, Sequence[Level]], chance: np.random.Generator) -> Sequence[int]:
    total = prod(len(x) for x in levels.values())
    if total <= MOST_CANDIDATES:
        return range(total)
    return sorted({int(i) for i in chance.integers(0, total, MOST_CANDIDATES)})


def _configuration(
    levels: Mapping[str, Sequence[Level]], network: str, framework: str, workers: int, place: int
) -> Configuration:
    """The place-th of the product."""
    values: dict[str, Level] = {"kernel": 1}
    for factor in FACTORS[network]:
        place, i = divmod(place, len(levels[factor]))
        values[factor] = levels[factor][i]
    return Configuration(network=network, framework=framework, workers=workers, **values)  # type: ignore[arg-type]


def even_shares(total: int, room: Sequence[int]) -> list[int]:
    """`total` shared out as evenly as the room allows, the first getting what is left over.

    >>> even_shares(10, [2, 9, 9]), even_shares(50, [2, 9, 9])
    ([2, 4, 4], [2, 9, 9])
    """
    shares = [0] * len(room)
    while (open_ := [i for i, r in enumerate(room) if shares[i] < r]) and sum(shares) < total:
        each, over = divmod(total - sum(shares), len(open_))
        for n, i in enumerate(open_):
            shares[i] = min(room[i], shares[i] + (each or int(n < over)))  # leftovers last, one each
    return shares


def balanced(
    candidates: Sequence[Configuration], factors: Sequence[str], rows: int, chance: np.random.Generator
) -> list[Configuration]:
    """`rows` of the candidates, no level of a factor taken much more often than another.

    A level's weight is how often it was taken, over how often it would be in a fair share; the candidate with the
    smallest sum of squared weights comes next.
    """
    columns = [np.unique([getattr(c, f) for c in candidates], return_inverse=True)[1] for f in factors]
    taken = [np.zeros(int(column.max()) + 1) for column in columns]
    free: BoolArray = np.ones(len(candidates), dtype=bool)
    chosen = []
    for _ in range(min(rows, len(candidates))):
        cost = sum((counts * len(counts))[column] ** 2 for counts, column in zip(taken, columns, strict=True))
        score = np.where(free, cost + chance.random(len(candidates)) * 0.5, np.inf)
        best = int(np.argmin(score))
        free[best] = False
        for counts, column in zip(taken, columns, strict=True):
            counts[column[best]] += 1
        chosen.append(candidates[best])
    return chosen
