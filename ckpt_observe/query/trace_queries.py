"""Queries over the trace store and the journals of one state directory."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Self

import msgspec

from ckpt_observe import config
from ckpt_observe.errors import AmbiguousTraceError, TraceNotFoundError
from ckpt_observe.journal import unobserved_programs
from ckpt_observe.journal.unobserved_programs import UnobservedProgram
from ckpt_observe.query.results import Changes, ObservedOperation, Removal, StoreTotals, Trace, from_spans
from ckpt_observe.query.running import read_running
from ckpt_observe.query.statistics import Statistics, collect_statistics
from ckpt_observe.semconv import attributes as names
from ckpt_observe.span import Span
from ckpt_observe.support import files
from ckpt_observe.tracestore import ALL, FILENAME, OperationFilter, TraceReader, TraceSummary
from ckpt_observe.tracestore.operation_groups import OperationGroup, group_by_operation, is_phase
from ckpt_observe.tracestore.tree import walk

POLL_SECONDS: Final = 0.5
_MAX_CHANGES: Final = 500
_MAX_CANDIDATES: Final = 20


def open_traces(state_dir: Path | str | None = None) -> Traces:
    """Return the traces of a state directory, by default that of the environment. Use it in a `with` statement.

    Nothing is opened before it is needed, and nothing is written: a directory or store that does not exist has no traces.
    """
    return Traces(config.read(dir=state_dir, exporters="local").dir if state_dir is None else Path(state_dir))


class Traces:
    """The traces of one state directory: finished operations from the trace store, running ones from the journals.

    Used by one thread at a time. Methods raise TraceStoreError if the store cannot be read.
    """

    def __init__(self, state: Path) -> None:
        self.state = state
        self.path = state / FILENAME
        """The trace store. It may not exist."""
        self._open_reader: TraceReader | None = None
        self._file: tuple[int, int] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        reader, self._open_reader = self._open_reader, None
        if reader is not None:
            reader.close()

    def traces(self, matching: OperationFilter = ALL, *, limit: int = 20) -> list[TraceSummary]:
        """Return up to `limit` traces: those in which something is running first, then those in which an operation ended last.

        With a filter: the traces in which a single operation has all values.
        """
        running = self._running(matching)
        reader = self._reader()
        stored = reader.newest(limit, matching=matching) if reader else []
        by_id = {summary.trace_id: summary for summary in stored}
        for group in running:
            trace_id = group.span.trace_id
            summary = by_id.pop(trace_id, None) or (reader.summary(trace_id) if reader else None)
            by_id = {trace_id: _add_running(summary, group.span), **by_id}
        return list(by_id.values())[:limit]

    def find(self, prefix: str) -> list[TraceSummary]:
        """Return the traces whose id starts with `prefix`, by id, at most 20: several if it is ambiguous."""
        reader = self._reader()
        by_id = {summary.trace_id: summary for summary in (reader.find(prefix, _MAX_CANDIDATES) if reader else ())}
        for group in self._running(ALL):
            if group.span.trace_id.startswith(prefix.lower()):
                by_id[group.span.trace_id] = _add_running(by_id.get(group.span.trace_id), group.span)
        return [by_id[trace_id] for trace_id in sorted(by_id)][:_MAX_CANDIDATES]

    def trace(self, prefix: str) -> Trace:
        """Return the trace whose id starts with `prefix`. Raise TraceNotFoundError or AmbiguousTraceError."""
        candidates = self.find(prefix)
        if not candidates:
            raise TraceNotFoundError(f"no trace ID in {self.path} starts with {prefix!r}; `ckpt-observe traces` lists the newest")
        if len(candidates) > 1:
            ids = ", ".join(summary.trace_id for summary in candidates)
            raise AmbiguousTraceError(f"{prefix!r} is ambiguous; it matches: {ids}")
        groups = {(group.span.trace_id, group.span.span_id): group for group in group_by_operation(self.spans(candidates[0].trace_id))}
        return Trace(summary=candidates[0], operations=tuple(from_spans(*group) for group in groups.values()))

    def spans(self, trace_id: str) -> list[Span]:
        """Return the spans of a trace, parents before children and siblings by start. Those that are running end now."""
        reader = self._reader()
        # Running ones first: what ends meanwhile is then in the store, and that version replaces the running one.
        running = [span for group in self._running(ALL) if group.span.trace_id == trace_id for span in (group.span, *group.phases)]
        spans = {span.span_id: span for span in (*running, *(reader.spans(trace_id) if reader else ()))}
        return [node.span for node in walk(spans.values())]

    def operations(self, matching: OperationFilter = ALL, *, phases: bool = True) -> Iterator[ObservedOperation]:
        """Yield matching operations, tasks and other spans: running ones first, then that which ended last.

        Without `phases`, those that have ended have none, which takes half the time.
        """
        running = {}
        for group in self._running(matching):
            running[group.span.trace_id, group.span.span_id] = group
            yield from_spans(*group)
        reader = self._reader()
        for group in reader.operations(matching, phases=phases) if reader else ():
            if (group.span.trace_id, group.span.span_id) not in running and not is_phase(group.span):
                yield from_spans(*group)

    def running(self, matching: OperationFilter = ALL) -> list[ObservedOperation]:
        """Return the operations and tasks that are running in any process, by start, with the phases so far."""
        return [from_spans(*group) for group in self._running(matching)]

    def changes(self, since: str | None = None, matching: OperationFilter = ALL) -> Changes:
        """Return what has finished since a cursor (None: nothing, only what is running now) and the cursor for the next call.

        If the store was replaced meanwhile, everything in the new one counts as new.
        """
        running = self.running(matching)
        reader = self._reader()
        if reader is None:
            return Changes(cursor=since or "", finished=(), running=tuple(running))
        identity = "-".join(map(str, self._file or ()))
        start = reader.newest_position() if since is None else _position(since, identity)
        stored = reader.stored_after(start, _MAX_CHANGES)
        end = stored[-1][0] if stored else start
        finished = tuple(from_spans(*group) for _, group in stored if matching.matches(group.span) and not is_phase(group.span))
        return Changes(cursor=f"{identity}:{end}", finished=finished, running=tuple(running), has_more=len(stored) == _MAX_CHANGES)

    def follow(self, since: str | None = None, matching: OperationFilter = ALL, *, interval: float = POLL_SECONDS) -> Iterator[Changes]:
        """Yield `changes` forever, one each `interval` seconds, from a cursor (None: now) on. Stop reading to end it."""
        while True:
            changes = self.changes(since, matching)
            since = changes.cursor
            yield changes
            if not changes.has_more:
                time.sleep(interval)

    def statistics(self, matching: OperationFilter = ALL) -> Statistics:
        """Return counts, durations, sizes, growth and interruptions of matching operations, by task and operation."""
        return collect_statistics(self.operations(matching))

    def totals(self) -> StoreTotals:
        """Return how much the store contains."""
        reader = self._reader()
        return StoreTotals(*reader.totals(), tuple(Removal(*row) for row in reader.removed())) if reader else StoreTotals(0, 0)

    def task_titles(self) -> list[str]:
        """Return the names of all tasks and programs that are recorded or running, sorted."""
        reader = self._reader()
        return sorted({*(reader.task_titles() if reader else ()), *(operation.task_title for operation in self.running())} - {""})

    def unobserved_programs(self) -> list[UnobservedProgram]:
        """Return the programs that recorded nothing in their last run although they imported a checkpoint library, the newest first."""
        return unobserved_programs.read(self.state)

    def _running(self, matching: OperationFilter) -> list[OperationGroup]:
        return [group for group in read_running(self.state) if matching.matches(group.span)]

    def _reader(self) -> TraceReader | None:
        """Return a reader of the store as it is now, or None if it does not exist. Somebody may have removed or replaced it."""
        file = files.identity(self.path)
        if file != self._file or (self._open_reader is not None and self._open_reader.is_outdated()):
            self.close()
        if file is None:
            self._file = None
            return None
        if self._open_reader is None:
            self._open_reader, self._file = TraceReader(self.path), file
        return self._open_reader


def _position(cursor: str, identity: str) -> int:
    """Return the position of a cursor in the store with this identity; 0 if it is for another store."""
    store, _, position = cursor.rpartition(":")
    return int(position) if store == identity and position.isdecimal() else 0


def _add_running(summary: TraceSummary | None, span: Span) -> TraceSummary:
    """Return the summary with one more running operation or task. None: the store has nothing of the trace yet."""
    is_operation = names.OPERATION in span.attributes
    if summary is None:
        return TraceSummary(span.trace_id, span.name, span.start_unix_nano, span.end_unix_nano, 0, int(is_operation), 0, 0, 1)
    is_earlier = span.start_unix_nano < summary.start_unix_nano
    return msgspec.structs.replace(
        summary,
        name=span.name if is_earlier else summary.name,
        start_unix_nano=min(span.start_unix_nano, summary.start_unix_nano),
        end_unix_nano=max(span.end_unix_nano, summary.end_unix_nano),
        operations=summary.operations + is_operation,
        running=summary.running + 1,
    )
