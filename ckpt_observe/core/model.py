"""What is known about a checkpoint: the header of its file, as values."""

from __future__ import annotations

import datetime as dt
from typing import Annotated, Any, Generic, TypeVar

import msgspec

from ckpt_observe.core.format.state_summary import has_saved_type

FORMAT_VERSION = 1

Size = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
"""In bytes. A header is read from a file that anybody may have made: a negative size would bound nothing."""
Time = Annotated[dt.datetime, msgspec.Meta(tz=True)]
"""With its zone: one without could not be put in order with the others."""


class KeyInfo(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One top-level key of a state."""

    type: str
    size: Size
    """Bytes of its serialized value."""
    digest: str = ""
    """Of its serialized value; empty in an encrypted checkpoint, where it would tell whether a value was guessed right."""
    base: str = ""
    """The earlier checkpoint that holds the value, where it has not changed since; empty where this one does."""


class CheckpointInfo(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Everything about a checkpoint except its state. Its JSON form is the first line of a stored checkpoint."""

    version: int = msgspec.field(name="checkpoint")
    """Of the format. Stands first, so that any version can be told from the start of the line."""
    id: str
    task: str
    step: int | None = None
    status: str
    created: Time
    format: str
    codec: str = "none"
    cipher: str = ""
    """How the payload is encrypted; empty where it is not."""
    key_id: str = ""
    """Which key opens it, where the program names its keys."""
    serialized_size: Size
    """Bytes of the serialized state."""
    payload_size: Size
    """Bytes after compression and encryption: what follows the header line."""
    digest: str
    """Of the payload, `algorithm:hex`."""
    state_type: str
    depth: int = 0
    items: int = 0
    """Nesting and number of values of the state, counted up to a limit; see `core.format.state_summary`."""
    keys: dict[str, KeyInfo] = {}
    """Top-level keys, when the state is a mapping with string keys."""
    bases: tuple[str, ...] = ()
    """The earlier checkpoints that hold part of this one's state."""
    parent: str | None = None
    """The checkpoint that this one follows."""
    parent_task: str | None = None
    """The task of that checkpoint, where this one began a fork of it."""
    tags: tuple[str, ...] = ()
    timings: dict[str, float] = {}
    """Seconds that making it took, as far as they were known when the header was written: `serialize`, `pack`."""
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
    """Newer checkpoints that were damaged and passed over, newest first; also any whose header does not read: it may be newer."""

    @property
    def altered(self) -> tuple[str, ...]:
        """Top-level keys that came back other than they were saved: not at all, or as another type."""
        return tuple(key for key, saved in self.info.keys.items() if not has_saved_type(saved.type, self.state, key))

    @property
    def next_step(self) -> int | None:
        """Where to go on: the step after the saved one."""
        return None if self.info.step is None else self.info.step + 1
