"""Runs an action under a fault, and compares what was recorded about it with the table."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ckpt_observe.core import Checkpointer
from ckpt_observe.core.aio import AsyncCheckpointer
from ckpt_observe.core.background import BackgroundCheckpointer
from ckpt_observe.core.stores.store import StoreWrapper
from ckpt_observe.errors import CheckpointError, CkptObserveError, ConfigError
from ckpt_observe.semconv import attributes as names
from ckpt_observe.semconv.values import ERROR_CODES
from ckpt_observe.span import Span
from tests.fault_matrix.table import Cell

STATE = {"n": 1}
ID = "c1"
OUTCOMES = {"cancelled.requested": "cancelled", "interrupted.process_died": "interrupted"}


class Result(NamedTuple):
    """What the program got, and what was recorded."""

    raised: BaseException | None
    spans: list[Span]


class Trouble(NamedTuple):
    """An action that is about to fail: what it needs, and how to run it (in this process, unless the fault needs another)."""

    checkpointer: Checkpointer
    state: Any = STATE
    run: Callable[[Callable[[], Result]], Result] = lambda observe: observe()


class ProgramError(Exception):
    """The exception of a program's own store."""


class ProgramStore(StoreWrapper):
    """A store as a program may write it: it wraps every error in its own exception."""

    def put(self, info, blob):
        try:
            super().put(info, blob)
        except CheckpointError as error:
            raise ProgramError("cannot store the checkpoint") from error

    def get(self, task, id):
        try:
            return super().get(task, id)
        except CheckpointError as error:
            raise ProgramError("cannot read the checkpoint") from error


def act(action: str, checkpointer: Checkpointer, task: str, state: Any) -> None:
    """Save or load the checkpoint ID in the way that `action` names."""
    if action == "load":
        checkpointer.load(task, ID)
    elif action == "save":
        checkpointer.save(task, state, id=ID)
    elif action == "async":
        asyncio.run(_save_async(checkpointer, task, state))
    elif action == "background":
        with BackgroundCheckpointer(checkpointer) as background:
            background.save(task, state, id=ID).result()
    else:
        with checkpointer.batch() as batch:
            batch.save(task, state, id=ID)


async def _save_async(checkpointer: Checkpointer, task: str, state: Any) -> None:
    awaited = AsyncCheckpointer(checkpointer)
    try:
        await awaited.save(task, state, id=ID)
    finally:
        awaited._workers.close()  # `close` would also close the Checkpointer, which belongs to the fixture


def find_mismatches(cell: Cell, raised: BaseException | None, spans: Sequence[Span]) -> list[str]:
    """Return what the recorded operation says wrongly. `raised` is what the program got; None if it was killed."""
    operation = "load" if cell.action == "load" else "save"
    failed = [span for span in spans if span.attributes.get(names.OPERATION) == operation and span.attributes[names.OUTCOME] != "ok"]
    if len(failed) != 1:
        return [f"{len(failed)} failed operations are recorded, raised was {raised!r}"]
    attributes = failed[0].attributes
    expected = {
        names.OUTCOME: OUTCOMES.get(cell.code, "error"),
        names.ERROR_CLASS: ERROR_CODES[cell.code].error_class,
        names.ERROR_CODE: cell.code,
        names.ERROR_PHASE: cell.phase,
        names.ERROR_RETRYABLE: ERROR_CODES[cell.code].retryable,
        names.STORE: cell.store,
    }
    mismatches = [f"{name} is {attributes.get(name)!r}, not {value!r}" for name, value in expected.items() if attributes.get(name) != value]
    if cell.action != "batch" and attributes.get(names.ID) != ID:  # a batch is one operation with several checkpoints
        mismatches.append(f"the checkpoint is {attributes.get(names.ID)!r}")
    if cell.injection == "wrapped" and names.ERROR_CAUSE not in attributes:
        mismatches.append("the cause is missing")
    wrong = "was not saved" if operation == "load" else "loaded"
    if wrong in attributes.get(names.ERROR_IMPACT, ""):
        mismatches.append(f"the impact of a {operation} is {attributes[names.ERROR_IMPACT]!r}")
    if raised is not None:
        mismatches += _check_exception(cell, raised)
    return mismatches and [*mismatches, f"raised: {raised!r} from {getattr(raised, '__cause__', None)!r}"]


def _check_exception(cell: Cell, raised: BaseException) -> list[str]:
    """The program gets an exception of ours with the same code, never one of a client library, and it names what is damaged or missing."""
    allowed = (KeyboardInterrupt,) if cell.fault == "cancelled" else (ProgramError,) if cell.injection == "wrapped" else (CkptObserveError,)
    if not isinstance(raised, allowed):
        return [f"a raw {type(raised).__name__} reached the program"]
    if isinstance(raised, CheckpointError | ConfigError) and raised.code != cell.code:
        return [f"the exception has the code {raised.code}"]
    is_named = (
        isinstance(raised, ProgramError)
        or repr(ID) in str(raised)
        or cell.code.partition(".")[0] not in ("integrity", "compatibility", "not_found")
    )
    return [] if is_named else ["the message does not name the checkpoint"]
