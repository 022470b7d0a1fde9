"""What the agent loop leaves when it ends by an error: one completed step with its whole state."""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
import threading
import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import pytest

from ckpt_observe.core import Checkpointer, steps
from ckpt_observe.core.runner import Done, RunSettings, agent, run_agent, session
from ckpt_observe.core.runner.triggers import When
from ckpt_observe.errors import CapacityError
from tests.core.runner.conftest import START, count_to


@pytest.mark.parametrize("fail_at", [0, 3])
def test_half_a_step_is_not_saved(checkpointer, fail_at):
    """K7: a step that changes the state in place and then fails leaves no trace in what is saved, and is repeated on resume."""
    failures = iter([True])

    def advance(state, session):
        state["log"].append(state["n"])
        if state["n"] == fail_at and next(failures, False):
            raise RuntimeError("half done")
        state["n"] += 1
        return Done(state) if state["n"] == 5 else state

    with pytest.raises(RuntimeError):
        run_agent("a", advance, {"n": 0, "log": []}, checkpointer)
    assert checkpointer.restore("a").state == {"n": fail_at, "log": list(range(fail_at))}
    assert run_agent("a", advance, None, checkpointer).state == {"n": 5, "log": list(range(5))}


def test_half_a_step_on_an_inner_part_is_not_saved(checkpointer):
    """K7: nor where each step gives back a new mapping around a part that it changes in place."""

    def advance(state, session):
        state["log"].append(state["n"])
        if state["n"] == 2:
            raise RuntimeError("half done")
        return {**state, "n": state["n"] + 1}

    with pytest.raises(RuntimeError):
        run_agent("a", advance, {"n": 0, "log": []}, checkpointer)
    assert checkpointer.restore("a").state == {"n": 2, "log": [0, 1]}


@pytest.mark.parametrize("in_place", [True, False])
def test_a_large_state_that_a_failed_step_was_given_is_not_saved(checkpointer, monkeypatch, caplog, in_place):
    """K7: no copy of a large one is made before each step, so whether it is whole is not known, also where the step before made it."""
    monkeypatch.setattr(session, "MAX_SNAPSHOT", 10)
    serialized = []
    monkeypatch.setattr(steps, "serialize", lambda serializer, state: serialized.append(state) or serializer.dumps(state))

    def advance(state, session):
        if state["n"] == 2:
            state["log"].append("half")
            raise RuntimeError("half done")
        if not in_place:
            return {**state, "n": state["n"] + 1}
        state["n"] += 1
        return state

    with pytest.raises(RuntimeError) as caught:
        run_agent("a", advance, {"n": 0, "log": []}, checkpointer, settings=RunSettings(trigger=When(lambda moment: moment.step == 1)))
    assert [(info.step, info.status) for info in checkpointer.list("a")] == [(1, "running")]
    assert checkpointer.load("a") == {"n": 1, "log": []}
    assert len(serialized) == 2  # to see that it is large, and to save it
    assert "more than 10 bytes" in caught.value.__notes__[0]
    assert "state after step 2 could not be saved" in caplog.text


@pytest.mark.parametrize("error", [CapacityError, KeyboardInterrupt])
@pytest.mark.parametrize("large", [1, 1 << 20])
def test_a_state_is_saved_when_no_step_failed_on_it(checkpointer, monkeypatch, error, large):
    """K7: what ends the run between two steps leaves the state whole, so that is saved, whatever its size."""
    monkeypatch.setattr(session, "MAX_SNAPSHOT", large)

    def advance(state, session):
        state["n"] += 1
        return state

    def asked():
        raise error("now")

    with pytest.raises(error):
        run_agent("a", advance, {"n": 0}, checkpointer, settings=RunSettings(save_requested=asked))
    assert (checkpointer.list("a")[0].step, checkpointer.load("a")) == (1, {"n": 1})


def test_none_is_a_state_like_any_other(checkpointer):
    """K7: a run over None saves it, also when it ends between two steps."""

    def asked():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_agent("a", lambda state, session: None, None, checkpointer, settings=RunSettings(save_requested=asked))
    assert (checkpointer.list("a")[0].step, checkpointer.load("a")) == (1, None)


def test_a_state_that_could_not_be_frozen_is_not_saved_half_done(checkpointer):
    """K7: nor one that cannot be saved until the step that fails has changed it."""

    def advance(state, session):
        state["lock"] = None
        raise RuntimeError("half done")

    with pytest.raises(RuntimeError) as caught:
        run_agent("a", advance, {"lock": threading.Lock()}, checkpointer)
    assert checkpointer.list("a") == []
    assert "lock" in caught.value.__notes__[0]


@pytest.mark.parametrize("large", [1, 1 << 20])
def test_an_interrupt_at_any_moment_skips_and_repeats_no_step(monkeypatch, large):
    """K7: wherever it comes, what is saved is one step with its own state, and the next run goes on from there."""
    monkeypatch.setattr(session, "MAX_SNAPSHOT", large)

    def advance(state, session):
        state["log"].append(state["n"])
        state["n"] += 1
        return Done(state) if state["n"] == 3 else state

    def try_every_moment():
        for moment in itertools.count(1):
            checkpointer = Checkpointer("memory://")
            with contextlib.suppress(KeyboardInterrupt), interrupted_at(moment) as came:
                run_agent("a", advance, {"n": 0, "log": []}, checkpointer)
            if not came:
                break
            for info in checkpointer.list("a"):
                assert checkpointer.load("a", info.id)["n"] == info.step, moment
            assert run_agent("a", advance, {"n": 0, "log": []}, checkpointer).state == {"n": 3, "log": [0, 1, 2]}, moment
        return moment

    with ThreadPoolExecutor(1) as pool:  # where a trace raises in a handler, Python 3.11 goes on handling that error in this thread
        assert pool.submit(try_every_moment).result() > 100


@contextlib.contextmanager
def interrupted_at(moment):
    """A KeyboardInterrupt before that many instructions of the loop, or lines of what it calls of the runner."""
    came, events = [], itertools.count(1)

    def trace(frame, event, argument):
        if came or not frame.f_code.co_filename.startswith(os.path.dirname(session.__file__)):
            return None
        frame.f_trace_opcodes = frame.f_code is agent._run.__code__
        if next(events) == moment:
            came.append(frame)
            raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield came
    finally:
        sys.settrace(before)


def test_an_interrupt_of_the_last_save_leaves_the_agent_completed(checkpointer, monkeypatch):
    """K7: the last step is not lost to it, and not followed by another."""
    put, errors = checkpointer.store.put, iter([KeyboardInterrupt()])

    def interrupted(info, blob):
        if error := next(errors, None):
            raise error
        put(info, blob)

    monkeypatch.setattr(checkpointer.store, "put", interrupted)
    events = []
    with pytest.raises(KeyboardInterrupt):
        run_agent("a", count_to(3), START, checkpointer, settings=RunSettings(preserve=False, observers=[events.append]))
    assert (events[-1].moment, events[-1].status) == ("finished", "interrupted")
    outcome = run_agent("a", count_to(99), START, checkpointer)
    assert (outcome.state["n"], outcome.status, outcome.step) == (3, "completed", 3)


def test_a_large_state_of_arrays_is_not_copied(tmp_path):
    """Not even to see that it is large: it may be more than half of the memory there is."""
    numpy = pytest.importorskip("numpy")
    state = {"weights": numpy.ones(1_000_000)}
    checkpointer = Checkpointer(tmp_path, format="arrays")
    tracemalloc.start()
    try:
        run_agent("a", lambda state, session: Done(state), state, checkpointer)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < state["weights"].nbytes / 2
