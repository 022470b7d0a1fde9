"""Checks of the metrics: whether the port is free or served by us, the Pushgateway answers, and the text file can be written."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Final

from ckpt_observe import environment
from ckpt_observe.cli.doctor import OK, PROBLEM, Diagnosis
from ckpt_observe.cli.doctor.state_directory import write_probe
from ckpt_observe.config import Settings
from ckpt_observe.endpoints import without_credentials
from ckpt_observe.errors import HttpError
from ckpt_observe.exporters.metrics import lock_path
from ckpt_observe.exporters.prometheus import ScrapeEndpoint
from ckpt_observe.prometheus_settings import Prometheus
from ckpt_observe.support.http_client import HttpClient, split_credentials
from ckpt_observe.support.http_server import SERVER_NAME
from ckpt_observe.support.locks import is_locked
from ckpt_observe.support.parsing import quote

TIMEOUT: Final = 5.0
_USE_ANOTHER_PORT: Final = f"set {environment.PROMETHEUS_PORT} to a free port"


def check_metrics(settings: Settings) -> Iterator[Diagnosis]:
    """Check the ways in which metrics are published: the text file and the Pushgateway if set, otherwise the endpoint."""
    options = settings.prometheus
    if "prometheus" not in settings.exporters:
        return
    if options.textfile:
        yield _check_textfile(Path(options.textfile))
    if options.pushgateway:
        yield _check_pushgateway(options.pushgateway)
    if not (options.textfile or options.pushgateway):
        yield _check_endpoint(options, settings.dir)


def _check_textfile(path: Path) -> Diagnosis:
    try:
        write_probe(path.parent)
    except OSError as error:
        return Diagnosis(PROBLEM, "metrics textfile", f"{path}: cannot write to its directory: {error.strerror}")
    return Diagnosis(OK, "metrics textfile", f"{path} is writable")


def _check_pushgateway(url: str) -> Diagnosis:
    subject, displayed_url = "metrics pushgateway", without_credentials(url)
    base, headers = split_credentials(url)
    try:
        with closing(HttpClient(TIMEOUT)) as client:
            answer = client.request("GET", f"{base.rstrip('/')}/-/ready", headers=headers)
    except HttpError as error:
        return Diagnosis(PROBLEM, subject, f"{displayed_url} cannot be reached: {error}")
    if answer.is_success:
        return Diagnosis(OK, subject, f"{displayed_url} is ready")
    advice = "check the credentials in the URL" if answer.status in (401, 403) else "is it a Pushgateway?"
    return Diagnosis(PROBLEM, subject, f"{displayed_url} answered {answer.status} to /-/ready: {advice}")


def _check_endpoint(options: Prometheus, directory: Path) -> Diagnosis:
    if options.port is None:
        return Diagnosis(OK, "metrics port", "none: the program serves the metrics itself, with PrometheusCollector")
    subject, address = f"metrics port {options.port}", f"{options.host}:{options.port}"
    if options.tls and not os.path.isfile(options.tls):
        return Diagnosis(PROBLEM, subject, f"{environment.METRICS_TLS}: {quote(options.tls)} does not exist; metrics wait for it")
    if options.port == 0:
        return Diagnosis(OK, subject, f"{options.host}, any free port")
    bind_error = _try_bind(options)
    if bind_error is None:
        return Diagnosis(OK, subject, f"{address} is free")
    if bind_error.errno != errno.EADDRINUSE:
        advice = f"{_USE_ANOTHER_PORT}, or change {environment.PROMETHEUS_HOST}"
        return Diagnosis(PROBLEM, subject, f"cannot bind {address}: {bind_error.strerror}; {advice}")
    status, server = _request_metrics(options)
    if not server.startswith(SERVER_NAME):
        return Diagnosis(PROBLEM, subject, f"{address} is used by another program ({server or 'not HTTP'}); {_USE_ANOTHER_PORT}")
    if not _is_served_for(directory, options):
        return Diagnosis(PROBLEM, subject, f"{address} is served by ckpt_observe for another state directory; {_USE_ANOTHER_PORT}")
    if status != 200:
        advice = f"check that {environment.METRICS_TOKEN} is the same there"
        return Diagnosis(PROBLEM, subject, f"{address} is served for this state directory, but answers {status}: {advice}")
    return Diagnosis(OK, subject, f"{address} is served for all processes of this state directory")


def _try_bind(options: Prometheus) -> OSError | None:
    """Bind the port and release it. Return the error if that fails."""
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the endpoint does
        try:
            probe.bind((options.host, options.port))
        except OSError as error:
            return error
    return None


def _request_metrics(options: Prometheus) -> tuple[int, str]:
    """Return the HTTP status of `/metrics` and the name of the server; 0 and an empty string if it does not answer with HTTP.

    The host name is not checked: the certificate is ours and may be valid for other names only.
    """
    headers = {"Authorization": f"Bearer {options.token}"} if options.token else {}
    host = f"[{options.host}]" if ":" in options.host else options.host
    url = f"{'https' if options.tls else 'http'}://{host}:{options.port}/metrics"
    with suppress(HttpError), closing(HttpClient(TIMEOUT, certificate=options.tls, check_hostname=False, use_proxies=False)) as client:
        answer = client.request("GET", url, headers=headers)
        return answer.status, answer.headers.get("Server", "an HTTP server")
    return 0, ""


def _is_served_for(directory: Path, options: Prometheus) -> bool:
    """Return whether a process of this state directory serves the port."""
    try:
        return is_locked(lock_path(directory, ScrapeEndpoint(options).name))
    except OSError:
        return False
