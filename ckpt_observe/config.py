"""The settings of this process: arguments override environment variables, which override defaults.

`Settings.origin` says where each value came from.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

from ckpt_observe import endpoints, environment, libraries, samplers, span_limits
from ckpt_observe.endpoints import Endpoint
from ckpt_observe.errors import ConfigError
from ckpt_observe.exporter import ENTRY_POINT_GROUP
from ckpt_observe.prometheus_settings import Prometheus, read_prometheus
from ckpt_observe.samplers import Sampler
from ckpt_observe.setting_source import SettingSource, warn_unknown_variables
from ckpt_observe.span_limits import SpanLimits
from ckpt_observe.support import entry_points, secrets
from ckpt_observe.support.files import private_temporary_path
from ckpt_observe.support.host_exceptions import raise_host_exception
from ckpt_observe.support.parsing import (
    DEFAULT,
    extends_default,
    parse_choice,
    parse_names,
    parse_number,
    parse_path,
    parse_selection,
    quote,
)

SPAN_EXPORTERS: Final = ("otlp", "laminar", "provider", "local", "console")
EXPORTERS: Final = (*SPAN_EXPORTERS, "prometheus")
DELIVERY_MODES: Final = ("in-process", "companion", "daemon")
SERVICE_ATTRIBUTE: Final = "service.name"
WINDOWS: Final = (
    "Windows lacks what recording needs: files that outlive their process and tell when it died; use WSL 2 or a Linux container"
)
"""Why a program on Windows is not observed."""
DISK_LIMIT: Final = 1 << 30
"""Bytes that ended processes may leave in a state directory by default."""
TRACE_DAYS: Final = 30
"""Days for which the local store keeps traces by default."""
TRACE_LIMIT: Final = 1 << 30
"""Bytes that the local store may use by default."""


_PROMETHEUS: Final = Prometheus()
_SAMPLER: Final = Sampler()
_SPAN_LIMITS: Final = SpanLimits()


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
    resource_detectors: tuple[str, ...]
    """Names of OpenTelemetry's resource detectors to use."""
    libraries: tuple[str, ...]
    """Names of the instrumentors to use."""
    disabled_instrumentations: frozenset[str]
    traceparent: str
    """Span of the process that started this one, as a W3C `traceparent`; empty: none."""
    tracestate: str
    """The W3C `tracestate` that belongs to it; empty: none."""
    laminar_context: str
    """The same as Laminar's SDK writes it; empty: none."""
    extends_default_exporters: bool = False
    """Whether the exporters are the default ones or include them, so that those of the program's own SDK belong to them, too."""
    sampler: Sampler = _SAMPLER
    span_limits: SpanLimits = _SPAN_LIMITS
    unsampled_failures: bool = False
    """Whether failed operations of traces that are not sampled are exported as spans."""
    disk_limit: int = DISK_LIMIT
    """Bytes that ended processes may leave in the state directory."""
    trace_days: int = TRACE_DAYS
    """Days for which the local store keeps traces; 0 for ever."""
    trace_limit: int = TRACE_LIMIT
    """Bytes that the local store may use; 0 without limit."""
    genai_events: bool = False
    openinference: bool = False
    """Whether spans get the attributes of OpenInference, for Phoenix and MLflow."""
    tensor_digests: bool = False
    """Whether samples of the content of tensors are digested."""
    endpoints: dict[str, Endpoint] = field(default_factory=dict)
    """Servers of the exporters `otlp` and `laminar`, by name."""
    prometheus: Prometheus = _PROMETHEUS
    unusable: dict[str, str] = field(default_factory=dict)
    """Exporters that are left out because of a wrong setting: name and error message. Empty unless read with `lenient`."""
    origin: dict[str, str] = field(default_factory=dict)
    """Where each value came from: `argument`, the name of a variable, or a text that starts with `default`.

    The keys are arguments of `observe()`, or the names of variables that have no argument.
    """

    @property
    def counts_unsampled(self) -> bool:
        """Whether an exporter may count operations of traces that are not sampled: metrics, one of another package, or a daemon's."""
        return self.delivery == "daemon" or any(name not in SPAN_EXPORTERS for name in self.exporters)


