"""The agent loop."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import signal
import sys
import threading
import tracemalloc

import pytest

from ckpt_observe.core import Checkpointer, steps
from ckpt_observe.core.query import Query
from ckpt_observe.core.runner import Done, SaveOnSignal, Settings, run_agent, session
from ckpt_observe.core.triggers import EverySeconds, EverySteps, OnRequest, When
from ckpt_observe.errors import CapacityError, SerializationError


@pytest.fixture
def checkpointer():
    return Checkpointer("memory://")


def count_to(limit, fail_at=None):
    def advance(state, session):
        if state["n"] == fail_at:
            raise RuntimeError("out of luck")
        state = {**state, "n": state["n"] + 1, "log": [*state["log"], state["n"]]}
        return Done(state) if state["n"] == limit else state

    return advance


START = {"n": 0, "log": []}


def test_saves_every_n_steps_and_at_the_end(checkpointer):
    """K1: automatic saves every N steps, plus a final one with the status."""
    outcome = run_agent("a", count_to(7), START, checkpointer, settings=Settings(trigger=EverySteps(3)))
    assert (outcome.step, outcome.status, outcome.resumed_from) == (7, "completed", None)
    assert [(info.step, info.status) for info in checkpointer.list("a")] == [(7, "completed"), (6, "running"), (3, "running")]


def test_saves_by_time_or_steps(checkpointer):
    """K1: every M seconds or every N steps, whichever comes first."""
    ticks = iter(range(0, 1000, 10))
    settings = Settings(trigger=EverySteps(100) | EverySeconds(35), clock=lambda: next(ticks))
    run_agent("a", count_to(5), START, checkpointer, settings=settings)
    reasons = [info.metadata["reason"] for info in checkpointer.list("a")]
    assert reasons[0] == "final"
    assert "35 seconds" in reasons


def test_resumes_after_a_failure_where_it_stopped(checkpointer):
    """K2, K7: the failed run saved its last good state; the next run goes on from there and repeats nothing."""
    with pytest.raises(RuntimeError, match="out of luck"):
        run_agent("a", count_to(9, fail_at=5), START, checkpointer)
    failed = checkpointer.list("a")[0]
    assert (failed.status, failed.step) == ("failed", 5)
    outcome = run_agent("a", count_to(9), START, checkpointer)
    assert outcome.state == {"n": 9, "log": list(range(9))}
    assert (outcome.step, outcome.resumed_from) == (9, failed.id)


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
    monkeypatch.setattr(session, "LARGE", 10)
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
        run_agent("a", advance, {"n": 0, "log": []}, checkpointer, settings=Settings(trigger=When(lambda moment: moment.step == 1)))
    assert [(info.step, info.status) for info in checkpointer.list("a")] == [(1, "running")]
    assert checkpointer.load("a") == {"n": 1, "log": []}
    assert len(serialized) == 2  # to see that it is large, and to save it
    assert "more than 10 bytes" in caught.value.__notes__[0]
    assert "state after step 2 was not saved" in caplog.text


@pytest.mark.parametrize("error", [CapacityError, KeyboardInterrupt])
@pytest.mark.parametrize("large", [1, 1 << 20])
def test_a_state_is_saved_when_no_step_failed_on_it(checkpointer, monkeypatch, error, large):
    """K7: what ends the run between two steps leaves the state whole, so that is saved, whatever its size."""
    monkeypatch.setattr(session, "LARGE", large)

    def advance(state, session):
        state["n"] += 1
        return state

    def asked():
        raise error("now")

    with pytest.raises(error):
        run_agent("a", advance, {"n": 0}, checkpointer, settings=Settings(save_requested=asked))
    assert (checkpointer.list("a")[0].step, checkpointer.load("a")) == (1, {"n": 1})


def test_none_is_a_state_like_any_other(checkpointer):
    """K7: a run over None saves it, also when it ends between two steps."""

    def asked():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_agent("a", lambda state, session: None, None, checkpointer, settings=Settings(save_requested=asked))
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
    monkeypatch.setattr(session, "LARGE", large)

    def advance(state, session):
        state["log"].append(state["n"])
        state["n"] += 1
        return Done(state) if state["n"] == 3 else state

    for moment in itertools.count(1):
        checkpointer = Checkpointer("memory://")
        with contextlib.suppress(KeyboardInterrupt), interrupted_at(moment) as came:
            run_agent("a", advance, {"n": 0, "log": []}, checkpointer)
        if not came:
            break
        for info in checkpointer.list("a"):
            assert checkpointer.load("a", info.id)["n"] == info.step, moment
        assert run_agent("a", advance, {"n": 0, "log": []}, checkpointer).state == {"n": 3, "log": [0, 1, 2]}, moment
    assert moment > 100


@contextlib.contextmanager
def interrupted_at(moment):
    """A KeyboardInterrupt before that many instructions of `run_agent`, or lines of what it calls of the runner."""
    came, events = [], itertools.count(1)

    def trace(frame, event, argument):
        if came or not frame.f_code.co_filename.startswith(os.path.dirname(session.__file__)):
            return None
        frame.f_trace_opcodes = frame.f_code is run_agent.__code__
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
        run_agent("a", count_to(3), START, checkpointer, settings=Settings(preserve=False, observers=[events.append]))
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


def test_starts_fresh_without_a_checkpoint_of_its_own(checkpointer):
    """K2, K8: another agent's checkpoints are not its own."""
    run_agent("a", count_to(3), START, checkpointer)
    assert run_agent("b", count_to(2), START, checkpointer).resumed_from is None


