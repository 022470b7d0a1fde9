"""Connects configuration, exporters, journal and delivery. No other module knows all four.

A process uses the exporters that its settings name. If they name none, it uses those of this table, by what is present when its first
operation begins:

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
import os
import socket
import sys
import uuid
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias

from ckpt_observe import __version__, environment
from ckpt_observe.config import Settings
from ckpt_observe.delivery.adoption import LiveExporters
from ckpt_observe.delivery.companion import Companion, lock_path
from ckpt_observe.delivery.daemon import Daemon
from ckpt_observe.delivery.delivery import Delivery
from ckpt_observe.delivery.disk_limit import DiskLimit
from ckpt_observe.delivery.handover import Handover
from ckpt_observe.delivery.lost_steps import History, LastSave
from ckpt_observe.exporter import ENTRY_POINT_GROUP, Exporter, Health
from ckpt_observe.exporters.unbuilt import UnbuiltExporter, describe_failure
from ckpt_observe.journal.directory import About, Counts
from ckpt_observe.journal.journal import Journal
from ckpt_observe.record import redact
from ckpt_observe.record.guard import faults, raise_host_exception
from ckpt_observe.semconv import metrics
from ckpt_observe.support import entry_points
from ckpt_observe.support.logs import warn


class DeliveryHandle(Protocol):
    """What `observe()` needs of a delivery."""

    def flush(self, timeout: float = ..., /) -> bool: ...
    def close(self, timeout: float = ..., /) -> bool: ...


ReplaceDelivery: TypeAlias = Callable[[DeliveryHandle, Callable[[], DeliveryHandle]], bool]
"""Replaces the delivery in use with the one that the function builds. Returns False, and builds none, if another or none is in use."""


# The host program


def start_delivery(settings: Settings, environ: Mapping[str, str], replace: ReplaceDelivery) -> tuple[Journal, DeliveryHandle]:
    """Create the journal and start delivering it. Called at the first operation of a process.

    `environ` is the environment from which the settings were read; a companion gets it. `replace` is called if no companion can be
    started, to deliver in this process instead.
    """
    if settings.delivery == "in-process":
        exporters = build_exporters(settings)
        journal = _create_journal(settings, [exporter.identity for exporter in exporters if exporter.durable])
        return journal, _start_in_process(settings, exporters, journal)
    names = exporter_names(settings)
    disk_limit = DiskLimit(settings.dir, settings.disk_limit)
    if settings.delivery == "daemon":
        journal = _create_journal(settings, ())
        handover = Handover(journal, Daemon(settings.dir, journal), disk_limit, _fault_counts, lambda: False)
    else:
        identities = exporter_identities(settings, names)
        journal = _create_journal(settings, identities)
        companion = Companion(settings.dir, companion_name(identities), _companion_environ(settings, names, environ))
        build = lambda: _start_in_process(settings, build_exporters(settings, names), journal)  # noqa: E731
        handover = Handover(
            journal, companion, disk_limit, _fault_counts, lambda: journal.take_over_delivery() and replace(handover, build)
        )
    handover.start()
    return journal, handover


def _create_journal(settings: Settings, identities: Iterable[str]) -> Journal:
    return Journal(settings.dir, settings.pages_dir, tuple(identities), resource(settings), settings.delivery)


def _start_in_process(settings: Settings, exporters: list[Exporter], journal: Journal) -> Delivery:
    delivery = _build_delivery(settings, exporters, journal)
    start(delivery, lambda: {**delivery.health(), **_fault_counts()})
    return delivery


def _fault_counts() -> Counts:
    return {(metrics.FAULTS.name, ()): float(sum(list(faults.values())))}


def _companion_environ(settings: Settings, names: Iterable[str], environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a companion: `environ` with the settings of this process. The companion is not observed."""
    return {
        **environ,
        environment.EXPORTERS: ",".join(names) or "none",
        environment.DIR: str(settings.dir),
        environment.SERVICE_NAME: settings.service,
        environment.DELIVERY: "companion",
        environment.ENABLED: "false",
    }