def read(environ: Mapping[str, str] | None = None, *, lenient: bool = False, warns: bool = True, **arguments: Any) -> Settings:
    """Read the settings from the arguments of `observe()` (None: not set) and `environ`, by default that of this process.

    Raise ConfigError if a value is invalid.

    `lenient`: an exporter with an invalid value is left out, unless no exporter remains. For programs that did not ask to be observed.
    `warns`: log variables that look like settings, but are not. Not for a process that becomes a program which logs them.
    """
    source = SettingSource(os.environ if environ is None else environ, arguments)
    if warns:
        warn_unknown_variables(source.environ)
    enabled = source.flag("enabled", environment.ENABLED, default=True)
    if source.flag("", environment.SDK_DISABLED, default=False):
        enabled = False
        source.origin["enabled"] = environment.SDK_DISABLED
    resource = _resource(source.get("", environment.RESOURCE_ATTRIBUTES, ""))
    selection = source.get("exporters", environment.EXPORTERS, DEFAULT)
    exporters = _ExporterSettings(_exporters(selection, _default_exporters(source.environ)))
    exporters.read(source, lenient=lenient)
    return Settings(
        exporters=exporters.names,
        extends_default_exporters=bool(exporters.names) and extends_default(selection),
        dir=source.path("dir", environment.DIR) or _default_directory(source),
        pages_dir=source.path("pages_dir", environment.PAGES_DIR),
        delivery=_delivery(source),
        enabled=enabled,
        service=_service(source, resource),
        resource=resource,
        resource_detectors=parse_names(source.get("", environment.RESOURCE_DETECTORS, "")),
        libraries=libraries.select(source.get("libraries", environment.LIBRARIES, DEFAULT)),
        disabled_instrumentations=frozenset(parse_names(source.get("", environment.DISABLED_INSTRUMENTATIONS, ""))),
        traceparent=str(source.get("", environment.TRACEPARENT, "")),
        tracestate=str(source.get("", environment.TRACESTATE, "")),
        laminar_context=str(source.get("", environment.LMNR_SPAN_CONTEXT, "")),
        sampler=_sampler(source),
        span_limits=_span_limits(source),
        unsampled_failures=source.flag("", environment.UNSAMPLED_FAILURES, default=False),
        disk_limit=_disk_limit(source),
        trace_days=source.count(environment.TRACE_DAYS, TRACE_DAYS, "days"),
        trace_limit=source.count(environment.TRACE_LIMIT, TRACE_LIMIT >> 20, "MiB") << 20,
        genai_events=source.flag("", environment.GENAI_EVENTS, default=False),
        openinference=source.flag(
            "", environment.OPENINFERENCE, default=endpoints.reads_openinference(exporters.endpoints.get("otlp"), resource)
        ),
        tensor_digests=source.flag("", environment.TENSOR_DIGESTS, default=False),
        endpoints=exporters.endpoints,
        prometheus=exporters.prometheus,
        unusable=exporters.unusable,
        origin=source.origin,
    )


