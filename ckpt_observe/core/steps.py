"""The steps of a save and of a load, one function each.

They are always called through this module, whatever serializer, codec or store is used. To time, log or trace the steps, replace these
functions. A step that does not apply (no codec, no cipher) is not called.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import Any, TypeVar

from ckpt_observe.core.ciphers import Cipher
from ckpt_observe.core.codecs import Codec, compress_document
from ckpt_observe.core.format import container, digests, state_summary
from ckpt_observe.core.format.blob import Blob, Buffer, DeferredHeadBlob
from ckpt_observe.core.model import CheckpointInfo, CheckpointInfos
from ckpt_observe.core.query import Query
from ckpt_observe.core.serializers import Document, Serializer
from ckpt_observe.core.serializers.concurrent_change import concurrent_change_error
from ckpt_observe.core.stores import Store
from ckpt_observe.errors import CapacityError, CheckpointNotFoundError, ConfigError, IntegrityError

T = TypeVar("T")

READ_BACK = 1024 * 1024
"""Bytes. Checkpoints up to this size are read back after the write; for larger ones only the size is compared."""


def _out_of_memory(action: str) -> CapacityError:
    return CapacityError(f"not enough memory to {action}; free some, or raise the limit of this process", code="memory.exhausted")


def serialize(serializer: Serializer, state: Any) -> tuple[Document, int, int]:
    """Return the serialized state, its depth and its number of values."""
    try:
        return serializer.dumps(state), *state_summary.measure(state)
    except MemoryError as error:
        raise _out_of_memory("serialize the state") from error


def compress(codec: Codec, document: Blob) -> Blob:
    try:
        return compress_document(codec, document)
    except MemoryError as error:
        raise _out_of_memory("compress the state") from error


def encrypt(cipher: Cipher, data: Buffer, binding: bytes) -> bytes:
    return cipher.encrypt(data, binding)


def digest(seal: Callable[[], T]) -> T:
    """Return the result of `seal`, which computes the digests and the header of a new checkpoint."""
    return seal()


def write(store: Store, info: CheckpointInfo, blob: Blob) -> None:
    store.put(info, blob)


def write_many(store: Store, batch: Sequence[tuple[CheckpointInfo, Blob]]) -> None:
    store.put_many(batch)


def confirm(store: Store, info: CheckpointInfo, blob: Blob) -> None:
    """Check after a write that the store returns what was written; over READ_BACK bytes, only the size.

    If not, move the checkpoint aside so that it is never loaded, and raise IntegrityError. If the program has changed arrays of the state
    since they were hashed, remove the checkpoint and raise SerializationError.
    """
    try:
        matches = _matches(store, info, blob)
        if blob.is_live and _has_changed(info, blob):
            store.delete(info.task, info.id)
            raise concurrent_change_error(f"checkpoint {info.id!r} of {info.task!r} was removed")
    except CheckpointNotFoundError:
        if _is_outdated(store, info):
            return  # removed by the retention of another program
        raise
    if not matches:
        store.quarantine(info.task, info.id)
        message = f"{store.location} returns other bytes than were written for checkpoint {info.id!r} of {info.task!r}"
        raise IntegrityError(f"{message}; the checkpoint was moved aside. Check the storage device")


def retain(apply_policy: Callable[[CheckpointInfo], None], saved: CheckpointInfo) -> None:
    """Apply the retention policy after a save."""
    apply_policy(saved)


def remove(delete: Callable[[], T]) -> T:
    """Return the result of `delete`, which removes checkpoints from a store."""
    return delete()


def _matches(store: Store, info: CheckpointInfo, blob: Blob) -> bool:
    if len(blob) <= READ_BACK:
        return bytes(store.get(info.task, info.id)) == bytes(blob)
    return store.size(info.task, info.id) == len(blob)


def _has_changed(info: CheckpointInfo, blob: Blob) -> bool:
    """Return whether the memory of the blob differs from what was hashed for the header."""
    if isinstance(blob, DeferredHeadBlob) and blob.later_digest is not None:
        return blob.later_digest.result() != info.digest
    return digests.find_damage(info, blob.pieces[1:]) is not None


def _is_outdated(store: Store, info: CheckpointInfo) -> bool:
    """Return whether the task has a newer checkpoint."""
    return any(other.created > info.created for other in store.list(info.task))  # one listing: checkpoints may be removed between two


def find_newest(store: Store, task: str) -> str | None:
    return store.newest(task)


def list_task(store: Store, task: str) -> CheckpointInfos:
    return store.list(task)


def find(store: Store, query: Query) -> CheckpointInfos:
    return store.find(query)


def list_ids(store: Store, task: str) -> tuple[str, ...]:
    """Return the ids of a task, newest first. Those with an unreadable header come first: their time is unknown, so they may be newer."""
    listed = [info.id for info in store.list(task)]
    return (*sorted(set(store.ids(task)).difference(listed), reverse=True), *listed)


def list_names(store: Store, tasks: Sequence[str] | None) -> list[tuple[str, str]]:
    """Return task and id of all checkpoints of these tasks, or of all tasks, damaged or not."""
    return [(task, id) for task in (store.tasks() if tasks is None else tasks) for id in store.ids(task)]


def read_header(store: Store, task: str, id: str) -> CheckpointInfo:
    """Return the header of a checkpoint. IntegrityError if it is damaged, or if the store has another checkpoint under this id."""
    return _check_identity(store.info(task, id), task, id)


def read(store: Store, task: str, id: str) -> Buffer:
    return store.get(task, id)


def read_part(store: Store, info: CheckpointInfo, start: int, size: int) -> Buffer:
    """Read `size` bytes of the payload from offset `start`, without a check."""
    return store.get_range(info.task, info.id, info.header_size + start, size)


def validate(stored: Buffer, task: str, id: str) -> tuple[CheckpointInfo, Buffer]:
    """Return header and payload of a stored checkpoint, before anything interprets it.

    IntegrityError if either is damaged, or if the store has another checkpoint under this id.
    """
    info, payload = container.split(stored)
    if (damage := digests.find_damage(_check_identity(info, task, id), (payload,))) is not None:
        raise IntegrityError(damage)
    return info, payload


def validate_key(digest: str, data: Buffer) -> bool:
    """Return whether the bytes of one key have this digest."""
    return digests.matches_key(digest, data)


def _check_identity(info: CheckpointInfo, task: str, id: str) -> CheckpointInfo:
    if info.task != task or info.id != id:
        message = f"its place in the store has checkpoint {info.id!r} of {info.task!r}; was a file renamed or copied?"
        raise IntegrityError(message, code="integrity.malformed")
    return info


def decrypt(cipher: Cipher, data: Buffer, binding: bytes, key_id: str) -> bytes:
    return cipher.decrypt(data, binding, key_id)


def decompress(codec: Codec, data: Buffer, size: int) -> Buffer:
    try:
        return codec.decompress(data, size)
    except MemoryError as error:
        raise _out_of_memory(f"decompress {size} bytes") from error


def deserialize(serializer: Serializer, data: Buffer) -> Any:
    try:
        return serializer.loads(data)
    except MemoryError as error:
        raise _out_of_memory(f"load a state of {len(data)} bytes") from error


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
