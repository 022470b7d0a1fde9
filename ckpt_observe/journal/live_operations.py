"""Reads the operations that live processes are running now, with their phases, without disturbing the processes.

A page may be cleared and used for another operation while it is read. So each file is read twice, and an operation counts if its page had
it both times: the marks of the second reading were read after the lines of the first and before its own lines, so they are the operation's.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator
from pathlib import Path

from ckpt_observe.errors import JournalError
from ckpt_observe.journal.directory import JOURNALS, OWNER_LOCK, UNFINISHED, About, list_page_files, read_about
from ckpt_observe.journal.unfinished_operation import UnfinishedOperation, read_operations
from ckpt_observe.support.host_exceptions import raise_host_exception
from ckpt_observe.support.locks import is_locked


def read_live_operations(state: Path) -> Iterator[tuple[About, UnfinishedOperation]]:
    """Yield each running operation and task, with a description of its process. Journals that cannot be read are skipped."""
    for directory in sorted(glob.glob(os.path.join(glob.escape(str(state / JOURNALS)), "*"))):
        if directory.endswith(UNFINISHED):
            continue
        try:
            if not is_locked(os.path.join(directory, OWNER_LOCK)):  # dead: adoption reports its operations as interrupted
                continue
            about = read_about(directory)
            paths = list_page_files(directory, about)
            _, earlier_operations = read_operations(paths)
            _, operations = read_operations(paths)
        except (OSError, JournalError) as error:
            raise_host_exception(error)
            continue
        for span_id, operation in operations.items():
            if operation.is_running() and span_id in earlier_operations and earlier_operations[span_id].is_running():
                yield about, operation
