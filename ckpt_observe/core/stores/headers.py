"""Headers of checkpoints, remembered: listing a directory or bucket a second time reads only what is new in it."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection

from ckpt_observe.core import container
from ckpt_observe.core.model import CheckpointInfo
from ckpt_observe.core.names import to_file_name
from ckpt_observe.errors import CheckpointError, IntegrityError

READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK  # a pipe that somebody put there is not waited for
_GUESS = 16 * 1024
_MOST = 100_000
"""Headers remembered, about 2 KB each."""


class Headers:
    """A memory of headers, by folder and name. `mark` tells a file that changed, which is read again; one that is gone is forgotten."""

    def __init__(self) -> None:
        self._known: dict[str, dict[str, tuple[object, CheckpointInfo]]] = {}
        self._count = 0

    def get(self, folder: str, name: str, mark: object, read: Callable[[], CheckpointInfo]) -> CheckpointInfo:
        of_folder = self._known.setdefault(folder, {})
        known = of_folder.get(name)
        if known is not None and known[0] == mark:
            return known[1]
        info = read()
        if not is_named(info, os.path.basename(folder), name.rpartition(".")[0]):
            raise IntegrityError(f"{name} holds checkpoint {info.id!r} of {info.task!r}", code="integrity.malformed")
        if self._count >= _MOST:
            self._known.clear()
            self._count = 0
        self._count += known is None
        of_folder[name] = mark, info
        return info

    def forget_others(self, folder: str, names: Collection[str]) -> None:
        """Keep of this folder what is in it, once more than that is remembered: retention removes files without end."""
        of_folder = self._known.get(folder, {})
        if len(of_folder) > len(names):
            for gone in of_folder.keys() - set(names):
                of_folder.pop(gone, None)
                self._count -= 1


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


def is_named(info: CheckpointInfo, task: str, id: str) -> bool:
    """Whether these file names are its own: bytes that lie under another's are swapped, and no checkpoint of that name."""
    return to_file_name(info.task) == task and to_file_name(info.id) == id


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
