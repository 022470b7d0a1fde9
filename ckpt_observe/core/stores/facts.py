"""Tags and parameters as an index keeps them: a number for each, the same wherever Python says that two values are equal.

Two that differ may share a number: an index finds what may match, and each header is asked all the same.
"""

from __future__ import annotations

import math
from struct import Struct
from typing import Any
from zlib import crc32

from ckpt_observe.core.model import CheckpointInfo
from ckpt_observe.core.query import Query

_A_TAG = crc32(b"#")
_ERROR_TYPE = "type of error"
_packed = Struct("<d").pack
_MOST = 100
"""Of one checkpoint. Whoever puts tables into the metadata does not ask for each of their entries."""


def of(info: CheckpointInfo) -> list[int] | None:
    """Of a checkpoint; None where they do not tell all that its header, once it is read, will say."""
    if not info.tags and not info.metadata:
        return []
    configuration = info.metadata.get("configuration")
    entries = [*info.metadata.items(), *(configuration.items() if isinstance(configuration, dict) else ())]
    if len(info.tags) + len(entries) > _MOST:
        return None
    facts = [_tag(tag) for tag in info.tags]
    error = info.metadata.get("error")
    if isinstance(error, dict):
        facts.append(_parameter(_ERROR_TYPE, error.get("type")))
    # what is in these is never equal to a scalar; anything else, such as a date, becomes one as JSON
    facts += [_parameter(name, value) for name, value in entries if type(value) not in (dict, list, tuple)]
    known = [fact for fact in facts if fact is not None]
    return known if len(known) == len(facts) else None


def wanted(query: Query) -> list[int]:
    """Those that a checkpoint must have to match. What is left out, only its header can answer."""
    facts = [_parameter(name, value) for name, value in query.parameters.items()]
    if query.tag is not None:
        facts.append(_tag(query.tag))
    if query.error_type is not None:
        facts.append(_parameter(_ERROR_TYPE, query.error_type))
    return [fact for fact in facts if fact is not None]


def _tag(tag: Any) -> int | None:
    return crc32(_bytes(tag), _A_TAG) if type(tag) is str else None


def _parameter(name: Any, value: Any) -> int | None:
    """None for what is no scalar, and for what comes back from JSON as another value."""
    kind = type(value)
    if type(name) is not str:
        return None
    if kind is str:
        return crc32(_bytes(value), crc32(_bytes(name)))
    if kind is float or kind is int or kind is bool:
        try:
            number = value + 0.0  # 1 == 1.0 == True, and 0.0 == -0.0
        except OverflowError:
            return None
        return crc32(_packed(number), crc32(_bytes(name))) if math.isfinite(number) else None
    return crc32(_bytes(name)) if value is None else None


def _bytes(text: str) -> bytes:
    return text.encode(errors="surrogatepass")
