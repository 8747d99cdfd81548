"""Flows run: the answers are those of computing everything for itself, each task runs once, nothing is left behind."""

from __future__ import annotations

import functools
import itertools
import os
import random
import subprocess
import sys
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dataflow.run.flow_samples import begin, mix, plainly, score, some_flow, total

from partita.dataflow import (
    FlowError,
    choose,
    explore,
    first_over,
    gather,
    halving,
    run_flow,
    smallest,
    step,
    top,
    unfold,
)
from partita.dataflow.load import load_flow
from partita.dataflow.plan.course import Course
from partita.dataflow.plan.events import Done, Failure, Job, Limits, flat
from partita.dataflow.run import task
from partita.dataflow.run.engine import Settings, _Run
from partita.dataflow.run.in_process import InProcess
from partita.dataflow.run.keeping import Keeping
from partita.dataflow.run.numbers import Numbers
from partita.dataflow.run.task import Order, Report, execute, needed, size_of
from partita.dataflow.store import Found, Store
from partita.errors import BadInput
from partita.files import dump_json


def here(flow: Any, **settings: Any) -> Any:
    return run_flow(flow, workers=0, **settings)


@step
def fresh() -> Any:
    return np.zeros(3)


@pytest.mark.parametrize("seed", range(60))
def test_answers_are_those_of_computing_everything_for_itself(seed: int) -> None:
    flow = some_flow(seed)
    assert here(flow, check=False).value == plainly(flow, {})


@pytest.mark.parametrize("seed", range(0, 60, 3))
def test_little_memory_changes_no_answer(seed: int) -> None:
    flow = some_flow(seed)
    found = here(flow, memory_bytes=400.0, check=False)
    assert found.value == plainly(flow, {})


@pytest.mark.parametrize("seed", range(30))
def test_every_task_runs_once_and_nothing_is_left(seed: int) -> None:
    graph = unfold(some_flow(seed))
    engine = InProcess([s.function for s in graph.steps])
    going = _Run(graph, engine, Settings(check=False), None, None, None)
    record = going.to_the_end().record
    course = going.course
    assert all(t.runs <= 1 for t in record.tasks)
    assert len(record.tasks) == graph.tasks
    assert (
        record.tasks_run
        + record.tasks_pruned
        + record.tasks_cancelled
        + record.tasks_failed
        + sum(t.state == "shared" for t in record.tasks)
        == graph.tasks
    )
    engine.release(course.take_released())
    asked = {course._real(n) for _, s in graph.sinks for n in flat(course.view(s))}
    assert set(course.held) == asked == set(engine.results)
    assert min(course.refs) >= 0


@dataclass
class Blaming(InProcess):
    """Some tasks, and some results that were there, are lost with their workers; those tasks are suspected."""

    chance: random.Random = field(default_factory=random.Random)
    suspects: set[int] = field(default_factory=set)
    alone: int = 0

    def submit(self, orders: Sequence[Order]) -> None:
        super().submit(orders)
        for order in orders:
            if order.told.node in self.suspects:
                under_way = [(o.told.node, o.told.turn) for o in self.waiting]
                assert [w for w in under_way if w not in self.gone] == [(order.told.node, order.told.turn)]
                self.alone += 1

    def wait(self, timeout_s: float) -> list[tuple[Report, str]]:
        found = super().wait(timeout_s)
        for k, (report, worker) in enumerate(found):
            if self.chance.random() < 0.2:
                self.suspects.add(report.node)
                found[k] = report._replace(state="suspected"), worker
        lost = self.chance.sample(sorted(self.results), 1) if self.results and self.chance.random() < 0.1 else []
        for n in lost:
            del self.results[n]
        return found + [(Report(n, self.turns[n], "lost", 0.0, 0.0), "") for n in lost]


def test_what_may_kill_workers_runs_by_itself_and_changes_no_answer() -> None:
    alone = 0
    for seed in range(60):
        graph = unfold(some_flow(seed))
        limit = [float("inf"), 400.0][seed % 2]
        engine = Blaming([s.function for s in graph.steps], chance=random.Random(seed))
        going = _Run(graph, engine, Settings(memory_bytes=limit, check=False), None, None, None)
        assert going.to_the_end().value == plainly(some_flow(seed), {})
        alone += engine.alone
    assert alone > 100


def test_what_branches_share_runs_once() -> None:
    ran: list[str] = []

    @step(version="1")
    def load() -> int:
        ran.append("load")
        return 1

    @step(version="1")
    def scale(x: int, by: int) -> int:
        ran.append(f"scale {by}")
        return x * by

    @step(version="1")
    def fit(x: int, c: int) -> int:
        return x + c

    scaled = scale(load(), explore("by", [1, 2, 3]))
    model = fit(scaled, explore("c", list(range(10))))
    found = here(choose(model, by=fit(model, 0)), check=False)
    assert sorted(ran) == ["load", "scale 1", "scale 2", "scale 3"]
    assert found.value == 12
    assert found.record.chosen[0].options == {"by": "3", "c": "9"}
    assert (found.record.configurations, found.record.branches) == (30, 30)
    assert found.record.tasks_run + found.record.tasks_shared == 30 * 4


