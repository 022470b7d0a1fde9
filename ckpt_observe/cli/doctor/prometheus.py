"""The ways out for metrics: is the port free, or served, and by whom; does the Pushgateway answer; can the text file be written."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Final

from ckpt_observe import environment
from ckpt_observe.cli.doctor.disk import written
from ckpt_observe.cli.doctor.finding import OK, PROBLEM, Finding
from ckpt_observe.config import Prometheus, Settings
from ckpt_observe.endpoints import without_credentials
from ckpt_observe.errors import HttpError
from ckpt_observe.exporters.metrics import lock_path
from ckpt_observe.exporters.prometheus import ScrapeEndpoint
from ckpt_observe.support.http_client import HttpClient, split_credentials
from ckpt_observe.support.locks import is_locked

TIMEOUT: Final = 5.0
_ANOTHER_PORT: Final = f"set {environment.PROMETHEUS_PORT} to a free one"


def outlets(settings: Settings) -> Iterator[Finding]:
    """Those that are used: a file or a gateway stands in place of the endpoint."""
    asked = settings.prometheus
    if "prometheus" not in settings.exporters:
        return
    if asked.textfile:
        yield _textfile(Path(asked.textfile))
    if asked.pushgateway:
        yield _pushgateway(asked.pushgateway)
    if not (asked.textfile or asked.pushgateway):
        yield _endpoint(asked, settings.dir)


def _textfile(path: Path) -> Finding:
    try:
        written(path.parent)
    except OSError as error:
        return Finding(PROBLEM, "metrics textfile", f"{path}: its directory cannot be written: {error.strerror}")
    return Finding(OK, "metrics textfile", f"{path} can be written")


def _pushgateway(url: str) -> Finding:
    subject, shown = "metrics pushgateway", without_credentials(url)
    base, headers = split_credentials(url)
    try:
        with closing(HttpClient(TIMEOUT)) as client:
            answer = client.request("GET", f"{base.rstrip('/')}/-/ready", headers=headers)
    except HttpError as error:
        return Finding(PROBLEM, subject, f"{shown} cannot be reached: {error}")
    if answer.is_success:
        return Finding(OK, subject, f"{shown} is ready")
    advice = "its key is in the URL" if answer.status in (401, 403) else "is it a Pushgateway?"
    return Finding(PROBLEM, subject, f"{shown} answered {answer.status} to /-/ready: {advice}")


def _endpoint(asked: Prometheus, directory: Path) -> Finding:
    subject, where = f"metrics port {asked.port}", f"{asked.host}:{asked.port}"
    if asked.port is None:
        return Finding(OK, "metrics port", "none: the metrics are served by the program itself, with PrometheusCollector")
    if asked.port == 0:
        return Finding(OK, subject, f"{asked.host}, any free port")
    trouble = _bound(asked)
    if trouble is None:
        return Finding(OK, subject, f"{where} is free")
    if trouble.errno != errno.EADDRINUSE:
        return Finding(PROBLEM, subject, f"{where}: {trouble.strerror}; {_ANOTHER_PORT}, or another {environment.PROMETHEUS_HOST}")
    status, server = _asked(asked)
    if not server.startswith("ckpt_observe"):
        return Finding(PROBLEM, subject, f"{where} is taken by another program ({server or 'not HTTP'}); {_ANOTHER_PORT}")
    if not _is_ours(directory, asked):
        return Finding(PROBLEM, subject, f"{where} is served by ckpt_observe, for another state directory; {_ANOTHER_PORT}")
    if status != 200:
        why = f"is {environment.METRICS_TOKEN} the same there?"
        return Finding(PROBLEM, subject, f"{where} is served for this state directory, but answers {status}: {why}")
    return Finding(OK, subject, f"{where} is served, for all processes of this state directory")


def _bound(asked: Prometheus) -> OSError | None:
    """Why the port cannot be had."""
    family = socket.AF_INET6 if ":" in asked.host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the endpoint does
        try:
            probe.bind((asked.host, asked.port))
        except OSError as error:
            return error
    return None


def _asked(asked: Prometheus) -> tuple[int, str]:
    """Status of `/metrics`, and the server's name for itself. The certificate is our own, for whatever name others use for this machine."""
    headers = {"Authorization": f"Bearer {asked.token}"} if asked.token else {}
    host = f"[{asked.host}]" if ":" in asked.host else asked.host
    url = f"{'https' if asked.tls else 'http'}://{host}:{asked.port}/metrics"
    with suppress(HttpError), closing(HttpClient(TIMEOUT, certificate=asked.tls, check_hostname=False, use_proxies=False)) as client:
        answer = client.request("GET", url, headers=headers)
        return answer.status, answer.headers.get("Server", "an HTTP server")
    return 0, ""


def _is_ours(directory: Path, asked: Prometheus) -> bool:
    """Whether a process of this state directory has the turn to serve that port."""
    try:
        return is_locked(lock_path(directory, ScrapeEndpoint(asked).name))
    except OSError:
        return False
