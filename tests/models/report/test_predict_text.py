from __future__ import annotations

from typing import Any

from models.report.sample_prediction import sample

from partita.models.report.text import headline, kept_options, predict_text, shared_inputs, verdict


def lines_with(text: str, *parts: str) -> list[str]:
    return [line for line in text.splitlines() if all(p in line for p in parts)]


def test_the_answer_comes_first() -> None:
    text = predict_text(sample())
    first = text.splitlines()[:3]
    assert first[0] == "The hybrid model predicts iteration time 8.6 % off, on average."
    assert first[1] == "Fitted to 240 rows with # GPUs up to 2, judged by the 1,200 rows above."
    assert first[2] == "Half of the rows within 4.0 %, 88 % inside the 90 % intervals."


def test_the_table_has_every_model_the_closest_first() -> None:
    text = predict_text(sample())
    names = ["hybrid *", "skeleton", "gradient boosting"]
    rows = [next(k for k, line in enumerate(text.splitlines()) if line.startswith(n + "  ")) for n in names]
    assert rows == sorted(rows)
    assert lines_with(text, "hybrid *", "8.6 %", "4.0 %", "88 %", "1.78")
    assert lines_with(text, "gradient boosting", "77 %", "59 %", "7.4 %")
    assert lines_with(text, "skeleton", "9.0 %", " -")  # half within is absent


def test_no_line_ends_in_blanks_and_prose_is_narrow() -> None:
    text = predict_text(sample())
    assert all(line == line.rstrip() for line in text.splitlines())
    assert "\n\n\n" not in text
    assert text == text.strip()


def test_shares_are_bars_as_long_as_the_share() -> None:
    text = predict_text(sample())
    bars = {line.split()[0]: line.count("█") for line in text.splitlines() if "█" in line}
    assert bars == {"launch": 32, "compute": 22, "slices": 9}  # exchange has 0.1 %: not worth a line


def test_what_if_shows_only_what_differs() -> None:
    text = predict_text(sample())
    assert "All with hidden size 4096" in text
    assert lines_with(text, "16", "812 ms", "702 ms and 940 ms")
    assert text.count("note: # GPUs 16 lies beyond the 8 that were measured") == 1


def test_advice_marks_the_best_and_what_does_not_fit() -> None:
    text = predict_text(sample())
    assert lines_with(text, "767 ms", "21.3 h", "358", "best")
    assert lines_with(text, "2.90 s", "80.6 h", "no")
    assert "8 GPUs are cheapest." in text


def test_effects_are_told_by_doubling() -> None:
    assert "The time when one input doubles: # layers 1.80×, hidden size 1.37×" in predict_text(sample())


def test_a_closer_opponent_is_told() -> None:
    document = sample()
    assert verdict(document) == "The best model without a formula, gradient boosting, is 77 % off."
    document["models"][2]["mape_percent"] = 3.8
    assert verdict(document) == "Gradient boosting is closer (3.8 %), but it has no formula that says why."
    assert verdict(document) in predict_text(document)
    document["models"][1]["mape_percent"] = 3.1
    assert verdict(document).startswith("Skeleton is closer (3.1 %)")


def test_folds() -> None:
    document = sample()
    document["split"] = {"kind": "folds", "train_rows": 1152, "test_rows": 1440}
    assert headline(document)[1] == "Every row was judged by a fit that had not seen it."


def asked_only(count: int) -> dict[str, Any]:
    document = {k: sample()[k] for k in ("data", "target")}
    return {**document, "models": [], "best_explainable": "hybrid", "what_if": sample()["what_if"][:count]}


def test_a_question_to_a_saved_model_is_answered_in_the_first_line() -> None:
    text = predict_text(asked_only(1))
    assert text == "812 ms, between 702 ms and 940 ms.\nhidden size 4096, # GPUs 16\n\nnote: # GPUs 16 lies beyond the 8 that were measured"  # fmt: skip
    assert headline(asked_only(2))[0] == "Iteration time of 2 configurations, predicted."
    assert predict_text(asked_only(0)) == "A hybrid model of iteration time."


def test_advice_alone_is_the_head() -> None:
    document = {**asked_only(0), "advice": sample()["advice"]}
    assert predict_text(document).splitlines()[0] == "8 GPUs are cheapest."
    assert predict_text(document).count("8 GPUs are cheapest.") == 1


def test_the_best_option_is_always_shown() -> None:
    rows = [{"inputs": {"n": k}, "predicted": 1.0, "fits": k % 2 == 0} for k in range(30)]
    kept = kept_options({"rows": rows, "best": 28}, 5)
    assert kept == [28, 0, 2, 4, 6]


def test_inputs_that_one_row_lacks_are_not_shared() -> None:
    assert shared_inputs([{"inputs": {"a": 1, "b": 2}}, {"inputs": {"a": 1}}]) == ({"a": 1}, ["b"])
    assert shared_inputs([{"inputs": {"a": 1}}]) == ({}, ["a"])
