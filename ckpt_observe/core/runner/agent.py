"""An agent: a loop of steps over a state, saved as it goes and resumed where it stopped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from ckpt_observe.core.checkpointer import Checkpointer
from ckpt_observe.core.runner.session import Session, Settings


class Done(NamedTuple):
    """Returned by a step that was the last: the agent has finished with this state."""

    state: Any


class Outcome(NamedTuple):
    """How a run ended."""

    state: Any
    step: int
    """Steps completed, those before a resume included."""
    status: str
    """`completed`, or `stopped` at the limit of steps."""
    resumed_from: str | None
    """The checkpoint it went on from."""


Step = Callable[[Any, Session], Any]


def run_agent(
    agent: str, advance: Step, initial: Any, checkpointer: Checkpointer, *, settings: Settings | None = None, max_steps: int = 1_000_000
) -> Outcome:
    """Call `advance(state, session)` until it returns Done, or `max_steps` are completed.

    Goes on from the newest checkpoint of the agent, or begins with `initial` where there is none. Saves when the trigger
    says so, and once more at the end, however it ends: `completed`, `stopped`, `failed` (the error is raised on) or
    `interrupted`. What is saved is always the state after a completed step. A step that fails may have changed the state it was given,
    so that is frozen before each, which costs a serialization. One of more than a mebibyte is not: when a step fails on it, the last
    checkpoint stands, and the error and the log say so.
    """
    return _run(Session(checkpointer, agent, settings or Settings()), advance, initial, max_steps)


def _run(session: Session, advance: Step, initial: Any, max_steps: int) -> Outcome:
    restored = session.resume()
    state, step = (initial, 0) if restored is None else (restored.state, restored.info.step or 0)
    if restored is not None:
        session.resumed(restored.info)
        if restored.info.status == "completed":
            session.finished(step, "completed")  # which the run that completed it may not have lived to do
            return Outcome(state, step, "completed", restored.info.id)
    status = "stopped"
    whole = (step, state, status)  # what an error leaves to be saved: one name, for an interrupt can come between any two
    try:
        while step < max_steps and status != "completed":
            whole = (step, session.frozen(state), status)
            with session.timed("step"):
                result = advance(state, session)
            state, status = (result.state, "completed") if isinstance(result, Done) else (result, status)
            step += 1
            whole = (step, state, status)
            if status != "completed":
                session.completed(step, state, state)
        session.save(step, state, status=status, reason="final")
    except BaseException as error:
        session.ended_by(error, *whole)
        raise
    session.finished(step, status)
    return Outcome(state, step, status, None if restored is None else restored.info.id)