# Processes that deliver for others


class CompanionRole:
    """What a companion does: which lock it holds, which processes it delivers for, and with which exporters."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._names = exporter_names(settings)
        self._identities = exporter_identities(settings, self._names)
        self.lock_path = lock_path(settings.dir, companion_name(self._identities))

    def live_exporters(self, about: About) -> tuple[str, ...] | None:
        """Return the exporters of a process that leaves delivery to this companion, or None for any other process."""
        return about.exporters if about.delivery == "companion" and set(about.exporters) == set(self._identities) else None

    def build_delivery(self) -> Delivery:
        return _build_delivery(self._settings, build_exporters(self._settings, self._names), live_exporters=self.live_exporters)


def build_daemon_delivery(settings: Settings) -> Delivery:
    """Build the delivery of the daemon: it has its own exporters, and serves every process that leaves delivery to a daemon."""
    exporters = build_exporters(settings)
    identities = tuple(exporter.identity for exporter in exporters)
    return _build_delivery(settings, exporters, live_exporters=lambda about: identities if about.delivery == "daemon" else None)


def deliver_dead(settings: Settings, timeout: float = 10.0) -> int:
    """Deliver the records of dead processes in the state directory. Return how many of their operations were interrupted."""
    delivery = Delivery(settings.dir, build_exporters(settings), disk_limit=settings.disk_limit, genai_events=settings.genai_events)
    delivery.start()
    delivery.close(timeout)
    return delivery.interrupted


def _build_delivery(
    settings: Settings,
    exporters: list[Exporter],
    journal: Journal | None = None,
    live_exporters: LiveExporters | None = None,
) -> Delivery:
    return Delivery(
        settings.dir,
        exporters,
        journal,
        last_save(settings.dir),
        live_exporters,
        settings.disk_limit,
        genai_events=settings.genai_events,
    )


def start(delivery: Delivery, health: Health | None = None) -> None:
    """Start a delivery and its exporters. `health` returns the counters that exporters publish, by default those of the delivery."""
    delivery.start()
    for worker in delivery.workers:
        try:
            worker.exporter.start(health or delivery.health)
        except Exception as error:  # of another package: the other exporters go on, and this one may still accept spans
            warn("Exporter %s: start() failed: %r", worker.name, error)


def companion_name(identities: Iterable[str]) -> str:
    """Return a name for a set of exporters. A companion delivers only for processes with the same exporters."""
    return hashlib.sha256("\n".join(sorted(identities)).encode()).hexdigest()[:12]


def resource(settings: Settings) -> dict[str, Any]:
    """Return the resource attributes of this process, with OpenTelemetry's names."""
    return {
        "service.name": redact.name(settings.service),
        "service.instance.id": str(uuid.UUID(bytes=os.urandom(16), version=4)),
        "process.pid": os.getpid(),
        "host.name": socket.gethostname(),
        "telemetry.distro.name": "ckpt_observe",
        "telemetry.distro.version": __version__,
        **redact.attributes(settings.resource),
    }


# Exporters


def build_exporters(settings: Settings, names: Iterable[str] | None = None) -> list[Exporter]:
    """Build the named exporters, by default those of `exporter_names`. An exporter's libraries are imported when it is built.

    Of two with the same identity, the second is left out: they would share a cursor, and each would get only some of the spans.
    """
    exporters: dict[str, Exporter] = {}
    for name in exporter_names(settings) if names is None else names:
        exporter = _try_build(name, settings)
        if exporter.identity in exporters:
            warn("Exporter %s is not used: it has the identity of another one, %r. Give its class another `name`.", name, exporter.identity)
        exporters.setdefault(exporter.identity, exporter)
    return list(exporters.values())