class _ExporterSettings:
    """The settings that belong to one exporter: its server, or how it publishes metrics."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names
        self.endpoints: dict[str, Endpoint] = {}
        self.prometheus = _PROMETHEUS
        self.unusable: dict[str, str] = {}

    def read(self, source: SettingSource, *, lenient: bool) -> None:
        """Read the settings of each exporter. Raise ConfigError if one is invalid; if lenient, only if no exporter remains."""
        for name in self.names:
            try:
                if name in _ENDPOINTS:
                    self.endpoints[name] = _ENDPOINTS[name](source.environ)
                elif name == "prometheus":
                    self.prometheus = read_prometheus(source)
            except ConfigError as error:
                self.unusable[name] = str(error)
                if not lenient or len(self.unusable) == len(self.names):
                    raise
        self.names = tuple(name for name in self.names if name not in self.unusable)


_ENDPOINTS: Final = {"otlp": endpoints.otlp, "laminar": endpoints.laminar}


def _exporters(value: str | Sequence[str], default: Sequence[str]) -> tuple[str, ...]:
    names = parse_names(value)
    if not names:  # an empty argument
        return ()
    is_bundled = all(name.lstrip("+-") in (*EXPORTERS, DEFAULT, "none") for name in names)
    available = EXPORTERS if is_bundled else (*EXPORTERS, *entry_points.names(ENTRY_POINT_GROUP))
    return parse_selection(environment.EXPORTERS, value, available, default)


def configured_backends(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the exporters of the backends that the environment configures, and for each the variable that does."""
    variables = {
        "otlp": (f"{environment.OTLP}ENDPOINT", f"{environment.OTLP}TRACES_ENDPOINT"),
        "laminar": (environment.LMNR_KEY,),
    }
    return {name: variable for name, names in variables.items() if (variable := next(filter(environ.get, names), None))}


def _default_exporters(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the backends that the environment configures, and `local`. `exporter_selection.exporter_names` adds `provider`."""
    return (*configured_backends(environ), "local")


def _delivery(source: SettingSource) -> str:
    return parse_choice(environment.DELIVERY, source.get("delivery", environment.DELIVERY, "in-process"), DELIVERY_MODES)


def _disk_limit(source: SettingSource) -> int:
    meaning = f"a number of MiB; use a positive integer such as {DISK_LIMIT >> 20}"
    return parse_number(environment.DISK_LIMIT, source.get("", environment.DISK_LIMIT, DISK_LIMIT >> 20), meaning) << 20


def _resource(text: str) -> dict[str, str]:
    """Parse OpenTelemetry's `key=value,key=value`. Raise ConfigError for a pair without `=` or key, as the specification asks."""
    pairs = {}
    for pair in parse_names(text):
        key, equals, value = pair.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"{environment.RESOURCE_ATTRIBUTES}: {quote(secrets.redact_value(pair))} is not of the form key=value")
        pairs[key.strip()] = unquote(value.strip())
    return pairs


def _service(source: SettingSource, resource: dict[str, str]) -> str:
    """Return the service name: argument, variable, `service.name` (removed from the resource attributes) or name of the program."""
    attribute = resource.pop(SERVICE_ATTRIBUTE, "")
    name = source.get("service", environment.SERVICE_NAME, None)
    if name is None and attribute:
        source.origin["service"] = environment.RESOURCE_ATTRIBUTES
    return str(name or attribute or _program_name()).encode("utf-8", "replace").decode()  # journals and exporters need valid UTF-8


def _sampler(source: SettingSource) -> Sampler:
    source.get("", environment.TRACES_SAMPLER, None)  # remembers the origin
    return samplers.read(source.environ)


def _span_limits(source: SettingSource) -> SpanLimits:
    for variable in environment.LIMITS:
        source.get("", variable, None)  # remembers the origin
    return span_limits.read(source.environ)


def _default_directory(source: SettingSource) -> Path:
    """Return the state directory if none is set: in XDG_STATE_HOME, else in the home directory, else in the temporary directory."""
    variable, subdirectory = ("LOCALAPPDATA", "AppData/Local") if sys.platform == "win32" else ("XDG_STATE_HOME", ".local/state")
    if base := source.environ.get(variable):
        return parse_path(variable, base) / "ckpt_observe"
    try:
        return Path.home().absolute() / subdirectory / "ckpt_observe"
    except (RuntimeError, OSError) as error:  # no HOME, and no entry for the user, as for a uid that only a container knows
        raise_host_exception(error)
        source.origin["dir"] = "default for a user who has no home directory"
        return private_temporary_path()


def _program_name() -> str:
    """Return the file name of the program, or `python`. It tells programs apart, unlike OpenTelemetry's `unknown_service`."""
    name = os.path.basename(str(sys.argv[0])) if sys.argv and sys.argv[0] not in ("", "-c", "-m") else ""
    return name or "python"
