"""What a store's test class provides to `StoreContract`, and the function that the contract's writer processes run.

This module does not import pytest, because the writer processes import it.
"""

from __future__ import annotations

from ckpt_observe.core.checkpointer import Checkpointer
from ckpt_observe.core.stores import Store

SAVES_PER_PROCESS = 5


class StoreHarness:
    """Access to a store's medium without the store. Test classes override these methods."""

    def raw_read(self, store: Store, task: str, id: str) -> bytes:
        """Return the bytes of a checkpoint as they are in the medium."""
        raise NotImplementedError

    def raw_write(self, store: Store, task: str, id: str, data: bytes) -> None:
        """Replace the bytes of an existing checkpoint in the medium."""
        raise NotImplementedError

    def another(self, store: Store) -> Store:
        """Open the same medium again, as another process would."""
        raise NotImplementedError

    def url(self, store: Store) -> str:
        """Return the URL with which another process opens the medium. Override it if `location` lacks something, such as credentials."""
        return store.location


def save_several(url: str, writer: int) -> list[str]:
    """Save some checkpoints of a task that other processes write to as well. Return their ids."""
    with Checkpointer(url) as checkpointer:
        return [checkpointer.save("shared", {"writer": writer, "save": save}).id for save in range(SAVES_PER_PROCESS)]
