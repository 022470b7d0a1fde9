from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from ckpt_observe.journal import spool
from ckpt_observe.journal.journal import Journal
from ckpt_observe.journal.page_file import PageFile
from ckpt_observe.record.line import line
from ckpt_observe.semconv import events

NOW = 1_700_000_000_000_000_000
SPAN = "00000000000000a1"
TRACE = "0" * 31 + "1"


def open_below(root):
    """The descriptors of this process that are files below a directory: what threads of earlier tests still close is not counted."""
    found = []
    for descriptor in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            found.append(os.readlink(f"/proc/self/fd/{descriptor}"))
    return [path for path in found if path.startswith(f"{root}/")]


class Home:
    """Stands in for the pool."""

    def __init__(self):
        self.abandoned = False
        self.gone = []
        self.overflown = []

    def ended(self, page):
        self.gone.append(page)

    def overflow(self, page, line):
        self.overflown.append(line)


@pytest.fixture(params=["mapped", "pwrite"])
def mapped(request):
    """Both kinds of pages behave the same."""
    return request.param == "mapped"


@pytest.fixture
def home():
    return Home()


@pytest.fixture
def file(tmp_path, home, mapped):
    made = PageFile(str(tmp_path / "x-00.pages"), 3, home, mapped=mapped)
    yield made
    if not home.abandoned:
        made.close()


def begin(span=SPAN, now=NOW, **attributes):
    return line((events.BEGIN, span, now, events.OPERATION, "save", TRACE, "", attributes, None))


def end(span=SPAN, now=NOW + 10, **attributes):
    return line((events.END, span, now, attributes, [], 0))


def copied_then_delivered(journal):
    """An operation that was in flight when the copy was made, and that was delivered since."""
    page = journal.take()
    page.append(begin())
    journal.sync()
    page.finish(end())
    journal.pool.collect()
    os.unlink(spool.path(journal.directory, 1))


def phase_word(name, since=1, parent=0):
    return since << 12 | parent << 8 | events.PHASE_CODES[name]


@pytest.fixture
def journal(state, tmp_path):
    """A journal of this process."""
    made = Journal(state, tmp_path / "pages", ["local"], {"service.name": "test"})
    yield made
    made.remove()


@pytest.fixture
def dead_journal(state, tmp_path):
    """A journal whose owner died at `work(journal)`: the directory."""

    def make(work):
        sys.stdout.flush()
        child = os.fork()
        if not child:
            try:
                work(Journal(state, tmp_path / "pages", ["local"], {"service.name": "dead"}))
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        [found] = Path(state / "journals").iterdir()
        return str(found)

    return make
