"""Runs delivery: one thread collects pages and adopts journals; one thread for each exporter delivers.

So an exporter that is down delays neither the others nor the collection of pages. Delivery runs in the host program itself, or in a
companion or daemon, which has no journal and also delivers the journals of live processes.
"""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from ckpt_observe.config import DISK_LIMIT
from ckpt_observe.delivery.adoption import Adoption, LiveExporters
from ckpt_observe.delivery.annotation import Annotator
from ckpt_observe.delivery.disk_limit import DiskLimit
from ckpt_observe.delivery.exporter_worker import ExporterWorker
from ckpt_observe.delivery.lost_steps import History
from ckpt_observe.delivery.outbox import Outbox
from ckpt_observe.delivery.page_collector import POLL_INTERVAL, SYNC_INTERVAL, PageCollector
from ckpt_observe.delivery.save_index import SaveIndex
from ckpt_observe.delivery.send_marks import deliver_once, must_wait
from ckpt_observe.exporter import Exporter
from ckpt_observe.journal.directory import Counts
from ckpt_observe.journal.journal import Journal
from ckpt_observe.semconv import metrics
from ckpt_observe.support.host_exceptions import raise_host_exception
from ckpt_observe.support.logs import WarningLog
from ckpt_observe.support.wakeup import Wakeup

SCAN_INTERVAL: Final = 2.0
"""Seconds between two scans of the other processes' journals."""
SCAN_RATE: Final = 10
"""Journals scanned per second if there are many, because every process scans."""
LIVE_SCAN_INTERVAL: Final = 0.5
"""SCAN_INTERVAL of a companion or daemon, which scans for all processes. Nobody else notices when one of them dies."""
LIVE_SCAN_RATE: Final = 500
REST_INTERVAL: Final = 0.5
"""Seconds that an exporter rests after a batch, unless somebody waits in `flush()`. The first operation after a pause is delivered at once;
of many, more are in a batch, which costs half as much per operation as ten batches per second."""
LONG_REST_INTERVAL: Final = 1.0
"""The same after a batch of LARGE_BATCH spans or more. A program that makes so many pays 4 % less for delivery."""
LARGE_BATCH: Final = 1000


