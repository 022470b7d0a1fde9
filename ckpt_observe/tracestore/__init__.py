"""The local trace store: one SQLite file, its writer, its reader, and traces drawn as text.

It knows spans and their names, but not how they are recorded or delivered.
"""

from __future__ import annotations

from ckpt_observe.tracestore.database import FILENAME
from ckpt_observe.tracestore.reader import TraceFilter, TraceReader, TraceSummary
from ckpt_observe.tracestore.writer import MAX_BYTES, TraceWriter

__all__ = ["FILENAME", "MAX_BYTES", "TraceFilter", "TraceReader", "TraceSummary", "TraceWriter"]
