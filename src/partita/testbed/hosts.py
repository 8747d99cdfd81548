"""Shaped hosts on one machine: small networks with known rates and slow processors, for tests and benchmarks.

    with Testbed.up(hosts=2, rates=["20mbit", "20mbit"], cpu=[25, None]) as bed:
        server = bed.popen("h1", ["python", "server.py", bed.address("h1")])
        bed.exec("h0", ["python", "client.py", bed.address("h1")])
        bed.rate("h0", "5mbit")
        bed.cpu("h0", 10)

        h0 namespace        namespace of the switch        h1 namespace
        eth0 [tbf] ---- veth ---- [tbf] h0 = br0 = h1 [tbf] ---- veth ---- [tbf] eth0

A host is a network namespace. The filter at its own end shapes what it sends, the one at the switch's end what it
receives. All links live in namespaces, so that nothing of the machine's own network is touched or seen. A host's
processes join its cpu group first and its namespace second, because `ip netns exec` mounts another /sys.

Needs root, iproute2 and a kernel with namespaces, bridges, veth and tbf.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, TypeVar

from partita.errors import BadInput, MissingDependency, PartitaError
from partita.testbed import processors
from partita.testbed import state as beds
from partita.testbed.state import Host, Process, State
from partita.testbed.units import parse_percent, parse_rate

T = TypeVar("T")

MOST_HOSTS = 64
PACKET_BYTES = 1514  #: a full Ethernet frame as tbf counts it
MOST_JOINED = 43  #: of them in one packet of 64 KB
PACKET_S = 0.001  #: frames that a cable carries in this time leave joined: such a packet costs 0.1 ms of a core
LATE_S = 0.0003  #: a timer that fires this late costs no throughput
BURST_S = 0.001  #: what a message gains after a pause, at least
QUEUE_S = 0.1  #: the most a packet waits in a full queue ...
LEAST_QUEUE_BYTES = 256_000  #: ... but a slow link has room for what TCP sends before it knows better


class Testbed:
    """Hosts h0, h1, ... on one switch, until `down`."""

    __test__: ClassVar[bool] = False  # not a test case, whatever pytest thinks of the name

    def __init__(self, state: State, watcher: subprocess.Popen[bytes] | None = None) -> None:
        self._state = state
        self._watcher = watcher

    @staticmethod
    def up(
        hosts: int = 2,
        rates: Sequence[str] = ("100mbit",),
        cpu: Sequence[float | str | None] = (None,),
        *,
        cores: int | None = None,
        name: str | None = None,
        keep: bool = False,
    ) -> Testbed:
        """Make a bed. One rate, or one percentage, stands for all hosts.

        It is taken down on leaving the `with` block, and when this process ends in any way, kill -9 included; with
        `keep` it stays until somebody calls `down`. With `cores`, host i runs on core i mod `cores` only.

        Raises BadInput for bad arguments, a name in use, no root or a kernel that refuses; MissingDependency without
        iproute2.
        """
        _ready()
        owner = Process.of(os.getpid())
        assert owner is not None
        wanted = _wanted(hosts, rates, cpu, cores)
        with beds.locked():
            state = _claim(name, wanted, owner)
        watcher = _watcher(state, owner)
        bed = Testbed(state, watcher)
        try:
            _build(state)
            if keep:
                bed._leave()
        except BaseException as error:
            if left := bed._undo():
                error.add_note(str(not_removed(state.name, left)))
            raise
        return bed

    @staticmethod
    def open(name: str) -> Testbed:
        """The bed of that name that is up. Raises BadInput where there is none, and without root."""
        _ready()
        _check_name(name)
        state = beds.find(name)
        if state is None or state.stale:
            names = ", ".join(s.name for s in beds.every() if not s.stale)
            raise BadInput(
                f"there is no test bed {name!r}",
                hint=f"up are {names}: give --name" if names else "make it: partita testbed up",
            )
        return Testbed(state)

    @property
    def name(self) -> str:
        return self._state.name

    @property
    def hosts(self) -> tuple[Host, ...]:
        return self._state.hosts

    def address(self, host: str) -> str:
        """The host's IPv4 address on the bed's network."""
        return self._state.host(host).address

    def command(self, host: str, command: Sequence[str]) -> list[str]:
        """The words that run `command` on the host, in the same process id from start to end."""
        return _launch(self._state.host(host), command)

    def exec(
        self, host: str, command: Sequence[str], *, check: bool = True, timeout_s: float | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on the host to its end; its output is in the result.

        Raises PartitaError where it fails and `check` is set; subprocess.TimeoutExpired after `timeout_s`.
        """
        done = subprocess.run(
            self.command(host, command),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="backslashreplace",
            timeout=timeout_s,
        )
        if check and done.returncode:
            last = (done.stderr.strip() or done.stdout.strip() or "it said nothing").splitlines()[-1]
            raise PartitaError(f"{command[0]} on {host} ended with status {done.returncode}: {last}")
        return done

    def popen(self, host: str, command: Sequence[str], **settings: Any) -> subprocess.Popen[Any]:
        """Start a command on the host; `settings` as for subprocess.Popen. `down` ends it."""
        return subprocess.Popen(self.command(host, command), **settings)

    def rate(self, host: str, rate: str) -> None:
        """Change what the host sends and receives at, while it is used. Raises BadInput for a bad rate."""
        bits = parse_rate(rate)
        with self._changing(host) as now:
            changed = dataclasses.replace(now, rate_bit_per_s=bits)
            _shape(self._state, changed, "change")
            self._keep(changed)

    def cpu(self, host: str, percent: float | str) -> None:
        """Change the host's share of a core, while it is used; "max" lifts the limit. Raises BadInput for a bad share, and for a host
        that was made without a limit: its processes are in no cpu group."""
        share = parse_percent(str(percent))
        with self._changing(host) as now:
            if now.group is None:
                raise BadInput(
                    f"{host} of test bed {self.name!r} was made without a limit: what runs there cannot be slowed now",
                    hint="make the bed with --cpu 100, or another share, for this host",
                )
            changed = dataclasses.replace(now, cpu_percent=share)
            _limit(changed)
            self._keep(changed)

    @contextlib.contextmanager
    def _changing(self, host: str) -> Iterator[Host]:
        """The host as it is now, while nobody else changes the bed."""
        with beds.locked():
            state = self._found()
            if state is None:
                raise BadInput(f"test bed {self.name!r} is down", hint="make it again with partita testbed up")
            self._state = state
            yield state.host(host)

    def _found(self) -> State | None:
        """The bed as it is now; None where it is down, or another one has its name. The caller holds the lock."""
        state = beds.find(self.name)
        return state if state is not None and state.owner == self._state.owner else None

    def _keep(self, changed: Host) -> None:
        hosts = tuple(changed if h.name == changed.name else h for h in self._state.hosts)
        self._state = dataclasses.replace(self._state, hosts=hosts)
        self._state.write()

    def down(self) -> None:
        """End the hosts' processes and take everything away that the bed made; nothing where it is gone already. Raises BadInput
        where something of it is left."""
        with beds.locked():
            state = self._found()
            left = [] if state is None else dismantle(state)
        self._dismiss()
        if left:
            raise not_removed(self.name, left)

    def _leave(self) -> None:
        """From now on the bed belongs to nobody. Raises BadInput where somebody has taken it down meanwhile."""
        with beds.locked():
            if self._found() is None:
                raise BadInput(f"test bed {self.name!r} was taken down while it was made", hint="make it again")
            left = dataclasses.replace(self._state, owner=None)
            left.write()
            self._state = left
        self._dismiss()

    def _undo(self) -> list[str]:
        """Take away what was made of the bed, also where somebody has taken it down meanwhile and did not see all of it; what is left."""
        left = list[str]()
        # a damaged file is not what is to be told, but what went wrong before
        with beds.locked(), contextlib.suppress(BadInput):
            if self._found() is not None or beds.find(self.name) is None:
                left = dismantle(self._state)
        self._dismiss()
        return left

    def _dismiss(self) -> None:
        if self._watcher is not None:
            self._watcher.kill()
            self._watcher.wait()
            self._watcher = None

    def __enter__(self) -> Testbed:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.down()
        except BadInput as left:
            if error is None:
                raise
            error.add_note(str(left))


