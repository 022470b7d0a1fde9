"""Checkpointing of one run, for both runners: saves when a save is due, and notifies the observers."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ckpt_observe.core import steps
from ckpt_observe.core.checkpointer import Checkpointer
from ckpt_observe.core.format.names import check_name
from ckpt_observe.core.hooks import Event, Hook, emit
from ckpt_observe.core.model import CheckpointInfo, Restored
from ckpt_observe.core.retention import Decision
from ckpt_observe.core.runner.notes import Notes
from ckpt_observe.core.runner.triggers import EverySteps, Moment, Never, Trigger
from ckpt_observe.core.saving.draft import Staged
from ckpt_observe.errors import CapacityError, CheckpointError, CheckpointNotFoundError, ConfigError
from ckpt_observe.support.host_exceptions import ignore_errors, raise_host_exception


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """How a run is checkpointed."""

    trigger: Trigger = field(default_factory=Never)
    fail_fast: bool = True
    """Whether a failed save ends the run. If not, the run continues and the observers are notified."""
    preserve: bool | None = None
    """Whether checkpoints stay after success. None: those of an agent stay, because they mark it as completed; a graph's are removed."""
    observers: Sequence[Hook] = ()
    """Called with the events `saved`, `loaded`, `resumed`, `finished` and `failed`."""
    save_requested: Callable[[], bool] = lambda: False
    """Called after each step; True makes the trigger `OnRequest` due. See `SaveOnSignal.save_requested`."""
    configuration: dict[str, Any] | None = None
    """Stored in the metadata of every checkpoint of the run."""
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        if not isinstance(self.trigger, Trigger):
            raise ConfigError(f"`trigger` must be a trigger such as EverySteps(10), not {self.trigger!r:.80}")


MAX_SNAPSHOT = 1 << 20
"""Bytes. Serializing a larger state before each step, in case the step fails, takes too long."""


class NoSnapshot(NamedTuple):
    """Replaces a state of which no copy was made before a step. If the step fails, it cannot be saved: the step may have changed it."""

    reason: CheckpointError


