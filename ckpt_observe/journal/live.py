"""What every process of a state directory is doing right now, read from its pages without disturbing it. For metrics and for people.

Read-only, from any process, and as hostile input: a page may change while it is read, a journal may vanish.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ckpt_observe.errors import JournalError
from ckpt_observe.journal import spool
from ckpt_observe.journal.journal import JOURNALS, OWNER_LOCK
from ckpt_observe.journal.page_file import page_files, read_open
from ckpt_observe.journal.recovery import beginning, read_about
from ckpt_observe.journal.remains import parse_lines
from ckpt_observe.support.locks import is_locked


@dataclass(frozen=True, slots=True)
class Running:
    """An operation or task that has begun and not ended. `start` is in Unix ns."""

    kind: str
    name: str
    start: int
    trace_id: str
    span_id: str
    attributes: dict[str, Any]


@dataclass(slots=True)
class Live:
    """All processes of a state directory at one moment."""

    running: list[Running] = field(default_factory=list)
    live: int = 0
    dead: int = 0
    """Journals whose owner died and whose records are not all delivered."""
    waiting: int = 0
    """Bytes in spools."""


def look(state: Path) -> Live:
    """What runs now, and what waits. A journal that cannot be read is left out."""
    found = Live()
    for directory in sorted(glob.glob(os.path.join(glob.escape(str(state / JOURNALS)), "*"))):
        if directory.endswith(".new"):
            continue
        try:
            found.waiting += spool.size(directory)
            if not is_locked(os.path.join(directory, OWNER_LOCK)):
                found.dead += 1
                continue
            found.live += 1
            found.running += _running(read_about(directory).pages)
        except (OSError, JournalError):
            continue
    return found


def _running(pages: str) -> Iterator[Running]:
    for path in page_files(pages):
        for lines in read_open(path):
            begun = beginning(parse_lines(lines))
            if begun is None or len(begun) < 8:
                continue
            _, span_id, start, kind, name, trace_id, _, given = begun[:8]
            if isinstance(kind, str) and isinstance(name, str) and isinstance(trace_id, str):
                yield Running(kind, name, start, trace_id, span_id, given if isinstance(given, dict) else {})