def unavailable() -> str:
    """Why this machine cannot hold a test bed, tried out with one namespace; "" where it can."""
    probe = f"{beds.PREFIX}probe-{os.getpid()}"
    try:
        _ready()
        _ip("netns", "add", probe)
        try:
            _ip("-n", probe, "link", "add", "dev", "eth0", "type", "veth", "peer", "name", "peer")
            _tc("-n", probe, "qdisc", "add", "dev", "eth0", "root", *_filter(1_000_000))
            _ip("-n", probe, "link", "add", "dev", "br0", "type", "bridge")
        finally:
            _ip("netns", "del", probe)
    except BadInput as error:
        return error.message
    return ""


def sweep() -> dict[str, list[str]]:
    """Take the beds down whose owners are dead: their names, and what of each could not be removed. Raises BadInput without root."""
    _ready()
    with beds.locked():
        return _sweep()


def _sweep() -> dict[str, list[str]]:
    return {state.name: dismantle(state) for state in beds.every() if state.stale}


def not_removed(name: str, left: Sequence[str]) -> BadInput:
    """What to say of a bed of which something is left."""
    return BadInput(
        f"test bed {name!r}: {', '.join(left)} could not be removed",
        hint="take it down where it was made, as root, once nothing runs in it",
    )


# ------------------------------------------------------------------------------------------------ before


