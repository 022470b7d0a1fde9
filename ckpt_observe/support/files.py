"""Files that are replaced, moved and removed as a whole, and directories that survive a power failure.

A reader, or the next process after a crash, sees the old content or the new, never a part of one. Files that are read back are untrusted:
`open_regular`, `read_file` and `read_json` neither block nor take more memory than they are told, whatever has that path.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import Any, Final, TypeAlias

from ckpt_observe.errors import DamagedFileError
from ckpt_observe.support.host_exceptions import ignore_errors, raise_host_exception

Buffer: TypeAlias = bytes | bytearray | memoryview

ASIDE: Final = ".new"
"""Suffix of files and directories that are not complete yet, or no longer."""
DAMAGED: Final = ".damaged"
"""Suffix of files that were moved aside because they are damaged."""
_SMALL: Final = 64 * 1024
_SAFE_FLAGS: Final = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)
_NOT_REGULAR: Final = frozenset({errno.EISDIR, errno.ELOOP, errno.ENXIO, errno.ENODEV})
"""What `open` reports for directories, symbolic links, sockets, and FIFOs without a reader."""


def write_file(path: str, content: Buffer, *, sync: bool, mode: int | None = None) -> None:
    """Write a file in place. For files in a directory that gets its name later, and for the temporary file of `replace_file`.

    With as few system calls as possible, because each gives up the GIL, which a busy program keeps for long. `open()` would make four more.
    """
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_CLOEXEC", 0), 0o666)
    try:
        remaining = memoryview(content)
        while remaining:
            remaining = remaining[os.write(file, remaining) :]
        if mode is not None:
            os.chmod(path, mode)
        if sync:
            os.fsync(file)
    finally:
        os.close(file)


def replace_file(path: str, content: Buffer, *, sync: bool, mode: int | None = None, temporary: str | None = None) -> None:
    """Replace a file, or create it. `sync`: the content is on disk before it gets its name, and the name before this returns.

    `temporary` is written first, `<path>.new` by default. Writers of the same file that share no lock need different ones.
    """
    temporary = temporary or path + ASIDE
    try:
        write_file(temporary, content, sync=sync, mode=mode)
        os.replace(temporary, path)
    except BaseException:
        with ignore_errors(OSError):
            os.unlink(temporary)
        raise
    if sync:
        sync_directory(os.path.dirname(path))


def private_temporary_path() -> Path:
    """Return the path of our directory for this user among the temporary files. Not created, and not checked to be private."""
    import tempfile  # noqa: PLC0415 - rarely used

    try:
        root = tempfile.gettempdir()
    except OSError as error:  # no directory can be written, not even the current one
        raise_host_exception(error)
        root = "/tmp"  # noqa: S108 - creating our directory there reports why
    return Path(root).absolute() / f"ckpt_observe-{os.geteuid() if hasattr(os, 'geteuid') else 'user'}"


def identity(path: str | os.PathLike[str]) -> tuple[int, int] | None:
    """Return device and inode of the file that has this path now, or None. They change when somebody removes or replaces the file."""
    try:
        status = os.stat(path)
    except OSError as error:
        raise_host_exception(error)
        return None
    return status.st_dev, status.st_ino


def move(source: str, target: str, *, directory: int | None = None) -> None:
    """Rename a file or directory. Both names are relative to `directory`, an open descriptor, if it is not None."""
    os.rename(source, target, src_dir_fd=directory, dst_dir_fd=directory)


def remove_tree(path: str) -> None:
    """Remove a directory. It is renamed first, so that nobody takes a half-removed one for complete. Errors are ignored."""
    import shutil  # noqa: PLC0415 - imports codecs, which most programs do not need

    with ignore_errors(OSError):
        os.rename(path, path + ASIDE)
        shutil.rmtree(path + ASIDE, ignore_errors=True)


def make_directory(path: str) -> None:
    """Create a directory and its missing ancestors, each durable in its parent before anything is created inside."""
    parent = os.path.dirname(path)
    if not os.path.isdir(parent):
        make_directory(parent)
    with ignore_errors(FileExistsError):  # created by another process, which may not have synced the parent yet: sync it in any case
        os.mkdir(path, 0o700)
    sync_directory(parent)


def sync_directory(path: str) -> None:
    """Make the names in a directory durable. Some network file systems have no such call; there it does nothing."""
    try:
        _sync(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise_host_exception(error)
        if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
            raise


def sync_tree(path: str) -> None:
    """Make a directory and everything below it durable."""
    for parent, _, names in os.walk(path):
        for name in names:
            _sync(os.path.join(parent, name), os.O_RDONLY | os.O_CLOEXEC)
        sync_directory(parent)


def _sync(path: str, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def open_regular(path: str, flags: int = os.O_RDONLY) -> int:
    """Open a regular file. Raise DamagedFileError if the path is something else, such as a FIFO, on which `open` would wait forever."""
    try:
        file = os.open(path, flags | _SAFE_FLAGS, 0o600)
    except OSError as error:
        if error.errno in _NOT_REGULAR:
            raise DamagedFileError(errno.EINVAL, "not a regular file", path) from error
        raise
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise DamagedFileError(errno.EINVAL, "not a regular file", path)
    return file


def read_file(path: str, limit: int) -> bytes:
    """Return the content of a regular file, at most `limit` bytes. A file that is longer is cut there."""
    file = open_regular(path)
    try:
        size = min(limit, os.fstat(file).st_size)
        return bytes(read_range(file, 0, size))
    finally:
        os.close(file)


def read_json(path: str, kind: Any, limit: int = 1 << 20) -> Any:
    """Return the content of a JSON file as a value of type `kind`. Raise DamagedFileError if it is not, or has more than `limit` bytes."""
    data = read_file(path, limit + 1)
    if len(data) > limit:
        raise DamagedFileError(errno.EFBIG, f"larger than {limit} bytes", path)
    import msgspec  # noqa: PLC0415 - takes 5 ms, and settings need no JSON

    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:  # invalid UTF-8 is a ValueError, not a MsgspecError
        raise DamagedFileError(errno.EINVAL, str(error), path) from error


def set_aside(path: str) -> bool:
    """Give a damaged file a name that no reader looks for. Return whether that was possible; if not, readers skip the file again."""
    try:
        os.rename(path, path + DAMAGED)
    except OSError as error:
        raise_host_exception(error)
        return False
    return True


def read_whole(file: int) -> Buffer:
    """Return all bytes of an open file. A small file takes a single read."""
    start = os.read(file, _SMALL)
    return start if len(start) < _SMALL else read_range(file, 0, os.fstat(file).st_size)


def read_range(file: int, start: int, size: int) -> Buffer:
    """Return `size` bytes of an open file from `start`, or fewer if the file ends earlier. Raise OSError if memory is too small."""
    try:
        data = bytearray(size)
    except MemoryError:
        raise OSError(errno.ENOMEM, f"{size} bytes do not fit into memory") from None
    view = memoryview(data)
    filled = 0
    while filled < size and (count := os.preadv(file, [view[filled:]], start + filled)):
        filled += count
    return view[:filled] if filled < size else data
