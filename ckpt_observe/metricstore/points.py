"""The values of metrics: counters and histograms that can be added up, with exemplars that lead to traces."""

from __future__ import annotations

from bisect import bisect_left
from typing import Self

import msgspec
from msgspec import UNSET

from ckpt_observe.span import Span


class Exemplar(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A span that contributed to a value. `time` is in Unix seconds."""

    trace_id: str
    span_id: str
    value: float
    time: float

    @classmethod
    def of(cls, span: Span, value: float) -> Self:
        return cls(span.trace_id, span.span_id, value, span.end_unix_nano / 1e9)


class Counter(msgspec.Struct, array_like=True):
    """A total that only grows."""

    value: float = 0.0
    exemplar: Exemplar | None = None

    def add(self, other: Counter) -> None:
        self.value += other.value
        self.exemplar = other.exemplar or self.exemplar


class Histogram(msgspec.Struct, array_like=True):
    """The number of values in each bucket; the last bucket is for values above the highest bound."""

    counts: list[int]
    sum: float = 0.0
    exemplars: dict[int, Exemplar] = {}
    """By index of the bucket."""

    def add(self, other: Histogram) -> None:
        """Add a histogram. If it has another number of buckets (another version), replace this one; scrapers see a counter reset."""
        if len(self.counts) != len(other.counts):
            self.counts, self.sum, self.exemplars = [0] * len(other.counts), 0.0, {}
        self.counts = [count + added for count, added in zip(self.counts, other.counts, strict=True)]
        self.sum += other.sum
        self.exemplars.update(other.exemplars)


Point = Counter | Histogram


class HistogramBuilder:
    """Fills a histogram. Exemplars are built at the end, because only the last span of each bucket becomes one."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds, self._sum = bounds, 0.0
        self._counts = [0] * (len(bounds) + 1)
        self._last_spans: dict[int, tuple[Span, float]] = {}

    def observe(self, value: float, span: Span) -> None:
        bucket = bisect_left(self._bounds, value)
        self._counts[bucket] += 1
        self._sum += value
        if span.unsampled is UNSET:
            self._last_spans[bucket] = (span, value)

    def build(self) -> Histogram:
        exemplars = {bucket: Exemplar.of(span, value) for bucket, (span, value) in self._last_spans.items()}
        return Histogram(self._counts, self._sum, exemplars)
