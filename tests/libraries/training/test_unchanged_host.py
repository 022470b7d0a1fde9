"""A training program cannot notice that it is observed."""

from __future__ import annotations

import pytest
from observation import Observation

from ckpt_observe.semconv import attributes as names

pytestmark = pytest.mark.libraries

SUBJECTS = ["results", "exceptions", "signatures", "pickling", "environment", "random_states"]


@pytest.fixture(scope="module")
def bare(tmp_path_factory, request):
    """The report of a program that is not observed."""
    return Observation(tmp_path_factory.mktemp("bare"), request.path.parent).run("host_report.py", observed=False)


def test_program_notices_nothing(observation, bare):
    """Results, files, exceptions, signatures, pickling, environment and the states of all random generators are the same."""
    assert sorted(bare) == sorted(SUBJECTS)
    observed = observation.run("host_report.py")
    for subject in SUBJECTS:
        assert observed[subject] == bare[subject], subject
    systems = {span.attributes[names.SYSTEM] for span in observation.spans().operations("save")}
    assert systems == {"torch", "torch.dcp", "safetensors", "keras", "orbax"}


def test_careless_instrumentor_is_noticed(observation, bare):
    """Control: each subject differs if an instrumentor damages it."""
    damaged = observation.run("host_report.py", "damaged", observed=False)
    assert [subject for subject in SUBJECTS if damaged[subject] == bare[subject]] == []
