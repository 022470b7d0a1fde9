"""The checkpoint interval that loses least time.

A run works for `interval` seconds, saves for `cost` seconds, and so on. When its process dies, a new one needs `recovery` seconds and
repeats the work since the last save. If a process lives for x seconds, the work of floor((x - recovery) / (interval + cost)) intervals
remains. Its mean is interval * sum over n of P(x > recovery + n * (interval + cost)), for every distribution of x. The rest is lost.

For failures at random, the sum is a geometric series, and the best interval is M * (1 + W(-exp(-(1 + cost / M)))), with the mean time
between failures M and Lambert's W (Daly 2006). The well-known sqrt(2 * cost * M) (Young 1974) approximates it for a small cost.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from ckpt_observe.tuning.failure_model import FailureModel

_GOLDEN: Final = (math.sqrt(5) - 1) / 2
_NEGLIGIBLE_COST: Final = 1e-5
"""Share of the mean time between failures below which the shape of the distribution changes the interval by less than 1 %."""
_EXACT_TERMS: Final = 200
"""Terms of the sum that are added one by one. Of the many that follow if failures cluster, groups are added by their middle term."""
_SEARCH_RANGE: Final = 6.0
"""The best interval for other shapes is within this factor of that for random failures."""


def optimal_interval(cost: float, failures: FailureModel, recovery: float = 0.0) -> float:
    """Return the seconds of work between two saves that lose least time. `cost` is the time for which a save holds up the program."""
    if cost <= 0:
        raise ValueError(f"the cost of a save must be positive, not {cost}")
    ratio = cost / failures.mean
    interval = failures.mean * _solve_exponential(ratio)
    if failures.shape == 1 or ratio < _NEGLIGIBLE_COST:
        return interval
    return _minimize(lambda seconds: lost_time(seconds, cost, failures, recovery), interval / _SEARCH_RANGE, interval * _SEARCH_RANGE)


def lost_time(interval: float, cost: float, failures: FailureModel, recovery: float = 0.0) -> float:
    """Return the seconds that are lost for each second of work that remains: by saves, repeated work and recoveries."""
    cycle = interval + cost
    if failures.shape == 1:
        exponent = (cycle + recovery) / failures.mean
        if exponent > 700:
            return math.inf
        return failures.mean * math.exp(recovery / failures.mean) * math.expm1(cycle / failures.mean) / interval - 1
    work, count, stride = 0.0, 1, 1
    while (part := stride * failures.survival(recovery + (count + (stride - 1) / 2) * cycle)) > 1e-9 * work:
        work += part
        count += stride
        stride = max(1, count // _EXACT_TERMS)
    return failures.mean / (interval * work) - 1 if work else math.inf


def lost_share(interval: float, cost: float, failures: FailureModel, recovery: float = 0.0) -> float:
    """Return the share of the run time that is lost, 0 to 1."""
    lost = lost_time(interval, cost, failures, recovery)
    return lost / (1 + lost) if math.isfinite(lost) else 1.0


def _solve_exponential(ratio: float) -> float:
    """Return the best interval for random failures and a cost of `ratio`, both in mean times between failures: 1 + W(-exp(-(1 + ratio))).

    It is the x between 0 and 1 with log(1 - x) + x == -ratio. For a small ratio that cancels, and two terms of its series are exact.
    """
    if ratio < 1e-8:
        return math.sqrt(2 * ratio) - 2 * ratio / 3
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        if middle < 1 and math.log1p(-middle) + middle > -ratio:
            low = middle
        else:
            high = middle
    return high


def _minimize(function: Callable[[float], float], low: float, high: float) -> float:
    """Return where the function is smallest, by golden-section search on a logarithmic scale."""
    start, end = math.log(low), math.log(high)
    for _ in range(40):
        width = _GOLDEN * (end - start)
        if function(math.exp(end - width)) < function(math.exp(start + width)):
            end = start + width
        else:
            start = end - width
    return math.exp((start + end) / 2)
