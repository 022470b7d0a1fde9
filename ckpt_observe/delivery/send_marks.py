"""Delivers each span once to backends that store every copy, such as Laminar, even if processes die while they send.

Before a batch is sent, a mark on disk names its position in the spool. If a process dies before it has moved its cursor, the next one finds
the mark, waits until the backend knows what it has received, and asks. The time of the file is the last sign of life of the process that
sent: it is renewed while a request is under way. A batch without a mark was never sent, so nobody has to wait or ask.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Final, TypeAlias

import msgspec

from ckpt_observe.errors import DamagedFileError
from ckpt_observe.journal.spool import Cursor
from ckpt_observe.span import Span
from ckpt_observe.support import files
from ckpt_observe.support.host_exceptions import ignore_errors, raise_host_exception

if TYPE_CHECKING:
    from ckpt_observe.delivery.exporter_worker import ExporterWorker
    from ckpt_observe.delivery.outbox import Outbox

SENDING: Final = "sending.json"
_Position: TypeAlias = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]
_StoredMarks: TypeAlias = dict[str, tuple[_Position, _Position]]


class SendMarks:
    """The marks of one journal, by exporter. Used by any thread of the process that delivers it.

    `is_restarted`: the machine was restarted since the journal was created, so marks and cursors on disk may be old.
    """

    def __init__(self, directory: str, *, is_restarted: bool = False) -> None:
        self._path, self._is_restarted = os.path.join(directory, SENDING), is_restarted
        self._lock = threading.Lock()
        self._marks: dict[str, Cursor] = {}
        """What we are sending, or may have sent without an answer."""
        self._active: set[str] = set()
        """Exporters to which a request is under way."""
        self._former: tuple[dict[str, Cursor], float] | None = None
        """The marks of an earlier process and its last sign of life in Unix seconds. Read when they are needed."""

    def last_attempt(self, exporter: str, position: Cursor) -> float | None:
        """Return until when (Unix seconds) another process may have sent the batch at this position; None if none has."""
        with self._lock:
            if exporter in self._marks:
                return None
            if self._former is None:
                self._former = self._load()
            marks, last_sign_of_life = self._former
            if marks.get(exporter) == position:
                return last_sign_of_life
            return 0.0 if self._is_restarted else None

    def begin(self, exporter: str, position: Cursor) -> None:
        """Mark the batch at this position, just before it is sent."""
        with self._lock:
            self._marks[exporter] = position
            self._active.add(exporter)
            self._save()

    def end(self, exporter: str, *, may_have_arrived: bool) -> None:
        """Record the result. The mark of a batch that surely did not arrive is removed; others stay until the next batch."""
        with self._lock:
            self._active.discard(exporter)
            if not may_have_arrived:
                del self._marks[exporter]
                self._save()

    def renew(self) -> None:
        """Record that this process is alive, if it is sending. Called ten times a second."""
        if self._active:
            with ignore_errors(OSError):
                os.utime(self._path)

    def _load(self) -> tuple[dict[str, Cursor], float]:
        try:
            stored: dict[str, tuple[int, int]] = files.read_json(self._path, _StoredMarks)
            return {exporter: Cursor(*position) for exporter, position in stored.items()}, os.stat(self._path).st_mtime
        except DamagedFileError:
            files.set_aside(self._path)
        except OSError as error:  # none yet
            raise_host_exception(error)
        return {}, 0.0

    def _save(self) -> None:
        former = self._former[0] if self._former else {}
        with ignore_errors(OSError):  # disk full or gone: send all the same
            files.replace_file(self._path, msgspec.json.encode({**former, **self._marks}), sync=False)


def must_wait(worker: ExporterWorker, outbox: Outbox) -> bool:
    """Return whether the next batch may have been sent by another process, so recently that the backend may not know yet."""
    settle_seconds = worker.exporter.settle_seconds
    if settle_seconds is None or not outbox.delivers_to(worker.identity):
        return False
    last_attempt = outbox.marks.last_attempt(worker.identity, outbox.position(worker.identity))
    return last_attempt is not None and 0 <= time.time() - last_attempt < settle_seconds  # negative: the clock was changed


def deliver_once(worker: ExporterWorker, outbox: Outbox, spans: Sequence[Span]) -> bool:
    """Send the next batch as `ExporterWorker.deliver` does. If the backend stores every copy, it is marked first."""
    exporter, identity = worker.exporter, worker.identity
    if exporter.settle_seconds is None:
        return worker.deliver(spans, outbox.set_aside)
    position = outbox.position(identity)
    if outbox.marks.last_attempt(identity, position) is not None:
        exporter.doubt(spans)
    outbox.marks.begin(identity, position)
    is_done = False
    try:
        is_done = worker.deliver(spans, outbox.set_aside)
    finally:
        outbox.marks.end(identity, may_have_arrived=is_done or exporter.may_have(spans))
    return is_done
