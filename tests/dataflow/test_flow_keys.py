"""Keys: the same for the same work in every process, another for any change that may matter."""

from __future__ import annotations

import copy
import enum
import functools
import hashlib
import os
import statistics
import subprocess
import sys
import textwrap
import threading
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from partita.dataflow.functions import digest_behind
from partita.dataflow.keys import Memo, Ref, content_of, key_of
from partita.errors import FlowError

PIPELINE = """
import numpy as np
from dataclasses import dataclass

FACTOR = 3.0
NAMES = {"b", "a", "c", "d", "e"}

@dataclass(frozen=True)
class Setting:
    depth: int
    kind: str = "x"

    def doubled(self):
        return 2 * self.depth

def deepest(x):
    return x + 1

def helper(x, factor=2):
    '''What it does.'''
    return deepest(x) * factor * FACTOR if x not in {"one", "two", "three"} else recursive(x)

def recursive(x):
    return helper(x - 1) if x else 0

class Scaler:
    def fit(self, x):
        return Scaler(), np.mean(helper(x))

def step(data, setting, scale=Scaler):
    # a comment
    inner = lambda y: [helper(z) for z in y]
    return inner(data), setting.doubled(), scale().fit(data), NAMES
"""


def module(text: str, folder: Path, name: str = "pipeline") -> ModuleType:
    """A module of the user's own, from its text."""
    path = folder / f"{name}.py"
    path.write_text(textwrap.dedent(text))
    found = ModuleType(name)
    found.__file__ = str(path)
    sys.modules[name] = found
    exec(compile(path.read_text(), str(path), "exec", dont_inherit=True), found.__dict__)
    return found


@pytest.fixture
def key(tmp_path: Path) -> Any:
    """The key of `step` in a pipeline text, after replacements."""

    def made(*changes: tuple[str, str]) -> str:
        text = PIPELINE
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        m = module(text, tmp_path)
        return key_of(m.step, {"data": Ref("abc"), "setting": m.Setting(2)})

    yield made
    sys.modules.pop("pipeline", None)


SAME = {
    "a comment": ("# a comment", "# another comment\n\n    # of two lines"),
    "white space": ("2 * self.depth", "2   *   (self.depth)"),
    "a docstring": ("'''What it does.'''", "'''Something else.'''"),
    "no docstring": ("    '''What it does.'''\n", ""),
    "a new docstring": ("def recursive(x):\n", "def recursive(x):\n    '''Goes on.'''\n"),
    "something unread": ("FACTOR = 3.0", "FACTOR = 3.0\nUNREAD = 7"),
    "lines above": ("FACTOR = 3.0", "\n\n\nFACTOR = 3.0"),
    "order of definitions of a set": ('{"b", "a", "c", "d", "e"}', '{"e", "d", "c", "b", "a"}'),
}
OTHER = {
    "its own code": ("inner(data), setting", "inner(data[1:]), setting"),
    "a helper": ("deepest(x) * factor", "deepest(x) + factor"),
    "a helper's helper": ("return x + 1", "return x + 2"),
    "a function in a circle": ("if x else 0", "if x else 1"),
    "a default": ("factor=2", "factor=3"),
    "a constant that a helper reads": ("FACTOR = 3.0", "FACTOR = 3"),
    "a set that it reads": ('"d", "e"}', '"d", "f"}'),
    "a method of a class it makes": ("np.mean", "np.median"),
    "a method of an argument's class": ("2 * self.depth", "3 * self.depth"),
    "a lambda inside": ("[helper(z) for z in y]", "[helper(-z) for z in y]"),
    "a constant inside": ('{"one", "two", "three"}', '{"one", "two", "four"}'),
    "a field's default": ('kind: str = "x"', 'kind: str = "y"'),
    "a default of another kind": ("scale=Scaler", "scale=None"),
}


@pytest.mark.parametrize("change", SAME.values(), ids=SAME)
def test_what_does_not_matter_leaves_the_key(key: Callable[..., str], change: tuple[str, str]) -> None:
    assert key(change) == key()


@pytest.mark.parametrize("change", OTHER.values(), ids=OTHER)
def test_what_may_matter_changes_the_key(key: Callable[..., str], change: tuple[str, str]) -> None:
    assert key(change) != key()


