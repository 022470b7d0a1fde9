"""Pages: one operation in flight writes its lines into one page of shared memory, without a system call and without a lock.

A page is 4 KiB of a mapped file: a word that says how much of it counts, words for marks, then JSON lines. `append` is two C calls:
`mmap.write`, which reserves and copies in one step under the GIL, so threads and signal handlers cannot interleave; and one aligned
8-byte store that makes the line count. A process killed between the two leaves a line that was never there. `mark` is one such store.

The file is allocated (`posix_fallocate`), so a full file system cannot raise SIGBUS in the host; a sparse one would. Truncating it by
hand would too: no map survives that, which is why its directory is private.
"""

from __future__ import annotations

import mmap
import os
import struct
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple, Protocol

PAGE_SIZE: Final = 4096
"""The smallest unit that can be mapped; an operation with four phases and twenty attributes takes about 1.5 KiB."""

ENDED: Final = 1 << 63
"""Set in the count of a page whose operation has ended."""

MARKS: Final = 31
"""Words for marks; what they mean is the writer's."""

_WORD = struct.Struct("@Q")  # native: one aligned store, never torn
_MARK_WORDS = struct.Struct(f"@{MARKS}Q")
_HEADER: Final = _WORD.size * (1 + MARKS)
_EMPTY: Final = bytes(_HEADER)
_commit = _WORD.pack_into


BACKLOG: Final = 768
"""Ended operations that wait for the drain. Beyond it the caller writes its own to the spool: one disk write instead of a loss."""


class Home(Protocol):
    """Whom a page belongs to: takes it back when its operation ended, and finds room when it is full."""

    abandoned: bool
    backlog: deque[AnyPage]

    def ended(self, page: AnyPage) -> None: ...
    def overflow(self, page: AnyPage, line: bytes) -> None: ...


class MappedPage(mmap.mmap):
    """A page of shared memory."""

    home: Home
    backlog: deque[AnyPage]
    more: tuple[AnyPage, ...] = ()
    """Further pages of the same operation."""

    def append(self, line: bytes) -> None:
        """Keep a line, newline included."""
        try:
            self.write(line)
        except ValueError:  # full; or, in a forked child, the parent's and closed
            self.home.overflow(self, line)
        else:
            _commit(self, 0, self.tell())

    mark: Callable[[int, int], None]
    """Keep a word at one of 31 places, given by its offset in bytes: `pack_into` itself, so that it is one C call."""

    def finish(self, line: bytes) -> None:
        """Keep the last line; the drain may have the page."""
        try:
            self.write(line)
        except ValueError:
            self.home.overflow(self, line)
            if self.home.abandoned:
                return
        _commit(self, 0, self.tell() | ENDED)
        backlog = self.backlog
        if len(backlog) < BACKLOG:
            backlog.append(self)
        else:
            self.home.ended(self)

    def clear(self) -> None:
        self[:_HEADER] = _EMPTY
        self.seek(_HEADER)
        self.more = ()

    def lines(self) -> bytes:
        return self[_HEADER : self.tell()]

    def image(self) -> bytes:
        return self[:]

    def room(self, line: bytes) -> bool:
        return self.tell() + len(line) <= PAGE_SIZE


class WrittenPage:
    """The same by `pwrite`, where a map cannot be trusted: an error is an exception there, never a signal."""

    def __init__(self, fd: int, number: int, home: Home) -> None:
        self._fd, self._start, self._used = fd, number * PAGE_SIZE, _HEADER
        self._lock = threading.RLock()  # `pwrite` lets other threads in; a signal handler may come back in
        self.home = home
        self.more: tuple[AnyPage, ...] = ()

    def append(self, line: bytes) -> None:
        with self._lock:
            if self.home.abandoned or not self.room(line):
                self.home.overflow(self, line)
                return
            os.pwrite(self._fd, line, self._start + self._used)
            self._used += len(line)
            os.pwrite(self._fd, _WORD.pack(self._used), self._start)

    def mark(self, offset: int, word: int) -> None:
        if not self.home.abandoned:
            os.pwrite(self._fd, _WORD.pack(word), self._start + offset)

    def finish(self, line: bytes) -> None:
        self.append(line)
        if not self.home.abandoned:
            os.pwrite(self._fd, _WORD.pack(self._used | ENDED), self._start)
            self.home.ended(self)

    def clear(self) -> None:
        os.pwrite(self._fd, _EMPTY, self._start)
        self._used = _HEADER
        self.more = ()

    def lines(self) -> bytes:
        return os.pread(self._fd, self._used - _HEADER, self._start + _HEADER)

    def image(self) -> bytes:
        return os.pread(self._fd, PAGE_SIZE, self._start)

    def room(self, line: bytes) -> bool:
        return self._used + len(line) <= PAGE_SIZE


