"""metrics.jsonl: read whole, or refused by the number of the line; half a line at the end does not count."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from partita.errors import BadInput
from partita.nouns.metrics import Metric, read_metrics, without_steps_from


def test_rows_come_back_each_step_once(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    rows = [Metric(1, 2.5, 0.5), Metric(2, 2.0), Metric(2, 1.5, 0.25), Metric(10, float("inf"), 0.1)]
    path.write_text("".join(r.line() for r in rows) + '{"step": 11, "lo')
    assert read_metrics(path) == [rows[0], rows[2], rows[3]]
    assert without_steps_from(read_metrics(path), 10) == rows[0].line() + rows[2].line()
    assert read_metrics(tmp_path / "nowhere") == []


ROW = b'{"step": 1, "loss": 2.0, "step_s": 0.5}\n'


@pytest.mark.parametrize(
    "line",
    [
        b'{"step": 1}', b'{"loss": 1}', b'{"step": "1", "loss": 1}', b'{"step": 1.5, "loss": 1}', b'{"step": -1, "loss": 1}',
        b'{"step": true, "loss": 1}', b'{"step": 1, "loss": null}', b'{"step": 1, "loss": "x"}', b'{"step": 1, "loss": []}',
        b'{"step": 1, "loss": 1, "step_s": -1}', b'{"step": 1, "loss": 1, "step_s": 1e400}', b'{"step": 1, "loss": 1, "step_s": {}}',
        b'{"step": 1, "loss": 1%s}' % (b"0" * 400), b'{"step": 1%s, "loss": 1}' % (b"0" * 400), b"[1]", b"3", b"null", b"{",
        b"[" * 100_000, b'{"step": 1, "loss": %s1%s}' % (b"[" * 5000, b"]" * 5000), b"\xff\xfe", b"\x00", b'{"step": 1, "loss": 1, "x": "\\ud800"}',
    ],
)  # fmt: skip
def test_a_line_that_is_no_row_is_refused_with_its_number(line: bytes, tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(ROW + line + b"\n" + ROW)
    with pytest.raises(BadInput) as caught:
        read_metrics(path)
    assert "line 2" in caught.value.message or "is not text" in caught.value.message
    assert caught.value.hint


def test_mutated_bytes_are_rows_or_refused(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    path, whole = tmp_path / "metrics.jsonl", ROW * 5
    for _ in range(1500):
        raw = bytearray(whole)
        for at in rng.integers(len(raw), size=rng.integers(1, 4)):
            raw[at] = rng.integers(256)
        path.write_bytes(bytes(raw[: rng.integers(len(raw) + 1)]))
        try:
            read_metrics(path)
        except BadInput as error:
            assert error.hint  # noqa: PT017