def test_a_choose_after_a_choose_reuses_what_the_first_has_computed() -> None:
    first = mix(begin(1), explore("a", [1, 2, 3]))
    second = mix(first, explore("b", [1, 2, 3, 4]))
    best = choose(second, by=score(second), over="b")
    found = here(choose(best, by=score(best), over="a"), check=False)
    assert sum(t.state == "run" and t.label == "score" for t in found.record.tasks) == 12
    assert sum(t.state == "shared" for t in found.record.tasks) == 3


@step
def graded(row: list[int], fold: int) -> float:
    if row[0] % 5 == 3 and fold == 2:
        raise ValueError("not this fold")
    return float((row[0] * 7919 + fold * 31) % 1009)


@pytest.mark.parametrize("memory_bytes", [float("inf"), 100.0])
def test_a_score_may_be_a_choose(memory_bytes: float) -> None:
    """The score of a family of options is that of its best member; chooses in chooses, and those that are the result too."""
    model = mix(begin(1), explore("lr", [1, 2, 3]))
    grade = graded(model, explore("fold", [0, 1, 2]))
    best = choose(grade, by=grade, over="fold")
    for by in (best, choose(grade, by=best, over="fold"), choose(grade, by=grade, over="fold", select=smallest())):
        for value in (model, best, mix(model, 2)):
            flow = choose(value, by=by, over="lr")
            assert here(flow, check=False, memory_bytes=memory_bytes).value == plainly(flow, {})


def test_a_score_whose_choose_fails_loses_its_branch() -> None:
    @step
    def shaky(row: list[int], lr: int, fold: int) -> float:
        if lr == 2:
            raise ValueError("two is too much")
        return float(lr + fold)

    lr = explore("lr", [1, 2, 3])
    grade = shaky(begin(1), lr, explore("fold", [0, 1]))
    found = here(choose(mix(begin(1), lr), by=choose(grade, by=grade, over="fold"), over="lr"), check=False)
    (row,) = [c for c in found.record.choices if c.over == ("lr",)]
    assert [s.score for s in row.scores] == [2.0, None, 4.0]
    assert "two is too much" in row.scores[1].reason


def test_a_score_that_is_a_list_is_refused() -> None:
    model = mix(begin(1), explore("lr", [1, 2, 3]))
    grade = graded(model, explore("fold", [0, 1]))
    folds = gather(grade, over="fold")
    lists = [folds, choose(grade, by=grade, over="fold", select=top(2)), choose(folds, by=score(model), over="lr")]
    lr = [choose(model, by=by, over="lr") for by in lists[:2]]
    for flow in (*lr, choose(mix(model, explore("x", [1, 2])), by=lists[2], over="x")):
        with pytest.raises(FlowError, match=r"is a list, .* hint: .*mean"):
            unfold(flow)


def test_convex_branches_are_never_run() -> None:
    model = mix(begin(5), explore("x", list(range(40)), ordered=True))

    @step
    def bend(row: list[int], x: int) -> float:
        return -float((x - 23) ** 2)

    found = here(
        choose(model, by=bend(model, explore("x", list(range(40)), ordered=True)), shape="convex"), check=False
    )
    assert found.record.chosen[0].options == {"x": "23"}
    assert found.record.branches_pruned >= 25
    assert found.record.tasks_pruned >= 50
    assert all("never run" in s.reason for s in found.record.choices[0].scores if s.score is None)


def test_an_option_that_raises_loses_its_branch_only() -> None:
    @step
    def shaky(row: list[int], a: int) -> list[int]:
        if a == 2:
            raise ValueError("two is too much")
        return [row[0] + a, 0]

    value = shaky(begin(1), explore("a", [1, 2, 3]))
    flow = choose(mix(value, 1), by=score(mix(value, 1)))
    found = here(flow)
    (choice,) = found.record.choices
    assert [s.score is None for s in choice.scores] == [False, True, False]
    assert "two is too much" in choice.scores[1].reason
    assert any("two is too much" in note for note in found.record.notes)
    with pytest.raises(FlowError, match="two is too much"):
        here(flow, stop_on_error=True)


def test_what_can_be_read_once_is_no_result() -> None:
    @step
    def rows(n: int) -> Any:
        return (i for i in range(n)) if n == 3 else list(range(n))

    @step
    def summed(values: Any, a: int) -> float:
        return sum(values) + a

    value = summed(rows(explore("n", [3, 4])), explore("a", [0, 1]))
    found = here(choose(value, by=value))
    assert found.value == 7.0
    assert "gives a generator, which can be read only once" in found.record.choices[0].scores[0].reason


@dataclass(frozen=True)
class Boxed:
    value: Any


class _Awkward:
    """Fails when it is asked about itself."""

    @property
    def nbytes(self) -> int:
        raise NotImplementedError

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise RuntimeError("not now")