class Session:
    """One run of one task."""

    def __init__(self, checkpointer: Checkpointer, task: str, settings: RunSettings) -> None:
        if not isinstance(checkpointer, Checkpointer):
            raise ConfigError(f"`checkpointer` must be a Checkpointer, not {checkpointer!r:.80}")
        self.task = task
        self.notes = Notes(settings.configuration, encrypted=checkpointer.pipeline.cipher is not None)
        self._checkpointer = checkpointer
        self._settings = settings
        self._saved_at = settings.clock()
        self._saved_step = 0
        self._last: CheckpointInfo | None = None
        self._requested = False
        self._is_large = False

    def resume(self) -> Restored[Any] | None:
        """Restore the newest checkpoint of the task, or return None if there is none."""
        if self._checkpointer.store.newest(check_name(self.task, "task")) is None:
            return None  # a first run, which must not record a failed restore
        try:
            restored = self._checkpointer.restore(self.task)
        except CheckpointNotFoundError:
            return None
        self._last = restored.info
        self._saved_step = restored.info.step or 0
        self._notify("loaded", info=restored.info, node=restored.info.metadata.get("node"))
        return restored

    def report_resumed(self, info: CheckpointInfo, node: str | None = None) -> None:
        self._notify("resumed", info=info, node=node)

    @property
    def saves(self) -> bool:
        """Whether the run has a trigger that can be due: not `Never()` or `EverySteps(0)`. An agent always saves when its run ends."""
        return self._settings.trigger not in (Never(), EverySteps(0))

    def timer(self, name: str) -> AbstractContextManager[None]:
        """Return a context manager that times a step or node and adds the time to the notes."""
        return _Timer(self.notes, name, self._settings.clock)

    def snapshot(self, state: Any) -> Staged | NoSnapshot:
        """Return a serialized copy of the state before a step, which may change it and fail.

        Return NoSnapshot if the state cannot be serialized, or if it is, or an earlier one was, larger than MAX_SNAPSHOT.
        """
        if not self._is_large:
            serializer = self._checkpointer.serializer
            try:
                document, depth, items = steps.serialize(serializer, state)  # does not copy arrays yet: a copy may not fit into memory
            except CheckpointError as error:
                return NoSnapshot(error)
            self._is_large = len(document) > MAX_SNAPSHOT
            if not self._is_large:
                return Staged(document.snapshot(), serializer.name, type(state).__name__, depth, items)
        text = f"the state has, or once had, more than {MAX_SNAPSHOT} bytes, so no copy was made before the step, which may have changed it"
        return NoSnapshot(CapacityError(text))

    def complete_step(self, step: int, visible_state: Any, state: Any, node: str | None = None) -> CheckpointInfo | None:
        """After a step, save `state` if a save is due; return its header, or None. The trigger sees `visible_state`."""
        self._requested |= self._settings.save_requested()
        moment = Moment(
            step=step,
            steps_since=step - self._saved_step,
            seconds_since=self._settings.clock() - self._saved_at,
            state=visible_state,
            requested=self._requested,
        )
        reason = self._settings.trigger.due(moment)
        return None if reason is None else self.save(step, state, status="running", node=node, reason=reason)

    def save(self, step: int, state: Any, *, status: str, node: str | None = None, reason: str) -> CheckpointInfo | None:
        """Save now and return the header. After a failure, raise it or, if `RunSettings.fail_fast` is False, return None."""
        metadata = {**self.notes.as_metadata(), "reason": reason, **({"node": node} if node else {})}
        try:
            info = self._checkpointer.save(self.task, state, step=step, status=status, metadata=metadata)
        except CheckpointError as error:
            self._notify("failed", node=node, error=error, step=step)
            if self._settings.fail_fast:
                raise
            return None
        self._saved_step, self._saved_at, self._last, self._requested = step, self._settings.clock(), info, False
        self._notify("saved", info=info, node=node)
        return info

    def end_with_error(self, error: BaseException, step: int, state: Any, status: str, node: str | None = None) -> None:
        """After an error, save the last recoverable state, if there is one, and finish the run. The caller raises the error.

        If this save fails, too, that is logged and added to the error as a note.
        """
        outcome = "failed" if isinstance(error, Exception) else "interrupted"
        try:
            if isinstance(state, NoSnapshot):
                raise state.reason
            self.notes.record_error(error)
            self.save(step, state, status="completed" if status == "completed" else outcome, node=node, reason=outcome)
        except Exception as second:
            raise_host_exception(second)
            logging.getLogger(__name__).warning(
                "Run %r %s, and its state after step %d could not be saved: %s", self.task, outcome, step, second
            )
            with ignore_errors(Exception):  # an immutable exception accepts no notes
                error.add_note(f"The final checkpoint could not be saved either: {second}")
        self.finish(step, outcome, node)

    def finish(self, step: int, status: str, node: str | None = None) -> None:
        """Remove the checkpoints of a successful run unless they are preserved, and notify the observers."""
        if status == "completed" and self._settings.preserve is False:
            self._clean_up()
        self._notify("finished", step=step, status=status, node=node, info=self._last)

    def _clean_up(self) -> None:
        """Remove all checkpoints of the run. A failure is only logged and reported to the observers: the run has succeeded."""
        try:
            if decisions := [Decision(info, keep=False, reason="its run succeeded") for info in self._checkpointer.list(self.task)]:
                self._checkpointer.prune(self.task, decisions)
        except CheckpointError as error:
            logging.getLogger(__name__).warning("Run %r succeeded, but its checkpoints could not be removed: %s", self.task, error)
            self._notify("failed", error=error)

    def _notify(self, moment: str, *, info: CheckpointInfo | None = None, **details: Any) -> None:
        header = {} if info is None else {"id": info.id, "step": info.step, "status": info.status}
        emit(self._settings.observers, Event(moment=moment, operation="run", task=self.task, info=info, **{**header, **details}))


class _Timer(AbstractContextManager[None]):
    """Times a block. Not a `@contextmanager`, because contextlib sets attributes of an exception, which fails for an immutable one."""

    def __init__(self, notes: Notes, name: str, clock: Callable[[], float]) -> None:
        self._notes, self._name, self._clock = notes, name, clock

    def __enter__(self) -> None:
        self._start = self._clock()

    def __exit__(self, *error: object) -> None:
        self._notes.record_time(self._name, self._clock() - self._start)
