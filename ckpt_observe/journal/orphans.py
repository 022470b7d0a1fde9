"""Removes pages in shared memory whose journal somebody has deleted after its owner died. Nothing else would ever remove them.

The first page file of a process is locked while the process lives, and contains the path of its journal with the identity of every
directory on the way. These tell a deleted directory from one that is not visible here: an unmounted disk, or a directory of another
container that shares this memory.
"""

from __future__ import annotations

import itertools
import os
from typing import Final, TypeAlias

import msgspec

from ckpt_observe.errors import JournalError
from ckpt_observe.journal.directory import DAMAGED_JOURNALS
from ckpt_observe.journal.page_file import read_owner_note
from ckpt_observe.journal.page_reader import page_files
from ckpt_observe.support import files
from ckpt_observe.support.host_exceptions import ignore_errors
from ckpt_observe.support.locks import FileLock

_FIRST: Final = "-00.pages"
_Identity: TypeAlias = tuple[int, int]
"""Device and inode."""


class OwnerNote(msgspec.Struct, frozen=True):
    """Where the journal of a page file is."""

    journal: str
    identities: list[_Identity]
    """Of the directories on the way to the journal, from the root on, and of the journal itself."""

    def is_deleted(self) -> bool:
        """Return whether somebody deleted the journal, or a directory above it. False if that is not certain."""
        path = os.path.dirname(self.journal)
        if os.path.exists(os.path.join(os.path.dirname(path), DAMAGED_JOURNALS, os.path.basename(self.journal))):
            return False
        places = list(zip(_way_to(self.journal), self.identities, strict=True))
        for (parent, parent_identity), (child, child_identity) in itertools.pairwise(places):
            if files.identity(parent) != parent_identity:
                return False
            if parent_identity[0] != child_identity[0]:  # a mount point: what is missing there may only be unmounted
                continue
            present = _identity_or_missing(child)
            if present is None or (present != child_identity and present[0] == child_identity[0]):
                return True
        return False


def owner_note(journal: str) -> bytes:
    """Return the note for the page files of a journal."""
    identities = [identity for place in _way_to(journal) if (identity := files.identity(place))]
    return msgspec.json.encode(OwnerNote(journal, identities))


def remove_orphans(directory: str) -> int:
    """Remove the page files in this directory whose owner is dead and whose journal was deleted. Return the number of owners."""
    removed = 0
    for name in sorted(os.listdir(directory)):
        if name.endswith(_FIRST):
            with ignore_errors(OSError, ValueError, msgspec.MsgspecError, JournalError):
                removed += _remove_if_orphan(os.path.join(directory, name))
    return removed


def _remove_if_orphan(path: str) -> bool:
    note = msgspec.json.decode(read_owner_note(path), type=OwnerNote)
    if os.stat(path).st_uid != os.geteuid() or not note.is_deleted():
        return False
    lock = FileLock.try_acquire(path, create=False)
    if lock is None:  # its owner lives
        return False
    try:
        for each in reversed(page_files(path.removesuffix(_FIRST))):  # the one with the note last: we may die in between
            os.unlink(each)
    finally:
        lock.release()
    return True


def _way_to(path: str) -> list[str]:
    """Return the directories from the root to a path, itself included."""
    way = [path]
    while (parent := os.path.dirname(way[-1])) != way[-1]:
        way.append(parent)
    return way[::-1]


def _identity_or_missing(path: str) -> _Identity | None:
    """Return the identity of a path, or None if it does not exist. Raise OSError if that is unknown."""
    try:
        status = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return status.st_dev, status.st_ino