class _Speechless(Exception):
    def __str__(self) -> str:
        raise ValueError


def test_a_result_that_cannot_be_told_is_no_fault_of_its_step() -> None:
    @step
    def made(a: int) -> Any:
        return _Awkward()

    @step
    def told(value: Any, a: int) -> int:
        if a == 3:
            raise _Speechless
        if a == 4:
            raise ValueError("\ud800")
        return a

    value = told(made(1), explore("a", [1, 2, 3, 4]))
    found = here(choose(value, by=value))
    assert found.value == 2
    reasons = [s.reason for s in found.record.choices[0].scores[2:]]
    assert "_Speechless" in reasons[0]
    assert "\\ud800" in reasons[1]


def test_a_flow_whose_options_all_raise_says_why() -> None:
    @step
    def broken(row: list[int], a: int) -> list[int]:
        raise ValueError("never")

    value = broken(begin(1), explore("a", [1, 2]))
    with pytest.raises(FlowError, match="never"):
        here(choose(value, by=score(value)))


def test_a_score_that_is_no_number_loses() -> None:
    @step
    def odd(row: list[int], a: int) -> float:
        return float("nan") if a == 1 else 0.0

    a = explore("a", [1, 2])
    found = here(choose(mix(begin(1), a), by=odd(begin(1), a)))
    assert found.record.chosen[0].options == {"a": "2"}
    assert "nan" in found.record.choices[0].scores[0].reason


def test_a_result_that_cannot_say_its_size_is_one_all_the_same() -> None:
    class Sly:
        told = 0

        @property
        def nbytes(self) -> int:
            Sly.told += 1
            if Sly.told > 1:
                raise RuntimeError("not twice")
            return 8

    @step
    def make(a: int) -> Any:
        return Sly() if a == 1 else [a]

    @step
    def use(row: Any) -> float:
        return 1.0 if isinstance(row, Sly) else 2.0

    value = use(make(explore("a", [1, 2])))
    found = here(choose(value, by=value))
    assert [s.score for s in found.record.choices[0].scores] == [1.0, 2.0]


@pytest.fixture
def looks_are_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long a second run of a step takes on a busy machine."""
    monkeypatch.setattr("partita.dataflow.run.looks.FREE_S", 60.0)


@pytest.mark.usefixtures("looks_are_free")
def test_a_step_that_changes_its_input_is_told() -> None:
    @step
    def spoil(row: Any, a: int) -> Any:
        row[0] = a
        return row

    @step
    def first(row: Any) -> float:
        time.sleep(0.01)
        return float(row[0])

    spoilt = spoil(fresh(), explore("a", [1, 2, 3]))
    found = here(gather(spoilt, over="a"), check=False)
    assert len(found.value) == 3
    for flow in (gather(spoilt, over="a"), choose(spoilt, by=first(spoilt))):
        with pytest.raises(FlowError, match="changes what it is given"):
            here(flow)


def test_what_a_spoiling_step_may_have_changed_is_not_kept(tmp_path: Path) -> None:
    @step
    def plus(row: Any, b: int) -> Any:
        time.sleep(0.02)
        return row + b

    @step
    def spoil(row: Any, other: Any) -> Any:
        time.sleep(0.05)  # longer than a second run of it may take
        row[0] = other[0][0]
        return other

    row = fresh()
    store = Store.open(tmp_path / "store")
    with pytest.raises(FlowError, match="changes what it is given"):
        here(spoil(row, gather(plus(row, explore("b", [1, 2])), over="b")), store=store)
    assert store.entries() == []


@pytest.mark.usefixtures("looks_are_free")
def test_what_earlier_calls_of_a_spoiling_step_may_have_changed_is_not_kept(tmp_path: Path) -> None:
    """The first call of the step was not looked at; it changed, through a view, what reads no input of the step read."""

    @step
    def data(k: int) -> Any:
        time.sleep(0.01)
        return np.full(1000, float(k))

    @step
    def head(x: Any) -> Any:
        return x[:10]

    @step
    def spoil(x: Any) -> float:
        x += 1
        return float(x.sum())

    @step
    def reader(x: Any, spoilt: float) -> Any:
        time.sleep(0.02)
        return x * 1

    d = data(explore("k", [10, 20]))
    store = Store.open(tmp_path / "store")
    with pytest.raises(FlowError, match="changes what it is given"):
        here(gather(reader(d, spoil(head(d))), over="k"), store=store)
    kept = [store.get(e.key) for e in store.entries()]
    assert {k.value[0] for k in kept if isinstance(k, Found)} <= {10.0, 20.0}


@pytest.mark.usefixtures("looks_are_free")
def test_a_step_that_is_not_deterministic_is_told_and_not_kept(tmp_path: Path) -> None:
    count = itertools.count()

    @step(version="1")
    def draw(row: list[int], a: int) -> list[int]:
        time.sleep(0.006)  # long enough to be worth keeping
        return [next(count), a]

    value = draw(begin(1), explore("a", [1, 2, 3]))
    flow = choose(value, by=score(value))
    numbers, store = Numbers.open(tmp_path / "scores.jsonl"), Store.open(tmp_path / "store")
    found = here(flow, store=store, numbers=numbers)
    assert any("draw is not deterministic" in note for note in found.record.notes)
    assert Numbers.open(tmp_path / "scores.jsonl").found == {}
    assert store.entries() == []


class Straggling(InProcess):
    """What is cancelled runs to its end all the same, and nobody hears of it."""

    def fetch(self, nodes: Sequence[int]) -> list[Any]:
        for o in self.waiting:
            execute(o.told, self.functions[o.told.step], [self.results[n] for n in needed(o.inputs)], self.store)
        return super().fetch(nodes)


@pytest.mark.usefixtures("looks_are_free")
def test_a_cancelled_task_of_a_step_that_is_not_deterministic_keeps_nothing(tmp_path: Path) -> None:
    count = itertools.count()

    @step(version="1")
    def draw(a: int) -> int:
        time.sleep(0.006)
        return next(count)

    value, store = draw(explore("a", list(range(5)))), Store.open(tmp_path / "store")
    graph = unfold(choose(value, by=value, select=first_over(1)))
    engine = Straggling([s.function for s in graph.steps], Keeping(store))
    _Run(graph, engine, Settings(), store, None, None).to_the_end()
    assert next(count) > 3  # two, a second look at the second, and the one that was cancelled
    assert store.entries() == []


def test_a_kept_result_that_is_damaged_is_computed_again(tmp_path: Path) -> None:
    @step
    def long(a: int) -> Any:
        time.sleep(0.01)
        return np.full(3, float(a))

    value = long(explore("a", [1, 2]))
    flow = choose(value, by=score(value))
    store = Store.open(tmp_path / "store")
    first = here(flow, store=store, check=False)
    for entry in store.entries():
        entry.path.write_bytes(b"nothing of the kind")
    again = here(flow, store=store, check=False)
    assert first.value.tolist() == again.value.tolist()
    assert any("computed again" in note for note in again.record.notes)


_LAZY = """
import time
from pathlib import Path
from partita.dataflow import step
@step
def edit(path, text):
    Path(path).write_text(text)
    return 1
