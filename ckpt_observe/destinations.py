"""Which sinks this process has: those that were named, or what it is found to have when its first operation begins.

| found | what it gets |
| --- | --- |
| an SDK `TracerProvider` | `provider`; then `otlp` is left out, for the same variables have set up the provider's own exporter |
| Laminar's `TracerProvider` | `provider`; then `laminar` is left out, for it sends there itself |
| `OTEL_EXPORTER_OTLP_ENDPOINT` | `otlp` |
| `LMNR_PROJECT_API_KEY` | `laminar` |
| nothing, or any of these | `local` |

A provider lives in its own process, so only the drain's thread can reach it; with a companion or an agent it is left out. An agent has
destinations of its own, whatever the processes name whose records it delivers.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

from ckpt_observe import environment
from ckpt_observe.config import Settings
from ckpt_observe.delivery.exporter_worker import Sink
from ckpt_observe.delivery.lost_steps import Begun, History
from ckpt_observe.record import redact

logger = logging.getLogger("ckpt_observe")


def sinks(settings: Settings, names: Iterable[str] | None = None) -> list[Sink]:
    """A sink for each destination, those that are chosen unless they are named; a sink's libraries are imported when it is made."""
    return [SINKS[name](settings) for name in (chosen(settings) if names is None else names)]


def chosen(settings: Settings) -> tuple[str, ...]:
    """The names of the destinations."""
    names = settings.exporters
    provider = sdk_provider() if settings.origin.get("exporters") == "default" else None
    if settings.drain != "thread":
        if provider is not None or "provider" in names:
            logger.warning("ckpt_observe: your TracerProvider gets no spans: it is in your process, the drain (%s) is not", settings.drain)
        if settings.drain == "companion" and "console" in names:
            logger.warning("ckpt_observe: nothing is printed to the console: the companion has none")
        return tuple(name for name in names if name not in _LEFT_OUT[settings.drain])
    if provider is not None:
        instead = "laminar" if is_laminar(provider) else "otlp"
        names = ("provider", *(name for name in names if name != instead))
    return names


_LEFT_OUT: Final = {"companion": ("provider", "console"), "agent": ("provider",)}


def owed(settings: Settings, names: Iterable[str]) -> list[str]:
    """As a journal knows lasting destinations (`identity` of their sinks), without making or importing one of them."""
    servers = {name: f"{name}@{endpoint.fingerprint}" for name, endpoint in settings.endpoints.items()}
    return [servers.get(name, name) for name in names]


def last_save(state: Path) -> History:
    """What the local store knows of a task's last save; nothing where there is no store."""
    from ckpt_observe.errors import TraceStoreError  # noqa: PLC0415
    from ckpt_observe.tracestore.reader import TraceReader  # noqa: PLC0415
    from ckpt_observe.tracestore.schema import FILENAME  # noqa: PLC0415

    def ask(task: str) -> Begun | None:
        if not (state / FILENAME).exists():
            return None
        try:
            with TraceReader(state / FILENAME) as reader:
                found = reader.last_step(task)
        except TraceStoreError:
            return None
        return Begun(*found) if found else None

    return ask


def sdk_provider() -> Any:
    """The TracerProvider that the user has set, if it is one of the SDK. None is set by asking."""
    from opentelemetry import trace  # noqa: PLC0415

    provider = trace.get_tracer_provider()
    return provider if hasattr(provider, "_active_span_processor") else None


def is_laminar(provider: Any) -> bool:
    """Whether it is the one that `Laminar.initialize()` made. Looks, but never imports lmnr: 350 ms, 650 modules."""
    lmnr = sys.modules.get("lmnr")
    return lmnr is not None and lmnr.Laminar.is_initialized() and lmnr.get_laminar_tracer_provider() is provider


def _otlp(settings: Settings) -> Sink:
    from ckpt_observe.exporters.otlp import OtlpSink  # noqa: PLC0415 - a sink is imported when it is used

    return OtlpSink(settings.endpoints["otlp"])


def _laminar(settings: Settings) -> Sink:
    from ckpt_observe.exporters.laminar import LaminarSink  # noqa: PLC0415

    return LaminarSink(settings.endpoints["laminar"])


def _provider(_settings: Settings) -> Sink:
    from ckpt_observe.exporters.provider import ProviderSink  # noqa: PLC0415

    return ProviderSink(sdk_provider, is_laminar)


def _prometheus(settings: Settings) -> Sink:
    from ckpt_observe import __version__  # noqa: PLC0415
    from ckpt_observe.metricstore.snapshot import gather  # noqa: PLC0415
    from ckpt_observe.exporters.metrics import MetricsSink  # noqa: PLC0415
    from ckpt_observe.exporters.otel_metrics import OtlpMetrics  # noqa: PLC0415
    from ckpt_observe.exporters.prometheus import outlets  # noqa: PLC0415

    ways = [*outlets(settings.prometheus, settings.service)]
    if os.environ.get(environment.OTLP_METRICS_ENDPOINT):
        ways.append(OtlpMetrics(os.environ, {"service.name": settings.service, **redact.attributes(settings.resource)}))
    return MetricsSink(settings.dir, lambda: gather(settings.dir, __version__), ways)


def _local(settings: Settings) -> Sink:
    from ckpt_observe.exporters.local import LocalSink  # noqa: PLC0415

    return LocalSink(settings.dir)


def _console(_settings: Settings) -> Sink:
    from ckpt_observe.exporters.console import ConsoleSink  # noqa: PLC0415

    return ConsoleSink()


SINKS: Final[dict[str, Callable[[Settings], Sink]]] = {
    "otlp": _otlp,
    "laminar": _laminar,
    "provider": _provider,
    "prometheus": _prometheus,
    "local": _local,
    "console": _console,
}
