"""When the agent loop ends with an error, it leaves a checkpoint of a completed step, never of a half-finished one."""

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
    """If a step changes the state in place and then fails, the change is not saved, and the step is repeated on resume."""
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


def test_half_a_step_on_a_nested_value_is_not_saved(checkpointer):
    """A failed step's change of a nested value is not saved, even if each step returns a new outer mapping."""

    def advance(state, session):
        state["log"].append(state["n"])
        if state["n"] == 2:
            raise RuntimeError("half done")
        return {**state, "n": state["n"] + 1}

    with pytest.raises(RuntimeError):
        run_agent("a", advance, {"n": 0, "log": []}, checkpointer)
    assert checkpointer.restore("a").state == {"n": 2, "log": [0, 1]}


@pytest.mark.parametrize("in_place", [True, False])
def test_large_state_is_not_saved_after_a_failed_step(checkpointer, monkeypatch, caplog, in_place):
    """A large state is not copied before each step, so after a failed step it is not saved, because it may be half changed."""
    monkeypatch.setattr(session, "MAX_SNAPSHOT", 10)
    serialized = []
    monkeypatch.setattr(steps, "serialize", lambda serializer, state: serialized.append(state) or (serializer.dumps(state), 1, 1))

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
    assert len(serialized) == 2  # once to measure it, once to save it
    assert "more than 10 bytes" in caught.value.__notes__[0]
    assert "state after step 2 could not be saved" in caplog.text


@pytest.mark.parametrize("error", [CapacityError, KeyboardInterrupt])
@pytest.mark.parametrize("max_snapshot", [1, 1 << 20])
def test_state_is_saved_if_the_run_ends_between_steps(checkpointer, monkeypatch, error, max_snapshot):
    """If the run ends between two steps, the state is complete and saved, whatever its size."""
    monkeypatch.setattr(session, "MAX_SNAPSHOT", max_snapshot)

    def advance(state, session):
        state["n"] += 1
        return state

    def raise_error():
        raise error("now")

    with pytest.raises(error):
        run_agent("a", advance, {"n": 0}, checkpointer, settings=RunSettings(save_requested=raise_error))
    assert (checkpointer.list("a")[0].step, checkpointer.load("a")) == (1, {"n": 1})


def test_none_is_a_valid_state(checkpointer):
    """A state of None is saved, also when the run ends between two steps."""

    def raise_error():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_agent("a", lambda state, session: None, None, checkpointer, settings=RunSettings(save_requested=raise_error))
    assert (checkpointer.list("a")[0].step, checkpointer.load("a")) == (1, None)


def test_state_without_a_snapshot_is_not_saved_after_a_failed_step(checkpointer):
    """A state that could not be copied before a step is not saved after the step failed, even if it could be saved then."""

    def advance(state, session):
        state["lock"] = None
        raise RuntimeError("half done")

    with pytest.raises(RuntimeError) as caught:
        run_agent("a", advance, {"lock": threading.Lock()}, checkpointer)
    assert checkpointer.list("a") == []
    assert "lock" in caught.value.__notes__[0]


@pytest.mark.parametrize("max_snapshot", [1, 1 << 20])
def test_interrupt_at_any_moment_neither_skips_nor_repeats_a_step(monkeypatch, max_snapshot):
    """Whenever KeyboardInterrupt comes, each checkpoint has the state of its step, and the next run continues from there."""
    monkeypatch.setattr(session, "MAX_SNAPSHOT", max_snapshot)

    def advance(state, session):
        state["log"].append(state["n"])
        state["n"] += 1
        return Done(state) if state["n"] == 3 else state

    def interrupt_every_moment():
        for moment in itertools.count(1):
            checkpointer = Checkpointer("memory://")
            with contextlib.suppress(KeyboardInterrupt), interrupted_at(moment) as interrupts:
                run_agent("a", advance, {"n": 0, "log": []}, checkpointer)
            if not interrupts:
                break
            for info in checkpointer.list("a"):
                assert checkpointer.load("a", info.id)["n"] == info.step, moment
            assert run_agent("a", advance, {"n": 0, "log": []}, checkpointer).state == {"n": 3, "log": [0, 1, 2]}, moment
        return moment

    with ThreadPoolExecutor(
        1
    ) as pool:  # if a trace function raises in an except block, Python 3.11 keeps handling that error in this thread
        assert pool.submit(interrupt_every_moment).result() > 100


@contextlib.contextmanager
def interrupted_at(moment):
    """Raise KeyboardInterrupt at the n-th instruction of the loop, or line of the runner functions it calls. Yield a list of the interrupted frame."""
    interrupts, events = [], itertools.count(1)

    def trace(frame, event, argument):
        if interrupts or not frame.f_code.co_filename.startswith(os.path.dirname(session.__file__)):
            return None
        frame.f_trace_opcodes = frame.f_code is agent._run.__code__
        if next(events) == moment:
            interrupts.append(frame)
            raise KeyboardInterrupt
        return trace

    previous_trace = sys.gettrace()
    sys.settrace(trace)
    try:
        yield interrupts
    finally:
        sys.settrace(previous_trace)


def test_interrupt_during_the_last_save_leaves_the_agent_completed(checkpointer, monkeypatch):
    """An interrupt during the last save does not lose the last step, and no further step runs afterwards."""
    put, errors = checkpointer.store.put, iter([KeyboardInterrupt()])

    def interrupted_put(info, blob):
        if error := next(errors, None):
            raise error
        put(info, blob)

    monkeypatch.setattr(checkpointer.store, "put", interrupted_put)
    events = []
    with pytest.raises(KeyboardInterrupt):
        run_agent("a", count_to(3), START, checkpointer, settings=RunSettings(preserve=False, observers=[events.append]))
    assert (events[-1].moment, events[-1].status) == ("finished", "interrupted")
    outcome = run_agent("a", count_to(99), START, checkpointer)
    assert (outcome.state["n"], outcome.status, outcome.step) == (3, "completed", 3)


def test_large_arrays_are_not_copied(tmp_path):
    """Large arrays are not copied, not even to measure them, because they may be more than half of the memory."""
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
