"""Spans to any server that speaks OTLP: a Collector, Jaeger, Tempo. HTTP/protobuf or gRPC, as `OTEL_EXPORTER_OTLP_*` says.

Sent are our spans and the resource of their process, nothing else. One request at a time, each with a deadline, each under 4 MiB (gRPC
servers take no more by default). A repeat is harmless: a span keeps its ids.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from ckpt_observe import __version__
from ckpt_observe.endpoints import GRPC, Endpoint
from ckpt_observe.errors import ExporterRefusedError, ExporterRetryError
from ckpt_observe.exporter import Exporter
from ckpt_observe.exporters.otlp_encode import requests
from ckpt_observe.span import Span
from ckpt_observe.support.http_client import untraced

logger = logging.getLogger("ckpt_observe")

MOST_BYTES: Final = 4_000_000
USER_AGENT: Final = f"ckpt_observe/{__version__}"


class Transport(Protocol):
    """Brings one request; the answer's body, or ExporterRetryError, ExporterUnclearError or ExporterRefusedError."""

    status: int | str
    headers: Mapping[str, str]

    def send(self, body: bytes, /) -> bytes: ...
    def close(self) -> None: ...


class OtlpExporter(Exporter):
    """For one thread at a time. Connects at the first batch."""

    def __init__(self, endpoint: Endpoint, name: str = "otlp") -> None:
        self.name = name
        self.endpoint = endpoint
        self.rejected = 0
        """Spans that a server took the request of, but not them (OTLP's partial success)."""
        self._transport: Transport | None = None

    @property
    def identity(self) -> str:
        return f"{self.name}@{self.endpoint.fingerprint}"

    def __repr__(self) -> str:
        return f"OtlpExporter({self.endpoint!r})"

    def send(self, spans: Sequence[Span]) -> None:
        """Has all of them, or raises ExporterRetryError (later) or ExporterRefusedError (never, as they are)."""
        try:
            encoded = list(requests(spans, __version__, MOST_BYTES))
        except (TypeError, ValueError, struct.error) as error:  # no OTLP has such a value
            raise ExporterRefusedError(f"a span cannot be written as OTLP: {error}") from error
        with untraced():
            try:
                for body, group in encoded:
                    self._export(body, group)
            except ExporterRefusedError as error:
                if len(spans) == 1:
                    self._ask_whose_fault(error)
                raise

    def close(self) -> None:
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.close()

    def _export(self, body: bytes, _spans: Sequence[Span]) -> None:
        self._note(self._ready().send(body))

    def _ready(self) -> Transport:
        if self._transport is None:
            self._transport = transport(self.endpoint)
        return self._transport

    def _ask_whose_fault(self, refusal: ExporterRefusedError) -> None:
        """A server that refuses an empty request too refuses everybody: then nothing is wrong with the span, and it is kept."""
        try:
            self._ready().send(b"")
        except ExporterRefusedError:
            raise ExporterRetryError(f"{refusal}; also for an empty request") from refusal

    def _note(self, answer: bytes) -> None:
        if not answer:
            return
        from google.protobuf.message import DecodeError  # noqa: PLC0415 - most answers are empty
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse  # noqa: PLC0415

        try:
            told = ExportTraceServiceResponse.FromString(answer).partial_success
        except DecodeError:  # something else answers 200 there; that it is no collector cannot be known
            return
        if told.rejected_spans and not self.rejected:  # the first time; the count says the rest
            logger.warning("ckpt_observe: %s rejected %d spans: %.200s", self.endpoint.shown, told.rejected_spans, told.error_message)
        self.rejected += told.rejected_spans


def transport(endpoint: Endpoint) -> Transport:
    """The transport that the endpoint's protocol asks for; its libraries are imported only now."""
    if endpoint.protocol == GRPC:
        from ckpt_observe.exporters.otlp_grpc import GrpcTransport  # noqa: PLC0415

        return GrpcTransport(endpoint, USER_AGENT)
    from ckpt_observe.exporters.otlp_http import HttpTransport  # noqa: PLC0415

    return HttpTransport(endpoint, USER_AGENT)
