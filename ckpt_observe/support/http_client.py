"""HTTP requests of our own: a deadline for the answer, no redirects, not traced, proxies as the environment says.

The deadline covers the body as a whole; for connecting, sending and the headers, the same time applies to each step of the socket.
Redirects are never followed: a setting names one server, and credentials go to no other. Nothing is retried here.

An answer is hostile input: whatever it contains, a request takes bounded memory, and raises nothing but HttpError.
"""

from __future__ import annotations

import time
from base64 import b64encode
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.client import responses
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import unquote, urlsplit, urlunsplit

from ckpt_observe.errors import HttpError
from ckpt_observe.support.host_exceptions import raise_host_exception

if TYPE_CHECKING:  # imported with the first client: 60 ms, and most programs need none
    from requests import PreparedRequest, Response, Session
    from requests.adapters import HTTPAdapter
    from urllib3 import ProxyManager

MAX_ANSWER_BYTES: Final = 64 << 10
"""Longer answers are cut off: the server may be broken, or not the one that was meant."""


class Answer(NamedTuple):
    """What the server answered."""

    status: int
    headers: Mapping[str, str]
    """Case-insensitive."""
    body: bytes

    @property
    def is_success(self) -> bool:
        return 200 <= self.status < 300

    @property
    def status_line(self) -> str:
        """Status and its standard phrase, such as "503 Service Unavailable"."""
        return f"{self.status} {responses.get(self.status, '')}".rstrip()


class HttpClient:
    """A client that keeps its connections, for one thread at a time.

    Trusts the CAs of the system and of certifi, or only those in the file `certificate`. If `check_hostname` is
    False, the name in the server's certificate is not checked.
    """

    def __init__(
        self,
        timeout: float,
        *,
        headers: Mapping[str, str] | None = None,
        certificate: str | None = None,
        client_certificate: str | None = None,
        client_key: str | None = None,
        check_hostname: bool = True,
        use_proxies: bool = True,
    ) -> None:
        self.timeout = timeout
        self._certificate = certificate
        self._check_hostname = check_hostname
        self._is_tls_ready = False
        self._session = _session()
        self._session.trust_env = use_proxies
        self._session.headers.update(headers or {})
        if client_certificate:
            self._session.cert = (client_certificate, client_key) if client_key else client_certificate

    def request(self, method: str, url: str, body: bytes | None = None, headers: Mapping[str, str] | None = None) -> Answer:
        """Send one request and return the answer, whatever its status. Raise HttpError if no complete answer came in time."""
        from requests import RequestException  # noqa: PLC0415
        from urllib3.exceptions import HTTPError  # noqa: PLC0415

        deadline = time.monotonic() + self.timeout
        try:
            if url.startswith("https:") and not self._is_tls_ready:
                self._prepare_tls()
            with (
                untraced(),
                self._session.request(
                    method,
                    url,
                    data=body,
                    headers=dict(headers or {}),
                    timeout=self.timeout,
                    allow_redirects=False,
                    stream=True,
                    verify=self._certificate,  # as an argument: REQUESTS_CA_BUNDLE would replace the session's own
                ) as response,
            ):
                return Answer(response.status_code, response.headers, _decompress(response, _read(response, deadline)))
        except (RequestException, HTTPError, OSError, ValueError) as error:  # ValueError: a header that the libraries cannot parse
            raise_host_exception(error)
            raise HttpError(_innermost(error), _stage(error)) from None  # the library's message may hold the whole URL

    def close(self) -> None:
        self._session.close()

    def _prepare_tls(self) -> None:
        """Load the system's CAs, which takes some 10 ms: requests itself knows only certifi's, which lack those of a company."""
        import ssl  # noqa: PLC0415

        options: dict[str, Any] = {} if self._check_hostname else {"assert_hostname": False}
        if not self._certificate:
            options["ssl_context"] = ssl.create_default_context()
        self._session.mount("https://", _tls_adapter(options))
        self._is_tls_ready = True


def import_libraries() -> None:
    """Import what a request needs, so that a thread that makes the first one imports nothing.

    If the program forks while another thread imports a module, that module stays locked in the child, and importing it there hangs.
    """
    import ssl  # noqa: F401, PLC0415

    _session().close()
    _tls_adapter({}).close()


def split_credentials(url: str) -> tuple[str, dict[str, str]]:
    """Return a URL without user and password, and the headers that carry them instead; no header if the URL has none."""
    parts = urlsplit(url)
    user, separator, host = parts.netloc.rpartition("@")
    key = b64encode(unquote(user).encode()).decode()
    return urlunsplit(parts._replace(netloc=host)), {"Authorization": f"Basic {key}"} if separator else {}


