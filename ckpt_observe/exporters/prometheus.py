"""`/metrics` for Prometheus, on loopback unless there is a token or TLS.

Whoever has the turn binds the port (see `metrics`), so siblings never fight for it; if it cannot be had, a stranger has it, and that is
said. `SO_REUSEADDR` lets the next one bind at once although connections of the last one linger; on Linux and macOS it does not let two
processes listen, on Windows it would, so there it is left out.
"""

from __future__ import annotations

import errno
import hmac
import socket
import socketserver
import ssl
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from ckpt_observe.config import Prometheus, is_loopback
from ckpt_observe.exporters.exposition import negotiated, render
from ckpt_observe.exporters.metrics import TICK, Gather, Outlet
from ckpt_observe.exporters.metrics_push import Pushgateway, TextFile

SLOWEST: Final = 10.0
"""Seconds that a client may take for its request."""


def outlets(settings: Prometheus, service: str) -> list[Outlet]:
    """The ways out that the settings name: a batch job's file or gateway, else the endpoint."""
    found: list[Outlet] = []
    if settings.textfile:
        found.append(TextFile(settings.textfile))
    if settings.pushgateway:
        found.append(Pushgateway(settings.pushgateway, service))
    return found or [Endpoint(settings)]


class Endpoint:
    """Serves the metrics; each scrape reads them anew."""

    every = TICK

    def __init__(self, settings: Prometheus) -> None:
        self._settings = settings
        self.name = f"endpoint-{settings.port}"
        self._server: _Server | None = None

    @property
    def address(self) -> tuple[str, int] | None:
        """Where it listens, if it does."""
        return self._server.server_address[:2] if self._server else None  # type: ignore[return-value]

    def publish(self, gather: Gather) -> None:
        """Listen, unless that is done already. OSError: the port is somebody else's, for siblings take turns."""
        if self._server is None:
            try:
                self._server = _Server(self._settings, gather)
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
                taken = f"another program has port {self._settings.port}; set OTEL_EXPORTER_PROMETHEUS_PORT to a free one"
                raise OSError(error.errno, taken) from error
            # 0.1: closing waits for the next look, and a program's end must not
            threading.Thread(target=self._server.serve_forever, args=(0.1,), name="ckpt-observe-endpoint", daemon=True).start()

    def close(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.shutdown()
            server.server_close()

    def forget(self) -> None:
        """In a forked child: a copy of the socket would keep the port although nobody answers."""
        server, self._server = self._server, None
        if server is not None:
            server.socket.close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = sys.platform != "win32"

    def __init__(self, settings: Prometheus, gather: Gather) -> None:
        self.settings, self.gather = settings, gather
        self.address_family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
        super().__init__((settings.host, settings.port), _Scrape)
        if settings.tls:
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            context.load_cert_chain(settings.tls)
            # the handshake is made by the thread of the connection, so that a silent client holds up nobody else
            self.socket = context.wrap_socket(self.socket, server_side=True, do_handshake_on_connect=False)

    def server_bind(self) -> None:
        """Without asking the name service who we are, which HTTPServer does and which may take seconds."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = self.settings.host, self.server_address[1]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away, or speaks no TLS, is not our fault."""


class _Scrape(BaseHTTPRequestHandler):
    server: _Server
    timeout = SLOWEST
    server_version, sys_version = "ckpt_observe", ""

    def do_GET(self) -> None:
        if not self._host_is_ours():
            self._answer(421, b"this is not the host you asked for\n")
        elif not self._allowed():
            self._answer(401, b"a token is needed\n", ("WWW-Authenticate", "Bearer"))
        elif self.path.partition("?")[0] != "/metrics":
            self._answer(404, b"see /metrics\n")
        else:
            self._metrics()

    def _metrics(self) -> None:
        try:
            _, snapshot = self.server.gather()
        except Exception as error:  # locked for long, or damaged: the scrape fails, and so `up` shows it
            self._answer(503, f"the metrics cannot be read now: {type(error).__name__}\n".encode())
            return
        content_type = negotiated(self.headers.get("Accept", ""))
        self._answer(200, render(snapshot, content_type), ("Content-Type", content_type))

    def _host_is_ours(self) -> bool:
        """A page in a browser may not reach us through a name of its own that points here (DNS rebinding)."""
        settings = self.server.settings
        if settings.token or settings.tls:
            return True
        host = self.headers.get("Host", "").rpartition(":")[0] or self.headers.get("Host", "")
        return host == settings.host or is_loopback(host.strip("[]"))

    def _allowed(self) -> bool:
        token = self.server.settings.token
        given = self.headers.get("Authorization", "").encode("utf-8", "replace")
        return not token or hmac.compare_digest(given, f"Bearer {token}".encode())

    def _answer(self, status: int, body: bytes, *headers: tuple[str, str]) -> None:
        self.send_response(status)
        for name, value in (("Content-Length", str(len(body))), *headers):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """A scrape is not news; and a request may carry what belongs into no log."""
