"""Results on disk: whole or absent, checked, bounded, shared by processes, and no pickle of anybody else's."""

from __future__ import annotations

import os
import pickle
import random
import resource
import signal
import subprocess
import sys
import textwrap
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from partita.dataflow.store import Absent, Found, NotKept, Put, Store
from partita.dataflow.store import folder as store_folder
from partita.dataflow.store.format import sealed
from partita.errors import BadInput

KEY, OTHER = "a" * 40, "b" * 40


@dataclass(frozen=True)
class Point:
    x: float


def opened(folder: Path, **how: Any) -> Store:
    return Store.open(folder / "results", **how)


def got(store: Store, key: str) -> Found:
    found = store.get(key)
    assert isinstance(found, Found), found
    return found


def why_not(store: Store, key: str) -> str:
    found = store.get(key)
    assert isinstance(found, Absent), found
    return found.reason


def same(a: Any, b: Any) -> bool:
    """Equal in type and content, nan equal to nan, all the way down."""
    if type(a) is not type(b):
        return False
    if isinstance(a, np.ndarray):
        return (
            a.dtype == b.dtype
            and a.shape == b.shape
            and (a.tolist() == b.tolist() if a.dtype.hasobject else a.tobytes() == b.tobytes())
        )
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b) or (a != a and b != b)


PLAIN = [
    None, True, 0, -1, 2**61, 2**80, -(2**5000), 0.1, -0.0, float("inf"), float("nan"), 1 + 2j, "", "é🎻", "\ud800", "x" * 100_000, b"", b"\0\1", bytearray(b"ab"),
    [], [1, "a", None, [2.5, ()]], (1, (2, [3])), {"a": 1, "b": {"c": [1]}}, {1: "a", (2, 3): "b", None: 4}, {"$": "npy", "part": 7}, {1, 2}, frozenset({"a"}),
    np.float32(1.5), np.int64(-3), np.bool_(True), np.arange(6), np.zeros((2, 3), order="F"), np.zeros(0), np.zeros((0, 4)), np.array(3.0), np.array(["a", "bcd"]),
    np.array([(1, 2.0)], [("n", "i4"), ("é", "f8")]), np.array(["2020-01-01"], "M8[D]"), np.arange(10)[::2], {"deep": [np.ones(3), (np.zeros(2), "x")]},
    OrderedDict(a=1), Point(2.0), [Point(1.0), np.ones(2)], np.array([None, 1, "x"], object), np.arange(3) > 1, 10**19,
]  # fmt: skip


def test_what_is_put_comes_back(tmp_path: Path) -> None:
    store = opened(tmp_path)
    for k, value in enumerate(PLAIN):
        key = f"{k:040d}"
        put = store.put(key, value, 1.5)
        assert isinstance(put, Put), (value, put)
        found = got(store, key)
        assert same(found.value, value)
        assert (found.seconds, found.bytes) == (1.5, put.bytes)
    assert len(store.entries()) == len(PLAIN)


def test_only_what_has_no_other_form_is_a_pickle(tmp_path: Path) -> None:
    store = opened(tmp_path)
    kinds = {}
    for k, value in enumerate(PLAIN):
        put = store.put(f"{k:040d}", value, 1.0)
        assert isinstance(put, Put)
        kinds[k] = b'"$":"pickle"' in store.entries()[-1].path.read_bytes()
        store.entries()[-1].path.unlink()
    pickled = [type(PLAIN[k]).__name__ for k, p in kinds.items() if p]
    assert pickled == ["str", "OrderedDict", "Point", "list", "ndarray"]


