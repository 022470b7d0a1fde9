"""Metrics of a batch job, which may be gone before anybody scrapes it: into a file for node_exporter, or to a Pushgateway.

Both are written while the job runs and once more at its end. What is written is the sum of all runs of the state directory, so a counter
goes on where the run before stopped; a Pushgateway by itself would replace it by the last run's.
"""

from __future__ import annotations

import os
from contextlib import closing
from typing import Final
from urllib.parse import quote

from ckpt_observe.errors import ExporterRetryError, HttpError
from ckpt_observe.exporters.exposition import TEXT, render
from ckpt_observe.exporters.metrics import Gather
from ckpt_observe.support.files import replace_file
from ckpt_observe.support.http_client import HttpClient, split_credentials

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
        base, self._headers = split_credentials(url)
        self._url = f"{base.rstrip('/')}/metrics/job/{quote(job, safe='') or 'python'}"

    def publish(self, gather: Gather) -> None:
        body = render(gather()[1])
        with closing(HttpClient(TIMEOUT)) as client:
            try:
                answer = client.request("PUT", self._url, body, {"Content-Type": TEXT, **self._headers})
            except HttpError as error:
                raise ExporterRetryError(f"{self._url}: {error}") from None
        if not answer.is_success:
            raise ExporterRetryError(f"{self._url} answered {answer.status_line}")

    def close(self) -> None: ...

    forget = close