def test_another_process_with_another_hash_seed_has_the_same_keys(tmp_path: Path) -> None:
    """Two processes run it as their main program; here it is a module."""
    text = PIPELINE + textwrap.dedent(
        """
        if __name__ == "__main__":
            import pandas, scipy.sparse
            from partita.dataflow.keys import Ref, content_of, key_of
            values = [{"a", "b", "zz", 3.5}, {"x": [1, (2,)], 3: None}, np.arange(12.0).reshape(3, 4).T, Setting(3),
                      pandas.DataFrame({"a": [1, 2], "b": ["x", None]}), scipy.sparse.eye(3, format="csr"),
                      frozenset({"p", "q", "r"}), {step, helper, deepest}]
            print(key_of(step, {"setting": Setting(2), "data": Ref("abc")}), *map(content_of, values))
        """
    )
    path = tmp_path / "pipeline.py"
    path.write_text(text)
    told = set()
    for seed in ("1", "4711"):
        env = {**os.environ, "PYTHONHASHSEED": seed}
        told.add(
            subprocess.run([sys.executable, str(path)], env=env, capture_output=True, text=True, check=True).stdout
        )
    assert len(told) == 1
    m = module(text, tmp_path)
    assert told.pop().split()[0] == key_of(m.step, {"data": Ref("abc"), "setting": m.Setting(2)})
    del sys.modules["pipeline"]


def test_a_named_version_stands_for_the_code() -> None:
    def one(x: int) -> int:
        return x

    first = key_of(one, {"x": 1}, "v1")

    def one(x: int) -> int:  # type: ignore[no-redef]
        return x + 1

    assert key_of(one, {"x": 1}, "v1") == first
    assert key_of(one, {"x": 1}, "v2") != first
    assert key_of(one, {"x": 1}) != first


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


@dataclass
class Box:
    inside: Any


DISTINCT = [
    None, True, 1, 1.0, 1j, "1", b"1", -0.0, 0.0, 10**30, (), [], {}, set(), (1, 2), [1, 2], (1, (2,)), ((1,), 2), ("ab", "c"), ("a", "bc"),
    {"a": 1, "b": 2}, {"b": 2, "a": 1}, {1, 2}, frozenset({1, 2}), range(3), range(0, 3, 2), float("nan"), float("inf"), OrderedDict(a=1, b=2),
    Colour.RED, Colour.BLUE, Box(1), Box(1.0), Box(Box(1)), Ref("a"), Ref("b"), "a", min, max, np.sin, np.mean, np.float32, Box,
    np.zeros(3), np.zeros(3, np.float32), np.zeros((3, 1)), np.zeros((1, 3)), np.array(["a", "b"]), np.array(["a", "b"], object), np.array(["ab", ""], object),
    np.float64(1.0), np.float32(1.0), np.zeros(0), np.zeros((0, 2)), np.ma.masked_array([0.0, 0.0, 0.0], [0, 0, 1]), np.random.default_rng(1), np.random.default_rng(2),
    np.zeros(3, [("a", "f8")]), np.zeros(3, [("b", "f8")]), np.dtype("f4"), np.arange(5000.0), np.arange(5000.0)[::-1],
]  # fmt: skip


def test_values_differ_by_type_and_content() -> None:
    keys = [content_of(v) for v in DISTINCT]
    assert len(set(keys)) == len(keys)
    assert keys == [content_of(v) for v in DISTINCT]
    memo = Memo()
    assert keys == [content_of(v, memo) for v in DISTINCT] == [content_of(v, memo) for v in DISTINCT]


def test_arrays_are_told_by_content_and_not_by_layout() -> None:
    a = np.arange(12.0).reshape(3, 4)
    assert content_of(a) == content_of(np.asfortranarray(a)) == content_of(np.repeat(a, 2, axis=1)[:, ::2])
    assert content_of(a) != content_of(a.T)
    assert content_of(a) != content_of(a + np.eye(3, 4) * 1e-15)


