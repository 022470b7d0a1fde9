"""Where the OTLP and Laminar exporters send, from OpenTelemetry's and Laminar's own variables.

https://opentelemetry.io/docs/specs/otel/protocol/exporter/ is the authority: a `_TRACES_` variable goes before the general one, and only
the general endpoint gets `/v1/traces` appended.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import unquote, urlsplit

from ckpt_observe import environment
from ckpt_observe.errors import ConfigError

HTTP: Final = "http/protobuf"
GRPC: Final = "grpc"
TRACES_PATH: Final = "/v1/traces"
_LAMINAR: Final = "https://api.lmnr.ai"

_SECONDS_UP_TO: Final = 300.0
"""The specification counts a timeout in milliseconds, OpenTelemetry's Python SDK in seconds; nobody means 0.3 s or less with the first."""
_MOST_QUOTED: Final = 200
_HEADER_NAME: Final = re.compile(r"[0-9a-z_.-]+")
"""What gRPC takes; HTTP would take a few signs more."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One server. Its repr shows no secret: no headers, no credentials of the URL, no query."""

    url: str = field(repr=False)
    protocol: str = HTTP
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    timeout: float = 10.0
    """Seconds for one request with its answer."""
    gzip: bool = False
    certificate: str | None = None
    """File of the authorities to trust; None: the system's."""
    client_certificate: str | None = None
    client_key: str | None = field(default=None, repr=False)
    shown: str = field(init=False)
    """The URL as it may be logged."""

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"endpoint '{without_credentials(self.url)}' is not a URL such as http://localhost:4318")
        object.__setattr__(self, "shown", without_credentials(self.url))

    @property
    def fingerprint(self) -> str:
        """Tells two destinations apart, by address and key, without telling either."""
        import hashlib  # noqa: PLC0415 - OpenSSL: 5 ms, for who has a server

        return hashlib.sha256(repr((self.url, sorted(self.headers.items()))).encode()).hexdigest()[:12]

    def quote(self, text: str) -> str:
        """What a server says, as it may be logged: short, on one line, and without a key that it sends back."""
        for value in self.headers.values():
            for secret in filter(None, (value, value.rpartition(" ")[2])):
                text = text.replace(secret, "[redacted]")
        text = " ".join(text.split())[:_MOST_QUOTED]
        return f": {text}" if text and text.isprintable() else ""


def otlp(environ: Mapping[str, str], signal: str = "TRACES") -> Endpoint:
    """OpenTelemetry's settings for a signal; HTTP/protobuf to localhost where there are none."""
    take = _own_first(environ, signal)
    protocol = take("PROTOCOL") or HTTP
    if protocol not in (HTTP, GRPC):
        raise ConfigError(f"{environment.OTLP}PROTOCOL: '{protocol}' is not known; use one of: {GRPC}, {HTTP}")
    insecure = (take("INSECURE") or "false").lower() == "true"
    compression = take("COMPRESSION") or "none"
    if compression not in ("gzip", "none"):
        raise ConfigError(f"{environment.OTLP}COMPRESSION: '{compression}' is not known; use one of: gzip, none")
    return Endpoint(
        url=_otlp_url(environ, signal, protocol, "http" if insecure else "https"),
        protocol=protocol,
        headers=_headers(take("HEADERS")),
        timeout=timeout(take("TIMEOUT")),
        gzip=compression == "gzip",
        certificate=take("CERTIFICATE") or None,
        client_certificate=take("CLIENT_CERTIFICATE") or None,
        client_key=take("CLIENT_KEY") or None,
    )


def otlp_metrics(environ: Mapping[str, str]) -> Endpoint:
    """Where metrics are pushed, over HTTP whatever carries the spans; never to Laminar, which would drop them."""
    endpoint = otlp({**environ, f"{environment.OTLP}METRICS_PROTOCOL": HTTP}, "METRICS")
    if urlsplit(endpoint.url).hostname == urlsplit(environ.get(environment.LMNR_BASE_URL) or _LAMINAR).hostname:
        raise ConfigError(f"{environment.OTLP_METRICS_ENDPOINT}: '{endpoint.shown}' is Laminar, which takes no metrics; name a collector")
    return endpoint


