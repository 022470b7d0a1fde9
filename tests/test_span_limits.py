"""The limits of spans are read from OpenTelemetry's variables, as its SDK reads them."""

from __future__ import annotations

import pytest
from opentelemetry.sdk.trace import SpanLimits as SdkLimits

from ckpt_observe import config, environment, span_limits
from ckpt_observe.errors import ConfigError
from ckpt_observe.span_limits import SpanLimits


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"OTEL_ATTRIBUTE_COUNT_LIMIT": "7"},
        {"OTEL_ATTRIBUTE_COUNT_LIMIT": "7", "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT": "9", "OTEL_EVENT_ATTRIBUTE_COUNT_LIMIT": "0"},
        {"OTEL_LINK_ATTRIBUTE_COUNT_LIMIT": "3", "OTEL_SPAN_EVENT_COUNT_LIMIT": "4", "OTEL_SPAN_LINK_COUNT_LIMIT": "5"},
        {"OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT": "30"},
        {"OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT": "30", "OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT": "0"},
        {"OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT": " 20 "},
    ],
)
def test_same_as_sdk(monkeypatch, environ):
    """Every variable has the same effect and precedence as in the SDK."""
    for variable in environment.LIMITS:
        monkeypatch.delenv(variable, raising=False)
    for variable, value in environ.items():
        monkeypatch.setenv(variable, value)
    sdk = SdkLimits()
    assert config.read(environ).span_limits == SpanLimits(
        sdk.max_span_attributes,
        sdk.max_span_attribute_length,
        sdk.max_events,
        sdk.max_event_attributes,
        sdk.max_links,
        sdk.max_link_attributes,
        sdk.max_attribute_length,
    )


@pytest.mark.parametrize("variable", environment.LIMITS)
@pytest.mark.parametrize("value", ["-1", "many", "1.5", "9" * 5000])
def test_invalid_limit(variable, value):
    """A value that is not a number is an error that names the variable."""
    with pytest.raises(ConfigError, match=f"{variable}: .* is not a number; use an integer from 0 on"):
        config.read({variable: value})


def test_empty_limit():
    """An empty variable counts as unset."""
    assert span_limits.read(dict.fromkeys(environment.LIMITS, "")) == SpanLimits()
