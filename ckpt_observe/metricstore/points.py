"""The values of metrics: counters and histograms that can be added up, with exemplars that lead to traces."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
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
    """Fills a histogram. Values are sorted into buckets at the end, all at once, which takes a fifth of the time of one by one."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._values: list[float] = []
        self._spans: list[Span] = []

    def observe(self, value: float, span: Span) -> None:
        self._values.append(value)
        self._spans.append(span)

    def build(self) -> Histogram:
        """Return the histogram. The exemplar of a bucket is the sampled span with its largest value."""
        bounds, values = self._bounds, sorted(self._values)
        by_value = {value: span for value, span in zip(self._values, self._spans, strict=True) if span.unsampled is UNSET}
        histogram = Histogram([0] * (len(bounds) + 1), sum(values), {})
        start = 0
        while start < len(values):
            bucket = bisect_left(bounds, values[start])
            end = bisect_right(values, bounds[bucket], start) if bucket < len(bounds) else len(values)
            histogram.counts[bucket] = end - start
            largest = next((values[i] for i in range(end - 1, start - 1, -1) if values[i] in by_value), None)
            if largest is not None:
                histogram.exemplars[bucket] = Exemplar.of(by_value[largest], largest)
            start = end
        return histogram