@step
def use(x, k):
    import helped_{name}
    time.sleep(0.01)
    return helped_{name}.K + k
def flow():
    return [use(edit({path!r}, {text!r}), 1), use(1, 2)]
"""


@pytest.mark.parametrize("text", ["K = 2", "K = 1"])
def test_what_a_file_that_was_changed_meanwhile_computes_is_not_kept(tmp_path: Path, text: str) -> None:
    """The file is imported when the step runs; the key tells it as it was when the flow was unfolded."""
    name = text[-1]
    helped = tmp_path / f"helped_{name}.py"
    helped.write_text("K = 1")
    (tmp_path / "lazy.py").write_text(_LAZY.format(path=str(helped), text=text, name=name))
    loaded = load_flow(str(tmp_path / "lazy.py"))
    store, numbers = Store.open(tmp_path / "store"), Numbers.open(tmp_path / "scores.jsonl")
    found = here(
        loaded.value, store=store, numbers=numbers, modules=[loaded.module], sources=loaded.sources, check=False
    )
    assert found.values[0] == int(name) + 1
    assert store.entries() == []
    assert len(numbers.found) <= 1  # what edit gave
    assert any(f"{helped} was changed" in note for note in found.record.notes)


def test_a_file_that_changes_when_it_is_imported_already_is_no_matter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task, "WORTH_KEEPING", 0.0)  # else what `edit` gave is kept where writing a file took long
    helped = tmp_path / "helped_3.py"
    helped.write_text("K = 1")
    text = _LAZY.format(path=str(helped), text="K = 2", name="3").replace("import time\n", "import time, helped_3\n")
    (tmp_path / "eager.py").write_text(text)
    loaded = load_flow(str(tmp_path / "eager.py"))
    store = Store.open(tmp_path / "store")
    found = here(loaded.value, store=store, modules=[loaded.module], sources=loaded.sources, check=False)
    assert found.values == (2, 3)
    assert len(store.entries()) == 3


def test_more_memory_than_was_given_is_said() -> None:
    """What one task reads and gives together may be more than all that results may take."""

    @step
    def load() -> Any:
        return np.zeros(3_000)

    @step
    def scale(x: Any) -> Any:
        return x * 2

    found = here(scale(load()), memory_bytes=10_000.0, check=False)
    assert found.record.peak_bytes == 48_000.0
    assert any("results took 48.0 kB at a time" in note and "10.0 kB" in note for note in found.record.notes)
    assert not any("at a time" in note for note in here(scale(load()), memory_bytes=50_000.0, check=False).record.notes)
    for wrong in (0, -1.0, float("nan")):
        with pytest.raises(BadInput, match="memory"):
            here(scale(load()), memory_bytes=wrong)


class Model:
    def __init__(self) -> None:
        self.weights = np.zeros(1_000)

    def __call__(self) -> None: ...


def test_sizes_are_those_of_all_that_a_result_holds() -> None:
    pd = pytest.importorskip("pandas")
    rows = [np.zeros(1_000) for _ in range(300)]
    cells = np.empty(300, object)
    cells[:] = rows
    texts = pd.DataFrame({"a": [f"{k:1000}" for k in range(500)], "b": [1.0] * 500}).astype({"a": object})
    same = np.empty(300, object)
    same[:] = [rows[0]] * 300
    assert 8_000 < size_of(Model()) < 10_000
    assert 2.4e6 < size_of(cells) < 2.6e6
    assert size_of(same) < 2e4
    assert 500_000 < size_of(texts) < 700_000
    assert 500_000 < size_of(texts["a"]) < 700_000
    assert size_of(here) < 1000


class Dying(InProcess):
    """The only worker dies once, when it has loaded two results, and all that it held with it."""

    loads = 0

    def wait(self, timeout_s: float) -> list[tuple[Report, str]]:
        found = super().wait(timeout_s)
        self.loads += sum(r.state == "done" and r.stored for r, _ in found)
        if self.loads == 2:
            self.loads = 3
            lost, self.results = self.results, {}
            return [(Report(n, self.turns[n], "lost", 0.0, 0.0, reason="all workers died"), "") for n in lost]
        return found


def test_a_loaded_result_that_goes_with_its_worker_is_loaded_again(tmp_path: Path) -> None:
    @step
    def long(a: int) -> Any:
        time.sleep(0.01)
        return np.full(3, float(a))

    @step
    def brief(rows: list[Any]) -> Any:
        return sum(rows)

    flow, store = brief(gather(long(explore("a", [1, 2, 3])), over="a")), Store.open(tmp_path / "store")
    first = here(flow, store=store, check=False)
    graph = unfold(flow)
    again = _Run(
        graph, Dying([s.function for s in graph.steps], Keeping(store)), Settings(), store, None, None
    ).to_the_end()
    assert again.value.tolist() == first.value.tolist()
    assert (again.record.tasks_cached, again.record.tasks_run) == (3, 1)
    assert not any("computed again" in note for note in again.record.notes)


def test_several_results_outlive_little_memory() -> None:
    """Two winners that do not fit together: neither goes for the other."""

    @step
    def block(name: str, a: int) -> Any:
        return np.full(1000, float(a))

    @step
    def first(row: Any) -> float:
        return float(row[0])

    def one(name: str) -> Any:
        value = block(name, explore(name, [1, 2, 3]))
        return choose(value, by=first(value), over=[name])

    found = here([one("x"), one("y"), one("z")], memory_bytes=10_000.0, check=False)
    assert [float(v[0]) for v in found.values] == [3.0, 3.0, 3.0]


@pytest.mark.parametrize("memory", [1.0, 100.0, 200.0, 300.0])
def test_what_a_decided_choice_stands_for_may_be_dropped(memory: float) -> None:
    """A reader of the choice is asked for again, and so is the winner."""
    first = mix(begin(1), explore("a", [1, 2]))
    row = mix(choose(first, by=score(first)), explore("b", [1, 2, 3]))
    flow = total(choose(row, by=score(row), select=top(3)))
    assert here(flow, memory_bytes=memory, check=False).value == here(flow, check=False).value


def test_a_step_that_changes_its_input_is_found_though_its_first_task_raised(tmp_path: Path) -> None:
    @step
    def shaky(row: Any, a: int) -> float:
        if a == 0:
            raise ValueError("not this one")
        row += a
        return float(row[0])

    @step
    def rude(row: Any, a: int) -> float:
        row += 1
        raise ValueError("never")

    for spoiling in (shaky, rude):
        value = spoiling(fresh(), explore("a", [0, 1, 2]))
        with pytest.raises(FlowError, match="changes what it is given"):
            here(choose(value, by=value))


def test_whole_numbers_of_hundreds_of_digits_are_results() -> None:
    @step
    def large() -> int:
        return 10**400

    assert here(large()).value == 10**400


def _course(flow: Any, **limits: Any) -> Course:
    return Course(unfold(flow), limits=Limits(**limits))


def _run_job(course: Course, job: Job, value: float | None = None) -> None:
    course.done(Done(job.node, job.turn, 0.0, 1.0, "w", 8.0, value))


def test_a_result_whose_second_run_raises_is_lost() -> None:
    """Its worker died, it ran again for a reader, and raised: once without end."""
    course = _course(mix(begin(1), 3))
    begun, mixed = course.next_jobs(2)
    _run_job(course, begun)
    _run_job(course, begun)
    assert course.times_run[begun.node] == 2
    course.failed(Failure(begun.node, begun.turn, "the second time it raised"))
    course.lost(mixed.node, mixed.turn)
    assert course.finished()
    assert course.reason[mixed.node] == "the second time it raised"
    assert course.held_bytes == 0.0


def test_where_memory_is_limited_one_task_shows_what_its_like_take() -> None:
    value = mix(begin(1), explore("a", [1, 2, 3, 4]))
    course = _course(choose(value, by=score(value)), memory_bytes=1e6)
    begun = course.next_jobs(9)
    assert len(begun) == 3  # one of each step
    for job in begun[:2]:
        _run_job(course, job)
    assert len(course.next_jobs(9)) == 3  # the other three of mix; of score still one


def test_times_of_a_machine_whose_clock_is_wrong() -> None:
    graph = unfold(begin(1))
    going = _Run(graph, InProcess([s.function for s in graph.steps]), Settings(), None, None, None)
    for wrong_s in (-3600.0, 3600.0, 0.1):
        now = time.time()
        told = Report(0, 1, "done", now + wrong_s - 2.0, now + wrong_s)
        found = going._by_our_clock(told, f"worker {wrong_s}")
        assert abs(found.ended_s - now) < 0.5
        assert found.ended_s - found.started_s == pytest.approx(2.0)


def test_halving_spends_more_on_the_better_ones() -> None:
    ran: list[tuple[int, int]] = []

    @step(version="1")
    def train(lr: int, epochs: int) -> list[int]:
        ran.append((lr, epochs))
        return [lr, epochs]

    @step(version="1")
    def quality(model: list[int]) -> float:
        return -abs(model[0] - 5) + 0.01 * model[1]

    model = train(explore("lr", list(range(9))), explore("epochs", [1, 3, 9], ordered=True))
    for asynchronous in (False, True):
        ran.clear()
        found = here(choose(model, by=quality(model), over="lr", select=halving("epochs", keep=1 / 3, asynchronous=asynchronous)), check=False)  # fmt: skip
        assert found.value == [5, 9]
        if not asynchronous:
            assert [sum(e == b for _, e in ran) for b in (1, 3, 9)] == [9, 3, 1]


def test_first_over_stops_early() -> None:
    ran: list[int] = []

    @step(version="1")
    def quality(a: int) -> float:
        ran.append(a)
        return a / 10

    a = explore("a", list(range(30)))
    found = here(choose(mix(begin(1), a), by=quality(a), select=first_over(0.35)), check=False)
    assert len(found.value) == 1
    assert max(ran) <= 6


def test_the_best_few_are_a_list_the_best_first() -> None:
    a = explore("a", [3, 1, 2])

    @step(version="1")
    def same(x: int) -> int:
        return x

    assert here(choose(same(a), by=same(a), select=top(2))).value == [3, 2]
    assert here(choose(same(a), by=same(a), select=top(2, largest=False))).value == [1, 2]
    assert here(choose(same(a), by=same(a), select=smallest())).value == 1


def test_a_second_run_computes_only_what_differs(tmp_path: Path) -> None:
    @step(version="1")
    def slow(x: int, a: int) -> Any:
        time.sleep(0.02)
        return np.full(10, x + a)

    @step(version="1")
    def mean(x: Any) -> float:
        return float(x.mean())

    def flow(options: list[int]) -> Any:
        value = slow(0, explore("a", options))
        return choose(value, by=mean(value))

    def once(options: list[int]) -> Any:
        numbers = Numbers.open(tmp_path / "scores.jsonl")
        return here(flow(options), store=Store.open(tmp_path / "store"), numbers=numbers, check=False)

    assert once([1, 2, 3]).record.tasks_run == 6
    again = once([1, 2, 3])
    assert (again.record.tasks_run, again.record.tasks_cached) == (0, 4)
    more = once([1, 2, 3, 4])
    assert more.record.tasks_run == 2
    assert more.value.tolist() == [4] * 10


def test_what_follows_from_a_step_that_is_never_kept_is_not_kept_either(tmp_path: Path) -> None:
    """A second run would find yesterday's result under the same key otherwise."""
    source = tmp_path / "number"

    @step(version="1", cache=False)
    def today(a: int) -> Any:
        time.sleep(0.02)
        return np.full(10, a + int(source.read_text()))

    @step(version="1")
    def slow(x: Any) -> Any:
        time.sleep(0.02)
        return x + 1

    @step(version="1")
    def mean(x: Any) -> float:
        return float(x.mean())

    def once() -> Any:
        value = slow(today(explore("a", [1, 2, 3])))
        numbers = Numbers.open(tmp_path / "scores.jsonl")
        return here(choose(value, by=mean(value)), store=Store.open(tmp_path / "store"), numbers=numbers, check=False)

    for number in (10, 20):
        source.write_text(str(number))
        assert once().value.tolist() == [number + 4] * 10


