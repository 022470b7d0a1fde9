"""The pool: it grows on demand, pages are reused, and operations without a page are counted."""

from __future__ import annotations

import os
from collections import deque

import msgspec
import pytest

from ckpt_observe.journal import pool as pools
from ckpt_observe.journal.pages import MemoryPage
from ckpt_observe.journal.pool import MAX_OVERFLOW_PAGES, Pool

FULL = OSError(28, "No space left on device")


class Disk:
    """Stands in for the spool. Raises `error`, if it is set."""

    def __init__(self):
        self.records, self.error = [], None

    def __call__(self, records):
        if self.error:
            raise self.error
        self.records += records


@pytest.fixture
def disk():
    return Disk()


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(pools, "FIRST_PAGES", 2)
    monkeypatch.setattr(pools, "MORE_PAGES", 2)
    monkeypatch.setattr(pools, "MAX_PAGES", 4)


@pytest.fixture
def pool(tmp_path, disk, small, mapped):
    pool = Pool([(str(tmp_path / "p"), mapped)], disk)
    yield pool
    pool.remove()
    assert list(tmp_path.glob("*.pages")) == []


def run(pool, text=b"[1]\n"):
    page = pool.take()
    page.append(text)
    page.finish(b"[2]\n")
    return page


def test_discarded_pages_are_reused(pool, disk):
    """The lines of a discarded page, and of its further pages, are neither in the spool nor in an image; the pages are free again."""
    for _ in range(9):
        page = pool.take()
        for _ in range(3):
            page.append(b"[1]" * 600 + b"\n")
        assert page.overflow_pages
        page.discard()
        assert pool.collect() == 0
        assert pool.read_uncollected() == []
    assert disk.records == []
    assert pool.counts == {"spilled": 0, "unprotected": 0, "lost": 0, "cut": 0, "grown": 0}


def test_collected_pages_are_reused(pool, disk):
    """Finished operations go to the spool in order, one record each, and their pages are free again."""
    for number in range(9):
        run(pool, b"[%d]\n" % number)
        assert pool.collect() == 1
    assert disk.records == [b"[[%d],[2]]" % number for number in range(9)]
    assert len(pool._files) == 1
    assert not pool.read_uncollected()


def test_more_operations_than_pages(pool, disk):
    """The pool adds files up to the limit. Further operations get a page in memory and are counted as unprotected."""
    held = [pool.take() for _ in range(6)]
    assert [isinstance(page, MemoryPage) for page in held] == [False] * 4 + [True] * 2
    assert pool.counts["unprotected"] == 2
    for page in held:
        page.append(b"[1]\n")
        page.finish(b"[2]\n")
    pool.collect()
    assert disk.records == [b"[[1],[2]]"] * 6, "an unprotected operation that ends is recorded"
    assert pool.counts["lost"] == 0


def test_take_while_another_thread_adds_a_file(pool, monkeypatch):
    """An operation that begins while another thread adds a file gets a page in shared memory too."""
    held = [pool.take() for _ in range(2)]
    make = pools.PageFile

    def meanwhile_another_begins(*args, **kwargs):
        monkeypatch.setattr(pools, "PageFile", make)
        held.append(pool.take())
        return make(*args, **kwargs)

    monkeypatch.setattr(pools, "PageFile", meanwhile_another_begins)
    held.append(pool.take())
    assert [isinstance(page, MemoryPage) for page in held] == [False] * 4


def test_other_threads_take_the_new_pages(pool, monkeypatch):
    """The thread that adds a file gets one of its pages, even if other threads take all the rest at once."""
    held = [pool.take() for _ in range(2)]

    class Meanwhile(list):
        def extend(self, pages):
            held.extend(pages)

    pool._free = Meanwhile()
    assert not isinstance(pool.take(), MemoryPage)
    assert len(held) == 3


def test_new_pages_are_not_lost_pages(pool):
    """The page collector, which looks for lost pages while another thread adds a file, does not free the new pages a second time."""

    class Meanwhile(list):
        def append(self, file):
            super().append(file)
            pool.recover_lost_pages()

    pool._files = Meanwhile(pool._files)
    held = [pool.take() for _ in range(4)]
    assert len({id(page) for page in held}) == 4
    assert pool._free == []


def test_other_threads_take_the_collected_pages(pool, disk, monkeypatch):
    """A thread that collects to get a page, and loses that page to another thread, collects again while there is anything to collect."""
    monkeypatch.setattr(pools, "MAX_PAGES", 2)
    run(pool)
    run(pool)
    collect, stolen = pool.collect, []

    def meanwhile_another_begins(limit):
        moved = collect(limit=1)
        stolen.append(pool._free.pop())
        monkeypatch.setattr(pool, "collect", collect)
        return moved

    monkeypatch.setattr(pool, "collect", meanwhile_another_begins)
    assert not isinstance(pool.take(), MemoryPage)
    assert len(stolen) == 1


