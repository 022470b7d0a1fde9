"""Connects configuration, exporters, journal and delivery. No other module knows all four.

Which exporters a process has: those that are named in the settings, or else what is present when its first operation begins.

| present | exporter |
| --- | --- |
| an SDK `TracerProvider` | `provider`; `otlp` is left out, because the same variables configured the provider's own exporter |
| Laminar's `TracerProvider` | `provider`; `laminar` is left out, because the provider sends to Laminar itself |
| `OTEL_EXPORTER_OTLP_ENDPOINT` | `otlp` |
| `LMNR_PROJECT_API_KEY` | `laminar` |
| always | `local` |

A provider can only be used from its own process, so it is left out if a companion or daemon delivers. A daemon has its own exporters,
whatever the processes it delivers for have configured.
"""

from __future__ import annotations

import hashlib
import logging
import os
import socket
import sys
import uuid
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias

from ckpt_observe import __version__, environment
from ckpt_observe.config import Settings
from ckpt_observe.delivery.adoption import Attends
from ckpt_observe.delivery.companion import Companion
from ckpt_observe.delivery.daemon import Daemon
from ckpt_observe.delivery.delivery import Delivery
from ckpt_observe.delivery.disk_limit import DiskLimit
from ckpt_observe.delivery.genai_events import lifecycle
from ckpt_observe.delivery.handover import Handover
from ckpt_observe.delivery.lost_steps import Begun, History
from ckpt_observe.exporter import ENTRY_POINT_GROUP, Exporter, Health
from ckpt_observe.journal.directory import Counts
from ckpt_observe.journal.journal import Journal
from ckpt_observe.record import redact
from ckpt_observe.record.guard import faults
from ckpt_observe.semconv import metrics
from ckpt_observe.support import entry_points

logger = logging.getLogger("ckpt_observe")


class DeliveryHandle(Protocol):
    """What `observe()` needs of it."""

    def flush(self, timeout: float = ..., /) -> bool: ...
    def close(self, timeout: float = ..., /) -> bool: ...


Replace: TypeAlias = Callable[[DeliveryHandle, Callable[[], DeliveryHandle]], bool]
"""Put what the function makes in the place of the first; whether that was done."""


def begin(settings: Settings, environ: Mapping[str, str], replace: Replace) -> tuple[Journal, DeliveryHandle]:
    """At the first operation of a process."""
    lifecycle.on = settings.genai_events
    if settings.delivery == "in-process":
        exporters = build_exporters(settings)
        journal = _journal(settings, [exporter.identity for exporter in exporters if exporter.durable])
        return journal, _in_threads(settings, exporters, journal)
    names = exporter_names(settings)
    disk_limit = DiskLimit(settings.dir, settings.disk_limit)
    if settings.delivery == "daemon":
        journal = _journal(settings, ())
        handover = Handover(journal, Daemon(settings.dir, journal), disk_limit, _faults, lambda: False)
    else:
        owed = exporter_identities(settings, names)
        journal = _journal(settings, owed)
        companion = Companion(settings.dir, companion_name(owed), _environ_of_companion(settings, names, environ))
        make = lambda: _in_threads(settings, build_exporters(settings, names), journal)  # noqa: E731
        handover = Handover(journal, companion, disk_limit, _faults, lambda: journal.take_over_delivery() and replace(handover, make))
    handover.start()
    return journal, handover


def _journal(settings: Settings, owed: Iterable[str]) -> Journal:
    return Journal(settings.dir, settings.pages_dir, tuple(owed), resource(settings), settings.delivery)


def _in_threads(settings: Settings, exporters: list[Exporter], journal: Journal) -> Delivery:
    delivery = Delivery(settings.dir, exporters, journal, last_save(settings.dir), limit=settings.disk_limit)
    delivery.start()
    publish(exporters, lambda: {**delivery.health(), **_faults()})
    return delivery


def for_others(settings: Settings, exporters: list[Exporter], attends: Attends) -> Delivery:
    """The delivery of a companion or a daemon, which is not started yet."""
    lifecycle.on = settings.genai_events
    return Delivery(settings.dir, exporters, None, last_save(settings.dir), attends, settings.disk_limit)


def publish(exporters: Iterable[Exporter], health: Health) -> None:
    """Start the exporters. Those that publish metrics begin to do so."""
    for exporter in exporters:
        exporter.start(health)


def _faults() -> Counts:
    return {(metrics.FAULTS.name, ()): float(sum(list(faults.values())))}


def companion_name(owed: Iterable[str]) -> str:
    """One for each set of destinations: a companion delivers only for processes that want what it has."""
    return hashlib.sha256("\n".join(sorted(owed)).encode()).hexdigest()[:12]


