"""How far a run has come, and how long it still takes: from the steps of its saves, if it declares their number."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Self

import msgspec

from ckpt_observe.query.results import ObservedOperation
from ckpt_observe.semconv import attributes as names


class SavedStep(NamedTuple):
    """A good save of a run that declares its number of steps."""

    run: str | None
    end_unix_nano: int
    step: int
    total_steps: int

    @classmethod
    def of(cls, operation: ObservedOperation) -> Self | None:
        """Return the step that an operation saved; None if it is no good save, or has no step or number of steps."""
        step, total = (operation.attributes.get(name) for name in (names.STEP, names.TOTAL_STEPS))
        if operation.name != "save" or operation.outcome != "ok" or operation.end_unix_nano is None:
            return None
        if type(step) is not int or type(total) is not int or total <= 0:  # the host program may have set anything
            return None
        return cls(operation.task_id or operation.task_name, operation.end_unix_nano, step, total)


class Progress(msgspec.Struct, frozen=True):
    """The newest step of a run."""

    step: int
    total_steps: int
    remaining_seconds: float | None
    """Time until the last step, at the rate between the oldest and the newest save; None if there is only one."""


def measure_progress(saves: Sequence[SavedStep]) -> Progress | None:
    """Return the progress of the run that saved last, or None without saves. They are in any order."""
    newest = max(saves, key=lambda save: save.end_unix_nano, default=None)
    if newest is None:
        return None
    oldest = min((save for save in saves if save.run == newest.run), key=lambda save: save.end_unix_nano)
    steps, seconds = newest.step - oldest.step, (newest.end_unix_nano - oldest.end_unix_nano) / 1e9
    remaining = max(0, newest.total_steps - newest.step) * seconds / steps if steps > 0 else None
    return Progress(newest.step, newest.total_steps, remaining)