@contextmanager
def untraced() -> Iterator[None]:
    """Keep OpenTelemetry's instrumentations of HTTP and gRPC from tracing the block: spans about sending spans would never end."""
    from opentelemetry.context import (  # noqa: PLC0415
        _SUPPRESS_HTTP_INSTRUMENTATION_KEY,
        _SUPPRESS_INSTRUMENTATION_KEY,
        attach,
        detach,
        set_value,
    )

    token = attach(set_value(_SUPPRESS_HTTP_INSTRUMENTATION_KEY, True, set_value(_SUPPRESS_INSTRUMENTATION_KEY, True)))
    try:
        yield
    finally:
        detach(token)


def _session() -> Session:
    from requests import Session  # noqa: PLC0415

    session = Session()
    session.auth = _keep_headers
    session.headers["accept-encoding"] = "identity"
    # Although no redirect is followed, requests would parse its URL, which may fail, and read its body to the end, which may never come.
    session.get_redirect_target = lambda _response: None  # type: ignore[method-assign, assignment]
    return session


def _tls_adapter(options: dict[str, Any]) -> HTTPAdapter:
    """Return a transport with these options of urllib3's connection pools, with and without a proxy."""
    from requests.adapters import HTTPAdapter  # noqa: PLC0415

    class TlsAdapter(HTTPAdapter):
        def init_poolmanager(self, connections: int, maxsize: int, block: bool = False, **defaults: Any) -> None:
            super().init_poolmanager(connections, maxsize, block, **defaults, **options)

        def proxy_manager_for(self, proxy: str, **defaults: Any) -> ProxyManager:
            manager: ProxyManager = super().proxy_manager_for(proxy, **defaults, **options)
            return manager

    return TlsAdapter()


def _keep_headers(request: PreparedRequest) -> PreparedRequest:
    """Return the request unchanged. Without this `auth`, requests would replace our Authorization header with an entry of ~/.netrc."""
    return request


def _read(response: Response, deadline: float) -> bytes:
    """Read the body until the deadline, not only until the next byte: a server may send one byte at a time."""
    from requests import ReadTimeout  # noqa: PLC0415

    body = b""
    while len(body) < MAX_ANSWER_BYTES:
        if time.monotonic() > deadline:
            raise ReadTimeout("the answer took too long")
        part = response.raw.read1(MAX_ANSWER_BYTES, decode_content=False)
        if not part:
            break
        body += part
    return body[:MAX_ANSWER_BYTES]


def _decompress(response: Response, body: bytes) -> bytes:
    """Return the body, decompressed to at most MAX_ANSWER_BYTES: proxies may compress although we do not accept it.

    Not by urllib3, whose limit depends on its version and on the coding. Raise ValueError if the body is damaged.
    """
    if not body or response.headers.get("content-encoding", "").strip().lower() not in ("gzip", "x-gzip"):
        return body
    import zlib  # noqa: PLC0415 - rarely needed

    try:
        return zlib.decompressobj(16 + zlib.MAX_WBITS).decompress(body, MAX_ANSWER_BYTES)
    except zlib.error as error:
        raise ValueError(f"the answer is not gzip data ({error})") from None


def _stage(error: Exception) -> str:
    """Return how far the request came, as a constant of HttpError. Only at ANSWER may the server have acted on it."""
    from requests import ConnectTimeout, RequestException  # noqa: PLC0415
    from requests.exceptions import InvalidURL, ProxyError, SSLError  # noqa: PLC0415
    from urllib3.exceptions import HTTPError, MaxRetryError, NewConnectionError  # noqa: PLC0415

    cause = error.args[0] if error.args else None
    if isinstance(error, SSLError):
        return HttpError.TLS
    if isinstance(error, ConnectTimeout | ProxyError) or (
        isinstance(cause, MaxRetryError) and isinstance(cause.reason, NewConnectionError)
    ):
        return HttpError.CONNECT
    if isinstance(error, InvalidURL) or not isinstance(error, RequestException | HTTPError | ValueError):  # a missing certificate file
        return HttpError.PREPARE
    return HttpError.ANSWER


def _innermost(error: BaseException) -> str:
    """Return the type of the innermost cause, and the system's message if there is one."""
    chain: list[Any] = []
    cause: Any = error
    while isinstance(cause, BaseException) and cause not in chain:
        chain.append(cause)
        cause = getattr(cause, "reason", None) or cause.__cause__ or cause.__context__ or next(iter(cause.args), None)
    text = getattr(chain[-1], "verify_message", None) or getattr(chain[-1], "strerror", None)
    return f"{type(chain[-1]).__name__}: {text}" if text else type(chain[-1]).__name__
