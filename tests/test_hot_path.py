"""The hot path: an operation makes no system call while the memory for pages is below its limit.

A system call gives up the GIL, and a program with busy threads gives it back tens of milliseconds later.
"""

from __future__ import annotations

import builtins
import mmap
import os
import sys
import threading
import types

import pytest

import ckpt_observe
from ckpt_observe.journal.journal import Journal
from ckpt_observe.journal.pool import MAX_PAGES, SPILL_BATCH
from ckpt_observe.record.recorder import recorder
from ckpt_observe.semconv import events


@pytest.fixture
def system_calls(monkeypatch):
    """The names of the functions called since the last `clear()` that make a system call: all of `os`, `open` and `mmap`."""
    names = []

    def record(name, function):
        def call(*args, **kwargs):
            names.append(name)
            return function(*args, **kwargs)

        return call

    for name, function in list(vars(os).items()):
        if isinstance(function, types.BuiltinFunctionType) and name != "fspath":
            monkeypatch.setattr(os, name, record(name, function))
    monkeypatch.setattr(mmap, "mmap", record("mmap", mmap.mmap))
    monkeypatch.setattr(builtins, "open", record("open", open))
    return names


@pytest.fixture
def journal(state, tmp_path):
    """A journal that records the operations of this process, and that nobody collects."""
    journal = Journal(state, tmp_path / "pages", ["local"], {})
    recorder.start(journal.take)
    yield journal
    recorder.stop()
    journal.remove()


def save():
    with ckpt_observe.checkpoint("save", id="step-12", step=12) as operation:
        for name in ("serialize", "compress", "write", "validate"):
            with operation.phase(name):
                pass
        operation.set({"host.note": "hello"})


def test_no_system_call_below_the_limit(journal, system_calls):
    """If the page collector reacts before the pages run out, no operation makes a system call until all pages of the process are in use."""
    pool = journal.pool
    save()  # imports modules and seeds the ids
    while len(pool._finished) < MAX_PAGES:
        system_calls.clear()
        for _ in range(len(pool._free)):  # the page collector is as late as it may be
            save()
        assert system_calls == []
        pool.make_room()
        assert system_calls or len(pool._finished) == MAX_PAGES, "control: what the page collector does is seen"
    system_calls.clear()
    save()
    assert "write" in system_calls, "at the limit, a caller moves records to disk"
    assert pool.counts["spilled"] == SPILL_BATCH
    system_calls.clear()
    for _ in range(SPILL_BATCH - 1):
        save()
    assert system_calls == [], "many at once, so that the next ones do not have to"


@pytest.fixture
def count_calls(journal):
    """A function that returns the number of functions called by a save, with the rule of a sampler and what becomes of unsampled operations.

    The least of several saves: one that takes long reads its resource usage, and one in 512 fetches new ids.
    """

    def count_of_one():
        calls = 0

        def on_event(_frame, event, _argument):
            nonlocal calls
            calls += event in ("call", "c_call")

        sys.setprofile(on_event)
        try:
            save()
        finally:
            sys.setprofile(None)
        return calls

    def count(samples, unsampled):
        recorder.samples, recorder.unsampled = samples, unsampled
        return min(count_of_one() for _ in range(20))

    return count


def test_unsampled_operation_costs_no_more(count_calls):
    """An operation that only metrics count calls as many functions as a sampled one, but for its mark; one that nothing counts, far fewer."""
    sampled = count_calls(lambda _trace, _parent: True, events.NOTHING)
    assert count_calls(lambda _trace, _parent: False, events.NOTHING) <= sampled + 5
    assert count_calls(lambda _trace, _parent: False, None) < 0.6 * sampled


def test_page_collector_is_woken(journal):
    """The first operation that uses more than half of the pages wakes the page collector, which waits for its next pass."""
    is_awake = threading.Event()

    def wait():
        journal.pool.wakeup.wait(60)
        is_awake.set()

    collector = threading.Thread(target=wait)
    collector.start()
    for _ in range(len(journal.pool._free) // 2):
        save()
    assert not is_awake.is_set()
    save()
    assert is_awake.wait(20)
    collector.join(20)