def test_completed_agent_is_not_run_again(checkpointer):
    """A completed agent is given back as it ended."""
    run_agent("a", count_to(3), START, checkpointer)
    outcome = run_agent("a", count_to(99), START, checkpointer)
    assert (outcome.state["n"], outcome.status) == (3, "completed")


def test_completed_agent_that_was_not_cleaned_up_is_when_it_is_given_back(checkpointer):
    """Where a run ended between its last save and its clean-up, the next one finishes it: the one after that begins anew."""
    run_agent("a", count_to(3), START, checkpointer)
    events = []
    tidy = Settings(preserve=False, observers=[events.append])
    assert run_agent("a", count_to(99), START, checkpointer, settings=tidy).state["n"] == 3
    assert checkpointer.list("a") == []
    assert [event.moment for event in events] == ["loaded", "resumed", "finished"]


def test_limit_of_steps_stops_and_can_be_raised(checkpointer):
    """The limit ends a run as `stopped`, which a later one goes on from."""
    assert run_agent("a", count_to(10), START, checkpointer, max_steps=4).status == "stopped"
    assert run_agent("a", count_to(10), START, checkpointer).state["log"] == list(range(10))


def test_interrupt_is_not_a_failure(checkpointer):
    """Ctrl-C saves the last good state as `interrupted`, and is raised on."""

    def advance(state, session):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_agent("a", advance, START, checkpointer)
    assert checkpointer.list("a")[0].status == "interrupted"


def test_failed_final_save_does_not_hide_the_error(checkpointer, monkeypatch):
    """L10: when the state cannot be saved either, the first error is raised and says so."""

    def full(info, blob):
        raise CapacityError("disk full")

    monkeypatch.setattr(checkpointer.store, "put", full)
    with pytest.raises(RuntimeError, match="out of luck") as caught:
        run_agent("a", count_to(9, fail_at=0), START, checkpointer)
    assert "disk full" in caught.value.__notes__[0]


class UnspeakableError(Exception):
    def __str__(self):
        raise KeyError("no text")


class MisclassedError(Exception):
    error_class = dict


UNDECODABLE = os.fsdecode(b"\xff.txt")


@pytest.mark.parametrize(
    ("error", "message"),
    [(RuntimeError(UNDECODABLE), "?.txt"), (UnspeakableError(), "<its text failed with KeyError>"), (MisclassedError("odd"), "odd")],
    ids=["undecodable", "unspeakable", "misclassed"],
)
def test_no_error_costs_the_run_its_last_checkpoint(checkpointer, error, message):
    """L10: whatever the error is made of, the state is saved with what can be said of it, and it is the one that is raised."""

    def advance(state, session):
        raise error

    with pytest.raises(type(error)) as caught:
        run_agent("a", advance, START, checkpointer)
    assert caught.value is error
    told = checkpointer.list("a")[0].metadata["error"]
    assert (told["class"], told["type"], told["message"]) == ("unknown", type(error).__qualname__, message)


@dataclasses.dataclass(frozen=True)
class FrozenError(Exception):
    number: int


@pytest.mark.parametrize("state", [0, threading.Lock()], ids=["saved", "unsavable"])
def test_an_error_that_cannot_be_written_to_is_raised_as_it_is(checkpointer, state):
    """L10: neither timing its step nor telling of a failed last save puts another in its place."""

    def advance(state, session):
        raise FrozenError(7)

    with pytest.raises(FrozenError):
        run_agent("a", advance, state, checkpointer)


