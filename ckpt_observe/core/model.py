"""The header of a checkpoint and the result of a load, as Python objects."""

from __future__ import annotations

import datetime as dt
from typing import Annotated, Any, Generic, TypeVar

import msgspec

from ckpt_observe.core.format.state_summary import has_saved_type

FORMAT_VERSION = 2

MAX_SIZE = 2**62
Size = Annotated[int, msgspec.Meta(ge=0, le=MAX_SIZE)]
"""A number of bytes. Validated because a header is untrusted input: a negative size would disable limits."""
Name = Annotated[str, msgspec.Meta(min_length=1)]
"""The name of a task or checkpoint. An empty one has no file name."""
Time = Annotated[dt.datetime, msgspec.Meta(tz=True)]
"""A datetime with a time zone, so that any two can be compared."""


class KeyInfo(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """What a header says about one top-level key of the state."""

    type: str
    size: Size
    """Bytes of the serialized value."""
    digest: str = ""
    """Digest of the serialized value. Empty in an encrypted checkpoint, where it would confirm a guessed value."""
    base: str = ""
    """Id of the earlier checkpoint that holds the unchanged value (incremental saves); empty if this checkpoint holds the value."""


class CheckpointInfo(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The header of a checkpoint: everything except the state. `core.format.header` writes it as the first line of a stored checkpoint."""

    version: int = msgspec.field(name="checkpoint")
    """Format version, stored as `checkpoint`. It is the first field of a header, so that every version can be recognized by its start."""
    id: Name
    task: Name
    step: int | None = None
    status: str
    created: Time
    format: str
    codec: str = "none"
    cipher: str = ""
    """Name of the cipher; empty if the payload is not encrypted."""
    key_id: str = ""
    """Name of the key that decrypts the payload; empty if the program does not name its keys."""
    serialized_size: Size
    """Bytes of the serialized state before compression; without the keys that other checkpoints hold (`bases`)."""
    payload_size: Size
    """Bytes of the payload, which follows the header line: the serialized state after compression and encryption."""
    digest: str
    """Digest of the payload, as `algorithm:hex`."""
    state_type: str
    depth: int = 0
    items: int = 0
    """`depth` and `items`: nesting depth and number of values. Lower bounds for a large state; see `core.format.state_summary`."""
    keys: dict[str, KeyInfo] = {}
    """Top-level keys of the state. Empty for a pickle, more than 10,000 keys, or a state that is not a dict with string keys."""
    bases: tuple[Name, ...] = ()
    """Ids of the earlier checkpoints that hold unchanged keys of this state (incremental saves)."""
    parent: Name | None = None
    """Id of the checkpoint that the Checkpointer saved or loaded before this one, or that the program passed as `parent`; None if none."""
    parent_task: Name | None = None
    """Task of the parent if that is another task, as after `fork`; otherwise None."""
    tags: tuple[str, ...] = ()
    context: dict[str, str] = {}
    """Strings that the context providers returned; see `core.hooks`."""
    metadata: dict[str, Any] = {}
    """Set by the program: parameters, metrics, reasons."""
    header_size: int = 0
    """Length of the header line in bytes. Not stored; set when the header is written or read."""

    @property
    def stored_size(self) -> int:
        """Bytes in the store, including the header."""
        return self.header_size + self.payload_size


CheckpointInfos = list[CheckpointInfo]

State = TypeVar("State")


class Restored(msgspec.Struct, Generic[State], frozen=True):
    """A loaded checkpoint: its state and its header."""

    state: State
    info: CheckpointInfo
    skipped: tuple[str, ...] = ()
    """Ids of the damaged checkpoints skipped before this one (`fallback` only). If a header is unreadable, it may also be an older one."""

    @property
    def altered(self) -> tuple[str, ...]:
        """Top-level keys that the loaded state lacks, or whose values have another type than when they were saved."""
        return tuple(key for key, entry in self.info.keys.items() if not has_saved_type(entry.type, self.state, key))

    @property
    def next_step(self) -> int | None:
        """The step after the saved one, from which to continue; None if the checkpoint has no step."""
        return None if self.info.step is None else self.info.step + 1
