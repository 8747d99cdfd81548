"""The test bed keeps its promises: rates, shares of a core, and nothing left behind."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.cli import main
from partita.errors import BadInput, MissingDependency, PartitaError
from partita.testbed import hosts as rooms
from partita.testbed import state as beds
from partita.testbed.hosts import Testbed, unavailable
from partita.testbed.processors import Controller, controller, quota
from partita.testbed.units import parse_percent, parse_rate, rate_text

REASON = unavailable()
needs_hosts = pytest.mark.skipif(bool(REASON), reason=REASON or "available")

RECEIVE = """
import json, socket, sys, time
server = socket.create_server((sys.argv[1], 5001))
print("listening", flush=True)
connection, _ = server.accept()
began, times, total = time.perf_counter(), [], 0
while data := connection.recv(1 << 16):
    total += len(data)
    times.append((time.perf_counter() - began, total))
connection.sendall(b".")
print(json.dumps(times))
"""
SEND = """
import socket, sys, time
connection = socket.create_connection((sys.argv[1], 5001))
began = time.perf_counter()
connection.sendall(bytes(int(sys.argv[2])))
connection.shutdown(socket.SHUT_WR)
connection.recv(1)
print(time.perf_counter() - began)
"""
BURN = """
import time
wall, cpu = time.perf_counter(), time.process_time()
while time.perf_counter() - wall < 0.7:
    pass
print((time.process_time() - cpu) / (time.perf_counter() - wall))
"""


PACKETS = """
import json, socket
tap = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
tap.bind(("eth0", 0))
tap.settimeout(2.0)
print("listening", flush=True)
seen, start = [], bytearray(64)
try:
    while True:
        seen.append(tap.recv_into(start, 0, socket.MSG_TRUNC))
except TimeoutError:
    print(json.dumps(seen))
