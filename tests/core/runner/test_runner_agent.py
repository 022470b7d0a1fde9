"""The agent loop."""

from __future__ import annotations

import threading

import pytest

from ckpt_observe.core import Checkpointer
from ckpt_observe.core.runner import RunSettings, run_agent
from ckpt_observe.core.runner.triggers import EverySeconds, EverySteps, OnRequest
from tests.core.runner.conftest import START, count_to


def test_saves_every_n_steps_and_at_the_end(checkpointer):
    """An agent is saved every N steps and at its end, with its status."""
    outcome = run_agent("a", count_to(7), START, checkpointer, settings=RunSettings(trigger=EverySteps(3)))
    assert (outcome.step, outcome.status, outcome.resumed_from) == (7, "completed", None)
    assert [(info.step, info.status) for info in checkpointer.list("a")] == [(7, "completed"), (6, "running"), (3, "running")]


def test_saves_by_time_or_steps(checkpointer):
    """An agent is saved every M seconds or every N steps, whichever comes first."""
    ticks = iter(range(0, 1000, 10))
    settings = RunSettings(trigger=EverySteps(100) | EverySeconds(35), clock=lambda: next(ticks))
    run_agent("a", count_to(5), START, checkpointer, settings=settings)
    reasons = [info.metadata["reason"] for info in checkpointer.list("a")]
    assert reasons[0] == "final"
    assert "35 seconds" in reasons


def test_resumes_after_a_failure_where_it_stopped(checkpointer):
    """A failed run saves its last good state; the next run continues from there and repeats no step."""
    with pytest.raises(RuntimeError, match="out of luck"):
        run_agent("a", count_to(9, fail_at=5), START, checkpointer)
    failed = checkpointer.list("a")[0]
    assert (failed.status, failed.step) == ("failed", 5)
    outcome = run_agent("a", count_to(9), START, checkpointer)
    assert outcome.state == {"n": 9, "log": list(range(9))}
    assert (outcome.step, outcome.resumed_from) == (9, failed.id)


def test_starts_from_scratch_without_a_checkpoint(checkpointer):
    """An agent does not resume from the checkpoints of another agent."""
    run_agent("a", count_to(3), START, checkpointer)
    assert run_agent("b", count_to(2), START, checkpointer).resumed_from is None


def test_completed_agent_is_not_run_again(checkpointer):
    """Running a completed agent returns its final state."""
    run_agent("a", count_to(3), START, checkpointer)
    outcome = run_agent("a", count_to(99), START, checkpointer)
    assert (outcome.state["n"], outcome.status) == (3, "completed")


def test_pending_clean_up_of_a_completed_agent(checkpointer):
    """If a run died between its last save and its clean-up, the next run removes the checkpoints, and the one after that starts from scratch."""
    run_agent("a", count_to(3), START, checkpointer)
    events = []
    settings = RunSettings(preserve=False, observers=[events.append])
    assert run_agent("a", count_to(99), START, checkpointer, settings=settings).state["n"] == 3
    assert checkpointer.list("a") == []
    assert [event.moment for event in events] == ["loaded", "resumed", "finished"]


def test_max_steps_stops_a_run(checkpointer):
    """`max_steps` ends a run with the status `stopped`; a later run continues it."""
    assert run_agent("a", count_to(10), START, checkpointer, max_steps=4).status == "stopped"
    assert run_agent("a", count_to(10), START, checkpointer).state["log"] == list(range(10))


def test_interrupt_is_not_a_failure(checkpointer):
    """KeyboardInterrupt saves the last good state with the status `interrupted`, and is raised again."""

    def advance(state, session):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_agent("a", advance, START, checkpointer)
    assert checkpointer.list("a")[0].status == "interrupted"


def test_request_is_kept_until_a_save_succeeds(checkpointer):
    """A request that is combined with another trigger is kept until both are due and a save succeeds."""
    requests = iter([True])
    settings = RunSettings(trigger=OnRequest() & EverySteps(3), save_requested=lambda: next(requests, False))
    run_agent("a", count_to(8), START, checkpointer, settings=settings)
    assert [(info.step, info.metadata["reason"]) for info in checkpointer.list("a")] == [(8, "final"), (3, "requested and 3 steps")]


def test_agents_in_threads(tmp_path):
    """Agents in several threads of one program do not affect each other."""
    checkpointer = Checkpointer(tmp_path, keep_last=3)
    settings = RunSettings(trigger=EverySteps(1))
    threads = [
        threading.Thread(target=run_agent, args=(f"a{n}", count_to(5 + n), START, checkpointer), kwargs={"settings": settings})
        for n in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [checkpointer.load(f"a{n}")["n"] for n in range(6)] == [5 + n for n in range(6)]
    assert {len(checkpointer.list(f"a{n}")) for n in range(6)} == {3}
