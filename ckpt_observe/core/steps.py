"""The steps of a save and of a load, one function each.

They are always called through this module, whatever serializer, codec or store is used. To time, log or trace the steps, replace these
functions. A step that does not apply (no codec, no cipher) is not called.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any

from ckpt_observe.core.ciphers import Cipher
from ckpt_observe.core.codecs import Codec, compress_document
from ckpt_observe.core.format import digests
from ckpt_observe.core.format.blob import Blob, Buffer
from ckpt_observe.core.model import CheckpointInfo
from ckpt_observe.core.serializers import Document, Serializer
from ckpt_observe.core.stores import Store
from ckpt_observe.errors import CapacityError, CheckpointNotFoundError, ConfigError, IntegrityError

READ_BACK = 1024 * 1024
"""Bytes. Checkpoints up to this size are read back after the write; for larger ones only the size is compared."""


_NOT_SAVED = "this checkpoint was not saved; the one before it is intact"
_NOT_LOADED = "nothing was loaded; the checkpoint is intact"


def _out_of_memory(action: str, impact: str) -> CapacityError:
    error = CapacityError(f"not enough memory to {action}; free some, or raise the limit of this process", code="memory.exhausted")
    error.impact = impact
    return error


def serialize(serializer: Serializer, state: Any) -> Document:
    try:
        return serializer.dumps(state)
    except MemoryError as error:
        raise _out_of_memory("serialize the state", _NOT_SAVED) from error


def compress(codec: Codec, document: Blob) -> Blob:
    try:
        return compress_document(codec, document)
    except MemoryError as error:
        raise _out_of_memory("compress the state", _NOT_SAVED) from error


def encrypt(cipher: Cipher, data: Buffer, binding: bytes) -> bytes:
    return cipher.encrypt(data, binding)


def write(store: Store, info: CheckpointInfo, blob: Blob) -> None:
    store.put(info, blob)


def write_many(store: Store, batch: Sequence[tuple[CheckpointInfo, Blob]]) -> None:
    store.put_many(batch)


def confirm(store: Store, info: CheckpointInfo, blob: Blob) -> None:
    """Check after a write that the store returns what was written; over READ_BACK bytes, only the size.

    If not, move the checkpoint aside so that it is never loaded, and raise IntegrityError.
    """
    try:
        matches = _matches(store, info, blob)
    except CheckpointNotFoundError:
        if _is_outdated(store, info):
            return  # removed by the retention of another program
        raise
    if not matches:
        store.quarantine(info.task, info.id)
        message = f"{store.location} returns other bytes than were written for checkpoint {info.id!r} of {info.task!r}"
        raise IntegrityError(f"{message}; the checkpoint was moved aside. Check the storage device")


def _matches(store: Store, info: CheckpointInfo, blob: Blob) -> bool:
    if len(blob) <= READ_BACK:
        return bytes(store.get(info.task, info.id)) == bytes(blob)
    return store.size(info.task, info.id) == len(blob)


def _is_outdated(store: Store, info: CheckpointInfo) -> bool:
    """Return whether the task has a newer checkpoint."""
    return any(other.created > info.created for other in store.list(info.task))  # one listing: checkpoints may be removed between two


def read(store: Store, task: str, id: str) -> Buffer:
    return store.get(task, id)


def read_part(store: Store, info: CheckpointInfo, start: int, size: int) -> Buffer:
    """Read `size` bytes of the payload from offset `start`, without a check."""
    return store.get_range(info.task, info.id, info.header_size + start, size)


def validate(info: CheckpointInfo, payload: Buffer) -> None:
    """Check the payload against its header before anything interprets it. IntegrityError if it is damaged."""
    if (damage := digests.find_damage(info, payload)) is not None:
        raise IntegrityError(f"checkpoint {info.id!r} of {info.task!r} is damaged: {damage}")


def decrypt(cipher: Cipher, data: Buffer, binding: bytes, key_id: str) -> bytes:
    return cipher.decrypt(data, binding, key_id)


def decompress(codec: Codec, data: Buffer, size: int) -> Buffer:
    try:
        return codec.decompress(data, size)
    except MemoryError as error:
        raise _out_of_memory(f"decompress {size} bytes", _NOT_LOADED) from error


def deserialize(serializer: Serializer, data: Buffer) -> Any:
    try:
        return serializer.loads(data)
    except MemoryError as error:
        raise _out_of_memory(f"load a state of {len(data)} bytes", _NOT_LOADED) from error


def apply(target: Any, state: Any) -> None:
    """Put the state into the running program: replace the content of a mapping, call `load_state_dict`, or call a function."""
    if isinstance(target, MutableMapping):
        if not isinstance(state, Mapping):  # checked before the target is cleared
            raise ConfigError(f"cannot restore a {type(state).__name__} into a mapping; pass a function as `into` instead")
        target.clear()
        target.update(state)
    elif hasattr(target, "load_state_dict"):
        target.load_state_dict(state)
    elif callable(target):
        target(state)
    else:
        raise ConfigError(f"`into` must be a mapping, an object with load_state_dict, or a function, not {type(target).__name__}")
