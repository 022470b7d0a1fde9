"""Index terms: a 32-bit number for each tag and metadata entry of a checkpoint, so that an index can narrow down a query.

Values that are equal in Python have the same term. Different values may share one, so every match is checked against its header.
"""

from __future__ import annotations

import math
from struct import Struct
from typing import Any
from zlib import crc32

from ckpt_observe.core.model import CheckpointInfo
from ckpt_observe.core.query import Query

_TAG_PREFIX = crc32(b"#")
_ERROR_TYPE = "type of error"
_MAX_TERMS = 100
"""Per checkpoint. With more tags and entries it gets no terms: such metadata is data that nobody searches for entry by entry."""
_pack_float = Struct("<d").pack


def terms_of(info: CheckpointInfo) -> list[int] | None:
    """Return the terms of a checkpoint; None if there are too many, or if a tag or entry that a query may ask for has no term."""
    if not info.tags and not info.metadata:
        return []
    configuration = info.metadata.get("configuration")
    entries = [*info.metadata.items(), *(configuration.items() if isinstance(configuration, dict) else ())]
    if len(info.tags) + len(entries) > _MAX_TERMS:
        return None
    terms = [_tag_term(tag) for tag in info.tags]
    error = info.metadata.get("error")
    if isinstance(error, dict):
        terms.append(_parameter_term(_ERROR_TYPE, error.get("type")))
    # Containers are never equal to a scalar. Any other value, such as a date, becomes a scalar in JSON.
    terms += [_parameter_term(name, value) for name, value in entries if type(value) not in (dict, list, tuple)]
    complete = [term for term in terms if term is not None]
    return complete if len(complete) == len(terms) else None


def required_terms(query: Query) -> list[int]:
    """Return the terms that every match of the query has. Conditions without a term are only checked against the header."""
    terms = [_parameter_term(name, value) for name, value in query.parameters.items()]
    if query.tag is not None:
        terms.append(_tag_term(query.tag))
    if query.error_type is not None:
        terms.append(_parameter_term(_ERROR_TYPE, query.error_type))
    return [term for term in terms if term is not None]


def _tag_term(tag: Any) -> int | None:
    return crc32(_encode(tag), _TAG_PREFIX) if type(tag) is str else None


def _parameter_term(name: Any, value: Any) -> int | None:
    """Return the term of a metadata entry; None if the value is not a scalar, or if JSON does not preserve it."""
    kind = type(value)
    if type(name) is not str:
        return None
    if kind is str:
        return crc32(_encode(value), crc32(_encode(name)))
    if kind is float or kind is int or kind is bool:
        try:
            number = value + 0.0  # 1 == 1.0 == True, and 0.0 == -0.0
        except OverflowError:
            return None
        return crc32(_pack_float(number), crc32(_encode(name))) if math.isfinite(number) else None
    return crc32(_encode(name)) if value is None else None


def _encode(text: str) -> bytes:
    return text.encode(errors="surrogatepass")
