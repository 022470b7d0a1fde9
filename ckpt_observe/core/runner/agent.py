"""An agent: a loop of steps over a state. The state is saved on the way, and a new run continues from the newest checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from ckpt_observe.core.checkpointer import Checkpointer
from ckpt_observe.core.runner.session import RunSettings, Session


class Done(NamedTuple):
    """Returned by the last step: the agent is finished with this state."""

    state: Any


class Outcome(NamedTuple):
    """How a run ended."""

    state: Any
    step: int
    """Steps completed, including those before a resume."""
    status: str
    """`completed`, or `stopped` at `max_steps`."""
    resumed_from: str | None
    """Id of the checkpoint from which the run continued; None if it started with `initial`."""


Step = Callable[[Any, Session], Any]


def run_agent(
    agent: str, advance: Step, initial: Any, checkpointer: Checkpointer, *, settings: RunSettings | None = None, max_steps: int = 1_000_000
) -> Outcome:
    """Call `advance(state, session)` until it returns Done, or `max_steps` are completed.

    Continue from the newest checkpoint of the agent, or start with `initial` if there is none. If that checkpoint has the status
    `completed`, return its state without a step. Save when the trigger is due, and at the end of the run with status `completed`,
    `stopped`, `failed` (the error is raised) or `interrupted`. The saved state is always the one after a completed step. A failing step
    may have changed its state, so the state is serialized before each step. A state over 1 MiB is not: if a step fails on it, the last
    checkpoint stays the newest, and the error and the log say so.
    """
    return _run(Session(checkpointer, agent, settings or RunSettings()), advance, initial, max_steps)


def _run(session: Session, advance: Step, initial: Any, max_steps: int) -> Outcome:
    restored = session.resume()
    state, step = (initial, 0) if restored is None else (restored.state, restored.info.step or 0)
    if restored is not None:
        session.report_resumed(restored.info)
        if restored.info.status == "completed":
            session.finish(step, "completed")  # the completed run may have died before its clean-up
            return Outcome(state, step, "completed", restored.info.id)
    status = "stopped"
    recoverable = (step, state, status)  # saved after an error. One variable, because an interrupt can come between two assignments
    try:
        while step < max_steps and status != "completed":
            recoverable = (step, session.snapshot(state), status)
            with session.timer("step"):
                result = advance(state, session)
            state, status = (result.state, "completed") if isinstance(result, Done) else (result, status)
            step += 1
            recoverable = (step, state, status)
            if status != "completed":
                session.complete_step(step, state, state)
        session.save(step, state, status=status, reason="final")
    except BaseException as error:
        session.end_with_error(error, *recoverable)
        raise
    session.finish(step, status)
    return Outcome(state, step, status, None if restored is None else restored.info.id)
