"""The companion process: `python -m ckpt_observe.cli.companion`. Started by a host program (`delivery/companion.py`), never by people.

It delivers for every process of its state directory that has the same exporters. It exits shortly after the last of them has ended and
everything is delivered. The host program starts an intermediate process, which exits with 0 when the companion works, or 1 if it failed.
"""

from __future__ import annotations

import glob
import logging
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Final, TextIO

from ckpt_observe import config, wiring
from ckpt_observe.cli.stopping import StopSignal
from ckpt_observe.delivery.adoption import LiveExporters
from ckpt_observe.delivery.daemon import acquire_lock
from ckpt_observe.delivery.delivery import Delivery
from ckpt_observe.errors import JournalError
from ckpt_observe.journal.directory import JOURNALS, UNFINISHED, read_about
from ckpt_observe.journal.locations import private_directory
from ckpt_observe.support.logs import logger

POLL_INTERVAL: Final = 0.2
LINGER: Final = 2.0
"""Seconds to stay after the last process ended, so that a loop of short programs does not start a companion each time."""
MAX_ALONE: Final = 600.0
"""Seconds to keep trying after the last process ended, while an exporter is down. Then the records wait on disk for the next companion."""
STOP_TIMEOUT: Final = 5.0
"""Seconds to deliver the rest before the companion exits."""
LOG: Final = "companion.log"
LOG_SIZE: Final = 1 << 20
"""Maximum size of the log file in bytes."""


def main() -> int:
    """Fork the companion, and return the exit code of this intermediate process. In the companion, this function never returns."""
    reader, writer = os.pipe()
    if os.fork():
        os.close(writer)
        return 0 if os.read(reader, 1) else 1
    os.close(reader)
    try:
        _run(writer)
    except BaseException:
        logger.exception("The companion failed and exits. The host programs start another one or deliver themselves.")
        os._exit(1)
    os._exit(0)


def _run(writer: int) -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # the host program may block or ignore signals; the companion must not inherit that
    stop = StopSignal()
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    settings = config.read()
    _log_to(private_directory(settings.dir) / LOG)
    role = wiring.CompanionRole(settings)
    served: set[str] = set()
    while lock := acquire_lock(role.lock_path):  # None: another companion was faster
        delivery = role.build_delivery()
        delivery.adoption.scan()
        wiring.start(delivery)
        _report_ready(writer)
        _wait_until_alone(delivery, stop)
        served |= {outbox.directory for outbox in delivery.adoption.outboxes()}
        delivery.close(STOP_TIMEOUT)
        lock.release()
        latecomers = _waiting_journals(settings.dir, role.live_exporters) - served
        if stop.received or not latecomers:
            return
        served |= latecomers  # each makes us stay only once: another process may deliver it, or nobody can
    _report_ready(writer)


def _report_ready(writer: int) -> None:
    with suppress(OSError):  # the intermediate process has exited
        os.write(writer, b"+")


def _waiting_journals(state: Path, live_exporters: LiveExporters) -> set[str]:
    """Return the journals of processes for which this companion delivers.

    A process that started while we still held the lock has started no companion, so we must go on for it. A process that checks after
    the release finds no companion, and starts one.
    """
    directories = set()
    for directory in glob.glob(os.path.join(glob.escape(str(state / JOURNALS)), "*")):
        with suppress(JournalError, OSError):  # removed meanwhile, or damaged
            if not directory.endswith(UNFINISHED) and live_exporters(read_about(directory)) is not None:
                directories.add(directory)
    return directories


def _wait_until_alone(delivery: Delivery, stop: StopSignal) -> None:
    """Wait until all processes that we deliver for have ended and everything is delivered, for at most MAX_ALONE, or until a signal."""
    alone_since = time.monotonic()
    while not stop.wait(POLL_INTERVAL):
        now = time.monotonic()
        if delivery.adoption.live_count():
            alone_since = now
        if now - alone_since > (MAX_ALONE if delivery.adoption.outboxes() or delivery.adoption.waiting() else LINGER):
            return


class _BoundedLog(logging.StreamHandler[TextIO]):
    """Empties the log file when it exceeds LOG_SIZE. Other companions append to the same file, so they continue in the empty file."""

    def emit(self, record: logging.LogRecord) -> None:
        with suppress(OSError):
            if os.fstat(self.stream.fileno()).st_size > LOG_SIZE:
                os.ftruncate(self.stream.fileno(), 0)
        super().emit(record)


def _log_to(path: Path) -> None:
    """Log to a private, bounded file of the state directory. The companion has no terminal, and must not keep the host program's."""
    stream = open(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "w", encoding="utf-8")  # noqa: SIM115 - open until we exit
    log_format = f"%(asctime)s {os.getpid()} %(levelname)s %(message)s"
    logging.basicConfig(handlers=[_BoundedLog(stream)], format=log_format, level=logging.WARNING)


if __name__ == "__main__":
    sys.exit(main())
