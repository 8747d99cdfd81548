"""partita offload serve: answer the server's part of jobs."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from partita.cli.talk import Talk
from partita.errors import BadInput
from partita.files import write_whole
from partita.page.text import count, facts, seconds, size
from partita.spawn import usable_cores

if TYPE_CHECKING:
    from partita.offload.run.settings import ServerSettings

_KEYS = "~/.config/partita/offload"
_HOST = re.compile(r"[A-Za-z0-9._-]+|\[?[0-9A-Fa-f:.]+(%[A-Za-z0-9._-]+)?\]?")  # a name, or an IP address


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--host", default="127.0.0.1", help="address to listen on; default 127.0.0.1: this machine only"
    )
    parser.add_argument("--port", type=int, default=7070, help="default 7070; 0: any free one")
    parser.add_argument("--threads", type=int, help="compute threads, one core each; default all cores")
    parser.add_argument("--memory-mb", type=float, default=2000, help="for models and their sessions; default 2000")
    parser.add_argument("--message-mb", type=float, default=64, help="largest message taken; default 64")
    parser.add_argument("--queue", type=int, default=256, help="jobs waiting at most, of all clients; default 256")
    parser.add_argument("--clients", type=int, default=64, help="clients at once at most; default 64")
    parser.add_argument(
        "--grace-s", type=float, default=10.0, help="after SIGTERM, for the jobs that are in; default 10"
    )
    parser.add_argument(
        "--limit-s", type=float, default=30.0, help="for one inference: a model that takes longer is ended; default 30"
    )
    parser.add_argument(
        "--stall-s", type=float, default=30.0, help="a client that does not read for so long is given up; default 30"
    )
    parser.add_argument(
        "--keys", metavar="DIR", default=_KEYS, help=f"where certificate and token made here lie; default {_KEYS}"
    )
    parser.add_argument("--cert", metavar="PEM", help="your own certificate")
    parser.add_argument("--key", metavar="PEM", help="its key")
    parser.add_argument("--token-file", metavar="FILE", help="your own token")
    parser.add_argument("--insecure", action="store_true", help="plain text and no token, also beyond loopback")
    parser.add_argument("--metrics-port", type=int, help="serve Prometheus metrics on this port of loopback")
    parser.add_argument("--port-file", metavar="FILE", help="write the port here once the server listens")


def run(options: argparse.Namespace, talk: Talk) -> dict[str, Any]:
    """Serve until SIGTERM or Ctrl-C. Raises BadInput where the address or the keys cannot be had."""
    from partita.offload.run.metrics import metrics_page
    from partita.offload.run.server import Server, serve

    _check(options)
    settings = _settings(options)
    own = settings.credentials

    def ready(server: Server, port: int) -> None:
        page.show(server.metrics)
        secured, asked = "TLS" if own.certificate else "plain text", "token" if own.token else "no token"
        talk.step(f"listening on {options.host}:{port}, {secured}, {asked}, {settings.threads} threads")
        if own.certificate and not options.cert:
            folder = _folder(options)
            token = options.token_file or folder / "token"
            talk.say(f"   clients need --ca {folder / 'cert.pem'} --token-file {token}")
        if options.port_file:
            write_whole(options.port_file, f"{port}\n")

    with metrics_page(options.metrics_port) as page:
        server = serve(settings, ready)
    return _document(server.metrics())


def _folder(options: argparse.Namespace) -> Path:
    return Path(options.keys).expanduser()


def _settings(options: argparse.Namespace) -> ServerSettings:
    from partita.offload.run.credentials import server_credentials
    from partita.offload.run.settings import ServerSettings

    return ServerSettings(
        host=options.host,
        port=options.port,
        threads=options.threads or usable_cores(),
        memory_bytes=options.memory_mb * 1e6,
        message_bytes=int(options.message_mb * 2**20),
        queue_jobs=options.queue,
        clients=options.clients,
        grace_s=options.grace_s,
        limit_s=options.limit_s,
        stall_s=options.stall_s,
        credentials=server_credentials(
            options.host,
            insecure=options.insecure,
            folder=_folder(options),
            cert=options.cert,
            key=options.key,
            token_file=options.token_file,
        ),
    )


def _check(options: argparse.Namespace) -> None:
    if not _HOST.fullmatch(options.host):
        raise BadInput(f"--host {options.host!r} is no address", hint="give a name or an IP address, e.g. 127.0.0.1")
    ports = (("port", 0, 65535), ("metrics_port", 0, 65535))
    for name, least, most in (*ports, ("threads", 1, 1024), ("queue", 1, 1_000_000), ("clients", 1, 100_000)):
        value = getattr(options, name)
        if value is not None and not least <= value <= most:
            raise BadInput(f"--{name.replace('_', '-')} is {value}", hint=f"{least} to {most} are possible")
    for name in ("limit_s", "stall_s"):
        if not 0 < getattr(options, name) <= 86400:
            raise BadInput(f"--{name.replace('_', '-')} is {getattr(options, name)}", hint="above 0, at most a day")
    if not (0 < options.memory_mb <= 1e9 and 1 <= options.message_mb <= 1024 and 0 <= options.grace_s <= 86400):
        raise BadInput(
            f"--memory-mb {options.memory_mb}, --message-mb {options.message_mb}, --grace-s {options.grace_s}",
            hint="memory above 0, messages of 1 to 1024 MB, a grace of 0 s or more",
        )


def _document(metrics: str) -> dict[str, Any]:
    """The counters at the end, by name."""
    rows = [line.rpartition(" ") for line in metrics.splitlines()]
    return {name.removeprefix("partita_offload_"): float(value) for name, _, value in rows}


def text(document: dict[str, Any]) -> str:
    rows = [("jobs served", count(document.get("jobs_served_total", 0)))]
    rows.append(("came in", size(document.get("bytes_in_total", 0))))
    rows.append(("went out", size(document.get("bytes_out_total", 0))))
    slowest = document.get('service_seconds{quantile="0.99"}')
    if slowest is not None:
        rows.append(("p99", seconds(slowest)))
    return facts(rows)
