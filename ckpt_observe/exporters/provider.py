"""Spans to the user's own TracerProvider, in this process: through its processors, with its resource.

They come as finished spans with their original ids and times, in the scope `ckpt_observe`; nothing of the user's own spans is touched.
From then on they are the provider's: what it has queued when the process is killed is lost, as its other spans are.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from typing import Any, Final

from msgspec import UNSET
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from ckpt_observe import __version__
from ckpt_observe.errors import ExporterRetryError
from ckpt_observe.exporter import Exporter
from ckpt_observe.exporters.laminar_shape import shape
from ckpt_observe.exporters.otlp_encode import SCOPE, status_message
from ckpt_observe.span import Span

logger = logging.getLogger("ckpt_observe")

HANDED_AT_ONCE: Final = 512
"""Spans between two flushes of a backlog: a batch processor's queue takes 2048, and drops the oldest beyond."""
FLUSH_MILLISECONDS: Final = 30_000
_PROCESS: Final = ("service.instance.id", "process.pid", "host.name")
_STATUS: Final = {"ok": StatusCode.OK, "error": StatusCode.ERROR, "unset": StatusCode.UNSET}
_SCOPE: Final = InstrumentationScope(SCOPE, __version__)
_MOST_DECISIONS: Final = 1000


class ProviderExporter(Exporter):
    """`find` gives the provider, or None while there is none; `is_laminar` says whether it is Laminar's."""

    name = "provider"
    durable = False

    def __init__(self, find: Callable[[], Any], is_laminar: Callable[[Any], bool]) -> None:
        self._find, self._is_laminar = find, is_laminar
        self._decisions: dict[str, TraceFlags | None] = {}
        self._told = False

    def __repr__(self) -> str:
        return "ProviderExporter()"

    def send(self, spans: Sequence[Span]) -> None:
        """Handed to every processor of the provider; ExporterRetryError while there is no provider."""
        if not spans:
            return
        provider = self._find()
        if provider is None:
            raise ExporterRetryError("this process has no TracerProvider of the OpenTelemetry SDK")
        laminar = self._is_laminar(provider)
        for number, span in enumerate(spans, 1):
            flags = self._flags(provider, span)
            if flags is not None:
                self._hand(provider, readable(shape(span) if laminar else span, provider.resource, flags))
            if number % HANDED_AT_ONCE == 0 and not laminar:  # Laminar's holds, while it flushes, a lock that every span of the host needs
                provider.force_flush(FLUSH_MILLISECONDS)

    def close(self) -> None:
        """The provider is its owner's to close."""

    def _hand(self, provider: Any, span: ReadableSpan) -> None:
        try:
            provider._active_span_processor.on_end(span)
        except Exception:  # a processor of the user's: the others had the span, and it would fail again
            if not self._told:
                logger.warning("ckpt_observe: a span processor of your TracerProvider failed", exc_info=True)
            self._told = True

    def _flags(self, provider: Any, span: Span) -> TraceFlags | None:
        """The sampler's decision, None for dropped. A trace that began elsewhere is sampled, or we had not recorded it."""
        if span.ancestors is UNSET:
            return TraceFlags(TraceFlags.SAMPLED)
        if span.trace_id not in self._decisions:
            if len(self._decisions) >= _MOST_DECISIONS:
                self._decisions.clear()
            root = span.ancestors[0][1] if span.ancestors else span.name
            decision = provider.sampler.should_sample(None, int(span.trace_id, 16), root, SpanKind.INTERNAL, span.attributes).decision
            sampled = TraceFlags(TraceFlags.SAMPLED if decision.is_sampled() else TraceFlags.DEFAULT)
            self._decisions[span.trace_id] = sampled if decision.is_recording() else None
        return self._decisions[span.trace_id]


def readable(span: Span, resource: Resource, flags: TraceFlags) -> ReadableSpan:
    """The span as the SDK's."""
    if span.resource.get("process.pid", os.getpid()) != os.getpid():  # left by a process that died: it keeps its own identity
        resource = resource.merge(Resource({name: span.resource[name] for name in _PROCESS if name in span.resource}))
    description = status_message(span) if span.status == "error" else None
    return ReadableSpan(
        name=span.name,
        context=_context(span.trace_id, span.span_id, flags),
        parent=_context(span.trace_id, span.parent_span_id, flags) if span.parent_span_id else None,
        resource=resource,
        attributes=span.attributes,
        events=[Event(event.name, event.attributes, event.time_unix_nano) for event in span.events],
        links=[Link(_context(link.trace_id, link.span_id, flags), link.attributes) for link in span.links],
        kind=SpanKind.INTERNAL,
        status=Status(_STATUS[span.status], description),
        start_time=span.start_unix_nano,
        end_time=span.end_unix_nano,
        instrumentation_scope=_SCOPE,
    )


def _context(trace_id: str, span_id: str, flags: TraceFlags) -> SpanContext:
    return SpanContext(int(trace_id, 16), int(span_id, 16), is_remote=False, trace_flags=flags)
