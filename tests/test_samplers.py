"""OTEL_TRACES_SAMPLER decides as OpenTelemetry's SDK does."""

from __future__ import annotations

import os

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import sampling

import ckpt_observe
from ckpt_observe import samplers
from ckpt_observe.config import read
from ckpt_observe.core import Checkpointer
from ckpt_observe.errors import ConfigError
from ckpt_observe.record.recorder import recorder

NAMES = ("always_on", "always_off", "traceidratio", "parentbased_always_on", "parentbased_always_off", "parentbased_traceidratio")
IDS = [os.urandom(16) for _ in range(300)] + [bytes(15) + b"\1", b"\xff" * 16, b"\xff" * 8 + bytes(8)]


def remote_parent(trace_id, sampled):
    """Return a context with a remote span of that trace."""
    flags = trace.TraceFlags(trace.TraceFlags.SAMPLED if sampled else trace.TraceFlags.DEFAULT)
    return trace.set_span_in_context(trace.NonRecordingSpan(trace.SpanContext(trace_id, 7, is_remote=True, trace_flags=flags)))


@pytest.mark.parametrize("ratio", ["0", "0.25", "0.5", "1", ""])
@pytest.mark.parametrize("name", NAMES)
def test_decides_as_the_sdk(name, ratio, monkeypatch):
    """For each sampler and ratio, with a sampled, an unsampled and no parent, the decision equals that of the SDK."""
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", name)
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", ratio)
    sdk_sampler, ours = sampling._get_from_env_or_default(), read().sampler.rule() or (lambda _, parent: parent is not False)
    for raw in IDS:
        number = int.from_bytes(raw, "big")
        for parent in (None, True, False):
            context = None if parent is None else remote_parent(number, parent)
            assert ours(raw.hex(), parent) == sdk_sampler.should_sample(context, number, "save").decision.is_sampled()


@pytest.mark.parametrize(
    ("name", "ratio", "default"),
    [
        ("", "", True),
        ("parentbased_always_on", "", True),
        ("parentbased_traceidratio", "1", True),
        ("xray", "", True),
        ("ParentBased_Always_On", "", True),
        ("always_on", "", False),
        ("parentbased_traceidratio", "0.9", False),
    ],
)
def test_default_needs_no_rule(name, ratio, default):
    """If only the parent decides, no function is called for each operation."""
    assert (samplers.read({"OTEL_TRACES_SAMPLER": name, "OTEL_TRACES_SAMPLER_ARG": ratio}).rule() is None) == default


@pytest.mark.parametrize(
    ("name", "ratio", "message"),
    [
        ("dice", "", "OTEL_TRACES_SAMPLER: 'dice'"),
        ("traceidratio", "1.5", "OTEL_TRACES_SAMPLER_ARG: '1.5'"),
        ("traceidratio", "half", "'half'"),
        ("traceidratio", "nan", "'nan'"),
        ("traceidratio", "-0.1", "'-0.1'"),
    ],
)
def test_wrong_values(name, ratio, message):
    """The error names the variable and the value, as for every other setting."""
    with pytest.raises(ConfigError, match=message):
        read({"OTEL_TRACES_SAMPLER": name, "OTEL_TRACES_SAMPLER_ARG": ratio})


def test_origin_is_known():
    """The settings know where the sampler came from."""
    assert read({"OTEL_TRACES_SAMPLER": "always_on"}).origin["OTEL_TRACES_SAMPLER"] == "OTEL_TRACES_SAMPLER"
    assert read({}).origin["OTEL_TRACES_SAMPLER"] == "default"


def test_service_name_order():
    """OTEL_SERVICE_NAME takes precedence over `service.name` in the resource attributes, as in OpenTelemetry."""
    variables = {"OTEL_RESOURCE_ATTRIBUTES": "service.name=attribute,team=a%20b"}
    settings = read(variables)
    assert (settings.service, settings.origin["service"], settings.resource) == ("attribute", "OTEL_RESOURCE_ATTRIBUTES", {"team": "a b"})
    both = read({**variables, "OTEL_SERVICE_NAME": "variable"})
    assert (both.service, both.origin["service"], both.resource) == ("variable", "OTEL_SERVICE_NAME", {"team": "a b"})


@pytest.mark.parametrize(("name", "on"), [("always_off", False), ("parentbased_always_off", True), ("always_on", True)])
def test_always_off(name, on, monkeypatch, state, tmp_path, stored_spans):
    """With `always_off`, patched calls skip the instrumentation, and custom operations record nothing."""
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", name)
    watch = ckpt_observe.observe(exporters="local", dir=state, pages_dir=tmp_path / "pages")
    assert recorder.on == on
    with ckpt_observe.checkpoint("save"):
        pass
    Checkpointer(tmp_path / "ckpt").save("run", {"a": 1})
    watch.close(10)
    assert len(stored_spans()) == (6 if name == "always_on" else 0)
