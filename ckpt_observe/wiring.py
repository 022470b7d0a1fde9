"""Connects configuration, exporters, journal and delivery. No other module knows all four."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final, Protocol, TypeAlias

from ckpt_observe import environment, resource_detectors
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
from ckpt_observe.exporter_selection import build_exporters, build_plugins, durable_names, exporter_identities, exporter_names
from ckpt_observe.exporters.unbuilt import UnbuiltExporter
from ckpt_observe.journal import recording_children
from ckpt_observe.journal.directory import About, Counts
from ckpt_observe.journal.fallback import usable_directory
from ckpt_observe.journal.journal import Journal
from ckpt_observe.journal.locations import private_directory
from ckpt_observe.journal.pages import AnyPage
from ckpt_observe.record.guard import faults
from ckpt_observe.record.ranks import read_ranks
from ckpt_observe.resource import new_instance_id, process_resource
from ckpt_observe.semconv import metrics
from ckpt_observe.support.host_exceptions import raise_host_exception
from ckpt_observe.support.logs import WarningLog, warn


class JournalHandle(Protocol):
    """What `observe()` needs of a journal."""

    def take(self) -> AnyPage | None: ...
    def count_recorded(self) -> int: ...
    def close_after_fork(self) -> None: ...


class DeliveryHandle(Protocol):
    """What `observe()` needs of a delivery."""

    def start(self) -> None:
        """Start the threads that do not run yet. RuntimeError if the system refuses one; it may be called again."""

    def flush(self, timeout: float = ..., /) -> bool: ...
    def close(self, timeout: float = ..., /) -> bool: ...


ReplaceDelivery: TypeAlias = Callable[[DeliveryHandle, Callable[[], DeliveryHandle]], bool]
"""Replaces the delivery in use with the one that the function builds. Returns False, and builds none, if another or none is in use."""


# The host program


def open_journal(
    settings: Settings, environ: Mapping[str, str], replace_delivery: ReplaceDelivery, missed: int = 0
) -> tuple[JournalHandle, Callable[[], DeliveryHandle]]:
    """Create the journal. Return it, and a function that builds its delivery. Called at the first operation of a process.

    The exporters are built with the delivery: recording does not depend on them.

    Args:
        settings: The settings of this process.
        environ: The environment from which they were read; a companion gets it.
        replace_delivery: Called if no companion can be started, to deliver in this process instead.
        missed: Operations that were not recorded, because earlier attempts to create the journal failed.

    """
    try:
        settings = _with_usable_directories(settings)
    except JournalError as error:
        delivery = _build_in_memory(settings, error, missed)
        return delivery, lambda: delivery
    names = exporter_names(settings)
    if settings.delivery == "daemon":
        journal = _create_journal(settings, (), missed)
        return journal, lambda: Handover(journal, Daemon(settings.dir, journal), _disk_limit(settings), _fault_counts, lambda: False)
    plugins = build_plugins(settings, names)
    if settings.delivery == "in-process":
        journal = _create_journal(settings, exporter_identities(settings, durable_names(names, plugins), plugins), missed)
        return journal, lambda: _build_in_process(settings, build_exporters(settings, names, plugins), journal)
    identities = exporter_identities(settings, names, plugins)
    journal = _create_journal(settings, identities, missed)

    def build_in_process() -> DeliveryHandle:
        delivery = _build_in_process(settings, build_exporters(settings, names, plugins), journal)
        delivery.start()
        return delivery

    def build_handover() -> DeliveryHandle:
        companion = Companion(settings.dir, companion_name(identities), _companion_environ(settings, names, environ))
        handover: Handover = Handover(
            journal,
            companion,
            _disk_limit(settings),
            _fault_counts,
            lambda: journal.take_over_delivery() and replace_delivery(handover, build_in_process),
        )
        return handover

    return journal, build_handover


def _disk_limit(settings: Settings) -> DiskLimit:
    return DiskLimit(settings.dir, settings.disk_limit)


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


def _build_in_memory(settings: Settings, reason: JournalError, missed: int) -> MemoryDelivery:
    """Build a delivery without files, to the exporters that need none. JournalError if there is no such exporter."""
    settings = replace(settings, delivery="in-process")
    names = [name for name in exporter_names(settings) if name not in ("local", "prometheus")]
    if not names:
        raise reason
    message = (
        "%s. Records are kept in memory instead, and end with the process if they are not delivered; traces and metrics are not stored."
    )
    _warnings.warn_once("directory", message, reason)
    detection = resource_detectors.detect(settings.resource_detectors, renew=True)
    instance_id = new_instance_id()
    delivery = MemoryDelivery(
        build_exporters(settings, names),
        lambda: process_resource(settings, instance_id, detection.wait()),
        read_ranks(os.environ),
        genai_events=settings.genai_events,
    )
    delivery.missed = missed
    _start_exporters(delivery.workers, lambda: {**delivery.health(), **_fault_counts()})
    return delivery


def _create_journal(settings: Settings, identities: Iterable[str], missed: int) -> Journal:
    try:
        # The variables are read now, because programs that start their ranks themselves set them in the running process.
        ranks = read_ranks(os.environ)
        detection = resource_detectors.detect(settings.resource_detectors, renew=True)
        build_resource = partial(process_resource, settings, new_instance_id())
        is_known = detection.is_done
        journal = Journal(
            settings.dir,
            settings.pages_dir,
            tuple(identities),
            build_resource(detection.attributes),
            settings.delivery,
            missed,
            ranks,
            is_resource_known=is_known,
        )
        if not is_known:
            detection.when_done(lambda detected: journal.set_resource(build_resource(detected)))
    except OSError as error:
        raise_host_exception(error)
        raise JournalError(f"{settings.dir}: a journal cannot be created ({error.strerror})") from error
    program_pid = os.environ.get(environment.RUN_PID, "")
    if program_pid.isdecimal() and int(program_pid) != os.getpid():
        recording_children.add_child(settings.dir, int(program_pid))
    return journal


def _build_in_process(settings: Settings, exporters: list[Exporter], journal: Journal) -> Delivery:
    delivery = _build_delivery(settings, exporters, journal)
    _start_exporters(delivery.workers, lambda: {**delivery.health(), **_fault_counts()})
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
        self._identities = exporter_identities(settings, self._names, build_plugins(settings, self._names))
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
    with delivering_dead(settings, timeout) as delivery:
        pass
    return delivery.interrupted


def build_dead_delivery(settings: Settings) -> Delivery:
    """Build a delivery for the records of dead processes."""
    return Delivery(settings.dir, build_exporters(settings), disk_limit=settings.disk_limit, genai_events=settings.genai_events)


@contextmanager
def delivering_dead(settings: Settings, timeout: float = 10.0) -> Iterator[Delivery]:
    """Deliver the records of dead processes in the state directory during the block, for at most `timeout` seconds after it."""
    if "local" in settings.exporters:
        _move_former_traces(settings)
    delivery = build_dead_delivery(settings)
    delivery.start()
    try:
        yield delivery
    finally:
        delivery.close(timeout)


def _move_former_traces(settings: Settings) -> None:
    """Move everything that an earlier version stored to the present trace store: 20,000 spans take about a second."""
    from ckpt_observe.exporters.local import LocalExporter  # noqa: PLC0415
    from ckpt_observe.tracestore.former_store import FORMER_FILENAME  # noqa: PLC0415

    if (settings.dir / FORMER_FILENAME).exists():
        exporter = LocalExporter(settings.dir)
        exporter.move_former(math.inf)
        exporter.close()


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
        exporter = worker.exporter
        try:
            exporter.start(health)
        except Exception as error:  # the other exporters go on, and this one is started again with its next spans
            raise_host_exception(error)
            warn("Exporter %s: start() failed: %r. Trying again.", worker.name, error)
            worker.exporter = UnbuiltExporter(worker.name, worker.identity, partial(_same, exporter))
            worker.exporter.start(health)


def _same(exporter: Exporter) -> Exporter:
    return exporter


def companion_name(identities: Iterable[str]) -> str:
    """Return a name for a set of exporters. A companion delivers only for processes with the same exporters."""
    return hashlib.sha256("\n".join(sorted(identities)).encode()).hexdigest()[:12]


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
