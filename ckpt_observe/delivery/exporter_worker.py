"""Delivers batches to one exporter: retries with back-off, isolates spans that are refused or fail, and counts the results."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from typing import Final

from ckpt_observe.delivery.batch_progress import MAX_SUSPECTS, BatchProgress, SpanKey, span_key
from ckpt_observe.delivery.set_aside import SetAside
from ckpt_observe.errors import ExporterRefusedError, ExporterRetryError, ExporterServerError
from ckpt_observe.exporter import Exporter
from ckpt_observe.span import Span, sampled_spans
from ckpt_observe.support.host_exceptions import raise_host_exception
from ckpt_observe.support.logs import warn

FIRST_PAUSE: Final = 0.5
"""Seconds before the first retry. Each further failure doubles the pause."""
LONGEST_PAUSE: Final = 60.0
RETRY_NOTICE: Final = "Spans are kept and sent again."
"""Ends the message about a failure after which the exporter tries again."""
ISOLATE_AFTER: Final = 3
"""Number of server errors after which a batch is halved to find the span that causes them. Most are outages of the server."""
STUCK_AFTER: Final = 5
"""Failures of a single span after which it is set aside although the server has accepted nothing since: nothing else is left to try."""
_MAX_BATCHES: Final = 64
_jitter = random.SystemRandom().uniform  # not the module's functions: they would change the random sequence of the host program


class ExporterWorker:
    """Sends spans to one exporter. Used by one thread."""

    def __init__(self, exporter: Exporter) -> None:
        self.exporter = exporter
        self.name = exporter.name
        self.identity = exporter.identity
        self.delivered = 0
        """Number of spans that the exporter accepted."""
        self.refused = 0
        """Number of spans that the exporter will never accept."""
        self.set_aside = 0
        """Number of spans that were set aside, because the server kept failing on them."""
        self.retries = 0
        """Number of attempts that failed and are repeated."""
        self.last_error: str | None = None
        """Why the last attempt failed, or None if it succeeded or there was none."""
        self.failing_since: float | None = None
        """Monotonic time of the first failure since the last success; None if the last attempt succeeded."""
        self.failed_directory = ""
        """The journal of the last batch that failed; empty if none failed."""
        self._accepted = 0
        """Number of spans accepted, including those of batches that are not finished."""
        self._unconfirmed = 0
        """Number of spans set aside since the exporter last accepted something."""
        self._batches: dict[SpanKey, BatchProgress] = {}
        """Batches of which a part failed, by their first span."""
        self._pause = 0.0
        self._next_attempt = 0.0

    def ready(self) -> bool:
        """Return whether the pause after a failure is over."""
        return time.monotonic() >= self._next_attempt

    def retry_now(self) -> None:
        """End the pause: somebody waits in `flush()`."""
        self._next_attempt = 0.0

    def close(self) -> None:
        """Close the exporter. An error is logged and not raised, so that the other exporters are closed too."""
        try:
            self.exporter.close()
        except Exception as error:
            raise_host_exception(error)
            warn("Exporter %s: close() failed: %r", self.name, error)

    def select(self, spans: list[Span]) -> list[Span]:
        """Return the spans that the exporter is to get: without those of unsampled traces, unless it receives them."""
        if self.exporter.receives_unsampled:
            return spans
        return sampled_spans(spans)

    def deliver(self, spans: Sequence[Span], store: SetAside | None = None) -> bool:
        """Send spans. Return True if the exporter needs none of them any more, False if some must be sent again.

        A span that the server keeps failing on is moved to `store`.
        """
        batch = self._open(spans)
        batch.accepted_before = self._accepted
        try:
            while batch.groups:
                self._send_first_group(batch, store)
        except ExporterRetryError as error:
            self.retries += 1
            self.failing_since = self.failing_since or time.monotonic()
            self._keep(batch, spans)
            self._back_off(error)
            return False
        if spans:
            self._batches.pop(span_key(spans[0]), None)
        self.delivered += batch.accepted  # not earlier: a batch that is sent again is counted once
        self.refused += batch.refused
        self.set_aside += batch.set_aside
        self._pause, self._next_attempt, self.failing_since = 0.0, 0.0, None
        return True

    def retry_set_aside(self, store: SetAside) -> None:
        """Send spans that were set aside again, if it is time and the server works."""
        if not self.ready() or not (spans := store.due(self.identity)):
            return
        self.exporter.doubt(spans)  # they failed without a clear answer, perhaps in another process
        remaining: list[Span] = []
        for number, span in enumerate(spans):
            try:
                self.exporter.send([span])
                self.delivered += 1
            except ExporterRefusedError:
                self.refused += 1
            except ExporterServerError:
                remaining.append(span)
            except Exception as error:  # down, or a bug: later
                raise_host_exception(error)
                remaining += spans[number:]
                break
        store.settle(self.identity, spans, remaining)

    def _open(self, spans: Sequence[Span]) -> BatchProgress:
        batch = self._batches.get(span_key(spans[0])) if spans and self._batches else None
        if batch is None:
            return BatchProgress(spans)
        batch.update(spans)
        return batch

    def _keep(self, batch: BatchProgress, spans: Sequence[Span]) -> None:
        self._batches[span_key(spans[0])] = batch
        while len(self._batches) > _MAX_BATCHES:
            del self._batches[next(iter(self._batches))]

    def _send_first_group(self, batch: BatchProgress, store: SetAside | None) -> None:
        """Send the first group of a batch. A refused group is halved until each bad span is alone."""
        group = batch.groups[0]
        try:
            self.exporter.send(group)
        except ExporterRefusedError as error:
            if len(group) > 1:
                batch.split()
                return
            self._record_error(f"{error}. Span {group[0].span_id} is not delivered.")
            batch.refused += len(batch.pop())
        except ExporterServerError as error:
            self._isolate(batch, store, error)
        except ExporterRetryError:
            raise
        except Exception as error:  # a bug of the exporter: retried, because nothing may be lost by it
            raise_host_exception(error)
            raise ExporterRetryError(f"{type(error).__name__}: {error}") from error
        else:
            self._accepted += len(group)
            batch.accepted += len(batch.pop())
            self.last_error, self._unconfirmed, self._pause = None, 0, 0.0

    def _isolate(self, batch: BatchProgress, store: SetAside | None, error: ExporterServerError) -> None:
        """Search for the span that the server fails on, and set it aside. Raise the error again if it looks like an outage: try later."""
        span = batch.groups[0][0]
        if len(batch.groups[0]) > 1:
            batch.failures += 1
            if batch.failures < ISOLATE_AFTER:
                raise error
            batch.split()
            return
        failures, others_are_accepted = batch.suspect(self._accepted)
        is_repeated = failures > 1 if batch.accepted else failures >= STUCK_AFTER and self._unconfirmed < MAX_SUSPECTS
        is_stuck = is_repeated and batch.all_are_suspects()
        if store is None or not (others_are_accepted or is_stuck):
            batch.try_rest_first()
            if self._accepted == batch.accepted_before:
                raise error
            batch.accepted_before = self._accepted  # the server works: go on at once
            return
        try:
            is_stored = store.add(self.identity, span)
        except OSError as disk_error:
            raise_host_exception(disk_error)
            raise ExporterRetryError(f"{error}; the span cannot be set aside: {disk_error.strerror}") from error
        self._unconfirmed += not others_are_accepted
        batch.set_aside += is_stored
        batch.refused += not is_stored
        batch.pop()
        action = "set aside and sent again later" if is_stored else "not delivered: too many are set aside"
        self._record_error(f"{str(error).removesuffix('.')}. Span {span.span_id} is {action}.")

    def _back_off(self, error: ExporterRetryError) -> None:
        self._pause = min(LONGEST_PAUSE, max(FIRST_PAUSE, self._pause * 2))
        pause = self._pause if error.after is None else max(error.after, FIRST_PAUSE)
        self._next_attempt = time.monotonic() + pause * _jitter(0.8, 1.2)
        self._record_error(f"{str(error).removesuffix('.')}. {RETRY_NOTICE}")

    def _record_error(self, message: str) -> None:
        if self.last_error is None:  # one warning for each outage, not for each attempt
            warn("Exporter %s: %s", self.name, message)
        self.last_error = message