def test_two_threads_collect(pool, disk):
    """The page collector and a caller that found no page collect at the same time: no record is lost or doubled, every page is free again."""

    class Meanwhile(deque):
        """Lets another thread collect everything when the second page is requested."""

        calls = 0

        def popleft(self):
            self.calls += 1
            if self.calls == 2:
                pool.collect()
            return super().popleft()

    pool._finished = Meanwhile()
    for number in range(3):
        run(pool, b"[%d]\n" % number)
    pool.collect()
    assert sorted(disk.records) == [b"[[%d],[2]]" % number for number in range(3)]
    assert not pool.read_uncollected()


def test_fault_during_collect(pool, disk):
    """If `annotate` fails, the finished operations wait for the next call."""
    run(pool)

    def broken(records):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        pool.collect(broken)
    assert pool.collect() == 1
    assert not pool.read_uncollected()


def test_pages_directory_full(pool, disk, monkeypatch):
    """If no file can be added, the caller moves a finished operation to the spool and gets its page. Nothing is raised or lost."""

    def no_room(*args, **kwargs):
        raise FULL

    monkeypatch.setattr(pools, "PageFile", no_room)
    for _ in range(5):
        run(pool)
    pool.make_room()
    pool.collect()
    assert disk.records == [b"[[1],[2]]"] * 5
    assert pool.counts == {"spilled": 4, "unprotected": 0, "lost": 0, "cut": 0, "grown": 0}


def test_caller_spills_at_the_limit(pool, disk):
    """If all pages are in use, the caller moves all that wait to the spool with one write, and that is counted."""
    writes = []
    pool._spill = lambda records: (writes.append(len(records)), disk(records))
    for number in range(5):
        run(pool, b"[%d]\n" % number)
    assert writes == [4]
    assert pool.counts["spilled"] == 4
    pool.collect()
    assert disk.records == [b"[[%d],[2]]" % number for number in range(5)]


def test_pages_are_added_ahead_of_need(pool):
    """The page collector is woken once when more than half of the pages are in use. It adds pages, so that no caller has to."""
    assert not rung(pool)
    pool.take()
    assert not rung(pool)
    pool.take()
    assert rung(pool)
    pool.make_room()
    assert len(pool._free) == 2
    pool.take()
    assert rung(pool)
    pool.take()
    assert not rung(pool), "the page collector has not reacted yet"
    pool.make_room()
    assert len(pool._files) == 2, "the limit is reached"
    assert pool.counts["grown"] == 0


def rung(pool):
    """Return whether the page collector was woken since the last call."""
    return pool.wakeup._silent.acquire(blocking=False)


def test_full_disk_keeps_pages(pool, disk):
    """Operations that cannot be written to the spool stay in their pages, in order, until the disk has room."""
    disk.error = FULL
    for number in range(3):
        run(pool, b"[%d]\n" % number)
    with pytest.raises(OSError):
        pool.collect()
    assert pool.read_uncollected()
    disk.error = None
    assert pool.collect() == 3
    assert disk.records == [b"[[%d],[2]]" % number for number in range(3)]


def test_full_disk_and_no_pages(pool, disk):
    """With neither disk space nor a free page, operations are lost and counted; nothing is raised."""
    disk.error = FULL
    for _ in range(7):
        run(pool)
    assert pool.counts["lost"] == pool.counts["unprotected"] == 3
    disk.error = None
    assert pool.collect() == 4


def test_long_operation_takes_overflow_pages(pool, disk):
    """Lines beyond one page go to further pages of the operation, and all end up in one record."""
    page = pool.take()
    lines = [b'[%d,"%b"]\n' % (number, b"9" * 1000) for number in range(8)]
    for line in lines:
        page.append(line)
    page.finish(b"[2]\n")
    assert len(page.overflow_pages) == 2
    pool.collect()
    [record] = disk.records
    assert sorted(msgspec.json.decode(record)) == sorted(msgspec.json.decode(line) for line in [*lines, b"[2]"])
    assert len(pool._free) == 4


@pytest.mark.parametrize("when", ["both need one", "the other fills it"])
def test_two_threads_overflow_one_operation(pool, disk, monkeypatch, when):
    """Two threads of one operation need an overflow page at the same time: no line is lost, and every page is free again."""
    page, text = pool.take(), b"9" * 2000
    page.append(b'[0,"%b"]\n' % text)
    take = pool.take

    def meanwhile_another_appends():
        monkeypatch.setattr(pool, "take", take)
        if when == "both need one":
            page.append(b'[2,"%b"]\n' % text)
        overflow_page = take()
        if when == "the other fills it":
            overflow_page.append(b'[2,"%b"]\n' % text)
        return overflow_page

    monkeypatch.setattr(pool, "take", meanwhile_another_appends)
    page.append(b'[1,"%b"]\n' % text)
    page.finish(b"[3]\n")
    pool.collect()
    assert sorted(each[0] for each in msgspec.json.decode(disk.records[0])) == [0, 1, 2, 3]
    assert not pool.read_uncollected()


