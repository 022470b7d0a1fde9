"""Real failures of savers have the right class, code and phase, and say whether a retry may help."""

from __future__ import annotations

import re
from importlib.util import find_spec
from typing import NamedTuple

import pytest

from ckpt_observe.semconv import attributes as names

pytestmark = pytest.mark.libraries


class Failure(NamedTuple):
    """What the span of the failed operation must say."""

    kind: str
    exception: str
    operation: str
    error_class: str
    code: str
    phase: str
    retryable: bool = False


FAILURES = [
    Failure("locked", "OperationalError", "save", "conflict", "conflict.locked", "write", retryable=True),
    Failure("full", "OperationalError", "save", "capacity", "storage.no_space", "write"),
    Failure("read_only", "OperationalError", "save", "storage", "storage.read_only", "write"),
    Failure("corrupted", "ValueError", "load", "serialization", "serialization.malformed", "deserialize"),
    Failure("unserializable_state", "TypeError", "save", "serialization", "serialization.unsupported_type", "serialize"),
    Failure("unserializable_channel", "TypeError", "save", "serialization", "serialization.unsupported_type", "serialize"),
    Failure("unserializable_write", "TypeError", "append", "serialization", "serialization.unsupported_type", "serialize"),
]
FAILURES += [failure._replace(kind=f"async_{failure.kind}") for failure in FAILURES[:5]]
if find_spec("Crypto") is not None:
    FAILURES.append(Failure("wrong_key", "ValueError", "load", "permission", "encryption.wrong_key", "decrypt"))


@pytest.mark.parametrize("failure", FAILURES, ids=lambda failure: failure.kind)
def test_failure_is_classified(observation, failure):
    """The failed operation has the class, code, phase and retryability of its cause."""
    assert observation.run("failures.py", failure.kind, "checkpoints.db") == failure.exception
    span = observation.spans().operation(failure.operation, outcome="error")
    assert span.status == "error"
    assert span.attributes[names.ERROR_CODE] == failure.code
    assert span.attributes[names.ERROR_CLASS] == failure.error_class
    assert span.attributes[names.ERROR_PHASE] == failure.phase
    assert span.attributes[names.ERROR_RETRYABLE] is failure.retryable
    if "unserializable" in failure.kind:
        path = span.attributes["checkpoint.error.path"]
        assert re.fullmatch(r"documents\W+first\W+1\W*", path), path


def test_unsupported_call(observation):
    """A method that the saver does not support is an error of the program's configuration."""
    assert observation.run("failures.py", "unsupported_async", "checkpoints.db") == "NotImplementedError"
    span = observation.spans().operation("load", outcome="error")
    assert span.attributes[names.ERROR_CODE] == "configuration.unsupported"
    assert span.attributes[names.ERROR_CLASS] == "configuration"
    assert names.ERROR_PHASE not in span.attributes  # it had not begun to read
    assert span.attributes[names.ERROR_RETRYABLE] is False


def test_cancelled_call(observation):
    """A save that the program cancels is cancelled, not failed."""
    assert observation.run("failures.py", "cancelled", "checkpoints.db") == "CancelledError"
    span = observation.spans().operation("save")
    assert span.attributes[names.OUTCOME] == "cancelled"
    assert span.attributes[names.ERROR_CLASS] == "cancelled"