def test_an_explore_of_values_is_a_result() -> None:
    found = here(explore("m", {"a": begin(1), "b": mix(begin(1), explore("i", [1, 2]))}))
    assert [options for options, _ in unfold(explore("m", {"a": begin(1), "b": begin(2)})).sinks] == [
        {"m": "a"},
        {"m": "b"},
    ]
    assert len(found.values) == 3


def test_bad_flows_are_refused() -> None:
    one = mix(begin(1), explore("a", [1]))
    two = mix(begin(1), explore("a", [1, 2]))
    plenty = step(lambda *xs: 1.0)(*(explore(f"n{k}", [1]) for k in range(120)))
    loop: list[Any] = []
    loop.append(loop)
    refused: list[tuple[str, Callable[[], Any]]] = [
        ("depends on no explore", lambda: unfold(choose(begin(1), by=score(begin(1))))),
        ("no branches", lambda: unfold(choose(one, by=score(one), over="b"))),
        ("0 options", lambda: explore("a", [])),
        ("cycle", lambda: begin(loop)),
        ("two explores", lambda: unfold(mix(one, explore("a", [2])))),
        ("ordered", lambda: unfold(choose(two, by=score(two), shape="convex"))),
        ("no value", lambda: unfold(3)),
        ("no step was applied", lambda: unfold([begin(1), explore("a", [1, 2])])),
        ("no step was applied", lambda: unfold(choose(explore("a", [1, 2]), by=score(explore("a", [1, 2]))))),
        ("missing", lambda: mix(begin(1))),
        ("is true", lambda: bool(begin(1))),
        ("parameters cannot be told", lambda: step(max)),
        ("as a default", lambda: step(lambda x, y=one: x)),
        ("not looked for", lambda: unfold(begin([OrderedDict(a=[one])]))),
        ("the text", lambda: explore("a", "rbf")),
        ("depends on a", lambda: unfold(choose(two, by=score(two), over="a", select=halving("epochs")))),
        ("in each other", lambda: unfold(functools.reduce(lambda v, k: gather(v, over=f"n{k}"), range(120), plenty))),
    ]
    for told, makes in refused:
        with pytest.raises(FlowError, match=told):
            makes()


