"""Headers of checkpoints, remembered: listing a directory or bucket a second time reads only what is new in it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection

from ckpt_observe.core import container
from ckpt_observe.core.model import CheckpointInfo
from ckpt_observe.core.names import to_file_name
from ckpt_observe.errors import CheckpointError, IntegrityError
from ckpt_observe.support import forks

READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK  # a pipe that somebody put there is not waited for
_GUESS = 16 * 1024
_MOST = 100_000
"""Headers remembered, about 2 KB each."""


class Headers:
    """A memory of headers, by folder and name. `mark` tells a file that changed, which is read again; one that is gone is forgotten."""

    def __init__(self) -> None:
        self._known: dict[str, dict[str, tuple[object, CheckpointInfo]]] = {}
        self._count = 0
        self._lock = threading.Lock()
        forks.register(self)

    def reset_after_fork(self) -> None:
        """In a forked child: the lock may be held by a thread that is not there."""
        self._lock = threading.Lock()

    def get(self, folder: str, name: str, mark: object, read: Callable[[], CheckpointInfo]) -> CheckpointInfo:
        known = self._known.get(folder, {}).get(name)
        if known is not None and known[0] == mark:
            return known[1]
        info = read()
        if (to_file_name(info.task), to_file_name(info.id)) != (os.path.basename(folder), name.rpartition(".")[0]):  # swapped
            raise IntegrityError(f"{name} holds checkpoint {info.id!r} of {info.task!r}", code="integrity.malformed")
        with self._lock:
            self._remember(folder, name, (mark, info))
        return info

    def _remember(self, folder: str, name: str, header: tuple[object, CheckpointInfo]) -> None:
        """Where memory is full, other folders make room, the one known longest first; of one that fills it alone the rest is not kept."""
        of_folder = self._known.setdefault(folder, {})
        while self._count >= _MOST and (other := next((known for known in self._known if known != folder), None)) is not None:
            self._count -= len(self._known.pop(other))
        if name in of_folder:
            of_folder[name] = header
        elif self._count < _MOST:
            of_folder[name] = header
            self._count += 1

    def forget_others(self, folder: str, names: Collection[str]) -> None:
        """Keep of this folder what is in it, once more than that is remembered: retention removes files without end."""
        if len(self._known.get(folder, ())) <= len(names):
            return
        with self._lock:
            of_folder = self._known.pop(folder, {})
            kept = {name: of_folder[name] for name in names if name in of_folder}
            self._count -= len(of_folder) - len(kept)
            if kept:
                self._known[folder] = kept


class FileHeaders(Headers):
    """Of files in directories."""

    def __init__(self, read: Callable[[int, str], CheckpointInfo]) -> None:
        super().__init__()
        self._read = read

    def peek(self, directory: int, entry: os.DirEntry[str]) -> CheckpointInfo | None:
        """The header of a file, or None if it is damaged or was removed meanwhile."""
        try:
            status = entry.stat(follow_symlinks=False)
            mark = (status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size)
            return self.get(entry.path[: -len(entry.name) - 1], entry.name, mark, lambda: self._read(directory, entry.name))
        except (FileNotFoundError, CheckpointError):
            return None


def read(directory: int, name: str) -> CheckpointInfo:
    """The header of a file in an open directory, checked."""
    file = os.open(name, READ, dir_fd=directory)
    try:
        start = os.read(file, _GUESS)
        while b"\n" not in start and len(start) < container.MAX_HEADER and (more := os.read(file, len(start))):
            start += more
        return container.read_header(start)
    finally:
        os.close(file)
