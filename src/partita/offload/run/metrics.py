"""Prometheus text over HTTP, on loopback only."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from partita.errors import BadInput


@dataclass
class MetricsPage:
    """What the page shows, once there is something to show."""

    text: Callable[[], str] = str

    def show(self, text: Callable[[], str]) -> None:
        self.text = text


@contextlib.contextmanager
def metrics_page(port: int | None) -> Iterator[MetricsPage]:
    """Serve GET /metrics on 127.0.0.1:`port` while the context lasts; None: not at all. Raises BadInput."""
    page = MetricsPage()
    if port is None:
        yield page
        return
    try:
        server = ThreadingHTTPServer(("127.0.0.1", port), _handler(page))
    except (OSError, OverflowError) as error:
        raise BadInput(
            f"port {port} cannot be had for metrics: {error}", hint="choose another --metrics-port"
        ) from error
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.2}, daemon=True)
    thread.start()
    try:
        yield page
    finally:
        server.shutdown()
        server.server_close()
        thread.join(2.0)


def _handler(page: MetricsPage) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = 5.0

        def do_GET(self) -> None:
            found = self.path == "/metrics"
            body = page.text().encode() if found else b"see /metrics\n"
            self.send_response(200 if found else 404)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Silent: stderr is for people."""

    return Handler
