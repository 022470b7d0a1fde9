"""`/healthz` and `/readyz` of the daemon, for systemd, Kubernetes and people: 200 and `ok`, or 503 and one problem per line.

The text contains no address and no secret, because anybody may read it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from ckpt_observe.delivery.delivery import Delivery
from ckpt_observe.delivery.outbox import SPOOL_LIMIT
from ckpt_observe.errors import ConfigError
from ckpt_observe.journal import spool
from ckpt_observe.support.http_server import HttpServer, Request, Response

STUCK_AFTER: Final = 30.0
"""Seconds without a pass of the delivery thread after which delivery counts as stuck."""
FAILING_AFTER: Final = 60.0
"""Seconds that an exporter may fail before that is reported as a problem. A restart of its server takes less."""
MAX_BACKLOG: Final = SPOOL_LIMIT // 2
"""Bytes of one process that may wait for delivery before that is reported as a problem. At twice as many, records are dropped."""


class Readiness:
    """Finds the reasons why the daemon cannot deliver. `state` is its state directory."""

    def __init__(self, state: Path, delivery: Delivery) -> None:
        self._state, self._delivery = state, delivery

    def liveness_problems(self) -> list[str]:
        """Return problems that a restart of the daemon may solve."""
        seconds = time.monotonic() - self._delivery.last_pass
        return [f"delivery has been stuck for {seconds:.0f} s"] if seconds > STUCK_AFTER else []

    def problems(self) -> list[str]:
        """Return all reasons why records are not delivered, or soon will not be."""
        return [*self.liveness_problems(), *self._exporter_problems(), *self._backlogs(), *self._disk_problems()]

    def _exporter_problems(self) -> Iterator[str]:
        for worker in self._delivery.workers:
            if worker.failing_since is not None and (seconds := time.monotonic() - worker.failing_since) > FAILING_AFTER:
                yield f"exporter {worker.name}: failing for {seconds:.0f} s"

    def _backlogs(self) -> Iterator[str]:
        for outbox in self._delivery.adoption.outboxes():
            try:
                size = spool.size(outbox.directory)
            except OSError:  # delivered and removed meanwhile
                continue
            if size > MAX_BACKLOG:
                yield f"journal {os.path.basename(outbox.directory)}: {size >> 20} MiB wait for delivery"

    def _disk_problems(self) -> Iterator[str]:
        probe = self._state / f"probe-{os.getpid()}"
        try:
            probe.write_bytes(b"x")
            probe.unlink(missing_ok=True)  # two requests at the same time share the file
        except OSError as error:
            yield f"cannot write to the state directory: {error.strerror}"


class HealthServer:
    """A context manager that serves `/healthz` and `/readyz` inside its block. ConfigError if the address is not available."""

    def __init__(self, address: tuple[str, int], readiness: Readiness) -> None:
        self._checks = {"/healthz": readiness.liveness_problems, "/readyz": readiness.problems}
        try:
            self._server = HttpServer(address, self._respond, thread_name="ckpt-observe-health")
        except OSError as error:
            raise ConfigError(f"--health: cannot listen on {address[0]}:{address[1]} ({error.strerror}); choose another address") from error

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._server.close()

    def _respond(self, request: Request) -> Response:
        headers = (("Content-Type", "text/plain; charset=utf-8"),)
        check = self._checks.get(request.path)
        if check is None:
            return Response(404, b"see /healthz and /readyz\n", headers)
        problems = check()
        return Response(503 if problems else 200, ("\n".join(problems) or "ok").encode() + b"\n", headers)
