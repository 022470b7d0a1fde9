"""What listens at an address, found by speaking to it: what a client library says of the wrong kind of server depends on its version."""

from __future__ import annotations

import socket
import ssl
from contextlib import suppress
from typing import Final

NOBODY: Final = "nobody listens there"
UNRESOLVED: Final = "the name is not known"
UNREACHABLE: Final = "it cannot be reached"
TLS: Final = "it speaks TLS"
HTTP: Final = "it speaks HTTP without TLS"
HTTP2: Final = "it speaks HTTP/2 without TLS, as gRPC does"
SILENT: Final = "it takes connections, and speaks neither TLS nor HTTP"

_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
"""With which HTTP/2 begins, and an empty SETTINGS frame; the server answers with its own."""
_SETTINGS_FRAME: Final = 4


def look(host: str, port: int, timeout: float) -> str:
    """One of the above. Sends nothing but greetings."""
    try:
        socket.create_connection((host, port), timeout).close()
    except socket.gaierror:
        return UNRESOLVED
    except ConnectionRefusedError:
        return NOBODY
    except OSError:
        return UNREACHABLE
    if _speaks_tls(host, port, timeout):
        return TLS
    if len(answer := _said(host, port, timeout, _PREFACE)) > 3 and answer[3] == _SETTINGS_FRAME:
        return HTTP2
    if _said(host, port, timeout, f"GET / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode()).startswith(b"HTTP/"):
        return HTTP
    return SILENT


def _speaks_tls(host: str, port: int, timeout: float) -> bool:
    """Whose certificate it is does not matter here."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with suppress(OSError), socket.create_connection((host, port), timeout) as plain, context.wrap_socket(plain, server_hostname=host):
        return True
    return False


def _said(host: str, port: int, timeout: float, greeting: bytes) -> bytes:
    with suppress(OSError), socket.create_connection((host, port), timeout) as connection:
        connection.sendall(greeting)
        return connection.recv(64)
    return b""