"""


def left_behind(name: str) -> list[str]:
    """What of a bed is still on this machine."""
    spaces = [s for s in os.listdir("/run/netns") if s.startswith(f"partita-{name}-")]
    root = controller().root
    groups = [str(g) for g in root.glob(f"partita-{name}-*")]
    files = [str(f) for f in beds.FOLDER.glob(f"{name}.json")]
    return [*spaces, *groups, *files]


def eventually(holds: Callable[[], bool], within_s: float = 8.0) -> bool:
    end = time.monotonic() + within_s
    while not holds():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def transfer(
    bed: Testbed, size_bytes: int, meanwhile: Callable[[], None] = lambda: None
) -> tuple[float, list[tuple[float, int]]]:
    """Seconds that h0 needs to send so much to h1, and the (time, bytes so far) h1 saw."""
    to = bed.address("h1")
    taker = bed.popen("h1", [sys.executable, "-c", RECEIVE, to], stdout=subprocess.PIPE, text=True)
    assert taker.stdout is not None
    assert taker.stdout.readline().strip() == "listening"
    giver = bed.popen("h0", [sys.executable, "-c", SEND, to, str(size_bytes)], stdout=subprocess.PIPE, text=True)
    meanwhile()
    sent, _ = giver.communicate(timeout=20)
    seen, _ = taker.communicate(timeout=20)
    return float(sent), [(float(t), int(n)) for t, n in json.loads(seen)]


def nearest(wanted: float, within: float, measure: Callable[[], float], tries: int = 6) -> float:
    """The first measurement within that share of what is wanted, else the nearest: other work may hold one up."""
    best = measure()
    for _ in range(tries - 1):
        if abs(best - wanted) <= within * wanted:
            break
        best = min(best, measure(), key=lambda value: abs(value - wanted))
    return best


@pytest.fixture(scope="module")
def bed() -> Iterator[Testbed]:
    with Testbed.up(2, ["20mbit"], [25, 10], name="test-shared") as made:
        yield made
    assert left_behind("test-shared") == []


# ------------------------------------------------------------------------------------------ no root needed


@pytest.mark.parametrize(
    ("text", "bits"),
    [
        ("5mbit", 5e6),
        ("500kbit", 5e5),
        ("1gbit", 1e9),
        ("64000bit", 64e3),
        ("40", 4e7),
        ("2.5Mbit", 2.5e6),
        (" 1 gbit ", 1e9),
    ],
)
def test_rates_are_read(text: str, bits: float) -> None:
    assert parse_rate(text) == bits


@pytest.mark.parametrize(
    "text", ["", "fast", "5mbps", "5mb", "-5mbit", "0", "63kbit", "11gbit", "5 mbit mbit", "nan", "1e6bit"]
)
def test_bad_rates_are_refused_in_a_sentence(text: str) -> None:
    with pytest.raises(BadInput, match="hint"):
        parse_rate(text)


@given(st.integers(64_000, 10_000_000_000))
def test_rates_survive_being_written(bits: int) -> None:
    assert parse_rate(rate_text(bits)) == bits


@pytest.mark.parametrize("text", ["", "quarter", "0", "0.5", "-3", "7000", "nan"])
def test_bad_shares_are_refused(text: str) -> None:
    with pytest.raises(BadInput, match="hint"):
        parse_percent(text)


@given(st.floats(1.0, 6400.0))
def test_quotas_are_what_was_asked_and_what_the_kernel_takes(percent: float) -> None:
    quota_us, period_us = quota(percent)
    assert quota_us >= 1_000
    assert 10_000 <= period_us <= 1_000_000
    assert quota_us / period_us * 100 == pytest.approx(percent, rel=0.01)


def test_both_versions_of_the_cpu_controller_are_found(tmp_path: Path) -> None:
    old = f"cgroup {tmp_path} cgroup rw,relatime,cpu,cpuacct 0 0\n"
    other = f"cgroup {tmp_path} cgroup rw,relatime,cpuset 0 0\n"
    new = f"cgroup2 {tmp_path} cgroup2 rw,relatime 0 0\n"
    assert controller(other + old + new) == Controller(tmp_path, 1)
    with pytest.raises(BadInput, match="no cpu controller"):
        controller(other + new)
    (tmp_path / "cgroup.controllers").write_text("cpu io memory")
    assert controller(other + new) == Controller(tmp_path, 2)
    assert (tmp_path / "cgroup.subtree_control").read_text() == "+cpu"


def test_a_group_of_version_2_gets_one_line(tmp_path: Path) -> None:
    folder = Controller(tmp_path, 2).limit("partita-x-h0", 25.0)
    assert (folder / "cpu.max").read_text() == "2500 10000"


def test_a_whole_core_of_its_own_is_no_quota(tmp_path: Path) -> None:
    """Which would take a twentieth of it; without a core of its own a group may use two at once, and is held to one."""
    known = Controller(tmp_path, 2)
    for percent, pinned, said in ((100.0, True, "max"), (100.0, False, "10000"), (25.0, True, "2500")):
        assert (known.limit("it", percent, pinned=pinned) / "cpu.max").read_text() == f"{said} 10000"


def test_without_root_or_iproute2_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(MissingDependency, match=r"ip is not on the PATH.*install iproute2"):
        Testbed.up(name="test-none")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(BadInput, match="needs root"):
        Testbed.up(name="test-none")
    with pytest.raises(BadInput, match="needs root"):
        Testbed.open("test-none")
    assert "needs root" in unavailable()


def test_a_dead_process_is_not_the_one_that_was() -> None:
    child = subprocess.Popen(["sleep", "30"])
    process = beds.Process.of(child.pid)
    assert process is not None
    assert process.alive
    assert not beds.Process(process.pid, process.started + 1).alive
    child.kill()
    child.wait()
    assert not process.alive


# ------------------------------------------------------------------------------------------------ shaping


def as_told(spent_s: float, wanted_s: float) -> bool:
    """Never faster than the rate allows; slower by what a neighbour of this machine takes for itself."""
    return 0.93 * wanted_s <= spent_s <= 1.25 * wanted_s


@needs_hosts
@pytest.mark.parametrize("rate", ["5mbit", "20mbit", "100mbit"])
def test_a_transfer_takes_what_its_rate_says(rate: str) -> None:
    bytes_per_s = parse_rate(rate) / 8
    with Testbed.up(2, [rate], name="test-rate") as bed:
        size = round(bytes_per_s * 0.5)
        assert as_told(nearest(0.525, 0.025, lambda: transfer(bed, size)[0]), 0.5)
        message_s = 150_000 / bytes_per_s
        assert as_told(nearest(message_s, 0.06, lambda: transfer(bed, 150_000)[0]), message_s)
    assert left_behind("test-rate") == []


@needs_hosts
def test_the_receiver_can_be_the_slow_one() -> None:
    with Testbed.up(2, ["100mbit", "10mbit"], name="test-receiver") as bed:
        spent = nearest(0.5, 0.06, lambda: transfer(bed, 625_000)[0])
    assert as_told(spent, 0.5)


@needs_hosts
def test_a_rate_changes_in_the_middle_of_a_transfer() -> None:
    with Testbed.up(2, ["40mbit"], name="test-change") as bed:

        def slower() -> None:
            time.sleep(0.6)
            bed.rate("h1", "8mbit")

        _, seen = transfer(bed, 4_500_000, slower)
        assert bed.hosts[1].rate_bit_per_s == 8_000_000
        assert Testbed.open("test-change").hosts == bed.hosts

    def speed(begin_s: float, end_s: float) -> float:
        part = [(t, n) for t, n in seen if begin_s <= t <= end_s]
        return (part[-1][1] - part[0][1]) / (part[-1][0] - part[0][0])

    assert 0.75 * 40e6 / 8 <= speed(0.05, 0.4) <= 1.1 * 40e6 / 8
    assert 0.75 * 8e6 / 8 <= speed(1.0, seen[-1][0]) <= 1.1 * 8e6 / 8


@needs_hosts
def test_a_connection_from_before_a_change_joins_frames_as_a_new_one_does() -> None:
    with Testbed.up(2, ["400mbit"], name="test-joined") as bed:
        tap = bed.popen("h1", [sys.executable, "-c", PACKETS], stdout=subprocess.PIPE, text=True)
        assert tap.stdout is not None
        assert tap.stdout.readline().strip() == "listening"

        def slower() -> None:
            time.sleep(0.3)
            bed.rate("h0", "100mbit")

        transfer(bed, 30_000_000, slower)
        seen = json.loads(tap.communicate(timeout=20)[0])
    frames = np.array([n / 1500 for n in seen if n > 1000])
    assert np.median(frames[: len(frames) // 10]) > 20
    assert 7 < np.median(frames[len(frames) // 2 :]) <= 9.1  # of a millisecond at 100 Mbit/s


# ------------------------------------------------------------------------------------------------- hosts


@needs_hosts
@pytest.mark.parametrize(("host", "percent"), [("h0", 25), ("h1", 10)])
def test_a_busy_loop_gets_its_share_of_a_core(bed: Testbed, host: str, percent: float) -> None:
    def measure() -> float:
        return 100 * float(bed.exec(host, [sys.executable, "-c", BURN]).stdout)

    share = nearest(percent, 0.08, measure)
    load = os.getloadavg()[0]
    if share < 0.8 * percent and load > len(os.sched_getaffinity(0)):
        pytest.skip(f"load {load:.1f}: other work leaves less than {percent} % of a core")
    assert 0.8 * percent <= share <= percent + 2


@needs_hosts
def test_hosts_are_pinned_and_see_only_their_own_network() -> None:
    probe = "import os, socket; print(os.sched_getaffinity(0), [n for _, n in socket.if_nameindex()])"
    first = min(os.sched_getaffinity(0))
    with Testbed.up(2, cores=1, name="test-pinned") as bed:
        told = bed.exec("h1", [sys.executable, "-c", probe]).stdout
        mask = bed.exec("h1", ["sh", "-c", "cat /sys/class/net/eth0/queues/rx-0/rps_cpus || echo 0"]).stdout
    assert told.strip() == f"{ {first} } ['lo', 'eth0']"
    assert int(mask.replace(",", ""), 16) in (1 << first, 0)  # its packets too, where the kernel can


@needs_hosts
def test_a_failing_command_is_told(bed: Testbed) -> None:
    with pytest.raises(PartitaError, match="sh on h0 ended with status 3: gone wrong"):
        bed.exec("h0", ["sh", "-c", "echo gone wrong >&2; exit 3"])
    assert bed.exec("h0", ["sh", "-c", "exit 3"], check=False).returncode == 3
    with pytest.raises(BadInput, match="no command 'nosuch'"):
        bed.popen("h0", ["nosuch"])
    with pytest.raises(BadInput, match=r"no host 'h9'.*h0, h1"):
        bed.address("h9")
    with pytest.raises(BadInput, match="5mbps"):
        bed.rate("h0", "5mbps")


@needs_hosts
def test_beds_side_by_side_differ(bed: Testbed) -> None:
    with Testbed.up(1) as other:
        assert other.name != bed.name
        assert other.address("h0") != bed.address("h0")
        with pytest.raises(BadInput, match=r"is up already.*down --name"):
            Testbed.up(name=other.name)
        assert Testbed.open(other.name).hosts == other.hosts
    with pytest.raises(BadInput, match="no test bed"):
        Testbed.open(other.name)


@needs_hosts
@pytest.mark.parametrize(
    ("words", "fact"),
    [
        ({"hosts": 0}, "0 hosts"),
        ({"hosts": 3, "rates": ["1mbit", "2mbit"]}, "2 rates for 3 hosts"),
        ({"hosts": 2, "cpu": [10, 20, 30]}, "3 shares of a core for 2 hosts"),
        ({"cores": 1000}, "1000 cores"),
        ({"name": "../etc"}, "no name"),
    ],
)
def test_bad_beds_are_refused(words: dict[str, object], fact: str) -> None:
    with pytest.raises(BadInput, match=fact):
        Testbed.up(**words)  # type: ignore[arg-type]


# ---------------------------------------------------------------------------------------------- clean up


@needs_hosts
def test_a_failure_half_way_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("the second cable is cut")

    monkeypatch.setattr(rooms, "_shape", fail)
    with pytest.raises(RuntimeError, match="cut"):
        Testbed.up(2, cpu=[50], name="test-half")
    assert left_behind("test-half") == []


@needs_hosts
def test_down_ends_what_runs_on_the_hosts() -> None:
    with Testbed.up(1, cpu=[50], name="test-busy") as bed:
        stubborn = "import signal, time; signal.signal(15, signal.SIG_IGN); print(1, flush=True); time.sleep(60)"
        sleeper = bed.popen("h0", [sys.executable, "-c", stubborn], stdout=subprocess.PIPE)
        assert sleeper.stdout is not None
        sleeper.stdout.readline()
    assert sleeper.wait(timeout=1) == -signal.SIGKILL
    sleeper.stdout.close()
    with pytest.raises(BadInput, match="'test-busy' is down"):
        bed.cpu("h0", 20)
    assert left_behind("test-busy") == []


@needs_hosts
def test_a_bed_taken_down_while_it_is_made_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    shape, calls = rooms._shape, list[int]()

    def disturbed(*words: object) -> None:
        calls.append(1)
        if len(calls) == 2:
            Testbed.open("test-race").down()
            rooms._ip(
                "netns", "add", "partita-test-race-h1"
            )  # what the maker does next, as if it had been a little slower
        shape(*words)  # type: ignore[arg-type]

    monkeypatch.setattr(rooms, "_shape", disturbed)
    with pytest.raises(BadInput):
        Testbed.up(2, cpu=[50], name="test-race", keep=True)
    assert left_behind("test-race") == []


@needs_hosts
def test_a_bed_taken_down_before_it_is_kept_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    build = rooms._build

    def disturbed(state: beds.State) -> None:
        build(state)
        Testbed.open("test-race").down()

    monkeypatch.setattr(rooms, "_build", disturbed)
    with pytest.raises(BadInput, match="taken down while it was made"):
        Testbed.up(1, cpu=[50], name="test-race", keep=True)
    assert left_behind("test-race") == []


@needs_hosts
def test_beds_are_not_changed_from_their_own_hosts() -> None:
    with Testbed.up(1, cpu=[50], name="test-inside") as bed:
        for verb in (["down"], ["up"], ["cpu", "h0", "20"]):
            words = [sys.executable, "-m", "partita", "testbed", *verb, "--name", "test-inside"]
            done = bed.exec("h0", words, check=False)
            assert done.returncode == 2
            assert "this is a host of a test bed, partita-test-inside-h0" in done.stderr
        assert bed.hosts[0].group is not None
    assert left_behind("test-inside") == []


@needs_hosts
def test_what_cannot_be_removed_is_told_and_stays_written_down() -> None:
    """Where the groups are out of sight, as in a container that shares /run."""
    words = [sys.executable, "-m", "partita", "testbed", "down", "--name", "test-unseen"]
    blind = ["unshare", "-m", "sh", "-c", 'umount -R /sys/fs/cgroup && exec "$@"', "sh", *words]
    with Testbed.up(1, cpu=[50], name="test-unseen") as bed:
        done = subprocess.run(blind, capture_output=True, text=True)
        assert (done.returncode, "removed" in done.stdout) == (2, False), done.stderr
        assert f"cpu group {bed.hosts[0].group} could not be removed" in done.stderr
        assert beds.find("test-unseen") is not None
    assert left_behind("test-unseen") == []


@needs_hosts
def test_a_stale_bed_that_cannot_be_removed_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    make = "import time; from partita.testbed.hosts import Testbed"
    make += "; bed = Testbed.up(1, cpu=[50], name='test-stuck'); time.sleep(60)"
    owner = subprocess.Popen([sys.executable, "-c", make])
    try:
        assert eventually(lambda: (s := beds.find("test-stuck")) and Path(s.hosts[0].group or "").is_dir(), 20.0)
        state = beds.find("test-stuck")
        assert state is not None
        within = Path(state.hosts[0].group or "") / "within"  # a group with one inside cannot be removed
        within.mkdir()
    finally:
        owner.kill()
        owner.wait()
    try:
        for _ in range(2):  # the companion may be about to remove it the first time
            assert main(["testbed", "down", "--name", "test-stuck"]) == 2
            assert f"cpu group {state.hosts[0].group} could not be removed" in capsys.readouterr().err
    finally:
        within.rmdir()
    main(["testbed", "down", "--name", "test-stuck"])  # unless the companion was quicker
    assert eventually(lambda: not left_behind("test-stuck"))


def lives_in(name: str) -> set[int]:
    """Who is on the bed's hosts; a process that was just started may still be on its way."""
    state = beds.find(name)
    return rooms._inside(state) if state else set()


