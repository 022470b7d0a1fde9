"""Saves requested by a signal."""

from __future__ import annotations

import os
import signal

import pytest

from ckpt_observe.core.runner import RunSettings, SaveOnSignal, run_agent
from ckpt_observe.core.runner.triggers import OnRequest
from tests.core.runner.conftest import START, count_to


def test_signal_requests_a_save(checkpointer):
    """A signal saves at the next step, and the previous handler is still called."""
    calls = []
    before = signal.signal(signal.SIGUSR1, lambda *_: calls.append("previous handler"))

    def advance(state, session):
        if state["n"] == 2:
            os.kill(os.getpid(), signal.SIGUSR1)
        return count_to(5)(state, session)

    try:
        with SaveOnSignal() as request:
            run_agent("a", advance, START, checkpointer, settings=RunSettings(trigger=OnRequest(), save_requested=request.save_requested))
        assert signal.getsignal(signal.SIGUSR1).__name__ == "<lambda>"
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert [info.step for info in checkpointer.list("a")] == [5, 3]
    assert calls == ["previous handler"]


def test_handlers_are_restored_if_one_cannot_be_installed():
    """If a signal cannot be handled, the handlers of the others are unchanged."""
    before = signal.getsignal(signal.SIGUSR1)
    with pytest.raises(OSError, match="Invalid argument"):
        SaveOnSignal([signal.SIGUSR1, signal.SIGKILL]).__enter__()
    assert signal.getsignal(signal.SIGUSR1) == before


def test_signal_listed_twice():
    """A signal that is listed twice requests a save, and its previous handler is restored afterwards."""
    before = signal.getsignal(signal.SIGUSR1)
    with SaveOnSignal([signal.SIGUSR1, signal.SIGUSR1]) as request:
        signal.raise_signal(signal.SIGUSR1)
        assert request.save_requested()
    assert signal.getsignal(signal.SIGUSR1) == before
