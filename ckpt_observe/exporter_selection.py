"""Chooses the exporters of a process and builds them.

A process uses the exporters that its settings name. If they name none, or `default`, it uses those of this table, by what is present when
its first operation begins:

| present | exporter |
| --- | --- |
| an SDK `TracerProvider` | `provider`; `otlp` is left out, because the same variables configured the provider's own exporter |
| Laminar's `TracerProvider` | `laminar`, with the server and key of `Laminar.initialize()`; `provider` if these are unknown |
| `OTEL_EXPORTER_OTLP_ENDPOINT` | `otlp` |
| `LMNR_PROJECT_API_KEY` | `laminar` |
| always | `local` |

Laminar's own batch processor is not used if possible: in a burst it drops spans, also those of the program, and a kill loses its queue.

A provider can only be used from its own process, so it is left out if a companion or daemon delivers. A daemon has its own exporters,
whatever the processes it delivers for have configured.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final

from ckpt_observe import __version__, endpoints, environment, resource_detectors
from ckpt_observe.config import Settings
from ckpt_observe.endpoints import Endpoint
from ckpt_observe.exporter import ENTRY_POINT_GROUP, Exporter
from ckpt_observe.exporters.unbuilt import UnbuiltExporter, describe_failure
from ckpt_observe.resource import metrics_resource
from ckpt_observe.support import entry_points
from ckpt_observe.support.host_exceptions import raise_host_exception
from ckpt_observe.support.logs import warn


def build_exporters(
    settings: Settings, names: Iterable[str] | None = None, plugins: Mapping[str, Exporter] | None = None
) -> list[Exporter]:
    """Build the named exporters, by default those of `exporter_names`. An exporter's libraries are imported when it is built.

    `plugins` are exporters of other packages that are already built, by name.

    Of two with the same identity, the second is left out: they would share a cursor, and each would get only some of the spans.
    """
    exporters: dict[str, Exporter] = {}
    for name in exporter_names(settings) if names is None else names:
        exporter = (plugins or {}).get(name) or _try_build(name, settings)
        if exporter.identity in exporters:
            warn(
                "Exporter %s is not used: it has the identity of another one, %r. Give its class another `name` or `identity`.",
                name,
                exporter.identity,
            )
        exporters.setdefault(exporter.identity, exporter)
    return list(exporters.values())


def _try_build(name: str, settings: Settings) -> Exporter:
    """Build an exporter. If that fails, warn and return one that builds it later: it must not disable the others."""
    try:
        exporter = _build(name, settings)
        _ = exporter.identity, exporter.durable  # of another package: may raise, too
    except Exception as error:
        raise_host_exception(error)
        warn("Exporter %s: %s. Trying again.", name, describe_failure(error))
        return UnbuiltExporter(name, _expected_identity(name, settings), partial(_build, name, settings))
    return exporter


def _build(name: str, settings: Settings) -> Exporter:
    build: Callable[[Settings], Exporter] = EXPORTERS.get(name) or entry_points.load(ENTRY_POINT_GROUP, name)
    return build(settings)


def _expected_identity(name: str, settings: Settings) -> str:
    """Return `Exporter.identity` of a bundled exporter without building it. For any other, return its name."""
    endpoint = _laminar_endpoint(settings) if name == "laminar" else settings.endpoints.get(name)
    return f"{name}@{endpoint.fingerprint}" if endpoint else name


def exporter_names(settings: Settings) -> tuple[str, ...]:
    """Return the names of the exporters to use. Leave out those that cannot work if another process delivers, with a warning."""
    names = settings.exporters
    provider = sdk_provider() if settings.extends_default_exporters else None
    if settings.delivery != "in-process":
        if provider is not None or "provider" in names:
            warn(
                "Your TracerProvider gets no spans, because another process delivers them (%s). Use in-process delivery for it.",
                settings.delivery,
            )
        if settings.delivery == "companion" and "console" in names:
            warn("Nothing is printed to the console, because the companion has no terminal.")
        return tuple(name for name in names if name not in _UNUSABLE[settings.delivery])
    if provider is not None:
        first = "laminar" if laminar_sdk_endpoint(provider) else "provider"
        duplicate = "laminar" if is_laminar(provider) else "otlp"
        names = (first, *(name for name in names if name not in (first, duplicate)))
    return names


_UNUSABLE: Final = {"companion": ("provider", "console"), "daemon": ("provider",)}


def build_plugins(settings: Settings, names: Iterable[str]) -> dict[str, Exporter]:
    """Build the exporters of other packages: only they know their identity, which a journal contains."""
    return {name: _try_build(name, settings) for name in names if name not in EXPORTERS}


def exporter_identities(settings: Settings, names: Iterable[str], plugins: Mapping[str, Exporter]) -> list[str]:
    """Return `Exporter.identity` of each exporter. The bundled ones are not built for that: a journal must not wait for them."""
    return [plugins[name].identity if name in plugins else _expected_identity(name, settings) for name in names]


def durable_names(names: Iterable[str], plugins: Mapping[str, Exporter]) -> list[str]:
    """Return the names of exporters that another process can deliver to: see `Exporter.durable`."""
    return [name for name in names if (plugins[name].durable if name in plugins else name not in _UNUSABLE["companion"])]


def sdk_provider() -> Any:
    """Return the global TracerProvider if it is one of OpenTelemetry's SDK, else None. Creates one only if an OTel variable names it."""
    from opentelemetry import trace  # noqa: PLC0415

    try:
        provider = trace.get_tracer_provider()
    except Exception as error:  # OTEL_PYTHON_TRACER_PROVIDER names one that cannot be loaded
        raise_host_exception(error)
        return None
    return provider if hasattr(provider, "_active_span_processor") else None


