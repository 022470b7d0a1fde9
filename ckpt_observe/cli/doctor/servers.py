"""Each server that spans and metrics are sent to, tried for real: an export request without spans, with its headers and TLS.

It goes the way that spans go, so what is found here is what they would meet. Where there is no answer that explains itself, the server
is looked at: see `listener`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from email.utils import parsedate_to_datetime
from typing import Final
from urllib.parse import urlsplit

from ckpt_observe import endpoints, environment
from ckpt_observe.cli.doctor import listener
from ckpt_observe.cli.doctor.finding import NOTE, OK, PROBLEM, Finding
from ckpt_observe.config import Settings
from ckpt_observe.endpoints import GRPC, HTTP, Endpoint
from ckpt_observe.errors import ConfigError, ExporterError
from ckpt_observe.exporters.otlp import Transport, open_transport
from ckpt_observe.exporters.otlp_metrics import OtlpMetricsPublisher
from ckpt_observe.support.http_client import untraced

PATIENCE: Final = 5.0
"""Seconds for one server at most."""
CLOCK_TOLERANCE: Final = 5.0
"""Seconds: a `Date` header has whole ones, and the answer took its time."""

_KEYS: Final = {
    "otlp": f"{environment.OTLP}HEADERS",
    "laminar": environment.LMNR_KEY,
    "otlp metrics": f"{environment.OTLP}METRICS_HEADERS",
}
"""Where the key of each is set."""
_KEY_REFUSED: Final = "the key is missing or refused: check {key}"
_NOT_OTLP: Final = "something answers, but takes no OTLP here: check port and path"
_BUSY: Final = "it is there, and busy: spans are sent again later"
_ANSWERS: Final[Mapping[int | str, str]] = {
    **dict.fromkeys((401, 403, "UNAUTHENTICATED", "PERMISSION_DENIED"), _KEY_REFUSED),
    **dict.fromkeys((400, 404, 405, 415, 501, "UNIMPLEMENTED", "NOT_FOUND"), _NOT_OTLP),
    **dict.fromkeys((301, 302, 303, 307, 308), "it redirects, which is not followed: set the address that it names"),
    407: "the proxy wants to know who asks: check HTTPS_PROXY",
    **dict.fromkeys((408, 429, 503, "RESOURCE_EXHAUSTED"), _BUSY),
}
"""What each status means here."""
_TLS_ADVICE: Final = "and our https does not suit it: check OTEL_EXPORTER_OTLP_CERTIFICATE, and the client's where it wants one"


def tried(settings: Settings) -> Iterator[Finding]:
    found = dict(settings.endpoints)
    if "prometheus" in settings.exporters and os.environ.get(environment.OTLP_METRICS_ENDPOINT):
        try:
            OtlpMetricsPublisher(os.environ, {})  # as a program would make it: it alone reads the interval
            found["otlp metrics"] = replace(endpoints.otlp(os.environ, "METRICS"), protocol=HTTP)
        except ConfigError as error:
            yield Finding(PROBLEM, "server otlp metrics", str(error))
    for name, endpoint in found.items():
        yield from _server(name, replace(endpoint, timeout=min(endpoint.timeout, PATIENCE)))


def _server(name: str, endpoint: Endpoint) -> Iterator[Finding]:
    subject, where = f"server {name}", f"{endpoint.shown} by {endpoint.protocol}"
    try:
        way = open_transport(endpoint)
    except ExporterError as error:
        yield Finding(PROBLEM, subject, str(error))
        return
    try:
        with untraced():
            way.send(b"")
        page = way.headers.get("content-type", "").startswith("text/html")
        taken = f"{where} takes {'metrics' if name == 'otlp metrics' else 'spans'}"
        yield Finding(PROBLEM, subject, f"{where}: {_NOT_OTLP} (a web page)") if page else Finding(OK, subject, taken)
    except ExporterError as error:
        advice = _ANSWERS[way.status].format(key=_KEYS[name]) if way.status in _ANSWERS else _looked_at(endpoint)
        yield Finding(NOTE if advice == _BUSY else PROBLEM, subject, f"{error}; {advice}")
    finally:
        way.close()
    yield from _clock(endpoint, way)


def _looked_at(endpoint: Endpoint) -> str:
    """What is there, and what would suit it."""
    parts = urlsplit(endpoint.url)
    secure, grpc = parts.scheme == "https", endpoint.protocol == GRPC
    port = parts.port or (4317 if grpc else 443 if secure else 80)
    seen = listener.look(parts.hostname or "", port, endpoint.timeout)
    if seen == listener.TLS:
        return f"{seen}, {_TLS_ADVICE if secure else 'so the address begins with https://'}"
    if secure and seen in (listener.HTTP, listener.HTTP2):
        return f"{seen}, so the address begins with http://"
    if seen == listener.HTTP2 and not grpc:
        return f"{seen}: set {environment.OTLP}PROTOCOL=grpc, or take its port for HTTP (4318)"
    if seen == listener.HTTP and grpc:
        return f"{seen}: set {environment.OTLP}PROTOCOL={HTTP}, or take its port for gRPC (4317)"
    return seen


def _clock(endpoint: Endpoint, way: Transport) -> Iterator[Finding]:
    """Spans bear our time: a clock that is wrong puts them where nobody looks."""
    try:
        theirs = parsedate_to_datetime(way.headers.get("date", "")).timestamp()
    except (TypeError, ValueError):  # no answer, gRPC, or none that tells the time
        return
    ahead = time.time() - theirs
    if abs(ahead) <= CLOCK_TOLERANCE:
        yield Finding(OK, "clock", f"agrees with {endpoint.shown}")
    else:
        way_off = f"{abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'} {endpoint.shown}"
        yield Finding(PROBLEM, "clock", f"{way_off}; one of the two is wrong")
