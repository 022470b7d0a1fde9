"""The settings of this process: arguments override environment variables, which override defaults. Each value knows its origin."""

from __future__ import annotations

import ipaddress
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

from ckpt_observe import endpoints, environment, samplers
from ckpt_observe.endpoints import Endpoint
from ckpt_observe.errors import ConfigError
from ckpt_observe.exporter import ENTRY_POINT_GROUP
from ckpt_observe.samplers import Sampler
from ckpt_observe.support import entry_points
from ckpt_observe.support.logs import WarningLog

EXPORTERS: Final = ("otlp", "laminar", "provider", "prometheus", "local", "console")
DELIVERY_MODES: Final = ("in-process", "companion", "daemon")
SERVICE_ATTRIBUTE: Final = "service.name"
DISK_LIMIT: Final = 1 << 30
"""Bytes that ended processes may leave in a state directory by default."""


@dataclass(frozen=True, slots=True)
class Prometheus:
    """How the exporter `prometheus` publishes metrics: `/metrics` on host and port, a textfile, or a Pushgateway."""

    host: str = "127.0.0.1"
    port: int | None = 9464
    """None: no endpoint. For programs that serve the metrics themselves, with `PrometheusCollector`."""
    token: str = field(default="", repr=False)
    tls: str = ""
    textfile: str = ""
    pushgateway: str = ""


_PROMETHEUS: Final = Prometheus()
_SAMPLER: Final = Sampler()


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of one process, created by `read`. Immutable."""

    exporters: tuple[str, ...]
    dir: Path
    pages_dir: Path | None
    """None: chosen when the journal is created."""
    delivery: str
    enabled: bool
    service: str
    resource: dict[str, str]
    disabled_instrumentations: frozenset[str]
    traceparent: str
    sampler: Sampler = _SAMPLER
    disk_limit: int = DISK_LIMIT
    """Bytes that ended processes may leave in the state directory."""
    genai_events: bool = False
    endpoints: dict[str, Endpoint] = field(default_factory=dict)
    """Servers of the OTLP and Laminar exporters, by exporter."""
    prometheus: Prometheus = _PROMETHEUS
    origin: dict[str, str] = field(default_factory=dict)
    """Where each value came from: `argument`, the name of the variable, or `default`."""


def read(environ: Mapping[str, str] | None = None, **arguments: Any) -> Settings:
    """Read the settings from keyword arguments of `observe()` (None: not set) and the environment. ConfigError if a value is invalid."""
    source = _Source(os.environ if environ is None else environ, arguments)
    enabled = _flag(source, "enabled", environment.ENABLED, default=True)
    if _flag(source, "", environment.SDK_DISABLED, default=False):
        enabled = False
        source.origin["enabled"] = environment.SDK_DISABLED
    pages_dir = source.get("pages_dir", environment.PAGES_DIR, None)
    resource = _resource(source.get("", environment.RESOURCE_ATTRIBUTES, ""))
    exporters = _exporters(source.get("exporters", environment.EXPORTERS, _default_exporters(source.environ)))
    return Settings(
        exporters=exporters,
        dir=Path(source.get("dir", environment.DIR, None) or _state_directory(source.environ)).expanduser().absolute(),
        pages_dir=Path(pages_dir).expanduser().absolute() if pages_dir else None,
        delivery=_delivery(source),
        enabled=enabled,
        service=_service(source, resource),
        resource=resource,
        disabled_instrumentations=frozenset(_names(source.get("", environment.DISABLED_INSTRUMENTATIONS, ""))),
        traceparent=str(source.get("", environment.TRACEPARENT, "")),
        sampler=_sampler(source),
        disk_limit=_mebibytes(environment.DISK_LIMIT, source.get("", environment.DISK_LIMIT, DISK_LIMIT >> 20)),
        genai_events=_flag(source, "", environment.GENAI_EVENTS, default=False),
        endpoints={name: read_endpoint(source.environ) for name, read_endpoint in _ENDPOINTS.items() if name in exporters},
        prometheus=_prometheus(source) if "prometheus" in exporters else _PROMETHEUS,
        origin=source.origin,
    )


_ENDPOINTS: Final = {"otlp": endpoints.otlp, "laminar": endpoints.laminar}


class _Source:
    """Looks up values in arguments, environment and defaults, and remembers which it was."""

    def __init__(self, environ: Mapping[str, str], arguments: dict[str, Any]) -> None:
        self.environ, self.arguments = environ, arguments
        self.origin: dict[str, str] = {}

    def get(self, argument: str, variable: str, default: Any) -> Any:
        """Return a value. `argument` is empty if `observe()` has no such argument."""
        key = argument or variable
        if self.arguments.get(argument) is not None:
            self.origin[key] = "argument"
            return self.arguments[argument]
        for name in (variable, environment.FORMER_NAMES.get(variable, "")):
            if self.environ.get(name):  # as in OpenTelemetry, an empty variable counts as unset
                self.origin[key] = name
                return _current_value(name, variable, self.environ[name])
        self.origin[key] = "default"
        return default


def _names(value: str | Sequence[str]) -> tuple[str, ...]:
    parts = value.split(",") if isinstance(value, str) else value
    return tuple(dict.fromkeys(part.strip() for part in parts if part.strip()))


def _exporters(value: str | Sequence[str]) -> tuple[str, ...]:
    names = _names(value)
    if names == ("none",):
        return ()
    for name in names:
        if name not in EXPORTERS:
            _one_of(environment.EXPORTERS, name, (*EXPORTERS, *entry_points.names(ENTRY_POINT_GROUP), "none"))
    if "none" in names:
        raise ConfigError(f"{environment.EXPORTERS}: 'none' cannot be combined with other exporters ({', '.join(names)})")
    return names


def _default_exporters(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the backends that the environment configures, and the local store. `wiring` adds the TracerProvider."""
    has_otlp = any(environ.get(f"{environment.OTLP}{name}") for name in ("ENDPOINT", "TRACES_ENDPOINT"))
    is_configured = {"otlp": has_otlp, "laminar": bool(environ.get(environment.LMNR_KEY)), "local": True}
    return tuple(name for name in is_configured if is_configured[name])


