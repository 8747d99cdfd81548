"""A link in user space: forwards TCP at a rate that can be changed, and can be cut."""

from __future__ import annotations

import contextlib
import socket
import threading
import time

_PIECE = 8192


class SlowLink:
    """127.0.0.1:`port` leads to `target`; what goes there is paced, what comes back is not."""

    def __init__(self, target: str, bytes_per_s: float) -> None:
        host, _, port = target.rpartition(":")
        self.target, self.bytes_per_s = (host, int(port)), bytes_per_s
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.pairs: list[tuple[socket.socket, socket.socket]] = []
        self.threads = [threading.Thread(target=self._accept, daemon=True)]
        self.threads[0].start()

    def __enter__(self) -> SlowLink:
        return self

    def __exit__(self, *_: object) -> None:
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.cut()
        for t in self.threads:
            t.join(5)

    def cut(self) -> None:
        """Break every connection there is; new ones are taken."""
        for pair in self.pairs:
            for end in pair:
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
                end.close()
        self.pairs.clear()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self.listener.accept()
                near.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 * _PIECE)
                far = socket.create_connection(self.target)
            except OSError:
                return
            for end in (near, far):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # a link does not wait for more
            self.pairs.append((near, far))
            for a, b, paced in ((near, far, True), (far, near, False)):
                self.threads.append(threading.Thread(target=self._carry, args=(a, b, paced), daemon=True))
                self.threads[-1].start()

    def _carry(self, source: socket.socket, sink: socket.socket, paced: bool) -> None:
        free_s = time.monotonic()
        with contextlib.suppress(OSError):
            while piece := source.recv(_PIECE):
                if paced:
                    free_s = max(free_s, time.monotonic() - 0.002) + len(piece) / self.bytes_per_s
                    time.sleep(max(0.0, free_s - time.monotonic()))
                sink.sendall(piece)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
