"""Files of pages: made by their owner, read by whoever finds them.

A file is mapped once: every map of its own would take a file descriptor of the host's. It is allocated (`posix_fallocate`), so a full
file system cannot raise SIGBUS in the host; a sparse one would. Truncating it by hand would too: no map survives that, which is why its
directory is private.
"""

from __future__ import annotations

import mmap
import os
import struct
from contextlib import suppress
from typing import NamedTuple

from ckpt_observe.journal.pages import ENDED, HEADER, MARKS, PAGE_SIZE, WORD, Home, MappedPage, WrittenPage

_MARK_WORDS = struct.Struct(f"@{MARKS}Q")


class PageFile:
    """A file of pages, made by its owner. Page 0 is the heartbeat: the time of the owner's last sign of life."""

    def __init__(self, path: str, count: int, home: Home, *, mapped: bool) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)
        self.path, self._fd = path, os.open(path, flags, 0o600)
        try:
            self._allocate((count + 1) * PAGE_SIZE)
            self._map = self._mapped() if mapped else None
            self._view = memoryview(self._map) if self._map else None
        except BaseException:
            os.close(self._fd)
            os.unlink(path)
            raise
        numbers = range(1, count + 1)
        self.pages: list[MappedPage | WrittenPage] = [
            MappedPage(self._map, self._view, number, home) if self._map and self._view else WrittenPage(self._fd, number, home)
            for number in numbers
        ]

    def _allocate(self, size: int) -> None:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(self._fd, 0, size)  # ENOSPC here and now, rather than SIGBUS later
        else:
            os.write(self._fd, bytes(size))

    def _mapped(self) -> mmap.mmap:
        # populated at once: a page fault would cost the first operation more than its records do
        return mmap.mmap(self._fd, 0, flags=mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0))

    def beat(self, now: int) -> None:
        os.pwrite(self._fd, heartbeat_page(now)[:8], 0)

    def close(self) -> None:
        """The pages are not ours any more (a forked child) or not needed (the end). A late `append` goes to `overflow`."""
        if self._fd >= 0:  # once: by the second time the number may be a file of the host's
            fd, self._fd = self._fd, -1
            if self._map is not None and self._view is not None:
                for page in self.pages:
                    if isinstance(page, MappedPage):
                        page.abandon()
                self._view.release()
                self._map.close()
            os.close(fd)

    def remove(self) -> None:
        """Nobody needs what is in it."""
        self.close()
        with suppress(FileNotFoundError):
            os.unlink(self.path)


def heartbeat_page(now: int) -> bytes:
    """The first page of a file of pages."""
    return WORD.pack(now).ljust(PAGE_SIZE, b"\0")


def page_files(prefix: str) -> list[str]:
    """The files of one journal, in order; `prefix` is their path without number and ending.

    By hand: `glob` would make a regular expression for each journal.
    """
    directory, name = os.path.split(prefix)
    try:
        found = os.listdir(directory)
    except FileNotFoundError:
        return []
    return sorted(os.path.join(directory, each) for each in found if each.startswith(name + "-") and each.endswith(".pages"))


class Found(NamedTuple):
    """A used page of a file: its lines and its marks."""

    lines: bytes
    marks: tuple[int, ...]


def read_pages(path: str) -> tuple[int, list[Found]]:
    """What a page file holds: the last heartbeat, and each used page. Hostile input is fine."""
    with open(path, "rb") as file:
        data = file.read()
    heartbeat = WORD.unpack_from(data)[0] if len(data) >= PAGE_SIZE else 0
    found = []
    for start in range(PAGE_SIZE, len(data) - PAGE_SIZE + 1, PAGE_SIZE):
        used = WORD.unpack_from(data, start)[0] & ~ENDED
        if HEADER < used <= PAGE_SIZE:
            found.append(Found(data[start + HEADER : start + used], _MARK_WORDS.unpack_from(data, start + 8)))
    return heartbeat, found


def read_open(path: str) -> list[bytes]:
    """The lines of each page whose operation has begun and not ended. Hostile input is fine, and pages that change meanwhile."""
    with open(path, "rb") as file:
        data = file.read()
    found = []
    for start in range(PAGE_SIZE, len(data) - PAGE_SIZE + 1, PAGE_SIZE):
        used = WORD.unpack_from(data, start)[0]
        if HEADER < used <= PAGE_SIZE:  # the mark of an ended one makes it larger
            found.append(data[start + HEADER : start + used])
    return found
