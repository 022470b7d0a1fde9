"""Whether a payload is the one that its header tells of; of one that is hashed by its keys, also which of them is damaged."""

from __future__ import annotations

from itertools import accumulate

from ckpt_observe.core import digests
from ckpt_observe.core.blob import Buffer
from ckpt_observe.core.model import CheckpointInfo

_NOT_THE_SAME = "its content does not have the digest of its header"


def damage(info: CheckpointInfo, payload: Buffer) -> str | None:
    """What is wrong with it, in words; None where nothing is."""
    if digests.fits(info.digest, (payload,)):  # most have one of the whole
        return None
    if info.digest.startswith(digests.KEYED_ALGORITHM):
        return _damage_by_key(info, memoryview(payload))
    return _NOT_THE_SAME


def _damage_by_key(info: CheckpointInfo, payload: memoryview) -> str | None:
    held = {name: key for name, key in info.keys.items() if not key.base}
    start = max(0, len(payload) - sum(key.size for key in held.values()))
    ends = accumulate((key.size for key in held.values()), initial=start)
    parts = {name: payload[end : end + key.size] for (name, key), end in zip(held.items(), ends, strict=False)}
    large = {name: part for name, part in parts.items() if held[name].digest.startswith(digests.LARGE_ALGORITHM)}
    found = dict(zip(large, digests.of_each([(part,) for part in large.values()]), strict=True))
    damaged = [name for name, digest in found.items() if digest != held[name].digest]
    if damaged:
        return f"the content of {', '.join(map(repr, damaged[:10]))} does not have the digest of its header"
    whole = digests.of_keyed(payload[:start], [(held[name].digest, (part,)) for name, part in parts.items()])
    return None if whole == info.digest else _NOT_THE_SAME
