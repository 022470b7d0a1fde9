"""Attributes that have a special meaning for Laminar, and its notation for ids."""

from __future__ import annotations

from typing import Final

PATH: Final = "lmnr.span.path"
"""Names of the spans from the root to this span."""
IDS_PATH: Final = "lmnr.span.ids_path"
"""IDs of the same spans, each as a UUID; see `span_uuid`."""
SPAN_TYPE: Final = "lmnr.span.type"
INPUT: Final = "lmnr.span.input"
OUTPUT: Final = "lmnr.span.output"
SESSION: Final = "lmnr.association.properties.session_id"
USER: Final = "lmnr.association.properties.user_id"
TAGS: Final = "lmnr.association.properties.tags"
METADATA: Final = "lmnr.association.properties.metadata."
"""Prefix of the metadata attributes: one attribute for each key."""


def span_uuid(span_id: str) -> str:
    """Return a span ID (16 hex digits) in Laminar's notation, which is a UUID."""
    return f"00000000-0000-0000-{span_id[:4]}-{span_id[4:]}"


def trace_uuid(trace_id: str) -> str:
    """Return a trace ID (32 hex digits) in Laminar's notation, which is a UUID."""
    return f"{trace_id[:8]}-{trace_id[8:12]}-{trace_id[12:16]}-{trace_id[16:20]}-{trace_id[20:]}"


def span_id(uuid: str) -> str:
    """Return the span ID of a UUID made by `span_uuid`."""
    return uuid.replace("-", "")[16:]
