"""Pages: one operation in flight writes its lines into one page of shared memory, without a system call and without a lock.

A page is 4 KiB of a mapped file: a word that says how much of it counts, words for marks, then JSON lines. `append` reserves a place,
copies the line there, and makes it count with one aligned 8-byte store: a process killed before that leaves a line that was never there.
`marks[n] = word`, n from 1 to 31, is one such store, at a third of what `pack_into` costs. CPython gives the GIL away, and runs signal
handlers, only after calls and at jumps; so the three statements that reserve are one step, and so is reading the count in the same
statement that stores it.
"""

from __future__ import annotations

import mmap
import os
import struct
import threading
from contextlib import suppress
from typing import Final, Protocol

PAGE_SIZE: Final = 4096
"""The smallest unit that can be mapped; an operation with four phases and twenty attributes takes about 1.5 KiB."""

ENDED: Final = 1 << 63
"""Set in the count of a page whose operation has ended."""

MARKS: Final = 31
"""Words for marks; what they mean is the writer's."""

WORD = struct.Struct("@Q")  # native: one aligned store, never torn
HEADER: Final = WORD.size * (1 + MARKS)
_EMPTY: Final = bytes(HEADER)
LINE_ROOM: Final = PAGE_SIZE - HEADER
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
        self._used, self._limit = self._start + HEADER, self._start + PAGE_SIZE
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
        """Keep the last line; the delivery may have the page."""
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
        self._map[self._start : self._start + HEADER] = _EMPTY
        self._used = self._start + HEADER
        self.more = ()

    def lines(self) -> bytes:
        return self._map[self._start + HEADER : self._used]

    def image(self) -> bytes:
        return self._map[self._start : self._limit]

    def room(self, line: bytes) -> bool:
        return self._used + len(line) <= self._limit


class WrittenPage:
    """The same by `pwrite`, where a map cannot be trusted: an error is no signal there, and the line is kept in memory."""

    def __init__(self, fd: int, number: int, home: Home) -> None:
        self._fd, self._start, self._used = fd, number * PAGE_SIZE, HEADER
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
                os.pwrite(self._fd, WORD.pack(self._used), self._start)
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
            os.pwrite(self._fd, WORD.pack(word), self._start + number * WORD.size)

    def finish(self, line: bytes) -> None:
        self.append(line)
        if not self.home.abandoned:
            with suppress(OSError):  # only for who looks at what runs
                os.pwrite(self._fd, WORD.pack(self._used | ENDED), self._start)
            self.home.ended(self)

    def clear(self) -> None:
        os.pwrite(self._fd, _EMPTY, self._start)
        self._used = HEADER
        self.more = ()

    def lines(self) -> bytes:
        return os.pread(self._fd, self._used - HEADER, self._start + HEADER)

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
