"""The host program cannot notice that it is observed."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.libraries

SUBJECTS = ["results", "exceptions", "signatures", "pickling", "random_state", "environment", "threads", "descriptors"]


def test_program_notices_nothing(observation):
    """Results, exceptions, signatures, pickling, environment, threads, descriptors and the state of `random` are the same."""
    bare = observation.run("host_report.py", observed=False)
    assert sorted(bare) == sorted(SUBJECTS)
    observed = observation.run("host_report.py")
    for subject in SUBJECTS:
        assert observed[subject] == bare[subject], subject
    assert observation.spans().operations("save")


def test_careless_instrumentor_is_noticed(observation):
    """Control: each subject differs if an instrumentor damages it."""
    bare = observation.run("host_report.py", observed=False)
    assert observation.run("host_report.py", observed=False) == bare, "the report is not the same in every run"
    damaged = observation.run("host_report.py", "damaged", observed=False)
    assert [subject for subject in SUBJECTS if damaged[subject] == bare[subject]] == []
