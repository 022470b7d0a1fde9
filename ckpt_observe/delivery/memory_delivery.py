"""Delivers from memory, for a process that can write to no directory at all: neither disk nor shared memory.

Finished operations wait in memory, in bounded queues, and one thread for each exporter delivers them. What is not delivered ends with the
process, and so do running operations: recovery needs files. Exporters that store on this machine are left out.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from ckpt_observe.delivery.assemble import assemble
from ckpt_observe.delivery.exporter_worker import ExporterWorker
from ckpt_observe.delivery.page_collector import POLL_INTERVAL
from ckpt_observe.exporter import Exporter
from ckpt_observe.journal.directory import Counts
from ckpt_observe.journal.pages import AnyPage, MemoryPage
from ckpt_observe.journal.pool import MAX_OVERFLOW_PAGES
from ckpt_observe.journal.spool import join_lines
from ckpt_observe.semconv import metrics
from ckpt_observe.support.host_exceptions import raise_host_exception
from ckpt_observe.support.logs import WarningLog

MAX_RECORDS: Final = 5000
"""Operations that may wait for one exporter, about 10 MB. Later ones are dropped and counted."""
_BATCH: Final = 200


class MemoryDelivery:
    """Journal and delivery in one: hands out pages in memory, and delivers what was written to them."""

    def __init__(
        self,
        exporters: Sequence[Exporter],
        resource: Callable[[], dict[str, Any]],
        attributes: dict[str, Any],
        *,
        genai_events: bool = False,
    ) -> None:
        """`resource` is called by threads of this delivery, and may take seconds."""
        self._resource, self._attributes, self._genai_events = resource, attributes, genai_events
        self.closed = False
        self.dropped = 0
        """Operations that found a full queue, for each exporter."""
        self._recorded = 0
        self.missed = 0
        """Operations that came before this delivery could be built."""
        self.workers = [ExporterWorker(exporter) for exporter in exporters]
        self._queues: dict[str, deque[bytes]] = {worker.identity: deque() for worker in self.workers}
        self._stopping = threading.Event()
        self._warnings = WarningLog()
        self._threads = [
            threading.Thread(target=self._deliver_forever, args=(worker,), name=f"ckpt-observe-exporter-{worker.name}", daemon=True)
            for worker in self.workers
        ]

    def start(self) -> None:
        """Start the threads that do not run yet. RuntimeError if the system refuses one."""
        for thread in self._threads:
            if thread.ident is None:
                thread.start()

    # The pages, used by threads of the host program

    def take(self) -> AnyPage | None:
        """Return a page for a new operation, or None if the delivery is closed."""
        return None if self.closed else MemoryPage(self)

    def give_back(self, page: AnyPage) -> None:
        """Queue an operation that has ended."""
        record = join_lines(b"".join(_lines(page)))
        self._recorded += 1
        for queue in self._queues.values():
            if len(queue) < MAX_RECORDS:
                queue.append(record)
            else:
                self.dropped += 1

    def count_recorded(self) -> int:
        """Return how many operations and tasks have finished."""
        return self._recorded

    def discard(self, page: AnyPage) -> None:
        """Forget an operation that is not recorded: nothing refers to its page."""

    def append_overflow(self, page: AnyPage, line: bytes) -> bool:
        """Store a line in another page, because its own page is full. Return False if there is no room."""
        pages = page.overflow_pages
        if not pages or not pages[-1].has_room(line):
            new_page = MemoryPage(self)
            if len(pages) > MAX_OVERFLOW_PAGES or not new_page.has_room(line):
                return False
            page.overflow_pages = (*pages, new_page)
        return page.overflow_pages[-1].append(line)

    def close_after_fork(self) -> None:
        """In a forked child: the records belong to the parent, which delivers them."""
        self.closed = True

    # Delivery

    def flush(self, timeout: float = 5.0) -> bool:
        """Deliver everything recorded so far. Return False on timeout."""
        deadline = time.monotonic() + timeout
        for worker in self.workers:
            worker.retry_now()
        while any(self._queues.values()):
            if time.monotonic() >= deadline:
                return False
            self._stopping.wait(POLL_INTERVAL / 10)
        return True

    def close(self, timeout: float = 2.0) -> bool:
        """Flush and stop. Return whether everything was delivered; the rest is lost."""
        self.closed = True
        is_delivered = self.flush(timeout)
        self._stopping.set()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(timeout + POLL_INTERVAL)
        for worker, thread in zip(self.workers, self._threads, strict=True):
            if not thread.is_alive():  # an exporter that hangs is not closed; it ends with the process
                worker.close()
        return is_delivered

    def health(self) -> Counts:
        """Return the counters of this delivery, by metric and labels."""
        dropped = metrics.DROPPED_RECORDS.name
        counts: Counts = {(dropped, ("overflow",)): float(self.dropped), (dropped, ("missed",)): float(self.missed)}
        for worker in self.workers:
            counts[metrics.DELIVERED_SPANS.name, (worker.name,)] = float(worker.delivered)
            counts[metrics.REFUSED_SPANS.name, (worker.name,)] = float(worker.refused)
            counts[metrics.RETRIES.name, (worker.name,)] = float(worker.retries)
        return counts

    def _deliver_forever(self, worker: ExporterWorker) -> None:
        queue = self._queues[worker.identity]
        while not self._stopping.is_set():
            try:
                if worker.ready() and self._deliver(worker, queue):
                    continue
            except Exception as error:  # the next attempt may succeed
                raise_host_exception(error)
                key = f"{worker.name} {type(error).__name__}"
                self._warnings.warn_once(key, "Internal error while delivering to exporter %s: %r", worker.name, error)
            self._stopping.wait(POLL_INTERVAL)

    def _deliver(self, worker: ExporterWorker, queue: deque[bytes]) -> bool:
        """Deliver one batch. Return whether the exporter is done with it."""
        records = [queue[number] for number in range(min(len(queue), _BATCH))]  # only this thread removes
        if not records:
            return False
        resource = self._resource()
        assembled = (assemble(record, resource, self._attributes, genai_events=self._genai_events) for record in records)
        spans = worker.select([span for record_spans in assembled for span in record_spans])
        if spans and not worker.deliver(spans):
            return False
        for _ in records:
            queue.popleft()
        return True


def _lines(page: AnyPage) -> Iterator[bytes]:
    yield page.read_lines()
    for overflow_page in page.overflow_pages:
        yield from _lines(overflow_page)
