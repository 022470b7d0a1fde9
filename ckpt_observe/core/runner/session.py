"""What every run does about checkpoints: when one is due it is saved, and the observers are told. Under both runners."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ckpt_observe.core import steps
from ckpt_observe.core.checkpointer import Checkpointer
from ckpt_observe.core.format import state_summary
from ckpt_observe.core.format.names import check_name
from ckpt_observe.core.hooks import Event, Hook, emit
from ckpt_observe.core.model import CheckpointInfo, Restored
from ckpt_observe.core.retention import Decision
from ckpt_observe.core.runner.notes import Notes
from ckpt_observe.core.runner.triggers import EverySteps, Moment, Never, Trigger
from ckpt_observe.core.saving.draft import Staged
from ckpt_observe.errors import CapacityError, CheckpointError, CheckpointNotFoundError, ConfigError


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How a run is checkpointed."""

    trigger: Trigger = field(default_factory=Never)
    fail_fast: bool = True
    """A failed save ends the run; otherwise it goes on and the observers are told."""
    preserve: bool | None = None
    """Whether checkpoints stay after success. None: an agent's do, for they say that it has completed; a graph's are cleaned up."""
    observers: Sequence[Hook] = ()
    """Told `saved`, `loaded`, `resumed`, `finished` and `failed`, with task and node."""
    save_requested: Callable[[], bool] = lambda: False
    """Asked after each step; see `signals.SaveOnSignal.taken`."""
    configuration: dict[str, Any] | None = None
    """Kept in every checkpoint of the run."""
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        if not isinstance(self.trigger, Trigger):
            raise ConfigError(f"the trigger of a run is a policy, such as EverySteps(10), not {self.trigger!r:.80}")


LARGE = 1 << 20
"""Bytes of a state that takes too long to be serialized before each step, in case that fails."""


class Unfrozen(NamedTuple):
    """In place of a state that a step was given without a copy being made: whether it is still what it was cannot be known."""

    reason: CheckpointError


class Session:
    """One run of one task."""

    def __init__(self, checkpointer: Checkpointer, task: str, settings: Settings) -> None:
        if not isinstance(checkpointer, Checkpointer):
            raise ConfigError(f"a run is saved by a Checkpointer, not by {checkpointer!r:.80}")
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
        """What the task's newest checkpoint holds, or None where there is none."""
        if self._checkpointer.store.newest(check_name(self.task, "task")) is None:
            return None  # a first run: that there is nothing to restore is no failure
        try:
            restored = self._checkpointer.restore(self.task)
        except CheckpointNotFoundError:
            return None
        self._last = restored.info
        self._saved_step = restored.info.step or 0
        self._tell("loaded", info=restored.info, node=restored.info.metadata.get("node"))
        return restored

    def resumed(self, info: CheckpointInfo, node: str | None = None) -> None:
        self._tell("resumed", info=info, node=node)

    @property
    def saves(self) -> bool:
        """Whether this run is checkpointed at all."""
        return self._settings.trigger not in (Never(), EverySteps(0))

    def timed(self, name: str) -> AbstractContextManager[None]:
        """Time a step or node."""
        return _Timed(self.notes, name, self._settings.clock)

    def frozen(self, state: Any) -> Staged | Unfrozen:
        """The state as it is now, whatever a step does to it. One that is large is not copied, nor any after it."""
        if not self._is_large:
            serializer, start = self._checkpointer.serializer, time.perf_counter()
            try:
                document = steps.serialize(serializer, state)  # arrays are still the program's own memory: a copy may not fit
            except CheckpointError as error:
                return Unfrozen(error)
            self._is_large = len(document) > LARGE
            if not self._is_large:
                seconds = time.perf_counter() - start
                return Staged(document.snapshot(), serializer.name, type(state).__name__, *state_summary.measure(state), seconds)
        text = f"it has, or had once, more than {LARGE} bytes, so no copy was made before the step, which may have changed it"
        return Unfrozen(CapacityError(text))

    def completed(self, step: int, seen: Any, state: Any, node: str | None = None) -> CheckpointInfo | None:
        """After a step: save `state` if a save is due. `seen` is what the trigger may look at."""
        self._requested |= self._settings.save_requested()
        moment = Moment(
            step=step,
            steps_since=step - self._saved_step,
            seconds_since=self._settings.clock() - self._saved_at,
            state=seen,
            requested=self._requested,
        )
        reason = self._settings.trigger.due(moment)
        return None if reason is None else self.save(step, state, status="running", node=node, reason=reason)

    def save(self, step: int, state: Any, *, status: str, node: str | None = None, reason: str) -> CheckpointInfo | None:
        """Save now. What a failure does is in the settings."""
        metadata = {**self.notes.as_metadata(), "reason": reason, **({"node": node} if node else {})}
        try:
            info = self._checkpointer.save(self.task, state, step=step, status=status, metadata=metadata)
        except CheckpointError as error:
            self._tell("failed", node=node, error=error, step=step)
            if self._settings.fail_fast:
                raise
            return None
        self._saved_step, self._saved_at, self._last, self._requested = step, self._settings.clock(), info, False
        self._tell("saved", info=info, node=node)
        return info

    def ended_by(self, error: BaseException, step: int, state: Any, status: str, node: str | None = None) -> None:
        """Keep the last whole state, if there is one, when the run ends by an error, which stays the one that is raised."""
        ended = "failed" if isinstance(error, Exception) else "interrupted"
        try:
            if isinstance(state, Unfrozen):
                raise state.reason
            self.notes.failed(error)
            self.save(step, state, status="completed" if status == "completed" else ended, node=node, reason=ended)
        except Exception as second:
            logging.getLogger(__name__).warning("%r %s, and its state after step %d was not saved: %s", self.task, ended, step, second)
            with suppress(Exception):  # an error may be frozen, and takes no notes then
                error.add_note(f"the final checkpoint could not be saved either: {second}")
        self.finished(step, ended, node)

    def finished(self, step: int, status: str, node: str | None = None) -> None:
        """Tell the observers, and clean up after a success unless the checkpoints are to stay."""
        if status == "completed" and self._settings.preserve is False:
            self._clean_up()
        self._tell("finished", step=step, status=status, node=node, info=self._last)

    def _clean_up(self) -> None:
        """The run has succeeded, and failing to tidy up does not take its result away."""
        try:
            if going := [Decision(info, keep=False, reason="its run succeeded") for info in self._checkpointer.list(self.task)]:
                self._checkpointer.prune(self.task, going)
        except CheckpointError as error:
            logging.getLogger(__name__).warning("%r succeeded, but its checkpoints were not removed: %s", self.task, error)
            self._tell("failed", error=error)

    def _tell(self, moment: str, *, info: CheckpointInfo | None = None, **facts: Any) -> None:
        known = {} if info is None else {"id": info.id, "step": info.step, "status": info.status}
        emit(self._settings.observers, Event(moment=moment, operation="run", task=self.task, info=info, **{**known, **facts}))


class _Timed(AbstractContextManager[None]):
    """A block that is timed. No generator: contextlib writes to the error that leaves one, and a frozen error would be replaced."""

    def __init__(self, notes: Notes, name: str, clock: Callable[[], float]) -> None:
        self._notes, self._name, self._clock = notes, name, clock

    def __enter__(self) -> None:
        self._start = self._clock()

    def __exit__(self, *error: object) -> None:
        self._notes.timed(self._name, self._clock() - self._start)
