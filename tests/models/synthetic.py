"""Tables whose truth is known: runs that take exactly as long as the skeleton says, with or without noise."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from partita.models.capture.inputs import Parameters, scale_of
from partita.models.capture.roles import Role
from partita.models.capture.table import Table
from partita.models.skeleton import Form, skeleton, started
from partita.nouns.graph import FloatArray

DATA = Path(os.environ.get("PARTITA_DATA") or Path(__file__).parents[2].parent / "shared" / "data")
VTRAIN = DATA / "timings" / "vtrain_single.csv"
needs_vtrain = pytest.mark.skipif(not VTRAIN.is_file(), reason=f"{VTRAIN} is not there: set PARTITA_DATA")

ROLES: Mapping[str, Role] = {
    "devices": "devices",
    "batch": "batch",
    "layers": "size",
    "hidden": "size",
    "optimizer": "kind",
}


@dataclass(frozen=True, eq=False)
class Runs:
    """What was measured, and what is true."""

    table: Table  #: inputs
    times: FloatArray  #: [rows] truth times noise
    truth: FloatArray  #: [rows]
    roles: Mapping[str, Role]

    def full(self, target: str = "step_s") -> Table:
        """Inputs and measured times as one table."""
        return Table({**self.table.columns, target: self.times})

    def where(self, rows: FloatArray) -> Runs:
        chosen = rows.astype(bool)
        return replace(self, table=self.table.take(chosen), times=self.times[chosen], truth=self.truth[chosen])


def runs(
    rows: int = 120,
    *,
    seed: int = 0,
    noise: float = 0.0,
    devices: Sequence[float] = (1, 2, 4, 8),
    form: Form | None = None,
    roles: Mapping[str, Role] = ROLES,
) -> Runs:
    """Rows of five columns; constants a prior's half standard deviation beside what anybody would expect."""
    chance = np.random.default_rng(seed)
    table = Table(
        {
            "devices": chance.choice(np.array(devices, np.float64), rows),
            "batch": chance.choice([16.0, 32.0, 64.0, 128.0, 256.0], rows),
            "layers": chance.choice([2.0, 4.0, 8.0, 16.0], rows),
            "hidden": chance.choice([128.0, 256.0, 512.0], rows),
            "optimizer": chance.choice(["adam", "sgd"], rows),
        }
    )
    parameters = Parameters()
    expression = skeleton(table, roles, form or Form(), scale_of(table, roles), parameters)
    sd = np.array(parameters.sd)
    moved = np.where(sd < 3.0, 0.5 * sd * np.clip(chance.normal(size=len(sd)), -1, 1), 0.0)
    truth = expression.time(started(expression, np.full(rows, 0.1), parameters) + moved)
    return Runs(table, truth * np.exp(noise * chance.normal(size=rows)), truth, roles)


def write_csv(table: Table, path: Path) -> Path:
    """The table as a file that people would write."""
    lines = [",".join(table.names)]
    lines += [",".join(str(table.columns[n][i]) for n in table.names) for i in range(len(table))]
    path.write_text("\n".join(lines) + "\n")
    return path
