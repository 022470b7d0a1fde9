"""Turns a state into a checkpoint that is ready to be written: its header and its bytes."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from operator import index
from typing import Annotated, Any, NamedTuple

import msgspec

from ckpt_observe.core import hooks, steps
from ckpt_observe.core.format import container, digests
from ckpt_observe.core.format.blob import Blob
from ckpt_observe.core.format.names import check_name, check_new_id, new_id
from ckpt_observe.core.model import FORMAT_VERSION, CheckpointInfo, KeyInfo
from ckpt_observe.core.saving.incremental import without_unchanged_keys
from ckpt_observe.core.saving.lineage import Clock, TaskHeads
from ckpt_observe.core.saving.pipeline import Pipeline
from ckpt_observe.core.serializers import Document
from ckpt_observe.core.stores import Store
from ckpt_observe.errors import CheckpointNotFoundError, CompatibilityError, ConfigError, IntegrityError, SerializationError

Step = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
"""A step number. It must fit into 64 bits, as databases require."""


class Staged(NamedTuple):
    """A serialized state that can be saved later. Changes to the live state no longer affect it."""

    document: Document
    format: str
    type: str
    depth: int
    items: int


class UserFields(msgspec.Struct, frozen=True, gc=False):
    """The header fields that the program sets. Validated before a save: a header with other types could not be read again."""

    step: Step | None
    status: str
    metadata: dict[str, Any] | None
    tags: tuple[str, ...]


class Label(NamedTuple):
    """The identity of a new checkpoint, and the fields that the program sets. If `parent` is None, the task's head is the parent."""

    task: str
    id: str
    created: dt.datetime
    fields: UserFields
    parent: CheckpointInfo | None


