"""The pages of one process: operations take free pages, and give them back to be collected.

Free and finished pages are in a list and a deque that are used only through single C calls (`pop`, `append`, `popleft`), which the GIL
makes atomic. There is no lock, so no caller waits for another, and a signal handler that saves a checkpoint cannot deadlock.

A caller makes no system call as long as pages are free. In a program with busy threads each one would cost it tens of milliseconds, because
it gives up the GIL. So finished operations wait in their pages, and the page collector adds pages before they run out. Only a burst that
uses half of the pages before the collector reacts makes a caller add pages itself; only if the limit is reached does it write to disk.
"""

from __future__ import annotations

import itertools
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, TypeAlias

from ckpt_observe.journal.lost_operations import missing_end
from ckpt_observe.journal.page_file import PageFile
from ckpt_observe.journal.pages import LINE_ROOM, AnyPage, MemoryPage
from ckpt_observe.journal.spool import join_lines
from ckpt_observe.semconv import events
from ckpt_observe.support.host_exceptions import ignore_errors, raise_host_exception
from ckpt_observe.support.process_memory import peak_memory
from ckpt_observe.support.wakeup import Wakeup

FIRST_PAGES: Final = 128
"""Pages of a process with few checkpoints: half a mebibyte. A container has 64 MiB of shared memory by default, for all processes."""
MORE_PAGES: Final = 1024
"""Pages that the page collector adds when half of all pages are in use: 4 MiB."""
MAX_PAGES: Final = 8192
"""Pages of one process: 32 MiB, for operations that run or wait to be collected."""
SPILL_BATCH: Final = 256
"""Finished operations that a caller moves to the spool if all pages are in use. Many at once, so that few callers have to."""
MAX_OVERFLOW_PAGES: Final = 16
"""Further pages for one operation: about 400 events; OpenTelemetry keeps 128 per span. Lines beyond that are dropped, except the `end`."""
COLLECT_BATCH: Final = 4096
"""Finished operations that are moved to the spool with one write: about 5 MB."""
Annotate: TypeAlias = Callable[[list[bytes]], list[bytes]]
"""Returns the records with facts added that only delivery knows, such as the lost steps of a restore. For many records at once, so that it
needs few system calls."""
_END: Final = f'["{events.END}"'.encode()


