"""Queries about recorded operations: the one interface through which commands and viewers read the trace store and the journals.

    from ckpt_observe import query

    with query.open_traces() as traces:
        for operation in traces.operations(query.OperationFilter(operation="save", outcome="error")):
            print(operation.checkpoint_id, operation.phase, operation.attributes)

Reading changes nothing and disturbs no running program.
"""

from __future__ import annotations

from ckpt_observe.journal.unobserved_programs import UnobservedProgram
from ckpt_observe.query.progress import Progress, SavedStep, measure_progress
from ckpt_observe.query.results import RUNNING, Changes, ObservedOperation, ObservedPhase, Removal, StoreTotals, Trace, json_schema
from ckpt_observe.query.statistics import KeyGrowth, Lifetime, OperationStatistics, Quantiles, Statistics, TaskStatistics
from ckpt_observe.query.trace_queries import Traces, open_traces
from ckpt_observe.query.waiting import WaitingJournal, is_received, read_waiting
from ckpt_observe.tracestore import ALL, OperationFilter, TraceSummary

__all__ = [
    "ALL",
    "RUNNING",
    "Changes",
    "KeyGrowth",
    "Lifetime",
    "ObservedOperation",
    "ObservedPhase",
    "OperationFilter",
    "OperationStatistics",
    "Progress",
    "Quantiles",
    "Removal",
    "SavedStep",
    "Statistics",
    "StoreTotals",
    "TaskStatistics",
    "Trace",
    "TraceSummary",
    "Traces",
    "UnobservedProgram",
    "WaitingJournal",
    "is_received",
    "json_schema",
    "measure_progress",
    "open_traces",
    "read_waiting",
]
