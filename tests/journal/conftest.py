from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from ckpt_observe.journal import spool
from ckpt_observe.journal.journal import Journal
from ckpt_observe.journal.page_file import PageFile
from ckpt_observe.record.encoding import encode_line
from ckpt_observe.semconv import events

NOW = 1_700_000_000_000_000_000
SPAN = "00000000000000a1"
TRACE = "0" * 31 + "1"


def open_below(root):
    """Return the open files of this process below a directory. Files elsewhere may belong to threads of earlier tests."""
    paths = []
    for descriptor in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            paths.append(os.readlink(f"/proc/self/fd/{descriptor}"))
    return [path for path in paths if path.startswith(f"{root}/")]


class FakePool:
    """Stands in for the pool of a page file."""

    def __init__(self):
        self.closed = False
        self.returned_pages = []
        self.overflow_lines = []

    def give_back(self, page):
        self.returned_pages.append(page)

    def append_overflow(self, page, line):
        self.overflow_lines.append(line)


@pytest.fixture(params=["mapped", "pwrite"])
def mapped(request):
    """Every test of pages runs with mapped pages and with pages written by `pwrite`."""
    return request.param == "mapped"


@pytest.fixture
def fake_pool():
    return FakePool()


@pytest.fixture
def file(tmp_path, fake_pool, mapped):
    file = PageFile(str(tmp_path / "x-00.pages"), 3, fake_pool, mapped=mapped)
    yield file
    if not fake_pool.closed:
        file.close()


def begin(span=SPAN, now=NOW, **attributes):
    return encode_line((events.BEGIN, span, now, events.OPERATION, "save", TRACE, "", attributes, None))


def end(span=SPAN, now=NOW + 10, **attributes):
    return encode_line((events.END, span, now, attributes, [], 0))


def copied_then_delivered(journal):
    """Record an operation that was running when the copy of the pages was saved, and that was delivered since."""
    page = journal.take()
    page.append(begin())
    journal.sync()
    page.finish(end())
    journal.pool.collect()
    os.unlink(spool.segment_path(journal.directory, 1))


def phase_word(name, since=1, parent=0):
    return since << 12 | parent << 8 | events.PHASE_CODES[name]


@pytest.fixture
def journal(state, tmp_path):
    """A journal of this process."""
    journal = Journal(state, tmp_path / "pages", ["local"], {"service.name": "test"})
    yield journal
    journal.remove()


@pytest.fixture
def dead_journal(state, tmp_path):
    """A function that forks an owner, which dies after `work(journal)`, and returns the directory of its journal."""

    def make(work):
        sys.stdout.flush()
        child = os.fork()
        if not child:
            try:
                work(Journal(state, tmp_path / "pages", ["local"], {"service.name": "dead"}))
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        [directory] = Path(state / "journals").iterdir()
        return str(directory)

    return make
