"""Real failures of session services have the right code and phase."""

from __future__ import annotations

from pathlib import Path

import pytest
from observation import Observation

from ckpt_observe.semconv import attributes as names

pytestmark = pytest.mark.libraries

FAILURES = {
    "locked": ("OperationalError", "append", "conflict.locked", "write", True),
    "locked_database": ("OperationalError", "append", "conflict.locked", "write", True),
    "damaged_event": ("ValidationError", "load", "serialization.malformed", None, False),
    "damaged_state": ("ValueError", "load", "serialization.malformed", None, False),
    "damaged_database": ("ValueError", "load", "serialization.malformed", "deserialize", False),
    "stale": ("StaleSessionError", "append", "conflict.stale", None, False),
    "exists": ("AlreadyExistsError", "save", "conflict.exists", None, False),
    "missing": ("SessionNotFoundError", "append", "not_found.checkpoint", None, False),
    "unserializable": ("PydanticSerializationError", "append", "serialization.unsupported_type", None, False),
}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The exceptions of all failures, provoked in one process, and its spans."""
    observation = Observation(tmp_path_factory.mktemp("failures"), Path(__file__).parent)
    return observation.run("failures.py"), observation.spans()


@pytest.mark.parametrize("kind", FAILURES)
def test_failure_is_classified(run, kind):
    """The failed operation has the code, phase and retryability of its cause; the program gets the exception that it always got."""
    results, spans = run
    exception, operation, code, phase, is_retryable = FAILURES[kind]
    assert results[kind] == exception
    [attributes] = [span.attributes for span in spans.operations(operation, outcome="error") if span.attributes[names.SESSION_ID] == kind]
    assert (attributes[names.ERROR_CODE], attributes.get(names.ERROR_PHASE)) == (code, phase)
    assert attributes[names.ERROR_RETRYABLE] is is_retryable
