"""One OTLP request over gRPC, and what its status means. No retries here: the delivery has the patience.

The table is the specification's, https://opentelemetry.io/docs/specs/otlp/#failures; a destination set up wrongly is waited for, too.
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
from ckpt_observe.errors import ExporterRefusedError, ExporterRetryError, ExporterSetupError

_EXPORT: Final = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
_CODE: Final = grpc.StatusCode
_LATER: Final = frozenset({_CODE.CANCELLED, _CODE.DEADLINE_EXCEEDED, _CODE.ABORTED, _CODE.OUT_OF_RANGE, _CODE.UNAVAILABLE, _CODE.DATA_LOSS})
_WRONG_DESTINATION: Final = frozenset({_CODE.UNAUTHENTICATED, _CODE.PERMISSION_DENIED, _CODE.UNIMPLEMENTED, _CODE.NOT_FOUND})


class GrpcTransport:
    """A channel that is kept, for one thread."""

    def __init__(self, endpoint: Endpoint, user_agent: str) -> None:
        self._endpoint = endpoint
        self.status: int | str = 0
        """The name of the last answer's; 0 before the first."""
        self.headers: Mapping[str, str] = {}
        """gRPC has none that say anything: kept empty, for who looks."""
        self._metadata = tuple(endpoint.headers.items())
        self._channel = _channel(endpoint, user_agent)
        self._export = self._channel.unary_unary(_EXPORT)  # bytes in, bytes out

    def send(self, body: bytes) -> bytes:
        """The answer to an export; raises what the table says."""
        compression = grpc.Compression.Gzip if self._endpoint.gzip else grpc.Compression.NoCompression
        try:
            answer: bytes = self._export(body, timeout=self._endpoint.timeout, metadata=self._metadata, compression=compression)
        except grpc.RpcError as error:
            self.status = error.code().name
            raise self._refusal(error) from None  # its repr holds the peer's whole answer
        self.status = _CODE.OK.name
        return answer

    def close(self) -> None:
        self._channel.close()

    def _refusal(self, error: Any) -> ExporterRetryError | ExporterRefusedError:
        code, after = error.code(), _retry_info(error)
        message = f"{self._endpoint.shown} answered {code.name}" + self._endpoint.quote(error.details() or "")
        if code in _LATER or (code is _CODE.RESOURCE_EXHAUSTED and after is not None):
            return ExporterRetryError(message, after)
        if code in _WRONG_DESTINATION:
            return ExporterSetupError(message)
        return ExporterRefusedError(message)


def _channel(endpoint: Endpoint, user_agent: str) -> Any:
    parts = urlsplit(endpoint.url)
    target = f"{parts.hostname if ':' not in (parts.hostname or '') else f'[{parts.hostname}]'}:{parts.port or 4317}"
    options = [("grpc.primary_user_agent", user_agent), ("grpc.enable_retries", 0), ("grpc.max_receive_message_length", 64 << 10)]
    if parts.scheme == "http":
        return grpc.insecure_channel(target, options)
    try:
        names = (endpoint.certificate, endpoint.client_key, endpoint.client_certificate)
        files = [Path(name).read_bytes() if name else None for name in names]
    except OSError as error:
        raise ExporterRetryError(f"{endpoint.shown}: a certificate cannot be read: {error.strerror}") from None
    return grpc.secure_channel(target, grpc.ssl_channel_credentials(*files), options)


def _retry_info(error: Any) -> float | None:
    """Seconds that the server asks us to wait."""
    for key, value in error.trailing_metadata() or ():
        if key == "grpc-status-details-bin":
            try:
                for detail in Status.FromString(value).details:
                    info = RetryInfo()
                    if detail.Unpack(info):
                        return float(info.retry_delay.ToNanoseconds() / 1e9)
            except DecodeError:
                return None
    return None
