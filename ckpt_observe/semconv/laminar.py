"""Attribute names that Laminar's server gives a meaning of its own."""

from __future__ import annotations

from typing import Final

PATH: Final = "lmnr.span.path"
"""Names from the root to the span itself."""
IDS_PATH: Final = "lmnr.span.ids_path"
"""The same spans' ids, each as a UUID; see `span_uuid`."""
SPAN_TYPE: Final = "lmnr.span.type"
INPUT: Final = "lmnr.span.input"
OUTPUT: Final = "lmnr.span.output"
SESSION: Final = "lmnr.association.properties.session_id"
USER: Final = "lmnr.association.properties.user_id"
TAGS: Final = "lmnr.association.properties.tags"
METADATA: Final = "lmnr.association.properties.metadata."
"""Prefix: one attribute for each key."""


def span_uuid(span_id: str) -> str:
    """A span's id as Laminar writes it."""
    return f"00000000-0000-0000-{span_id[:4]}-{span_id[4:]}"


def trace_uuid(trace_id: str) -> str:
    """A trace's id as Laminar writes it."""
    return f"{trace_id[:8]}-{trace_id[8:12]}-{trace_id[12:16]}-{trace_id[16:20]}-{trace_id[20:]}"


def span_id(uuid: str) -> str:
    """Back from `span_uuid`."""
    return uuid.replace("-", "")[16:]
