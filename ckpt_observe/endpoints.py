"""The servers of the OTLP and Laminar exporters, read from OpenTelemetry's and Laminar's own variables.

Follows https://opentelemetry.io/docs/specs/otel/protocol/exporter/: a `_TRACES_` variable takes precedence over the general one. Over
HTTP, `/v1/traces` is appended to the general endpoint, and nothing to `_TRACES_ENDPOINT`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import SplitResult, unquote, urlsplit

from ckpt_observe import environment
from ckpt_observe.errors import ConfigError
from ckpt_observe.support import secrets
from ckpt_observe.support.parsing import parse_number, quote, split_url

HTTP: Final = "http/protobuf"
GRPC: Final = "grpc"
TRACES_PATH: Final = "/v1/traces"
MLFLOW_EXPERIMENT: Final = "x-mlflow-experiment-id"
"""Header without which MLflow accepts no spans."""
PHOENIX_PROJECT: Final = "openinference.project.name"
"""Resource attribute: the project of Phoenix that the spans belong to. A header takes precedence."""
_PHOENIX_HEADER: Final = "x-project-name"
_PHOENIX_PORT: Final = 6006
"""Port on which Phoenix accepts OTLP over HTTP by default."""
_LAMINAR: Final = "https://api.lmnr.ai"

_MAX_SECONDS: Final = 300.0
"""A timeout above this is in milliseconds, as specified; up to this, in seconds, as in OpenTelemetry's Python SDK: nobody wants 0.3 s."""
_MAX_TIMEOUT: Final = 3600.0
"""Longest timeout in seconds. Longer ones are reduced to it: a socket cannot wait for 300 years."""
_MAX_QUOTE: Final = 200
"""Characters of a server's response that are logged."""
_MIN_SECRET: Final = 8
"""Characters that a secret value of a header has at least: replacing a value such as `0` would garble every number in a response."""
_HEADER_NAME: Final = re.compile(r"[0-9a-z_.-]+")
"""The characters that gRPC allows. HTTP allows a few more."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A server that an exporter sends to. Its repr contains no secret: no headers, and no credentials or query of the URL."""

    url: str = field(repr=False)
    protocol: str = HTTP
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    timeout: float = 10.0
    """Seconds for one request, including the response."""
    gzip: bool = False
    certificate: str | None = None
    """File with the certificate authorities to trust. None: the system's."""
    client_certificate: str | None = None
    client_key: str | None = field(default=None, repr=False)
    shown: str = field(init=False)
    """The URL without secrets, for logs."""
    variable: str = field(default="endpoint", repr=False, compare=False)
    """The setting that the URL came from, for errors."""

    def __post_init__(self) -> None:
        if split_url(self.url) is None:
            shown = quote(without_credentials(self.url))
            raise ConfigError(f"{self.variable}: {shown} is not an http:// or https:// URL; write it like http://localhost:4318")
        object.__setattr__(self, "shown", without_credentials(self.url))

    @property
    def fingerprint(self) -> str:
        """A hash of URL and headers, keys included. It identifies the server without revealing them."""
        import hashlib  # noqa: PLC0415 - loads OpenSSL, which takes 5 ms; only needed with a server

        return hashlib.sha256(repr((self.url, sorted(self.headers.items()))).encode()).hexdigest()[:12]

    def quote(self, text: str) -> str:
        """Return `: ` and a server's response, for a log line: short, on one line, and without our keys, which servers may send back.

        An empty string if the response is empty or not printable.
        """
        for name, value in self.headers.items():
            for secret in (value, value.rpartition(" ")[2]):
                if len(secret) >= _MIN_SECRET and (secrets.SECRET_NAME.search(name) or secrets.looks_random(secret)):
                    text = text.replace(secret, secrets.REDACTED)
        text = secrets.redact(" ".join(text.split()))[:_MAX_QUOTE]
        return f": {text}" if text and text.isprintable() else ""


def otlp(environ: Mapping[str, str], signal: str = "TRACES") -> Endpoint:
    """Return OpenTelemetry's endpoint for a signal (`TRACES` or `METRICS`). The default is HTTP/protobuf to localhost."""
    get = _getter(environ, signal)
    protocol = get("PROTOCOL") or HTTP
    if protocol not in (HTTP, GRPC):
        raise ConfigError(f"{environment.OTLP}PROTOCOL: {quote(protocol)} is not supported; use one of: {GRPC}, {HTTP}")
    insecure = (get("INSECURE") or "false").lower() == "true"
    compression = get("COMPRESSION") or "none"
    if compression not in ("gzip", "none"):
        raise ConfigError(f"{environment.OTLP}COMPRESSION: {quote(compression)} is not supported; use one of: gzip, none")
    variable, url = _otlp_url(environ, signal, protocol, "http" if insecure else "https")
    return Endpoint(
        url=url,
        variable=variable,
        protocol=protocol,
        headers=_headers(get("HEADERS")),
        timeout=timeout(get("TIMEOUT")),
        gzip=compression == "gzip",
        certificate=get("CERTIFICATE") or None,
        client_certificate=get("CLIENT_CERTIFICATE") or None,
        client_key=get("CLIENT_KEY") or None,
    )


def reads_openinference(endpoint: Endpoint | None, resource: Mapping[str, str]) -> bool:
    """Return whether the OTLP server is Phoenix or MLflow, as far as the settings tell: they are told a project or an experiment."""
    return PHOENIX_PROJECT in resource or (endpoint is not None and (MLFLOW_EXPERIMENT in endpoint.headers or is_phoenix(endpoint)))


