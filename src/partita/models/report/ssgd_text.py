"""Predictions of synchronous SGD as plain text: a row of terms for every number of devices."""

from __future__ import annotations

from collections.abc import Sequence

from partita.models.ssgd import SsgdPrediction
from partita.nouns.costs import Estimate
from partita.page.text import NOTHING, Kind, facts, seconds, size, table

_SCHEMES = {
    "ring": "ring all-reduce",
    "tree": "binomial tree, reduce and broadcast",
    "ps": "parameter server",
    "partial": "partial exchange",
}


def predictions_text(predictions: Sequence[SsgdPrediction]) -> str:
    """The predictions of one profile: what was assumed, a table of terms, one of totals, and what limits each."""
    first = predictions[0]
    buckets = max(p.buckets for p in predictions)
    head = [
        ("exchange", f"{_SCHEMES[first.scheme]}, {size(first.gradient_bytes)} in {buckets or 1} bucket{'s' * (buckets > 1)}"),
        ("scaling", "strong: the batch is split" if first.scaling == "strong" else "weak: each device has a batch"),
    ]  # fmt: skip
    assumed = max(p.assumed for p in predictions)
    if assumed:
        head.append(("assumed", f"{assumed} devices more than the cluster has, like its last"))
    limits = [(f"{len(p.devices)} device{'s' * (len(p.devices) > 1)}", p.limit) for p in predictions]
    return "\n\n".join([facts(head), _terms(predictions), _totals(predictions), "Limited by\n" + facts(limits)])


def _terms(predictions: Sequence[SsgdPrediction]) -> str:
    """The terms of the serial sum, and what of the exchange is exposed."""
    columns: list[tuple[str, Kind]] = [("devices", "count"), ("batch", "count")]
    names = ["io", "host to device", "forward", "backward", "exchange", "exposed", "update"]
    columns += [(name, "s") for name in names]
    rows = [
        [len(p.devices), p.batch_size, *(getattr(p, n.replace(" ", "_")).seconds for n in names)] for p in predictions
    ]
    return table(columns, rows)


def _totals(predictions: Sequence[SsgdPrediction]) -> str:
    """Step times with their interval, and what the devices bring."""
    columns: list[tuple[str, Kind]] = [
        ("devices", "count"), ("serial", "s"), ("overlapped", "s"), ("between", "text"), ("samples/s", "count"),
        ("speed-up", "ratio"), ("efficiency", "share"), ("slowest / mean", "ratio"),
    ]  # fmt: skip
    rows = [
        [
            len(p.devices), p.serial.seconds, p.overlapped.seconds, _interval(p.overlapped), p.samples_per_s,
            p.speedup, p.efficiency, p.imbalance,
        ]
        for p in predictions
    ]  # fmt: skip
    return table(columns, rows)


def _interval(e: Estimate) -> str:
    return f"{seconds(e.low)} and {seconds(e.high)}" if e.low < e.high else NOTHING