@needs_hosts
def test_a_process_that_one_may_not_end_keeps_its_bed(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(pid: int, number: int) -> None:
        raise PermissionError

    with Testbed.up(1, name="test-others") as bed, bed.popen("h0", ["sleep", "30"]) as sleeper:
        assert eventually(lambda: sleeper.pid in lives_in("test-others"))
        with monkeypatch.context() as patched:
            patched.setattr(rooms.os, "kill", refuse)
            with pytest.raises(BadInput, match=f"process {sleeper.pid} could not be removed"):
                Testbed.open("test-others").down()
        assert beds.find("test-others") is not None
        sleeper.kill()
    assert left_behind("test-others") == []


@needs_hosts
def test_an_error_in_a_bed_is_not_hidden_by_what_is_left_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with Testbed.up(1, name="test-note"):
        bed = Testbed.open("test-note")
        with monkeypatch.context() as patched:
            patched.setattr(rooms, "dismantle", lambda state: ["namespace x"])
            with pytest.raises(ZeroDivisionError) as raised, bed:
                raise ZeroDivisionError
    assert "namespace x could not be removed" in raised.value.__notes__[0]


@needs_hosts
def test_what_is_left_of_a_bed_that_could_not_be_made_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(state: object) -> None:
        raise BadInput("no bridge")

    with monkeypatch.context() as patched:
        patched.setattr(rooms, "_build", fail)
        patched.setattr(rooms, "dismantle", lambda state: ["namespace x"])
        assert main(["testbed", "up", "--name", "test-left"]) == 2
    told = capsys.readouterr().err
    assert "no bridge" in told
    assert "namespace x could not be removed" in told
    assert main(["testbed", "down", "--name", "test-left"]) == 0


@needs_hosts
def test_a_process_that_lives_on_keeps_its_bed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one does in the middle of reading a disk that is gone."""
    with Testbed.up(1, name="test-disk") as bed, bed.popen("h0", ["sleep", "30"]) as sleeper:
        assert eventually(lambda: sleeper.pid in lives_in("test-disk"))
        with monkeypatch.context() as patched:
            patched.setattr(rooms.os, "kill", lambda pid, number: None)
            with pytest.raises(BadInput, match=f"process {sleeper.pid} could not be removed"):
                Testbed.open("test-disk").down()
        assert beds.find("test-disk") is not None
        sleeper.kill()
    assert left_behind("test-disk") == []


@needs_hosts
def test_a_damaged_state_stands_in_nobody_elses_way() -> None:
    damaged = beds.FOLDER / "test-damaged.json"
    with Testbed.up(1, name="test-other"):
        pass  # the folder is there
    damaged.write_text("{")
    try:
        with Testbed.up(1, name="test-other") as bed:
            assert bed.exec("h0", ["printf", "\\377"]).stdout == "\\xff"
        with pytest.raises(BadInput, match="test-damaged"):
            Testbed.up(1, name="test-damaged")
    finally:
        damaged.unlink()


OWNER = """
import signal, sys, time
from partita.testbed.hosts import Testbed
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored by whatever was started in the background
with Testbed.up(2, cpu=[50], name=sys.argv[1]) as bed:
    child = bed.popen("h0", ["sleep", "60"])
    print(child.pid, flush=True)
    time.sleep(60)
"""


@needs_hosts
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_killed_owner_leaves_nothing(number: signal.Signals) -> None:
    name = f"test-{number.name.lower()}"
    owner = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(OWNER), name], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert owner.stdout is not None
    child = int(owner.stdout.readline())
    assert len(left_behind(name)) == 6
    owner.send_signal(number)
    owner.wait(timeout=10)
    owner.stdout.close()
    assert eventually(lambda: left_behind(name) == [])
    assert beds.Process.of(child) is None


@needs_hosts
def test_the_next_bed_removes_a_stale_one_that_no_companion_saw(monkeypatch: pytest.MonkeyPatch) -> None:
    dead = subprocess.Popen(["sleep", "30"])
    owner = beds.Process.of(dead.pid)
    assert owner is not None
    real = beds.Process.of  # others' beds, in tests beside this one, are not stale
    monkeypatch.setattr(beds.Process, "of", staticmethod(lambda pid: owner if pid == os.getpid() else real(pid)))
    monkeypatch.setattr(rooms, "_watcher", lambda state, owner: None)
    Testbed.up(1, cpu=[50], name="test-stale")
    monkeypatch.undo()
    assert len(left_behind("test-stale")) == 4
    dead.kill()
    dead.wait()
    with Testbed.up(1, name="test-stale") as bed:  # the name is free again
        assert bed.hosts[0].group is None
    assert left_behind("test-stale") == []


# ------------------------------------------------------------------------------------------ command line


@needs_hosts
def test_the_command_line_from_up_to_down(capfd: pytest.CaptureFixture[str]) -> None:
    name = ["--name", "test-cli"]
    try:
        assert main(["testbed", "up", *name, "--rates", "40,20,10", "--cpu", "25,100,max", "--json"]) == 0
        hosts = json.loads(capfd.readouterr().out)["hosts"]
        assert [h["rate_bytes_per_s"] for h in hosts] == [5e6, 2.5e6, 1.25e6]
        assert [h["cpu_percent"] for h in hosts] == [25.0, 100.0, None]
        assert main(["testbed", "up", *name]) == 2
        assert main(["testbed", "rate", *name, "h2", "5mbit"]) == 0
        assert "h2 sends and receives at 5mbit" in capfd.readouterr().out
        assert main(["testbed", "cpu", *name, "h0", "max"]) == 0
        assert main(["testbed", "cpu", *name, "h2", "50"]) == 2
        assert "h2 of test bed 'test-cli' was made without a limit" in capfd.readouterr().err
        assert main(["testbed", "exec", "--json", *name, "h1", "--", "sh", "-c", "echo $0; exit 4", "--", "x"]) == 0
        document = json.loads(capfd.readouterr().out)
        assert (document["stdout"], document["exit_status"]) == ("--\n", 4)
        words = [sys.executable, "-m", "partita", "testbed", "exec", *name, "h0", "--", "sh", "-c", "cat; exit 5"]
        done = subprocess.run(words, input=b"through\x00and out", capture_output=True)
        assert (done.returncode, done.stdout) == (5, b"through\x00and out")
    finally:
        assert main(["testbed", "down", *name]) == 0
    assert left_behind("test-cli") == []
    assert main(["testbed", "down", *name]) == 2
    assert "no test bed 'test-cli'" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("words", "fact"),
    [
        (["--hosts", "0"], "0 hosts"),
        (["--rates", ""], "'' is no rate"),
        (["--rate", "9" * 400], "inf bit/s"),
        (["--name", ""], "'' is no name"),
    ],
)
def test_the_command_line_refuses_in_a_sentence(
    words: list[str], fact: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["testbed", "up", *(["--name", "test-words"] if "--name" not in words else []), *words]) == 2
    assert fact in capsys.readouterr().err


@pytest.mark.parametrize(
    "change",
    [
        {"group": "/sys/fs/cgroup/cpu"},
        {"group": "/x/../partita-a/.."},
        {"namespace": "default"},
        {"address": "8.8.8.8"},
    ],
)
def test_a_state_that_names_what_is_no_test_beds_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, str]
) -> None:
    """Root takes down what the file names, with all the processes in it."""
    monkeypatch.setattr(beds, "FOLDER", tmp_path)
    host = beds.Host("h0", "partita-a-h0", "10.77.0.1", 10**6, 25.0, None, "/sys/fs/cgroup/cpu/partita-a-h0")
    state = beds.State("a", 0, "partita-a-switch", (host,), None)
    state.write()
    assert beds.find("a") == state
    dataclasses.replace(state, hosts=(dataclasses.replace(host, **change),)).write()
    with pytest.raises(BadInput, match=r"a\.json: '.*' is no|a\.json: group '.*' is no cpu group"):
        beds.find("a")