def test_notes_take_any_text(checkpointer):
    """D3: a rendering of what is no UTF-8 is kept with a mark in its place."""

    def advance(state, session):
        session.notes.rendering(UNDECODABLE, UNDECODABLE, UNDECODABLE)
        session.notes.choice(UNDECODABLE, UNDECODABLE, UNDECODABLE)
        return Done(state)

    run_agent("a", advance, START, checkpointer)
    metadata = checkpointer.list("a")[0].metadata
    assert metadata["renderings"] == [{"template": "?.txt", "before": "?.txt", "after": "?.txt"}]
    assert metadata["choices"] == [{"what": "?.txt", "chosen": "?.txt", "reason": "?.txt"}]


def test_checkpoint_tells_about_its_run(checkpointer):
    """D3: timings, resources, choices with reasons, renderings, configuration and the stack of an error are in the checkpoint."""

    def advance(state, session):
        session.notes.choice("model", "small", "cheap enough")
        session.notes.rendering("greeting", "Hello {name}", "Hello Ann" * 1000)
        if state["n"]:
            raise ValueError("no more")
        return {**state, "n": 1}

    with pytest.raises(ValueError, match="no more"):
        run_agent("a", advance, START, checkpointer, settings=Settings(configuration={"temperature": 0}))
    metadata = checkpointer.list("a")[0].metadata
    assert metadata["configuration"] == {"temperature": 0}
    assert metadata["choices"][0] == {"what": "model", "chosen": "small", "reason": "cheap enough"}
    assert len(metadata["renderings"][0]["after"]) < 2100
    assert metadata["timings"]["step"]["count"] == 2
    assert metadata["resources"]["memory_peak_bytes"] > 1_000_000
    assert metadata["error"]["type"] == "ValueError"
    assert "in advance" in metadata["error"]["stack"]
    assert len(checkpointer.find(Query(error_class="unknown"))) == 1


def test_a_configuration_that_cannot_be_kept_is_refused_before_the_first_step(checkpointer):
    """D3: not by the last save, with every step done and none of them kept."""
    visited = []
    with pytest.raises(SerializationError, match="cannot be noted"):
        run_agent("a", lambda state, session: visited.append(state), START, checkpointer, settings=Settings(configuration={"lock": threading.Lock()}))
    assert visited == []


def test_a_choice_that_cannot_be_kept_is_refused_where_it_is_made(checkpointer):
    """D3: it fails its step, and the state before that is saved."""

    def advance(state, session):
        session.notes.choice("lock", threading.Lock() if state["n"] == 2 else None, "to show it")
        return count_to(5)(state, session)

    with pytest.raises(SerializationError, match="cannot be noted"):
        run_agent("a", advance, START, checkpointer)
    assert checkpointer.load("a") == {"n": 2, "log": [0, 1]}


def test_stack_trace_is_whole(checkpointer):
    """D3: a stack as deep as frameworks make them is kept with every frame."""

    def descend(depth):
        if not depth:
            raise ValueError("deep")
        return climb(depth)

    def climb(depth):
        return descend(depth - 1)

    with pytest.raises(ValueError, match="deep"):
        run_agent("a", lambda state, session: descend(100), START, checkpointer)
    stack = checkpointer.list("a")[0].metadata["error"]["stack"]
    assert (stack.count("in descend"), stack.count("in climb")) == (101, 100)


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
            run_agent("a", advance, START, checkpointer, settings=Settings(trigger=OnRequest(), save_requested=request.taken))
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
        assert request.taken()
    assert signal.getsignal(signal.SIGUSR1) == before


def test_request_waits_until_it_is_served(checkpointer):
    """K1: a request that is combined with another trigger is not forgotten before both are due, nor by a save that failed."""
    asked = iter([True])
    settings = Settings(trigger=OnRequest() & EverySteps(3), save_requested=lambda: next(asked, False))
    run_agent("a", count_to(8), START, checkpointer, settings=settings)
    assert [(info.step, info.metadata["reason"]) for info in checkpointer.list("a")] == [(8, "final"), (3, "requested and 3 steps")]


def test_several_agents_at_once(tmp_path):
    """K8: agents in threads of one program do not disturb one another."""
    checkpointer = Checkpointer(tmp_path, keep_last=3)
    settings = Settings(trigger=EverySteps(1))
    threads = [threading.Thread(target=run_agent, args=(f"a{n}", count_to(5 + n), START, checkpointer), kwargs={"settings": settings}) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [checkpointer.load(f"a{n}")["n"] for n in range(6)] == [5 + n for n in range(6)]
    assert {len(checkpointer.list(f"a{n}")) for n in range(6)} == {3}