def is_phoenix(endpoint: Endpoint) -> bool:
    """Return whether an endpoint is that of Phoenix over HTTP, by its port or the header with a project."""
    return urlsplit(endpoint.url).port == _PHOENIX_PORT or _PHOENIX_HEADER in endpoint.headers


def otlp_metrics(environ: Mapping[str, str]) -> Endpoint:
    """Return the endpoint for metrics, always over HTTP. Raise ConfigError if it is Laminar, which drops metrics."""
    endpoint = otlp({**environ, f"{environment.OTLP}METRICS_PROTOCOL": HTTP}, "METRICS")
    laminar_url, metrics_url = split_url(_laminar_base(environ)), split_url(endpoint.url)
    if laminar_url and metrics_url and _host_and_port(metrics_url) == _host_and_port(laminar_url):
        raise ConfigError(
            f"{environment.OTLP_METRICS_ENDPOINT}: '{endpoint.shown}' is Laminar, which drops metrics; set the URL of an OTel Collector"
        )
    return endpoint


def _host_and_port(url: SplitResult) -> tuple[str | None, int]:
    return url.hostname, url.port or (443 if url.scheme == "https" else 80)


def laminar(environ: Mapping[str, str]) -> Endpoint:
    """Return Laminar's endpoint: its cloud, or the self-hosted server of LMNR_BASE_URL. Raise ConfigError if there is no key."""
    key = environ.get(environment.LMNR_KEY, "").strip()
    if not key:
        raise ConfigError(f"{environment.LMNR_KEY} is not set; the exporter laminar needs the API key of your project")
    headers = _check({"authorization": f"Bearer {key}"}, environment.LMNR_KEY)
    return Endpoint(url=_laminar_base(environ) + TRACES_PATH, variable=environment.LMNR_BASE_URL, headers=headers, gzip=True)


def _laminar_base(environ: Mapping[str, str]) -> str:
    base = (environ.get(environment.LMNR_BASE_URL) or _LAMINAR).rstrip("/")
    base = base if "://" in base else f"https://{base}"
    if port := environ.get(environment.LMNR_HTTP_PORT, ""):
        number = parse_number(environment.LMNR_HTTP_PORT, port, "a port number; use 1 to 65535", largest=65535)
        base = f"{re.sub(r':[0-9]+$', '', base)}:{number}"
    return base


def _getter(environ: Mapping[str, str], signal: str) -> Callable[[str], str]:
    """Return a function that reads a variable of the signal, else the general one, else returns an empty string."""
    return lambda name: environ.get(f"{environment.OTLP}{signal}_{name}") or environ.get(environment.OTLP + name) or ""


def _otlp_url(environ: Mapping[str, str], signal: str, protocol: str, scheme: str) -> tuple[str, str]:
    """Return the variable that sets the URL, and the URL."""
    specific, general = f"{environment.OTLP}{signal}_ENDPOINT", f"{environment.OTLP}ENDPOINT"
    variable = specific if environ.get(specific) else general
    url = environ.get(variable) or f"http://localhost:{4317 if protocol == GRPC else 4318}"
    if protocol == GRPC:
        return variable, url if "://" in url else f"{scheme}://{url}"  # `collector:4317` is common for gRPC; then INSECURE decides
    if "://" not in url:
        raise ConfigError(f"{variable}: {quote(without_credentials(url))} is not a URL; start it with http:// or https://")
    return variable, url if variable == specific else url.rstrip("/") + f"/v1/{signal.lower()}"


def _headers(text: str) -> dict[str, str]:
    """Parse `key=value,key=value`. Values are percent-encoded as in W3C baggage."""
    pairs = {}
    for number, pair in enumerate(filter(None, (part.strip() for part in text.split(","))), 1):
        name, equals, value = pair.partition("=")
        if not equals:
            raise ConfigError(f"{environment.OTLP}HEADERS: entry {number} is not of the form key=value")  # not shown: it may be a secret
        pairs[unquote(name.strip()).lower()] = unquote(value.strip())
    return _check(pairs, f"{environment.OTLP}HEADERS")


def _check(headers: dict[str, str], variable: str) -> dict[str, str]:
    """Return the headers. Raise ConfigError if HTTP cannot send one: the HTTP library would print its value, which may be secret."""
    for name, value in headers.items():
        if not _HEADER_NAME.fullmatch(name) or not value.isprintable() or not value.isascii():
            raise ConfigError(
                f"{variable}: the header '{name if _HEADER_NAME.fullmatch(name) else '?'}' has a name or value with "
                "characters that are not allowed in a header"
            )
    return headers


def timeout(text: str) -> float:
    """Return the seconds for a request, from the value of `OTEL_EXPORTER_OTLP_TIMEOUT`."""
    try:
        value = float(text or "10000")
    except ValueError:
        raise ConfigError(f"{environment.OTLP}TIMEOUT: {quote(text)} is not a positive number of milliseconds") from None
    if not 0 < value < float("inf"):
        raise ConfigError(f"{environment.OTLP}TIMEOUT: {quote(text)} is not a positive number of milliseconds")
    return min(value if value <= _MAX_SECONDS else value / 1000, _MAX_TIMEOUT)


def without_credentials(url: str) -> str:
    """Return a URL without user, password and query, for logs."""
    return re.sub(r"(^|//)[^/]*@", r"\1", url.partition("?")[0])
