"""OTEL_TRACES_SAMPLER: the decisions are those of OpenTelemetry's own SDK."""

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


def beneath(trace_id, sampled):
    """A context whose span is a remote one of that trace."""
    flags = trace.TraceFlags(trace.TraceFlags.SAMPLED if sampled else trace.TraceFlags.DEFAULT)
    return trace.set_span_in_context(trace.NonRecordingSpan(trace.SpanContext(trace_id, 7, is_remote=True, trace_flags=flags)))


@pytest.mark.parametrize("ratio", ["0", "0.25", "0.5", "1", ""])
@pytest.mark.parametrize("name", NAMES)
def test_decides_as_the_sdk(name, ratio, monkeypatch):
    """For each sampler and ratio, with a sampled, an unsampled and no parent: the same traces as the SDK that reads the same variables."""
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", name)
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", ratio)
    theirs, ours = sampling._get_from_env_or_default(), read().sampler.rule() or (lambda _, parent: parent is not False)
    for raw in IDS:
        number = int.from_bytes(raw, "big")
        for parent in (None, True, False):
            context = None if parent is None else beneath(number, parent)
            assert ours(raw.hex(), parent) == theirs.should_sample(context, number, "save").decision.is_sampled()


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
def test_default_decides_nothing(name, ratio, default):
    """Where the parent alone decides there is no function to call for each operation."""
    assert (samplers.read({"OTEL_TRACES_SAMPLER": name, "OTEL_TRACES_SAMPLER_ARG": ratio}).rule() is None) == default


@pytest.mark.parametrize(
    ("name", "ratio", "said"),
    [
        ("dice", "", "OTEL_TRACES_SAMPLER: 'dice'"),
        ("traceidratio", "1.5", "OTEL_TRACES_SAMPLER_ARG: '1.5'"),
        ("traceidratio", "half", "'half'"),
        ("traceidratio", "nan", "'nan'"),
        ("traceidratio", "-0.1", "'-0.1'"),
    ],
)
def test_wrong_values(name, ratio, said):
    """As with every other setting: an error that names the variable and the value."""
    with pytest.raises(ConfigError, match=said):
        read({"OTEL_TRACES_SAMPLER": name, "OTEL_TRACES_SAMPLER_ARG": ratio})


def test_origin_is_known():
    """Where it came from can be told."""
    assert read({"OTEL_TRACES_SAMPLER": "always_on"}).origin["OTEL_TRACES_SAMPLER"] == "OTEL_TRACES_SAMPLER"
    assert read({}).origin["OTEL_TRACES_SAMPLER"] == "default"


def test_service_name_order():
    """OpenTelemetry's order: OTEL_SERVICE_NAME, else `service.name` among the resource attributes; never both."""
    among = {"OTEL_RESOURCE_ATTRIBUTES": "service.name=among,team=a%20b"}
    found = read(among)
    assert (found.service, found.origin["service"], found.resource) == ("among", "OTEL_RESOURCE_ATTRIBUTES", {"team": "a b"})
    both = read({**among, "OTEL_SERVICE_NAME": "own"})
    assert (both.service, both.origin["service"], both.resource) == ("own", "OTEL_SERVICE_NAME", {"team": "a b"})


@pytest.mark.parametrize(("name", "on"), [("always_off", False), ("parentbased_always_off", True), ("always_on", True)])
def test_never_is_as_good_as_off(name, on, monkeypatch, state, tmp_path, stored_spans):
    """With `always_off` patched calls go through at once, and your own operations record nothing either."""
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", name)
    watch = ckpt_observe.observe(exporters="local", dir=state, pages_dir=tmp_path / "pages")
    assert recorder.on == on
    with ckpt_observe.checkpoint("save"):
        pass
    Checkpointer(tmp_path / "ckpt").save("run", {"a": 1})
    watch.close(10)
    assert len(stored_spans()) == (5 if name == "always_on" else 0)