class Pool:
    """The pages of one process. `spill` writes records to the spool and may raise OSError.

    `places` are pairs: the path of page files without number and suffix, and whether they are mapped. The next is used when one is full.
    """

    def __init__(self, places: Sequence[tuple[str, bool]], spill: Callable[[Iterable[bytes]], None]) -> None:
        self._places, self._spill = places, spill
        self._files: list[PageFile] = []
        self._free: list[AnyPage] = []
        self._finished: deque[AnyPage] = deque()
        self._file_numbers = itertools.count()
        self.closed = self._has_left = False
        self._collected = 0
        """Operations that were moved to the spool."""
        self.counts = {"spilled": 0, "unprotected": 0, "lost": 0, "cut": 0, "grown": 0}
        """Operations that a caller wrote to the spool, that had no page in shared memory, that were lost; dropped lines; and files of pages
        that a caller added."""
        self.wakeup = Wakeup()
        """Rung when half of the pages are in use. For the page collector."""
        self._low_water = 0
        """The number of free pages below which `wakeup` is rung. 0 after that, until the page collector has reacted."""
        self._free.append(self._add_file(FIRST_PAGES))  # type: ignore[arg-type]  # not None: the pool is open. OSError if there is no room
        self.make_room()

    def take(self) -> AnyPage | None:
        """Return a page for a new operation, or None if the pool is closed: then the operation is not recorded."""
        free = self._free
        try:
            page = free.pop()
        except IndexError:
            return self._take_slowly()
        if len(free) < self._low_water:
            self._low_water = 0
            self.wakeup.ring()
        return page

    def _take_slowly(self) -> AnyPage | None:
        """Return a page of a new file; else one of a finished operation, which the caller moves to the spool; else one in memory."""
        page = self._try_add_file(FIRST_PAGES)
        self.counts["grown"] += page is not None
        while page is None and not self.closed:
            try:
                page = self._free.pop()
            except IndexError:  # none is free, or other threads were faster
                if not self._try_collect():
                    self.counts["unprotected"] += 1
                    return MemoryPage(self)
        return page

    def _try_collect(self) -> int:
        try:
            moved = self.collect(limit=SPILL_BATCH)
        except OSError as error:
            raise_host_exception(error)
            return 0
        self.counts["spilled"] += moved
        return moved

    def _try_add_file(self, count: int) -> AnyPage | None:
        """Add a file of up to `count` pages and return one of them; None if there is no room.

        Threads that run out of pages at the same time each create a file; waiting would leave their operations unprotected.
        """
        count = min(count, MAX_PAGES - self._page_count())
        try:
            return self._add_file(count) if count > 0 and not self.closed else None
        except OSError as error:
            raise_host_exception(error)
            return None

    def _page_count(self) -> int:
        return sum(len(file.pages) for file in self._files)

    def _create_file(self, number: int, count: int, places: Sequence[tuple[str, bool]]) -> PageFile:
        """Create a file in the first place that has room. A place that was full is not used again, as recovery expects."""
        (prefix, mapped), *later_places = places
        try:
            file = PageFile(f"{prefix}-{number:02}.pages", count, self, mapped=mapped)
        except OSError as error:
            raise_host_exception(error)
            if not later_places:
                raise
            os.makedirs(os.path.dirname(later_places[0][0]), 0o700, exist_ok=True)
            return self._create_file(number, count, later_places)
        self._places = places
        return file

    def _add_file(self, count: int) -> AnyPage | None:
        file = self._create_file(next(self._file_numbers), count, self._places)
        first, *rest = file.pages  # reserve the first for the caller: other threads may take all that are free
        self._files.append(file)  # not before we have its pages: `recover_lost_pages` may run now, and they are not lost
        if self.closed:  # by another thread, in the meantime
            file.remove()
            return None
        self._free.extend(rest)
        return first

    def make_room(self) -> None:
        """Add pages ahead of need, so that no caller has to. For the page collector."""
        while len(self._free) < self._page_count() // 2 and (page := self._try_add_file(MORE_PAGES)):
            self._free.append(page)
        self._low_water = self._page_count() // 2

    def recover_lost_pages(self) -> None:
        """Take back the pages that nobody has any more. For the page collector.

        An exception of a signal handler may arrive after a page was taken and before it is stored, or before `__exit__` has begun.
        """
        if len(self._free) + len(self._finished) == self._page_count():
            return
        for page in [page for file in self._files for page in file.unreferenced_pages()]:
            lines = _read_lines(page)
            if not lines:
                self._free_pages(page)
            elif (end := missing_end(lines)) is None:
                self._finished.append(page)
            else:
                page.finish(end)

    def append_overflow(self, page: AnyPage, line: bytes) -> bool:
        """Store a line that does not fit into its page in a further page of the same operation. Return False if there is no room."""
        if self.closed:
            return False
        if len(line) > LINE_ROOM or (len(page.overflow_pages) >= MAX_OVERFLOW_PAGES and not line.startswith(_END)):
            self.counts["cut"] += 1
            page.marks[events.CUT] = 1
            return False
        if not page.overflow_pages or not page.overflow_pages[-1].has_room(line):
            new_page = self.take()
            if new_page is None:
                return False
            # One store of a new tuple: another thread of the same operation may have added a page meanwhile.
            page.overflow_pages = (*page.overflow_pages, new_page)
        return page.overflow_pages[-1].append(line)  # if another thread has filled that page meanwhile, the line overflows once more

    def give_back(self, page: AnyPage) -> None:
        """Queue the page of an operation that has ended, to be collected. A page in ordinary memory is written to the spool at once."""
        if not isinstance(page, MemoryPage):
            self._finished.append(page)
            return
        try:
            self._spill([join_lines(_read_lines(page))])
        except OSError as error:
            self.counts["lost"] += 1
            self._free_pages(page)
            raise_host_exception(error)
        else:
            self.counts["spilled"] += 1
            self._collected += 1
            self._free_pages(page)

    def discard(self, page: AnyPage) -> None:
        """Free the page of an operation that is not recorded."""
        self._free_pages(page)

    def count_recorded(self) -> int:
        """Return how many operations have finished since the pool was created."""
        return self._collected + len(self._finished)

    def count_finished(self) -> int:
        """Return how many finished operations wait to be collected."""
        return len(self._finished)

    def collect(self, annotate: Annotate | None = None, *, limit: int = COLLECT_BATCH) -> int:
        """Move finished operations to the spool and return how many. If it raises OSError, they wait for the next call.

        `annotate` may add to the records. Only the page collector passes it, as it may use files, which host program threads must not do.
        """
        pages: list[AnyPage] = []
        with ignore_errors(IndexError):  # no more; another thread may collect at the same time
            while len(pages) < limit:
                pages.append(self._finished.popleft())
        if not pages:
            return 0
        try:
            records = [join_lines(_read_lines(page)) for page in pages]
            self._spill(annotate(records) if annotate else records)
        except BaseException:  # also a fault of ours, or what a signal handler raised: the records must not be lost
            self._finished.extendleft(reversed(pages))
            raise
        for page in pages:
            self._free_pages(page)
        self._collected += len(pages)
        return len(pages)

    def _free_pages(self, page: AnyPage) -> None:
        for each in list(_pages_of_operation(page)):
            if not isinstance(each, MemoryPage):
                with ignore_errors(OSError):  # a page that cannot be cleared is not used again
                    each.clear()
                    self._free.append(each)

    def read_uncollected(self) -> list[bytes]:
        """Return images of the pages of all operations that are not in the spool, running or finished, as they are now."""
        free = {id(page) for page in self._free}
        return [page.read_image() for file in self._files for page in file.pages if id(page) not in free]

    def has_uncollected(self) -> bool:
        """Return whether a finished operation waits to be collected, or was left to the next process when the pool was closed."""
        return self._has_left or bool(self._finished)

    def retire(self) -> bool:
        """Close the pool unless an operation is running, and return whether it is closed. Files stay open.

        The free pages are removed first, so that no operation begins during the check.
        """
        free, self._free = self._free, []
        self.closed = self.closed or len(free) + len(self._finished) == self._page_count()
        if not self.closed:
            self._free.extend(free)
        return self.closed

    def write_owner_note(self, note: bytes) -> None:
        """Store a note about this process in its first file, which tells `orphans` when the files are not needed any more."""
        self._files[0].write_owner_note(note)

    def write_heartbeat(self, now: int) -> None:
        """Store the time, in Unix nanoseconds, at which this process is known to live, and its peak memory."""
        for file in self._files[:1]:  # none if the pool was closed meanwhile
            file.write_heartbeat(now, peak_memory())

    def close(self) -> None:
        """Close the files and keep them on disk: for the parent, if this is a forked child, or for the next process."""
        for file in self._let_go():
            file.close()

    def remove(self) -> None:
        """Close and delete the files. Everything was collected."""
        for file in self._let_go():
            file.remove()

    def _let_go(self) -> list[PageFile]:
        """Give up all pages, so that each file is closed when no operation and no thread uses it any more. Return the files."""
        self.closed, self._has_left = True, self.has_uncollected()
        files, self._files, self._free, self._finished = self._files, [], [], deque()
        return files


def _pages_of_operation(page: AnyPage) -> Iterator[AnyPage]:
    """Yield the first page of an operation, then its overflow pages."""
    yield page
    for overflow_page in page.overflow_pages:
        yield from _pages_of_operation(overflow_page)


def _read_lines(page: AnyPage) -> bytes:
    return b"".join([each.read_lines() for each in _pages_of_operation(page)])
