"""partita predict, as scripts call it: keys, exit codes, questions, stored models, profiles."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from models.synthetic import runs, write_csv
from small_worlds import given_costs, training_chain

from partita.cli import main
from partita.nouns.cluster import Cluster, Device, Link
from partita.nouns.profile import Profile, Sample

WORLD = runs(70, noise=0.02, seed=5)
SPLIT = ("--split-by", "devices", "--train-up-to", "4")  #: one fit to judge by, where folds would be five
MODELS = ("hybrid", "skeleton", "log-linear")


@pytest.fixture(scope="module")
def csv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_csv(WORLD.full("step (ms)"), tmp_path_factory.mktemp("predict") / "runs.csv")


@pytest.fixture(scope="module")
def stored(csv: Path) -> Path:
    """A model of all rows, with a page."""
    out, page = csv.with_name("model.json"), csv.with_name("page.html")
    assert (
        main(
            [
                "predict",
                str(csv),
                "--target",
                "step (ms)",
                "--models",
                "hybrid",
                *SPLIT,
                "-o",
                str(out),
                "--report",
                str(page),
            ]
        )
        == 0
    )
    return out


def said(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    capsys.readouterr()
    code = main([str(w) for w in words])
    out = capsys.readouterr()
    return code, out.out, out.err


def document(capsys: pytest.CaptureFixture[str], *words: object) -> dict[str, Any]:
    code, text, talk = said(capsys, "predict", *words, "--json")
    assert code == 0, talk
    (line,) = text.splitlines()
    return dict(json.loads(line))


def refused(capsys: pytest.CaptureFixture[str], *words: object, code: int = 2) -> str:
    """What is said on stderr; stdout stays empty."""
    got, text, talk = said(capsys, "predict", *words)
    assert (got, text) == (code, "")
    assert "hint:" in talk
    return talk


# ---- the contract of scripts ------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_models_fitted_below_a_count_are_judged_above_it(csv: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = [
        csv,
        "--target",
        "step (ms)",
        "--split-by",
        "devices",
        "--train-up-to",
        4,
        "--seed",
        1,
        "--models",
        ",".join(MODELS),
    ]
    d = document(capsys, *asked)
    assert [m["name"] for m in d["models"]] == list(MODELS)
    for m in d["models"]:
        assert set(m) >= {"name", "explainable", "mape_percent", "median_ape_percent", "coverage_90_percent", "fit_s"}
        assert isinstance(m["explainable"], bool)
    above = np.flatnonzero(WORLD.table.numbers("devices") > 4)
    assert d["split"] == {
        "kind": "above",
        "column": "devices",
        "value": 4.0,
        "train_rows": 70 - len(above),
        "test_rows": len(above),
    }
    assert d["best_explainable"] in ("hybrid", "skeleton", "generic", "log-linear")
    if d["best_explainable"] in MODELS:  # the errors are those of the points, on rows above the split only
        best = next(m for m in d["models"] if m["name"] == d["best_explainable"])
        assert {p["row"] for p in d["points"]} == set(above)
        errors = [abs(p["predicted"] / p["measured"] - 1) for p in d["points"]]
        assert best["mape_percent"] == pytest.approx(100 * np.mean(errors))
        inside = [p["low"] <= p["measured"] <= p["high"] for p in d["points"]]
        assert best["coverage_90_percent"] == pytest.approx(100 * np.mean(inside))
    same = document(capsys, *asked)
    for m in (*d["models"], *same["models"]):
        m.pop("fit_s")
    assert same == d


@pytest.mark.slow
def test_without_a_split_five_folds(csv: Path, stored: Path, capsys: pytest.CaptureFixture[str]) -> None:
    d = document(capsys, csv, "--target", "step (ms)", "--models", "log-linear", "--drop", "optimizer")
    assert d["split"]["kind"] == "folds"
    assert d["split"]["test_rows"] == d["rows"] == 70
    assert {"column": "optimizer", "why": "dropped on request"} in d["left_out"]
    assert set(d["roles"]) == {"devices", "batch", "layers", "hidden"}


def test_people_get_words(csv: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, text, talk = said(capsys, "predict", csv, "--target", "step (ms)", "--models", "skeleton", *SPLIT)
    assert code == 0
    assert "skeleton" in text
    assert "70 runs, 5 inputs" in talk


@pytest.mark.slow
def test_roles_may_be_given(csv: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "roles.toml").write_text('[columns]\nbatch = "batch"\nlayers = "kind"\n')
    asked = [csv, "--target", "step (ms)", "--models", "skeleton", *SPLIT, "--columns", tmp_path / "roles.toml"]
    assert document(capsys, *asked)["roles"]["layers"] == "kind"
    (tmp_path / "roles.toml").write_text('[columns]\nbatch = "gpus"\n')
    assert "unknown role 'gpus'" in refused(capsys, *asked)


# ---- a stored model is asked ------------------------------------------------------------------------------------------------


def test_what_if(csv: Path, stored: Path, capsys: pytest.CaptureFixture[str]) -> None:
    d = document(capsys, stored, "--what-if", "devices=4", "layers=8", "--what-if", "devices=16", "optimizer=lamb")
    one, other = d["what_if"]
    assert (one["inputs"]["devices"], one["inputs"]["layers"], one["note"]) == (4.0, 8.0, "")
    assert one["low"] < one["predicted"] < one["high"]
    assert "devices = 16 lies outside 1 to 8" in other["note"]
    assert "lamb was never measured" in other["note"]


def test_given_rows_are_predicted_one_by_one(stored: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    few = WORLD.table.take(np.arange(5))
    found = document(capsys, stored, "--rows", write_csv(few, tmp_path / "new.csv"))["what_if"]
    assert [r["inputs"]["layers"] for r in found] == few.numbers("layers").tolist()
    np.testing.assert_allclose([r["predicted"] for r in found], WORLD.truth[:5], rtol=0.1)
    assert "no column named 'hidden'" in refused(
        capsys, stored, "--rows", write_csv(few.without(["hidden"]), tmp_path / "less.csv")
    )


@pytest.mark.slow
def test_a_model_asked_while_it_is_fitted_answers_like_the_stored_one(
    csv: Path, stored: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    now = document(capsys, csv, "--target", "step (ms)", "--models", "hybrid", *SPLIT, "--what-if", "devices=4")
    (later,) = document(capsys, stored, "--what-if", "devices=4")["what_if"]
    assert later["predicted"] == pytest.approx(now["what_if"][0]["predicted"], rel=1e-6)


def test_advice_under_a_deadline_and_a_price(stored: Path, capsys: pytest.CaptureFixture[str]) -> None:
    quick = document(capsys, stored, "--samples", 50_000)["advice"]
    fastest = quick["rows"][quick["best"]]["total_s"]
    assert fastest == min(r["total_s"] for r in quick["rows"])
    cheap = document(capsys, stored, "--samples", 50_000, "--deadline-s", 2 * fastest, "--price", 3)["advice"]
    best = cheap["rows"][cheap["best"]]
    fitting = [r for r in cheap["rows"] if r["total_s"] <= 2 * fastest]
    assert best["cost"] == min(r["cost"] for r in fitting) == pytest.approx(3 * best["device_hours"])
    talk = refused(capsys, stored, "--samples", 50_000, "--deadline-s", fastest / 2, code=3)
    assert "the fastest takes" in talk


def test_the_page_stands_alone(stored: Path) -> None:
    html = stored.with_name("page.html").read_text()
    assert html.lower().startswith("<!doctype html")
    assert "http://" not in html.replace("http://www.w3.org", "")
    assert "https://" not in html


# ---- bad input --------------------------------------------------------------------------------------------------------------


def test_bad_input_is_a_sentence(csv: Path, stored: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "step (ms)" in refused(capsys, csv)  # no target: the columns are named
    assert "no column named 'time'" in refused(capsys, csv, "--target", "time")
    assert "unknown models: oracle" in refused(capsys, csv, "--target", "step (ms)", "--models", "oracle")
    assert "none named" in refused(capsys, csv, "--target", "step (ms)", "--models", ",")
    assert "nothing tells how" in refused(
        capsys, csv, "--target", "step (ms)", "--split-by", "devices", "--train-up-to", 1
    )
    assert "no input is named" in refused(capsys, stored, "--what-if", "colour=2")
    text = csv.read_text().splitlines()
    (tmp_path / "holes.csv").write_text("\n".join([*text[:3], text[3].partition(",")[2].join([",", ""]), *text[4:]]))
    assert "missing values (line 4)" in refused(capsys, tmp_path / "holes.csv", "--target", "step (ms)")
    (tmp_path / "broken.json").write_text(
        stored.read_text().replace('"theta"', '"beta"').replace('"scale"', '"scales"')
    )
    assert "is damaged" in refused(capsys, tmp_path / "broken.json", "--what-if", "devices=2")
    assert not refused(capsys, tmp_path / "no.csv", "--target", "t").startswith("Traceback")


# ---- profiles ---------------------------------------------------------------------------------------------------------------


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    graph = training_chain(3, parameter_bytes=8e6, update=True)
    cluster = Cluster((Device("cpu0"), Device("cpu1")), (), Link("", "", 1e8, 1e-4))
    found = Profile(
        "job.py:job",
        16,
        (Sample(4, graph, given_costs(graph, 0.01)), Sample(16, graph, given_costs(graph, 0.03))),
        cluster,
    )
    return found.write(tmp_path / "profile.json")


def test_a_profile_on_more_devices(profile: Path, capsys: pytest.CaptureFixture[str]) -> None:
    d = document(capsys, profile, "--devices", "1,2,4")
    assert len(d["predictions"]) == 3
    exchanged = [p["exchange"]["seconds"] for p in d["predictions"]]
    assert exchanged[0] == 0 < exchanged[1] < exchanged[2]
    # 24 MB: 2 (n - 1) / n of them over 1e8 bytes/s
    assert exchanged[1] == pytest.approx(2 * 0.5 * 24e6 / 1e8, rel=0.01)
    slow = document(capsys, profile, "--devices", "1,2,4", "--bandwidth", 1e7)["predictions"]
    assert slow[1]["exchange"]["seconds"] > 9 * exchanged[1]
    weak = document(capsys, profile, "--devices", "4", "--weak")["predictions"]
    assert weak[0]["batch_size"] == 64
    tree = document(capsys, profile, "--devices", "4", "--scheme", "tree")["predictions"]
    assert tree[0]["exchange"]["seconds"] > exchanged[2]
    assert all(math.isfinite(p["overlapped"]["seconds"]) for p in d["predictions"])


def test_a_profile_asked_for_nonsense(profile: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "no list of numbers" in refused(capsys, profile, "--devices", "two")
    assert "no page" in refused(capsys, profile, "--report", "x.html")
    refused(capsys, profile, "--devices", "0")
