"""A file system whose power can be cut, and programs that run on it until then. Needs root, ext4 and a loop device."""

from __future__ import annotations

import ctypes
import fcntl
import functools
import os
import select
import shutil
import signal
import struct
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

EXT4_SHUTDOWN, NO_LOG_FLUSH = 0x8004587D, 2
CLONE_NEWNS = 0x20000
SIZE = 128 << 20


@functools.cache
def why_no_mounts() -> str | None:
    """Return why file systems cannot be mounted here, or None if they can."""
    if os.geteuid() != 0 or shutil.which("mkfs.ext4") is None:
        return "needs root and mkfs.ext4, to mount file systems"
    with tempfile.TemporaryDirectory() as directory:
        try:
            with mounted(Path(directory), "-t", "tmpfs", "tmpfs"):
                return None
        except MountError as error:
            return f"mounting is not permitted: {error}"


def use_private_mounts() -> None:
    """Make the mounts of this process invisible to others. They end with it, and no other process keeps them alive in a copy of its own."""
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNS):
        raise OSError(ctypes.get_errno(), "unshare")
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)


@contextmanager
def private_mounts() -> Iterator[None]:
    """Use private mounts during the block, in this thread."""
    directory, outside = os.getcwd(), os.open("/proc/thread-self/ns/mnt", os.O_RDONLY)
    use_private_mounts()
    try:
        yield
    finally:
        if ctypes.CDLL(None, use_errno=True).setns(outside, CLONE_NEWNS):
            raise OSError(ctypes.get_errno(), "setns")
        os.close(outside)
        os.chdir(directory)  # setns has changed it to the root


class MountError(Exception):
    """Mounting is not permitted."""


@contextmanager
def mounted(directory: Path, *arguments: str) -> Iterator[None]:
    """Mount a file system. `arguments` are those of the program mount."""
    process = subprocess.run(["mount", *arguments, str(directory)], capture_output=True, text=True, check=False)
    if process.returncode:
        raise MountError(process.stderr.strip())
    try:
        yield
    finally:
        subprocess.run(["umount", str(directory)], check=True)


class Disk:
    """An ext4 file system in a file. `mounted()` mounts it; `cut()` is a power failure: what was not synced is gone after a new mount."""

    def __init__(self, root: Path) -> None:
        self.directory, self._image = root / "mnt", root / "image"
        self.directory.mkdir(exist_ok=True)

    def format(self) -> None:
        with open(self._image, "wb") as file:
            file.truncate(SIZE)
        subprocess.run(["mkfs.ext4", "-q", "-F", str(self._image)], check=True)

    @contextmanager
    def mounted(self) -> Iterator[None]:
        with mounted(self.directory, "-o", "loop", str(self._image)):
            yield

    def cut(self) -> None:
        descriptor = os.open(self.directory, os.O_RDONLY)
        fcntl.ioctl(descriptor, EXT4_SHUTDOWN, struct.pack("I", NO_LOG_FLUSH))
        os.close(descriptor)

    def cut_under(self, pid: int, output: int) -> bytes:
        """Stop a program, read the rest of its output, cut the power and kill it. Stopped first: a sync during the cut may wrongly succeed."""
        os.kill(pid, signal.SIGSTOP)
        _await_stopped(pid)
        rest = b""
        while select.select([output], [], [], 0)[0] and (more := os.read(output, 1 << 16)):
            rest += more
        self.cut()
        os.kill(pid, signal.SIGKILL)
        return rest


def _await_stopped(pid: int) -> None:
    """Wait until all threads of the process are stopped, or until it has ended."""
    while not all(_state(task) in ("T", "t", "Z", "X") for task in Path(f"/proc/{pid}/task").iterdir()):
        time.sleep(0.001)


def _state(task: Path) -> str:
    try:
        return (task / "stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "X"
