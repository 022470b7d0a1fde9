"""The embedded store of traces: one SQLite file, its writer, its reader, and a trace as text.

Knows spans and their names; nothing of how they are made or delivered.
"""

from __future__ import annotations

from ckpt_observe.tracestore.reader import Filter, TraceReader, TraceSummary
from ckpt_observe.tracestore.schema import FILENAME
from ckpt_observe.tracestore.writer import MAX_BYTES, TraceWriter

__all__ = ["FILENAME", "MAX_BYTES", "Filter", "TraceReader", "TraceSummary", "TraceWriter"]