class LoosePage:
    """The same in ordinary memory, when there is no page to be had: kept if the operation ends, lost if the process does."""

    def __init__(self, home: Home) -> None:
        self.home = home
        self.more: tuple[AnyPage, ...] = ()
        self._lines: list[bytes] = []

    def append(self, line: bytes) -> None:
        self._lines.append(line)

    def mark(self, offset: int, word: int) -> None:
        """Marks are for whoever finds the page of a dead process; nobody finds this one."""

    def finish(self, line: bytes) -> None:
        self._lines.append(line)
        if not self.home.abandoned:
            self.home.ended(self)

    def lines(self) -> bytes:
        return b"".join(self._lines)

    def room(self, _line: bytes) -> bool:
        return True


AnyPage = MappedPage | WrittenPage | LoosePage


class PageFile:
    """A file of pages, made by its owner. Page 0 is the heartbeat: the time of the owner's last sign of life."""

    def __init__(self, path: str, count: int, home: Home, *, mapped: bool) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)
        self.path, self._fd, self._home = path, os.open(path, flags, 0o600), home
        try:
            self._allocate((count + 1) * PAGE_SIZE)
            self.pages = [self._mapped(number) if mapped else WrittenPage(self._fd, number, home) for number in range(1, count + 1)]
        except BaseException:
            os.close(self._fd)
            os.unlink(path)
            raise

    def _allocate(self, size: int) -> None:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(self._fd, 0, size)  # ENOSPC here and now, rather than SIGBUS later
        else:
            os.write(self._fd, bytes(size))

    def _mapped(self, number: int) -> MappedPage:
        # populated at once: a page fault would cost the first operation more than its records do
        page = MappedPage(self._fd, PAGE_SIZE, flags=mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0), offset=number * PAGE_SIZE)
        page.home, page.backlog = self._home, self._home.backlog
        page.mark = partial(_commit, page)
        page.seek(_HEADER)
        return page

    def beat(self, now: int) -> None:
        os.pwrite(self._fd, heartbeat_page(now)[:8], 0)

    def close(self) -> None:
        """The pages are not ours any more (a forked child) or not needed (the end). A late `append` goes to `overflow`."""
        for page in self.pages:
            if isinstance(page, MappedPage):
                page.close()
        os.close(self._fd)


def heartbeat_page(now: int) -> bytes:
    """The first page of a file of pages."""
    return _WORD.pack(now).ljust(PAGE_SIZE, b"\0")


class Found(NamedTuple):
    """A used page of a file: its lines and its marks."""

    lines: bytes
    marks: tuple[int, ...]


def read_pages(path: str) -> tuple[int, list[Found]]:
    """What a page file holds: the last heartbeat, and each used page. Hostile input is fine."""
    with open(path, "rb") as file:
        data = file.read()
    heartbeat = _WORD.unpack_from(data)[0] if len(data) >= PAGE_SIZE else 0
    found = []
    for start in range(PAGE_SIZE, len(data) - PAGE_SIZE + 1, PAGE_SIZE):
        used = _WORD.unpack_from(data, start)[0] & ~ENDED
        if _HEADER < used <= PAGE_SIZE:
            found.append(Found(data[start + _HEADER : start + used], _MARK_WORDS.unpack_from(data, start + 8)))
    return heartbeat, found
