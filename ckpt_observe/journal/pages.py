"""Pages: a running operation writes its lines into one page of shared memory, without a system call and without a lock.

A page is 4 KiB of a mapped file: a word with the number of valid bytes, 31 words for marks, then JSON lines. `append` reserves space,
copies the line there, and makes it valid with one aligned 8-byte store. If the process is killed before that store, the line does not
exist. `marks[n] = word`, n from 1 to 31, is one such store too, at a third of the cost of `pack_into`.

Why this needs no lock: CPython switches threads and runs signal handlers only after calls and at backward jumps. The statements in `append`
that reserve space contain neither, so they are atomic; so is the statement that reads the reserved size and stores it.
"""

from __future__ import annotations

import mmap
import os
import struct
import threading
from typing import Final, Protocol

from ckpt_observe.support.host_exceptions import ignore_errors, raise_host_exception

PAGE_SIZE: Final = 4096
"""Bytes of a page, the smallest unit that can be mapped. An operation with four phases and twenty attributes needs about 1.5 KiB."""

ENDED_FLAG: Final = 1 << 63
"""Set in the first word of a page whose operation has ended."""

MARK_COUNT: Final = 31
"""Number of words for marks. Their meaning is up to the writer."""

WORD = struct.Struct("@Q")  # native: one aligned store, never torn
MEMORY_WORD: Final = PAGE_SIZE // WORD.size - 1
"""Number of the word of page 0 that holds the peak memory of the owner."""
HEADER_SIZE: Final = WORD.size * (1 + MARK_COUNT)
_EMPTY_HEADER: Final = bytes(HEADER_SIZE)
LINE_ROOM: Final = PAGE_SIZE - HEADER_SIZE
"""Bytes that a page has for lines."""


class PagePool(Protocol):
    """What a page needs from its pool."""

    closed: bool
    """The pages cannot be written any more: they belong to the parent of this process, or the journal is closed."""

    def give_back(self, page: AnyPage) -> None:
        """Take a page back whose operation has ended."""

    def discard(self, page: AnyPage) -> None:
        """Take a page back whose operation is not recorded."""

    def append_overflow(self, page: AnyPage, line: bytes) -> bool:
        """Store a line that does not fit into its page elsewhere. Return False if there is no room, and it is dropped."""


class MappedPage:
    """A page in shared memory."""

    __slots__ = ("_limit", "_map", "_start", "_used", "_words", "marks", "overflow_pages", "pool")

    def __init__(self, shared: mmap.mmap, view: memoryview, number: int, pool: PagePool) -> None:
        self._map, self._start = shared, number * PAGE_SIZE
        self._used, self._limit = self._start + HEADER_SIZE, self._start + PAGE_SIZE
        self._words = view[self._start : self._limit].cast("Q")  # native: one aligned store, never torn
        self.marks: memoryview | dict[int, int] = self._words
        self.pool = pool
        self.overflow_pages: tuple[AnyPage, ...] = ()
        """Further pages of the same operation."""

    def append(self, line: bytes) -> bool:
        """Store a line, which ends with a newline. Return whether there was room."""
        size = len(line)
        used = self._used
        end = used + size
        if end > self._limit or self.pool.closed:  # full; or, in a forked child, the parent's
            return self.pool.append_overflow(self, line)
        self._used = end
        self._map[used:end] = line
        self._words[0] = self._used - self._start
        return True

    def finish(self, line: bytes) -> None:
        """Store the last line and give the page back to its pool."""
        size, pool = len(line), self.pool
        used = self._used
        end = used + size
        if end > self._limit or pool.closed:
            self.append(line)
        else:  # the steps of `append`, with the flag in the same store
            self._used = end
            self._map[used:end] = line
        if not pool.closed:
            self._words[0] = self._used - self._start | ENDED_FLAG
            pool.give_back(self)

    def discard(self) -> None:
        """Give the page back to its pool without its lines, as if the operation had not begun."""
        if not self.pool.closed:
            self.pool.discard(self)

    def detach(self) -> None:
        """Ignore marks from now on: the page belongs to the parent of this process, or is not needed any more."""
        self.marks = {}

    def clear(self) -> None:
        """Make the page empty, for the next operation."""
        self._map[self._start : self._start + HEADER_SIZE] = _EMPTY_HEADER
        self._used = self._start + HEADER_SIZE
        self.overflow_pages = ()

    def read_lines(self) -> bytes:
        """Return the lines, each with its newline."""
        return self._map[self._start + HEADER_SIZE : self._used]

    def read_image(self) -> bytes:
        """Return the whole page, header included."""
        return self._map[self._start : self._limit]

    def has_room(self, line: bytes) -> bool:
        """Return whether the line fits."""
        return self._used + len(line) <= self._limit


