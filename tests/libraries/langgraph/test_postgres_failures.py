"""Failures of PostgreSQL, and what its savers hide from a serializer."""

from __future__ import annotations

import pytest

from ckpt_observe.semconv import attributes as names

pytestmark = pytest.mark.libraries


@pytest.mark.parametrize("kind", ["terminated", "terminated_async", "terminated_in_pool"])
def test_server_ends_the_connection(observation, postgres_url, kind):
    """The save fails because the server cannot be reached, and may be retried."""
    assert observation.run("failures.py", kind, postgres_url) in {"AdminShutdown", "OperationalError"}
    span = observation.spans().operation("save", outcome="error")
    assert span.attributes[names.ERROR_CLASS] == "unavailable"
    assert span.attributes[names.ERROR_CODE] == "unavailable.connection"
    assert span.attributes[names.ERROR_PHASE] in {"write", "commit"}
    assert span.attributes[names.ERROR_RETRYABLE] is True


def test_refused_text_is_not_recorded(observation, postgres_url):
    """PostgreSQL quotes the text that it refuses in its message. The spans say what is wrong, without the text."""
    assert observation.run("failures.py", "refused_text", postgres_url) == "UntranslatableCharacter"
    spans = observation.spans()
    save = spans.operation("save", outcome="error")
    assert save.attributes[names.ERROR_CODE] == "serialization.unsupported_type"
    messages = [event.attributes["exception.message"] for event in save.events if "exception.message" in event.attributes]
    assert messages == ["unsupported Unicode escape sequence"]
    assert "what the state contains" not in repr(list(spans))
