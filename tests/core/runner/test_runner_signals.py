"""Saves asked for by a signal."""

from __future__ import annotations

import os
import signal

import pytest

from ckpt_observe.core.runner import RunSettings, SaveOnSignal, run_agent
from ckpt_observe.core.runner.triggers import OnRequest
from tests.core.runner.conftest import START, count_to


def test_signal_asks_for_a_save(checkpointer):
    """K1: a signal saves at the next step, and whoever handled it before is still called."""
    seen = []
    before = signal.signal(signal.SIGUSR1, lambda *_: seen.append("mine"))

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
    assert seen == ["mine"]


def test_signal_that_cannot_be_handled_leaves_none_handled():
    """K1: a refused block leaves the other signals as they were."""
    before = signal.getsignal(signal.SIGUSR1)
    with pytest.raises(OSError, match="Invalid argument"):
        SaveOnSignal([signal.SIGUSR1, signal.SIGKILL]).__enter__()
    assert signal.getsignal(signal.SIGUSR1) == before


def test_signal_named_twice_is_handled_once():
    """K1: and what handled it before does so again afterwards."""
    before = signal.getsignal(signal.SIGUSR1)
    with SaveOnSignal([signal.SIGUSR1, signal.SIGUSR1]) as request:
        signal.raise_signal(signal.SIGUSR1)
        assert request.save_requested()
    assert signal.getsignal(signal.SIGUSR1) == before
