"""Sends one OTLP request over HTTP and maps the answer to an exporter error. Delivery does the retries.

| answer | result |
| --- | --- |
| 2xx | accepted |
| none | ExporterRetryError; ExporterUnclearError if the request was sent, at least in part |
| 408, 429, 503 | ExporterRetryError, with the time of `Retry-After` |
| 502, 504 | ExporterUnclearError, with the time of `Retry-After` |
| 500 and all other 5xx | ExporterServerError: the server failed; retried, and if one span is the cause, that span is isolated |
| 301, 302, 303, 305, 307, 308, 401, 403, 404, 405, 407 | ExporterSetupError: configured wrongly; retried, because somebody may fix it |
| anything else | ExporterRefusedError |

The OTLP specification forbids a retry after 500. We retry, because a server with a full disk or a lost database answers 500, too, and
dropping the spans would lose everything until it is repaired.
"""

from __future__ import annotations

import gzip
import time
from collections.abc import Mapping
from typing import Final

from ckpt_observe.endpoints import Endpoint
from ckpt_observe.errors import (
    ExporterError,
    ExporterRefusedError,
    ExporterRetryError,
    ExporterServerError,
    ExporterSetupError,
    ExporterUnclearError,
    HttpError,
)
from ckpt_observe.exporter import MAX_RETRY_AFTER
from ckpt_observe.support.answers import parse_http_date
from ckpt_observe.support.http_client import Answer, HttpClient

PROTOBUF: Final = "application/x-protobuf"
_RETRY: Final = frozenset({408, 429, 503})
_RETRY_UNCLEAR: Final = frozenset({502, 504})
"""From a proxy: the server behind it may have accepted the batch before the connection was lost."""
_WRONG_SETUP: Final = frozenset({301, 302, 303, 305, 307, 308, 401, 403, 404, 405, 407})
_SERVER_ERROR: Final = 500
_GZIP_LEVEL: Final = 1
"""805 KB of spans become 216 KB in 5 ms. Level 6 gives 187 KB in 14 ms, level 9 gives 185 KB in 35 ms."""


class HttpTransport:
    """Sends OTLP requests over one HTTP connection, which stays open. For one thread at a time."""

    def __init__(self, endpoint: Endpoint, user_agent: str) -> None:
        self._endpoint = endpoint
        self.status: int | str = 0
        """HTTP status of the last answer; 0 if the last request got none."""
        self.headers: Mapping[str, str] = {}
        """Headers of the last answer; empty if the last request got none."""
        self._client = HttpClient(
            endpoint.timeout,
            headers={"user-agent": user_agent, **endpoint.headers},
            certificate=endpoint.certificate,
            client_certificate=endpoint.client_certificate,
            client_key=endpoint.client_key,
        )

    def send(self, body: bytes) -> bytes:
        """Send an export request and return the body of the answer. Raises an ExporterError as in the table of this module."""
        if self._endpoint.gzip:
            return self.post(self._endpoint.url, gzip.compress(body, _GZIP_LEVEL), PROTOBUF, {"content-encoding": "gzip"})
        return self.post(self._endpoint.url, body, PROTOBUF)

    def post(self, url: str, body: bytes, content_type: str, headers: Mapping[str, str] | None = None) -> bytes:
        """Send a POST request to a URL of the same server and return the body of the answer. Raises as `send` does."""
        return self._request("POST", url, body, {"content-type": content_type, **(headers or {})})

    def get(self, url: str) -> bytes:
        """Send a GET request to a URL of the same server and return the body of the answer. Raises as `send` does."""
        return self._request("GET", url, b"", {})

    def _request(self, method: str, url: str, body: bytes, headers: Mapping[str, str]) -> bytes:
        self.status, self.headers = 0, {}
        try:
            answer = self._client.request(method, url, body, headers)
        except HttpError as error:
            raise self._no_answer(error) from None
        self.status, self.headers = answer.status, answer.headers
        if answer.is_success:
            return answer.body
        raise self._rejection(answer)

    def close(self) -> None:
        self._client.close()

    def _no_answer(self, error: HttpError) -> ExporterRetryError:
        server = self._endpoint.shown
        if error.stage == HttpError.TLS:
            return ExporterRetryError(f"{server}: TLS failed: {error}")
        if error.stage == HttpError.CONNECT:
            return ExporterRetryError(f"{server} cannot be reached: {error}")
        if error.stage == HttpError.PREPARE:
            return ExporterRetryError(f"{server}: nothing was sent: {error}")
        return ExporterUnclearError(f"{server} sent no complete answer: {error}")

    def _rejection(self, answer: Answer) -> ExporterError:
        message = f"{self._endpoint.shown} answered {answer.status_line}"
        if answer.headers.get("content-type", "").partition(";")[0] in ("text/plain", "application/json"):
            message += self._endpoint.quote(answer.body.decode("utf-8", "replace"))
        if answer.status in _RETRY:
            return ExporterRetryError(message, _retry_after(answer))
        if answer.status in _RETRY_UNCLEAR:
            return ExporterUnclearError(message, _retry_after(answer))
        if answer.status in _WRONG_SETUP:
            return ExporterSetupError(message)
        if answer.status >= _SERVER_ERROR:
            return ExporterServerError(message, _retry_after(answer))
        return ExporterRefusedError(message)


def _retry_after(answer: Answer) -> float | None:
    """Return the seconds until the time in the `Retry-After` header, a number or a date; None if it is missing or invalid.

    At most MAX_RETRY_AFTER.
    """
    text = answer.headers.get("retry-after", "").strip()
    try:
        seconds = float(text) if text.isdigit() else parse_http_date(text) - time.time()
    except ValueError:
        return None
    return min(max(seconds, 0.0), MAX_RETRY_AFTER)