def _ready() -> None:
    if os.geteuid() != 0:
        raise BadInput("a test bed needs root: it makes network namespaces", hint="call it with sudo")
    for tool in ("ip", "tc"):
        if shutil.which(tool) is None:
            raise MissingDependency(f"{tool} is not on the PATH", hint="install iproute2 (it brings ip and tc)")
    inside = _ip("netns", "identify", str(os.getpid())).strip()
    if inside in {host.namespace for state in beds.every() for host in state.hosts}:
        # its cpu groups cannot be seen here: they would be taken for gone
        raise BadInput(
            f"this is a host of a test bed, {inside}: beds are made and changed outside", hint="leave the host"
        )


@dataclasses.dataclass(frozen=True)
class _Wanted:
    """What one host is to be like."""

    rate_bit_per_s: int
    cpu_percent: float | None
    core: int | None


def _wanted(
    hosts: int, rates: Sequence[str], cpu: Sequence[float | str | None], cores: int | None
) -> tuple[_Wanted, ...]:
    """One row a host. Raises BadInput for lists of another length, and for bad numbers."""
    if cores is not None and shutil.which("taskset") is None:
        raise MissingDependency("taskset is not on the PATH", hint="install util-linux, or leave --cores out")
    if not 1 <= hosts <= MOST_HOSTS:
        raise BadInput(f"{hosts} hosts are asked for", hint=f"give 1 to {MOST_HOSTS}")
    allowed = sorted(os.sched_getaffinity(0))
    if cores is not None and not 1 <= cores <= len(allowed):
        raise BadInput(f"{cores} cores are asked for; {len(allowed)} may be used here", hint="give fewer")
    bits = [parse_rate(r) for r in _for_each(rates, hosts, "rates")]
    shares = [None if c is None else parse_percent(str(c)) for c in _for_each(cpu, hosts, "shares of a core")]
    pins = [None if cores is None else allowed[i % cores] for i in range(hosts)]
    return tuple(_Wanted(*row) for row in zip(bits, shares, pins, strict=True))


def _for_each(values: Sequence[T], hosts: int, what: str) -> list[T]:
    if len(values) not in (1, hosts):
        raise BadInput(f"{len(values)} {what} for {hosts} hosts", hint="give one for all, or one for each")
    return list(values) * hosts if len(values) == 1 else list(values)


def _claim(name: str | None, wanted: Sequence[_Wanted], owner: Process) -> State:
    """Write down a bed of a free name and subnet before anything of it is made. The caller holds the lock."""
    _sweep()
    others = beds.every()
    taken = {state.name for state in others}
    if name is None:
        name = next(n for k in range(len(taken) + 1) if (n := f"auto-{owner.pid}-{k}") not in taken)
    _check_name(name)
    if beds.find(name) is not None:
        raise BadInput(
            f"the test bed {name!r} is up already", hint=f"partita testbed down --name {name}, or take another --name"
        )
    subnet = next((k for k in range(256) if k not in {s.subnet for s in others}), None)
    if subnet is None:
        raise BadInput("256 test beds are up", hint="take some down")
    root = processors.controller().root if any(w.cpu_percent is not None for w in wanted) else None
    hosts = tuple(_host(f"{beds.PREFIX}{name}", i, subnet, w, root) for i, w in enumerate(wanted))
    state = State(name, subnet, f"{beds.PREFIX}{name}-switch", hosts, owner)
    state.write()
    return state


def _check_name(name: str) -> None:
    if re.fullmatch(r"[a-z0-9][a-z0-9-]{0,31}", name) is None:
        raise BadInput(f"{name!r} is no name for a test bed", hint="use up to 32 of a-z, 0-9 and -")


def _host(prefix: str, index: int, subnet: int, wanted: _Wanted, root: Path | None) -> Host:
    name = f"h{index}"
    group = str(root / f"{prefix}-{name}") if root is not None and wanted.cpu_percent is not None else None
    address = f"10.77.{subnet}.{index + 1}"
    return Host(name, f"{prefix}-{name}", address, wanted.rate_bit_per_s, wanted.cpu_percent, wanted.core, group)