def _try_build(name: str, settings: Settings) -> Exporter:
    """Build an exporter, or else something that builds it later: one that cannot be built must not disable the others."""
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
    """Return `Exporter.identity` of a bundled exporter without building it. For any other, only its name is known."""
    return f"{name}@{settings.endpoints[name].fingerprint}" if name in settings.endpoints else name


def exporter_names(settings: Settings) -> tuple[str, ...]:
    """Return the names of the exporters to use. Leave out those that cannot work if another process delivers, with a warning."""
    names = settings.exporters
    provider = sdk_provider() if settings.origin.get("exporters") == "default" else None
    if settings.delivery != "in-process":
        if provider is not None or "provider" in names:
            warn("Your TracerProvider gets no spans, because delivery (%s) runs in another process.", settings.delivery)
        if settings.delivery == "companion" and "console" in names:
            warn("Nothing is printed to the console, because the companion has no terminal.")
        return tuple(name for name in names if name not in _UNUSABLE[settings.delivery])
    if provider is not None:
        duplicate = "laminar" if is_laminar(provider) else "otlp"
        names = ("provider", *(name for name in names if name != duplicate))
    return names


_UNUSABLE: Final = {"companion": ("provider", "console"), "daemon": ("provider",)}


def exporter_identities(settings: Settings, names: Iterable[str]) -> list[str]:
    """Return `Exporter.identity` of each exporter. The bundled ones are not imported for that: only the companion needs them."""
    return [_expected_identity(name, settings) if name in EXPORTERS else _try_build(name, settings).identity for name in names]


def last_save(state: Path) -> History:
    """Return a function that looks up the last save of a task in the local store.

    It returns None if there is no such save or no store, or if the store cannot be read.
    """
    from ckpt_observe.errors import TraceStoreError  # noqa: PLC0415
    from ckpt_observe.tracestore import FILENAME  # noqa: PLC0415
    from ckpt_observe.tracestore.reader import TraceReader  # noqa: PLC0415

    def find(task: str) -> LastSave | None:
        if not (state / FILENAME).exists():
            return None
        try:
            with TraceReader(state / FILENAME) as reader:
                row = reader.last_step(task)
        except TraceStoreError:
            return None
        return LastSave(*row) if row else None

    return find


def sdk_provider() -> Any:
    """Return the TracerProvider that the host program has set, or None if it has set none of OpenTelemetry's SDK. Creates none."""
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


def _otlp(settings: Settings) -> Exporter:
    from ckpt_observe.exporters.otlp import OtlpExporter  # noqa: PLC0415 - imported only if it is used

    return OtlpExporter(settings.endpoints["otlp"])


def _laminar(settings: Settings) -> Exporter:
    from ckpt_observe.exporters.laminar import LaminarExporter  # noqa: PLC0415

    return LaminarExporter(settings.endpoints["laminar"])


def _provider(_settings: Settings) -> Exporter:
    from ckpt_observe.exporters.provider import ProviderExporter  # noqa: PLC0415

    return ProviderExporter(sdk_provider, is_laminar)


def _prometheus(settings: Settings) -> Exporter:
    from ckpt_observe.exporters.metrics import MetricsExporter  # noqa: PLC0415
    from ckpt_observe.exporters.otlp_metrics import OtlpMetricsPublisher  # noqa: PLC0415
    from ckpt_observe.exporters.prometheus import build_publishers  # noqa: PLC0415
    from ckpt_observe.metricstore.snapshot import gather  # noqa: PLC0415

    publishers = build_publishers(settings.prometheus, settings.service)
    if settings.prometheus.otlp is not None:
        attributes = {"service.name": redact.name(settings.service), **redact.attributes(settings.resource)}
        publishers.append(OtlpMetricsPublisher(settings.prometheus.otlp, settings.prometheus.otlp_interval, attributes))
    return MetricsExporter(settings.dir, lambda: gather(settings.dir, __version__), publishers)


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
