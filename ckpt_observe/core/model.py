"""What is known about a checkpoint: the header of its file, as values."""

from __future__ import annotations

import datetime as dt
from typing import Any, Generic, TypeVar

import msgspec

FORMAT_VERSION = 1


class KeyInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    """One top-level key of a state."""

    type: str
    size: int
    """Bytes of its serialized value."""
    digest: str = ""
    """Of its serialized value; empty where the value is shorter than its digest would be."""


class CheckpointInfo(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Everything about a checkpoint except its state. Its JSON form is the first line of a stored checkpoint."""

    version: int = msgspec.field(name="checkpoint")
    """Of the format. Stands first, so that any version can be told from the start of the line."""
    id: str
    task: str
    step: int | None = None
    status: str
    created: dt.datetime
    format: str
    codec: str = "none"
    serialized_size: int
    """Bytes of the serialized state."""
    payload_size: int
    """Bytes after compression and encryption: what follows the header line."""
    digest: str
    """Of the payload, `algorithm:hex`."""
    state_type: str
    keys: dict[str, KeyInfo] = {}
    """Top-level keys, when the state is a mapping with string keys."""
    parent: str | None = None
    """The checkpoint that this one follows, in the same run or where a fork began."""
    context: dict[str, str] = {}
    """Surroundings of the save, from `core.context`."""
    metadata: dict[str, Any] = {}
    """What the program says about it: parameters, metrics, reasons."""
    header_size: int = 0
    """Length of the header line; known once it is written or read, and so never inside it."""

    @property
    def stored_size(self) -> int:
        """Bytes in the store, header included."""
        return self.header_size + self.payload_size


CheckpointInfos = list[CheckpointInfo]

State = TypeVar("State")


class Restored(msgspec.Struct, Generic[State], frozen=True):
    """A run put back to where a checkpoint left it."""

    state: State
    info: CheckpointInfo
    skipped: tuple[str, ...] = ()
    """Newer checkpoints that were damaged and passed over, newest first."""

    @property
    def next_step(self) -> int | None:
        """Where to go on: the step after the saved one."""
        return None if self.info.step is None else self.info.step + 1
