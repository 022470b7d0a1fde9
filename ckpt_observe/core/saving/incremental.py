"""Incremental checkpoints: a key whose bytes have not changed is not written again, but pointed to.

Each key points straight to the checkpoint that holds it, so there is no chain to walk: a state comes from its own
checkpoint and at most `limit` earlier ones. A pointer carries the digest it expects, so a base that is gone or altered is
an error and never another state.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from ckpt_observe.core.model import CheckpointInfo, KeyInfo
from ckpt_observe.core.serializers import Document, KeyedSerializer, Serializer
from ckpt_observe.errors import IntegrityError

SMALLEST = 64
"""Bytes up to which a pointer is no shorter than the value."""


def reduced(serializer: Serializer, document: Document, previous: CheckpointInfo | None, limit: int) -> Document:
    """The document without what `previous` already has; the whole one where that cannot be or would need too many bases."""
    if previous is None or previous.format != serializer.name or previous.cipher or not document.members:
        return document
    keys = {key: _pointed(info, previous.keys.get(key), previous.id) for key, info in document.keys.items()}
    bases = {info.base for info in keys.values() if info.base}
    if not 0 < len(bases) <= limit or not isinstance(serializer, KeyedSerializer):
        return document
    held = {key: value for key, value in document.members.items() if not keys[key].base}
    return Document(serializer.join(held), keys, held)


def merged(info: CheckpointInfo, own: dict[str, Any], bases: Mapping[str, tuple[CheckpointInfo, dict[str, Any]]]) -> dict[str, Any]:
    """The whole state from what the checkpoint and its bases hold, keys in the order they were saved."""
    try:
        return {key: own[key] if not at.base else _from_base(info, key, at, *bases[at.base]) for key, at in info.keys.items()}
    except (LookupError, TypeError) as error:  # a header that was not made by us
        message = f"checkpoint {info.id!r} of {info.task!r} does not hold the keys that its header lists"
        raise IntegrityError(message, code="integrity.malformed") from error


def _pointed(now: KeyInfo, before: KeyInfo | None, id: str) -> KeyInfo:
    if before is None or before.digest != now.digest or before.size != now.size or now.size <= SMALLEST:
        return now
    return msgspec.structs.replace(now, base=before.base or id)


def _from_base(info: CheckpointInfo, key: str, at: KeyInfo, base: CheckpointInfo, held: dict[str, Any]) -> Any:
    there = base.keys.get(key)
    if there is None or there.digest != at.digest or key not in held:
        message = f"checkpoint {info.id!r} of {info.task!r} takes {key!r} from {at.base!r}, which holds another value"
        raise IntegrityError(message, code="integrity.broken_base")
    return held[key]