def test_scores_that_a_killed_run_cut_off_do_not_count(tmp_path: Path) -> None:
    path = tmp_path / "scores.jsonl"
    Numbers.open(path).add({"a" * 40: 0.5, "b" * 40: float("nan")})
    with open(path, "a") as file:
        file.write('["cccc", "x"]\n[1, 2]\n{}\n["dddd", true]\n["eeee", 0.2')
    again = Numbers.open(path)
    assert again.found == {"a" * 40: 0.5}
    again.add({"f" * 40: 1.0})
    assert Numbers.open(path).found == {"a" * 40: 0.5, "f" * 40: 1.0}


def test_a_default_that_is_left_out_stays_in_its_place() -> None:
    @step
    def told(a: int = 1, b: int = 2, *more: int, c: int = 3, **rest: int) -> list[Any]:
        return [a, b, more, c, rest]

    assert here(told(b=5)).value == [1, 5, (), 3, {}]
    assert here(told(c=5, d=6)).value == [1, 2, (), 5, {"d": 6}]
    assert here(told(7, 8, 9, c=5)).value == [7, 8, (9,), 5, {}]


def test_of_equal_scores_the_same_one_wins_in_every_process() -> None:
    program = """
from partita.dataflow import choose, explore, step, unfold
@step
def three(a, b, c): return 0.0
names = ("first", "second", "third")
value = three(*(explore(n, [1, 2]) for n in names))
graph = unfold(choose(value, by=value))
print([n.choice.over for n in graph.nodes if n.choice])
"""
    said = {
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env={**os.environ, "PYTHONHASHSEED": seed}).stdout
        for seed in ("1", "2", "3")
    }  # fmt: skip
    assert said == {"[('first', 'second', 'third')]\n"}


