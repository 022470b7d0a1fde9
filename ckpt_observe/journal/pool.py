"""The pool of pages of one process: who needs one takes it, who is done gives it back to be collected.

`free` and `_ended` are a list and a deque used only by single C calls (`pop`, `append`, `popleft`), which the GIL makes atomic: no
lock, so no caller ever waits for another, and a signal handler that saves a checkpoint cannot deadlock.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Final

from ckpt_observe.journal.page_file import PageFile
from ckpt_observe.journal.pages import LINE_ROOM, AnyPage, LoosePage
from ckpt_observe.journal.spool import record
from ckpt_observe.semconv import events

PAGES_PER_FILE: Final = 128
"""Half a mebibyte: what a process with few checkpoints takes of shared memory."""
MAX_FILES: Final = 64
"""32 MiB of pages: 8,000 operations at once."""
FURTHER_PAGES: Final = 16
"""For one operation: some 400 events, where OpenTelemetry keeps 128 of a span. What a task adds in weeks beyond is cut, but for its end."""
_END: Final = f'["{events.END}"'.encode()
BACKLOG: Final = 768
"""Ended operations that wait for the delivery. Beyond it the caller writes its own to the spool: one disk write instead of a loss."""


class Pool:
    """Pages, free and ended. `spill` writes records to the spool; it may raise OSError."""

    def __init__(self, prefix: str, spill: Callable[[Iterable[bytes]], None], *, mapped: bool) -> None:
        self._prefix, self._spill, self._mapped = prefix, spill, mapped
        self._files: list[PageFile] = []
        self._free: list[AnyPage] = []
        self._ended: deque[AnyPage] = deque()
        self._numbers = itertools.count()
        self.abandoned = False
        self.counts = {"spilled": 0, "unprotected": 0, "lost": 0, "cut": 0}
        """Operations the caller wrote to disk itself; that had no page; that were lost; lines that found no room."""
        self.noted: Callable[[bytes], bytes] = lambda record: record
        """What the delivery adds to a record that it collects."""
        self._free.append(self._grow())  # type: ignore[arg-type]  # OSError where there is no room

    def take(self) -> AnyPage | None:
        """A page for an operation that begins; None when all is over: it came too late to be recorded."""
        try:
            return self._free.pop()
        except IndexError:
            return self._another()

    def _another(self) -> AnyPage | None:
        """A new one; else that of an operation that has ended and waits, which we bring to disk ourselves; else one that dies with us."""
        page = self._grown()
        while page is None and not self.abandoned:
            try:
                page = self._free.pop()
            except IndexError:  # none, or others were quicker
                if not self._collected():
                    self.counts["unprotected"] += 1
                    return LoosePage(self)
        return page

    def _collected(self) -> int:
        try:
            return self.collect(limit=8)
        except OSError:
            return 0

    def _grown(self) -> AnyPage | None:
        """A page of one file more, whose others are free; None where there is no room.

        Threads that all need one make a file each: who waited, or went without, would be the one that is killed.
        """
        try:
            return self._grow() if not self.abandoned and len(self._files) < MAX_FILES else None
        except OSError:
            return None

    def _grow(self) -> AnyPage | None:
        file = PageFile(f"{self._prefix}-{next(self._numbers):02}.pages", PAGES_PER_FILE, self, mapped=self._mapped)
        self._files.append(file)
        if self.abandoned:  # meanwhile
            file.remove()
            return None
        first, *others = file.pages  # the first is ours: who were quicker might take all the others
        self._free.extend(others)
        return first

    def make_room(self) -> None:
        """By the delivery, ahead of need: so that no caller has to make pages itself."""
        if len(self._free) < PAGES_PER_FILE // 4 and (page := self._grown()):
            self._free.append(page)

    def overflow(self, page: AnyPage, line: bytes) -> None:
        """A line that found its page full goes to a further page of the same operation."""
        if self.abandoned:
            return
        if len(line) > LINE_ROOM or (len(page.more) >= FURTHER_PAGES and not line.startswith(_END)):
            self.counts["cut"] += 1
            page.marks[events.CUT] = 1
            return
        if not page.more or not page.more[-1].room(line):
            further = self.take()
            if further is None:
                return
            page.more = (*page.more, further)  # in one step: another thread of the same operation may have added one meanwhile
        page.more[-1].append(line)  # and if it has filled that one, too, the line goes to a further page of that

    def ended(self, page: AnyPage) -> None:
        """The operation of this page has ended."""
        if len(self._ended) < BACKLOG and not isinstance(page, LoosePage):
            self._ended.append(page)
            return
        try:
            self._spill([record(_lines(page))])
        except OSError:
            if isinstance(page, LoosePage):
                self.counts["lost"] += 1
                self._release(page)
            else:
                self._ended.append(page)  # wait in memory until the disk has room
        else:
            self.counts["spilled"] += 1
            self._release(page)

    def collect(self, limit: int = 1024) -> int:
        """By the delivery: move ended operations to the spool; how many. OSError: they stay where they are."""
        pages: list[AnyPage] = []
        with suppress(IndexError):  # no more; also where others collect at the same time
            while len(pages) < limit:
                pages.append(self._ended.popleft())
        if not pages:
            return 0
        try:
            self._spill([self.noted(record(_lines(page))) for page in pages])
        except BaseException:  # a fault, or a signal handler's: whatever it is, they are not lost by it
            self._ended.extendleft(reversed(pages))
            raise
        for page in pages:
            self._release(page)
        return len(pages)

    def _release(self, page: AnyPage) -> None:
        for each in list(_pages(page)):
            if not isinstance(each, LoosePage):
                with suppress(OSError):  # one that cannot be cleared is not used again
                    each.clear()
                    self._free.append(each)

    def uncollected(self) -> list[bytes]:
        """Images, as they stand now, of the pages whose operations are not in the spool: those that run, and those that have ended."""
        free = {id(page) for page in self._free}
        return [page.image() for file in self._files for page in file.pages if id(page) not in free]

    def waiting(self) -> bool:
        """Whether an operation has ended and is not collected."""
        return bool(self._ended)

    def retire(self) -> bool:
        """At the end: whether no operation runs. Then none will: the free pages are taken away, so that none begins while we look."""
        free, self._free = self._free, []
        self.abandoned = self.abandoned or len(free) + len(self._ended) == sum(len(file.pages) for file in self._files)
        if not self.abandoned:
            self._free.extend(free)
        return self.abandoned

    def beat(self, now: int) -> None:
        self._files[0].beat(now)

    def abandon(self) -> None:
        """In a forked child: the pages are the parent's."""
        self.abandoned = True
        for file in self._files:
            file.close()

    def remove(self) -> None:
        """At the end, when everything was collected."""
        self.abandon()
        for file in self._files:
            file.remove()


def _pages(page: AnyPage) -> Iterator[AnyPage]:
    """The page of an operation and its further ones."""
    yield page
    for more in page.more:
        yield from _pages(more)


def _lines(page: AnyPage) -> bytes:
    return b"".join([each.lines() for each in _pages(page)])
