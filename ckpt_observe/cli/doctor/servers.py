"""Checks of the servers that receive spans and metrics: each one gets an export request without spans, with its headers and TLS.

The request is sent in the same way as spans, so it meets the same errors. If the error does not explain itself, `identify_listener` finds
out what listens at the address; the messages of client libraries depend on their version.
"""

from __future__ import annotations

import os
import socket
import ssl
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from importlib.util import find_spec
from typing import Final
from urllib.parse import quote, urlsplit

from ckpt_observe import environment
from ckpt_observe.cli.doctor import NOTE, OK, PROBLEM, Diagnosis
from ckpt_observe.config import Settings
from ckpt_observe.endpoints import GRPC, HTTP, MLFLOW_EXPERIMENT, TRACES_PATH, Endpoint
from ckpt_observe.errors import ExporterError, ExporterRefusedError, ExporterSetupError
from ckpt_observe.exporters.laminar import QUERY_PATH
from ckpt_observe.exporters.otlp import Transport, open_transport
from ckpt_observe.exporters.otlp_encoding import EMPTY_REQUEST
from ckpt_observe.exporters.otlp_http import HttpTransport
from ckpt_observe.support.answers import parse_http_date
from ckpt_observe.support.http_client import untraced

MAX_SECONDS: Final = 5.0
"""Maximum timeout of a request to a server."""
CLOCK_TOLERANCE: Final = 5.0
"""Seconds. A `Date` header has whole seconds, and the answer takes some time."""

_KEY_SETTINGS: Final = {
    "otlp": f"{environment.OTLP}HEADERS",
    "laminar": environment.LMNR_KEY,
    "otlp metrics": f"{environment.OTLP}METRICS_HEADERS",
}
"""The setting that holds the API key for each server."""
_KEY_REFUSED: Final = "the key is missing or was rejected: check {key}"
_NOT_OTLP: Final = "the server does not accept OTLP here: check port and path"
_NO_EXPERIMENT: Final = (
    f"MLflow needs the id of an experiment: add {MLFLOW_EXPERIMENT}=ID to {environment.OTLP}HEADERS (its default experiment is 0)"
)
_EXPERIMENT_PATH: Final = "/api/2.0/mlflow/experiments/get?experiment_id="
_BUSY: Final = "the server is busy; spans will be retried"
_ADVICE: Final[Mapping[int | str, str]] = {
    **dict.fromkeys((401, 403, "UNAUTHENTICATED", "PERMISSION_DENIED"), _KEY_REFUSED),
    **dict.fromkeys((400, 404, 405, 415, 501, "UNIMPLEMENTED", "NOT_FOUND"), _NOT_OTLP),
    **dict.fromkeys((301, 302, 303, 307, 308), "redirects are not followed: set the URL that it redirects to"),
    407: "the proxy requires authentication: check HTTPS_PROXY",
    **dict.fromkeys((408, 429, 503, "RESOURCE_EXHAUSTED"), _BUSY),
}
"""What to do about each status."""
_TLS_ADVICE: Final = (
    "but the TLS handshake failed: check OTEL_EXPORTER_OTLP_CERTIFICATE, and the client certificate if the server requires one"
)

NOBODY: Final = "nothing listens on this port"
UNRESOLVED: Final = "the host name cannot be resolved"
UNREACHABLE: Final = "the host cannot be reached"
TLS_SERVER: Final = "the server uses TLS"
HTTP_SERVER: Final = "the server uses HTTP without TLS"
HTTP2_SERVER: Final = "the server uses HTTP/2 without TLS, as gRPC does"
SILENT_SERVER: Final = "the server accepts connections, but uses neither TLS nor HTTP"

_HTTP2_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
"""Starts an HTTP/2 connection, with an empty SETTINGS frame. The server answers with its own SETTINGS frame."""
_SETTINGS_FRAME: Final = 4


def check_servers(settings: Settings) -> Iterator[Diagnosis]:
    """Check the servers of all exporters, and the server for OTLP metrics if there is one."""
    servers = dict(settings.endpoints)
    if settings.prometheus.otlp is not None:
        servers["otlp metrics"] = settings.prometheus.otlp
    for name, endpoint in servers.items():
        what = "metrics" if name == "otlp metrics" else "spans"
        if name == "otlp" and settings.openinference:
            what += ", which are sent with kind, input and output of OpenInference"
        yield from _check_server(name, replace(endpoint, timeout=min(endpoint.timeout, MAX_SECONDS)), what)


def _check_server(name: str, endpoint: Endpoint, what: str) -> Iterator[Diagnosis]:
    """Check one server. `what` says what is sent to it."""
    subject, address = f"server {name}", f"{endpoint.shown} ({endpoint.protocol})"
    try:
        connection = open_transport(endpoint)
    except ExporterError as error:
        yield Diagnosis(PROBLEM, subject, str(error))
        return
    try:
        with untraced():
            connection.send(EMPTY_REQUEST)
        if connection.headers.get("content-type", "").startswith("text/html"):
            yield Diagnosis(PROBLEM, subject, f"{address}: {_NOT_OTLP} (it returned a web page)")
        else:
            yield Diagnosis(OK, subject, f"{address} accepts {what}")
            if name == "laminar" and isinstance(connection, HttpTransport):
                yield from _check_laminar(endpoint, connection)
            elif MLFLOW_EXPERIMENT in endpoint.headers and isinstance(connection, HttpTransport):
                yield from _check_mlflow(endpoint, connection)
    except ExporterError as error:
        status = connection.status
        if MLFLOW_EXPERIMENT in str(error):  # the answer names the header that is missing
            advice = _NO_EXPERIMENT
        else:
            advice = _ADVICE[status].format(key=_KEY_SETTINGS[name]) if status in _ADVICE else _diagnose(endpoint)
        yield Diagnosis(NOTE if advice == _BUSY else PROBLEM, subject, f"{error}; {advice}")
    finally:
        connection.close()
    yield from _check_clock(endpoint, connection)


