"""Sends spans to any OTLP backend, such as an OTel Collector, Jaeger or Tempo, over HTTP/protobuf or gRPC (`OTEL_EXPORTER_OTLP_PROTOCOL`).

It sends only our own spans and the resource of their process, one request at a time, each with a deadline. A request stays below 4 MiB,
the default limit of gRPC servers, unless a single span is larger. A repeated request contains the same span ids, by which most backends
remove duplicates; Laminar does not (see `laminar`).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

from ckpt_observe import __version__
from ckpt_observe.endpoints import GRPC, Endpoint
from ckpt_observe.errors import ExporterRefusedError, ExporterServerError
from ckpt_observe.exporter import Exporter
from ckpt_observe.exporters.limited_span import limit_spans
from ckpt_observe.exporters.otlp_encoding import EMPTY_REQUEST, encode_requests
from ckpt_observe.span import Span
from ckpt_observe.span_limits import SpanLimits
from ckpt_observe.support.http_client import untraced
from ckpt_observe.support.logs import warn

MAX_REQUEST_BYTES: Final = 4_000_000
USER_AGENT: Final = f"ckpt_observe/{__version__}"


class Transport(Protocol):
    """Sends export requests to one endpoint."""

    status: int | str
    headers: Mapping[str, str]

    def send(self, body: bytes, /) -> bytes:
        """Send one request and return the body of the answer. ExporterRetryError (or a subclass) or ExporterRefusedError if it fails."""

    def close(self) -> None: ...


class OtlpExporter(Exporter):
    """Sends spans to one OTLP endpoint. For one thread at a time. Connects with the first batch."""

    def __init__(
        self, endpoint: Endpoint, name: str = "otlp", limits: SpanLimits | None = None, shape: Callable[[Span], Span] | None = None
    ) -> None:
        """`shape` changes each span to the form in which it is sent. None: it is sent as it is."""
        self.name = name
        self._limits = limits or SpanLimits()
        self.endpoint = endpoint
        self._shape = shape
        self.rejected = 0
        """Spans that the server rejected although it accepted their request (partial success)."""
        self._has_accepted = False
        """Whether the server has accepted spans. If so, a span that it refuses is the cause itself."""
        self._transport: Transport | None = None

    def __repr__(self) -> str:
        return f"OtlpExporter({self.endpoint!r})"

    @property
    def identity(self) -> str:
        return f"{self.name}@{self.endpoint.fingerprint}"

    def send(self, spans: Sequence[Span]) -> None:
        """Send all spans.

        ExporterRetryError: call it again later with the same spans. ExporterRefusedError: the backend will never accept them.
        """
        self._send(limit_spans(spans, self._limits))

    def _send(self, spans: Sequence[Span]) -> None:
        """Send spans in the form that the server gets."""
        try:
            spans = spans if self._shape is None else [self._shape(span) for span in spans]
            requests = list(encode_requests(spans, __version__, MAX_REQUEST_BYTES))
        except (TypeError, ValueError, struct.error) as error:
            raise ExporterRefusedError(f"a span cannot be encoded as OTLP: {error}") from error
        with untraced():
            try:
                for body, group in requests:
                    self._export(body, group)
            except ExporterRefusedError as error:
                if len(spans) == 1 and not self._has_accepted:
                    self._retry_if_server_refuses_all(error)
                raise

    def close(self) -> None:
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.close()

    def _export(self, body: bytes, _spans: Sequence[Span]) -> None:
        self._count_rejected(self._connect().send(body))
        self._has_accepted = True

    def _connect(self) -> Transport:
        if self._transport is None:
            self._transport = open_transport(self.endpoint)
        return self._transport

    def _retry_if_server_refuses_all(self, refusal: ExporterRefusedError) -> None:
        """Raise an error that keeps the span and tries others, if the server also refuses an empty request: the span need not be the cause.

        A server may refuse every empty request. So this is called only before it has accepted anything.
        """
        try:
            self._connect().send(EMPTY_REQUEST)
        except ExporterRefusedError:
            message = f"{refusal}; the server also refuses an empty request, so the span may not be the cause and is kept"
            raise ExporterServerError(message) from refusal

    def _count_rejected(self, answer: bytes) -> None:
        if not answer:
            return
        from google.protobuf.message import DecodeError  # noqa: PLC0415 - most answers are empty
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse  # noqa: PLC0415

        try:
            partial_success = ExportTraceServiceResponse.FromString(answer).partial_success
        except DecodeError:  # something else answers with 200; we cannot tell whether it is an OTLP backend
            return
        rejected = max(0, partial_success.rejected_spans)
        if rejected and not self.rejected:  # warn the first time; the counter has the rest
            warn("%s rejected %d spans%s", self.endpoint.shown, rejected, self.endpoint.quote(partial_success.error_message))
        self.rejected += rejected


def open_transport(endpoint: Endpoint) -> Transport:
    """Return the transport for the protocol of the endpoint. The libraries of a protocol are imported only if it is used."""
    if endpoint.protocol == GRPC:
        from ckpt_observe.exporters.otlp_grpc import GrpcTransport  # noqa: PLC0415

        return GrpcTransport(endpoint, USER_AGENT)
    from ckpt_observe.exporters.otlp_http import HttpTransport  # noqa: PLC0415

    return HttpTransport(endpoint, USER_AGENT)
