"""Reads what every process of a state directory is doing right now, from pages and spools, without disturbing their owners.

For metrics and for the command line. A page may change while it is read, and a journal may disappear.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ckpt_observe.errors import DamagedFileError, JournalError
from ckpt_observe.journal import spool
from ckpt_observe.journal.cursors import read_cursors
from ckpt_observe.journal.directory import JOURNALS, OWNER_LOCK, UNFINISHED, list_page_files, read_about
from ckpt_observe.journal.page_reader import begin_line, parse_lines, read_running
from ckpt_observe.support.host_exceptions import raise_host_exception
from ckpt_observe.support.locks import is_locked


@dataclass(frozen=True, slots=True)
class RunningOperation:
    """An operation or task that is running. `start` is in Unix nanoseconds."""

    kind: str
    name: str
    start: int
    trace_id: str
    span_id: str
    attributes: dict[str, Any]


@dataclass(slots=True)
class Activity:
    """All processes of a state directory at one moment."""

    running: list[RunningOperation] = field(default_factory=list)
    live_processes: int = 0
    dead_processes: int = 0
    """Processes that ended before all their records were delivered."""
    waiting_bytes: int = 0
    """Bytes of all spools that an exporter has not received yet."""


def read_activity(state: Path) -> Activity:
    """Return what is running now, and how many bytes wait for delivery. Journals that cannot be read are skipped."""
    activity = Activity()
    for directory in sorted(glob.glob(os.path.join(glob.escape(str(state / JOURNALS)), "*"))):
        if directory.endswith(UNFINISHED):
            continue
        try:
            activity.waiting_bytes += _waiting_bytes(directory)
            is_owned = is_locked(os.path.join(directory, OWNER_LOCK))
            page_files = list_page_files(directory, read_about(directory)) if is_owned else []
            if not page_files:  # without pages, the lock is held by the process that adopted the journal of a dead one
                activity.dead_processes += 1
                continue
            activity.live_processes += 1
            activity.running += _running_operations(page_files)
        except (OSError, JournalError) as error:
            raise_host_exception(error)
            continue
    return activity


def _waiting_bytes(directory: str) -> int:
    """Return the bytes behind the cursor of the slowest exporter. All of them wait if nothing was delivered yet."""
    return spool.size(directory, min(read_cursors(directory).values(), default=spool.Cursor()))


def _running_operations(page_files: list[str]) -> Iterator[RunningOperation]:
    for path in page_files:
        try:
            running = read_running(path)
        except DamagedFileError:
            continue
        for lines in running:
            begin = begin_line(parse_lines(lines))
            if begin is None or len(begin) < 8:
                continue
            _, span_id, start, kind, name, trace_id, _, attributes = begin[:8]
            if isinstance(kind, str) and isinstance(name, str) and isinstance(trace_id, str):
                yield RunningOperation(kind, name, start, trace_id, span_id, attributes if isinstance(attributes, dict) else {})
