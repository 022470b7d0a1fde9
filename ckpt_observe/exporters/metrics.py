"""Spans into the metrics of a state directory, and these to whoever reads them: an endpoint, a file, a gateway, a collector.

`send` only adds to the store on disk: quick, without a network, each process for itself. Publishing is for one process at a time: an
outlet belongs to whoever holds its lock, which the kernel gives back when that process dies; the others ask again every two seconds. So
several processes with one port are the normal case: one of them serves the sum of all, and another takes over.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Protocol

from ckpt_observe.errors import ExporterRefusedError, ExporterRetryError
from ckpt_observe.exporter import Exporter, Health
from ckpt_observe.metricstore.snapshot import Snapshot
from ckpt_observe.metricstore.store import FILENAME, MetricStore, Sum
from ckpt_observe.metricstore.tally import Key
from ckpt_observe.metricstore.turn import Turn
from ckpt_observe.span import Span
from ckpt_observe.support import forks
from ckpt_observe.support.http_client import untraced

logger = logging.getLogger("ckpt_observe")

TICK: Final = 2.0
"""Seconds until an outlet whose holder died is taken over, and between two reports of our own health."""
PATIENCE: Final = 2.0
"""Seconds that `close` waits for the last publication."""

"""Counters of this process that do not come from spans, as they stand."""
Gather = Callable[[], tuple[Sum, Snapshot]]
"""All metrics, as they stand."""


class Outlet(Protocol):
    """A way out for metrics."""

    name: str
    """What makes it one with the same outlet of another process: their lock has this name."""
    every: float
    """Seconds between two publications."""

    def publish(self, gather: Gather, /) -> None:
        """Bring them out. OSError or sqlite3.Error: not now."""

    def close(self) -> None: ...

    def forget(self) -> None:
        """In a forked child: it is the parent's."""


class MetricsExporter(Exporter):
    """Adds spans to the metrics. After `start` it publishes them, too."""

    name = "prometheus"

    def __init__(self, directory: Path, gather: Gather, outlets: Sequence[Outlet] = ()) -> None:
        self.path = directory / FILENAME
        self._gather, self._outlets = gather, outlets
        self._turns = [Turn(directory, outlet.name) for outlet in outlets]
        self._store: MetricStore | None = None
        self._using = threading.Lock()
        self._reported: dict[Key, float] = {}
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []
        forks.register(self)

    def __repr__(self) -> str:
        return f"MetricsExporter({str(self.path)!r}, {[outlet.name for outlet in self._outlets]})"

    def send(self, spans: Sequence[Span]) -> None:
        """Count all new spans, or raise ExporterRetryError (locked, full, damaged) or ExporterRefusedError (not a span)."""
        if spans:
            try:
                self._change(lambda store: store.fold(spans))
            except (ValueError, TypeError) as error:
                raise ExporterRefusedError(f"a span cannot be counted: {error}") from error

    def start(self, health: Health) -> None:
        """Publish from now on, and report the health of this process."""
        work: list[tuple[Callable[..., None], tuple[object, ...]]] = [(self._report_forever, (health,))]
        work += [(self._publish_forever, pair) for pair in zip(self._outlets, self._turns, strict=True)]
        self._threads = [threading.Thread(target=run, args=args, name="ckpt-observe-metrics", daemon=True) for run, args in work]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Publish once more what is published by pushing, and stop. Closing twice is closing once."""
        self._stopping.set()
        deadline = time.monotonic() + PATIENCE
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        with self._using:
            self._drop()

    def _change(self, change: Callable[[MetricStore], None]) -> None:
        with self._using:
            if self._store is not None and self._store.gone():
                self._drop()
            try:
                if self._store is None:
                    self._store = MetricStore(self.path)
                change(self._store)
            except (sqlite3.Error, OSError) as error:
                self._drop()
                raise ExporterRetryError(
                    f"{self.path}: {error}; if it is damaged or not ours, move it away and a new one is made"
                ) from error
            except BaseException:
                self._drop()
                raise

    def _drop(self) -> None:
        store, self._store = self._store, None
        if store is not None:
            store.close()

    def _report_forever(self, health: Health) -> None:
        stopping, pause = False, 0.0
        while not stopping:
            stopping = self._stopping.wait(pause)
            now, pause = health(), TICK
            news = {key: value - self._reported.get(key, 0.0) for key, value in now.items() if value != self._reported.get(key)}
            try:
                if news:
                    self._change(lambda store: store.add(news))  # noqa: B023 - called at once
                self._reported = dict(now)
            except ExporterRetryError:
                pass  # `send` says so; the next report brings it

    def _publish_forever(self, outlet: Outlet, turn: Turn) -> None:
        stopping, failing, pause = False, False, 0.0
        while not stopping:
            stopping = self._stopping.wait(pause)
            try:
                if turn.mine():
                    with untraced():
                        outlet.publish(self._gather)
                    failing, pause = False, outlet.every
                else:
                    pause = TICK
            except Exception as error:  # whatever it is, it is tried again: metrics must not stop for the life of the process
                if not failing:  # once for each outage
                    logger.warning("ckpt_observe: metrics are not published (%s): %s; tried again", outlet.name, error)
                failing, pause = True, min(max(TICK, 2 * pause), max(TICK, outlet.every))
        outlet.close()
        turn.give_back()

    def reset_after_fork(self) -> None:
        """In a child: sockets, locks and connections are the parent's. SQLite forbids even to close its own here, so it is kept."""
        if self._store is not None:
            forks.keep_alive(self._store)
            self._store = None
        for outlet, turn in zip(self._outlets, self._turns, strict=True):
            outlet.forget()
            turn.give_back()
