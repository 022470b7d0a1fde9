"""The header of a checkpoint as values."""

from __future__ import annotations

import datetime as dt
from typing import Annotated, Any, Generic, TypeVar

import msgspec

from ckpt_observe.core.format.state_summary import has_saved_type

FORMAT_VERSION = 1

Size = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
"""Bytes. Validated because a header is untrusted input: a negative size would disable limits."""
Time = Annotated[dt.datetime, msgspec.Meta(tz=True)]
"""With a time zone, so that times can be compared."""


class KeyInfo(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One top-level key of a state."""

    type: str
    size: Size
    """Bytes of the serialized value."""
    digest: str = ""
    """Digest of the serialized value. Empty in an encrypted checkpoint, where it would confirm a guessed value."""
    base: str = ""
    """The earlier checkpoint that holds the unchanged value; empty if this checkpoint holds it."""


class CheckpointInfo(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """All of a checkpoint except its state. Its JSON form is the first line of a stored checkpoint."""

    version: int = msgspec.field(name="checkpoint")
    """Format version. It is the first field, so that every version can be recognized from the start of the line."""
    id: str
    task: str
    step: int | None = None
    status: str
    created: Time
    format: str
    codec: str = "none"
    cipher: str = ""
    """Name of the cipher; empty if the payload is not encrypted."""
    key_id: str = ""
    """Which key decrypts it, if the program names its keys."""
    serialized_size: Size
    """Bytes of the serialized state."""
    payload_size: Size
    """Bytes after the header line, that is, after compression and encryption."""
    digest: str
    """Digest of the payload, as `algorithm:hex`."""
    state_type: str
    depth: int = 0
    items: int = 0
    """Nesting depth and number of values of the state, up to a limit; see `core.format.state_summary`."""
    keys: dict[str, KeyInfo] = {}
    """Top-level keys, if the state is a mapping with string keys."""
    bases: tuple[str, ...] = ()
    """The earlier checkpoints that hold part of this state."""
    parent: str | None = None
    """Id of the preceding checkpoint."""
    parent_task: str | None = None
    """Task of the parent, if this checkpoint started a fork."""
    tags: tuple[str, ...] = ()
    timings: dict[str, float] = {}
    """Seconds spent before the header was written: `serialize`, `pack`."""
    context: dict[str, str] = {}
    """What the context providers returned; see `core.hooks`."""
    metadata: dict[str, Any] = {}
    """Set by the program: parameters, metrics, reasons."""
    header_size: int = 0
    """Length of the header line. Not stored; set when the header is written or read."""

    @property
    def stored_size(self) -> int:
        """Bytes in the store, including the header."""
        return self.header_size + self.payload_size


CheckpointInfos = list[CheckpointInfo]

State = TypeVar("State")


class Restored(msgspec.Struct, Generic[State], frozen=True):
    """A loaded checkpoint."""

    state: State
    info: CheckpointInfo
    skipped: tuple[str, ...] = ()
    """Damaged checkpoints that were skipped, newest first. Includes those with an unreadable header, which may be newer."""

    @property
    def altered(self) -> tuple[str, ...]:
        """Top-level keys that are missing or have another type than was saved."""
        return tuple(key for key, entry in self.info.keys.items() if not has_saved_type(entry.type, self.state, key))

    @property
    def next_step(self) -> int | None:
        """The step after the saved one, from which to continue."""
        return None if self.info.step is None else self.info.step + 1
