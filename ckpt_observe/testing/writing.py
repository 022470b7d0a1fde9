"""What the writing processes of the store contract run. Apart from it, so that they need not import pytest."""

from __future__ import annotations

from ckpt_observe.core.checkpointer import Checkpointer

SAVES = 5


def save_some(url: str, writer: int) -> list[str]:
    """Save a few checkpoints of one task that others write too; returns their ids."""
    with Checkpointer(url) as checkpointer:
        return [checkpointer.save("shared", {"writer": writer, "save": save}).id for save in range(SAVES)]