def test_more_combinations_than_can_be_held_are_refused_before_they_are_made() -> None:
    @step
    def many(*options: int) -> int:
        return sum(options)

    with pytest.raises(FlowError, match="more than"):
        unfold(many(*(explore(f"n{k}", list(range(50))) for k in range(9))))


def test_a_version_that_stands_for_two_functions_is_refused() -> None:
    def made(factor: int) -> Any:
        @step(version="1")
        def scaled(x: int) -> int:
            return x * factor

        return scaled

    assert here([made(2)(3), made(2)(4)]).values == (6, 8)
    with pytest.raises(FlowError, match="two steps are called scaled"):
        here([made(2)(3), made(5)(3)])


def test_a_step_that_changes_its_constants_gives_the_same_again() -> None:
    @step
    def fit(row: list[int], params: dict[str, int]) -> int:
        return len(row) + params.pop("a")

    found = here(gather(fit(begin(1), explore("p", [{"a": 1}, {"a": 2}])), over="p"))
    assert not found.record.notes


def test_a_step_may_not_give_another_one() -> None:
    inner = step(lambda x: x + 1)
    with pytest.raises(FlowError, match="nobody computes"):
        here(step(lambda x: inner(x))(1))


def test_a_value_that_would_not_be_found_is_refused() -> None:
    one = begin(1)
    reads = step(lambda a: (a, one))
    for hidden in (OrderedDict(a=one), {one: 1}, {one}, {(one, 1): 2}, Boxed(one), [{"a": Boxed([one])}], lambda: one):
        with pytest.raises(FlowError, match=r"of mix holds .* not looked for"):
            here([mix(hidden, 1)])
    with pytest.raises(FlowError, match=r"<lambda> holds .* not looked for"):
        here([reads(1)])


