"""Sends one OTLP request over gRPC and maps the status to an exporter error. Delivery does the retries.

The status codes follow https://opentelemetry.io/docs/specs/otlp/#failures; in addition, a backend that is configured wrongly or
fails with an internal error is retried, because the spans need not be the cause.

The exporter of `opentelemetry-exporter-otlp` is not used: it takes spans of the SDK, retries within the call, and hides its channel.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import grpc
from google.protobuf.message import DecodeError
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status

from ckpt_observe.endpoints import Endpoint
from ckpt_observe.errors import ExporterError, ExporterRefusedError, ExporterRetryError, ExporterServerError, ExporterSetupError
from ckpt_observe.exporter import MAX_RETRY_AFTER
from ckpt_observe.support.host_exceptions import raise_host_exception

_EXPORT_METHOD: Final = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
_CODE: Final = grpc.StatusCode
_RETRY: Final = frozenset({_CODE.CANCELLED, _CODE.DEADLINE_EXCEEDED, _CODE.ABORTED, _CODE.OUT_OF_RANGE, _CODE.UNAVAILABLE, _CODE.DATA_LOSS})
_SERVER_ERROR: Final = frozenset({_CODE.INTERNAL, _CODE.UNKNOWN})
_WRONG_SETUP: Final = frozenset({_CODE.UNAUTHENTICATED, _CODE.PERMISSION_DENIED, _CODE.UNIMPLEMENTED, _CODE.NOT_FOUND})


class GrpcTransport:
    """Sends OTLP requests over one gRPC channel, which stays open. For one thread at a time."""

    def __init__(self, endpoint: Endpoint, user_agent: str) -> None:
        self._endpoint = endpoint
        self.status: int | str = 0
        """Name of the last gRPC status, such as `OK` or `UNAVAILABLE`; 0 before the first request."""
        self.headers: Mapping[str, str] = {}
        """Always empty: gRPC answers have no useful headers."""
        self._metadata = tuple(endpoint.headers.items())
        self._channel = _open_channel(endpoint, user_agent)
        self._export = self._channel.unary_unary(_EXPORT_METHOD)  # bytes in, bytes out

    def send(self, body: bytes) -> bytes:
        """Send an export request and return the answer. Raises a subclass of ExporterError for any status other than OK."""
        compression = grpc.Compression.Gzip if self._endpoint.gzip else grpc.Compression.NoCompression
        try:
            answer: bytes = self._export(body, timeout=self._endpoint.timeout, metadata=self._metadata, compression=compression)
        except grpc.RpcError as error:
            self.status = error.code().name
            raise self._rejection(error) from None  # its repr contains the whole answer
        self.status = _CODE.OK.name
        return answer

    def close(self) -> None:
        self._channel.close()

    def _rejection(self, error: Any) -> ExporterError:
        code, delay = error.code(), _retry_delay(error)
        message = f"{self._endpoint.shown} answered {code.name}" + self._endpoint.quote(error.details() or "")
        if code in _RETRY or (code is _CODE.RESOURCE_EXHAUSTED and delay is not None):
            return ExporterRetryError(message, delay)
        if code in _WRONG_SETUP:
            return ExporterSetupError(message)
        if code in _SERVER_ERROR:
            return ExporterServerError(message, delay)
        return ExporterRefusedError(message)


def _open_channel(endpoint: Endpoint, user_agent: str) -> Any:
    parts = urlsplit(endpoint.url)
    target = f"{parts.hostname if ':' not in (parts.hostname or '') else f'[{parts.hostname}]'}:{parts.port or 4317}"
    options = [("grpc.primary_user_agent", user_agent), ("grpc.enable_retries", 0), ("grpc.max_receive_message_length", 64 << 10)]
    if parts.scheme == "http":
        return grpc.insecure_channel(target, options)
    try:
        paths = (endpoint.certificate, endpoint.client_key, endpoint.client_certificate)
        files = [Path(path).read_bytes() if path else None for path in paths]
    except OSError as error:
        raise_host_exception(error)
        raise ExporterRetryError(
            f"{endpoint.shown}: cannot read {error.filename}: {error.strerror}; check the OTEL_EXPORTER_OTLP_*CERTIFICATE and *KEY settings"
        ) from None
    return grpc.secure_channel(target, grpc.ssl_channel_credentials(*files), options)


def _retry_delay(error: Any) -> float | None:
    """Return the seconds that the server asks us to wait before a retry, at most MAX_RETRY_AFTER, or None if it does not ask."""
    for key, value in error.trailing_metadata() or ():
        if key == "grpc-status-details-bin":
            try:
                for detail in Status.FromString(value).details:
                    info = RetryInfo()
                    if detail.Unpack(info):
                        return float(min(max(info.retry_delay.ToNanoseconds() / 1e9, 0.0), MAX_RETRY_AFTER))
            except DecodeError:
                return None
    return None