def _watcher(state: State, owner: Process) -> subprocess.Popen[bytes]:
    """Start the companion that takes the bed down when its owner ends; signals to the owner's group pass it by."""
    words = [sys.executable, "-m", "partita.testbed.watch", state.name, str(owner.pid), str(owner.started)]
    nothing = subprocess.DEVNULL
    # partita may lie beside the caller's own modules, on no path that a new interpreter has
    path = os.pathsep.join([str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.Popen(
        words,
        stdin=nothing,
        stdout=nothing,
        stderr=nothing,
        start_new_session=True,
        cwd="/",
        env={**os.environ, "PYTHONPATH": path},
    )


# ------------------------------------------------------------------------------------------------ making


def _build(state: State) -> None:
    """Make the switch and the hosts that the state names."""
    _ip("netns", "add", state.switch)
    _ip("-n", state.switch, "link", "add", "dev", "br0", "type", "bridge", "mcast_snooping", "0")
    _ip("-n", state.switch, "link", "set", "dev", "br0", "addrgenmode", "none", "up")
    for host in state.hosts:
        _wire(state, host)
        _shape(state, host, "add")
        _limit(host)


def _limit(host: Host) -> None:
    """Make the host's cpu group, or change it."""
    if host.group is not None:
        processors.controller().limit(Path(host.group).name, host.cpu_percent, pinned=host.core is not None)


def _wire(state: State, host: Host) -> None:
    """One namespace, and its cable into the switch."""
    at, switch = ("-n", host.namespace), ("-n", state.switch)
    _ip("netns", "add", host.namespace)
    peer = ("peer", "name", host.name, "netns", state.switch)
    _ip(*at, "link", "add", "dev", "eth0", "type", "veth", *peer)
    _ip(*switch, "link", "set", "dev", host.name, "master", "br0", "addrgenmode", "none", "up")
    _ip(*at, "link", "set", "dev", "eth0", "addrgenmode", "none", "up")
    _ip(*at, "addr", "add", f"{host.address}/24", "dev", "eth0")
    _ip(*at, "link", "set", "dev", "lo", "up")
    if host.core is not None:
        _answers_for_its_packets(host, host.core)


def _answers_for_its_packets(host: Host, core: int) -> None:
    """What comes in is taken by the host's own core, and what goes out in answer is sent by it. Otherwise all of a transfer, with the
    timers of its filter, runs on one of its two ends' cores, now on this one and then on that: at 100 Mbit/s inferences took a quarter
    longer on one of the two hosts (2 cores of a Xeon, 25 November 2026)."""
    mask = ",".join(f"{1 << core >> 32 * k & 0xFFFFFFFF:08x}" for k in reversed(range(core // 32 + 1)))
    told = f'for q in /sys/class/net/eth0/queues/rx-*/rps_cpus; do [ ! -w "$q" ] || echo {mask} > "$q"; done'
    _ip("netns", "exec", host.namespace, "sh", "-c", told)


def _shape(state: State, host: Host, verb: str) -> None:
    """Put the filters at both ends of a host's cable ("add"), or set their rates anew ("change").

    Packets leave joined, as a network card would be handed them; the filter counts the frames that a wire would carry, and lets a
    packet and a little through at once, so that a late timer costs nothing.

    A connection asks how many frames to join when it looks for its way, so it has to look again: else the packets of one that was
    made at 2 Gbit/s are taken apart by the filter of 100, and every frame costs as much as a packet. Inferences beside an upload took
    1.8 times as long on the device and 1.2 times on the server, and 1.1 and 1.03 times beside one of a new connection (2 cores of a
    Xeon, 25 November 2026). What waits while the rate is lowered is lost, and sent again: a packet joined for the higher one may be
    larger than the bucket now, and would never leave."""
    _ip("-n", host.namespace, "link", "set", "dev", "eth0", "gso_max_segs", str(_joined(host.rate_bit_per_s)))
    _ip("-n", host.namespace, "route", "flush", "cache")
    lowered, rate = host.rate_bit_per_s < state.host(host.name).rate_bit_per_s, _filter(host.rate_bit_per_s)
    for namespace, end in ((host.namespace, "eth0"), (state.switch, host.name)):
        _tc("-n", namespace, "qdisc", verb, "dev", end, "root", *rate)
        now = json.loads(_tc("-n", namespace, "-s", "-j", "qdisc", "show", "dev", end))[0] if lowered else {}
        if now.get("backlog"):
            handle = "2:" if now["handle"] == "1:" else "1:"  # another filter, in one step
            _tc("-n", namespace, "qdisc", "replace", "dev", end, "root", "handle", handle, *rate)


def _filter(rate_bit_per_s: int) -> list[str]:
    """The token bucket of a rate, as tc wants it. Measured in docs/reference/testbed.md."""
    limit = max(LEAST_QUEUE_BYTES, round(rate_bit_per_s / 8 * QUEUE_S))
    burst = _burst_bytes(rate_bit_per_s)
    return ["tbf", "rate", f"{rate_bit_per_s}bit", "burst", str(burst), "limit", str(limit)]


def _joined(rate_bit_per_s: int) -> int:
    """Frames in a packet.

    >>> [_joined(rate) for rate in (5_000_000, 20_000_000, 100_000_000, 1_000_000_000)]
    [1, 2, 9, 43]
    """
    return min(max(math.ceil(rate_bit_per_s / 8 * PACKET_S / PACKET_BYTES), 1), MOST_JOINED)


def _burst_bytes(rate_bit_per_s: int) -> int:
    bytes_per_s, packet = rate_bit_per_s / 8, _joined(rate_bit_per_s) * PACKET_BYTES
    return max(2 * PACKET_BYTES, round(packet + bytes_per_s * LATE_S), round(bytes_per_s * BURST_S))


def _launch(host: Host, command: Sequence[str]) -> list[str]:
    """The words that run a command on a host: join the cpu group, then the core, then the namespace, then become it."""
    if not command:
        raise BadInput(f"no command is given for {host.name}", hint="partita testbed exec HOST -- COMMAND")
    if shutil.which(command[0]) is None:
        raise BadInput(f"there is no command {command[0]!r}", hint="check the PATH, or give the whole path")
    inside = ["ip", "netns", "exec", host.namespace, *command]
    if host.core is not None:
        inside = ["taskset", "-c", str(host.core), *inside]
    if host.group is not None:
        inside = ["sh", "-c", 'echo $$ > "$0" && exec "$@"', f"{host.group}/cgroup.procs", *inside]
    return inside


# ----------------------------------------------------------------------------------------------- unmaking


def dismantle(state: State) -> list[str]:
    """Take away what the state names, as far as it is there, and forget it; what could not be removed, which is left written down.
    The caller holds the lock.

    Processes are asked to end, and a second later made to.
    """
    left = [f"process {pid}" for pid in _end_processes(state)]
    if left:  # without its namespace it would not be found again
        return left
    namespaces = (*(h.namespace for h in state.hosts), state.switch)
    for namespace in namespaces:
        with contextlib.suppress(BadInput):  # it may never have been made
            _ip("netns", "del", namespace)
    try:
        there = _ip("netns", "list").split()
    except BadInput:  # not seen to be gone
        there = list(namespaces)
    left = [f"namespace {n}" for n in namespaces if n in there]
    left += [f"cpu group {h.group}" for h in state.hosts if h.group and not processors.remove(Path(h.group))]
    if not left:
        state.forget()
    return left


def _end_processes(state: State) -> list[int]:
    """Ask them, and make those that stay, once each and those that they start meanwhile; which of them were there to the end. Who is
    still on the way into a group is not seen: who removes that ends him."""
    inside, others = _inside(state), set[int]()  # others: this process may not end them, so waiting for them is no use
    for number, patience_s in ((signal.SIGTERM, 1.0), (signal.SIGKILL, 2.0)):
        end, told = time.monotonic() + patience_s, set[int]()
        while inside - others and time.monotonic() < end:
            for pid in inside - told:
                try:
                    os.kill(pid, number)
                except ProcessLookupError:
                    pass
                except PermissionError:
                    others.add(pid)
            told |= inside
            time.sleep(0.02)
            inside = _inside(state)
    return sorted(inside)


def _inside(state: State) -> set[int]:
    """The processes in the bed's namespaces and groups that still live."""
    found: set[int] = set()
    for host in state.hosts:
        if host.group is not None:
            found.update(processors.members(Path(host.group)))
        with contextlib.suppress(BadInput):
            found.update(int(word) for word in _ip("netns", "pids", host.namespace).split())
    return {pid for pid in found if pid != os.getpid() and Process.of(pid) is not None}


def _ip(*words: str) -> str:
    return _call("ip", *words)


def _tc(*words: str) -> str:
    return _call("tc", *words)


def _call(*words: str) -> str:
    """The output of one command. Raises BadInput with what it said where it fails."""
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        said = (done.stderr.strip() or f"status {done.returncode}").splitlines()[-1]
        raise BadInput(
            f"{' '.join(words)}: {said}",
            hint="a test bed needs a kernel with network namespaces, veth, bridge and tbf, and the right to use them",
        )
    return done.stdout