def test_tables_are_told_by_content() -> None:
    pd = pytest.importorskip("pandas")
    base = pd.DataFrame({"a": [1, 2, 3], "b": ["x", None, "z"], "c": pd.Categorical(["u", "v", "u"])})
    changed = [
        base, base.rename(columns={"a": "d"}), base.set_index("a"), base.iloc[::-1], base.assign(b=["x", "y", "z"]), base.astype({"a": "int32"}),
        base.assign(c=pd.Categorical(["u", "v", "u"], ["v", "u"])), base["a"], base["b"], base.assign(a=[1, 2, None]),
        base.assign(t=pd.date_range("2020-01-01", periods=3, tz="UTC")), base.set_index(["a", "b"]), base.index, base.columns,
    ]  # fmt: skip
    keys = [content_of(v) for v in changed]
    assert len(set(keys)) == len(keys)
    assert keys == [content_of(v.copy()) for v in changed]


def test_tensors_and_models_are_told_by_content() -> None:
    torch = pytest.importorskip("torch")
    a = torch.arange(6.0)
    values = [
        a,
        a.to(torch.bfloat16),
        a.reshape(2, 3),
        a + 1,
        a.numpy(),
        torch.nn.Parameter(a),
        a.clone().requires_grad_(),
    ]
    keys = [content_of(v) for v in values]
    assert len(set(keys)) >= len(keys) - 1  # a parameter is a tensor that wants a gradient
    assert content_of(a) == content_of(a.clone())
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.ReLU())
    before = content_of(model)
    assert content_of(model) == before
    with torch.no_grad():
        model[0].weight[0, 0] += 1
    assert content_of(model) != before


def test_estimators_are_told_by_parameters_and_by_what_fitting_added() -> None:
    linear = pytest.importorskip("sklearn.linear_model")
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import FunctionTransformer, StandardScaler

    assert content_of(linear.Ridge(0.5)) == content_of(linear.Ridge(alpha=0.5))
    assert content_of(linear.Ridge(0.5)) != content_of(linear.Ridge(0.25))
    assert content_of(linear.Ridge()) != content_of(linear.Lasso())
    x, y = np.arange(6.0).reshape(3, 2), np.arange(3.0)
    assert content_of(linear.Ridge().fit(x, y)) not in (
        content_of(linear.Ridge()),
        content_of(linear.Ridge().fit(x, -y)),
    )
    made = [
        make_pipeline(FunctionTransformer(f), StandardScaler(with_mean=m))
        for f in (np.sin, np.cos)
        for m in (True, False)
    ]
    assert len({content_of(p) for p in made}) == 4


def test_a_file_is_told_by_its_bytes(tmp_path: Path) -> None:
    one, two = tmp_path / "one.csv", tmp_path / "two.csv"
    one.write_text("a")
    two.write_text("a")
    assert content_of(one) == content_of(two)
    two.write_text("b")
    assert content_of(one) != content_of(two)
    with pytest.raises(FlowError, match="the folder"):
        content_of(tmp_path)


def test_what_has_no_content_is_refused_with_a_way_out(tmp_path: Path) -> None:
    lock = threading.Lock()

    def guarded(x: int) -> int:
        with lock:
            return x

    with pytest.raises(
        FlowError, match=r"guarded cannot be told by content: guarded reads _thread\.lock.*hint: name a version"
    ):
        key_of(guarded, {"x": 1})
    assert key_of(guarded, {"x": 1}, "1")
    with open(tmp_path / "f", "w") as file, pytest.raises(FlowError, match="argument x of guarded"):
        key_of(guarded, {"x": file}, "1")
    with pytest.raises(FlowError, match="generator"):
        content_of(x for x in ())


def test_a_value_that_holds_itself_ends() -> None:
    circle: list[Any] = [1]
    circle.append(circle)
    other: list[Any] = [2]
    other.append(other)
    assert content_of(circle) != content_of(other)
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(FlowError, match="deep"):
        content_of(deep)
    while deep:  # freed level by level
        deep = deep.pop()


def test_many_functions_that_call_each_other_are_digested_once_each(tmp_path: Path) -> None:
    """Each of 25 calls all others: 25! ways through them."""
    names = [f"f{k}" for k in range(25)]
    text = "\n".join(f"def {n}(x):\n    return [{', '.join(names)}]" for n in names)
    m = module(text, tmp_path, "crowd")
    memo = Memo()
    first = [key_of(getattr(m, n), {}, None, memo) for n in names[:5]]
    assert [key_of(getattr(m, n), {}, None, Memo()) for n in reversed(names[:5])] == first[::-1]
    del sys.modules["crowd"]