def test_lost_operation_frees_its_overflow_pages(pool, disk, monkeypatch):
    """A lost operation, which began on a page in memory, frees the shared pages that it overflowed to."""
    pages = [pool.take() for _ in range(4)]
    memory_page = pool.take()
    pool._free.append(pages.pop())
    for _ in range(3):
        memory_page.append(b'["%b"]\n' % (b"9" * 2000))
    disk.error = FULL
    memory_page.finish(b"[2]\n")
    assert pool.counts["lost"] == 1
    assert len(pool._free) == 1


def test_endless_operation_is_bounded(pool, disk):
    """An operation with thousands of events gets a limited number of pages. Further lines are counted as cut, except its `end`."""
    page = pool.take()
    for number in range(2000):
        page.append(b'["event","%d","%b"]\n' % (number, b"9" * 500))
    page.finish(b'["end","last"]\n')
    cut = pool.counts["cut"]
    assert cut > 1500
    assert len(page.overflow_pages) <= MAX_OVERFLOW_PAGES + 1
    pool.collect()
    lines = msgspec.json.decode(disk.records[0])
    assert len(lines) + cut == 2001
    assert ["end", "last"] in lines


def test_line_longer_than_a_page_is_dropped(pool):
    """A line that fits no page is dropped and counted."""
    page = pool.take()
    page.append(b"x" * 5000 + b"\n")
    assert pool.counts["cut"] == 1
    page.finish(b"[2]\n")


def test_read_uncollected(pool):
    """It returns the pages of exactly those operations that are not in the spool."""
    run(pool)
    pool.collect()
    page = pool.take()
    page.append(b"[1]\n")
    assert pool.read_uncollected() == [page.read_image()]
    page.finish(b"[2]\n")
    assert pool.read_uncollected() == [page.read_image()]
    pool.collect()
    assert pool.read_uncollected() == []


def test_retire(pool):
    """A pool with a running operation stays open. Otherwise it is closed, and no operation gets a page."""
    page = pool.take()
    assert not pool.retire()
    assert not isinstance(pool.take(), MemoryPage), "the running operation may need an overflow page"
    pool._free.append(pool._files[0].pages[0])
    page.finish(b"[2]\n")
    assert pool.retire()
    assert pool.take() is None
    assert pool.retire(), "a second call returns the same"


def test_pool_closed_while_a_file_is_added(pool, monkeypatch, tmp_path):
    """A thread that adds a file while the pool is removed gets no page, and leaves no file behind."""
    make = pools.PageFile

    def meanwhile_all_ends(*args, **kwargs):
        pool.remove()
        return make(*args, **kwargs)

    pool._free.clear()
    monkeypatch.setattr(pools, "PageFile", meanwhile_all_ends)
    assert pool.take() is None
    assert list(tmp_path.glob("*.pages")) == []


@pytest.fixture
def pwrite_pool(tmp_path, disk, small):
    pool = Pool([(str(tmp_path / "w"), False)], disk)
    yield pool
    pool.remove()


@pytest.fixture
def pwrite_fails(monkeypatch):
    """A list. While it is not empty, `os.pwrite` raises ENOSPC."""
    real, full = os.pwrite, []
    monkeypatch.setattr(os, "pwrite", lambda *args: _raise(FULL) if full else real(*args))
    return full


def _raise(error):
    raise error


@pytest.mark.parametrize("refused", [(0,), (1,), (0, 1), (2,), (0, 1, 2)])
def test_page_that_cannot_be_written(pwrite_pool, disk, pwrite_fails, refused):
    """Lines that cannot be written to the page are kept in memory, and the record is complete."""
    pwrite_pool.take().finish(b'["another operation, longer than what comes after it"]\n')
    pwrite_pool.collect()
    page = pwrite_pool.take()
    for number, write in enumerate((page.append, page.append, page.finish)):
        pwrite_fails[:] = [True] * (number in refused)
        write(b"[%d]\n" % number)
    pwrite_fails.clear()
    pwrite_pool.collect()
    assert sorted(msgspec.json.decode(disk.records[1])) == [[0], [1], [2]]
    assert not pwrite_pool.read_uncollected()


def test_page_that_cannot_be_cleared(pwrite_pool, disk, pwrite_fails):
    """A page that cannot be cleared is not reused; the others are."""
    pages = [run(pwrite_pool), run(pwrite_pool)]
    clear = pages[0].clear
    pages[0].clear = lambda: (pwrite_fails.append(True), clear())
    clear_next = pages[1].clear
    pages[1].clear = lambda: (pwrite_fails.clear(), clear_next())
    assert pwrite_pool.collect() == 2
    assert pages[0] not in pwrite_pool._free
    assert pages[1] in pwrite_pool._free


def test_forked_child(pool, disk, tmp_path):
    """If a forked child ends its copy of the parent's operation, nothing is written."""
    page = pool.take()
    page.append(b"[1]\n")
    child = os.fork()
    if not child:
        pool.close()
        page.append(b"[child]\n")
        page.finish(b"[child]\n")
        os._exit(len(disk.records) + len(pool._finished))
    _, status = os.waitpid(child, 0)
    assert status == 0
    page.finish(b"[2]\n")
    pool.collect()
    assert disk.records == [b"[[1],[2]]"]