def _check_laminar(endpoint: Endpoint, connection: HttpTransport) -> Iterator[Diagnosis]:
    """Report a key that can only write, and a port that Laminar's own SDK does not read."""
    try:
        with untraced():
            connection.post(endpoint.url.removesuffix(TRACES_PATH) + QUERY_PATH, b'{"query": "SELECT 1"}', "application/json")
    except (ExporterRefusedError, ExporterSetupError) as error:
        message = f"it can write, but not read ({error}): after a lost answer, spans may be stored twice; use a key that may read"
        yield Diagnosis(NOTE, "laminar key", message)
    except ExporterError as error:
        yield Diagnosis(NOTE, "laminar key", f"it is not known whether it can read: {error}")
    if urlsplit(os.environ.get(environment.LMNR_BASE_URL, "")).port is not None and find_spec("lmnr") is not None:
        message = (
            f"Laminar's SDK ignores the port in {environment.LMNR_BASE_URL}: pass http_port= and grpc_port= to Laminar.initialize(), "
            f"and set {environment.LMNR_HTTP_PORT}"
        )
        yield Diagnosis(NOTE, environment.LMNR_BASE_URL, message)


def _check_mlflow(endpoint: Endpoint, connection: HttpTransport) -> Iterator[Diagnosis]:
    """Report an experiment that does not exist: MLflow looks for it only if a request has spans."""
    experiment = endpoint.headers[MLFLOW_EXPERIMENT]
    try:
        with untraced():
            connection.get(endpoint.url.removesuffix(TRACES_PATH) + _EXPERIMENT_PATH + quote(experiment, safe=""))
        yield Diagnosis(OK, "mlflow experiment", f"{experiment} exists")
    except (ExporterRefusedError, ExporterSetupError) as error:
        remedy = f"create it, or set the id of another one as {MLFLOW_EXPERIMENT} in {environment.OTLP}HEADERS"
        yield Diagnosis(PROBLEM if connection.status in (400, 404) else NOTE, "mlflow experiment", f"{error}; {remedy}")
    except ExporterError as error:
        yield Diagnosis(NOTE, "mlflow experiment", f"it is not known whether {experiment} exists: {error}")


def _diagnose(endpoint: Endpoint) -> str:
    """Return what listens at the address of the endpoint, and which setting to change if that does not fit."""
    parts = urlsplit(endpoint.url)
    secure, grpc = parts.scheme == "https", endpoint.protocol == GRPC
    port = parts.port or (4317 if grpc else 443 if secure else 80)
    listener = identify_listener(parts.hostname or "", port, endpoint.timeout)
    if listener == TLS_SERVER:
        return f"{listener}, {_TLS_ADVICE}" if secure else f"{listener}: the URL must start with https://"
    if secure and listener in (HTTP_SERVER, HTTP2_SERVER):
        return f"{listener}: the URL must start with http://"
    if listener == HTTP2_SERVER and not grpc:
        return f"{listener}: set {environment.OTLP}PROTOCOL=grpc, or use its HTTP port (4318)"
    if listener == HTTP_SERVER and grpc:
        return f"{listener}: set {environment.OTLP}PROTOCOL={HTTP}, or use its gRPC port (4317)"
    return listener


def _check_clock(endpoint: Endpoint, connection: Transport) -> Iterator[Diagnosis]:
    """Compare the clocks: spans carry the time of this machine, and with a wrong clock nobody finds them."""
    try:
        server_time = parse_http_date(connection.headers.get("date", ""))
    except ValueError:  # no answer, gRPC, or no Date header
        return
    ahead = time.time() - server_time
    if abs(ahead) <= CLOCK_TOLERANCE:
        yield Diagnosis(OK, "clock", f"agrees with {endpoint.shown}")
    else:
        direction = "ahead of" if ahead > 0 else "behind"
        yield Diagnosis(PROBLEM, "clock", f"{abs(ahead):.0f} s {direction} {endpoint.shown}; one of the two clocks is wrong")


def identify_listener(host: str, port: int, timeout: float) -> str:
    """Return what listens at an address: one of the texts from NOBODY to SILENT_SERVER. Sends no more than a request without data."""
    try:
        socket.create_connection((host, port), timeout).close()
    except socket.gaierror:
        return UNRESOLVED
    except ConnectionRefusedError:
        return NOBODY
    except OSError:
        return UNREACHABLE
    if _accepts_tls(host, port, timeout):
        return TLS_SERVER
    if len(answer := _exchange(host, port, timeout, _HTTP2_PREFACE)) > 3 and answer[3] == _SETTINGS_FRAME:
        return HTTP2_SERVER
    if _exchange(host, port, timeout, f"GET / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode()).startswith(b"HTTP/"):
        return HTTP_SERVER
    return SILENT_SERVER


def _accepts_tls(host: str, port: int, timeout: float) -> bool:
    """Return whether a TLS handshake succeeds. Any certificate is accepted."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with suppress(OSError), socket.create_connection((host, port), timeout) as plain, context.wrap_socket(plain, server_hostname=host):
        return True
    return False


def _exchange(host: str, port: int, timeout: float, greeting: bytes) -> bytes:
    """Send some bytes and return the start of the answer, which is empty if there is none."""
    with suppress(OSError), socket.create_connection((host, port), timeout) as connection:
        connection.sendall(greeting)
        return connection.recv(64)
    return b""
