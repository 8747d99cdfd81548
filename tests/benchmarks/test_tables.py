"""README's tables say what the results say: intervals, the limit and verdicts where they are known, nothing where not."""

from __future__ import annotations

from typing import Any

from benchmark_scripts import loaded

tables = loaded("tables")
RECORD = {"drift": {"drift": 0.07}}
FACTS = {"machine": "A core", "cores": 2, "torch": "2.13.0", "time": "2026-11-21 12:00:00"}


def verdict(said: str) -> dict[str, Any]:
    return {"claim": "it is fast", "verdict": said}


def result(**more: Any) -> dict[str, Any]:
    """What benchmarks/pipeline.py printed before it had a harness, and more."""
    steps = {"single_step_s": 0.6, "pipeline_step_s": 0.32, "torch_step_s": 0.33, "predicted_step_s": 0.3}
    cpu_s = {"single": 0.6, "pipeline": 0.62, "torch": 0.63}
    return steps | {"cpu_s": cpu_s, "limit": 1.88, "plan": {"micro_batches": 16}, "load": [0.1], "facts": FACTS} | more


def test_a_result_without_a_harness_makes_the_table_it_made() -> None:
    found = tables.pipeline(result())
    assert "| engine | step | speed-up | CPU time |" in found
    assert "the limit is 1.88x." in found
    assert "Claims" not in found


def test_a_result_with_intervals_limit_and_verdicts() -> None:
    more = {
        "ratio_interval": {"single/pipeline": [1.8, 1.95], "single/torch": None},
        "side_by_side_step_s": 0.61, "side_by_side_each_s": [0.6, 0.62], "limit": 1.97, "limit_interval": [1.9, 2.0],
        "fill_limit": 1.88, "verdicts": {"fast": verdict("met")}, "machine_record": RECORD,
    }  # fmt: skip
    found = tables.pipeline(result(**more))
    assert "1.80x to 1.95x" in found
    assert "| the limit: 2 copies of the job side by side | 610 ms | 1.97x | 1.90x to 2.00x | - |" in found
    assert "it is fast: met. The machine drifted by 7.0 %." in found


def test_predictions_at_the_run_s_speed() -> None:
    row = {
        "model": "vit", "plan": "best", "predicted_step_s": 0.4, "measured_step_s": 0.5, "load": 0.1,
        "predicted_at_run_speed_s": 0.49, "machine_record": RECORD,
    }  # fmt: skip
    found = tables.prediction([row, {**row, "predicted_at_run_speed_s": None}])
    assert "| vit, best plan | 400 ms | 500 ms | -20 % | -2.0 % |" in found
    assert "| vit, best plan | 400 ms | 500 ms | -20 % | - |" in found
    assert "At the speed that the machine had in the run: 2.0 %, worst 2.0 %. " in found


def test_a_claim_is_said_once_with_the_names_of_those_that_did_not_meet_it() -> None:
    right = {"claim": "it is right", "verdict": "met"}
    said = {"a": verdict("met"), "b": verdict("missed"), "c": verdict("missed"), "d": verdict("a fog"), "e": right}
    found = tables._claims(said.items())
    assert found == "it is fast: 1 of 4 met, missed: b, c, too restless to tell: d; it is right: met"
    assert tables._claims([("b", verdict("missed"))]) == "it is fast: missed"
