"""The ways out for metrics: is the port free, or served, and by whom; does the Pushgateway answer; can the text file be written."""

from __future__ import annotations

import errno
import http.client
import os
import socket
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Final

from ckpt_observe import environment
from ckpt_observe.cli.doctor.disk import written
from ckpt_observe.cli.doctor.finding import OK, PROBLEM, Finding
from ckpt_observe.config import Prometheus, Settings
from ckpt_observe.endpoints import without_credentials
from ckpt_observe.exporters.metrics_push import NoRedirect, address
from ckpt_observe.exporters.prometheus import Endpoint
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
    base, headers = address(url)
    request = urllib.request.Request(f"{base.rstrip('/')}/-/ready", headers=headers)  # noqa: S310 - http(s), by the settings
    try:
        with urllib.request.build_opener(NoRedirect).open(request, timeout=TIMEOUT):
            return Finding(OK, subject, f"{shown} is ready")
    except urllib.error.HTTPError as error:
        error.close()
        advice = "its key is in the URL" if error.code in (401, 403) else "is it a Pushgateway?"
        return Finding(PROBLEM, subject, f"{shown} answered {error.code} to /-/ready: {advice}")
    except (OSError, http.client.HTTPException) as error:
        return Finding(PROBLEM, subject, f"{shown} cannot be reached: {getattr(error, 'reason', error)}")


def _endpoint(asked: Prometheus, directory: Path) -> Finding:
    subject, where = f"metrics port {asked.port}", f"{asked.host}:{asked.port}"
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
    """Status of `/metrics`, and what the server calls itself."""
    headers = {"Authorization": f"Bearer {asked.token}"} if asked.token else {}
    with suppress(OSError, http.client.HTTPException), closing(_connection(asked)) as connection:
        connection.request("GET", "/metrics", headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.headers.get("Server", "an HTTP server")
    return 0, ""


def _connection(asked: Prometheus) -> http.client.HTTPConnection:
    if not asked.tls:
        return http.client.HTTPConnection(asked.host, asked.port, timeout=TIMEOUT)
    context = ssl.create_default_context(cafile=asked.tls)
    context.check_hostname = False  # the certificate is our own, for whatever name others know us by
    return http.client.HTTPSConnection(asked.host, asked.port, timeout=TIMEOUT, context=context)


def _is_ours(directory: Path, asked: Prometheus) -> bool:
    """Whether a process of this state directory has the turn to serve that port."""
    try:
        return is_locked(os.path.join(directory, f"metrics-{Endpoint(asked).name}.lock"))
    except OSError:
        return False