def test_other_modules_of_the_users_own_are_followed(tmp_path: Path) -> None:
    def made(body: str) -> str:
        module(f"def helper(x):\n    return {body}\ndef unread(x):\n    return {body}", tmp_path, "helpers")
        m = module("import helpers\nimport helpers as h\ndef step(x):\n    return h.helper(x)", tmp_path)
        m.__dict__["h"] = sys.modules["helpers"]
        return key_of(m.step, {"x": 1})

    assert made("x + 1") == made("x + 1") != made("x + 2")
    del sys.modules["helpers"], sys.modules["pipeline"]


class Row(list[int]):
    """A list with something beside its items."""

    unit = "m"


@dataclass
class Model:
    C: float

    def fit(self, slope: float) -> Model:
        self.slope_ = slope
        return self


def with_unit(unit: str) -> Row:
    row = Row([1, 2])
    row.unit = unit
    return row


def test_what_looks_alike_and_computes_otherwise_differs() -> None:
    sparse = pytest.importorskip("scipy.sparse")
    alike: list[tuple[Any, Any]] = [
        (Model(1.0).fit(2.0), Model(1.0).fit(3.0)),  # an attribute that is no field
        (with_unit("m"), with_unit("km")),
        (defaultdict(int), defaultdict(list)),
        (np.array([[1, 2], [3, 4]]), np.array([[1, 2], [3, 4]]).view(np.matrix)),  # * is another product
        (sparse.csr_matrix([[1.0]]), sparse.csr_array([[1.0]])),
        (sparse.coo_matrix([[1.0]]), sparse.coo_array([[1.0]])),
        (level(1).LOW, level(2).LOW),
    ]
    for one, other in alike:
        assert content_of(one) != content_of(other)
        assert content_of(one) == content_of(copy.deepcopy(one))


def level(factor: int) -> Any:
    class Level(enum.Enum):
        LOW = 1

        def scaled(self) -> int:
            return factor * int(self.value)

    return Level


def test_what_a_library_s_class_or_a_function_carries_along_is_told() -> None:
    """Subclasses and what was set on them, on tables, on functions; a ufunc does not tell of which function it was made."""
    pd = pytest.importorskip("pandas")

    class Table(pd.DataFrame):  # type: ignore[misc, name-defined]
        def doubled(self) -> Any:
            return self * 2

    class Units(np.ndarray):
        unit: str

    def units(unit: str) -> Any:
        made = np.zeros(2).view(Units)
        made.unit = unit
        return made

    def helper(by: int) -> Any:
        def scaled(x: int) -> Any:
            return x * scaled.by  # type: ignore[attr-defined]

        scaled.by = by  # type: ignore[attr-defined]
        return scaled

    frame, noted = pd.DataFrame({"a": [1]}), pd.DataFrame({"a": [1]})
    noted.attrs["source"] = "b"
    filled = [np.ma.masked_array([1, 2], [True, False], fill_value=v) for v in (0, 9)]
    pairs = [(frame, noted), (frame, Table(frame)), (units("m"), units("s")), tuple(filled), (helper(1), helper(2))]
    assert all(content_of(a) != content_of(b) for a, b in pairs)
    with pytest.raises(FlowError, match="ufunc"):
        content_of(np.frompyfunc(lambda x: x + 1, 1, 1))


def test_values_at_the_edge_of_what_can_be_told() -> None:
    pd, torch, sparse = map(pytest.importorskip, ("pandas", "torch", "scipy.sparse"))

    @dataclass
    class Unset:
        a: int
        b: int = field(init=False)

    class Cached:
        @functools.cached_property
        def one(self) -> int:
            return 1

    conj = torch.tensor([1 + 2j]).conj()
    assert content_of(10**5000) != content_of(10**5000 + 1)
    assert content_of(conj) == content_of(conj.resolve_conj()) != content_of(torch.tensor([1 + 2j]))
    assert content_of(conj.imag) == content_of(conj.imag.resolve_neg().clone())
    named = pd.Series([1.0], index=["levels"])
    assert len({content_of(x) for x in (Unset(1), Cached, Path("a" * 5000), named)}) == 4
    matrix = sparse.csr_matrix((np.array([1.0, 2.0, 3.0]), np.array([2, 0, 1]), np.array([0, 2, 3])))
    before = content_of(matrix)
    matrix.max()
    assert content_of(matrix) == before
    with pytest.raises(FlowError, match="meta"):
        content_of(torch.empty(2, device="meta"))


