"""One OTLP request over HTTP, and what its answer means. No retries here: the delivery has the patience.

| answer | means |
| --- | --- |
| 2xx | it has them |
| 429, 502, 503, 504, 408 | later; `Retry-After` is kept |
| 301 to 308, 401, 403, 404, 405, 407 | the destination is set up wrongly: later, somebody may put it right |
| everything else | refused |
"""

from __future__ import annotations

import gzip
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from http.client import responses
from typing import Any, Final

import requests
from urllib3.exceptions import HTTPError as Urllib3Error
from urllib3.exceptions import MaxRetryError, NewConnectionError

from ckpt_observe.endpoints import Endpoint
from ckpt_observe.errors import ExporterRefusedError, ExporterRetryError, ExporterSetupError, ExporterUnclearError

PROTOBUF: Final = "application/x-protobuf"
_LATER: Final = frozenset({408, 429, 503})
_LATER_AND_UNCLEAR: Final = frozenset({502, 504})
"""From a proxy whose server may have taken the batch before it lost it."""
_WRONG_DESTINATION: Final = frozenset({301, 302, 303, 305, 307, 308, 401, 403, 404, 405, 407})
_MOST_READ: Final = 64 << 10
_LONGEST_WAIT: Final = 3600.0
_GZIP_LEVEL: Final = 1
"""Of 805 KB of spans it leaves 216 KB in 5 ms; level 6 leaves 187 KB in 14 ms, 9 leaves 185 KB in 35 ms."""


class HttpTransport:
    """A connection that is kept, for one thread."""

    def __init__(self, endpoint: Endpoint, user_agent: str) -> None:
        self._endpoint = endpoint
        self.status: int | str = 0
        """That of the last answer; 0 where there was none."""
        self.headers: Mapping[str, str] = {}
        """Those of the last answer."""
        self._session = requests.Session()
        self._session.auth = _as_it_is
        self._session.headers.update({"user-agent": user_agent, **endpoint.headers})
        if endpoint.client_certificate:
            self._session.cert = (endpoint.client_certificate, endpoint.client_key) if endpoint.client_key else endpoint.client_certificate

    def send(self, body: bytes) -> bytes:
        """The body of the answer to an export; raises what the table says."""
        if self._endpoint.gzip:
            return self.post(self._endpoint.url, gzip.compress(body, _GZIP_LEVEL), PROTOBUF, {"content-encoding": "gzip"})
        return self.post(self._endpoint.url, body, PROTOBUF)

    def post(self, url: str, body: bytes, kind: str, headers: Mapping[str, str] | None = None) -> bytes:
        """The body of the answer to any request to the same server."""
        deadline = time.monotonic() + self._endpoint.timeout
        self.status, self.headers = 0, {}
        try:
            with self._session.post(
                url,
                data=body,
                headers={"content-type": kind, **(headers or {})},
                timeout=self._endpoint.timeout,
                allow_redirects=False,
                stream=True,
                verify=self._endpoint.certificate,  # the session's own would yield to REQUESTS_CA_BUNDLE
            ) as response:
                answer = _read(response, deadline)
                self.status, self.headers = response.status_code, response.headers
        except (requests.RequestException, Urllib3Error, OSError) as error:
            raise self._unanswered(error) from None  # the library's message may hold the whole URL
        if 200 <= response.status_code < 300:
            return answer
        raise self._refusal(response, answer)

    def close(self) -> None:
        self._session.close()

    def _unanswered(self, error: Exception) -> ExporterRetryError:
        where, cause = self._endpoint.shown, _innermost(error)
        if isinstance(error, requests.exceptions.SSLError):
            return ExporterRetryError(f"{where}: TLS failed: {cause}")
        if isinstance(error, (requests.ConnectTimeout, requests.exceptions.ProxyError)) or _never_connected(error):
            return ExporterRetryError(f"{where} cannot be reached: {cause}")
        if isinstance(error, requests.exceptions.InvalidURL) or not isinstance(error, (requests.RequestException, Urllib3Error)):
            return ExporterRetryError(f"{where}: nothing could be sent: {cause}")  # such as a certificate file that is not there
        return ExporterUnclearError(f"{where} gave no whole answer: {cause}")

    def _refusal(self, response: requests.Response, answer: bytes) -> ExporterRetryError | ExporterRefusedError:
        code = response.status_code
        message = f"{self._endpoint.shown} answered {code} {responses.get(code, '')}".rstrip()
        if response.headers.get("content-type", "").partition(";")[0] in ("text/plain", "application/json"):
            message += self._endpoint.quote(answer.decode("utf-8", "replace"))
        if code in _LATER:
            return ExporterRetryError(message, _retry_after(response))
        if code in _LATER_AND_UNCLEAR:
            return ExporterUnclearError(message, _retry_after(response))
        if code in _WRONG_DESTINATION:
            return ExporterSetupError(message)
        return ExporterRefusedError(message)


def _as_it_is(request: requests.PreparedRequest) -> requests.PreparedRequest:
    """Without an `auth`, requests puts what ~/.netrc says in place of our own header."""
    return request


def _read(response: requests.Response, deadline: float) -> bytes:
    """The answer, but neither more than 64 KiB nor longer than the deadline: servers may be broken, or not be ours."""
    answer = b""
    while len(answer) < _MOST_READ:
        if time.monotonic() > deadline:
            raise requests.ReadTimeout("the answer took too long")
        part = response.raw.read1(_MOST_READ, decode_content=True)
        if not part:
            break
        answer += part
    return answer


def _never_connected(error: Exception) -> bool:
    cause = error.args[0] if error.args else None
    return isinstance(cause, MaxRetryError) and isinstance(cause.reason, NewConnectionError)


def _innermost(error: BaseException) -> str:
    """The system's own words where there are some, else the kind of failure."""
    seen: list[Any] = []
    below: Any = error
    while isinstance(below, BaseException) and below not in seen:
        seen.append(below)
        below = getattr(below, "reason", None) or below.__cause__ or below.__context__ or next(iter(below.args), None)
    words = getattr(seen[-1], "verify_message", None) or getattr(seen[-1], "strerror", None)
    return f"{type(seen[-1]).__name__}: {words}" if words else type(seen[-1]).__name__


def _retry_after(response: requests.Response) -> float | None:
    """Seconds, from a number or a date; at most an hour, for a server may be wrong."""
    text = response.headers.get("retry-after", "").strip()
    try:
        seconds = float(text) if text.isdigit() else parsedate_to_datetime(text).timestamp() - time.time()
    except (ValueError, TypeError):
        return None
    return min(max(seconds, 0.0), _LONGEST_WAIT)
