"""Timeouts of the host program, made with `signal.setitimer`, fire at random moments in our code: each reaches the host program."""

from __future__ import annotations

import contextvars
import gc
import os
import random
import signal
import traceback
from collections import Counter
from functools import partial

import pytest

from ckpt_observe.core import Checkpointer
from ckpt_observe.record import encoding, guard, redact
from tests.record.interruptions import TimeUpError
from tests.record.test_interrupted_anywhere import call_patched_function, fail_in_a_block, iterate, save_in_a_block

pytestmark = [pytest.mark.faults, pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")]

ROUNDS = int(os.environ.get("CKPT_FAULT_ROUNDS", "2000"))
LONGEST_DELAY = 300e-6
"""Seconds. A block with phases takes 100 µs."""


class Timeouts:
    """Runs actions until a timeout ends one, again and again, each time in a new context.

    `tally` counts timeouts that fired, that arrived, that vanished, and that Python ignored because they came in a finalizer.
    """

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.tally: Counter[str] = Counter()
        self.vanished: list[str] = []
        """Where the timeouts that vanished fired."""

    def fire(self, _signum, frame):
        self.tally["fired"] += 1
        self.places = traceback.extract_stack(frame, limit=8)
        raise TimeUpError

    def run(self, actions):
        for action in actions:
            action()  # imports modules, and Python's import system catches every OSError
        gc.disable()  # Python ignores exceptions in callbacks and finalizers of the garbage collector, whoever they belong to
        before = signal.signal(signal.SIGALRM, self.fire)
        try:
            for number in range(1, ROUNDS + 1):
                try:
                    signal.setitimer(signal.ITIMER_REAL, self.random.uniform(1e-6, LONGEST_DELAY))
                    contextvars.copy_context().run(self._run_until_fired, actions, number)
                    kind = "ignored" if self.places[-1].name == "__del__" else "vanished"
                    self.tally[kind] += 1
                    self.vanished += [_describe(self.places)] * (kind == "vanished")
                except TimeUpError:
                    self.tally["arrived"] += 1
        finally:
            signal.signal(signal.SIGALRM, before)
            gc.enable()

    def _run_until_fired(self, actions, number):
        while self.tally["fired"] < number:
            self.random.choice(actions)()
            self.tally["completed"] += 1


def _describe(stack):
    return " < ".join(f"{each.name}:{each.lineno}" for each in reversed(stack))


@pytest.fixture
def timeouts():
    seed = int(os.environ.get("CKPT_FAULT_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 32)
    timeouts = Timeouts(seed)
    yield timeouts
    print(f"\nseed {seed}: {dict(timeouts.tally)}")


def actions():
    return [save_in_a_block, fail_in_a_block, call_patched_function, iterate, partial(Checkpointer("memory://").save, "run", {"a": 1})]


def test_timeouts_arrive(watch, timeouts, stored_spans, monkeypatch):
    """No timeout vanishes, no page is lost, and every span is stored once."""
    monkeypatch.setattr(guard, "faults", type(guard.faults)())
    timeouts.run(actions())
    assert timeouts.vanished == []
    assert timeouts.tally["arrived"] + timeouts.tally["ignored"] == timeouts.tally["fired"] == ROUNDS
    assert timeouts.tally["ignored"] <= ROUNDS / 1000
    assert not guard.faults
    gc.collect()
    pool = watch._journal.pool
    watch._delivery._collector.collect()  # takes back the pages that were lost: `flush` waits for finished operations only
    assert watch.flush(60)
    assert len(pool._free) == len(set(pool._free)) == sum(len(file.pages) for file in pool._files)
    ids = [span.span_id for span in stored_spans()]
    assert len(ids) == len(set(ids)) >= timeouts.tally["completed"] > 0


def test_control_without_observation(timeouts):
    """Control: without observation, every timeout arrives."""
    timeouts.run(actions())
    assert timeouts.vanished == []
    assert timeouts.tally["arrived"] == timeouts.tally["fired"] == ROUNDS


def test_control_detects_swallowed_timeouts(watch, timeouts, monkeypatch):
    """Control: if our code catches exceptions as usual, some timeouts vanish, and the test detects it."""
    for module in (encoding, guard, redact):
        monkeypatch.setattr(module, "raise_host_exception", lambda _error: None)
    timeouts.run(actions())
    assert timeouts.tally["vanished"] > 0
