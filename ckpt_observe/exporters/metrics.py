"""Adds spans to the metrics of a state directory and publishes these metrics: on an endpoint, to a file, Pushgateway or OTel Collector.

`send` only adds to the store on disk, which is quick and uses no network; every process that delivers does it. Publishing is done by one
process at a time: the one that holds the publisher's lock, which the kernel releases when that process dies. The others try to get it
every two seconds. Several processes with the same port are therefore normal: one serves the total of all; when it ends, another takes over.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Protocol, TypeAlias

from ckpt_observe.errors import ExporterRefusedError, ExporterRetryError
from ckpt_observe.exporter import Exporter, Health
from ckpt_observe.metricstore.aggregation import SeriesKey
from ckpt_observe.metricstore.metric_store import FILENAME, MetricStore, StoredMetrics
from ckpt_observe.metricstore.snapshot import Snapshot
from ckpt_observe.span import Span
from ckpt_observe.support import forks
from ckpt_observe.support.host_exceptions import raise_host_exception
from ckpt_observe.support.http_client import untraced
from ckpt_observe.support.locks import FileLock
from ckpt_observe.support.logs import WarningLog

TAKEOVER_INTERVAL: Final = 2.0
"""Seconds between attempts to get a publisher's lock, and between two reports of this process's own counters."""
CLOSE_TIMEOUT: Final = 2.0
"""Seconds that `close` waits for the last publication."""

Gather: TypeAlias = Callable[[], tuple[StoredMetrics, Snapshot]]
"""Returns the contents of the metric store, and the snapshot of all current metrics that is made from them."""


class Publisher(Protocol):
    """One way for metrics to leave the process."""

    name: str
    """Publishers of different processes with the same name share one lock."""
    interval: float
    """Seconds between two publications."""

    def publish(self, gather: Gather, /) -> None:
        """Publish the current metrics. If it raises any exception, it is called again later."""

    def close(self) -> None: ...

    def close_inherited(self) -> None:
        """In a forked child: close copies of the parent's resources."""


class PublisherLock:
    """The right to publish for all processes of a state directory. Acquiring it never blocks. It is held until `release()`."""

    def __init__(self, directory: Path, publisher: str) -> None:
        self._path = lock_path(directory, publisher)
        self._lock: FileLock | None = None

    def try_acquire(self) -> bool:
        """Try to get the lock if this object does not hold it, and return whether it does now. OSError if the directory cannot be used."""
        if self._lock is None:
            self._lock = FileLock.try_acquire(self._path)
        return self._lock is not None

    def release(self) -> None:
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.release()


def lock_path(directory: Path, publisher: str) -> str:
    """Return the lock file of a publisher in a state directory."""
    return str(directory / f"metrics-{publisher}.lock")


class MetricsExporter(Exporter):
    """Adds spans to the metric store. After `start` it also publishes the metrics."""

    name = "prometheus"
    receives_unsampled = True

    def __init__(self, directory: Path, gather: Gather, publishers: Sequence[Publisher] = ()) -> None:
        self.path = directory / FILENAME
        self._gather, self._publishers = gather, publishers
        self._publisher_locks = [PublisherLock(directory, publisher.name) for publisher in publishers]
        self._store: MetricStore | None = None
        self._store_lock = threading.Lock()
        self._reported: dict[SeriesKey, float] = {}
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []
        self._warnings = WarningLog()
        forks.register(self)

    def __repr__(self) -> str:
        return f"MetricsExporter({str(self.path)!r}, {[publisher.name for publisher in self._publishers]})"

    def send(self, spans: Sequence[Span]) -> None:
        """Add all spans that were not counted before, or none.

        ExporterRetryError if the file is locked or damaged, or the disk is full. ExporterRefusedError if a span is invalid.
        """
        if spans:
            try:
                self._change(lambda store: store.add_spans(spans))
            except (ValueError, TypeError) as error:
                raise ExporterRefusedError(f"a span cannot be counted: {error}") from error

    def start(self, health: Health) -> None:
        """Start the threads that publish the metrics and that add this process's own counters, which `health` returns, to the store."""
        jobs: list[tuple[Callable[..., None], tuple[object, ...]]] = [(self._report_forever, (health,))]
        jobs += [(self._publish_forever, pair) for pair in zip(self._publishers, self._publisher_locks, strict=True)]
        self._threads = [threading.Thread(target=run, args=args, name="ckpt-observe-metrics", daemon=True) for run, args in jobs]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Publish a last time and stop, after CLOSE_TIMEOUT at the latest. May be called twice."""
        self._stopping.set()
        deadline = time.monotonic() + CLOSE_TIMEOUT
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        with self._store_lock:
            self._close_store()

    def _change(self, change: Callable[[MetricStore], None]) -> None:
        """Apply a change to the store, which is opened if needed and closed after any error. ExporterRetryError if the file fails."""
        with self._store_lock:
            if self._store is not None and self._store.is_replaced():
                self._close_store()
            try:
                if self._store is None:
                    self._store = MetricStore(self.path)
                change(self._store)
            except (sqlite3.Error, OSError) as error:
                raise_host_exception(error)
                self._close_store()
                message = (
                    f"{self.path}: {error}. If the file is damaged or belongs to another program, move it away; a new one is then created."
                )
                raise ExporterRetryError(message) from error
            except BaseException:
                self._close_store()
                raise

    def _close_store(self) -> None:
        store, self._store = self._store, None
        if store is not None:
            store.close()

    def _report_forever(self, health: Health) -> None:
        """Add the increase of this process's own counters to the store: at the start, every TAKEOVER_INTERVAL and at the end."""
        stopping, pause = False, 0.0
        while not stopping:
            stopping = self._stopping.wait(pause)
            counters, pause = health(), TAKEOVER_INTERVAL
            changes = {key: value - self._reported.get(key, 0.0) for key, value in counters.items() if value != self._reported.get(key)}
            try:
                if changes:
                    self._change(lambda store: store.add_counts(changes))  # noqa: B023 - called immediately
                self._reported = dict(counters)
            except ExporterRetryError:
                pass  # `send` raises the same error, and the next pass adds these counts

    def _publish_forever(self, publisher: Publisher, lock: PublisherLock) -> None:
        stopping, pause = False, 0.0
        with untraced():
            while not stopping:
                stopping = self._stopping.wait(pause)
                try:
                    if lock.try_acquire():
                        publisher.publish(self._gather)
                        pause = publisher.interval
                    else:
                        pause = TAKEOVER_INTERVAL
                    self._warnings.clear(publisher.name)
                except Exception as error:  # any error: metrics must not stop for the rest of the process
                    raise_host_exception(error)
                    self._warnings.warn_once(
                        publisher.name, "Metrics are not published (%s): %s. Publishing is retried.", publisher.name, error
                    )
                    pause = min(max(TAKEOVER_INTERVAL, 2 * pause), max(TAKEOVER_INTERVAL, publisher.interval))
        publisher.close()
        lock.release()

    def reset_after_fork(self) -> None:
        """In a forked child: release copies of the parent's sockets and locks. The SQLite connection must not even be closed here."""
        if self._store is not None:
            forks.keep_alive(self._store)
            self._store = None
        for publisher, lock in zip(self._publishers, self._publisher_locks, strict=True):
            publisher.close_inherited()
            lock.release()
