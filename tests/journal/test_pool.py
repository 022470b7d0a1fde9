"""The pool: pages grow with need, are given back, and what has none is counted."""

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
    """Where records are spilled to; `error` makes it fail."""

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
    monkeypatch.setattr(pools, "PAGES_PER_FILE", 2)
    monkeypatch.setattr(pools, "MAX_FILES", 2)


@pytest.fixture
def pool(tmp_path, disk, small, mapped):
    made = Pool(str(tmp_path / "p"), disk, mapped=mapped)
    yield made
    made.remove()
    assert list(tmp_path.glob("*.pages")) == []


def run(pool, text=b"[1]\n"):
    page = pool.take()
    page.append(text)
    page.finish(b"[2]\n")
    return page


def test_collected_pages_are_used_again(pool, disk):
    """Ended operations go to disk in order, as one record each, and their pages are free again."""
    for number in range(9):
        run(pool, b"[%d]\n" % number)
        assert pool.collect() == 1
    assert disk.records == [b"[[%d],[2]]" % number for number in range(9)]
    assert len(pool._files) == 1
    assert not pool.read_uncollected()


def test_grows_then_goes_loose(pool, disk):
    """More operations at once than pages: more files, up to the limit; then operations without protection, which are counted."""
    held = [pool.take() for _ in range(6)]
    assert [isinstance(page, MemoryPage) for page in held] == [False] * 4 + [True] * 2
    assert pool.counts["unprotected"] == 2
    for page in held:
        page.append(b"[1]\n")
        page.finish(b"[2]\n")
    pool.collect()
    assert disk.records == [b"[[1],[2]]"] * 6, "an unprotected operation that ends is kept"
    assert pool.counts["lost"] == 0


def test_protected_while_another_grows(pool, monkeypatch):
    """An operation that begins while another thread makes pages, and the delivery has all that ended in hand, has a page all the same."""
    held = [pool.take() for _ in range(2)]
    make = pools.PageFile

    def meanwhile_another_begins(*args, **kwargs):
        monkeypatch.setattr(pools, "PageFile", make)
        held.append(pool.take())
        return make(*args, **kwargs)

    monkeypatch.setattr(pools, "PageFile", meanwhile_another_begins)
    held.append(pool.take())
    assert [isinstance(page, MemoryPage) for page in held] == [False] * 4


def test_others_take_what_we_make(pool, monkeypatch):
    """Who makes pages has one of them, however quickly others take the rest."""
    held = [pool.take() for _ in range(2)]

    class Meanwhile(list):
        def extend(self, pages):
            held.extend(pages)

    pool._free = Meanwhile()
    assert not isinstance(pool.take(), MemoryPage)
    assert len(held) == 3


def test_others_take_what_we_free(pool, disk, monkeypatch):
    """No more pages to be had: who frees some and finds them taken by others frees more, as long as there are any."""
    monkeypatch.setattr(pools, "MAX_FILES", 1)
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


def test_two_collect_at_once(pool, disk):
    """The delivery and a caller that finds no page collect at the same time: each has some, and every page is free again."""

    class Meanwhile(deque):
        """When we reach for the second page, the other one takes all the rest."""

        asked = 0

        def popleft(self):
            self.asked += 1
            if self.asked == 2:
                pool.collect()
            return super().popleft()

    pool._finished = Meanwhile()
    for number in range(3):
        run(pool, b"[%d]\n" % number)
    pool.collect()
    assert sorted(disk.records) == [b"[[%d],[2]]" % number for number in range(3)]
    assert not pool.read_uncollected()


def test_a_fault_while_collecting(pool, disk):
    """Whatever fails on the way to the spool, the ended operations wait for the next time."""
    run(pool)

    def broken(record):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        pool.collect(broken)
    assert pool.collect() == 1
    assert not pool.read_uncollected()


def test_pages_directory_full(pool, disk, monkeypatch):
    """No room for more pages: the caller brings an ended operation to disk itself and has its page; nothing is raised, nothing lost."""

    def no_room(*args, **kwargs):
        raise FULL

    monkeypatch.setattr(pools, "PageFile", no_room)
    for _ in range(5):
        run(pool)
    pool.make_room()
    pool.collect()
    assert disk.records == [b"[[1],[2]]"] * 5
    assert pool.counts == {"spilled": 0, "unprotected": 0, "lost": 0, "cut": 0}


def test_backlog_is_spilled(pool, disk, monkeypatch):
    """When the delivery does not come, the caller writes to disk itself, and that is counted."""
    monkeypatch.setattr(pools, "BACKLOG", 1)
    for _ in range(4):
        run(pool)
    assert pool.counts["spilled"] == 3
    pool.collect()
    assert len(disk.records) == 4


def test_full_disk_keeps_pages(pool, disk):
    """What cannot be written stays in its page, in order, and is written when there is room."""
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
    """With neither disk nor page the operation is lost, and counted; the host is told nothing."""
    disk.error = FULL
    for _ in range(7):
        run(pool)
    assert pool.counts["lost"] == pool.counts["unprotected"] == 3
    disk.error = None
    assert pool.collect() == 4


