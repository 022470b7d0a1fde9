"""Errors of our own code never reach the host program, and are logged once."""

from __future__ import annotations

import contextvars
import functools
import logging
import signal
from collections import deque

import pytest

import ckpt_observe
from ckpt_observe.journal.pages import MappedPage
from ckpt_observe.record import guard
from ckpt_observe.record import operation as operations
from ckpt_observe.record.recorder import recorder
from ckpt_observe.semconv import attributes as names


@pytest.fixture(autouse=True)
def reset_faults(monkeypatch):
    monkeypatch.setattr(guard, "faults", type(guard.faults)())


class BrokenPage:
    """A page that raises in one of its methods."""

    def __init__(self, broken):
        self._broken = broken

    def _do(self, method):
        if method == self._broken:
            raise RuntimeError("page is broken")

    def append(self, line):
        self._do("append")

    @property
    def marks(self):
        self._do("mark")
        return {}

    def finish(self, line):
        self._do("finish")


@pytest.mark.parametrize("broken", ["append", "mark", "finish"])
def test_page_that_fails(recording, monkeypatch, caplog, broken):
    """Whatever the page raises, the host program keeps its results and exceptions, and each place is logged once."""
    monkeypatch.setattr(recorder, "take", lambda: BrokenPage(broken))
    for _ in range(5):
        with ckpt_observe.task("t"), ckpt_observe.checkpoint("save") as operation:
            with operation.phase("write") as phase, operation.phase("own"):
                phase.set({"a": 1})
            operation.add_event("e")
        with pytest.raises(KeyError), ckpt_observe.checkpoint("save"):
            raise KeyError("host's")
    assert sum(guard.faults.values()) >= 5
    entries = [entry for entry in caplog.records if entry.name == "ckpt_observe"]
    assert len(entries) == len(guard.faults) <= 4
    assert all(entry.levelno == logging.WARNING and "your program is not affected" in entry.message for entry in entries)


def test_take_that_fails(recording, monkeypatch):
    """If the journal raises instead of returning a page, the host program runs unobserved."""

    def take():
        raise OSError(28, "full")

    monkeypatch.setattr(recorder, "take", take)
    with ckpt_observe.checkpoint("save") as operation, operation.phase("write"):
        ran = True
    assert ran
    assert sum(guard.faults.values()) == 1


class TimeUpError(Exception):
    """Raised by a signal handler of the host program."""


def function(signum, frame):
    raise TimeUpError


class Handler:
    def __call__(self, signum, frame):
        raise TimeUpError

    method = __call__


@pytest.mark.parametrize(
    "handler",
    [function, Handler(), Handler().method, functools.partial(Handler.method, None)],
    ids=["function", "object", "method", "partial"],
)
@pytest.mark.parametrize("interrupted", ["append", "mark", "finish"])
def test_exception_of_a_signal_handler(recording, monkeypatch, interrupted, handler):
    """An exception that a signal handler raises during any step of ours reaches the host program, and the operation has ended."""
    monkeypatch.setattr(recorder, "take", lambda: InterruptedPage(interrupted))
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with pytest.raises(TimeUpError), ckpt_observe.checkpoint("save") as operation:  # noqa: SIM117
            with operation.phase("write"):
                pass
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert interrupted == "append" or not operation.is_recording()  # an operation that could not begin is not recorded
    assert not guard.faults


@pytest.fixture
def interrupting():
    """A function that raises the exception of a signal handler, as if a signal had just arrived."""
    before = signal.signal(signal.SIGUSR1, function)
    yield lambda: signal.raise_signal(signal.SIGUSR1)
    signal.signal(signal.SIGUSR1, before)


def test_page_is_given_back_once(watch, stored_spans, interrupting):
    """A page is not given back twice if a signal handler raises right after the first time: two operations would share it."""
    with ckpt_observe.checkpoint("save"):
        pass
    pool = watch._journal.pool

    class Interrupted(deque):
        def append(self, page):
            super().append(page)
            interrupting()

    assert watch.flush(30)
    pool._finished, finished = Interrupted(), pool._finished
    with pytest.raises(TimeUpError), ckpt_observe.checkpoint("save"):
        pass
    pool._finished, interrupted = finished, pool._finished
    pool._finished.extend(interrupted)
    assert watch.flush(30)
    assert len(stored_spans()) == 2
    assert len(pool._free) == len(set(pool._free))


@pytest.mark.parametrize("interrupted", ["append", "attach"])
def test_interrupted_begin(watch, stored_spans, monkeypatch, interrupted):
    """Ctrl-C right after the begin reaches the host program, and the operation does not stay open."""
    target = MappedPage if interrupted == "append" else operations
    step = getattr(target, interrupted)

    def interrupted_step(*args):
        monkeypatch.undo()
        if interrupted == "append":
            step(*args)
        raise KeyboardInterrupt

    def begin():
        with ckpt_observe.checkpoint("save"):
            pytest.fail("the block was entered")

    monkeypatch.setattr(target, interrupted, interrupted_step)
    with pytest.raises(KeyboardInterrupt):
        contextvars.copy_context().run(begin)
    assert watch.flush(30)
    assert [span.attributes[names.OUTCOME] for span in stored_spans()] == ["cancelled"]
    assert watch._journal.pool.read_uncollected() == []


@pytest.mark.parametrize("interrupted", ["detach", "classify"])
def test_interrupted_end(recording, monkeypatch, interrupted):
    """Ctrl-C during the end of an operation reaches the host program, and the operation has ended."""
    step = getattr(operations, interrupted)

    def interrupted_step(*arguments):
        step(*arguments)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), ckpt_observe.checkpoint("save"):
        monkeypatch.setattr(operations, interrupted, interrupted_step)
        raise ValueError
    assert recording.pages[0].ended == 1
    assert [span.attributes[names.OUTCOME] for span in recording.spans()] == ["error"]


class InterruptedPage(BrokenPage):
    def _do(self, method):
        if method == self._broken:
            self._broken = ""
            signal.raise_signal(signal.SIGUSR1)


def test_attributes_that_are_not_a_mapping(recording):
    """Attributes that are not a mapping are ignored: a mistake of the caller must not crash the program."""
    with ckpt_observe.checkpoint("save") as operation:
        operation.set(7)  # type: ignore[arg-type]
        operation.add_event("e", 7)
    assert recording.pages[0].ended == 1
