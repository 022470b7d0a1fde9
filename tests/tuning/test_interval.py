"""The advised interval against an event simulation of failures."""

from __future__ import annotations

import math
import random

import pytest

from ckpt_observe.query import Lifetime
from ckpt_observe.tuning.failure_model import FailureModel, fit_failures
from ckpt_observe.tuning.interval import lost_share, lost_time, optimal_interval

SEED = 20260131
LIVES = 10_000
"""Simulated processes. The losses of two intervals are compared for the same processes, so most of the sampling error cancels."""

DISTRIBUTIONS = {
    "exponential": lambda rng, mean: rng.expovariate(1 / mean),
    "weibull 0.5": lambda rng, mean: rng.weibullvariate(mean / math.gamma(3), 0.5),
    "weibull 0.7": lambda rng, mean: rng.weibullvariate(mean / math.gamma(1 + 1 / 0.7), 0.7),
    "weibull 2": lambda rng, mean: rng.weibullvariate(mean / math.gamma(1.5), 2),
    "lognormal": lambda rng, mean: rng.lognormvariate(math.log(mean) - 0.5, 1),
}
RUNS = [(0.5, 1.0, 900.0), (60.0, 120.0, 86_400.0), (300.0, 600.0, 21_600.0), (600.0, 600.0, 3_600.0)]
"""Cost of a save, time to recover, mean time between failures: from an agent to a run in which every save is a sixth of a failure."""


def simulate(interval, cost, recovery, lives):
    """Return the lost time for each second of work that remains. Each process recovers, then works and saves in turn until it dies."""
    work = wall = 0.0
    for life in lives:
        work += interval * int(max(life - recovery, 0.0) / (interval + cost))  # what comes after the last save is lost
        wall += life
    return (wall - work) / work if work else math.inf


def step_by_step(interval, cost, recovery, lives):
    """The same, one event after the other: a control for `simulate`."""
    work = wall = 0.0
    for life in lives:
        clock, unsaved = recovery, 0.0
        while clock < life:
            clock += interval
            unsaved = interval
            clock += cost
            if clock <= life:
                work += unsaved
        wall += life
    return (wall - work) / work if work else math.inf


def simulated_lives(name, mean, count=LIVES, seed=SEED):
    rng = random.Random(seed)
    return [DISTRIBUTIONS[name](rng, mean) for _ in range(count)]


def test_simulation_counts_events():
    """Control: the simulation is the same as one that goes from event to event."""
    lives = simulated_lives("weibull 0.7", 1000, 300)
    for interval in (10, 77, 500):
        assert simulate(interval, 5, 20, lives) == pytest.approx(step_by_step(interval, 5, 20, lives))


@pytest.mark.parametrize("run", RUNS, ids=str)
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_advice_is_near_the_simulated_optimum(name, run):
    """With the measurements of 200 processes, the lost time at the advised interval is within 5 % of the least lost time."""
    cost, recovery, mean = run
    measured = [Lifetime(seconds, died=True) for seconds in simulated_lives(name, mean, 200, seed=SEED + 1)]
    advised = optimal_interval(cost, fit_failures(measured), recovery)
    lives = simulated_lives(name, mean)
    best = min(simulate(advised * 1.12**step, cost, recovery, lives) for step in range(-13, 14))
    lost = simulate(advised, cost, recovery, lives)
    assert lost <= 1.05 * best, f"seed {SEED}: {lost:.4f} lost at {advised:.1f} s, {best:.4f} at the optimum"


def test_a_wrong_interval_is_outside():
    """Control: twice or half the interval loses more than 5 % more than the optimum, so the test above can fail."""
    cost, recovery, mean = RUNS[1]
    lives = simulated_lives("exponential", mean)
    advised = optimal_interval(cost, FailureModel(mean), recovery)
    best = min(simulate(advised * 1.12**step, cost, recovery, lives) for step in range(-13, 14))
    assert min(simulate(advised * factor, cost, recovery, lives) for factor in (0.5, 2)) > 1.05 * best


@pytest.mark.parametrize(("cost", "mean"), [(1e-3, 1e6), (1, 1000), (600, 3600), (1e4, 1e3)])
def test_exponential_optimum_is_exact(cost, mean):
    """The closed form is the minimum of the lost time, and approaches Young's formula for a small cost."""
    failures = FailureModel(mean)
    best = optimal_interval(cost, failures)
    assert lost_time(best, cost, failures) <= min(lost_time(best * factor, cost, failures) for factor in (0.99, 1.01))
    if cost < mean / 1e6:
        assert best == pytest.approx(math.sqrt(2 * cost * mean), rel=1e-3)


def test_general_sum_agrees_with_the_closed_form():
    """For a shape near 1, the sum over the survival function gives the same loss as the formula for random failures."""
    exact, general = FailureModel(1000.0), FailureModel(1000.0, 1 + 1e-9)
    for interval in (5, 50, 500):
        assert lost_time(interval, 3, general, 10) == pytest.approx(lost_time(interval, 3, exact, 10), rel=1e-5)


@pytest.mark.parametrize("name", ["weibull 0.5", "weibull 0.7", "weibull 2", "exponential"])
def test_failures_are_fitted(name):
    """Mean and shape are found again, also if half of the processes ended before they died."""
    shape = float(name.split()[1]) if " " in name else 1.0
    rng = random.Random(SEED + 2)
    lifetimes = []
    for seconds in simulated_lives(name, 1000.0, 4000):
        end = rng.expovariate(1 / 1000)
        lifetimes.append(Lifetime(min(seconds, end), died=seconds <= end))
    assert 0.4 < sum(lifetime.died for lifetime in lifetimes) / 4000 < 0.8
    fitted = fit_failures(lifetimes)
    assert fitted.shape == pytest.approx(shape, rel=0.1)
    assert fitted.mean == pytest.approx(1000, rel=0.15)


def test_few_deaths():
    """With few deaths, failures count as random; without any, the mean is a lower bound; without any time, nothing is known."""
    assert fit_failures([Lifetime(100.0, died=True), Lifetime(300.0, died=False)]) == FailureModel(400.0, deaths=1)
    assert fit_failures([Lifetime(300.0, died=False)]) == FailureModel(100.0)
    assert fit_failures([]) is None


def test_extreme_measurements():
    """No measurement makes the formulas fail."""
    for cost in (1e-9, 1e9):
        for mean in (1e-3, 1e12):
            interval = optimal_interval(cost, FailureModel(mean))
            assert interval > 0
            assert 0 <= lost_share(interval, cost, FailureModel(mean)) <= 1
    with pytest.raises(ValueError, match="positive"):
        optimal_interval(0, FailureModel(10))


def test_clustered_failures_take_few_steps(monkeypatch):
    """A program that crashed a dozen times at its start and then ran for a week: millions of terms are added in a few thousand steps."""
    failures = fit_failures([Lifetime(1.0, died=True)] * 12 + [Lifetime(604_800.0, died=True)])
    steps = 0

    def survival(self, seconds):
        nonlocal steps
        steps += 1
        return original(self, seconds)

    original = FailureModel.survival
    monkeypatch.setattr(FailureModel, "survival", survival)
    lost = lost_time(300.0, 2.0, failures)
    assert steps < 5_000
    exact = sum(original(failures, count * 302.0) for count in range(1, 300_000))
    assert lost == pytest.approx(failures.mean / (300.0 * exact) - 1, rel=0.05)
