"""A checkpoint before it is written: its header and its bytes, made from a state."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from operator import index
from time import perf_counter
from typing import Annotated, Any, NamedTuple

import msgspec

from ckpt_observe.core import hooks, steps
from ckpt_observe.core.format import container, digests, state_summary
from ckpt_observe.core.format.blob import Blob
from ckpt_observe.core.format.names import check_name, check_new_id
from ckpt_observe.core.model import FORMAT_VERSION, CheckpointInfo, KeyInfo
from ckpt_observe.core.saving.incremental import reduced
from ckpt_observe.core.saving.lineage import Clock, Heads, new_id
from ckpt_observe.core.saving.pipeline import Pipeline
from ckpt_observe.core.serializers import Document
from ckpt_observe.core.stores import Store
from ckpt_observe.errors import CheckpointNotFoundError, CompatibilityError, ConfigError, IntegrityError, SerializationError

Step = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
"""As large as databases take it."""


class Staged(NamedTuple):
    """A state that was serialized and can be saved later: changes made to the live one since do not reach it."""

    document: Document
    format: str
    type: str
    depth: int
    items: int
    seconds: float
    """How long serializing took."""


class Said(msgspec.Struct, frozen=True, gc=False):
    """What the program says of a checkpoint, of the types that its header is read with: another would be written, and never read again."""

    step: Step | None
    status: str
    metadata: dict[str, Any] | None
    tags: tuple[str, ...]


class Label(NamedTuple):
    """What a save says about its checkpoint."""

    task: str
    id: str
    created: dt.datetime
    said: Said
    parent: CheckpointInfo | None


class Drafter:
    """Makes checkpoints ready to be written."""

    def __init__(self, store: Store, pipeline: Pipeline, incremental: int) -> None:
        self.heads = Heads()
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
        """What was said, with time and id, if it can be."""
        check_name(task, "task")
        if step is not None and type(step) not in (int, bool) and hasattr(step, "__index__"):
            step = index(step)  # of numpy, say
        try:
            said = msgspec.convert({"step": step, "status": status, "metadata": metadata, "tags": tags}, Said)
        except msgspec.ValidationError as error:
            raise SerializationError(f"this cannot stand in the header of a checkpoint: {error}") from error
        created = self._clock.now()
        head = self.heads.get(task)
        if head is not None and created <= head.created:  # the machine's clock was set back: what follows is newer all the same
            created = self.heads.after(head)
        return Label(task, new_id(created) if id is None else check_new_id(id), created, said, parent)

    def stage(self, state: Any) -> Staged:
        """The state frozen: what is still the program's own memory is copied."""
        if isinstance(state, Staged):
            return state
        staged = self._staged(state)
        return staged._replace(document=staged.document.snapshot())

    def _staged(self, state: Any) -> Staged:
        start = perf_counter()
        document = steps.serialize(self._pipeline.serializer, state)
        return Staged(document, self._pipeline.serializer.name, type(state).__name__, *state_summary.measure(state), perf_counter() - start)

    def draft(self, label: Label, state: Any) -> tuple[CheckpointInfo, Blob]:
        """Header and bytes of a new checkpoint."""
        staged = state if isinstance(state, Staged) else self._staged(state)
        format = self._pipeline.serializer.name
        if staged.format != format:
            raise ConfigError(f"this state was staged as {staged.format}, and is to be saved as {format}: stage it anew")
        task, id = label.task, label.id
        head = self.heads.get(task) if label.parent is None else label.parent
        start = perf_counter()
        document = self._reduced(task, staged.document.with_digests(), head) if self._incremental else staged.document
        payload = self._pipeline.pack(document, task, id)
        digest, keys, hashed = self._digests(document, payload)
        timings = {"serialize": round(staged.seconds, 6), "pack": round(perf_counter() - start, 6)}
        codec, cipher = self._pipeline.codec, self._pipeline.cipher
        info = CheckpointInfo(
            version=FORMAT_VERSION,
            id=id,
            task=task,
            step=label.said.step,
            status=label.said.status,
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
            parent_task=head.task if head and head.task != task else None,
            timings=timings,
            context=hooks.gather(),
            metadata=label.said.metadata or {},
            tags=label.said.tags,
        )
        return info, container.pack(info, payload) if hashed is None else container.pack_large(info, payload, hashed)

    def _digests(self, document: Document, payload: Blob) -> tuple[str, dict[str, KeyInfo], container.ComputeDigests | None]:
        """Digest and keys for the header, and what finds them if that is left to when a store writes."""
        large = len(payload) >= digests.LARGE
        if large and payload is document and document.has_keyed_digest:
            unknown = {name: msgspec.structs.replace(key, digest=key.digest or digests.PENDING) for name, key in document.keys.items()}
            return digests.PENDING_KEYED, unknown, document.compute_digests
        keys = _without_digests(document.keys) if self._pipeline.cipher else document.with_digests().keys
        if large:
            return digests.PENDING, keys, lambda: (digests.compute_large(payload), keys)
        return digests.compute(payload), keys, None

    def _reduced(self, task: str, document: Document, head: CheckpointInfo | None) -> Document:
        """What is new since the head, or the newest there is; all of it where a base would not be there."""
        kept = self._kept(task, head.id if head else None)  # as this task has it: a fork's head is of another, and may have the same id
        previous = kept or self._kept(task, self._store.newest(task))
        smaller = reduced(self._pipeline.serializer, document, previous, self._incremental)
        bases = {key.base for key in smaller.keys.values() if key.base}
        return smaller if all(self._kept(task, base) for base in bases) else document

    def _kept(self, task: str, id: str | None) -> CheckpointInfo | None:
        """The header of a checkpoint to build on; none of one that was removed, is damaged, or of a version to come."""
        try:
            return None if id is None else self._store.info(task, id)
        except (CheckpointNotFoundError, IntegrityError, CompatibilityError):
            return None


def _without_digests(keys: dict[str, KeyInfo]) -> dict[str, KeyInfo]:
    return {name: KeyInfo(key.type, key.size) for name, key in keys.items()}