class Drafter:
    """Prepares checkpoints for writing. `heads` has, for each task, the checkpoint that was saved or loaded last."""

    def __init__(self, store: Store, pipeline: Pipeline, incremental: int) -> None:
        self.heads = TaskHeads()
        self._store = store
        self._pipeline = pipeline
        self._incremental = incremental
        self._clock = Clock()

    def label(
        self,
        task: str,
        id: str | None,
        step: int | None,
        status: str,
        metadata: dict[str, Any] | None = None,
        tags: Sequence[str] = (),
        parent: CheckpointInfo | None = None,
    ) -> Label:
        """Validate the fields, and add the time and, if it is None, the id. SerializationError if a header cannot hold a field."""
        check_name(task, "task")
        if step is not None and type(step) not in (int, bool) and hasattr(step, "__index__"):
            step = index(step)  # such as a NumPy integer
        try:
            fields = msgspec.convert({"step": step, "status": status, "metadata": metadata, "tags": tags}, UserFields)
        except msgspec.ValidationError as error:
            raise SerializationError(f"invalid field: {error}; step must be an int, status and tags strings, metadata a dict") from error
        created = self._clock.now()
        head = self.heads.get(task)
        if head is not None and created <= head.created:  # the system clock was set back, but this checkpoint is still the newer one
            created = self.heads.time_after(head)
        return Label(task, new_id(created) if id is None else check_new_id(id), created, fields, parent)

    def stage(self, state: Any) -> Staged:
        """Serialize a state, and copy parts that still refer to the program's memory. A Staged is returned as it is."""
        if isinstance(state, Staged):
            return state
        staged = self._serialize(state)
        return staged._replace(document=staged.document.snapshot())

    def _serialize(self, state: Any) -> Staged:
        document, depth, items = steps.serialize(self._pipeline.serializer, state)
        return Staged(document, self._pipeline.serializer.name, type(state).__name__, depth, items)

    def draft(self, label: Label, state: Any) -> tuple[CheckpointInfo, Blob]:
        """Return header and bytes of a new checkpoint of a state, which may be Staged."""
        staged = state if isinstance(state, Staged) else self._serialize(state)
        format = self._pipeline.serializer.name
        if staged.format != format:
            raise ConfigError(
                f"this state was staged as {staged.format}, but this Checkpointer saves {format}; stage it with the one that saves it"
            )
        head = self.heads.get(label.task) if label.parent is None else label.parent
        document = self._reduce(label.task, steps.digest(staged.document.with_digests), head) if self._incremental else staged.document
        payload = self._pipeline.pack(document, label.task, label.id)
        return steps.digest(lambda: self._seal(label, staged, head, document, payload))

    def _seal(
        self, label: Label, staged: Staged, head: CheckpointInfo | None, document: Document, payload: Blob
    ) -> tuple[CheckpointInfo, Blob]:
        """Return the header and the bytes of a checkpoint with this payload."""
        digest, keys, hashed = self._digests(document, payload)
        codec, cipher = self._pipeline.codec, self._pipeline.cipher
        info = CheckpointInfo(
            version=FORMAT_VERSION,
            id=label.id,
            task=label.task,
            step=label.fields.step,
            status=label.fields.status,
            created=label.created,
            format=self._pipeline.serializer.name,
            codec=codec.name if codec else "none",
            cipher=cipher.name if cipher else "",
            key_id=cipher.key_id if cipher else "",
            serialized_size=len(document),
            payload_size=len(payload),
            digest=digest,
            state_type=staged.type,
            depth=staged.depth,
            items=staged.items,
            keys=keys,
            bases=tuple(sorted({key.base for key in document.keys.values() if key.base})) if self._incremental else (),
            parent=head.id if head else None,
            parent_task=head.task if head and head.task != label.task else None,
            context=hooks.gather(),
            metadata=label.fields.metadata or {},
            tags=label.fields.tags,
        )
        return info, container.pack(info, payload) if hashed is None else container.pack_large(info, payload, hashed)

    def _digests(self, document: Document, payload: Blob) -> tuple[str, dict[str, KeyInfo], container.ComputeDigests | None]:
        """Return digest and keys for the header, and None.

        For a large payload, both have placeholders, and the third value is a function that computes them while the store writes.
        """
        large = len(payload) >= digests.LARGE
        if large and payload is document and document.has_keyed_digest:
            pending = {name: msgspec.structs.replace(key, digest=key.digest or digests.PENDING) for name, key in document.keys.items()}
            return digests.PENDING_KEYED, pending, document.compute_digests
        keys = _without_digests(document.keys) if self._pipeline.cipher else document.with_digests().keys
        if large:
            return digests.PENDING, keys, lambda: (digests.compute_large(payload), keys)
        return digests.compute(payload), keys, None

    def _reduce(self, task: str, document: Document, head: CheckpointInfo | None) -> Document:
        """Return a document with only the keys that changed since an earlier checkpoint of the task.

        That is `head`, the parent of the new checkpoint, or the newest one if `head` cannot be read. Return the whole document if a
        checkpoint that holds an unchanged key no longer exists.
        """
        # Read from this task: the head of a fork belongs to another task, and may have the same id.
        previous = self._base_info(task, head.id if head else None) or self._base_info(task, steps.find_newest(self._store, task))
        smaller = without_unchanged_keys(self._pipeline.serializer, document, previous, self._incremental)
        bases = {key.base for key in smaller.keys.values() if key.base}
        return smaller if all(self._base_info(task, base) for base in bases) else document

    def _base_info(self, task: str, id: str | None) -> CheckpointInfo | None:
        """Return the header of a checkpoint to build on; None if `id` is None, or it was removed, is damaged or too new to read."""
        try:
            return None if id is None else steps.read_header(self._store, task, id)
        except (CheckpointNotFoundError, IntegrityError, CompatibilityError):
            return None


def _without_digests(keys: dict[str, KeyInfo]) -> dict[str, KeyInfo]:
    return {name: KeyInfo(key.type, key.size) for name, key in keys.items()}
