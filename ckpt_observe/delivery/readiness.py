"""Whether a daemon works, and whether anything flows through it. The words name no address and no secret: anybody may read them."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ckpt_observe.delivery.delivery import Delivery
from ckpt_observe.delivery.outbox import SPOOL_LIMIT
from ckpt_observe.journal import spool

STUCK_AFTER: Final = 30.0
"""Seconds without a round of the delivery after which it is not alive."""
FAILING_FOR: Final = 60.0
"""Seconds that an exporter may fail before that is more than a restart of its server."""
BACKLOG: Final = SPOOL_LIMIT // 2
"""Bytes of one process that may wait: beyond twice that, records are dropped."""


class Readiness:
    """Of one delivery."""

    def __init__(self, state: Path, delivery: Delivery) -> None:
        self._state, self._delivery = state, delivery

    def alive(self) -> list[str]:
        """What is wrong with the daemon itself: restart it. Empty: nothing."""
        silent = time.monotonic() - self._delivery.seen
        return [f"the delivery did nothing for {silent:.0f} s"] if silent > STUCK_AFTER else []

    def ready(self) -> list[str]:
        """Why nothing flows, or soon will not. Empty: it does."""
        return [*self.alive(), *self._exporters(), *self._backlogs(), *self._disk()]

    def _exporters(self) -> Iterator[str]:
        for worker in self._delivery.workers:
            if worker.failing_since is not None and (seconds := time.monotonic() - worker.failing_since) > FAILING_FOR:
                yield f"exporter {worker.name}: failing for {seconds:.0f} s"

    def _backlogs(self) -> Iterator[str]:
        for outbox in self._delivery.adoption.outboxes():
            try:
                size = spool.size(outbox.directory)
            except OSError:  # delivered and removed since
                continue
            if size > BACKLOG:
                yield f"journal {os.path.basename(outbox.directory)}: {size >> 20} MiB wait"

    def _disk(self) -> Iterator[str]:
        probe = self._state / f"probe-{os.getpid()}"
        try:
            probe.write_bytes(b"x")
            probe.unlink(missing_ok=True)  # two may ask at once, and share the file
        except OSError as error:
            yield f"the state directory cannot be written: {error.strerror}"
