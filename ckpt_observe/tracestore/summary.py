"""One trace in a list."""

from __future__ import annotations

import msgspec


class TraceSummary(msgspec.Struct, frozen=True):
    """One trace in a list."""

    trace_id: str
    name: str
    """The name of its earliest span."""
    start_unix_nano: int
    end_unix_nano: int
    """The latest end of its stored spans, so a task that is still running is as recent as its last checkpoint operation."""
    spans: int
    operations: int
    errors: int
    """Operations with the outcome `error`."""
    interrupted: int
    """Operations whose process died before they finished."""
    running: int = 0
    """Operations and tasks that are running now."""
