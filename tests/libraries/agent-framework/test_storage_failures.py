"""Real failures of storages have the right code and phase."""

from __future__ import annotations

from pathlib import Path

import pytest
from observation import Observation

from ckpt_observe.semconv import attributes as names

pytestmark = pytest.mark.libraries

FRAMEWORK = "WorkflowCheckpointException"
FAILURES = {
    "unserializable": (FRAMEWORK, "save", "serialization.unsupported_type", "serialize"),
    "unserializable_memory": ("TypeError", "save", "serialization.unsupported_type", None),
    "blocked_type": (FRAMEWORK, "save", "serialization.unsupported_type", "validate"),
    "not_json": (FRAMEWORK, "load", "serialization.malformed", None),
    "not_text": (FRAMEWORK, "load", "serialization.malformed", None),
    "other_fields": (FRAMEWORK, "load", "serialization.malformed", None),
    "missing": (FRAMEWORK, "load", "not_found.checkpoint", None),
    "missing_memory": (FRAMEWORK, "load", "not_found.checkpoint", None),
    "no_directory": ("FileNotFoundError", "save", "not_found.path", None),
    "outside": (FRAMEWORK, "load", "configuration.invalid_name", None),
}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The exceptions of all failures, provoked in one process, and its spans."""
    observation = Observation(tmp_path_factory.mktemp("failures"), Path(__file__).parent)
    return observation.run("failures.py"), observation.spans()


@pytest.mark.parametrize("kind", FAILURES)
def test_failure_is_classified(run, kind):
    """The failed operation has the code and phase of its cause; the program gets the exception that it always got."""
    results, spans = run
    exception, operation, code, phase = FAILURES[kind]
    assert results[kind] == exception
    attributes = spans.operation(operation, outcome="error", id="../outside" if kind == "outside" else kind).attributes
    assert (attributes[names.ERROR_CODE], attributes.get(names.ERROR_PHASE)) == (code, phase)
    assert attributes[names.ERROR_RETRYABLE] is False
