"""Writing files so that they survive a power cut, or are not there at all.

After an error nothing is tried again on the same descriptor: a failed fsync may have dropped the very pages that a second
one would report as written.
"""

from __future__ import annotations

import os
import secrets

from ckpt_observe.core.blob import Blob, Buffer

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
_LARGEST_WRITE = 64 * 1024 * 1024
"""Linux writes at most 2 GiB a call; smaller ones let a signal in."""


def write_new(directory: int, name: str, blob: Blob) -> None:
    """Make `name` in the open directory with that content, whole and synced. FileExistsError if it is taken."""
    temporary = f".{secrets.token_hex(8)}.tmp"
    try:
        _write_synced(directory, temporary, blob)
        os.link(temporary, name, src_dir_fd=directory, dst_dir_fd=directory, follow_symlinks=False)
        os.unlink(temporary, dir_fd=directory)
    except BaseException:
        _forget(directory, temporary)
        raise
    try:
        os.fsync(directory)
    except BaseException:
        _forget(directory, name)
        raise


def make_directory(path: str) -> None:
    """Make a directory and its missing ancestors, each one durable in its parent before anything is put into it."""
    parent = os.path.dirname(path)
    try:
        os.mkdir(path, 0o700)
    except FileNotFoundError:
        make_directory(parent)
        os.mkdir(path, 0o700)
    except FileExistsError:
        pass  # somebody else was making it: sync the parent all the same, as he may not have come to that yet
    descriptor = os.open(parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_all(file: int) -> Buffer:
    """Everything from the start of an open file."""
    data = bytearray(os.fstat(file).st_size)
    view = memoryview(data)
    filled = 0
    while filled < len(data) and (count := os.readv(file, [view[filled:]])):
        filled += count
    return view[:filled] if filled < len(data) else data


def _write_synced(directory: int, name: str, blob: Blob) -> None:
    file = os.open(name, _NEW, 0o600, dir_fd=directory)
    try:
        for piece in blob:
            view = memoryview(piece)
            while view:
                view = view[os.write(file, view[:_LARGEST_WRITE]) :]
        os.fsync(file)
    finally:
        os.close(file)


def _forget(directory: int, name: str) -> None:
    """Remove what a failed write left. It may not be there; the first error is the one to tell."""
    try:
        os.unlink(name, dir_fd=directory)
    except OSError:
        pass
