"""What a failed operation means for the task: the `impact` of its error."""

from __future__ import annotations

from typing import Final

from ckpt_observe.errors import CheckpointError

_IMPACTS: Final = {
    "save": "this checkpoint was not saved; the one before it is intact",
    "commit": "some or none of these checkpoints were saved; a second commit() saves the rest",
    "load": "nothing was loaded; the stored checkpoints are unchanged",
    "delete": "the checkpoint was not removed",
}
_UNCLEAR: Final = {
    "save": "it is not known whether this checkpoint was saved; the one before it is intact",
    "delete": "it is not known whether the checkpoint was removed",
}
"""If the answer of a server was lost, it may have done what it was asked for."""
_LOST_ANSWERS: Final = ("unavailable", "timeout")


def add_impact(error: CheckpointError, operation: str) -> None:
    """Set the impact of an error that ends an operation, unless it is known better."""
    if error.impact is None:
        unclear = _UNCLEAR.get(operation) if error.error_class in _LOST_ANSWERS else None
        error.impact = unclear or _IMPACTS[operation]
