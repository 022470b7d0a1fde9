"""One exporter, its place in each spool, and its patience: retry with back-off, set aside what is refused, count what is lost."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Sequence
from typing import Final

from ckpt_observe.errors import ExporterRefusedError, ExporterRetryError
from ckpt_observe.exporter import Exporter
from ckpt_observe.span import Span

logger = logging.getLogger("ckpt_observe")

FIRST_PAUSE: Final = 0.5
LONGEST_PAUSE: Final = 60.0
_jitter = random.SystemRandom().uniform  # never the host's `random`: its sequence is not ours to move


class ExporterWorker:
    """Brings spans to one exporter. Used by one thread."""

    def __init__(self, exporter: Exporter) -> None:
        self.exporter = exporter
        self.name = exporter.name
        self.key = exporter.identity
        self.delivered = 0
        self.refused = 0
        self.retries = 0
        self.trouble: str | None = None
        """Why the last attempt failed; None while all is well."""
        self.failing_since: float | None = None
        """When (monotonic) the first of the attempts failed of which none succeeded since."""
        self._pause = 0.0
        self._not_before = 0.0

    def ready(self) -> bool:
        """Whether the pause after a failure is over."""
        return time.monotonic() >= self._not_before

    def hurry(self) -> None:
        """Try again now: somebody is waiting."""
        self._not_before = 0.0

    def deliver(self, spans: Sequence[Span]) -> bool:
        """Whether the exporter is done with these: has them, or will never take them."""
        try:
            refused = self._send(spans)
        except ExporterRetryError as error:
            self.retries += 1
            self.failing_since = self.failing_since or time.monotonic()
            self._wait(error)
            return False
        self.delivered += len(spans) - refused  # only now: a batch that is sent again is counted once
        self.refused += refused
        self._pause, self._not_before, self.failing_since = 0.0, 0.0, None
        return True

    def _send(self, spans: Sequence[Span]) -> int:
        """How many were refused. What is refused is halved until the bad ones stand alone: one does not take a thousand with it."""
        if not spans:
            return 0
        try:
            self.exporter.send(spans)
        except ExporterRefusedError as error:
            if len(spans) > 1:
                middle = len(spans) // 2
                return self._send(spans[:middle]) + self._send(spans[middle:])
            self._report(f"{error}; span {spans[0].span_id} is left out")
            return 1
        except ExporterRetryError:
            raise
        except Exception as error:  # a fault of the exporter: treated as passing, for nothing may be lost by it
            raise ExporterRetryError(f"{type(error).__name__}: {error}") from error
        self.trouble = None
        return 0

    def _wait(self, error: ExporterRetryError) -> None:
        self._pause = min(LONGEST_PAUSE, max(FIRST_PAUSE, self._pause * 2))
        pause = self._pause if error.after is None else max(error.after, FIRST_PAUSE)
        self._not_before = time.monotonic() + pause * _jitter(0.8, 1.2)
        self._report(f"{error}; kept, and tried again")

    def _report(self, trouble: str) -> None:
        if self.trouble is None:  # once for each outage, not for each attempt
            logger.warning("ckpt_observe: exporter %s: %s", self.name, trouble)
        self.trouble = trouble
