"""New files that survive a power failure or do not exist at all. This is the write path of the file stores.

After an error nothing is retried on the same descriptor: a failed fsync may have dropped the very pages that a second fsync would report
as written (https://wiki.postgresql.org/wiki/Fsync_Errors).
"""

from __future__ import annotations

import errno
import os
import secrets
import time
from collections.abc import Iterator, Sequence
from typing import Final, Protocol

from ckpt_observe.support.files import Buffer
from ckpt_observe.support.host_exceptions import ignore_errors, raise_host_exception

_CREATE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
_UNNAMED: Final = os.O_WRONLY | os.O_CLOEXEC | getattr(os, "O_TMPFILE", 0)
_UNNAMED_UNSUPPORTED: Final = frozenset(
    {errno.EOPNOTSUPP, errno.ENOSYS, errno.EISDIR, errno.EINVAL, errno.ENOENT, errno.EXDEV, errno.EPERM, errno.EACCES}
)
"""Errors of a system without unnamed files (NFS, old kernels), or where they cannot be linked (no /proc, a sandbox)."""
_SMALL: Final = 64 * 1024
_TEMPORARY: Final = ".tmp"
_ABANDONED_SECONDS: Final = 3600.0
"""Age at which a temporary file counts as left behind by a crash."""
_LARGEST_WRITE: Final = 16 * 1024 * 1024
"""Linux writes at most 2 GiB per call. Smaller writes let signal handlers run and the disk start early."""


class Content(Protocol):
    """Bytes to be written, in one or several pieces."""

    def __len__(self) -> int: ...

    def joined(self) -> Buffer:
        """Return everything as one buffer. Used for small files."""

    def as_ready(self) -> Iterator[tuple[int, Buffer]]:
        """Yield the pieces with their offsets, in the order in which they become available."""


def create_files(directory: int, files: Sequence[tuple[str, Content]]) -> None:
    """Create these files in the open directory, each complete and synced. After an error, none of them remains.

    Raise FileExistsError if a name is taken.
    """
    created: list[str] = []
    try:
        for name, content in files:
            _create_file(directory, name, content)
            created.append(name)
        os.fsync(directory)
    except BaseException:
        for name in created:
            _remove(directory, name)
        raise


def _create_file(directory: int, name: str, content: Content) -> None:
    """Write an unnamed file and link it when complete, so that a killed process leaves nothing; else use a temporary name."""
    try:
        _create_unnamed(directory, name, content)
    except OSError as error:
        raise_host_exception(error)
        if error.errno not in _UNNAMED_UNSUPPORTED:
            raise
        _create_named(directory, name, content)


def _create_unnamed(directory: int, name: str, content: Content) -> None:
    file = os.open(".", _UNNAMED, 0o600, dir_fd=directory)
    try:
        _write_synced(file, content)
        os.link(f"/proc/self/fd/{file}", name, dst_dir_fd=directory, follow_symlinks=True)
    finally:
        os.close(file)


def _create_named(directory: int, name: str, content: Content) -> None:
    temporary = f".{secrets.token_hex(8)}{_TEMPORARY}"
    try:
        file = os.open(temporary, _CREATE, 0o600, dir_fd=directory)
        try:
            _write_synced(file, content)
        finally:
            os.close(file)
        os.link(temporary, name, src_dir_fd=directory, dst_dir_fd=directory, follow_symlinks=False)
    finally:
        _remove(directory, temporary)


def remove_abandoned(directory: int) -> None:
    """Remove temporary files that a killed process left behind. Files that are still being written are younger than an hour."""
    limit = time.time() - _ABANDONED_SECONDS
    for entry in os.scandir(directory):
        if entry.name.startswith(".") and entry.name.endswith(_TEMPORARY):
            with ignore_errors(FileNotFoundError):
                if os.stat(entry.name, dir_fd=directory, follow_symlinks=False).st_mtime < limit:
                    os.unlink(entry.name, dir_fd=directory)


def _write_synced(file: int, content: Content) -> None:
    for offset, piece in [(0, content.joined())] if len(content) <= _SMALL else content.as_ready():
        view = memoryview(piece)
        position = 0
        while position < len(view):
            count = os.pwrite(file, view[position : position + _LARGEST_WRITE], offset + position)
            if count > _SMALL:
                _start_writeback(file, offset + position, count)
            position += count
    os.fsync(file)


def _start_writeback(file: int, offset: int, size: int) -> None:
    """Start writing to disk now, while the next part is hashed, so that fsync has less to do. On Linux, DONTNEED has this side effect."""
    if hasattr(os, "posix_fadvise"):
        with ignore_errors(OSError):  # only a hint
            os.posix_fadvise(file, offset, size, os.POSIX_FADV_DONTNEED)


def _remove(directory: int, name: str) -> None:
    """Remove what a failed write left, if anything. Its own errors are dropped in favour of the first one."""
    with ignore_errors(OSError):
        os.unlink(name, dir_fd=directory)
