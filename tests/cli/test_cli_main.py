"""The command line's contract: help, exit codes, hints, one JSON document on stdout, no torch where none is needed."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from training.runtime.helpers import plan_file

from partita import __version__
from partita.cli import VERBS, flow, main, offload, spark, testbed
from partita.cli.settings import settings_of
from partita.cli.talk import Talk
from partita.errors import BadInput

ESCAPE = "\x1b["


def call(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    code = main([str(w) for w in words])
    out, err = capsys.readouterr()
    return code, out, err


def python(code: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], cwd=cwd, env=env or None, capture_output=True, text=True)


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(plan_file("long_skip", stages=2).write(tmp_path_factory.mktemp("plan") / "plan.json"))


# ---- help ---------------------------------------------------------------------------------------------------------------


INNER = {"flow": flow.VERBS, "offload": offload.VERBS, "spark": spark.VERBS, "testbed": testbed.VERBS}


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_helps(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([verb, "--help"])
    assert ended.value.code == 0
    out = capsys.readouterr().out
    assert out.startswith(f"usage: partita {verb}")
    assert all(word in out for word in INNER.get(verb, ["--json"]))
    assert VERBS[verb][1:].split(",")[0].split(":")[0] in " ".join(out.split())


@pytest.mark.parametrize(("verb", "inner"), [(v, i) for v, found in INNER.items() for i in found])
def test_every_inner_verb_helps(verb: str, inner: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([verb, inner, "--help"])
    assert ended.value.code == 0
    out = capsys.readouterr().out
    assert out.startswith(f"usage: partita {verb} {inner}")
    assert "--json" in out


def test_help_lists_every_verb(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    out = capsys.readouterr().out
    assert all(re.search(rf"^ +{v}\b", out, re.MULTILINE) for v in VERBS)


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.strip() == f"partita {__version__}"


@pytest.mark.parametrize("words", [[], ["unheard-of"], ["plan"], ["simulate", "a.json", "--unheard-of"], ["--json"]])
def test_a_line_that_cannot_be_read_ends_with_2(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "usage: partita" in err


# ---- exit codes and hints -------------------------------------------------------------------------------------------------

BAD = [
    (("measure", "nowhere.py:job"), "does not exist"),
    (("measure", "nowhere.py"), "names no job"),
    (("measure", "broken.py:job"), "cannot be imported"),
    (("measure", "empty.py:job"), "no function 'job'"),
    (("measure", "other.py:job"), "not a partita.TrainingJob"),
    (("measure", "other.py:fails"), "ZeroDivisionError"),
    (("measure", "other.py:job", "--micro-batch-sizes", "4,x"), "list of sizes"),
    (("measure", "other.py:job", "--set", "data"), "NAME=VALUE"),
    (("measure", "other.py:job", "--devices", "0"), "0 devices"),
    (("plan", "nowhere.json"), "cannot be read"),
    (("plan", "other.py:job"), "has to be measured"),
    (("plan", "half.json"), "not JSON"),
    (("plan", "plan.json"), "plan"),
    (("simulate", "nowhere.json"), "cannot be read"),
    (("run", "other.py:job", "--steps", "0"), "--steps 0"),
    (("run", "other.py:job", "--engine", "torch", "--resume", "."), "cannot resume"),
    (("run", "other.py:job", "--resume", "."), "no checkpoint"),
    (("run", "other.py:job"), "not a partita.TrainingJob"),
    (("run", "other.py:job", "--plan", "nowhere.json"), "cannot be read"),
    (("run", "other.py:job", "-o", ""), "-o '' names no place"),
    (("plan", "profile.json", "--out="), "-o '' names no place"),
    (("compare", "plan.json"), "nothing to be compared"),
    (("report", "nowhere"), "not a folder"),
]


@pytest.mark.parametrize(("words", "fault"), BAD, ids=[" ".join(w) for w, _ in BAD])
def test_bad_input_is_one_sentence_a_hint_and_2(
    words: tuple[str, ...],
    fault: str,
    plan: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plan.json").write_text(plan.read_text())
    (tmp_path / "half.json").write_text('{\n"format": "partita-profile",\n"version": 1,\n"jo')
    (tmp_path / "broken.py").write_text("import unheard_of_package\n")
    (tmp_path / "empty.py").write_text("")
    (tmp_path / "other.py").write_text("print('what a job prints is talk')\njob = lambda: 3\nfails = lambda: 1 / 0\n")
    code, out, err = call(capsys, *words, "--json")
    assert code == 2
    assert out == ""
    assert fault in err
    told = [line for line in err.splitlines() if line.startswith("partita: ")]
    assert len(told) == 1
    assert "hint: " in told[0]


def test_what_does_not_fit_ends_with_3_and_says_what_would_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A profile of a small model, planned for devices of a kilobyte."""
    file = plan_file("long_skip", stages=2)
    from partita.nouns.profile import Profile, Sample

    profile = Profile("models.py:long_skip", 8, (Sample(2, file.graph, file.costs),), file.cluster, 1.0)
    profile.write(tmp_path / "profile.json")
    tiny = "".join(f'[[device]]\nname = "cpu{i}"\nkind = "cpu"\nmemory_bytes = 1000.0\n\n' for i in range(2))
    (tmp_path / "tiny.toml").write_text(tiny + "[link]\nlatency_s = 1e-4\n")
    code, out, err = call(capsys, "plan", tmp_path / "profile.json", "--cluster", tmp_path / "tiny.toml", "--json")
    assert code == 3
    assert out == ""
    assert "hint: " in err
    assert re.search(r"\d", err)


