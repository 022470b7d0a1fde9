"""Hands spans to the span processors of the host program's TracerProvider, with the resource of that provider.

The spans are finished, keep their ids and times, and have the scope `ckpt_observe`; the program's own spans are not affected. From then on
the provider is responsible for them: if the process is killed, spans in the provider's queue are lost.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, Final

from msgspec import UNSET
from opentelemetry.attributes import BoundedAttributes
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.util import BoundedList
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags, TraceState

from ckpt_observe import __version__
from ckpt_observe.endpoints import PHOENIX_PROJECT
from ckpt_observe.errors import ExporterRetryError
from ckpt_observe.exporter import Exporter
from ckpt_observe.exporters import laminar_shape, openinference_shape
from ckpt_observe.exporters.limited_span import LimitedEvent, LimitedLink, LimitedSpan, limit_spans
from ckpt_observe.exporters.otlp_encoding import status_message
from ckpt_observe.semconv.spans import SCHEMA_URL, SCOPE
from ckpt_observe.span import Span, SpanEvent, SpanLink
from ckpt_observe.span_limits import SpanLimits
from ckpt_observe.support.host_exceptions import raise_host_exception
from ckpt_observe.support.logs import warn

SPANS_PER_FLUSH: Final = 512
"""Spans after which the provider is flushed: the queue of a batch processor has room for 2048 spans and then drops the oldest."""
FLUSH_MILLISECONDS: Final = 30_000
_QUEUE_POLL: Final = 0.02
"""Seconds between two looks at a queue. Laminar's SDK sends 64 spans in about that time."""
_BATCH_QUEUE: Final = attrgetter("_batch_processor._queue", "_batch_processor._max_queue_size", "_batch_processor._max_export_batch_size")
_BATCH_QUEUE_BEFORE_1_34: Final = attrgetter("queue", "max_queue_size", "max_export_batch_size")
"""The same in versions of the SDK before 1.34."""
_PROCESS_ATTRIBUTES: Final = ("service.instance.id", "process.pid", "host.name")
_STATUS: Final = {"ok": StatusCode.OK, "error": StatusCode.ERROR, "unset": StatusCode.UNSET}
_SCOPE: Final = InstrumentationScope(SCOPE, __version__, SCHEMA_URL)
_MAX_DECISIONS: Final = 1000


class ProviderExporter(Exporter):
    """Hands spans to the TracerProvider that `find` returns; None if there is none yet. `is_laminar` tells whether it is Laminar's.

    `uses_openinference`: spans get the attributes of OpenInference, also if the provider does not name a project of Phoenix.
    """

    name = "provider"
    durable = False

    def __init__(self, find: Callable[[], Any], is_laminar: Callable[[Any], bool], *, uses_openinference: bool = False) -> None:
        self._find, self._is_laminar, self._uses_openinference = find, is_laminar, uses_openinference
        self._decisions: dict[str, TraceFlags | None] = {}
        self._has_warned = False

    def __repr__(self) -> str:
        return "ProviderExporter()"

    def send(self, spans: Sequence[Span]) -> None:
        """Hand the spans that the provider's sampler accepts to all processors. ExporterRetryError while there is no provider."""
        if not spans:
            return
        provider = self._find()
        if provider is None:
            raise ExporterRetryError(
                "no TracerProvider of the OpenTelemetry SDK is set in this process; spans are kept until the program sets one"
            )
        laminar = self._is_laminar(provider)
        shape = laminar_shape.shape if laminar else self._shape(provider)
        deadline = time.monotonic() + FLUSH_MILLISECONDS / 1000
        for number, span in enumerate(limit_spans(spans, _limits_of(provider)), 1):
            flags = self._flags(provider, span)
            if flags is not None:
                self._hand_over(provider, to_readable_span(shape(span) if shape else span, provider.resource, flags))
            _wait_for_room(provider, deadline)
            # Not with Laminar's provider: while it flushes, it holds a lock that every span of the program needs.
            if number % SPANS_PER_FLUSH == 0 and not laminar:
                provider.force_flush(FLUSH_MILLISECONDS)

    def _shape(self, provider: Any) -> Callable[[Span], Span] | None:
        """Return what adds the attributes of OpenInference, if they are wanted: the provider of Phoenix's `register()` names a project."""
        is_wanted = self._uses_openinference or PHOENIX_PROJECT in provider.resource.attributes
        return openinference_shape.shape if is_wanted else None

    def close(self) -> None:
        """Do nothing: the host program closes its provider."""

    def _hand_over(self, provider: Any, span: ReadableSpan) -> None:
        try:
            provider._active_span_processor.on_end(span)
        except Exception as error:  # a processor of the program: others already have the span, and a retry would fail again
            raise_host_exception(error)
            if not self._has_warned:
                self._has_warned = True
                warn(
                    "A span processor of your TracerProvider raised an exception; checkpoint spans may be missing. Logged only once.",
                    exc_info=error,
                )

    def _flags(self, provider: Any, span: Span) -> TraceFlags | None:
        """Return the trace flags that the provider's sampler decides for the trace, or None to drop the span.

        A trace with unknown ancestors began elsewhere and is sampled: otherwise the span would not be here. Failures that a setting exports
        from traces that are not sampled are not sampled again.
        """
        if span.ancestors is UNSET or span.exported_failure is True:
            return TraceFlags(TraceFlags.SAMPLED)
        if span.trace_id not in self._decisions:
            if len(self._decisions) >= _MAX_DECISIONS:
                self._decisions.clear()
            root = span.ancestors[0][1] if span.ancestors else span.name
            decision = provider.sampler.should_sample(None, int(span.trace_id, 16), root, SpanKind.INTERNAL, span.attributes).decision
            sampled = TraceFlags(TraceFlags.SAMPLED if decision.is_sampled() else TraceFlags.DEFAULT)
            self._decisions[span.trace_id] = sampled if decision.is_recording() else None
        return self._decisions[span.trace_id]


