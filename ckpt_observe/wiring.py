"""Connects configuration, exporters, journal and delivery. No other module knows all four."""

from __future__ import annotations

import hashlib
import os
import socket
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias

from ckpt_observe import __version__, environment
from ckpt_observe.config import Settings
from ckpt_observe.delivery.adoption import LiveExporters
from ckpt_observe.delivery.companion import Companion, lock_path
from ckpt_observe.delivery.daemon import Daemon
from ckpt_observe.delivery.delivery import Delivery
from ckpt_observe.delivery.disk_limit import DiskLimit
from ckpt_observe.delivery.exporter_worker import ExporterWorker
from ckpt_observe.delivery.handover import Handover
from ckpt_observe.delivery.lost_steps import History, LastSave
from ckpt_observe.delivery.memory_delivery import MemoryDelivery
from ckpt_observe.errors import JournalError
from ckpt_observe.exporter import Exporter, Health
from ckpt_observe.exporter_selection import build_exporters, exporter_identities, exporter_names
from ckpt_observe.journal.directory import About, Counts
from ckpt_observe.journal.fallback import usable_directory
from ckpt_observe.journal.journal import Journal
from ckpt_observe.journal.locations import private_directory
from ckpt_observe.journal.pages import AnyPage
from ckpt_observe.record import redact
from ckpt_observe.record.guard import faults
from ckpt_observe.semconv import metrics
from ckpt_observe.support.host_exceptions import raise_host_exception
from ckpt_observe.support.logs import WarningLog, warn


class JournalHandle(Protocol):
    """What `observe()` needs of a journal."""

    def take(self) -> AnyPage | None: ...
    def close_after_fork(self) -> None: ...


class DeliveryHandle(Protocol):
    """What `observe()` needs of a delivery."""

    def flush(self, timeout: float = ..., /) -> bool: ...
    def close(self, timeout: float = ..., /) -> bool: ...


ReplaceDelivery: TypeAlias = Callable[[DeliveryHandle, Callable[[], DeliveryHandle]], bool]
"""Replaces the delivery in use with the one that the function builds. Returns False, and builds none, if another or none is in use."""


# The host program


def start_delivery(
    settings: Settings, environ: Mapping[str, str], replace_delivery: ReplaceDelivery
) -> tuple[JournalHandle, DeliveryHandle]:
    """Create the journal and start delivering it. Called at the first operation of a process.

    `environ` is the environment from which the settings were read; a companion gets it. `replace_delivery` is called if no companion can be
    started, to deliver in this process instead.
    """
    try:
        settings = _with_usable_directories(settings)
    except JournalError as error:
        delivery = _start_in_memory(settings, error)
        return delivery, delivery
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
            journal, companion, disk_limit, _fault_counts, lambda: journal.take_over_delivery() and replace_delivery(handover, build)
        )
    handover.start()
    return journal, handover


def _with_usable_directories(settings: Settings) -> Settings:
    """Return settings with directories that can be used, so that records reach their servers. Warn once if they are not as configured."""
    directory, reason = usable_directory(settings.dir)
    if reason is not None:
        effect = "no daemon delivers them" if settings.delivery == "daemon" else "they may not survive a restart of machine or container"
        _warnings.warn_once("directory", "%s. Records are stored in %s instead; %s.", reason, directory, effect)
    pages = settings.pages_dir
    if pages is not None:
        try:
            private_directory(pages, environment.PAGES_DIR)
        except JournalError as error:
            _warnings.warn_once("pages", "%s. The default directory for pages is used instead.", error)
            pages = None
    return replace(settings, dir=directory, pages_dir=pages)


_warnings: Final = WarningLog()


def _start_in_memory(settings: Settings, reason: JournalError) -> MemoryDelivery:
    """Deliver without files, to the exporters that need none. JournalError if there is no such exporter."""
    settings = replace(settings, delivery="in-process")
    names = [name for name in exporter_names(settings) if name not in ("local", "prometheus")]
    if not names:
        raise reason
    message = (
        "%s. Records are kept in memory instead, and end with the process if they are not delivered; traces and metrics are not stored."
    )
    _warnings.warn_once("directory", message, reason)
    delivery = MemoryDelivery(build_exporters(settings, names), resource(settings), genai_events=settings.genai_events)
    delivery.start()
    _start_exporters(delivery.workers, lambda: {**delivery.health(), **_fault_counts()})
    return delivery


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
    _start_exporters(delivery.workers, health or delivery.health)


def _start_exporters(workers: Iterable[ExporterWorker], health: Health) -> None:
    for worker in workers:
        try:
            worker.exporter.start(health)
        except Exception as error:  # of another package: the other exporters go on, and this one may still accept spans
            raise_host_exception(error)
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
