"""A small HTTP server on a thread of its own, for metrics and health checks. Answers GET only; never logs, never resolves host names."""

from __future__ import annotations

import socket
import socketserver
import ssl
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, NamedTuple, TypeAlias

SERVER_NAME: Final = "ckpt_observe"
"""In the `Server` header: tells our own endpoints from those of other programs."""
CLIENT_SECONDS: Final = 10.0
"""How long a client may take to send its request."""
_POLL_SECONDS: Final = 0.1
"""`close()` waits for the next poll, and the end of the host program waits for `close()`."""


class Request(NamedTuple):
    """A GET request."""

    path: str
    """Without the query."""
    headers: Mapping[str, str]
    """Case-insensitive."""


class Response(NamedTuple):
    """The answer to a request. The header Content-Length is added."""

    status: int
    body: bytes
    headers: Sequence[tuple[str, str]] = ()


Respond: TypeAlias = Callable[[Request], Response]


class HttpServer:
    """Serves from `start()` until `close()`. The constructor binds the address and raises OSError if that fails.

    `certificate` is a PEM file with certificate and key, for TLS. Each connection is served by its own thread.
    """

    def __init__(self, address: tuple[str, int], respond: Respond, *, thread_name: str, certificate: str | None = None) -> None:
        self._server = _Server(address, respond, certificate)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(_POLL_SECONDS,), name=thread_name, daemon=True)

    @property
    def address(self) -> tuple[str, int]:
        """Host and port, with the real port if port 0 was requested."""
        return self._server.server_address[:2]  # type: ignore[return-value]

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Stop listening. Requests that are being answered are not waited for."""
        if self._thread.ident is not None:  # else shutdown() would wait for a loop that never starts
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()

    def close_inherited(self) -> None:
        """In a forked child: close the copy of the socket, which would keep the port in use after the parent died."""
        self._server.socket.close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    # Lets the next process bind while old connections linger. On Windows it would let two processes listen.
    allow_reuse_address = sys.platform != "win32"

    def __init__(self, address: tuple[str, int], respond: Respond, certificate: str | None) -> None:
        self.respond = respond
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH) if certificate else None
        if context is not None and certificate:
            context.load_cert_chain(certificate)
        super().__init__(address, _Handler)
        if context is not None:
            # The thread of each connection makes the handshake, so that a silent client holds up nobody else.
            self.socket = context.wrap_socket(self.socket, server_side=True, do_handshake_on_connect=False)

    def server_bind(self) -> None:
        """Bind without HTTPServer's reverse lookup of the host name, which may take seconds."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore errors of one connection, such as a client that disconnects or speaks no TLS."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = CLIENT_SECONDS

    def version_string(self) -> str:
        return SERVER_NAME

    def do_GET(self) -> None:
        response = self.server.respond(Request(self.path.partition("?")[0], self.headers))  # type: ignore[arg-type]
        self.send_response(response.status)
        for name, value in (("Content-Length", str(len(response.body))), *response.headers):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(response.body)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: requests are routine, and may carry secrets."""