def _wait_for_room(provider: Any, deadline: float) -> None:
    """Wait, at most until the deadline, while the queue of a batch processor is more than half full.

    A full queue drops spans, also those of the program. The processor sends nothing before it has a whole batch.
    """
    for processor in getattr(provider._active_span_processor, "_span_processors", ()):
        batch_queue = _batch_queue(getattr(processor, "instance", processor))  # `instance`: Laminar's is wrapped
        if batch_queue is not None:
            queue, queue_size, batch_size = batch_queue
            while len(queue) > max(queue_size // 2, batch_size) and time.monotonic() < deadline:
                time.sleep(_QUEUE_POLL)


def _batch_queue(processor: Any) -> tuple[Any, int, int] | None:
    """Return the queue of a batch processor, the spans that fit into it and those of a batch; None for other processors."""
    for read in (_BATCH_QUEUE, _BATCH_QUEUE_BEFORE_1_34):
        try:
            return read(processor)
        except AttributeError:
            continue
    return None


def to_readable_span(span: Span, resource: Resource, flags: TraceFlags) -> ReadableSpan:
    """Return the span as a span of the SDK with this resource, to which a span of another process adds its own identity."""
    if span.resource.get("process.pid", os.getpid()) != os.getpid():  # a dead process: its spans keep their own identity
        resource = resource.merge(Resource({name: span.resource[name] for name in _PROCESS_ATTRIBUTES if name in span.resource}))
    trace_state = TraceState.from_header([span.trace_state]) if span.trace_state else None
    dropped_events, dropped_links = (span.dropped_events, span.dropped_links) if isinstance(span, LimitedSpan) else (0, 0)
    description = status_message(span) if span.status == "error" else None
    return ReadableSpan(
        name=span.name,
        context=_context(span.trace_id, span.span_id, flags, trace_state),
        parent=_context(span.trace_id, span.parent_span_id, flags, trace_state) if span.parent_span_id else None,
        resource=resource,
        attributes=_attributes(span),
        events=_list([Event(event.name, _attributes(event), event.time_unix_nano) for event in span.events], dropped_events),
        links=_list([Link(_context(link.trace_id, link.span_id, flags), _attributes(link)) for link in span.links], dropped_links),
        kind=SpanKind.INTERNAL,
        status=Status(_STATUS[span.status], description),
        start_time=span.start_unix_nano,
        end_time=span.end_unix_nano,
        instrumentation_scope=_SCOPE,
    )


def _limits_of(provider: Any) -> SpanLimits:
    """Return the limits that the provider has for spans of its own. None in them is no limit."""
    limits = getattr(provider, "_span_limits", None)
    if limits is None:
        return SpanLimits()
    counts = (limits.max_span_attributes, limits.max_events, limits.max_event_attributes, limits.max_links, limits.max_link_attributes)
    attributes, events, event_attributes, links, link_attributes = (sys.maxsize if count is None else count for count in counts)
    lengths = limits.max_span_attribute_length, limits.max_attribute_length
    return SpanLimits(attributes, lengths[0], events, event_attributes, links, link_attributes, lengths[1])


def _attributes(part: Span | SpanEvent | SpanLink) -> Any:
    """Return the attributes in the form in which the SDK tells exporters how many were dropped."""
    if not isinstance(part, LimitedSpan | LimitedEvent | LimitedLink) or not part.dropped_attributes:
        return part.attributes
    attributes = BoundedAttributes(attributes=part.attributes)
    attributes.dropped = part.dropped_attributes
    return attributes


def _list(parts: list[Any], dropped: int) -> Any:
    if not dropped:
        return parts
    bounded = BoundedList.from_seq(len(parts), parts)
    bounded.dropped = dropped
    return bounded


def _context(trace_id: str, span_id: str, flags: TraceFlags, trace_state: TraceState | None = None) -> SpanContext:
    return SpanContext(int(trace_id, 16), int(span_id, 16), False, flags, trace_state)
