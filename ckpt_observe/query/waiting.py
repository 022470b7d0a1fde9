"""What waits in the journals of a state directory: whose records they are, and which exporters have not received them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import msgspec

from ckpt_observe.delivery import outbox
from ckpt_observe.delivery.set_aside import SetAside
from ckpt_observe.errors import JournalError
from ckpt_observe.journal import spool
from ckpt_observe.journal.cursors import read_cursors
from ckpt_observe.journal.directory import JOURNALS, OWNER_LOCK, UNFINISHED, list_page_files, read_about
from ckpt_observe.support.host_exceptions import raise_host_exception
from ckpt_observe.support.locks import is_locked

DAEMON: Final = "daemon"
"""Stands for the exporters of a daemon that has not read a journal yet."""


class WaitingJournal(msgspec.Struct, frozen=True, kw_only=True):
    """The records of one process."""

    name: str
    """Name of its directory."""
    service: str
    pid: int | None
    """None if the journal cannot be read."""
    is_alive: bool
    waiting: dict[str, int] = {}
    """Bytes that each exporter has not received, by its identity. Empty if everything has arrived."""
    end: tuple[int, int] = (0, 0)
    """Position behind the last record."""
    size: int = 0
    """Bytes of its records on disk."""
    missed_operations: int = 0
    """Operations of its start that were not recorded, because it could not be created at once."""
    has_pages: bool = False
    """The process is dead, and its last operations are still in memory."""
    is_for_daemon: bool = False
    """Only a daemon sends these records: the program has no exporters of its own."""
    problem: str | None = None
    """Why the journal cannot be read."""

    @property
    def is_waiting(self) -> bool:
        return bool(self.waiting) or self.has_pages or self.problem is not None


def read_waiting(state: Path) -> list[WaitingJournal]:
    """Return the journals of a state directory, oldest first. Those that disappear meanwhile are left out."""
    root = state / JOURNALS
    journals = []
    for name in sorted(os.listdir(root)) if root.is_dir() else ():
        directory = str(root / name)
        if name.endswith(UNFINISHED):
            continue
        try:
            journals.append(_read(directory, name))
        except FileNotFoundError:
            continue
        except (OSError, JournalError) as error:
            raise_host_exception(error)
            if os.path.exists(directory):
                journals.append(WaitingJournal(name=name, service="", pid=None, is_alive=_is_alive(directory), problem=str(error)))
    return journals


def is_received(journal: WaitingJournal, state: Path) -> bool:
    """Return whether all exporters have received what a journal contained when it was read."""
    directory = str(state / JOURNALS / journal.name)
    if not os.path.exists(directory):  # delivered and removed
        return True
    positions = read_cursors(directory)
    return all(positions.get(exporter, spool.Cursor()) >= journal.end for exporter in journal.waiting)


def _read(directory: str, name: str) -> WaitingJournal:
    is_alive = _is_alive(directory)
    about = read_about(directory)
    exporters = tuple(outbox.exporters_with_cursor(directory)) if about.delivery == "daemon" else about.exporters
    waiting = {exporter: size for exporter, size in outbox.backlog(directory, exporters or (DAEMON,)).items() if size}
    if not exporters and about.delivery != "daemon":
        waiting = {}
    set_aside = SetAside(directory)
    for exporter in exporters:
        if set_aside.count(exporter):
            waiting.setdefault(exporter, 0)
    segments = spool.segments(directory)
    return WaitingJournal(
        name=name,
        service=str(about.resource.get("service.name", "")),
        pid=about.pid,
        is_alive=is_alive,
        waiting=waiting,
        end=(segments[-1], os.path.getsize(spool.segment_path(directory, segments[-1]))) if segments else (0, 0),
        size=spool.size(directory),
        missed_operations=about.missed,
        is_for_daemon=about.delivery == "daemon",
        has_pages=not is_alive and bool(list_page_files(directory, about)),
    )


def _is_alive(directory: str) -> bool:
    try:
        return is_locked(os.path.join(directory, OWNER_LOCK))
    except OSError as error:
        raise_host_exception(error)
        return False
