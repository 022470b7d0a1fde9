"""Spans of one journal that a server kept failing on while it accepted others. They wait beside the spool and are sent again later.

So they block nothing and are not lost: the server may be repaired. The journal is not removed as long as it has such spans, and whoever
delivers it next tries them again.
"""

from __future__ import annotations

import os
import threading
import time
from typing import Final, TypeAlias

import msgspec

from ckpt_observe.errors import DamagedFileError
from ckpt_observe.span import Span
from ckpt_observe.support import files
from ckpt_observe.support.host_exceptions import raise_host_exception

SET_ASIDE: Final = "set-aside.json"
MAX_SPANS: Final = 1000
"""Spans that may be set aside for each journal and exporter. Further spans are dropped and counted as refused."""
MAX_BYTES: Final = 32 << 20
FIRST_RETRY: Final = 60.0
"""Seconds before a span that was set aside is sent again. Each failure doubles the time."""
LONGEST_RETRY: Final = 3600.0
_RETRY_COUNT: Final = 20
_Spans: TypeAlias = dict[str, list[Span]]


class SetAside:
    """The spans that are set aside in one journal, by exporter. Used by any thread."""

    def __init__(self, directory: str) -> None:
        self._path = os.path.join(directory, SET_ASIDE)
        self._lock = threading.Lock()
        self._cache: _Spans | None = None
        self._pauses: dict[str, float] = {}
        self._due: dict[str, float] = {}
        """Monotonic time at which each exporter tries again; at once if another process set the spans aside."""

    def count(self, exporter: str | None = None) -> int:
        """Return how many spans are set aside, for one exporter or (None) for all. Return 1 if the file cannot be read now."""
        with self._lock:
            try:
                return sum(len(spans) for name, spans in self._load().items() if exporter in (None, name))
            except OSError as error:
                raise_host_exception(error)
                return 1

    def add(self, exporter: str, span: Span) -> bool:
        """Set a span aside, durably. Return False if there are too many. Raise OSError if the file cannot be written."""
        with self._lock:
            spans = self._load().get(exporter, [])
            if any((each.trace_id, each.span_id) == (span.trace_id, span.span_id) for each in spans):
                return True  # by a process that died before it stored its cursor
            content = {**self._load(), exporter: [*spans, span]}
            data = msgspec.json.encode(content)
            if len(spans) >= MAX_SPANS or len(data) > MAX_BYTES:
                return False
            files.replace_file(self._path, data, sync=True)
            self._cache = content
            self._due.setdefault(exporter, time.monotonic() + FIRST_RETRY)
            return True

    def due(self, exporter: str) -> list[Span]:
        """Return the spans to send again now: a few, because new spans wait meanwhile."""
        with self._lock:
            try:
                return self._load().get(exporter, [])[:_RETRY_COUNT] if time.monotonic() >= self._due.get(exporter, 0.0) else []
            except OSError as error:  # the file exists, but cannot be read now
                raise_host_exception(error)
                return []

    def settle(self, exporter: str, tried: list[Span], remaining: list[Span]) -> None:
        """Record that the spans that were due were sent again, and which of them are still set aside.

        Raise OSError if the file cannot be written. That is harmless: memory is up to date, and delivering twice does no damage.
        """
        with self._lock:
            if len(remaining) == len(tried):
                self._pauses[exporter] = min(LONGEST_RETRY, max(FIRST_RETRY, 2 * self._pauses.get(exporter, 0.0)))
                self._due[exporter] = time.monotonic() + self._pauses[exporter]
            else:  # the server may be repaired: go on at once
                self._due[exporter] = self._pauses[exporter] = 0.0
            spans = [*self._load().get(exporter, [])[len(tried) :], *remaining]
            self._cache = {**self._load(), exporter: spans}
            if not spans:
                del self._cache[exporter]
            files.replace_file(self._path, msgspec.json.encode(self._cache), sync=True)

    def _load(self) -> _Spans:
        """Return the content of the file. A damaged file is renamed and counts as empty. Raise OSError if it cannot be read now."""
        if self._cache is None:
            try:
                self._cache = files.read_json(self._path, _Spans, MAX_BYTES)
            except FileNotFoundError:
                self._cache = {}
            except DamagedFileError:
                files.set_aside(self._path)
                self._cache = {}
        return self._cache