def _delivery(source: _Source) -> str:
    return _one_of(environment.DELIVERY, source.get("delivery", environment.DELIVERY, "in-process"), DELIVERY_MODES)


_warnings: Final = WarningLog()


def _current_value(name: str, variable: str, value: str) -> str:
    """Return the value of a variable, as it is called today. Warn once if the variable, its value or both were renamed."""
    current = environment.FORMER_VALUES.get(variable, {}).get(value, value)
    if current != value:
        _warn_renamed(f"{name}={value}", f"{variable}={current}")
    elif name != variable:
        _warn_renamed(name, variable)
    return current


def _warn_renamed(former: str, current: str) -> None:
    _warnings.warn_once(former, "%s was renamed. It still works; set %s instead.", former, current)


def _one_of(variable: str, value: str, allowed: Sequence[str]) -> str:
    if value not in allowed:
        raise ConfigError(f"{variable}: '{value}' is not valid; use one of: {', '.join(allowed)}")
    return value


def _mebibytes(variable: str, value: Any) -> int:
    if not str(value).isdecimal() or not int(value):
        raise ConfigError(f"{variable}: '{value}' is not a number of MiB; use a positive integer such as {DISK_LIMIT >> 20}")
    return int(value) << 20


def _flag(source: _Source, argument: str, variable: str, *, default: bool) -> bool:
    value = source.get(argument, variable, default)
    if isinstance(value, bool):
        return value
    word = str(value).strip().lower()
    if word not in ("true", "false", "1", "0", "yes", "no", "on", "off"):
        raise ConfigError(f"{variable}: '{value}' is neither true nor false; use true or false")
    return word in ("true", "1", "yes", "on")


def _resource(text: str) -> dict[str, str]:
    """Parse OpenTelemetry's `key=value,key=value`. ConfigError for a pair without `=`, as in the specification."""
    pairs = {}
    for pair in _names(text):
        key, equals, value = pair.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"{environment.RESOURCE_ATTRIBUTES}: '{pair}' is not of the form key=value")
        pairs[key.strip()] = unquote(value.strip())
    return pairs


def _service(source: _Source, resource: dict[str, str]) -> str:
    """Return the service name in OpenTelemetry's order: its variable, then `service.name`, which is removed from the attributes."""
    attribute = resource.pop(SERVICE_ATTRIBUTE, "")
    name = source.get("service", environment.SERVICE_NAME, None)
    if name is None and attribute:
        source.origin["service"] = environment.RESOURCE_ATTRIBUTES
    return str(name or attribute or _program_name())


def _sampler(source: _Source) -> Sampler:
    source.get("", environment.TRACES_SAMPLER, None)  # remembers the origin
    return samplers.read(source.environ)


def _prometheus(source: _Source) -> Prometheus:
    """Read the Prometheus settings. Metrics reveal what runs on the machine, so other machines need a token or TLS to read them."""
    port = str(source.get("", environment.PROMETHEUS_PORT, _PROMETHEUS.port))
    if port != "none" and (not port.isdecimal() or int(port) > 65535):
        raise ConfigError(f"{environment.PROMETHEUS_PORT}: '{port}' is not a port number; use 0 to 65535, or none")
    prometheus = Prometheus(
        host=source.get("", environment.PROMETHEUS_HOST, _PROMETHEUS.host),
        port=None if port == "none" else int(port),
        token=source.get("", environment.METRICS_TOKEN, ""),
        tls=source.get("", environment.METRICS_TLS, ""),
        textfile=source.get("", environment.TEXTFILE, ""),
        pushgateway=source.get("", environment.PUSHGATEWAY, ""),
    )
    if not (prometheus.token or prometheus.tls or is_loopback(prometheus.host)):
        remedy = f"set {environment.METRICS_TOKEN} or {environment.METRICS_TLS}, or use 127.0.0.1"
        raise ConfigError(f"{environment.PROMETHEUS_HOST}: '{prometheus.host}' is reachable from other machines; {remedy}")
    if prometheus.tls and not Path(prometheus.tls).is_file():
        raise ConfigError(
            f"{environment.METRICS_TLS}: the file '{prometheus.tls}' does not exist; set it to a PEM file with certificate and key"
        )
    if prometheus.textfile and not prometheus.textfile.endswith(".prom"):
        raise ConfigError(
            f"{environment.TEXTFILE}: '{prometheus.textfile}' does not end in .prom, so node_exporter would not read it; rename it"
        )
    if prometheus.pushgateway and not prometheus.pushgateway.startswith(("http://", "https://")):
        raise ConfigError(
            f"{environment.PUSHGATEWAY}: '{endpoints.without_credentials(prometheus.pushgateway)}' is not a URL; start it with http:// or https://"
        )
    return prometheus


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach the address."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _state_directory(environ: Mapping[str, str]) -> Path:
    if sys.platform == "win32":
        base = environ.get("LOCALAPPDATA") or str(Path.home() / "AppData" / "Local")
    else:
        base = environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(base) / "ckpt_observe"


def _program_name() -> str:
    """Return the name of the program. It tells programs apart, unlike OpenTelemetry's `unknown_service`."""
    name = Path(sys.argv[0]).name if sys.argv and sys.argv[0] not in ("", "-c", "-m") else ""
    return name or "python"