def test_fields_that_overlap_are_told() -> None:
    dtype = np.dtype({"names": ["a", "b"], "offsets": [0, 0], "formats": ["i4", "f4"], "itemsize": 4})
    assert content_of(np.zeros(2, dtype)) != content_of(np.ones(2, "i4").view(dtype))


def test_a_module_of_the_users_own_that_is_handed_on_is_told_by_its_file(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    one = module("def f(x): return x + 1", tmp_path / "one", "handed_on")
    two = module("def f(x): return x + 2", tmp_path / "two", "handed_on")

    def of(used: ModuleType) -> Any:
        return lambda x: used.f(x)

    assert key_of(of(one), {}) != key_of(of(two), {})


def test_a_wrapper_around_a_function_of_a_library_is_not_that_function() -> None:
    @functools.wraps(statistics.mean)
    def shifted(rows: Any) -> Any:
        return statistics.mean(rows) + 1

    assert key_of(shifted, {}) != key_of(statistics.mean, {})


def test_what_an_object_around_a_function_holds_is_in_the_key() -> None:
    class Scaled:
        def __init__(self, inner: Callable[..., Any], by: int) -> None:
            functools.update_wrapper(self, inner)
            self.inner, self.by = inner, by

        def __call__(self, x: Any) -> Any:
            return self.inner(x) * self.by

    def base(x: Any) -> Any:
        return x

    def key(used: Scaled) -> str:
        return key_of(lambda x: used(x), {})

    assert key(Scaled(base, 1)) == key(Scaled(base, 1)) != key(Scaled(base, 2))


def test_names_of_arguments_are_in_the_key(tmp_path: Path) -> None:
    said = "def g(lo, hi): return lo - hi\ndef step(x): return g({})"
    one = module(said.format("lo=x, hi=10"), tmp_path, "named_one")
    two = module(said.format("hi=x, lo=10"), tmp_path, "named_two")
    assert key_of(one.step, {}) != key_of(two.step, {})


def test_a_version_is_that_of_a_function_of_its_module(tmp_path: Path) -> None:
    one, two = (module(f"def step(x): return {k}", tmp_path, f"version_{k}") for k in (1, 2))
    assert key_of(one.step, {}, version="1") != key_of(two.step, {}, version="1")


def test_copying_an_object_leaves_the_key_of_its_class(tmp_path: Path) -> None:
    """`copy` and `pickle` note the slots of a class on the class."""
    made = module("class Own:\n    def f(self): return 1\ndef step(x): return Own().f()", tmp_path, "copied")
    before = key_of(made.step, {})
    copy.copy(made.Own())
    assert "__slotnames__" in vars(made.Own)
    assert key_of(made.step, {}) == before
    del sys.modules["copied"]


_PACKAGE = {
    "pkg/__init__.py": "",
    "pkg/a/__init__.py": "",
    "pkg/a/b.py": "from pkg.consts import K\nfrom . import c\ndef h(x): return x + K + c.J + 1",
    "pkg/a/c.py": "J = 1",
    "pkg/consts.py": "K = 1",
    "mod.py": "import other\ndef h(x): return other.g(x) + 1",
    "other.py": "def g(x): return x + 1",
    "unread.py": "K = 1",
}


_DEEP = {"pkg/a/b.py", "pkg/a/c.py", "pkg/consts.py"}
_STEPS = [
    ("import pkg.a.b\ndef step(x): return pkg.a.b.h(x)", _DEEP),
    ("from pkg.a import b\ndef step(x): return b.h(x)", _DEEP),
    ("def step(x):\n  from pkg.a import b\n  return b.h(x)", _DEEP),
    ("def step(x):\n  import pkg.a.b as b\n  return b.h(x)", _DEEP),
    ("def step(x):\n  from mod import h\n  return h(x)", {"mod.py", "other.py"}),
    ("import mod\ndef step(x): return mod.h(x)", {"mod.py", "other.py"}),
    ("import mod\ndef call(m, x): return m.h(x)\ndef step(x): return call(mod, x)", {"mod.py", "other.py"}),
    ("import pkg.a.b\ndef call(m, x): return m.h(x)\ndef step(x): return call(pkg.a, x)", _DEEP),
]
_KEYS = """
import importlib
from partita.dataflow.keys import key_of
print(*(key_of(importlib.import_module(f"step{k}").step, {}) for k in range(8)))
"""


def test_a_change_behind_a_module_is_a_change(tmp_path: Path) -> None:
    def keys(changed: str) -> list[str]:
        for name, text in {**_PACKAGE, **{f"step{k}.py": body for k, (body, _) in enumerate(_STEPS)}}.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text.replace("1", "2") if name == changed else text)
        run = [sys.executable, "-B", "-c", _KEYS]
        return subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, check=True).stdout.split()

    before, found = keys(""), [set[str]() for _ in _STEPS]
    for changed in _PACKAGE:
        for k, key in enumerate(keys(changed)):
            if key != before[k]:
                found[k].add(changed)
    assert found == [reads for _, reads in _STEPS]


