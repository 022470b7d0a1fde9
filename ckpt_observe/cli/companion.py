"""The companion: `python -m ckpt_observe.cli.companion`, started by a host that finds none (delivery/companion.py), never by people.

It delivers for every process of its state directory that wants what it has, and is gone a moment after the last of them, when all is
delivered. Whoever started it sees only a process between, which ends when the companion works (0) or cannot (1).
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
from ckpt_observe.cli.stopping import Stop
from ckpt_observe.delivery import daemon
from ckpt_observe.delivery.adoption import Attends
from ckpt_observe.delivery.companion import lock_path
from ckpt_observe.delivery.delivery import Delivery
from ckpt_observe.errors import JournalError
from ckpt_observe.journal.directory import JOURNALS, UNFINISHED, About, read_about
from ckpt_observe.journal.locations import private_directory

logger = logging.getLogger("ckpt_observe")

LOOK_EVERY: Final = 0.2
LINGER: Final = 2.0
"""Seconds that it stays after its last process: programs in a loop need not start one each."""
ALONE: Final = 600.0
"""Seconds that it tries to deliver what its last process left, while a destination is away. Then that waits on disk for the next one."""
STOP_WITHIN: Final = 5.0
LOG: Final = "companion.log"
LOG_SIZE: Final = 1 << 20
"""Bytes of it."""


def main() -> int:
    """The exit code of the process between; the companion itself never returns."""
    reader, writer = os.pipe()
    if os.fork():
        os.close(writer)
        return 0 if os.read(reader, 1) else 1
    os.close(reader)
    try:
        _run(writer)
    except BaseException:
        logger.exception("ckpt_observe: the companion ends")
        os._exit(1)
    os._exit(0)


def _run(writer: int) -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # whatever the host blocks or ignores is its own business
    stop = Stop()
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    settings = config.read()
    _log_to(private_directory(settings.dir) / LOG)
    names = wiring.exporter_names(settings)
    owed = wiring.exporter_identities(settings, names)

    def attends(about: About) -> tuple[str, ...] | None:
        return about.exporters if about.delivery == "companion" and set(about.exporters) == set(owed) else None

    seen: set[str] = set()
    while lock := daemon.take(lock_path(settings.dir, wiring.companion_name(owed))):  # else another was first
        exporters = wiring.build_exporters(settings, names)
        delivery = wiring.for_others(settings, exporters, attends)
        delivery.adoption.look()
        delivery.start()
        wiring.publish(exporters, delivery.health)
        _works(writer)
        _until_alone(delivery, stop)
        seen |= {outbox.directory for outbox in delivery.adoption.outboxes()}
        delivery.close(STOP_WITHIN)
        lock.release()
        late = _left_to_us(settings.dir, attends) - seen
        if stop.asked or not late:
            return
        seen |= late  # each makes us stay once: somebody else may delivery it, or nobody be able to
    _works(writer)


def _works(writer: int) -> None:
    with suppress(OSError):  # nobody waits for it any more, or it was told
        os.write(writer, b"+")


def _left_to_us(state: Path, attends: Attends) -> set[str]:
    """Of these, some may have begun while we still held the lock and saw it. Who looks later finds us gone, and starts another."""
    found = set()
    for directory in glob.glob(os.path.join(glob.escape(str(state / JOURNALS)), "*")):
        with suppress(JournalError):  # removed since
            if not directory.endswith(UNFINISHED) and attends(read_about(directory)) is not None:
                found.add(directory)
    return found


def _until_alone(delivery: Delivery, stop: Stop) -> None:
    """Until no process lives that we delivery for, and all is delivered."""
    alone = time.monotonic()
    while not stop.wait(LOOK_EVERY):
        now = time.monotonic()
        if delivery.adoption.live():
            alone = now
        if now - alone > (ALONE if delivery.adoption.outboxes() else LINGER):
            return


class _Log(logging.StreamHandler[TextIO]):
    """Begins again when it is full: whoever else writes there appends, and so goes on in the empty file."""

    def emit(self, record: logging.LogRecord) -> None:
        with suppress(OSError):
            if os.fstat(self.stream.fileno()).st_size > LOG_SIZE:
                os.ftruncate(self.stream.fileno(), 0)
        super().emit(record)


def _log_to(path: Path) -> None:
    """A file of the state directory, private and bounded: it has no terminal, and must not keep the host's."""
    stream = open(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "w", encoding="utf-8")  # noqa: SIM115 - until we end
    logging.basicConfig(handlers=[_Log(stream)], format=f"%(asctime)s {os.getpid()} %(levelname)s %(message)s", level=logging.WARNING)


if __name__ == "__main__":
    sys.exit(main())
