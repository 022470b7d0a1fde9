"""Metrics of a batch job, which may be gone before anybody scrapes it: into a file for node_exporter, or to a Pushgateway.

Both are written while the job runs and once more at its end. What is written is the sum of all runs of the state directory, so a counter
goes on where the run before stopped; a Pushgateway by itself would replace it by the last run's.
"""

from __future__ import annotations

import os
import urllib.request
from base64 import b64encode
from typing import Final
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from ckpt_observe.exporters.exposition import TEXT, render
from ckpt_observe.exporters.metrics import Gather
from ckpt_observe.support.files import replace_file

EVERY: Final = 15.0
TIMEOUT: Final = 5.0


class TextFile:
    """For node_exporter's textfile collector: a file ending in `.prom`, always whole."""

    name = "textfile"
    every = EVERY

    def __init__(self, path: str) -> None:
        self._path = path

    def publish(self, gather: Gather) -> None:
        temporary = f"{self._path}.{os.getpid()}.new"  # does not end in .prom, so node_exporter ignores it
        replace_file(self._path, render(gather()[1]), sync=False, mode=0o644, temporary=temporary)  # node_exporter is another user

    def close(self) -> None: ...

    forget = close


class Pushgateway:
    """Replaces what the gateway has of this job."""

    name = "pushgateway"
    every = EVERY

    def __init__(self, url: str, job: str) -> None:
        base, self._headers = address(url)
        self._url = f"{base.rstrip('/')}/metrics/job/{quote(job, safe='') or 'python'}"

    def publish(self, gather: Gather) -> None:
        body = render(gather()[1])
        request = urllib.request.Request(self._url, body, {"Content-Type": TEXT, **self._headers}, method="PUT")  # noqa: S310 - http(s), by the settings
        with _opener.open(request, timeout=TIMEOUT) as answer:
            answer.read(1024)

    def close(self) -> None: ...

    forget = close


def address(url: str) -> tuple[str, dict[str, str]]:
    """A URL without its user and password, and the header that says them: urllib would take them for a part of the host, and print them."""
    parts = urlsplit(url)
    who, there, host = parts.netloc.rpartition("@")
    key = b64encode(unquote(who).encode()).decode()
    return urlunsplit(parts._replace(netloc=host)), {"Authorization": f"Basic {key}"} if there else {}


class NoRedirect(urllib.request.HTTPRedirectHandler):
    """A setting names one place; what answers there does not name another."""

    def redirect_request(self, *_args: object) -> None: ...


_opener = urllib.request.build_opener(NoRedirect)
