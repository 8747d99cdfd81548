"""What is known about a test bed, on disk, so that another process finds it and can take it away.

One JSON file a bed in FOLDER, which lies beside iproute2's own list of namespaces and is emptied by a reboot as they
are. A bed made by a program belongs to it: `owner` is that process, and a bed whose owner is dead is stale. A bed made
by the command line belongs to nobody, and stays until it is taken down.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from partita.errors import BadInput, refuse
from partita.files import dump_json, read_json, write_whole
from partita.records import record

FOLDER = Path("/run/partita-testbed")
FORMAT = "partita-testbed"
PREFIX = "partita-"  #: of every namespace and group that a test bed makes
_OWN = re.compile(PREFIX + r"[a-z0-9-]+")
_ADDRESS = re.compile(r"10\.77\.[0-9]{1,3}\.[0-9]{1,3}")


@dataclass(frozen=True)
class Process:
    """A process that cannot be taken for a later one with the same id."""

    pid: int
    started: int  #: clock ticks after boot

    @staticmethod
    def of(pid: int) -> Process | None:
        """None where no such process lives (a zombie does not)."""
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return None
        return None if fields[0] in "ZX" else Process(pid, int(fields[19]))

    @property
    def alive(self) -> bool:
        return Process.of(self.pid) == self


@dataclass(frozen=True)
class Host:
    """One host of a bed."""

    name: str  #: h0, h1, ...
    namespace: str
    address: str
    rate_bit_per_s: int  #: of what it sends and of what it receives
    cpu_percent: float | None  #: of one core; None: no limit
    core: int | None  #: pinned to this core
    group: str | None  #: folder of its cpu group


@dataclass(frozen=True)
class State:
    """One bed."""

    name: str
    subnet: int  #: 10.77.SUBNET.0/24
    switch: str  #: namespace of the bridge
    hosts: tuple[Host, ...]
    owner: Process | None

    @property
    def stale(self) -> bool:
        return self.owner is not None and not self.owner.alive

    def host(self, name: str) -> Host:
        """Raises BadInput where the bed has no such host."""
        for host in self.hosts:
            if host.name == name:
                return host
        names = ", ".join(h.name for h in self.hosts)
        raise BadInput(f"test bed {self.name!r} has no host {name!r}", hint=f"its hosts are {names}")

    def check(self) -> list[str]:
        """Every fault at once. What is named here is taken down by root with all that runs in it, so that a name that
        no test bed gives would cost the machine's own processes."""
        names = [self.switch, *(h.namespace for h in self.hosts), *(Path(h.group).name for h in self.hosts if h.group)]
        faults = [f"{name!r} is no name that a test bed gives" for name in names if not _OWN.fullmatch(name)]
        faults += [f"group {h.group!r} is no cpu group" for h in self.hosts if h.group and ".." in Path(h.group).parts]
        faults += [f"{h.address!r} is no address" for h in self.hosts if not _ADDRESS.fullmatch(h.address)]
        if not 0 <= self.subnet < 256:
            faults.append(f"it has subnet {self.subnet}")
        return faults

    def write(self) -> None:
        write_whole(_file(self.name), dump_json({"format": FORMAT, "version": 1, **dataclasses.asdict(self)}))

    def forget(self) -> None:
        _file(self.name).unlink(missing_ok=True)


def _file(name: str) -> Path:
    return FOLDER / f"{name}.json"


def find(name: str) -> State | None:
    """The bed of this name; None where there is none. Raises BadInput where its file is damaged."""
    if not _file(name).exists():
        return None
    row = read_json(_file(name), BadInput, FORMAT)
    hint = "remove the file, and the namespaces that `ip netns` lists"
    state = record(State, row, BadInput, str(_file(name)), hint=hint)
    refuse(BadInput, state.check(), str(_file(name)), hint=hint)
    return state


def every() -> list[State]:
    """All beds on this machine, by name; one whose file is damaged does not stand in the way of the others."""
    found: list[State] = []
    for path in sorted(FOLDER.glob("*.json")):
        with contextlib.suppress(BadInput):
            state = find(path.stem)
            found += [state] if state is not None else []
    return found


@contextlib.contextmanager
def locked() -> Iterator[None]:
    """Hold the list of beds: one process changes it at a time."""
    try:
        FOLDER.mkdir(mode=0o700, exist_ok=True)
        handle = os.open(FOLDER / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise BadInput(f"{FOLDER} cannot be used: {error.strerror}", hint="test beds need root") from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