def is_laminar(provider: Any) -> bool:
    """Return whether `Laminar.initialize()` created the provider. Never imports lmnr, which takes 350 ms and 650 modules."""
    lmnr = sys.modules.get("lmnr")
    return lmnr is not None and lmnr.Laminar.is_initialized() and lmnr.get_laminar_tracer_provider() is provider


_LMNR_DISABLED: Final = "LMNR_DISABLE_TRACING"
"""Variable of Laminar's SDK. If it is `true`, its provider drops all spans."""


def laminar_sdk_endpoint(provider: Any) -> Endpoint | None:
    """Return the server and key of `Laminar.initialize()`. None if they are unknown, or if the provider is not Laminar's alone."""
    if not is_laminar(provider) or os.environ.get(_LMNR_DISABLED, "").strip().lower() == "true":
        return None
    if len(getattr(provider._active_span_processor, "_span_processors", ())) != 1:
        return None
    laminar = sys.modules["lmnr"].Laminar
    try:
        key, url = laminar.get_project_api_key(), laminar.get_base_http_url()
        if url.startswith("http:") and url.endswith(":443"):  # the port was not set: the program uses gRPC on another one
            return None
        return endpoints.laminar({environment.LMNR_KEY: key, environment.LMNR_BASE_URL: url.removesuffix(":443")})
    except Exception as error:  # another version of the SDK, or no key
        raise_host_exception(error)
        return None


def _otlp(settings: Settings) -> Exporter:
    from ckpt_observe.exporters.otlp import OtlpExporter  # noqa: PLC0415 - imported only if it is used

    if not settings.openinference:
        return OtlpExporter(settings.endpoints["otlp"], limits=settings.span_limits)
    from ckpt_observe.exporters.openinference_shape import shape  # noqa: PLC0415

    return OtlpExporter(settings.endpoints["otlp"], limits=settings.span_limits, shape=shape)


def _laminar(settings: Settings) -> Exporter:
    from ckpt_observe.exporters.laminar import LaminarExporter  # noqa: PLC0415
    from ckpt_observe.query.running import find_running_tasks  # noqa: PLC0415
    from ckpt_observe.tracestore import FILENAME  # noqa: PLC0415

    endpoint = _laminar_endpoint(settings) or settings.endpoints["laminar"]
    return LaminarExporter(endpoint, settings.span_limits, settings.dir / FILENAME, partial(find_running_tasks, settings.dir))


def _laminar_endpoint(settings: Settings) -> Endpoint | None:
    """Return the server and key of the program's `Laminar.initialize()`, or else those of the settings, if any."""
    is_default = settings.extends_default_exporters and settings.delivery == "in-process"
    return (laminar_sdk_endpoint(sdk_provider()) if is_default else None) or settings.endpoints.get("laminar")


def _provider(settings: Settings) -> Exporter:
    from ckpt_observe.exporters.provider import ProviderExporter  # noqa: PLC0415

    return ProviderExporter(sdk_provider, is_laminar, uses_openinference=settings.openinference)


def _prometheus(settings: Settings) -> Exporter:
    from ckpt_observe.exporters.metrics import MetricsExporter  # noqa: PLC0415
    from ckpt_observe.exporters.otlp_metrics import OtlpMetricsPublisher  # noqa: PLC0415
    from ckpt_observe.exporters.prometheus import build_publishers  # noqa: PLC0415
    from ckpt_observe.metricstore.snapshot import gather  # noqa: PLC0415

    publishers = build_publishers(settings.prometheus, settings.service)
    if settings.prometheus.otlp is not None:
        resource = partial(_metrics_resource, settings)
        publishers.append(OtlpMetricsPublisher(settings.prometheus.otlp, settings.prometheus.otlp_interval, resource))
    return MetricsExporter(settings.dir, lambda: gather(settings.dir, __version__), publishers)


def _metrics_resource(settings: Settings) -> dict[str, Any]:
    return metrics_resource(settings, resource_detectors.detect(settings.resource_detectors).wait())


def _local(settings: Settings) -> Exporter:
    from ckpt_observe.exporters.local import LocalExporter  # noqa: PLC0415
    from ckpt_observe.tracestore import TraceLimits  # noqa: PLC0415

    return LocalExporter(settings.dir, TraceLimits(settings.trace_days, settings.trace_limit))


def _console(_settings: Settings) -> Exporter:
    from ckpt_observe.exporters.console import ConsoleExporter  # noqa: PLC0415

    return ConsoleExporter()


EXPORTERS: Final[dict[str, Callable[[Settings], Exporter]]] = {
    "otlp": _otlp,
    "laminar": _laminar,
    "provider": _provider,
    "prometheus": _prometheus,
    "local": _local,
    "console": _console,
}
