"""Settings: read once, from arguments first, then the environment, then defaults; each value knows where it came from."""

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
from ckpt_observe.support.logs import logger

EXPORTERS: Final = ("otlp", "laminar", "provider", "prometheus", "local", "console")
DELIVERY_MODES: Final = ("in-process", "companion", "daemon")
SERVICE_ATTRIBUTE: Final = "service.name"
DISK_LIMIT: Final = 1 << 30


@dataclass(frozen=True, slots=True)
class Prometheus:
    """How metrics reach Prometheus."""

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
    """What this process is asked to do. Made by `read`, never changed."""

    exporters: tuple[str, ...]
    dir: Path
    pages_dir: Path | None
    """None: chosen when the journal is made."""
    delivery: str
    enabled: bool
    service: str
    resource: dict[str, str]
    disabled_instrumentations: frozenset[str]
    traceparent: str
    sampler: Sampler = _SAMPLER
    disk_limit: int = DISK_LIMIT
    """Bytes."""
    genai_events: bool = False
    endpoints: dict[str, Endpoint] = field(default_factory=dict)
    """The server of each exporter that has one."""
    prometheus: Prometheus = _PROMETHEUS
    origin: dict[str, str] = field(default_factory=dict)
    """Where each value came from: `argument`, the variable's name, or `default`."""


def read(environ: Mapping[str, str] | None = None, **arguments: Any) -> Settings:
    """Settings from keyword arguments (None = not given) and the environment. A wrong value is a ConfigError that says so."""
    source = _Source(os.environ if environ is None else environ, arguments)
    enabled = _flag(source, "enabled", environment.ENABLED, default=True)
    if _flag(source, "", environment.SDK_DISABLED, default=False):
        enabled = False
        source.origin["enabled"] = environment.SDK_DISABLED
    pages_dir = source.take("pages_dir", environment.PAGES_DIR, None)
    resource = _resource(source.take("", environment.RESOURCE_ATTRIBUTES, ""))
    exporters = _exporters(source.take("exporters", environment.EXPORTERS, _offered(source.environ)))
    return Settings(
        exporters=exporters,
        dir=Path(source.take("dir", environment.DIR, None) or _state_directory(source.environ)).expanduser().absolute(),
        pages_dir=Path(pages_dir).expanduser().absolute() if pages_dir else None,
        delivery=_delivery(source),
        enabled=enabled,
        service=_service(source, resource),
        resource=resource,
        disabled_instrumentations=frozenset(_names(source.take("", environment.DISABLED_INSTRUMENTATIONS, ""))),
        traceparent=str(source.take("", environment.TRACEPARENT, "")),
        sampler=_sampler(source),
        disk_limit=_mebibytes(environment.DISK_LIMIT, source.take("", environment.DISK_LIMIT, DISK_LIMIT >> 20)),
        genai_events=_flag(source, "", environment.GENAI_EVENTS, default=False),
        endpoints={name: read_endpoint(source.environ) for name, read_endpoint in _ENDPOINTS.items() if name in exporters},
        prometheus=_prometheus(source) if "prometheus" in exporters else _PROMETHEUS,
        origin=source.origin,
    )


_ENDPOINTS: Final = {"otlp": endpoints.otlp, "laminar": endpoints.laminar}


class _Source:
    """Arguments over environment over defaults, and a note of which it was."""

    def __init__(self, environ: Mapping[str, str], arguments: dict[str, Any]) -> None:
        self.environ, self.arguments = environ, arguments
        self.origin: dict[str, str] = {}

    def take(self, argument: str, variable: str, default: Any) -> Any:
        key = argument or variable
        if self.arguments.get(argument) is not None:
            self.origin[key] = "argument"
            return self.arguments[argument]
        if not self.environ.get(variable) and self.environ.get(former := environment.FORMER_NAMES.get(variable, "")):
            _warn_renamed(former, variable)
            self.origin[key] = former
            return self.environ[former]
        if self.environ.get(variable):  # OpenTelemetry's rule: an empty variable is an unset one
            self.origin[key] = variable
            return self.environ[variable]
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
        raise ConfigError(f"{environment.EXPORTERS}: 'none' cannot stand beside other exporters ({', '.join(names)})")
    return names


