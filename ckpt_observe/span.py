"""A finished span as a plain value. `delivery` creates it; exporters, the trace store, commands and the viewer use it.

Its JSON form (one object per line) is the same wherever spans are printed. Imports nothing of ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec


class SpanLink(msgspec.Struct, frozen=True, gc=False):
    """A pointer to a span of another trace, such as the save that a restore read."""

    trace_id: str
    span_id: str
    attributes: dict[str, Any] = {}


class SpanEvent(msgspec.Struct, frozen=True, gc=False):
    """Something that happened at one moment of a span, such as an exception."""

    name: str
    time_unix_nano: int
    attributes: dict[str, Any] = {}


class Span(msgspec.Struct, frozen=True, gc=False):
    """One span. Ids are lower-case hex; times are Unix nanoseconds."""

    trace_id: str
    span_id: str
    parent_span_id: str
    """Empty for a root."""
    name: str
    start_unix_nano: int
    end_unix_nano: int
    status: Literal["ok", "error", "unset"]
    attributes: dict[str, Any]
    events: tuple[SpanEvent, ...] = ()
    links: tuple[SpanLink, ...] = ()
    resource: dict[str, Any] = {}
    ancestors: tuple[tuple[str, str], ...] | msgspec.UnsetType = msgspec.UNSET
    """Id and name of each enclosing span, from the root on; empty for a root. UNSET, and absent from the JSON, if one is unknown."""
    trace_state: str | msgspec.UnsetType = msgspec.UNSET
    """The W3C `tracestate` of the trace. UNSET, and absent from the JSON, if it has none."""
    unsampled: bool | msgspec.UnsetType = msgspec.UNSET
    """True if the trace is not sampled: only exporters with `receives_unsampled` get the span. Else UNSET, and absent from the JSON."""
    exported_failure: bool | msgspec.UnsetType = msgspec.UNSET
    """True if the trace is not sampled, and the span is exported because its operation failed: no other sampler may drop it. Else UNSET."""

    @property
    def seconds(self) -> float:
        """The duration in seconds."""
        return (self.end_unix_nano - self.start_unix_nano) / 1e9


def sampled_spans(spans: Sequence[Span]) -> list[Span]:
    """Return the spans whose trace is sampled."""
    return [span for span in spans if span.unsampled is msgspec.UNSET]


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Span)


def to_json_line(span: Span) -> str:
    """Return the span as one line of JSON, without the newline."""
    return _encoder.encode(span).decode()


def from_json_line(line: str | bytes) -> Span:
    """Return the span that `to_json_line` wrote."""
    return _decoder.decode(line)
