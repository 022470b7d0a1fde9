"""Writing files so that they survive a power cut, or are not there at all.

After an error nothing is tried again on the same descriptor: a failed fsync may have dropped the very pages that a second
one would report as written.
"""

from __future__ import annotations

import errno
import os
import secrets
import time
from collections.abc import Sequence
from contextlib import suppress

from ckpt_observe.core.blob import Blob, Buffer

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
_NAMELESS = os.O_WRONLY | os.O_CLOEXEC | getattr(os, "O_TMPFILE", 0)
_NO_NAMELESS = {errno.EOPNOTSUPP, errno.ENOSYS, errno.EISDIR, errno.EINVAL, errno.ENOENT, errno.EXDEV, errno.EPERM, errno.EACCES}
"""What a system says that has no files without a name (NFS, old kernels), or does not let us give them one (no /proc, a sandbox)."""
_SMALL = 64 * 1024
_TEMPORARY = ".tmp"
_ABANDONED = 3600.0
"""Seconds after which a temporary file that nobody wrote to is left over."""
_LARGEST_WRITE = 16 * 1024 * 1024
"""Linux takes at most 2 GiB a call; smaller ones let a signal in, and the disk begin."""


def write_new(directory: int, files: Sequence[tuple[str, Blob]]) -> None:
    """Make these files in the open directory, each whole and synced. FileExistsError if a name is taken."""
    made: list[str] = []
    try:
        for name, blob in files:
            _write_one(directory, name, blob)
            made.append(name)
        os.fsync(directory)
    except BaseException:
        for name in made:
            _forget(directory, name)
        raise


def _write_one(directory: int, name: str, blob: Blob) -> None:
    """Until it is whole the file has no name, so a killed process leaves nothing; where the system has no such files, a temporary one."""
    try:
        _write_nameless(directory, name, blob)
    except OSError as error:
        if error.errno not in _NO_NAMELESS:
            raise
        _write_named(directory, name, blob)


def _write_nameless(directory: int, name: str, blob: Blob) -> None:
    file = os.open(".", _NAMELESS, 0o600, dir_fd=directory)
    try:
        _write_synced(file, blob)
        os.link(f"/proc/self/fd/{file}", name, dst_dir_fd=directory, follow_symlinks=True)
    finally:
        os.close(file)


def _write_named(directory: int, name: str, blob: Blob) -> None:
    temporary = f".{secrets.token_hex(8)}{_TEMPORARY}"
    try:
        file = os.open(temporary, _NEW, 0o600, dir_fd=directory)
        try:
            _write_synced(file, blob)
        finally:
            os.close(file)
        os.link(temporary, name, src_dir_fd=directory, dst_dir_fd=directory, follow_symlinks=False)
    finally:
        _forget(directory, temporary)


def sweep(directory: int) -> None:
    """Remove temporary files that a killed process left. One that is still being written is younger than that."""
    oldest = time.time() - _ABANDONED
    for entry in os.scandir(directory):
        if entry.name.startswith(".") and entry.name.endswith(_TEMPORARY):
            try:
                if os.stat(entry.name, dir_fd=directory, follow_symlinks=False).st_mtime < oldest:
                    os.unlink(entry.name, dir_fd=directory)
            except FileNotFoundError:
                continue


def make_directory(path: str) -> None:
    """Make a directory and its missing ancestors, each one durable in its parent before anything is put into it."""
    parent = os.path.dirname(path)
    if not os.path.isdir(parent):
        make_directory(parent)
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        pass  # somebody else was making it: sync the parent all the same, as he may not have come to that yet
    sync_directory(parent)


def sync_directory(path: str) -> None:
    """Make the names in a directory durable."""
    _sync(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def sync_tree(path: str) -> None:
    """Make a directory and everything below it durable."""
    for place, _, files in os.walk(path):
        for name in files:
            _sync(os.path.join(place, name), os.O_RDONLY | os.O_CLOEXEC)
        sync_directory(place)


def _sync(path: str, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_whole(file: int) -> Buffer:
    """All bytes of an open file, with one read if it is small."""
    start = os.read(file, _SMALL)
    return start if len(start) < _SMALL else read_range(file, 0, os.fstat(file).st_size)


def read_range(file: int, start: int, size: int) -> Buffer:
    """`size` bytes of an open file from `start`; fewer where it ends before."""
    try:
        data = bytearray(size)
    except MemoryError:
        raise OSError(errno.ENOMEM, f"{size} bytes do not fit into memory") from None
    view = memoryview(data)
    filled = 0
    while filled < size and (count := os.preadv(file, [view[filled:]], start + filled)):
        filled += count
    return view[:filled] if filled < size else data


def _write_synced(file: int, blob: Blob) -> None:
    for place, piece in [(0, blob.joined())] if len(blob) <= _SMALL else blob.as_ready():
        view = memoryview(piece)
        written = 0
        while written < len(view):
            count = os.pwrite(file, view[written : written + _LARGEST_WRITE], place + written)
            if count > _SMALL:
                _begin_to_write(file, place + written, count)
            written += count
    os.fsync(file)


def _begin_to_write(file: int, place: int, size: int) -> None:
    """Let the disk work while more is hashed and copied, instead of all at once in fsync. That the pages are not needed is true enough."""
    if hasattr(os, "posix_fadvise"):
        with suppress(OSError):  # only a hint
            os.posix_fadvise(file, place, size, os.POSIX_FADV_DONTNEED)


def _forget(directory: int, name: str) -> None:
    """Remove what a failed write left. It may not be there; the first error is the one to tell."""
    try:
        os.unlink(name, dir_fd=directory)
    except OSError:
        pass
