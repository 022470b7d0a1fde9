"""Where a journal and its pages can be stored: private directories, and shared memory that cannot crash the host program."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path
from typing import Final

from ckpt_observe.errors import JournalError

SHARED_MEMORY: Final = Path("/dev/shm")  # noqa: S108 - provided by the kernel, not a temporary directory of ours
LEAST_FREE: Final = 64 << 20
"""Bytes that must be free in shared memory before we use it."""
MAPPABLE: Final = frozenset({"tmpfs", "ext2", "ext3", "ext4", "xfs"})
"""File systems on which an allocated block stays allocated, so that a store into a map never raises SIGBUS on a full disk (tested: tmpfs,
ext4). Copy-on-write and network file systems do not guarantee that."""


def private_directory(path: Path, setting: str = "CKPT_OBSERVE_DIR") -> Path:
    """Create a directory with mode 0700, or check that it is ours and nobody else can write to it. Return it.

    Else raise JournalError, which tells the user to change `setting`.
    """
    try:
        path.mkdir(parents=True, mode=0o700, exist_ok=True)
        status = path.lstat()
    except OSError as error:
        raise JournalError(f"{path}: cannot be created ({error.strerror}); set {setting} to a directory that you can write to") from error
    if not stat.S_ISDIR(status.st_mode):
        raise JournalError(f"{path}: is a symbolic link, not a directory; set {setting} to a directory")
    if sys.platform != "win32" and (status.st_uid != os.geteuid() or status.st_mode & 0o022):
        raise JournalError(f"{path}: belongs to another user or is writable by others; set {setting} to a private directory")
    return path


def page_directory(state: Path, configured: Path | None) -> tuple[Path, bool]:
    """Return the directory for pages, and whether its files can be mapped; if not, pages are written with `pwrite`."""
    if configured is not None:
        directory = private_directory(configured, "CKPT_OBSERVE_PAGES_DIR")
    else:
        directory = _shared_memory_directory(SHARED_MEMORY / f"ckpt_observe-{os.geteuid()}") or private_directory(state / "pages")
    return directory, file_system(directory) in MAPPABLE and _has_gil()


def _shared_memory_directory(directory: Path) -> Path | None:
    """Return our directory in shared memory, or None if there is no room or another user has created it."""
    try:
        return private_directory(directory) if _has_room(directory.parent) else None
    except JournalError:
        return None


def _has_room(directory: Path) -> bool:
    try:
        status = os.statvfs(directory)
    except OSError:
        return False
    return file_system(directory) == "tmpfs" and status.f_bavail * status.f_frsize >= LEAST_FREE and os.access(directory, os.W_OK)


def file_system(path: Path) -> str:
    """Return the type of the file system of a path, or an empty string if the system does not report it."""
    try:
        mounts = [line.split() for line in Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace").splitlines()]
    except OSError:
        return ""
    real, longest, longest_type = str(path.resolve()), "", ""
    for _, mount, mount_type, *_ in mounts:
        contains = mount in ("/", real) or real.startswith(mount + "/")
        if contains and len(mount) >= len(longest):
            longest, longest_type = mount, mount_type
    return longest_type


def _has_gil() -> bool:
    """Return whether Python has a GIL. Without it, a store into a map is not atomic."""
    return getattr(sys, "_is_gil_enabled", lambda: True)()