def test_an_option_that_ends_the_program_loses_its_branch_only() -> None:
    @step
    def ends(row: list[int], a: int) -> list[int]:
        if a == 2:
            sys.exit(3)
        return [a, 0]

    value = ends(begin(1), explore("a", [1, 2]))
    assert here(choose(value, by=score(value)), check=False).value == [1, 0]


def test_a_score_without_an_end_loses_and_the_record_can_be_written() -> None:
    @step
    def odd(a: int) -> float:
        return float("inf") if a == 1 else 0.0

    a = explore("a", [1, 2])
    found = here(choose(odd(a), by=odd(a))).record
    assert found.chosen[0].options == {"a": "2"}
    assert "not finite (inf)" in found.choices[0].scores[0].reason
    assert dump_json(found.to_json())
    assert dump_json(here(odd(1)).record.to_json())


def test_a_model_of_torch_takes_what_its_parameters_take() -> None:
    torch = pytest.importorskip("torch")
    model = torch.nn.Sequential(torch.nn.Sequential(torch.nn.Linear(100, 100)), torch.nn.BatchNorm1d(10))
    assert 4 * 100 * 101 <= size_of(model) <= 4 * 100 * 101 + 1000


def test_scores_that_are_no_number_or_too_many_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "scores.jsonl"
    path.write_text('["aaaa", NaN]\n["bbbb", Infinity]\n["cccc", 1.0]\n')
    assert Numbers.open(path).found == {"cccc": 1.0}
    monkeypatch.setattr("partita.dataflow.run.numbers.MOST_BYTES", 10)
    assert Numbers.open(path).found == {}
    assert path.stat().st_size <= 10


def test_what_is_no_python_file_is_no_flow(tmp_path: Path) -> None:
    (tmp_path / "flow.txt").write_text("")
    with pytest.raises(FlowError, match="no Python file"):
        load_flow(str(tmp_path / "flow.txt"))


def test_a_list_wider_than_the_memory_is_not_run_in_circles() -> None:
    """What must be there at once is; each of its tasks runs once."""

    @step
    def total_of(blocks: Any) -> float:
        return float(sum(b.sum() for b in blocks))

    rows = gather(block(explore("k", list(range(50)))), over="k")
    for flow, value in ((total_of(rows), sum(1000.0 * k for k in range(50))), (rows, None)):
        found = here(flow, memory_bytes=40_000, check=False)
        assert value is None or found.value == value
        assert sum(t.runs for t in found.record.tasks) <= found.record.tasks_run
        assert any("given memory" in note for note in found.record.notes)


@step
def block(k: int) -> Any:
    return np.full(1000, float(k))


def test_a_second_run_that_raises_leaves_the_first_one_s_result(tmp_path: Path) -> None:
    """A step that makes a folder is not deterministic, and right."""

    @step(version="1")
    def made(k: int) -> int:
        (tmp_path / str(k)).mkdir()
        return k

    model = made(explore("k", [1, 2, 3]))
    found = here(choose(model, by=model))
    assert found.value == 3
    assert any("not deterministic" in note for note in found.record.notes)


def test_each_task_of_one_process_has_its_own_constants() -> None:
    """As if they had travelled to a worker."""

    @step
    def added(sums: Any, k: int) -> float:
        sums += k
        return float(sums[0])

    assert here(gather(added(np.zeros(1), explore("k", [1, 2, 3])), over="k"), check=False).value == [1.0, 2.0, 3.0]


def test_a_shared_result_is_told_with_the_options_of_its_branch() -> None:
    start = begin(5)
    outcome = here([mix(explore("pre", {"none": start, "identity": start}), 1)])
    assert [c.options for c in outcome.record.chosen] == [{"pre": "none"}, {"pre": "identity"}]


def test_a_step_that_wants_to_end_the_program_loses_its_branch_only() -> None:
    class Ending(BaseException):
        pass

    @step(version="1")
    def ends(k: int) -> int:
        if k == 2:
            raise Ending("enough")
        return k

    model = ends(explore("k", [1, 2]))
    found = here(choose(model, by=model))
    assert found.value == 1
    assert any("Ending: enough" in note for note in found.record.notes)


def test_numbers_that_are_known_are_not_written_again(tmp_path: Path) -> None:
    model = begin(explore("a", [1, 2, 3]))
    sizes = []
    for _ in range(3):
        here(choose(model, by=score(model)), numbers=Numbers.open(tmp_path / "scores"))
        sizes.append((tmp_path / "scores").stat().st_size)
    assert sizes[0] == sizes[1] == sizes[2] > 0
