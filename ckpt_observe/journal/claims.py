"""Claims on the journals of other processes. The holder of a claim is the only process that delivers that journal."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterable
from typing import Final

from ckpt_observe.journal.directory import ABOUT, DAMAGED_JOURNALS, DELIVERY_LOCK, OWNER_LOCK, About, read_about
from ckpt_observe.support import files
from ckpt_observe.support.host_exceptions import ignore_errors, raise_host_exception
from ckpt_observe.support.locks import FileLock

UNFINISHED_SECONDS: Final = 60.0
"""A journal that is still incomplete after this time will never be complete: creating one takes a millisecond."""


class Claim:
    """A journal that only we deliver. Its owner is dead, or alive and leaves the delivery to us."""

    def __init__(self, directory: str, about: About, delivery_lock: FileLock, owner_lock: FileLock | None) -> None:
        self.directory, self.about = directory, about
        self._delivery_lock, self._owner_lock = delivery_lock, owner_lock

    def owner_is_dead(self) -> bool:
        """Return whether the owner has died. From then on we hold its lock, and may recover its operations and remove the journal."""
        if self._owner_lock is None:
            self._owner_lock = FileLock.try_acquire(os.path.join(self.directory, OWNER_LOCK), create=False)
        return self._owner_lock is not None

    def release(self) -> None:
        """Let other processes claim the journal."""
        _release(self._delivery_lock, self._owner_lock)


def claim_dead(directory: str) -> Claim | None:
    """Claim a journal whose owner is dead. Return None if the owner is alive, or if another process delivers the journal or removed it.

    Raise DamagedJournalError if its description is damaged, JournalError if it was written by a newer version.
    """
    owner_lock = _try_acquire(directory, OWNER_LOCK)
    return _claim(directory, _try_acquire(directory, DELIVERY_LOCK), owner_lock) if owner_lock else None


def claim_delivery(directory: str) -> Claim | None:
    """Claim a journal whose owner, alive or dead, leaves the delivery to us. Return None if another process delivers or removed it.

    Raise the same errors as `claim_dead`.
    """
    return _claim(directory, _try_acquire(directory, DELIVERY_LOCK), None)


def _try_acquire(directory: str, name: str) -> FileLock | None:
    try:
        return FileLock.try_acquire(os.path.join(directory, name), create=False)
    except FileNotFoundError:  # another process has delivered and removed the journal
        return None


def _claim(directory: str, delivery_lock: FileLock | None, owner_lock: FileLock | None) -> Claim | None:
    try:
        if delivery_lock and os.path.exists(os.path.join(directory, ABOUT)):
            claim = Claim(directory, read_about(directory), delivery_lock, owner_lock)
            delivery_lock = owner_lock = None
            return claim
        return None
    finally:
        _release(delivery_lock, owner_lock)


def quarantine(directory: str) -> str | None:
    """Move a damaged journal of a dead process out of the way, with all its records. Return its new path, or None if it stays."""
    owner_lock = delivery_lock = None
    try:
        owner_lock, delivery_lock = _try_acquire(directory, OWNER_LOCK), _try_acquire(directory, DELIVERY_LOCK)
        if owner_lock is None or delivery_lock is None:
            return None
        root, name = os.path.split(directory)
        target = os.path.join(os.path.dirname(root), DAMAGED_JOURNALS, name)
        os.makedirs(os.path.dirname(target), 0o700, exist_ok=True)
        files.move(directory, target)
    except OSError as error:
        raise_host_exception(error)
        return None
    else:
        return target
    finally:
        _release(delivery_lock, owner_lock)


def _release(*locks: FileLock | None) -> None:
    for lock in locks:
        if lock:
            lock.release()


def remove_unfinished(directories: Iterable[str]) -> None:
    """Remove journals that were left half-created or half-removed by a process that died. They hold nothing to deliver."""
    for directory in directories:
        with ignore_errors(OSError):
            if time.time() - os.stat(directory).st_mtime > UNFINISHED_SECONDS:
                shutil.rmtree(directory)