def test_long_operation_takes_further_pages(pool, disk):
    """Lines beyond one page go to further pages of the same operation, and come back in one record."""
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
def test_threads_that_fill_one_operation(pool, disk, monkeypatch, when):
    """Two threads of one operation need a further page at the same time: no line is lost, and every page is free again."""
    page, text = pool.take(), b"9" * 2000
    page.append(b'[0,"%b"]\n' % text)
    take = pool.take

    def meanwhile_another_appends():
        monkeypatch.setattr(pool, "take", take)
        if when == "both need one":
            page.append(b'[2,"%b"]\n' % text)
        further = take()
        if when == "the other fills it":
            further.append(b'[2,"%b"]\n' % text)
        return further

    monkeypatch.setattr(pool, "take", meanwhile_another_appends)
    page.append(b'[1,"%b"]\n' % text)
    page.finish(b"[3]\n")
    pool.collect()
    assert sorted(each[0] for each in msgspec.json.decode(disk.records[0])) == [0, 1, 2, 3]
    assert not pool.read_uncollected()


def test_unprotected_and_lost(pool, disk, monkeypatch):
    """A long operation that had no page and is lost gives back the further ones that it had."""
    pages = [pool.take() for _ in range(4)]
    loose = pool.take()
    pool._free.append(pages.pop())
    for _ in range(3):
        loose.append(b'["%b"]\n' % (b"9" * 2000))
    disk.error = FULL
    loose.finish(b"[2]\n")
    assert pool.counts["lost"] == 1
    assert len(pool._free) == 1


def test_endless_operation_is_bounded(pool, disk):
    """An operation that never stops telling takes no more than its pages; the rest is counted as cut, and its end is kept."""
    page = pool.take()
    for number in range(2000):
        page.append(b'["event","%d","%b"]\n' % (number, b"9" * 500))
    page.finish(b'["end","last"]\n')
    kept = pool.counts["cut"]
    assert kept > 1500
    assert len(page.overflow_pages) <= MAX_OVERFLOW_PAGES + 1
    pool.collect()
    lines = msgspec.json.decode(disk.records[0])
    assert len(lines) + kept == 2001
    assert ["end", "last"] in lines


def test_line_beyond_a_page_is_cut(pool):
    """A line that no page can hold is left out and counted."""
    page = pool.take()
    page.append(b"x" * 5000 + b"\n")
    assert pool.counts["cut"] == 1
    page.finish(b"[2]\n")


def test_uncollected(pool):
    """Images of what is not in the spool, and of nothing else."""
    run(pool)
    pool.collect()
    page = pool.take()
    page.append(b"[1]\n")
    assert pool.read_uncollected() == [page.read_image()]
    page.finish(b"[2]\n")
    assert pool.read_uncollected() == [page.read_image()]
    pool.collect()
    assert pool.read_uncollected() == []


def test_retired(pool):
    """While an operation runs the pool goes on; when none does, none begins, also none that comes while we look."""
    page = pool.take()
    assert not pool.retire()
    assert not isinstance(pool.take(), MemoryPage), "it may need a further page"
    pool._free.append(pool._files[0].pages[0])
    page.finish(b"[2]\n")
    assert pool.retire()
    assert pool.take() is None
    assert pool.retire(), "asked again"


def test_retired_while_another_makes_pages(pool, monkeypatch, tmp_path):
    """Who makes pages for an operation just when all is over has none, and leaves none behind."""
    make = pools.PageFile

    def meanwhile_all_ends(*args, **kwargs):
        pool.remove()
        return make(*args, **kwargs)

    pool._free.clear()
    monkeypatch.setattr(pools, "PageFile", meanwhile_all_ends)
    assert pool.take() is None
    assert list(tmp_path.glob("*.pages")) == []


@pytest.fixture
def written(tmp_path, disk, small):
    made = Pool(str(tmp_path / "w"), disk, mapped=False)
    yield made
    made.remove()


@pytest.fixture
def pwrite_fails(monkeypatch):
    """A disk that is full while the test says so."""
    real, full = os.pwrite, []
    monkeypatch.setattr(os, "pwrite", lambda *args: _raise(FULL) if full else real(*args))
    return full


def _raise(error):
    raise error


@pytest.mark.parametrize("refused", [(0,), (1,), (0, 1), (2,), (0, 1, 2)])
def test_page_that_cannot_be_written(written, disk, pwrite_fails, refused):
    """Lines that the disk refuses are kept in memory, and the others stay whole: the operation is told as it was."""
    written.take().finish(b'["another operation, longer than what comes after it"]\n')
    written.collect()
    page = written.take()
    for number, write in enumerate((page.append, page.append, page.finish)):
        pwrite_fails[:] = [True] * (number in refused)
        write(b"[%d]\n" % number)
    pwrite_fails.clear()
    written.collect()
    assert sorted(msgspec.json.decode(disk.records[1])) == [[0], [1], [2]]
    assert not written.read_uncollected()


def test_page_that_cannot_be_cleared(written, disk, pwrite_fails):
    """It is not used again; those that are collected with it are."""
    pages = [run(written), run(written)]
    clear = pages[0].clear
    pages[0].clear = lambda: (pwrite_fails.append(True), clear())
    clear_next = pages[1].clear
    pages[1].clear = lambda: (pwrite_fails.clear(), clear_next())
    assert written.collect() == 2
    assert pages[0] not in written._free
    assert pages[1] in written._free


def test_forked_child(pool, disk, tmp_path):
    """A child that ends its copy of the parent's operation writes nowhere."""
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
