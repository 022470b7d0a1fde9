"""`/healthz` and `/readyz` of a daemon: 200 and `ok`, or 503 and what is wrong, a line each. For systemd, Kubernetes and people."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

from ckpt_observe.delivery.readiness import Readiness
from ckpt_observe.errors import ConfigError


class HealthServer:
    """Answers while it is entered. ConfigError: the address cannot be had."""

    def __init__(self, address: tuple[str, int], readiness: Readiness) -> None:
        pages: dict[str, Callable[[], list[str]]] = {"/healthz": readiness.alive, "/readyz": readiness.ready}
        try:
            self._server = _Server(address, pages)
        except OSError as error:
            raise ConfigError(f"--health: {address[0]}:{address[1]} cannot be had ({error.strerror}); name another one") from error
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.1,), name="ckpt-observe-health", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, address: tuple[str, int], pages: dict[str, Callable[[], list[str]]]) -> None:
        self.pages = pages
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, _Answer)

    def server_bind(self) -> None:
        """Without asking the name service who we are, which HTTPServer does and which may take seconds."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is not our fault."""


class _Answer(BaseHTTPRequestHandler):
    server: _Server
    timeout = 10.0
    server_version, sys_version = "ckpt_observe", ""

    def do_GET(self) -> None:
        page = self.server.pages.get(self.path.partition("?")[0])
        wrong = page() if page else ["see /healthz and /readyz"]
        body = ("\n".join(wrong) or "ok").encode() + b"\n"
        self.send_response(404 if page is None else 503 if wrong else 200)
        for name, value in (("Content-Length", str(len(body))), ("Content-Type", "text/plain; charset=utf-8")):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """A probe is not news."""