def test_arrays_may_be_written_to(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.put(KEY, np.arange(4.0), 1.0)
    got(store, KEY).value[0] = 7
    assert got(store, KEY).value[0] == 0


def test_values_deep_in_each_other_and_circles(tmp_path: Path) -> None:
    store = opened(tmp_path)
    deep: Any = 1
    for _ in range(200):
        deep = [deep]
    store.put(KEY, deep, 1.0)
    assert got(store, KEY).value == deep
    circle: list[Any] = []
    circle.append(circle)
    store.put(OTHER, circle, 1.0)
    found = got(store, OTHER)
    while isinstance(found.value, list) and found.value and found.value[0] is not found.value:
        found = Found(found.value[0], 0.0, 0)
    assert isinstance(found.value, list)


def test_tables_come_back(tmp_path: Path) -> None:
    pd = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    store = opened(tmp_path)
    base = pd.DataFrame(
        {"a": [1, 2, 3], "b": ["x", None, "z"], "c": pd.Categorical(["u", "v", "u"]), "d": [0.5, None, 2.0]}
    )
    plain = [base, base.set_index("a"), base.set_index(["a", "b"]), base["a"], base["d"].rename(("x", 1)), base.assign(t=pd.date_range("2020-01-01", periods=3, tz="UTC"))]  # fmt: skip
    odd = [
        base.iloc[:0],
        base.rename(columns={"a": 1, "b": 2, "c": 3, "d": 4}),
        pd.concat([base, base], axis=1),
        pd.DataFrame({"m": [1, "a", None]}),
        pd.Series([1, 2], name="values"),
    ]
    for k, value in enumerate([*plain, *odd]):
        assert isinstance(store.put(f"{k:040d}", value, 1.0), Put)
        found = got(store, f"{k:040d}")
        assert type(found.value) is type(value)
        (pd.testing.assert_frame_equal if value.ndim == 2 else pd.testing.assert_series_equal)(found.value, value)
        if k < len(plain):
            assert b'"$":"arrow"' in store.entries()[k].path.read_bytes()


def test_tensors_and_state_dicts_come_back_without_pickle(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    (tmp_path / "results").mkdir(mode=0o755)
    store = opened(tmp_path)
    assert store.why_no_pickle
    a = torch.arange(6.0)
    value = {
        "a": a,
        "again": a,
        "view": a.reshape(2, 3).T,
        "half": a.to(torch.bfloat16),
        "grad": a.clone().requires_grad_(),
        "none": torch.zeros(0),
        "n": 3,
    }
    assert isinstance(store.put(KEY, value, 1.0), Put)
    found = got(store, KEY)
    for name, tensor in value.items():
        back = found.value[name]
        if name == "n":
            assert back == 3
        else:
            assert torch.equal(back, tensor)
            assert (back.dtype, back.requires_grad) == (tensor.dtype, tensor.requires_grad)
    state = dict(torch.nn.Linear(3, 2).state_dict())
    assert isinstance(store.put(OTHER, state, 1.0), Put)
    torch.nn.Linear(3, 2).load_state_dict(got(store, OTHER).value)


def test_sparse_matrices_come_back_without_pickle(tmp_path: Path) -> None:
    sparse = pytest.importorskip("scipy.sparse")
    (tmp_path / "results").mkdir(mode=0o755)
    store = opened(tmp_path)
    for k, kind in enumerate((sparse.csr_matrix, sparse.csr_array, sparse.csc_matrix, sparse.csc_array)):
        value = kind(np.diag([1.0, 0.0, 3.0])[:, :2])
        assert isinstance(store.put(f"{k:040d}", value, 1.0), Put)
        found = got(store, f"{k:040d}")
        assert type(found.value) is kind
        assert (found.value != value).nnz == 0


def test_what_is_written_can_be_read(tmp_path: Path) -> None:
    """Tables in each other take several levels of JSON; a key may be half of a character; a sparse row has one axis."""
    store = opened(tmp_path)

    def nested(levels: int, around: Callable[[Any], Any]) -> Any:
        value: Any = 1
        for _ in range(levels):
            value = around(value)
        return value

    kinds: list[Callable[[Any], Any]] = [
        lambda v: {1: v},
        lambda v: {"a": v},
        lambda v: (v,),
        lambda v: [v],
        lambda v: [{2: (v,)}],
    ]
    for levels in (*range(5, 64), 90):
        for around in kinds:
            value = nested(levels, around)
            assert isinstance(store.put(KEY, value, 1.0), Put)
            assert got(store, KEY).value == value
    for value in ({"\ud800": 1}, {"a": {"b\udfff": [1]}}):
        store.put(KEY, value, 1.0)
        assert got(store, KEY).value == value
    sparse = pytest.importorskip("scipy.sparse")
    row = sparse.csr_array(np.array([0.0, 1.0, 0.0, 2.0]))
    store.put(KEY, row, 1.0)
    assert got(store, KEY).value.shape == (4,)
    assert (got(store, KEY).value != row).nnz == 0


# ---- damage


def test_a_damaged_file_is_dropped_with_a_word_whatever_byte_it_is(tmp_path: Path) -> None:
    store = opened(tmp_path)
    dice = random.Random(0)
    store.put(KEY, {"x": np.arange(9.0), "y": "text"}, 1.0)
    (entry,) = store.entries()
    sound = entry.path.read_bytes()
    for k in range(60):
        at = dice.randrange(len(sound))
        how = k % 3
        bad = sound[:at] if how == 0 else sound[:at] + bytes([sound[at] ^ (1 << dice.randrange(8))]) + sound[at + 1 :] if how == 1 else sound + sound[:at + 1]  # fmt: skip
        entry.path.write_bytes(bad)
        assert why_not(store, KEY).endswith(": dropped")
        assert not entry.path.exists()
    assert why_not(store, KEY) == "the store has it no longer"
    assert isinstance(store.put(KEY, 1, 1.0), Put)
    assert got(store, KEY).value == 1


def test_a_result_under_another_key_is_dropped(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.put(KEY, 1, 1.0)
    (entry,) = store.entries()
    (entry.path.parent.parent / OTHER[:2]).mkdir()
    entry.path.rename(entry.path.parent.parent / OTHER[:2] / OTHER)
    assert "is the result of" in why_not(store, OTHER)


def test_names_that_are_no_keys_reach_no_file(tmp_path: Path) -> None:
    store = opened(tmp_path)
    for name in ("../../etc/passwd", "", "a/b" * 10, "\0" * 20, "x" * 500):
        with pytest.raises(BadInput, match="no key"):
            store.get(name)


# ---- pickle


def test_no_pickle_in_a_folder_that_is_open_to_others(tmp_path: Path) -> None:
    store = opened(tmp_path)
    assert isinstance(store.put(KEY, Point(1.0), 1.0), Put)
    for mode in (0o750, 0o701, 0o777):
        (tmp_path / "results").chmod(mode)
        again = opened(tmp_path)
        assert f"mode {mode:04o}, not 0700" in why_not(again, KEY)
        kept = again.put(OTHER, Point(1.0), 1.0)
        assert isinstance(kept, NotKept)
        assert "test_flow_store.Point needs pickle" in kept.reason
        assert isinstance(again.put(OTHER, [1.0], 1.0), Put)
    (tmp_path / "results").chmod(0o700)
    assert opened(tmp_path).get(KEY) == got(store, KEY)


def test_no_pickle_below_a_folder_where_others_could_put_another(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    store = opened(tmp_path / "open")
    assert "may be written to by others" in store.why_no_pickle
    (tmp_path / "open").chmod(0o1777)
    assert opened(tmp_path / "open").why_no_pickle == ""


class Trap:
    """What a pickle may do when it is loaded."""

    def __reduce__(self) -> Any:
        return os.mkdir, (str(TRAPPED),)


TRAPPED = Path("/")


def trap(store: Store, folder: Path) -> Path:
    global TRAPPED
    TRAPPED = folder / "trapped"
    assert isinstance(store.put(KEY, Trap(), 1.0), Put)
    (entry,) = store.entries()
    return entry.path


def test_a_pickle_that_others_may_write_to_is_not_loaded_and_not_removed(tmp_path: Path) -> None:
    store = opened(tmp_path)
    path = trap(store, tmp_path)
    path.chmod(0o620)
    assert "others may write to it (mode 0620)" in why_not(store, KEY)
    assert path.exists()
    assert not TRAPPED.exists()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file away")
def test_a_pickle_of_another_user_is_not_loaded(tmp_path: Path) -> None:
    store = opened(tmp_path)
    path = trap(store, tmp_path)
    os.chown(path, 12345, 12345)
    assert "belongs to user 12345" in why_not(store, KEY)
    os.chown(path, 0, 0)
    os.chown(tmp_path / "results", 12345, 12345)
    assert "belongs to user 12345" in why_not(opened(tmp_path), KEY)
    assert not TRAPPED.exists()


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    store = opened(tmp_path)
    path = trap(store, tmp_path)
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    assert "cannot be read" in why_not(store, KEY)
    assert not TRAPPED.exists()


def test_what_cannot_be_pickled_is_said(tmp_path: Path) -> None:
    store = opened(tmp_path)
    kept = store.put(KEY, lambda x: x, 1.0)
    assert isinstance(kept, NotKept)
    assert "cannot be pickled" in kept.reason


# ---- room


def test_the_least_valuable_results_go_first(tmp_path: Path) -> None:
    """Equal sizes: the dear ones stay; of two equal ones the one that was used longer ago goes."""
    store = opened(tmp_path, most_bytes=100_000, half_life_s=1000.0)
    value = np.zeros(1000)
    for k in range(10):
        store.put(f"{k:040d}", value, 1.0 if k in (3, 4) else 100.0)
    now = time.time()
    for entry in store.entries():
        os.utime(entry.path, (now, now - (5000 if entry.key.endswith("7") else 0)))
    for k in range(10, 13):
        store.put(f"{k:040d}", value, 50.0)
    left = {int(e.key) for e in store.entries()}
    assert sum(e.bytes for e in store.entries()) <= 100_000
    assert not {3, 4} & left
    assert left >= {0, 1, 2, 5, 6, 8, 9}
    assert isinstance(store.get(f"{0:040d}"), Found)


def test_a_result_larger_than_all_may_be_is_not_kept(tmp_path: Path) -> None:
    store = opened(tmp_path, most_bytes=1000)
    kept = store.put(KEY, np.zeros(1000), 1.0)
    assert isinstance(kept, NotKept)
    assert "1000 that all results may take" in kept.reason
    assert list((tmp_path / "results" / "writing").iterdir()) == []


def test_a_bound_of_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="0 bytes"):
        opened(tmp_path, most_bytes=0)
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match="cannot hold results"):
        Store.open(tmp_path / "file")


def test_a_store_that_is_only_looked_at_loads_no_pickle(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.put(KEY, Point(1.0), 1.0)
    assert "looked at" in why_not(Store(store.folder), KEY)
    assert isinstance(store.get(KEY), Found)


def test_a_store_stays_where_it_was_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    store = Store.open("results")
    monkeypatch.chdir("/")
    assert isinstance(store.put(KEY, [1], 1.0), Put)
    assert isinstance(opened(tmp_path).get(KEY), Found)


def test_a_result_that_memory_does_not_hold_is_absent(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.put(KEY, [1], 1.0)
    os.truncate(store.entries()[0].path, 1 << 43)
    assert "memory" in why_not(store, KEY)


def test_a_full_disk_leaves_what_was_there(tmp_path: Path) -> None:
    """A limit on the size of files stands for it: the write fails in the middle."""
    store = opened(tmp_path)
    store.put(KEY, np.arange(10), 1.0)
    before, ignored = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        kept = [store.put(key, np.zeros(1_000_000), 1.0) for key in (KEY, OTHER)]
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
    assert all(isinstance(k, NotKept) and "too large" in k.reason for k in kept)
    assert got(store, KEY).value.tolist() == list(range(10))
    assert isinstance(store.get(OTHER), Absent)
    assert list((tmp_path / "results" / "writing").iterdir()) == []


# ---- several processes, and their ends

WRITER = """
import sys, numpy as np
from partita.dataflow.store import Found, Store
folder, first, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
store = Store.open(folder, most_bytes=int(sys.argv[4]))
print("ready", flush=True)
for turn in range(10**9):
    k = (first + turn) % 12
    found = store.get(f"{k:040d}")
    if not isinstance(found, Found):
        if found.reason != "the store has it no longer":
            print("said", found.reason, flush=True)
    elif not (found.value == k).all():
        print("wrong", flush=True)
    put = store.put(f"{k:040d}", np.full(20_000 + 5_000 * k, k), 1.0 + k)
    if turn == 40:
        print("done", flush=True)
"""


def writers(tmp_path: Path, many: int, most_bytes: int = 10**9) -> list[subprocess.Popen[str]]:
    script = tmp_path / "writer.py"
    script.write_text(textwrap.dedent(WRITER))
    return [
        subprocess.Popen([sys.executable, str(script), str(tmp_path / "results"), str(5 * k), str(k), str(most_bytes)], stdout=subprocess.PIPE, text=True)
        for k in range(many)
    ]  # fmt: skip


def test_several_writers_of_the_same_results_never_see_half_of_one(tmp_path: Path) -> None:
    """The bound is below what all take, so that files also go while others read them."""
    started = writers(tmp_path, 3, most_bytes=2_000_000)
    told: list[str] = []
    for p in started:
        assert p.stdout is not None
        told += iter(p.stdout.readline, "done\n")
        p.kill()
        p.wait()
        p.stdout.close()
    assert set(told) == {"ready\n"}


def test_a_writer_killed_at_any_moment_leaves_whole_results_only(tmp_path: Path) -> None:
    dice = random.Random(1)
    for _ in range(6):
        (p,) = writers(tmp_path, 1)
        assert p.stdout is not None
        p.stdout.readline()
        time.sleep(dice.uniform(0.0, 0.1))
        p.kill()
        p.wait()
        p.stdout.close()
    store = opened(tmp_path)
    entries = store.entries()
    assert entries
    assert all(sealed(e.path.read_bytes()) for e in entries)
    assert all(isinstance(store.get(e.key), Found) for e in entries)
    writing = tmp_path / "results" / "writing"
    (writing / "left").write_bytes(b"half of a result")
    store.make_room()
    assert (writing / "left").exists()  # it may be somebody's, just begun
    old = time.time() - 2 * store_folder.DEAD_S
    for path in writing.iterdir():
        os.utime(path, (old, old))
    store.make_room()
    assert list(writing.iterdir()) == []


def test_a_sound_result_that_cannot_be_made_here_stays(tmp_path: Path) -> None:
    """Another process may have the class, or the device."""
    store = opened(tmp_path)

    class Gone:
        def __reduce__(self) -> Any:
            return pickle.loads, (b"not a pickle",)

    assert isinstance(store.put(KEY, Gone(), 1.0), Put)
    assert "cannot be made here: UnpicklingError" in why_not(store, KEY)
    assert KEY in store


def test_a_result_is_kept_where_room_cannot_be_made(tmp_path: Path) -> None:
    store = opened(tmp_path)
    (store.folder / "lock").mkdir()  # stands for a folder that somebody else has a hand in
    assert isinstance(store.put(KEY, np.zeros(3), 1.0), Put)
    assert isinstance(store.get(KEY), Found)


# ---- withdrawn, looked at, elsewhere


def test_what_is_withdrawn_is_gone_and_leaves_its_room(tmp_path: Path) -> None:
    store = opened(tmp_path, most_bytes=100_000)
    keys = [f"{k:040d}" for k in range(10)]
    for key in keys:
        store.put(key, np.zeros(1000), 1.0)
    assert store.remove([*keys[:4], OTHER]) == 4
    assert store.remove(keys[:4]) == 0
    assert store.remove([]) == 0
    assert [e.key for e in store.entries()] == keys[4:]
    for k in range(10, 15):  # as many as fit, now that the first are gone
        store.put(f"{k:040d}", np.zeros(1000), 1.0)
    assert len(store.entries()) == 11
    with pytest.raises(BadInput, match="no key"):
        store.remove(["../../etc/passwd"])


def test_a_store_is_looked_at_without_a_trace(tmp_path: Path) -> None:
    store = Store(tmp_path / "results")
    assert store.entries() == []
    assert KEY not in store
    assert isinstance(store.get(KEY), Absent)
    assert list(tmp_path.iterdir()) == []


def test_a_store_in_another_process_says_why_too(tmp_path: Path) -> None:
    store = opened(tmp_path, most_bytes=12_345, half_life_s=6.0)
    store.put(KEY, 1, 1.0)
    (entry,) = store.entries()
    entry.path.write_bytes(b"damaged")
    there = pickle.loads(pickle.dumps(store))
    assert (there.most_bytes, there.half_life_s) == (12_345, 6.0)
    assert why_not(there, KEY).endswith(": dropped")