_LIBRARY = """
import functools
import hashlib
def scaled(by, kind="x"):
    def f(x, more=by): return more * by
    return f
def again(by):
    def f(x): return f if x else by
    return f
def boxed(by):
    class Box:
        size = by
    return Box
def traced(function):
    def inner(*args): return function(*args)
    return inner
TABLE = [lambda x: x + 1, lambda x: x + 2]
def plain(x): return x
"""


def test_what_a_library_s_function_made_is_told_by_what_it_holds(tmp_path: Path) -> None:
    """A function under its own name in its module is that name; one made by a factory is what it closes over, and its code."""
    folder = tmp_path / "site-packages"
    folder.mkdir()
    lib = module(_LIBRARY, folder, "some_library")
    pairs = [
        (lib.scaled(1), lib.scaled(2)),
        (lib.again(1), lib.again(2)),
        (lib.boxed(1), lib.boxed(2)),
        (lib.traced(statistics.mean), lib.traced(statistics.median)),
        (lib.traced(lambda x: x + 1), lib.traced(lambda x: x + 2)),
        tuple(lib.TABLE),
    ]
    for one, other in pairs:
        assert content_of(one) != content_of(other)
    assert content_of(lib.scaled(1)) == content_of(lib.scaled(1))
    assert content_of(lib.again(1)) == content_of(lib.again(1))
    assert content_of(lib.boxed(1)) == content_of(lib.boxed(1))
    before = content_of(lib.plain)
    lib = module(_LIBRARY.replace("return x\n", "return -x\n"), folder, "some_library")
    assert content_of(lib.plain) == before  # its version tells
    del sys.modules["some_library"]


def test_averages_of_torch_s_factory_differ() -> None:
    swa = pytest.importorskip("torch.optim.swa_utils")
    assert content_of(swa.get_ema_multi_avg_fn(0.9)) != content_of(swa.get_ema_multi_avg_fn(0.999))
    assert content_of(swa.get_ema_multi_avg_fn(0.9)) == content_of(swa.get_ema_multi_avg_fn(0.9))


class First(np.ndarray):
    factor = 1


class Second(np.ndarray):
    factor = 2


class Rated:
    def __init__(self, by: int) -> None:
        self.by = by


def test_a_large_value_has_the_key_of_its_class_however_often_it_is_told() -> None:
    """What was digested already in a run is not digested again, and its code is in the key all the same."""
    pd = pytest.importorskip("pandas")
    one, other = np.ones(4096).view(First), np.ones(4096).view(Second)
    table, memo = pd.DataFrame({"a": [Rated(1), Colour.RED]}), Memo()
    for value in (one, other, table, [one, one], {"a": other}):
        alone = key_of(len, {"x": value}, None, Memo())
        assert [key_of(len, {"x": value}, None, memo) for _ in range(2)] == [alone, alone]
    assert len({content_of(v, memo) for v in (one, other, one.view(np.ndarray))}) == 3


def test_a_table_that_holds_itself_ends() -> None:
    pd = pytest.importorskip("pandas")
    table = pd.DataFrame({"a": [1, None]}, dtype=object)
    table.iloc[1, 0] = [table]
    assert content_of(table, Memo()) == content_of(table, Memo())


