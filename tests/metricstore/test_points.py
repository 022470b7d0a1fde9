"""Histograms as they are filled from spans."""

from __future__ import annotations

import random
from bisect import bisect_left

import msgspec

from ckpt_observe.metricstore.points import HistogramBuilder
from ckpt_observe.testing.spans import make_span

BOUNDS = (0.1, 1.0, 10.0)


def test_buckets_include_their_upper_bound():
    """A value is in the first bucket whose bound is not smaller; values above all bounds are in the last bucket."""
    values = [0.0, 0.1, 0.1000001, 1.0, 9.9, 10.0, 10.1, 1e9, *(random.Random(7).uniform(0, 12) for _ in range(200))]
    builder, expected = HistogramBuilder(BOUNDS), [0, 0, 0, 0]
    for number, value in enumerate(values, 1):
        builder.observe(value, make_span(number, "x"))
        expected[bisect_left(BOUNDS, value)] += 1
    histogram = builder.build()
    assert histogram.counts == expected
    assert histogram.sum == sum(sorted(values))


def test_exemplar_is_the_largest_sampled_value_of_a_bucket():
    """Each bucket that has a sampled span leads to the one with the largest value. Spans that are not sampled cannot be looked up."""
    builder = HistogramBuilder(BOUNDS)
    for number, (value, is_sampled) in enumerate([(0.5, True), (0.7, True), (0.9, False), (0.6, True), (5.0, False), (20.0, True)], 1):
        span = make_span(number, "x")
        builder.observe(value, span if is_sampled else msgspec.structs.replace(span, unsampled=True))
    exemplars = builder.build().exemplars
    assert {bucket: (each.span_id, each.value) for bucket, each in exemplars.items()} == {1: (f"{2:016x}", 0.7), 3: (f"{6:016x}", 20.0)}
