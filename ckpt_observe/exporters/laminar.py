"""Sends spans to Laminar (cloud or self-hosted) as OTLP over HTTP, with the API key of the project. Metrics are never sent.

`laminar_shape` first changes the spans to the form that Laminar displays well.

Laminar's server stores every copy of a span that it receives, so each span must be sent only once. If an answer was lost, or another
process died while it sent spans (`delivery/send_marks.py`), the exporter first asks the server which of these spans it has
(`POST /v1/sql/query`).
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any, Final, TypeAlias

import msgspec
from msgspec import UNSET

from ckpt_observe.endpoints import TRACES_PATH, Endpoint
from ckpt_observe.errors import ExporterRefusedError, ExporterRetryError, ExporterSetupError, ExporterUnclearError, TraceStoreError
from ckpt_observe.exporters.laminar_shape import shape
from ckpt_observe.exporters.limited_span import limit_spans
from ckpt_observe.exporters.otlp import OtlpExporter
from ckpt_observe.exporters.otlp_http import HttpTransport
from ckpt_observe.semconv import attributes as names
from ckpt_observe.semconv import laminar
from ckpt_observe.semconv.spans import TASK_PREFIX
from ckpt_observe.span import Span
from ckpt_observe.span_limits import SpanLimits
from ckpt_observe.support.answers import decode_json
from ckpt_observe.support.host_exceptions import ignore_errors
from ckpt_observe.support.logs import WarningLog
from ckpt_observe.tracestore import TraceReader

QUERY_PATH: Final = "/v1/sql/query"
SETTLE_SECONDS: Final = 5.0
"""Seconds until a query returns a span that the server has accepted. Measured: 0.3 to 0.6 s; the rest is a margin for a busy server."""
_IDS_PER_QUERY: Final = 500
"""Span ids in one query. The answer is then about 30 KiB; of an answer, at most 64 KiB are read."""
_MAX_STORED: Final = 20_000
"""Spans that are remembered as stored: several batches. Needed if a part of a batch was accepted and the rest failed."""
_MAX_ROOTS: Final = 2_000
"""Traces whose root is remembered."""
_SEARCH_PAUSE: Final = 50
"""After a search for running tasks, wait this many times as long as it took, so that searches take at most 2 % of a core."""
_SpanKey: TypeAlias = tuple[str, str]
_HEX: Final = re.compile(r"[0-9a-f]+")
FindTasks: TypeAlias = Callable[[AbstractSet[str]], Mapping[str, str]]
"""Takes ids of traces. Returns the names of their outermost tasks that are running now, in any process, by trace id."""


class LaminarExporter(OtlpExporter):
    """Sends each span to Laminar once. For one thread at a time."""

    settle_seconds = SETTLE_SECONDS

    def __init__(
        self,
        endpoint: Endpoint,
        limits: SpanLimits | None = None,
        trace_store: Path | None = None,
        find_running_tasks: FindTasks | None = None,
    ) -> None:
        """`trace_store` is the file of the local store, which may know the task of another process if it has ended. It need not exist."""
        super().__init__(endpoint, "laminar", limits)
        self._trace_store = trace_store
        self._find_running_tasks = find_running_tasks
        self._searched: dict[str, None] = {}
        """Traces whose task was searched for among the running ones. One search is enough: a task begins before its operations."""
        self._next_search = 0.0
        """Time (monotonic clock) of the next such search."""
        self._stored: dict[_SpanKey, None] = {}
        """Spans that the server certainly has, oldest first."""
        self._uncertain: dict[_SpanKey, float] = {}
        """Spans that the server may have, with the time (monotonic clock) after which "not stored" is a reliable answer."""
        self._root_names: dict[str, str] = {}
        """Name of the root of recent traces, by trace id."""
        self._warnings = WarningLog()

    def __repr__(self) -> str:
        return f"LaminarExporter({self.endpoint!r})"

    def send(self, spans: Sequence[Span]) -> None:
        """Send the spans that the server does not have yet.

        ExporterRetryError: call it again later with the same spans. ExporterRefusedError: the server will never accept them.
        """
        uncertain = [span for span in spans if _key(span) in self._uncertain]
        if uncertain:
            self._resolve(uncertain)
        self._remember_roots(spans)
        absent = limit_spans([span for span in spans if _key(span) not in self._stored], self._limits)
        self._send([shape(span, self._root_names.get(span.trace_id, "")) for span in absent])

    def _remember_roots(self, spans: Sequence[Span]) -> None:
        """Remember the name of each trace's root, for spans that do not know it: in other processes, only operations name their task."""
        for span in spans:
            if span.ancestors is not UNSET:
                self._root_names[span.trace_id] = span.ancestors[0][1] if span.ancestors else span.name
            elif names.TASK_NAME in span.attributes:
                self._root_names.setdefault(span.trace_id, TASK_PREFIX + str(span.attributes[names.TASK_NAME]))
        trace_ids = {span.trace_id for span in spans}
        self._find_ended(trace_ids - self._root_names.keys())
        self._find_running(trace_ids - self._root_names.keys() - self._searched.keys())
        _remove_oldest(self._root_names, _MAX_ROOTS)
        _remove_oldest(self._searched, _MAX_ROOTS)

    def _find_ended(self, trace_ids: set[str]) -> None:
        """Look for the tasks of these traces in the local store: the spans know only the id of a parent in another process."""
        if not trace_ids or self._trace_store is None:
            return
        with ignore_errors(TraceStoreError), TraceReader(self._trace_store) as reader:
            for trace_id in trace_ids:
                summary = reader.summary(trace_id)
                if summary is not None and summary.name.startswith(TASK_PREFIX):
                    self._root_names[trace_id] = summary.name

    def _find_running(self, trace_ids: set[str]) -> None:
        """Look for the tasks of these traces among those that are running. This reads the pages of all processes, about 1 ms for each."""
        start = time.monotonic()
        if not trace_ids or self._find_running_tasks is None or start < self._next_search:
            return
        self._root_names.update(self._find_running_tasks(trace_ids))
        self._searched.update(dict.fromkeys(trace_ids))
        end = time.monotonic()
        self._next_search = end + _SEARCH_PAUSE * (end - start)

    def doubt(self, spans: Sequence[Span]) -> None:
        """Ask the server for these spans before they are sent. It has had time to store what another process sent."""
        for key in map(_key, spans):
            if key not in self._stored:
                self._uncertain.setdefault(key, 0.0)

    def may_have(self, spans: Sequence[Span]) -> bool:
        """Return whether the server has some of the spans, or may have them because an answer was lost."""
        return any(key in self._stored or key in self._uncertain for key in map(_key, spans))

    def _export(self, body: bytes, spans: Sequence[Span]) -> None:
        try:
            super()._export(body, spans)
        except ExporterUnclearError as error:
            self._mark_uncertain(spans)
            raise type(error)(str(error), SETTLE_SECONDS) from error
        self._mark_stored(spans)

    def _mark_uncertain(self, spans: Iterable[Span]) -> None:
        self._uncertain.update(dict.fromkeys(map(_key, spans), time.monotonic() + SETTLE_SECONDS))

    def _mark_stored(self, spans: Iterable[Span]) -> None:
        self._stored.update(dict.fromkeys(map(_key, spans)))
        _remove_oldest(self._stored, _MAX_STORED)

    def _resolve(self, spans: Sequence[Span]) -> None:
        """Ask the server which of these spans it has, and mark those as stored.

        A span that it does not have may still be in its queue: until SETTLE_SECONDS have passed, raise ExporterRetryError.
        """
        stored_ids = self._query_stored_ids(spans)
        stored = [span for span in spans if span.span_id in stored_ids]
        self._mark_stored(stored)
        for span in stored:
            del self._uncertain[_key(span)]
        absent = [_key(span) for span in spans if span.span_id not in stored_ids]
        delay = max((self._uncertain[key] for key in absent), default=0.0) - time.monotonic()
        if delay > 0:
            raise ExporterRetryError(f"{self.endpoint.shown}: some spans may have arrived already; the server is asked again soon", delay)
        for key in absent:
            del self._uncertain[key]

    def _query_stored_ids(self, spans: Sequence[Span]) -> set[str]:
        transport = self._connect()
        assert isinstance(transport, HttpTransport)
        stored_ids: set[str] = set()
        for query in _queries(spans):
            try:
                answer = transport.post(self.endpoint.url.removesuffix(TRACES_PATH) + QUERY_PATH, query, "application/json")
                stored_ids |= {laminar.span_id(row["span_id"]) for row in decode_json(answer, _QueryResult).data}
            except (ExporterRefusedError, ExporterSetupError) as error:  # the key may only write, or the server has no such URL
                message = "Laminar did not answer which spans it has (%s). Some spans may be stored twice. Check that the API key may read."
                self._warnings.warn_once("query", message, error)
                for span in spans:
                    self._uncertain[_key(span)] = 0.0
                return stored_ids
            except (ValueError, KeyError) as error:
                raise ExporterRetryError(
                    f"{self.endpoint.shown}: the answer to the query for stored spans has an unexpected format"
                ) from error
        return stored_ids


def _remove_oldest(entries: dict[Any, Any], limit: int) -> None:
    for oldest in list(entries)[: max(0, len(entries) - limit)]:
        del entries[oldest]


def _key(span: Span) -> _SpanKey:
    return span.trace_id, span.span_id


class _QueryResult(msgspec.Struct):
    data: list[dict[str, str]]


def _queries(spans: Sequence[Span]) -> Iterator[bytes]:
    for first in range(0, len(spans), _IDS_PER_QUERY):
        chunk = [span for span in spans[first : first + _IDS_PER_QUERY] if _HEX.fullmatch(span.span_id + span.trace_id)]
        ids = ", ".join(f"'{laminar.span_uuid(span.span_id)}'" for span in chunk)
        traces = ", ".join(f"'{each}'" for each in sorted({laminar.trace_uuid(span.trace_id) for span in chunk}))
        query = f"SELECT span_id FROM spans WHERE trace_id IN ({traces}) AND span_id IN ({ids})"  # noqa: S608 - hex digits
        yield msgspec.json.encode({"query": query})