class Descriptor:
    """A file descriptor that is closed with the last reference to it, so that nobody uses its number after that."""

    __slots__ = ("_close", "number")

    def __init__(self, number: int) -> None:
        self.number, self._close = number, os.close

    def __del__(self) -> None:
        self._close(self.number)


class PwriteMarks:
    """The first words of a page, written with `pwrite`."""

    def __init__(self, descriptor: Descriptor, start: int, pool: PagePool) -> None:
        self._descriptor, self._start, self._pool = descriptor, start, pool

    def __setitem__(self, number: int, word: int) -> None:
        if not self._pool.closed:
            os.pwrite(self._descriptor.number, WORD.pack(word), self._start + number * WORD.size)


class PwritePage:
    """A page written with `pwrite`, used if a map is not safe. A failed write raises an error and no signal; the line is kept in memory."""

    def __init__(self, descriptor: Descriptor, number: int, pool: PagePool) -> None:
        self._descriptor, self._start, self._used = descriptor, number * PAGE_SIZE, HEADER_SIZE
        self._lock = threading.RLock()  # `pwrite` lets other threads run; re-entrant, because a signal handler may append too
        self.pool = pool
        self.marks: PwriteMarks | dict[int, int] = PwriteMarks(descriptor, self._start, pool)
        self.overflow_pages: tuple[AnyPage, ...] = ()

    def append(self, line: bytes) -> bool:
        """Store a line, which ends with a newline. Return whether there was room."""
        with self._lock:
            if self.pool.closed or not self.has_room(line):
                return self.pool.append_overflow(self, line)
            start = self._used
            self._used = end = start + len(line)  # before writing: a signal handler that appends meanwhile must not use the same space
            try:
                os.pwrite(self._descriptor.number, line, self._start + start)
                os.pwrite(self._descriptor.number, WORD.pack(self._used), self._start)
            except OSError as error:  # the disk is full or gone
                if self._used == end:
                    self._used = start
                self._keep_in_memory(line)
                raise_host_exception(error)
            return True

    def _keep_in_memory(self, line: bytes) -> None:
        if not self.overflow_pages or not isinstance(self.overflow_pages[-1], MemoryPage):
            self.overflow_pages = (*self.overflow_pages, MemoryPage(self.pool))
        self.overflow_pages[-1].append(line)

    def detach(self) -> None:
        """Ignore marks from now on: the page belongs to the parent of this process, or is not needed any more."""
        self.marks = {}

    def finish(self, line: bytes) -> None:
        """Store the last line and give the page back to its pool."""
        self.append(line)
        if not self.pool.closed:
            with ignore_errors(OSError):  # the flag matters only to readers of running operations
                os.pwrite(self._descriptor.number, WORD.pack(self._used | ENDED_FLAG), self._start)
            self.pool.give_back(self)

    def discard(self) -> None:
        """Give the page back to its pool without its lines, as if the operation had not begun."""
        if not self.pool.closed:
            self.pool.discard(self)

    def clear(self) -> None:
        """Make the page empty, for the next operation."""
        os.pwrite(self._descriptor.number, _EMPTY_HEADER, self._start)
        self._used = HEADER_SIZE
        self.overflow_pages = ()

    def read_lines(self) -> bytes:
        """Return the lines, each with its newline."""
        return os.pread(self._descriptor.number, self._used - HEADER_SIZE, self._start + HEADER_SIZE)

    def read_image(self) -> bytes:
        """Return the whole page, header included."""
        return os.pread(self._descriptor.number, PAGE_SIZE, self._start)

    def has_room(self, line: bytes) -> bool:
        """Return whether the line fits."""
        return self._used + len(line) <= PAGE_SIZE


class MemoryPage:
    """A page in ordinary memory, used if no other is available: the operation is recorded if it ends, and lost if the process dies."""

    def __init__(self, pool: PagePool) -> None:
        self.pool = pool
        self.marks: dict[int, int] = {}  # never read: marks serve recovery, and this page cannot be recovered
        self.overflow_pages: tuple[AnyPage, ...] = ()
        self._lines: list[bytes] = []
        self._used = 0

    def append(self, line: bytes) -> bool:
        """Store a line, which ends with a newline. Return whether there was room."""
        if not self.has_room(line):
            return self.pool.append_overflow(self, line)
        self._used += len(line)
        self._lines.append(line)
        return True

    def finish(self, line: bytes) -> None:
        """Store the last line and give the page back to its pool."""
        self.append(line)
        if not self.pool.closed:
            self.pool.give_back(self)

    def discard(self) -> None:
        """Give the page back to its pool without its lines, as if the operation had not begun."""
        if not self.pool.closed:
            self.pool.discard(self)

    def read_lines(self) -> bytes:
        """Return the lines, each with its newline."""
        return b"".join(self._lines)

    def has_room(self, line: bytes) -> bool:
        """Return whether the line fits."""
        return self._used + len(line) <= LINE_ROOM


AnyPage = MappedPage | PwritePage | MemoryPage
