"""Incremental checkpoints: a key whose bytes have not changed is not written again; the header refers to the earlier one that has it.

Each key refers directly to the checkpoint that holds it, its base, so there is no chain to follow: a state is read from its own checkpoint
and at most as many others as `incremental` of the Checkpointer allows. A reference includes the expected digest, so a missing or altered
base is an error, never a different state.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from ckpt_observe.core.format.digests import SHORT_KEY_SIZE
from ckpt_observe.core.model import CheckpointInfo, KeyInfo
from ckpt_observe.core.serializers import Document, KeyedSerializer, Serializer
from ckpt_observe.errors import IntegrityError

MIN_SIZE = SHORT_KEY_SIZE
"""Bytes. Values up to this size are always written, because a reference would not be shorter, and their digests are short."""


def without_unchanged_keys(serializer: Serializer, document: Document, previous: CheckpointInfo | None, limit: int) -> Document:
    """Return the document without the keys that have the same bytes in `previous`.

    Return the whole document if the result would have more than `limit` bases, or if the two cannot be compared (format, encryption).
    """
    if previous is None or previous.format != serializer.name or previous.cipher or not document.members:
        return document
    keys = {key: _with_base(info, previous.keys.get(key), previous.id) for key, info in document.keys.items()}
    bases = {info.base for info in keys.values() if info.base}
    if not 0 < len(bases) <= limit or not isinstance(serializer, KeyedSerializer):
        return document
    new_values = {key: value for key, value in document.members.items() if not keys[key].base}
    return Document(serializer.join(new_values), keys, new_values)


def merge_bases(info: CheckpointInfo, values: dict[str, Any], bases: Mapping[str, tuple[CheckpointInfo, dict[str, Any]]]) -> dict[str, Any]:
    """Return the whole state from the values of a checkpoint and of its bases, with the keys in saved order. `bases` is by id."""
    try:
        return {
            key: values[key] if not entry.base else _from_base(info, key, entry, *bases[entry.base]) for key, entry in info.keys.items()
        }
    except (LookupError, TypeError) as error:  # a header that we did not write
        message = f"checkpoint {info.id!r} of {info.task!r} lacks keys that its header lists"
        raise IntegrityError(message, code="integrity.malformed") from error


def _with_base(entry: KeyInfo, previous: KeyInfo | None, id: str) -> KeyInfo:
    if previous is None or previous.digest != entry.digest or previous.size != entry.size or entry.size <= MIN_SIZE:
        return entry
    return msgspec.structs.replace(entry, base=previous.base or id)


def _from_base(info: CheckpointInfo, key: str, entry: KeyInfo, base: CheckpointInfo, base_values: dict[str, Any]) -> Any:
    base_entry = base.keys.get(key)
    if base_entry is None or base_entry.digest != entry.digest or key not in base_values:
        message = f"checkpoint {info.id!r} of {info.task!r} takes the key {key!r} from {entry.base!r}, which has another value for it"
        raise IntegrityError(message, code="integrity.broken_base")
    return base_values[key]