_ENUM = """
import enum
class Base(enum.Enum):
    def act(self): return 1
class Mode(Base):
    FAST = "fast"
    SLOW = "slow"
    ALSO = "fast"
    unit = property(lambda self: "m")
    def far(self): return 1
    def near(self): return 2
    @classmethod
    def _missing_(cls, value): return cls.FAST
def step(x): return Mode.FAST
"""


def test_all_of_an_enum_is_in_the_key(tmp_path: Path) -> None:
    changes = [
        ("return 1\nclass", "return 2\nclass"),
        ("class Base(enum.Enum)", "class Base(str, enum.Enum)"),
        ("    def act(self): return 1\n", "    __hash__ = None\n    def act(self): return 1\n"),
        ("ALSO", "OTHER"),
        ('ALSO = "fast"', 'ALSO = "slow"'),
        ('"m"', '"km"'),
        ("return 1\n    def near(self): return 2", "return 2\n    def near(self): return 1"),
        ("return cls.FAST", "return cls.SLOW"),
        ("unit = property(lambda self:", "unit = staticmethod(lambda self:"),
    ]
    keys = {}
    for old, new in [("", ""), *changes, ("import enum", "import enum  # said")]:
        assert old in _ENUM
        m = module(_ENUM.replace(old, new) if old else _ENUM, tmp_path, "with_enum")
        keys[new] = key_of(m.step, {"x": m.Mode.FAST})
        assert key_of(m.step, {"x": m.Mode.FAST}) == keys[new]
    assert len(set(keys.values())) == len(changes) + 1
    assert keys[""] == keys["import enum  # said"]
    flags = [enum.Flag("Flags", "A B", boundary=b) for b in (enum.KEEP, enum.STRICT)]  # type: ignore[misc]
    assert content_of(flags[0].A) != content_of(flags[1].A)
    del sys.modules["with_enum"]


def test_an_object_of_one_s_own_around_a_function_is_told_or_refused() -> None:
    class Scaled:
        def __init__(self, inner: Callable[..., Any], by: int) -> None:
            functools.update_wrapper(self, inner)
            self.by, self.lock = by, threading.Lock()

    def base(x: Any) -> Any:
        return x

    with pytest.raises(FlowError, match=r"lock.* hint: name a version"):
        content_of(Scaled(base, 1))


def test_how_a_class_holds_a_function_is_in_the_key(tmp_path: Path) -> None:
    text = "class Maker:\n    {}\n    def make(x=5): return x\ndef step(x): return Maker().make()"
    keys = []
    for held in ("", "@staticmethod", "@classmethod", "@property"):
        keys.append(key_of(module(text.format(held), tmp_path, "held").step, {}))
    assert len(set(keys)) == 4
    del sys.modules["held"]


def test_files_that_exchange_what_they_hold_are_a_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def key(one: str, other: str) -> str:
        (tmp_path / "swapped_a.py").write_text(one)
        (tmp_path / "swapped_b.py").write_text(other)
        return key_of(step.step, {})

    monkeypatch.syspath_prepend(tmp_path)
    text = "def step(x):\n  import swapped_front\n  return swapped_front.less()"
    (tmp_path / "swapped_front.py").write_text(
        "import swapped_a, swapped_b\ndef less(): return swapped_a.K - swapped_b.K"
    )
    step = module(text, tmp_path, "swapping")
    assert key("K = 1", "K = 2") != key("K = 2", "K = 1")
    whole = [digest_behind([tmp_path / n for n in ("swapped_a.py", "swapped_b.py")])]
    (tmp_path / "moved").mkdir()
    for n in ("swapped_a.py", "swapped_b.py"):
        (tmp_path / n).rename(tmp_path / "moved" / n)
    assert digest_behind([tmp_path / "moved" / n for n in ("swapped_a.py", "swapped_b.py")]) == whole[0]


def test_a_file_is_read_once_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Any] = []
    digest = hashlib.file_digest
    monkeypatch.setattr("hashlib.file_digest", lambda file, how: read.append(file.name) or digest(file, how))
    path, memo = tmp_path / "data.txt", Memo()
    path.write_text("one")
    first = {key_of(len, {"x": Path(path), "k": 1}, None, memo) for _ in range(3)}
    assert len(read) == 1
    path.write_text("other")
    second = key_of(len, {"x": path, "k": 1}, None, memo)
    assert len(read) == 2
    assert len(first) == 1
    assert second not in first