def _environ_of_companion(settings: Settings, names: Iterable[str], environ: Mapping[str, str]) -> dict[str, str]:
    """The settings, where arguments may stand over the environment; and it is not to be observed itself, however Python is started."""
    return {
        **environ,
        environment.EXPORTERS: ",".join(names) or "none",
        environment.DIR: str(settings.dir),
        environment.SERVICE_NAME: settings.service,
        environment.DELIVERY: "companion",
        environment.ENABLED: "false",
    }


def resource(settings: Settings) -> dict[str, Any]:
    """Who made the spans, in OpenTelemetry's names."""
    return {
        "service.name": settings.service,
        "service.instance.id": str(uuid.UUID(bytes=os.urandom(16), version=4)),
        "process.pid": os.getpid(),
        "host.name": socket.gethostname(),
        "telemetry.distro.name": "ckpt_observe",
        "telemetry.distro.version": __version__,
        **redact.attributes(settings.resource),
    }


def build_exporters(settings: Settings, names: Iterable[str] | None = None) -> list[Exporter]:
    """Build the named exporters, by default those of `exporter_names`. An exporter's libraries are imported when it is built."""
    return [_build(name, settings) for name in (exporter_names(settings) if names is None else names)]


def _build(name: str, settings: Settings) -> Exporter:
    build: Callable[[Settings], Exporter] = EXPORTERS.get(name) or entry_points.load(ENTRY_POINT_GROUP, name)
    return build(settings)


def exporter_names(settings: Settings) -> tuple[str, ...]:
    """Return the names of the exporters to use."""
    names = settings.exporters
    provider = sdk_provider() if settings.origin.get("exporters") == "default" else None
    if settings.delivery != "in-process":
        if provider is not None or "provider" in names:
            logger.warning(
                "ckpt_observe: your TracerProvider gets no spans: it is in your process, the delivery (%s) is not", settings.delivery
            )
        if settings.delivery == "companion" and "console" in names:
            logger.warning("ckpt_observe: nothing is printed to the console: the companion has none")
        return tuple(name for name in names if name not in _LEFT_OUT[settings.delivery])
    if provider is not None:
        instead = "laminar" if is_laminar(provider) else "otlp"
        names = ("provider", *(name for name in names if name != instead))
    return names


_LEFT_OUT: Final = {"companion": ("provider", "console"), "daemon": ("provider",)}


def exporter_identities(settings: Settings, names: Iterable[str]) -> list[str]:
    """Return `Exporter.identity` of each exporter, without importing the bundled ones: only the companion needs those."""
    servers = {name: f"{name}@{endpoint.fingerprint}" for name, endpoint in settings.endpoints.items()}
    return [servers.get(name, name) if name in EXPORTERS else _build(name, settings).identity for name in names]


def last_save(state: Path) -> History:
    """What the local store knows of a task's last save; nothing where there is no store."""
    from ckpt_observe.errors import TraceStoreError  # noqa: PLC0415
    from ckpt_observe.tracestore import FILENAME  # noqa: PLC0415
    from ckpt_observe.tracestore.reader import TraceReader  # noqa: PLC0415

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


def _otlp(settings: Settings) -> Exporter:
    from ckpt_observe.exporters.otlp import OtlpExporter  # noqa: PLC0415 - an exporter is imported when it is used

    return OtlpExporter(settings.endpoints["otlp"])


def _laminar(settings: Settings) -> Exporter:
    from ckpt_observe.exporters.laminar import LaminarExporter  # noqa: PLC0415

    return LaminarExporter(settings.endpoints["laminar"])


def _provider(_settings: Settings) -> Exporter:
    from ckpt_observe.exporters.provider import ProviderExporter  # noqa: PLC0415

    return ProviderExporter(sdk_provider, is_laminar)


def _prometheus(settings: Settings) -> Exporter:
    from ckpt_observe.exporters.metrics import MetricsExporter  # noqa: PLC0415
    from ckpt_observe.exporters.otel_metrics import OtlpMetrics  # noqa: PLC0415
    from ckpt_observe.exporters.prometheus import outlets  # noqa: PLC0415
    from ckpt_observe.metricstore.snapshot import gather  # noqa: PLC0415

    ways = [*outlets(settings.prometheus, settings.service)]
    if os.environ.get(environment.OTLP_METRICS_ENDPOINT):
        ways.append(OtlpMetrics(os.environ, {"service.name": settings.service, **redact.attributes(settings.resource)}))
    return MetricsExporter(settings.dir, lambda: gather(settings.dir, __version__), ways)


def _local(settings: Settings) -> Exporter:
    from ckpt_observe.exporters.local import LocalExporter  # noqa: PLC0415

    return LocalExporter(settings.dir)


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
