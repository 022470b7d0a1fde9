"""Spans to Laminar, its cloud or your own: OTLP over HTTP with the project's key, each shaped for its page by `laminar_shape`. No metrics.

Its server keeps every copy that it gets, so a span is sent once. Where an answer was lost, or another process may have sent it before it
died, the server is asked first which spans it has, by `POST /v1/sql/query`.
"""

from __future__ import annotations

import logging
import os
import re
import socket
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, TypeAlias

import msgspec

from ckpt_observe.endpoints import TRACES_PATH, Endpoint
from ckpt_observe.errors import ExporterRefusedError, ExporterRetryError, ExporterSetupError, ExporterUnclearError
from ckpt_observe.exporters.laminar_shape import shape
from ckpt_observe.exporters.otlp import OtlpExporter
from ckpt_observe.exporters.otlp_http import HttpTransport
from ckpt_observe.semconv import laminar
from ckpt_observe.span import Span

logger = logging.getLogger("ckpt_observe")

SETTLED: Final = 5.0
"""Seconds until a span that was taken is surely found: 0.3 to 0.6 were measured, but its queue may be longer."""
_ASKED_AT_ONCE: Final = 500
"""The answer is then about 30 KiB, of the 64 KiB that are read."""
_MOST_REMEMBERED: Final = 20_000
"""Several batches: what was accepted of a batch that failed later."""
_MOST_MET: Final = 10_000
"""For an agent, past which live processes go for months. One that is forgotten is asked about again, which is harmless."""
_Key: TypeAlias = tuple[str, str]
_HEX: Final = re.compile(r"[0-9a-f]+")


class LaminarExporter(OtlpExporter):
    """For one thread at a time."""

    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__(endpoint, "laminar")
        self._stored: dict[_Key, None] = {}
        """Spans that it surely has, the oldest first."""
        self._doubts: dict[_Key, float] = {}
        """Spans that it may have, with the moment from which on it can be asked."""
        self._met: set[str] = set()
        """Processes whose first batch was looked at."""
        self._told = False
        self._host, self._born = socket.gethostname(), time.time_ns()

    def __repr__(self) -> str:
        return f"LaminarExporter({self.endpoint!r})"

    def send(self, spans: Sequence[Span]) -> None:
        """Has all of them once, or raises ExporterRetryError (later) or ExporterRefusedError (never, as they are)."""
        self._meet(spans)
        doubted = [span for span in spans if _key(span) in self._doubts]
        if doubted:
            self._clear_up(doubted)
        super().send([shape(span) for span in spans if _key(span) not in self._stored])

    def _export(self, body: bytes, spans: Sequence[Span]) -> None:
        try:
            super()._export(body, spans)
        except ExporterUnclearError as error:
            self._doubt(spans)
            raise ExporterUnclearError(str(error), SETTLED) from error
        self._remember(spans)

    def _meet(self, spans: Sequence[Span]) -> None:
        """What another process left may have been sent just before it died; so its first batch is doubted."""
        foreign = [span for span in spans if not self._is_own(span)]
        new = {str(span.resource.get("service.instance.id")) for span in foreign} - self._met
        if new:
            self._doubt(span for span in foreign if str(span.resource.get("service.instance.id")) in new)
            self._met = new if len(self._met) > _MOST_MET else self._met | new

    def _is_own(self, span: Span) -> bool:
        """Of this process: pid and host alone would be those of the container before it, too."""
        told = span.resource.get
        return told("process.pid") == os.getpid() and told("host.name") == self._host and span.end_unix_nano >= self._born

    def _doubt(self, spans: Iterable[Span]) -> None:
        self._doubts.update(dict.fromkeys(map(_key, spans), time.monotonic() + SETTLED))

    def _remember(self, spans: Iterable[Span]) -> None:
        self._stored.update(dict.fromkeys(map(_key, spans)))
        for old in list(self._stored)[: max(0, len(self._stored) - _MOST_REMEMBERED)]:
            del self._stored[old]

    def _clear_up(self, spans: Sequence[Span]) -> None:
        """A yes is believed at once, a no only after a while."""
        ids = self._which_are_stored(spans)
        found = [span for span in spans if span.span_id in ids]
        self._remember(found)
        for span in found:
            del self._doubts[_key(span)]
        missing = [_key(span) for span in spans if span.span_id not in ids]
        left = max((self._doubts[key] for key in missing), default=0.0) - time.monotonic()
        if left > 0:
            raise ExporterRetryError(f"{self.endpoint.shown}: an answer was lost; asking again which spans arrived", left)
        for key in missing:
            del self._doubts[key]

    def _which_are_stored(self, spans: Sequence[Span]) -> set[str]:
        transport = self._ready()
        assert isinstance(transport, HttpTransport)
        found: set[str] = set()
        for query in _queries(spans):
            try:
                answer = transport.post(self.endpoint.url.removesuffix(TRACES_PATH) + "/v1/sql/query", query, "application/json")
                found |= {laminar.span_id(row["span_id"]) for row in msgspec.json.decode(answer, type=_Answer).data}
            except (ExporterRefusedError, ExporterSetupError) as error:  # a key that may only write, or a server without that page
                if not self._told:
                    logger.warning("ckpt_observe: exporter laminar: cannot ask which spans arrived (%s); some may be there twice", error)
                self._told = True
                for span in spans:
                    self._doubts[_key(span)] = 0.0
                return found
            except (msgspec.MsgspecError, KeyError) as error:
                raise ExporterRetryError(f"{self.endpoint.shown}: the answer to a query was not understood") from error
        return found


def _key(span: Span) -> _Key:
    return span.trace_id, span.span_id


class _Answer(msgspec.Struct):
    data: list[dict[str, str]]


def _queries(spans: Sequence[Span]) -> Iterator[bytes]:
    for first in range(0, len(spans), _ASKED_AT_ONCE):
        asked = [span for span in spans[first : first + _ASKED_AT_ONCE] if _HEX.fullmatch(span.span_id + span.trace_id)]
        ids = ", ".join(f"'{laminar.span_uuid(span.span_id)}'" for span in asked)
        traces = ", ".join(f"'{each}'" for each in sorted({laminar.trace_uuid(span.trace_id) for span in asked}))
        query = f"SELECT span_id FROM spans WHERE trace_id IN ({traces}) AND span_id IN ({ids})"  # noqa: S608 - hex digits
        yield msgspec.json.encode({"query": query})
