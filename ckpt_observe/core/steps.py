"""The steps of a save and of a load, one function each, bytes in and bytes out.

They are always called through this module, whatever serializer, codec or store is plugged in: so who wants to time, log or
trace them replaces the functions here and sees every one. A step with nothing to do (no codec, no cipher) is not called.
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
from ckpt_observe.errors import CheckpointNotFoundError, ConfigError, IntegrityError

READ_BACK = 1024 * 1024
"""A checkpoint up to this size is read back after it was written; of a larger one the size is asked."""


def serialize(serializer: Serializer, state: Any) -> Document:
    return serializer.dumps(state)


def compress(codec: Codec, document: Blob) -> Blob:
    return compress_document(codec, document)


def encrypt(cipher: Cipher, data: Buffer, binding: bytes) -> bytes:
    return cipher.encrypt(data, binding)


def write(store: Store, info: CheckpointInfo, blob: Blob) -> None:
    store.put(info, blob)


def write_many(store: Store, batch: Sequence[tuple[CheckpointInfo, Blob]]) -> None:
    store.put_many(batch)


def confirm(store: Store, info: CheckpointInfo, blob: Blob) -> None:
    """The check after a write: what the store gives back is what it was given. If not, it is taken out again: nobody shall load it."""
    try:
        same = _is_kept(store, info, blob)
    except CheckpointNotFoundError:
        if _is_outdated(store, info):
            return  # another program's retention has removed it already
        raise
    if not same:
        store.quarantine(info.task, info.id)
        raise IntegrityError(f"checkpoint {info.id!r} of {info.task!r} was written, but {store.location} gives back something else")


def _is_kept(store: Store, info: CheckpointInfo, blob: Blob) -> bool:
    if len(blob) <= READ_BACK:
        return bytes(store.get(info.task, info.id)) == bytes(blob)
    return store.size(info.task, info.id) == len(blob)


def _is_outdated(store: Store, info: CheckpointInfo) -> bool:
    """Whether the task has a newer checkpoint than this one."""
    return any(other.created > info.created for other in store.list(info.task))  # of one listing: any of them may be removed meanwhile


def read(store: Store, task: str, id: str) -> Buffer:
    return store.get(task, id)


def read_part(store: Store, info: CheckpointInfo, start: int, size: int) -> Buffer:
    """Part of the payload."""
    return store.get_range(info.task, info.id, info.header_size + start, size)


def validate(info: CheckpointInfo, payload: Buffer) -> None:
    """The check after a read, before anything looks into the payload."""
    if (damage := digests.find_damage(info, payload)) is not None:
        raise IntegrityError(f"checkpoint {info.id!r} of {info.task!r} is damaged: {damage}")


def decrypt(cipher: Cipher, data: Buffer, binding: bytes, key_id: str) -> bytes:
    return cipher.decrypt(data, binding, key_id)


def decompress(codec: Codec, data: Buffer, size: int) -> Buffer:
    return codec.decompress(data, size)


def deserialize(serializer: Serializer, data: Buffer) -> Any:
    return serializer.loads(data)


def apply(target: Any, state: Any) -> None:
    """Put the state into the running program: a mapping takes its items, an object its `load_state_dict`, a function is called."""
    if isinstance(target, MutableMapping):
        if not isinstance(state, Mapping):  # asked before anything is taken out of the target
            raise ConfigError(f"a state that is a {type(state).__name__} does not go into a mapping")
        target.clear()
        target.update(state)
    elif hasattr(target, "load_state_dict"):
        target.load_state_dict(state)
    elif callable(target):
        target(state)
    else:
        raise ConfigError(f"a state goes into a mapping, an object with load_state_dict, or a function, not into {type(target).__name__}")
