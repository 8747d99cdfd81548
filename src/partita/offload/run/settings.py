"""How a server works."""

from __future__ import annotations

from dataclasses import dataclass, field

from partita.offload.run.credentials import ServerCredentials
from partita.offload.run.wire import MOST_MESSAGE_BYTES


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """How a server works; everything that a client can make it hold has a limit."""

    host: str = "127.0.0.1"
    port: int = 0  #: 0: any free one
    threads: int = 1  #: compute threads, one core each
    memory_bytes: float = 2e9  #: for models and their sessions
    message_bytes: int = MOST_MESSAGE_BYTES
    queue_jobs: int = 256  #: waiting or computing, of all clients together; one client gets half of it
    queue_bytes: float = 512e6
    clients: int = 64  #: streams at once
    limit_s: float = 30.0  #: for one inference, and for building its session
    stall_s: float = 30.0  #: a client that does not read for so long is given up
    grace_s: float = 10.0  #: after SIGTERM: for the jobs that are in
    credentials: ServerCredentials = field(default_factory=ServerCredentials)
