"""Selects one checkpoint of a task by a reference that people type."""

from __future__ import annotations

from collections.abc import Sequence

from ckpt_observe.core.loading.references import Checkpoint, select


def select_checkpoint(checkpoints: Sequence[Checkpoint], task: str, reference: str) -> Checkpoint:
    """Return the checkpoint to which a reference of the core, or a unique start of an id, refers. They are ordered newest first."""
    matches = [checkpoint for checkpoint in checkpoints if checkpoint.id.startswith(reference)] if reference else []
    return matches[0] if len(matches) == 1 else select(checkpoints, task, reference)
