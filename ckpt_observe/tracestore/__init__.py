"""The local trace store: one SQLite file, its writer, its reader, and traces drawn as text.

It knows spans and their names, but not how they are recorded or delivered.
"""

from __future__ import annotations

from ckpt_observe.tracestore.database import FILENAME
from ckpt_observe.tracestore.operation_filter import ALL, OperationFilter
from ckpt_observe.tracestore.reader import TraceReader
from ckpt_observe.tracestore.summary import TraceSummary
from ckpt_observe.tracestore.trace_limits import DEFAULT_LIMITS, TraceLimits
from ckpt_observe.tracestore.writer import TraceWriter

__all__ = ["ALL", "DEFAULT_LIMITS", "FILENAME", "OperationFilter", "TraceLimits", "TraceReader", "TraceSummary", "TraceWriter"]
