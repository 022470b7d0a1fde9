"""What an operation that did not succeed means for its run, and the checkpoint from which the run can continue."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ckpt_observe.explain.wording import kind_name
from ckpt_observe.query import ObservedOperation
from ckpt_observe.semconv import attributes as names
from ckpt_observe.support.formatting import format_count, format_duration, format_time

READS: Final = ("load", "restore", "list", "verify", "drill")
EFFECTS: Final = {
    "save": "This checkpoint was not saved.",
    "append": "What it was to add is not stored.",
    "load": "The program did not get this state; the stored checkpoints are unchanged.",
    "restore": "The run was not put back to the checkpoint; the stored checkpoints are unchanged.",
    "delete": "The checkpoint may still exist.",
    "list": "The program did not get the list; the stored checkpoints are unchanged.",
    "prune": "Old checkpoints may still exist and take space.",
    "verify": "The checkpoints were not checked to the end, or one of them is damaged.",
    "copy": "The copy is missing or incomplete; the original is unchanged.",
    "drill": "The rehearsed restart did not work, so a real one may not work either.",
    "task": "Work since its last checkpoint is lost.",
}
"""What a failure of each operation means, if the library did not say."""


def describe_effect(operation: ObservedOperation, next_success: ObservedOperation | None, failures_since: int) -> Iterator[str]:
    """Yield what a failed, interrupted or cancelled operation means for its run.

    `next_success` is the first later operation of the same kind and run that succeeded; `failures_since` counts those that failed since.
    """
    kind = kind_name(operation)
    impact = str(operation.attributes.get(names.ERROR_IMPACT) or EFFECTS.get(kind, ""))
    if impact:
        yield f"{impact[0].upper()}{impact[1:].rstrip('.')}."
    if recovery := operation.attributes.get(names.ERROR_RECOVERY):
        yield f"To recover, the program did this: {recovery}."
    if operation.kind != "operation" or operation.task_id is None:
        return
    failures = f"{format_count(failures_since, f'more {kind}')} of this run failed" if failures_since else ""
    if next_success is not None:
        delay = ((next_success.end_unix_nano or 0) - (operation.end_unix_nano or 0)) / 1e9
        text = f"a later {kind} of this run{_step(next_success)} succeeded, {format_duration(max(delay, 0.0))} after this one"
        yield f"{failures}, then {text}." if failures else f"{text[0].upper()}{text[1:]}."
    elif failures:
        yield f"Since then {failures}, and none succeeded."
    elif kind == "save":
        yield "No later save of this run succeeded."


def describe_restore_point(checkpoint: ObservedOperation | None, now_unix_nano: int) -> str:
    """Return from which checkpoint a run can continue. `checkpoint` is its newest good save, or None."""
    if checkpoint is None:
        return "The trace store has no successful save of this run, so it cannot say where the run can continue."
    saved = checkpoint.end_unix_nano or 0
    facts = [f"checkpoint {checkpoint.checkpoint_id}"] if checkpoint.checkpoint_id else []
    facts.append(f"saved {format_duration(max(now_unix_nano - saved, 0) / 1e9)} ago, at {format_time(saved)}")
    if location := checkpoint.attributes.get(names.LOCATION):
        facts.append(f"in {location}")
    return f"The run can continue from its newest good save{_step(checkpoint)}: {', '.join(facts)}."


def _step(operation: ObservedOperation) -> str:
    step = operation.attributes.get(names.STEP)
    return "" if step is None else f" (step {step})"
