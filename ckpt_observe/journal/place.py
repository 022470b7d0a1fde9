"""Where a journal's parts may lie: private directories, and shared memory that cannot kill the host."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path
from typing import Final

from ckpt_observe.errors import JournalError

SHARED_MEMORY: Final = Path("/dev/shm")  # noqa: S108 - the kernel's, not a temporary directory of ours
ROOM: Final = 64 << 20
"""Shared memory that must be free before we take some of it."""
MAPPABLE: Final = frozenset({"tmpfs", "ext2", "ext3", "ext4", "xfs"})
"""File systems on which allocated blocks stay allocated, so that a mapped store never raises SIGBUS on a full disk (tried: tmpfs, ext4).
On copy-on-write and network file systems they do not."""


def private_directory(path: Path, setting: str = "CKPT_OBSERVE_DIR") -> Path:
    """Make the directory with mode 0700, or check that nobody else can write into it. `setting` is what to change if not."""
    try:
        path.mkdir(parents=True, mode=0o700, exist_ok=True)
        found = path.lstat()
    except OSError as error:
        raise JournalError(f"{path}: cannot be made ({error.strerror}); set {setting} to a directory you may write to") from error
    if not stat.S_ISDIR(found.st_mode):
        raise JournalError(f"{path}: is not a directory; set {setting} to another one")
    if sys.platform != "win32" and (found.st_uid != os.geteuid() or found.st_mode & 0o022):
        raise JournalError(f"{path}: belongs to, or can be written by, somebody else; set {setting} to a private directory")
    return path


def page_directory(state: Path, asked: Path | None) -> tuple[Path, bool]:
    """Where the pages go, and whether that place may be mapped."""
    if asked is not None:
        directory = private_directory(asked, "CKPT_OBSERVE_PAGES_DIR")
    else:
        directory = _shared(SHARED_MEMORY / f"ckpt_observe-{os.geteuid()}") or private_directory(state / "pages")
    return directory, file_system(directory) in MAPPABLE and _atomic_writes()


def _shared(directory: Path) -> Path | None:
    """A directory of our own in shared memory; None where there is no room, or somebody else has taken the name."""
    try:
        return private_directory(directory) if _has_room(directory.parent) else None
    except JournalError:
        return None


def _has_room(directory: Path) -> bool:
    try:
        room = os.statvfs(directory)
    except OSError:
        return False
    return file_system(directory) == "tmpfs" and room.f_bavail * room.f_frsize >= ROOM and os.access(directory, os.W_OK)


def file_system(path: Path) -> str:
    """Type of the file system that holds the path, or empty where the system does not tell."""
    try:
        mounts = [line.split() for line in Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace").splitlines()]
    except OSError:
        return ""
    real, best, kind = str(path.resolve()), "", ""
    for _, mount, each, *_ in mounts:
        under = mount in ("/", real) or real.startswith(mount + "/")
        if under and len(mount) >= len(best):
            best, kind = mount, each
    return kind


def _atomic_writes() -> bool:
    """Without a GIL `mmap.write` is not one step."""
    return getattr(sys, "_is_gil_enabled", lambda: True)()