def _offered(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Where spans go if nobody says: what the environment has an address for, and the local store. `destinations` knows the rest."""
    otlp = any(environ.get(f"{environment.OTLP}{name}") for name in ("ENDPOINT", "TRACES_ENDPOINT"))
    found = {"otlp": otlp, "laminar": bool(environ.get(environment.LMNR_KEY)), "local": True}
    return tuple(name for name, there in found.items() if there)


def _delivery(source: _Source) -> str:
    mode = source.take("delivery", environment.DELIVERY, "in-process")
    if mode in environment.FORMER_VALUES and source.origin["delivery"] != "argument":
        _warn_renamed(f"{environment.DELIVERY}={mode}", f"{environment.DELIVERY}={environment.FORMER_VALUES[mode]}")
        mode = environment.FORMER_VALUES[mode]
    return _one_of(environment.DELIVERY, mode, DELIVERY_MODES)


def _warn_renamed(former: str, current: str) -> None:
    if former not in _warned_names:
        _warned_names.add(former)
        logger.warning("%s was renamed; set %s instead", former, current)


_warned_names: set[str] = set()


def _one_of(variable: str, value: str, allowed: Sequence[str]) -> str:
    if value not in allowed:
        raise ConfigError(f"{variable}: '{value}' is not known; use one of: {', '.join(allowed)}")
    return value


def _mebibytes(variable: str, value: Any) -> int:
    if not str(value).isdecimal() or not int(value):
        raise ConfigError(f"{variable}: '{value}' is not a number of MiB, such as {DISK_LIMIT >> 20}")
    return int(value) << 20


def _flag(source: _Source, argument: str, variable: str, *, default: bool) -> bool:
    value = source.take(argument, variable, default)
    if isinstance(value, bool):
        return value
    word = str(value).strip().lower()
    if word not in ("true", "false", "1", "0", "yes", "no", "on", "off"):
        raise ConfigError(f"{variable}: '{value}' is neither true nor false")
    return word in ("true", "1", "yes", "on")


def _resource(text: str) -> dict[str, str]:
    """OpenTelemetry's `key=value,key=value`; a pair without `=` is an error there too, so say which."""
    pairs = {}
    for pair in _names(text):
        key, equals, value = pair.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"{environment.RESOURCE_ATTRIBUTES}: '{pair}' is not key=value")
        pairs[key.strip()] = unquote(value.strip())
    return pairs


def _service(source: _Source, resource: dict[str, str]) -> str:
    """OpenTelemetry's order: its own variable, then the `service.name` among the resource attributes, which is taken out of them."""
    among = resource.pop(SERVICE_ATTRIBUTE, "")
    name = source.take("service", environment.SERVICE_NAME, None)
    if name is None and among:
        source.origin["service"] = environment.RESOURCE_ATTRIBUTES
    return str(name or among or _program_name())


def _sampler(source: _Source) -> Sampler:
    source.take("", environment.TRACES_SAMPLER, None)  # notes where it comes from
    return samplers.read(source.environ)


def _prometheus(source: _Source) -> Prometheus:
    """Metrics say what runs here: they leave the machine only to who has a token, or over TLS."""
    port = str(source.take("", environment.PROMETHEUS_PORT, _PROMETHEUS.port))
    if port != "none" and (not port.isdecimal() or int(port) > 65535):
        raise ConfigError(f"{environment.PROMETHEUS_PORT}: '{port}' is not a port (0 to 65535, or none)")
    found = Prometheus(
        host=source.take("", environment.PROMETHEUS_HOST, _PROMETHEUS.host),
        port=None if port == "none" else int(port),
        token=source.take("", environment.METRICS_TOKEN, ""),
        tls=source.take("", environment.METRICS_TLS, ""),
        textfile=source.take("", environment.TEXTFILE, ""),
        pushgateway=source.take("", environment.PUSHGATEWAY, ""),
    )
    if not (found.token or found.tls or is_loopback(found.host)):
        wanted = f"set {environment.METRICS_TOKEN} or {environment.METRICS_TLS}, or serve on 127.0.0.1"
        raise ConfigError(f"{environment.PROMETHEUS_HOST}: '{found.host}' can be reached by other machines; {wanted}")
    if found.tls and not Path(found.tls).is_file():
        raise ConfigError(f"{environment.METRICS_TLS}: there is no file '{found.tls}'; it is a PEM with certificate and key")
    if found.textfile and not found.textfile.endswith(".prom"):
        raise ConfigError(f"{environment.TEXTFILE}: '{found.textfile}' must end in .prom, else node_exporter does not read it")
    if found.pushgateway and not found.pushgateway.startswith(("http://", "https://")):
        raise ConfigError(
            f"{environment.PUSHGATEWAY}: '{endpoints.without_credentials(found.pushgateway)}' is not a URL (http:// or https://)"
        )
    return found


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches the address."""
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
    """OpenTelemetry would say `unknown_service`; the program's own name tells two programs apart."""
    name = Path(sys.argv[0]).name if sys.argv and sys.argv[0] not in ("", "-c", "-m") else ""
    return name or "python"