# ---- stdout is data -------------------------------------------------------------------------------------------------------


def test_json_is_one_document_and_nothing_else(plan: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = call(capsys, "simulate", plan, "--json", "-o", tmp_path / "t.json")
    assert code == 0
    assert out.endswith("}\n")
    assert out.count("\n") == 1
    assert json.loads(out)["timeline"] == str(tmp_path / "t.json")
    assert "t.json" in err  # the talk went elsewhere


def test_json_may_stand_before_the_file(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, before, _ = call(capsys, "simulate", "--json", plan)
    _, after, _ = call(capsys, "simulate", plan, "--json")
    assert json.loads(before)["step_s"] == json.loads(after)["step_s"]


def test_a_reader_that_goes_away_is_no_crash(plan: Path) -> None:
    line = f"{sys.executable} -m partita simulate {plan} | true"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True)
    assert "Traceback" not in done.stderr


# ---- talk -----------------------------------------------------------------------------------------------------------------


class Terminal:
    """A stderr that says it is a terminal."""

    def __init__(self) -> None:
        self.text = ""

    def write(self, text: str) -> int:
        self.text += text
        return len(text)

    def flush(self) -> None: ...

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("no_colour", [False, True])
def test_colour_only_where_it_is_wanted(no_colour: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    if no_colour:
        monkeypatch.setenv("NO_COLOR", "1")
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    Talk.to_stderr().error("fault")
    assert (f"{ESCAPE}31" in terminal.text) is not no_colour
    assert "partita:" in terminal.text


def test_off_a_terminal_nothing_moves(capsys: pytest.CaptureFixture[str]) -> None:
    talk = Talk.to_stderr()
    for done in range(5):
        talk.progress("steps", done, 4)
    assert capsys.readouterr().err == "   steps ...\n"


@pytest.mark.parametrize(("pairs", "value"), [([], {}), (["a=1", "b=x=y"], {"a": "1", "b": "x=y"})])
def test_settings(pairs: list[str], value: dict[str, str]) -> None:
    import argparse

    assert settings_of(argparse.Namespace(set=pairs)) == value


@pytest.mark.parametrize("pair", ["a", "=1", "1a=2", "a b=2"])
def test_settings_that_are_none(pair: str) -> None:
    import argparse

    with pytest.raises(BadInput, match="NAME=VALUE"):
        settings_of(argparse.Namespace(set=[pair]))


# ---- torch is not waited for ------------------------------------------------------------------------------------------------


def test_verbs_that_only_plan_never_import_torch(plan: Path, tmp_path: Path) -> None:
    """In a process of its own, whose modules are looked at after each verb."""
    from partita.nouns.profile import Profile, Sample

    file = plan_file("long_skip", stages=2)
    Profile("models.py:long_skip", 8, (Sample(2, file.graph, file.costs),), file.cluster).write(tmp_path / "p.json")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "plan.json").write_text(plan.read_text())
    verbs = [
        ["simulate", str(plan), "-o", str(tmp_path / "t.json")],
        ["compare", str(plan), str(plan)],
        ["report", str(tmp_path / "run")],
        ["plan", str(tmp_path / "p.json"), "-o", str(tmp_path / "out.json")],
    ]
    code = f"import sys; from partita.cli import main; found = [(v[0], main(v), 'torch' in sys.modules) for v in {verbs!r}]; print(found, file=sys.stderr)"
    done = python(code, tmp_path)
    assert done.stderr.splitlines()[-1] == str([(v[0], 0, False) for v in verbs])


@pytest.mark.parametrize("interrupted", ["raise KeyboardInterrupt", "exec('raise KeyboardInterrupt')"])
def test_an_interrupt_while_modules_are_imported_is_said_as_any_other(interrupted: str, tmp_path: Path) -> None:
    """Also in an exec(), as dataclasses are made: Python would end by the signal in the end."""
    code = f"""
import importlib, sys
from partita.cli import end_with_main
def interrupted(name): {interrupted}
importlib.import_module, sys.argv = interrupted, ["partita", "plan"]
end_with_main()
"""
    done = python(code, tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "partita: interrupted\n")


@pytest.mark.parametrize(("package", "extra"), [("grpc", "offload"), ("onnx.helper", "offload"), ("dask", "flow")])
def test_a_package_of_an_extra_that_is_not_there_is_named(
    package: str, extra: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*_: object) -> None:
        raise ModuleNotFoundError(f"No module named {package!r}", name=package)

    monkeypatch.setattr("partita.cli.simulate.run", run)
    code, out, err = call(capsys, "simulate", "plan.json")
    assert (code, out) == (2, "")
    assert f"needs the package {package.partition('.')[0]}, which is not installed" in err
    assert f"hint: pip install 'partita[{extra}]'" in err


def test_a_package_that_is_nobody_s_is_a_fault_of_the_code(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*_: object) -> None:
        raise ModuleNotFoundError("No module named 'numpyy'", name="numpyy")

    monkeypatch.setattr("partita.cli.simulate.run", run)
    with pytest.raises(ModuleNotFoundError):
        main(["simulate", "plan.json"])
