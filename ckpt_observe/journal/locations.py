"""Where a journal and its pages can be stored: private directories, and shared memory that cannot crash the host program.

Pages are in shared memory, because a store there never waits for a disk. The shared memory of a container ends with it. If the state
directory is on a volume, which outlives the container, the pages are there too, so that the next container finds the last operations.
"""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path
from typing import Final, NamedTuple

from ckpt_observe.errors import JournalError
from ckpt_observe.support.host_exceptions import ignore_errors, raise_host_exception

SHARED_MEMORY: Final = Path("/dev/shm")  # noqa: S108 - provided by the kernel, not a temporary directory of ours
LEAST_FREE: Final = 64 << 20
"""Bytes that must be free in shared memory before we use it."""
MAPPABLE: Final = frozenset({"tmpfs", "ext2", "ext3", "ext4", "xfs"})
"""File systems on which an allocated block stays allocated, so that a store into a map never raises SIGBUS on a full disk (tested: tmpfs,
ext4). Copy-on-write and network file systems do not guarantee that."""
PAGES: Final = "pages"
"""Directory in the state directory for pages that are not in shared memory."""
_FIRST_IPC_NAMESPACE: Final = "ipc:[4026531839]"
"""The IPC namespace of the machine itself; its number is a constant of Linux (PROC_IPC_INIT_INO)."""


class PagePlace(NamedTuple):
    """A directory for page files, and whether they can be mapped; if not, pages are written with `pwrite`."""

    directory: Path
    mapped: bool


def private_directory(path: Path, setting: str = "CKPT_OBSERVE_DIR") -> Path:
    """Create a directory with mode 0700, or check that it is ours and nobody else can write to it. Return it.

    Else raise JournalError, which tells the user to change `setting`.
    """
    try:
        path.mkdir(parents=True, mode=0o700, exist_ok=True)
        status = path.lstat()
    except OSError as error:
        raise_host_exception(error)
        raise JournalError(f"{path}: cannot be created ({error.strerror}); set {setting} to a directory that you can write to") from error
    if not stat.S_ISDIR(status.st_mode):
        raise JournalError(f"{path}: is a symbolic link, not a directory; set {setting} to a directory")
    if sys.platform != "win32" and (status.st_uid != os.geteuid() or status.st_mode & 0o022):
        raise JournalError(f"{path}: belongs to another user or is writable by others; set {setting} to a private directory")
    return path


def page_places(state: Path, configured: Path | None) -> list[PagePlace]:
    """Return where to store pages: in shared memory or the configured directory; when that is full, in the state directory.

    The first place exists. The second is created when it is needed.
    """
    directories = []
    if configured is not None:
        directories.append(private_directory(configured, "CKPT_OBSERVE_PAGES_DIR"))
    elif not (has_private_shared_memory() and is_on_volume(state)):
        with ignore_errors(JournalError):  # another user has created it
            directories += [private_directory(shared_directory())] if _has_room(SHARED_MEMORY) else []
    directories.append(state / PAGES if directories else private_directory(state / PAGES))
    return [PagePlace(directory, file_system(directory) in MAPPABLE and _has_gil()) for directory in directories]


def shared_directory() -> Path:
    """Return the directory for the pages of this user in shared memory. Not created."""
    return SHARED_MEMORY / f"ckpt_observe-{os.geteuid()}"


def has_private_shared_memory() -> bool:
    """Return whether the shared memory ends with the container that this process runs in.

    Container engines give a container its own `/dev/shm` together with its own IPC namespace, and share both or none with the machine.
    """
    try:
        return os.readlink("/proc/self/ns/ipc") != _FIRST_IPC_NAMESPACE
    except OSError as error:  # not Linux
        raise_host_exception(error)
        return False


def is_on_volume(path: Path) -> bool:
    """Return whether a path is on another mount than the root directory. In a container, this is a volume."""
    return _find_mount(path)[0] not in ("", "/")


def _has_room(directory: Path) -> bool:
    try:
        status = os.statvfs(directory)
    except OSError as error:
        raise_host_exception(error)
        return False
    return file_system(directory) == "tmpfs" and status.f_bavail * status.f_frsize >= LEAST_FREE and os.access(directory, os.W_OK)


def file_system(path: Path) -> str:
    """Return the type of the file system of a path, or an empty string if the system does not report it."""
    return _find_mount(path)[1]


def _find_mount(path: Path) -> tuple[str, str]:
    """Return mount point and file system type of a path; empty strings if the system does not report them."""
    try:
        mounts = [line.split() for line in Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace").splitlines()]
    except OSError as error:
        raise_host_exception(error)
        return "", ""
    real, longest, longest_type = str(path.resolve()), "", ""
    for _, mount, mount_type, *_ in mounts:
        contains = mount in ("/", real) or real.startswith(mount + "/")
        if contains and len(mount) >= len(longest):
            longest, longest_type = mount, mount_type
    return longest, longest_type


def _has_gil() -> bool:
    """Return whether Python has a GIL. Without it, a store into a map is not atomic."""
    return getattr(sys, "_is_gil_enabled", lambda: True)()
