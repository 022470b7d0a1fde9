"""Delivers batches to one exporter: retries with back-off, isolates spans that are refused, and counts the results."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from typing import Final

from ckpt_observe.errors import ExporterRefusedError, ExporterRetryError
from ckpt_observe.exporter import Exporter
from ckpt_observe.span import Span
from ckpt_observe.support.logs import warn

FIRST_PAUSE: Final = 0.5
"""Seconds before the first retry. Each further failure doubles the pause."""
LONGEST_PAUSE: Final = 60.0
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
        self.retries = 0
        """Number of failed attempts."""
        self.last_error: str | None = None
        """Why the last attempt failed, or None if it succeeded."""
        self.failing_since: float | None = None
        """Time (monotonic) of the first failure since the last success."""
        self._pause = 0.0
        self._next_attempt = 0.0

    def ready(self) -> bool:
        """Return whether the pause after a failure is over."""
        return time.monotonic() >= self._next_attempt

    def retry_now(self) -> None:
        """End the pause: somebody waits in `flush()`."""
        self._next_attempt = 0.0

    def close(self) -> None:
        """Close the exporter. An error of it is logged: the others are still to be closed."""
        try:
            self.exporter.close()
        except Exception as error:
            warn("Exporter %s: close() failed: %r", self.name, error)

    def deliver(self, spans: Sequence[Span]) -> bool:
        """Send spans. Return True if the exporter has them or will never accept them, False if they must be sent again."""
        try:
            refused = self._send(spans)
        except ExporterRetryError as error:
            self.retries += 1
            self.failing_since = self.failing_since or time.monotonic()
            self._back_off(error)
            return False
        self.delivered += len(spans) - refused  # not earlier: a batch that is sent again is counted once
        self.refused += refused
        self._pause, self._next_attempt, self.failing_since = 0.0, 0.0, None
        return True

    def _send(self, spans: Sequence[Span]) -> int:
        """Send spans and return how many were refused. A refused batch is halved until each bad span is alone."""
        if not spans:
            return 0
        try:
            self.exporter.send(spans)
        except ExporterRefusedError as error:
            if len(spans) > 1:
                middle = len(spans) // 2
                return self._send(spans[:middle]) + self._send(spans[middle:])
            self._record_error(f"{error}. Span {spans[0].span_id} is not delivered.")
            return 1
        except ExporterRetryError:
            raise
        except Exception as error:  # a bug of the exporter: retried, because nothing may be lost by it
            raise ExporterRetryError(f"{type(error).__name__}: {error}") from error
        self.last_error = None
        return 0

    def _back_off(self, error: ExporterRetryError) -> None:
        self._pause = min(LONGEST_PAUSE, max(FIRST_PAUSE, self._pause * 2))
        pause = self._pause if error.after is None else max(error.after, FIRST_PAUSE)
        self._next_attempt = time.monotonic() + pause * _jitter(0.8, 1.2)
        self._record_error(f"{error}. Spans are kept and sent again.")

    def _record_error(self, message: str) -> None:
        if self.last_error is None:  # one warning for each outage, not for each attempt
            warn("Exporter %s: %s", self.name, message)
        self.last_error = message
