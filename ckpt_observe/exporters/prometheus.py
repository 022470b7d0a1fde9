"""Publishes metrics for Prometheus: an endpoint to scrape, a file for node_exporter, or a Pushgateway.

A batch job may end before it is scraped, so it uses the file or the gateway: both are written while the job runs and once more at its end.
Both get the total of all runs of the state directory, so counters continue across runs.
"""

from __future__ import annotations

import errno
import hmac
import os
from collections.abc import Callable
from contextlib import closing
from typing import Final

from ckpt_observe.endpoints import without_credentials
from ckpt_observe.errors import ExporterRetryError, HttpError
from ckpt_observe.exporters.metrics import TAKEOVER_INTERVAL, Gather, Publisher
from ckpt_observe.exporters.prometheus_text import negotiate, render
from ckpt_observe.prometheus_settings import Prometheus, is_loopback
from ckpt_observe.support.files import replace_file
from ckpt_observe.support.host_exceptions import raise_host_exception
from ckpt_observe.support.http_client import HttpClient, import_libraries, split_credentials
from ckpt_observe.support.http_server import HttpServer, Request, Response

PUSH_INTERVAL: Final = 15.0
PUSH_TIMEOUT: Final = 5.0


def build_publishers(settings: Prometheus, service: str) -> list[Publisher]:
    """Return publishers for the text file and the Pushgateway, if set; if neither is, the endpoint, unless its port is `none`."""
    publishers: list[Publisher] = []
    if settings.textfile:
        publishers.append(TextFilePublisher(settings.textfile))
    if settings.pushgateway:
        publishers.append(PushgatewayPublisher(settings.pushgateway, service))
    if not publishers and settings.port is not None:
        publishers.append(ScrapeEndpoint(settings))
    return publishers


class ScrapeEndpoint:
    """Serves `/metrics`. Each scrape reads the metrics anew. `config` refuses other addresses than loopback without a token or TLS.

    Only the process that holds the publisher's lock binds the port, so processes of one state directory do not compete for it.
    """

    interval = TAKEOVER_INTERVAL

    def __init__(self, settings: Prometheus) -> None:
        self._settings = settings
        self.name = f"endpoint-{settings.port}"
        self._server: HttpServer | None = None

    @property
    def address(self) -> tuple[str, int] | None:
        """Host and port, or None while it does not listen."""
        return self._server.address if self._server else None

    def publish(self, gather: Gather) -> None:
        """Listen, unless it already does. OSError if another program uses the port or the address cannot be bound."""
        if self._server is not None:
            return
        settings = self._settings
        try:
            server = HttpServer(
                (settings.host, settings.port or 0),
                lambda request: self._respond(request, gather),
                thread_name="ckpt-observe-endpoint",
                certificate=settings.tls or None,
            )
        except OSError as error:
            raise_host_exception(error)
            if settings.tls and not os.path.isfile(settings.tls):
                advice = f"the file '{settings.tls:.80}' does not exist; CKPT_OBSERVE_METRICS_TLS needs a PEM file with certificate and key"
                raise FileNotFoundError(error.errno, advice) from error
            if error.errno != errno.EADDRINUSE:
                raise
            advice = f"port {settings.port} is used by another program; set OTEL_EXPORTER_PROMETHEUS_PORT to a free port"
            raise OSError(error.errno, advice) from error
        server.start()
        self._server = server

    def close(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.close()

    def close_inherited(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.close_inherited()

    def _respond(self, request: Request, gather: Gather) -> Response:
        if not self._is_expected_host(request):
            return Response(421, b"wrong Host header: use the configured host or a loopback address\n")
        if not self._is_authorized(request):
            return Response(401, b"the bearer token is missing or wrong\n", [("WWW-Authenticate", "Bearer")])
        if request.path != "/metrics":
            return Response(404, b"see /metrics\n")
        try:
            _, snapshot = gather()
        except Exception as error:  # locked for too long, or damaged: the scrape fails, which `up` shows
            raise_host_exception(error)
            return Response(503, f"the metrics cannot be read now: {type(error).__name__}\n".encode())
        content_type = negotiate(request.headers.get("Accept", ""))
        return Response(200, render(snapshot, content_type), [("Content-Type", content_type)])

    def _is_expected_host(self, request: Request) -> bool:
        """Return whether the `Host` header names our host or loopback. With a token or TLS, every header is accepted.

        Otherwise a web page could read the metrics through a name that it points to this address (DNS rebinding).
        """
        settings = self._settings
        if settings.token or settings.tls:
            return True
        header = request.headers.get("Host", "")
        host = header.rpartition(":")[0] or header
        return host == settings.host or is_loopback(host.strip("[]"))

    def _is_authorized(self, request: Request) -> bool:
        token = self._settings.token
        header = request.headers.get("Authorization", "").encode("utf-8", "replace")
        return not token or hmac.compare_digest(header, f"Bearer {token}".encode())


class TextFilePublisher:
    """Writes a file for the textfile collector of node_exporter. Readers see a complete file at any time."""

    name = "textfile"
    interval = PUSH_INTERVAL

    def __init__(self, path: str) -> None:
        self._path = path

    def publish(self, gather: Gather) -> None:
        # Not prometheus_client.write_to_textfile: its file gets the mode of the umask, and node_exporter, another user, must read it.
        # The temporary name does not end in .prom, so node_exporter ignores it.
        replace_file(self._path, render(gather()[1]), sync=False, mode=0o644, temporary=f"{self._path}.{os.getpid()}.new")

    def close(self) -> None: ...

    def close_inherited(self) -> None: ...


class PushgatewayPublisher:
    """Pushes to a Pushgateway, where each push replaces all metrics of this job."""

    name = "pushgateway"
    interval = PUSH_INTERVAL

    def __init__(self, url: str, job: str) -> None:
        self._shown_url = without_credentials(url)
        self._url, self._headers = split_credentials(url)
        self._job = job or "python"
        # Imported only if there is a gateway: importing prometheus_client starts collectors of its own.
        from prometheus_client import push_to_gateway  # noqa: PLC0415

        from ckpt_observe.exporters.prometheus_collector import SnapshotCollector  # noqa: PLC0415

        self._push, self._collector_type = push_to_gateway, SnapshotCollector
        import_libraries()

    def publish(self, gather: Gather) -> None:
        """Push the metrics. ExporterRetryError if the gateway does not accept them."""
        self._push(self._url, self._job, self._collector_type(gather), timeout=PUSH_TIMEOUT, handler=self._handle)

    def _handle(self, url: str, method: str, timeout: float | None, headers: list[tuple[str, str]], data: bytes) -> Callable[[], None]:
        """Return a function that sends the request with our own client.

        The handler of prometheus_client follows redirects and prints the credentials of the URL in errors.
        """

        def send() -> None:
            with closing(HttpClient(timeout or PUSH_TIMEOUT, headers=self._headers)) as client:
                try:
                    answer = client.request(method, url, data, dict(headers))
                except HttpError as error:
                    raise ExporterRetryError(f"no answer from {self._shown_url}: {error}") from None
            if not answer.is_success:
                raise ExporterRetryError(f"{self._shown_url} answered {answer.status_line}")

        return send

    def close(self) -> None: ...

    def close_inherited(self) -> None: ...
