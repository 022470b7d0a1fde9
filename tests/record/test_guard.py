"""A fault of our own never reaches the host, and is told once."""

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
def no_faults_before(monkeypatch):
    monkeypatch.setattr(guard, "faults", type(guard.faults)())


class BrokenPage:
    """Fails in one of its methods."""

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
def test_page_that_fails(recorded, monkeypatch, caplog, broken):
    """Whatever the page does, the host's block runs, its result and exception are its own, and the log has one entry a place."""
    monkeypatch.setattr(recorder, "take", lambda: BrokenPage(broken))
    for _ in range(5):
        with ckpt_observe.task("t"), ckpt_observe.checkpoint("save") as operation:
            with operation.phase("write") as phase, operation.phase("own"):
                phase.set({"a": 1})
            operation.add_event("e")
        with pytest.raises(KeyError), ckpt_observe.checkpoint("save"):
            raise KeyError("host's")
    assert sum(guard.faults.values()) >= 5
    told = [entry for entry in caplog.records if entry.name == "ckpt_observe"]
    assert len(told) == len(guard.faults) <= 4
    assert all(entry.levelno == logging.WARNING and "your program is not affected" in entry.message for entry in told)


def test_take_that_fails(recorded, monkeypatch):
    """No page because the journal raised: the host runs unobserved."""

    def take():
        raise OSError(28, "full")

    monkeypatch.setattr(recorder, "take", take)
    with ckpt_observe.checkpoint("save") as operation, operation.phase("write"):
        ran = True
    assert ran
    assert sum(guard.faults.values()) == 1


class TimeUpError(Exception):
    """What a host's handler raises."""


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
def test_signal_handler_of_the_host(recorded, monkeypatch, interrupted, handler):
    """A time-out that a signal handler raises while our code runs reaches the host, whichever step it hits, and the operation has ended."""
    monkeypatch.setattr(recorder, "take", lambda: InterruptedPage(interrupted))
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with pytest.raises(TimeUpError), ckpt_observe.checkpoint("save") as operation:  # noqa: SIM117
            with operation.phase("write"):
                pass
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert interrupted == "append" or not operation.is_recording()  # one that could not begin is not recorded
    assert not guard.faults


@pytest.fixture
def interrupting():
    """Raises what a handler of the host raises, as if its signal came just then."""
    before = signal.signal(signal.SIGUSR1, function)
    yield lambda: signal.raise_signal(signal.SIGUSR1)
    signal.signal(signal.SIGUSR1, before)


def test_a_page_is_given_back_once(watch, kept, interrupting):
    """A time-out just when the page was given back: it is not given back again, for then two operations would have it."""
    with ckpt_observe.checkpoint("save"):
        pass
    pool = watch._journal.pool

    class Interrupted(deque):
        def append(self, page):
            super().append(page)
            interrupting()

    assert watch.flush(30)
    pool._finished, ended = Interrupted(), pool._finished
    with pytest.raises(TimeUpError), ckpt_observe.checkpoint("save"):
        pass
    pool._finished, interrupted = ended, pool._finished
    pool._finished.extend(interrupted)
    assert watch.flush(30)
    assert len(kept()) == 2
    assert len(pool._free) == len(set(pool._free))


@pytest.mark.parametrize("interrupted", ["append", "attach"])
def test_does_not_begin_when_interrupted(watch, kept, monkeypatch, interrupted):
    """Ctrl-C when it has just begun: it reaches the host, and nothing is left that seems to run for as long as the host does."""
    target = MappedPage if interrupted == "append" else operations
    step = getattr(target, interrupted)

    def interrupted_step(*given):
        monkeypatch.undo()
        if interrupted == "append":
            step(*given)
        raise KeyboardInterrupt

    def begin():
        with ckpt_observe.checkpoint("save"):
            pytest.fail("the block was entered")

    monkeypatch.setattr(target, interrupted, interrupted_step)
    with pytest.raises(KeyboardInterrupt):
        contextvars.copy_context().run(begin)
    assert watch.flush(30)
    assert [span.attributes[names.OUTCOME] for span in kept()] == ["cancelled"]
    assert watch._journal.pool.read_uncollected() == []


@pytest.mark.parametrize("interrupted", ["detach", "classify"])
def test_ends_though_interrupted(recorded, monkeypatch, interrupted):
    """Ctrl-C while the operation ends: it reaches the host, and the operation has ended."""
    step = getattr(operations, interrupted)

    def interrupted_step(given):
        step(given)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), ckpt_observe.checkpoint("save"):
        monkeypatch.setattr(operations, interrupted, interrupted_step)
        raise ValueError
    assert recorded.pages[0].ended == 1
    assert [span.attributes[names.OUTCOME] for span in recorded.spans()] == ["error"]


class InterruptedPage(BrokenPage):
    def _do(self, method):
        if method == self._broken:
            self._broken = ""
            signal.raise_signal(signal.SIGUSR1)


def test_attributes_that_are_none(recorded):
    """Something else than a mapping is our caller's mistake, and not worth a crash of his training."""
    with ckpt_observe.checkpoint("save") as operation:
        operation.set(7)  # type: ignore[arg-type]
        operation.add_event("e", 7)
    assert recorded.pages[0].ended == 1
