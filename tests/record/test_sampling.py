"""Operations that are not sampled or suppressed are not recorded, nor is anything inside them."""

from __future__ import annotations

import asyncio

import pytest
from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.context import _SUPPRESS_INSTRUMENTATION_KEY, attach, detach, set_value
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

import ckpt_observe
from ckpt_observe.record.recorder import recorder
from ckpt_observe.samplers import Sampler


@pytest.fixture
def sample(monkeypatch):
    def use(name, ratio=0.0):
        monkeypatch.setattr(recorder, "samples", Sampler(name, ratio).rule())

    return use


def save():
    with ckpt_observe.checkpoint("save") as operation, operation.phase("write"):
        return trace.get_current_span()


@ckpt_observe.checkpoint("list")
def listing():
    for _ in range(2):
        save()
        yield


def names_by_trace(recording):
    names = {}
    for span in recording.spans():
        names.setdefault(span.trace_id, []).append(span.name)
    return names


@pytest.mark.parametrize("name", ["traceidratio", "parentbased_traceidratio"])
def test_trace_is_recorded_completely_or_not_at_all(recording, sample, name):
    """With a ratio, all or nothing of each task is recorded, and no part of an unsampled task becomes a root."""
    sample(name, 0.5)
    for _ in range(200):
        with ckpt_observe.task("run"):
            save()
            save()
    traces = names_by_trace(recording)
    assert 0 < len(traces) < 200
    assert {tuple(sorted(names)) for names in traces.values()} == {("checkpoint.save",) * 2 + ("checkpoint.write",) * 2 + ("task run",)}


def test_unsampled_generator(recording, sample):
    """Nothing in any step of an unsampled generator is recorded. Between two steps, the context is that of the consumer."""
    sample("parentbased_traceidratio", 0.5)
    for _ in range(100):
        for _step in listing():
            assert not trace.get_current_span().get_span_context().is_valid
    traces = names_by_trace(recording)
    assert 0 < len(traces) < 100
    assert {len(names) for names in traces.values()} == {5}, "a list with two saves of one phase each"


def test_other_libraries_see_the_decision(recording, sample):
    """Another library's span inside an unsampled operation has the same trace id, and parent-based samplers do not sample it."""
    sample("parentbased_always_off")
    tracer = TracerProvider().get_tracer("host")
    with ckpt_observe.checkpoint("save"):
        root = trace.get_current_span().get_span_context()
        with tracer.start_as_current_span("PUT") as put:
            assert not put.is_recording()
            assert put.get_span_context().trace_id == root.trace_id
    assert not trace.get_current_span().get_span_context().is_valid, "nothing of it stays current"
    assert recording.pages == []


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("always_on", {"sampled", "unsampled"}),
        ("always_off", set()),
        ("parentbased_always_off", {"sampled"}),
        ("parentbased_always_on", {"sampled"}),
    ],
)
@pytest.mark.parametrize("save_once", [save, ckpt_observe.checkpoint("save")(lambda: None)], ids=["scope", "patched"])
def test_parent_of_another_library(recording, sample, name, expected, save_once):
    """A parent-based sampler keeps the parent's decision, any other decides by itself: for scopes and for patched calls alike."""
    sample(name, 1.0 if name.endswith("_on") else 0.0)
    recorded_parents = set()
    for kind, provider in (("sampled", TracerProvider()), ("unsampled", TracerProvider(sampler=ALWAYS_OFF))):
        before = len(recording.pages)
        with provider.get_tracer("host").start_as_current_span("host"):
            save_once()
        if len(recording.pages) > before:
            recorded_parents.add(kind)
    assert recorded_parents == expected


def test_unsampled_scope_in_many_tasks(recording, sample):
    """If several tasks enter one unsampled scope at the same time, nothing stays current after each of them leaves it."""
    sample("parentbased_always_off")
    scope = ckpt_observe.checkpoint("save")

    async def within(entered, leave):
        async with scope:
            entered.set()
            await leave.wait()
        return trace.get_current_span().get_span_context().is_valid

    async def together():
        entered, leave = ([asyncio.Event(), asyncio.Event()] for _ in range(2))
        tasks = [asyncio.create_task(within(*each)) for each in zip(entered, leave, strict=True)]
        for each in entered:
            await each.wait()
        still_current = []
        for event, task in zip(leave, tasks, strict=True):  # first in, first out
            event.set()
            still_current.append(await task)
        return still_current

    assert asyncio.run(together()) == [False, False]


def test_unsampled_operation_has_no_traceparent(recording, sample):
    """A checkpoint must not point to a save that was not recorded."""
    sample("always_off")
    with ckpt_observe.checkpoint("save") as operation:
        assert operation.traceparent() == ""


@pytest.mark.parametrize("key", [_SUPPRESS_INSTRUMENTATION_KEY, "suppress_instrumentation"], ids=["key", "name"])
def test_suppressed(recording, key):
    """Nothing is recorded while instrumentation is suppressed in OpenTelemetry's context, also within a task; False does not suppress."""
    with ckpt_observe.task("run"):
        for value in (True, False):
            token = attach(set_value(key, value))
            save()
            detach(token)
    assert sorted(span.name for span in recording.spans()) == ["checkpoint.save", "checkpoint.write", "task run"]
    assert contexts.get_current() == {}
