"""Caches headers of checkpoints: listing a directory or bucket again reads only the headers that are new."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection

from ckpt_observe.core.format import container
from ckpt_observe.core.format.names import to_file_name
from ckpt_observe.core.model import CheckpointInfo
from ckpt_observe.errors import CheckpointError, IntegrityError
from ckpt_observe.support import forks

OPEN_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK  # O_NONBLOCK: opening a pipe must not wait for a writer
_HEADER_GUESS = 16 * 1024
_MAX_HEADERS = 100_000
"""Maximum number of cached headers; each takes about 2 KB."""


class HeaderCache:
    """Headers by folder and file name. An entry is read again if its fingerprint, such as the file's time and size, has changed."""

    def __init__(self) -> None:
        self._folders: dict[str, dict[str, tuple[object, CheckpointInfo]]] = {}
        self._count = 0
        self._lock = threading.Lock()
        forks.register(self)

    def reset_after_fork(self) -> None:
        """Replace the lock: a thread of the parent may have held it."""
        self._lock = threading.Lock()

    def get(self, folder: str, name: str, fingerprint: object, read: Callable[[], CheckpointInfo]) -> CheckpointInfo:
        """Return the cached header, or read and cache it. IntegrityError if its task and id do not match folder and name."""
        entry = self._folders.get(folder, {}).get(name)
        if entry is not None and entry[0] == fingerprint:
            return entry[1]
        info = read()
        stem = name.removesuffix(".gz").rpartition(".")[0]  # of `.ckpt`, `.jsonl` or `.jsonl.gz`
        if (to_file_name(info.task), to_file_name(info.id)) != (os.path.basename(folder), stem):
            raise IntegrityError(f"{name} contains another checkpoint: {info.id!r} of {info.task!r}", code="integrity.malformed")
        with self._lock:
            self._add(folder, name, (fingerprint, info))
        return info

    def _add(self, folder: str, name: str, entry: tuple[object, CheckpointInfo]) -> None:
        """If the cache is full, drop other folders, oldest first. If one folder fills it alone, do not cache the rest."""
        entries = self._folders.setdefault(folder, {})
        while self._count >= _MAX_HEADERS and (oldest := next((other for other in self._folders if other != folder), None)) is not None:
            self._count -= len(self._folders.pop(oldest))
        if name in entries:
            entries[name] = entry
        elif self._count < _MAX_HEADERS:
            entries[name] = entry
            self._count += 1

    def remove_deleted(self, folder: str, names: Collection[str]) -> None:
        """Drop the entries of a folder that are not in `names`, the files that exist: retention keeps deleting files."""
        if len(self._folders.get(folder, ())) <= len(names):
            return
        with self._lock:
            entries = self._folders.pop(folder, {})
            remaining = {name: entries[name] for name in entries.keys() & names}
            self._count -= len(entries) - len(remaining)
            if remaining:
                self._folders[folder] = remaining


class FileHeaderCache(HeaderCache):
    """A header cache for files in directories."""

    def __init__(self, read: Callable[[int, str], CheckpointInfo]) -> None:
        super().__init__()
        self._read = read

    def get_file(self, directory: int, entry: os.DirEntry[str]) -> CheckpointInfo | None:
        """Return the header of a file, or None if it is damaged or was deleted meanwhile."""
        try:
            status = entry.stat(follow_symlinks=False)
            fingerprint = (status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size)
            return self.get(entry.path[: -len(entry.name) - 1], entry.name, fingerprint, lambda: self._read(directory, entry.name))
        except (FileNotFoundError, CheckpointError):
            return None


def read_file_header(directory: int, name: str) -> CheckpointInfo:
    """Return the header of a file in an open directory, after checking its seal."""
    file = os.open(name, OPEN_FLAGS, dir_fd=directory)
    try:
        start = os.read(file, _HEADER_GUESS)
        while b"\n" not in start and len(start) < container.MAX_HEADER and (more := os.read(file, len(start))):
            start += more
        return container.read_header(start)
    finally:
        os.close(file)
