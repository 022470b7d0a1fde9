"""A file of pages in shared memory, created by its owner.

A file is mapped once as a whole, because every map takes a file descriptor of the host program. Its blocks are allocated with
`posix_fallocate`, because on a full file system a store into a sparse file raises SIGBUS in the host program. So does a store into a file
that was truncated by hand. Nothing can prevent that, which is why the directory is private.

Map and descriptor are closed with the last reference to them. Threads that use a page meanwhile, such as the page collector of a program
that exits, never meet a closed map, nor a descriptor whose number is a file of the host program by then.
"""

from __future__ import annotations

import mmap
import os
import sys
from collections.abc import Iterator
from typing import Final

from ckpt_observe.journal.pages import MEMORY_WORD, PAGE_SIZE, WORD, Descriptor, MappedPage, PagePool, PwriteMarks, PwritePage
from ckpt_observe.support import files
from ckpt_observe.support.host_exceptions import ignore_errors
from ckpt_observe.support.locks import try_lock

_COUNTS_REFERENCES: Final = hasattr(sys, "getrefcount") and getattr(sys, "_is_gil_enabled", lambda: True)()
"""Whether the number of references to an object is exact: in CPython with a GIL."""


class PageFile:
    """A file of pages. Page 0 holds the heartbeat and a note about the owner.

    The heartbeat is the time at which the owner was last known to live, in the first word, and its peak memory then, in the last one.
    """

    def __init__(self, path: str, count: int, pool: PagePool, *, mapped: bool) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)
        self.path, descriptor = path, Descriptor(os.open(path, flags, 0o600))
        self.pages: list[MappedPage | PwritePage] = []
        self._heartbeat: memoryview | PwriteMarks | dict[int, int]
        self._is_locked = try_lock(descriptor.number)
        """Until this process ends: the map has a copy of the descriptor."""
        try:
            _allocate(descriptor.number, (count + 1) * PAGE_SIZE)
            if mapped:
                shared = _create_map(descriptor.number)
                view = memoryview(shared)
                self._heartbeat = view[:PAGE_SIZE].cast("Q")
                self.pages += [MappedPage(shared, view, number, pool) for number in range(1, count + 1)]
            else:
                self._heartbeat = PwriteMarks(descriptor, 0, pool)
                self.pages += [PwritePage(descriptor, number, pool) for number in range(1, count + 1)]
        except BaseException:
            os.unlink(path)
            raise
        self._references = next(_count_references(self.pages))
        """Number of references to a page that nobody has but this file."""

    def unreferenced_pages(self) -> list[MappedPage | PwritePage]:
        """Return the pages that are neither free nor finished, and that no operation and no thread has."""
        pages = self.pages  # another thread may close the file
        counts = list(_count_references(pages))  # one C call: no other thread runs meanwhile
        return [page for page, count in zip(pages, counts, strict=True) if count == self._references]

    def write_heartbeat(self, now: int, peak_memory: int) -> None:
        """Store the time, in Unix nanoseconds, at which the owner is known to live, and its peak memory in bytes."""
        self._heartbeat[MEMORY_WORD] = peak_memory
        self._heartbeat[0] = now

    def write_owner_note(self, note: bytes) -> None:
        """Store a note about the owner, for `orphans`. Not if it is too long, or if nobody could see whether the owner lives."""
        if len(note) <= PAGE_SIZE - 2 * WORD.size and self._is_locked:
            descriptor = Descriptor(files.open_regular(self.path, os.O_WRONLY))
            os.pwrite(descriptor.number, note, WORD.size)

    def close(self) -> None:
        """Let go of the pages: they belong to the parent of this process, or are not needed any more. Later lines are dropped."""
        for page in self.pages:
            page.detach()
        self.pages = []
        self._heartbeat = {}

    def remove(self) -> None:
        """Close and delete the file."""
        self.close()
        with ignore_errors(FileNotFoundError):
            os.unlink(self.path)


def _count_references(pages: list[MappedPage | PwritePage]) -> Iterator[int]:
    return map(sys.getrefcount, pages) if _COUNTS_REFERENCES else iter(range(1, len(pages) + 1))


def _allocate(descriptor: int, size: int) -> None:
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, size)  # raises ENOSPC now instead of SIGBUS later
    else:
        os.write(descriptor, bytes(size))


def _create_map(descriptor: int) -> mmap.mmap:
    # Populated at once: a page fault would cost the first operation more than its records do.
    return mmap.mmap(descriptor, 0, flags=mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0))


def read_owner_note(path: str) -> bytes:
    """Return the note in a page file; empty if it has none."""
    return files.read_file(path, PAGE_SIZE)[WORD.size : MEMORY_WORD * WORD.size].rstrip(b"\0")


def heartbeat_page(now: int, peak_memory: int) -> bytes:
    """Return the first page of a page file, with a heartbeat: Unix nanoseconds and bytes."""
    return WORD.pack(now).ljust(MEMORY_WORD * WORD.size, b"\0") + WORD.pack(peak_memory)
