"""The numbers themselves: counters and histograms that can be added to each other, each with the trace that last touched it."""

from __future__ import annotations

import msgspec


class Exemplar(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The span behind a number. `time` is Unix seconds."""

    trace_id: str
    span_id: str
    value: float
    time: float


class Counter(msgspec.Struct, array_like=True):
    """Only ever grows."""

    value: float = 0.0
    exemplar: Exemplar | None = None

    def add(self, other: Counter) -> None:
        self.value += other.value
        self.exemplar = other.exemplar or self.exemplar


class Histogram(msgspec.Struct, array_like=True):
    """How many values fell into each bucket; the last one is for all above the highest bound."""

    counts: list[int]
    sum: float = 0.0
    exemplars: dict[int, Exemplar] = {}

    def add(self, other: Histogram) -> None:
        """Other bounds (of another version of the table) cannot be added: then it begins anew, which scrapers see as a reset."""
        if len(self.counts) != len(other.counts):
            self.counts, self.sum, self.exemplars = [0] * len(other.counts), 0.0, {}
        self.counts = [mine + its for mine, its in zip(self.counts, other.counts, strict=True)]
        self.sum += other.sum
        self.exemplars.update(other.exemplars)


Point = Counter | Histogram
