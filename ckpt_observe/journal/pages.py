"""Pages: one operation in flight writes its lines into one page of shared memory, without a system call and without a lock.

A page is 4 KiB of a mapped file: a word that says how much of it counts, words for marks, then JSON lines. `append` reserves a place,
copies the line there, and makes it count with one aligned 8-byte store: a process killed before that leaves a line that was never there.
`marks[n] = word`, n from 1 to 31, is one such store, at a third of what `pack_into` costs. CPython gives the GIL away, and runs signal
handlers, only after calls and at jumps; so the three statements that reserve are one step, and so is reading the count in the same
statement that stores it.

The file is mapped once: every map of its own would take a file descriptor of the host's.

The file is allocated (`posix_fallocate`), so a full file system cannot raise SIGBUS in the host; a sparse one would. Truncating it by
hand would too: no map survives that, which is why its directory is private.
"""

from __future__ import annotations

import mmap
import os
import struct
import threading
from contextlib import suppress
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
LINE_ROOM: Final = PAGE_SIZE - _HEADER
"""What a page has for lines."""


class Home(Protocol):
    """Whom a page belongs to: takes it back when its operation ended, and finds room when it is full."""

    abandoned: bool

    def ended(self, page: AnyPage) -> None: ...
    def overflow(self, page: AnyPage, line: bytes) -> None: ...


class MappedPage:
    """A page of shared memory."""

    __slots__ = ("_limit", "_map", "_start", "_used", "_words", "home", "marks", "more")

    def __init__(self, shared: mmap.mmap, view: memoryview, number: int, home: Home) -> None:
        self._map, self._start = shared, number * PAGE_SIZE
        self._used, self._limit = self._start + _HEADER, self._start + PAGE_SIZE
        self._words = view[self._start : self._limit].cast("Q")  # native: one aligned store, never torn
        self.marks: memoryview | dict[int, int] = self._words
        self.home = home
        self.more: tuple[AnyPage, ...] = ()
        """Further pages of the same operation."""

    def append(self, line: bytes) -> None:
        """Keep a line, newline included."""
        size = len(line)
        used = self._used
        end = used + size
        if end > self._limit or self.home.abandoned:  # full; or, in a forked child, the parent's
            self.home.overflow(self, line)
            return
        self._used = end
        self._map[used:end] = line
        self._words[0] = self._used - self._start

    def finish(self, line: bytes) -> None:
        """Keep the last line; the drain may have the page."""
        self.append(line)
        home = self.home
        if not home.abandoned:
            self._words[0] = self._used - self._start | ENDED
            home.ended(self)

    def abandon(self) -> None:
        """Not ours any more. Who still holds it marks nothing."""
        self.marks = {}
        self._words.release()

    def clear(self) -> None:
        self._map[self._start : self._start + _HEADER] = _EMPTY
        self._used = self._start + _HEADER
        self.more = ()

    def lines(self) -> bytes:
        return self._map[self._start + _HEADER : self._used]

    def image(self) -> bytes:
        return self._map[self._start : self._limit]

    def room(self, line: bytes) -> bool:
        return self._used + len(line) <= self._limit


class WrittenPage:
    """The same by `pwrite`, where a map cannot be trusted: an error is no signal there, and the line is kept in memory."""

    def __init__(self, fd: int, number: int, home: Home) -> None:
        self._fd, self._start, self._used = fd, number * PAGE_SIZE, _HEADER
        self._lock = threading.RLock()  # `pwrite` lets other threads in; a signal handler may come back in
        self.home = home
        self.marks = _WrittenMarks(self)
        self.more: tuple[AnyPage, ...] = ()

    def append(self, line: bytes) -> None:
        with self._lock:
            if self.home.abandoned or not self.room(line):
                self.home.overflow(self, line)
                return
            place = self._used
            self._used = end = place + len(line)  # first: a signal handler that comes in between must not take the same place
            try:
                os.pwrite(self._fd, line, self._start + place)
                os.pwrite(self._fd, _WORD.pack(self._used), self._start)
            except OSError:  # full, or away
                if self._used == end:
                    self._used = place
                self._keep_in_memory(line)

    def _keep_in_memory(self, line: bytes) -> None:
        if not self.more or not isinstance(self.more[-1], LoosePage):
            self.more = (*self.more, LoosePage(self.home))
        self.more[-1].append(line)

    def mark(self, number: int, word: int) -> None:
        if not self.home.abandoned:
            os.pwrite(self._fd, _WORD.pack(word), self._start + number * _WORD.size)

    def finish(self, line: bytes) -> None:
        self.append(line)
        if not self.home.abandoned:
            with suppress(OSError):  # only for who looks at what runs
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


class _WrittenMarks:
    def __init__(self, page: WrittenPage) -> None:
        self._page = page

    def __setitem__(self, number: int, word: int) -> None:
        self._page.mark(number, word)


class LoosePage:
    """The same in ordinary memory, when there is no page to be had: kept if the operation ends, lost if the process does."""

    def __init__(self, home: Home) -> None:
        self.home = home
        self.marks: dict[int, int] = {}  # for whoever finds the page of a dead process; nobody finds this one
        self.more: tuple[AnyPage, ...] = ()
        self._lines: list[bytes] = []
        self._used = 0

    def append(self, line: bytes) -> None:
        if not self.room(line):
            self.home.overflow(self, line)
            return
        self._used += len(line)
        self._lines.append(line)

    def finish(self, line: bytes) -> None:
        self.append(line)
        if not self.home.abandoned:
            self.home.ended(self)

    def lines(self) -> bytes:
        return b"".join(self._lines)

    def room(self, line: bytes) -> bool:
        return self._used + len(line) <= LINE_ROOM


AnyPage = MappedPage | WrittenPage | LoosePage


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


def read_open(path: str) -> list[bytes]:
    """The lines of each page whose operation has begun and not ended. Hostile input is fine, and pages that change meanwhile."""
    with open(path, "rb") as file:
        data = file.read()
    found = []
    for start in range(PAGE_SIZE, len(data) - PAGE_SIZE + 1, PAGE_SIZE):
        used = _WORD.unpack_from(data, start)[0]
        if _HEADER < used <= PAGE_SIZE:  # the mark of an ended one makes it larger
            found.append(data[start + _HEADER : start + used])
    return found