class Delivery:
    """Delivers the journal of this process, if it has one, and the journals of other processes that it adopts.

    Args:
        state: The state directory.
        journal: The journal of this process, or None in a companion or daemon.
        exporters: Where to deliver. One thread is started for each.
        history: Returns the last save of a task that was delivered earlier, or None.
        live_exporters: Which journals of live processes to deliver, and to which exporters. None: only those of dead processes.
        disk_limit: Bytes that ended processes may leave in the state directory.
        genai_events: Whether spans get OpenTelemetry's draft events for AI agents.

    """

    def __init__(
        self,
        state: Path,
        exporters: Sequence[Exporter],
        journal: Journal | None = None,
        history: History = lambda _task: None,
        live_exporters: LiveExporters | None = None,
        disk_limit: int = DISK_LIMIT,
        *,
        genai_events: bool = False,
    ) -> None:
        self._journal = journal
        self.workers = [ExporterWorker(exporter) for exporter in exporters]
        workers = {worker.identity: worker for worker in self.workers}
        small_batches = [worker.identity for worker in self.workers if worker.exporter.settle_seconds is not None]
        self._save_index = SaveIndex(state)
        annotator = Annotator(history, self._save_index, self._adopt)
        self._outbox: Outbox | None = None
        self._collector: PageCollector | None = None
        if journal is not None:
            # Records that were written while another process was to deliver them are not annotated yet.
            annotate = annotator.annotate if journal.about.delivery != "in-process" else None
            self._outbox = Outbox(
                journal.directory,
                journal.about.resource,
                workers,
                annotate,
                genai_events=genai_events,
                small_batches=small_batches,
                attributes=journal.about.attributes,
            )
            self._collector = PageCollector(journal, self._outbox.enforce_spool_limit, annotator.annotate)
        self.adoption = Adoption(
            state,
            workers,
            tuple(exporter.identity for exporter in exporters if not exporter.durable),
            journal.directory if journal else "",
            live_exporters,
            annotator,
            DiskLimit(state, disk_limit),
            paused=lambda: [worker.identity for worker in self.workers if not worker.ready()],
            small_batches=small_batches,
            must_wait=lambda outbox, identity: must_wait(workers[identity], outbox),
            genai_events=genai_events,
        )
        self._scan_interval, self._scan_rate = (
            (SCAN_INTERVAL, SCAN_RATE) if live_exporters is None else (LIVE_SCAN_INTERVAL, LIVE_SCAN_RATE)
        )
        self._lock = threading.RLock()
        """Of the conditions. Entered itself: `Condition.__enter__` leaves it held if a signal handler raises there."""
        self._news = threading.Condition(self._lock)
        """Notifies the exporter threads that the spool has new records."""
        self._progress = threading.Condition(self._lock)
        """Notifies `flush()` that an exporter has received something."""
        self._wakeup = journal.pool.wakeup if journal is not None else Wakeup()
        """Ends the pause of the collecting thread."""
        self._rest = threading.Condition(self._lock)
        """Ends the rest of the exporter threads. Not `_news`, which would wake them ten times a second."""
        self._flushes: set[object] = set()
        """One object for each thread that waits in `flush()`."""
        self._stopping = threading.Event()
        work: list[tuple[str, Callable[..., None], tuple[ExporterWorker, ...]]] = [("collect", self._collect_forever, ())]
        work += [(f"exporter-{worker.name}", self._deliver_forever, (worker,)) for worker in self.workers]
        self._threads = [threading.Thread(target=run, args=args, name=f"ckpt-observe-{name}", daemon=True) for name, run, args in work]
        self._warnings = WarningLog()
        self.last_pass = time.monotonic()
        """When the collecting thread started its last pass. Shows that it is alive."""

    def start(self) -> None:
        """Start the threads that do not run yet. RuntimeError if the system refuses one."""
        for thread in self._threads:
            if thread.ident is None:
                thread.start()

    def flush(self, timeout: float = 5.0) -> bool:
        """Deliver everything recorded so far to every exporter. Return False on timeout, or if a server fails on some of the spans."""
        deadline = time.monotonic() + timeout
        self._collect_all(deadline)
        self.adoption.scan()
        for worker in self.workers:
            worker.retry_now()
        with self._without_rest():
            while self.pending():
                self._take_turns()
                remaining = deadline - time.monotonic()
                if remaining <= 0 or not any(thread.is_alive() for thread in self._threads[1:]):
                    return False
                with self._lock:
                    self._progress.wait(min(remaining, POLL_INTERVAL))
        return not self._has_set_aside()

    @contextmanager
    def _without_rest(self) -> Iterator[None]:
        """Let no exporter rest during the block."""
        flush = object()
        try:
            self._flushes.add(flush)
            self._notify(self._rest)
            self._notify(self._news)
            yield
        finally:
            self._flushes.discard(flush)

    def close(self, timeout: float = 2.0) -> bool:
        """Flush and stop. Return whether everything was delivered; the next process delivers what was not."""
        if self._stopping.is_set():
            return not self.pending() and not self._has_set_aside()
        deadline = time.monotonic() + timeout
        self.flush(timeout)
        self._stopping.set()
        self._wakeup.ring()
        self._notify(self._rest)
        self._notify(self._news)
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(max(0.0, deadline + POLL_INTERVAL - time.monotonic()))
        is_stopped = not any(thread.is_alive() for thread in self._threads)
        if is_stopped:
            self._collect_all(math.inf)  # operations that finished during the flush go to the spool for the next process
        is_delivered = not self.pending() and not self._has_set_aside()
        self.adoption.release()
        self._close_journal(can_remove=is_delivered and is_stopped)
        self._save_index.close()
        if is_stopped:  # an exporter that hangs is not closed; it ends with the process
            for worker in self.workers:
                worker.close()
        return is_delivered

    def _close_journal(self, *, can_remove: bool) -> None:
        if self._journal is None:
            return
        if can_remove and self._journal.pool.retire() and not self._journal.pool.has_uncollected():
            self._journal.remove()
        else:
            self._sync()  # the next process may come after a reboot
            self._journal.release()

    @property
    def interrupted(self) -> int:
        """Number of interrupted operations of dead processes that were reported."""
        return self.adoption.interrupted

    def health(self) -> Counts:
        """Return the counters of this delivery and its journals, by metric and labels."""
        totals = Counter(self.adoption.health())
        for part in (self._collector, self._outbox):
            if part is not None:
                totals.update(part.health())
        for worker in self.workers:
            totals[metrics.DELIVERED_SPANS.name, (worker.name,)] += worker.delivered
            totals[metrics.REFUSED_SPANS.name, (worker.name,)] += worker.refused
            totals[metrics.SET_ASIDE_SPANS.name, (worker.name,)] += worker.set_aside
            totals[metrics.RETRIES.name, (worker.name,)] += worker.retries
        return dict(totals)

    # The collecting thread

    def _collect_forever(self) -> None:
        last_sync = last_scan = 0.0
        while not self._stopping.is_set():
            self.last_pass = now = time.monotonic()
            try:
                self._collect()
                for outbox in self._outboxes():
                    outbox.marks.renew()
                if self._collector and now - last_sync >= SYNC_INTERVAL:
                    if not last_sync:
                        self._collector.remove_orphans()
                    last_sync = now
                    self._sync()
                since_scan = now - last_scan
                if since_scan >= self._scan_interval and since_scan >= self.adoption.journal_count() / self._scan_rate:
                    last_scan = now
                    self._adopt()
                    self.adoption.maintain()
                self._take_turns()
            except Exception as error:  # the next pass may succeed; a thread that ended would lose everything
                raise_host_exception(error)
                self._warnings.warn_once(type(error).__name__, "Internal error while collecting records: %r", error)
            self._wakeup.wait(POLL_INTERVAL)

    def _sync(self) -> None:
        if self._collector is not None and self._outbox is not None:
            self._collector.sync()
            self._outbox.count_missing(self._collector.journal.spool.take_missing())

    def _collect_all(self, deadline: float) -> None:
        if self._collector is not None:
            self._collector.collect_all(deadline)

    def _collect(self) -> bool:
        """Move finished operations to the spool. Return True if there were any."""
        if self._collector is None or not self._collector.collect():
            return False
        self._notify(self._news)
        return True

    def _adopt(self) -> None:
        if self.adoption.scan():
            self._notify(self._news)

    def _take_turns(self) -> None:
        if self.adoption.take_turns():
            self._notify(self._news)

    # The exporter threads

    def _outboxes(self) -> list[Outbox]:
        return ([self._outbox] if self._outbox else []) + self.adoption.outboxes()

    def pending(self) -> bool:
        """Return whether something was recorded that one of our exporters has not received, and could receive now."""
        if self.adoption.waiting() or (self._journal is not None and self._journal.pool.has_uncollected()):
            return True
        try:
            return any(self._is_pending(outbox, worker) for outbox in self._outboxes() for worker in self.workers)
        except OSError as error:  # the spool exists, but cannot be read now
            raise_host_exception(error)
            return True

    def _is_pending(self, outbox: Outbox, worker: ExporterWorker) -> bool:
        if not outbox.delivers_to(worker.identity) or (outbox is not self._outbox and must_wait(worker, outbox)):
            return False  # what another process may have sent waits for the next process, if this one ends soon
        return outbox.has_batch(worker.identity)

    def _has_set_aside(self) -> bool:
        return self._outbox is not None and self._outbox.set_aside.count() > 0

    def _await_resource(self) -> None:
        """Wait until the resource of this process is known: detectors may ask servers. All its spans have the same one."""
        if self._journal is None or self._outbox is None:
            return
        while not self._journal.resource_known.wait(POLL_INTERVAL):
            if self._stopping.is_set():
                return
        self._outbox.set_resource(self._journal.about.resource)

    def _deliver_forever(self, worker: ExporterWorker) -> None:
        self._await_resource()
        while not self._stopping.is_set():
            try:
                delivered = self._deliver(worker) if worker.ready() else 0
            except Exception as error:
                raise_host_exception(error)
                key = f"{worker.name} {type(error).__name__}"
                self._warnings.warn_once(key, "Internal error while delivering to exporter %s: %r", worker.name, error)
                delivered = 0
            if not delivered:
                with self._lock:
                    self._news.wait(POLL_INTERVAL)
                continue
            self._notify(self._progress)
            if not any(outbox.has_large_backlog(worker.identity) for outbox in self._outboxes()):
                seconds = REST_INTERVAL if delivered < LARGE_BATCH else LONG_REST_INTERVAL
                with self._lock:
                    self._rest.wait_for(lambda: self._flushes or self._stopping.is_set(), seconds)

    def _notify(self, condition: threading.Condition) -> None:
        with self._lock:
            condition.notify_all()

    def _deliver(self, worker: ExporterWorker) -> int:
        """Deliver one batch of each journal. Return the number of spans that the exporter is done with."""
        delivered = 0
        for outbox in sorted(self._outboxes(), key=lambda outbox: outbox.directory == worker.failed_directory):
            with outbox.used_by(worker.identity) as is_usable:
                if not is_usable or not outbox.delivers_to(worker.identity) or must_wait(worker, outbox):
                    continue
                try:
                    spans, after = outbox.next_batch(worker.identity)
                except OSError as error:  # the other journals do not wait for this one
                    raise_host_exception(error)
                    self._warnings.warn_once(outbox.directory, "Cannot read %s: %s. Trying again.", outbox.directory, error)
                    continue
                selection = worker.select(spans)
                if selection and not deliver_once(worker, outbox, selection):
                    worker.failed_directory = outbox.directory  # last next time: another journal may be accepted
                    return delivered
                outbox.advance(worker.identity, after)
                delivered += len(spans)
                if not spans:
                    worker.retry_set_aside(outbox.set_aside)
        return delivered
