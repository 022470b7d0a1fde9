"""A file of pages in shared memory, created by its owner.

A file is mapped once as a whole, because every map takes a file descriptor of the host program. Its blocks are allocated with
`posix_fallocate`, because on a full file system a store into a sparse file raises SIGBUS in the host program. So does a store into a file
that was truncated by hand. Nothing can prevent that, which is why the directory is private.
"""

from __future__ import annotations

import mmap
import os
from contextlib import suppress

from ckpt_observe.journal.pages import PAGE_SIZE, WORD, MappedPage, PagePool, PwritePage


class PageFile:
    """A file of pages. Page 0 holds the heartbeat, the time at which the owner was last known to live."""

    def __init__(self, path: str, count: int, pool: PagePool, *, mapped: bool) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)
        self.path, self._fd = path, os.open(path, flags, 0o600)
        try:
            self._allocate((count + 1) * PAGE_SIZE)
            self._map = self._create_map() if mapped else None
            self._view = memoryview(self._map) if self._map else None
        except BaseException:
            os.close(self._fd)
            os.unlink(path)
            raise
        self.pages: list[MappedPage | PwritePage] = [
            MappedPage(self._map, self._view, number, pool) if self._map and self._view else PwritePage(self._fd, number, pool)
            for number in range(1, count + 1)
        ]

    def _allocate(self, size: int) -> None:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(self._fd, 0, size)  # raises ENOSPC now instead of SIGBUS later
        else:
            os.write(self._fd, bytes(size))

    def _create_map(self) -> mmap.mmap:
        # Populated at once: a page fault would cost the first operation more than its records do.
        return mmap.mmap(self._fd, 0, flags=mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0))

    def write_heartbeat(self, now: int) -> None:
        """Store the time, in Unix nanoseconds, at which the owner is known to live."""
        os.pwrite(self._fd, heartbeat_page(now)[:8], 0)

    def close(self) -> None:
        """Unmap and close: the pages belong to the parent of this process, or are not needed any more. Later lines are dropped."""
        if self._fd >= 0:  # only once: by the second call the number may be a file of the host program
            fd, self._fd = self._fd, -1
            if self._map is not None and self._view is not None:
                for page in self.pages:
                    if isinstance(page, MappedPage):
                        page.detach()
                self._view.release()
                self._map.close()
            os.close(fd)

    def remove(self) -> None:
        """Close and delete the file."""
        self.close()
        with suppress(FileNotFoundError):
            os.unlink(self.path)


def heartbeat_page(now: int) -> bytes:
    """Return the first page of a page file, with a heartbeat in Unix nanoseconds."""
    return WORD.pack(now).ljust(PAGE_SIZE, b"\0")