def laminar(environ: Mapping[str, str]) -> Endpoint:
    """Laminar's settings: its cloud, unless the base URL names another server."""
    key = environ.get(environment.LMNR_KEY, "").strip()
    if not key:
        raise ConfigError(f"{environment.LMNR_KEY}: the project's key is needed to send to Laminar")
    base = (environ.get(environment.LMNR_BASE_URL) or _LAMINAR).rstrip("/")
    base = base if "://" in base else f"https://{base}"
    port = environ.get(environment.LMNR_HTTP_PORT, "")
    if port and not port.isdigit():
        raise ConfigError(f"{environment.LMNR_HTTP_PORT}: '{port}' is not a port")
    if port:
        base = f"{re.sub(r':[0-9]+$', '', base)}:{port}"
    return Endpoint(url=base + TRACES_PATH, headers=_checked({"authorization": f"Bearer {key}"}, environment.LMNR_KEY), gzip=True)


def _own_first(environ: Mapping[str, str], signal: str) -> Callable[[str], str]:
    return lambda name: environ.get(f"{environment.OTLP}{signal}_{name}") or environ.get(environment.OTLP + name) or ""


def _otlp_url(environ: Mapping[str, str], signal: str, protocol: str, scheme: str) -> str:
    own, general = f"{environment.OTLP}{signal}_ENDPOINT", f"{environment.OTLP}ENDPOINT"
    variable = own if environ.get(own) else general
    url = environ.get(variable) or f"http://localhost:{4317 if protocol == GRPC else 4318}"
    if protocol == GRPC:
        return url if "://" in url else f"{scheme}://{url}"  # `collector:4317` is common for gRPC; the specification leaves TLS to INSECURE
    if "://" not in url:
        raise ConfigError(f"{variable}: '{without_credentials(url)}' is not a URL; write it as http://{without_credentials(url)}")
    return url if variable == own else url.rstrip("/") + f"/v1/{signal.lower()}"


def _headers(text: str) -> dict[str, str]:
    """`key=value,key=value`, values percent-encoded as in W3C baggage."""
    pairs = {}
    for number, pair in enumerate(filter(None, (part.strip() for part in text.split(","))), 1):
        name, equals, value = pair.partition("=")
        if not equals:
            raise ConfigError(f"{environment.OTLP}HEADERS: entry {number} is not key=value")  # the entry may be a secret
        pairs[unquote(name.strip()).lower()] = unquote(value.strip())
    return _checked(pairs, f"{environment.OTLP}HEADERS")


def _checked(headers: dict[str, str], variable: str) -> dict[str, str]:
    """What HTTP cannot send is said here, by name: the library that sends would print the value."""
    for name, value in headers.items():
        if not _HEADER_NAME.fullmatch(name) or not value.isprintable() or not value.isascii():
            raise ConfigError(f"{variable}: header '{name if _HEADER_NAME.fullmatch(name) else '?'}' holds characters that a header cannot")
    return headers


def timeout(text: str) -> float:
    """Seconds for a request, from what `OTEL_EXPORTER_OTLP_TIMEOUT` says."""
    try:
        value = float(text or "10000")
    except ValueError:
        raise ConfigError(f"{environment.OTLP}TIMEOUT: '{text}' is not a number of milliseconds") from None
    if not 0 < value < float("inf"):
        raise ConfigError(f"{environment.OTLP}TIMEOUT: '{text}' is not a time that can pass")
    return value if value <= _SECONDS_UP_TO else value / 1000


def without_credentials(url: str) -> str:
    """A URL as it may be shown: without user, password and query."""
    return re.sub(r"(^|//)[^/]*@", r"\1", url.partition("?")[0])
