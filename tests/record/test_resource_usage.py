"""What an operation has used, from two readings of the system's counters."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest

from ckpt_observe.record.resource_usage import cpu_seconds


@pytest.mark.parametrize(("user", "system"), [(0.1, 0.7), (0.3, 0.1), (1.734816, 0.261947), (2.0, 0.0)])
def test_no_cpu_time_is_zero(user, system):
    """Without a change between two readings, the CPU time is 0, and not -0 by the rounding of a sum, which backends show as it is."""
    reading = SimpleNamespace(ru_utime=user, ru_stime=system)
    assert math.copysign(1, cpu_seconds(reading, reading)) == 1


def test_cpu_time():
    """The time in the program and that in the system count."""
    before, after = SimpleNamespace(ru_utime=0.1, ru_stime=0.2), SimpleNamespace(ru_utime=0.4, ru_stime=0.25)
    assert cpu_seconds(before, after) == 0.35
