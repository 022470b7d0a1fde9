"""What a sampler leaves out, and what is suppressed, is not recorded; nor is anything beneath it."""

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


def names_by_trace(recorded):
    found = {}
    for span in recorded.spans():
        found.setdefault(span.trace_id, []).append(span.name)
    return found


@pytest.mark.parametrize("name", ["traceidratio", "parentbased_traceidratio"])
def test_a_trace_is_whole_or_not_there(recorded, sample, name):
    """A ratio decides on roots: of each task all is recorded or nothing, and nothing of a task that was left out becomes a root itself."""
    sample(name, 0.5)
    for _ in range(200):
        with ckpt_observe.task("run"):
            save()
            save()
    found = names_by_trace(recorded)
    assert 0 < len(found) < 200
    assert {tuple(sorted(names)) for names in found.values()} == {("checkpoint.save",) * 2 + ("checkpoint.write",) * 2 + ("task run",)}


def test_a_generator_is_left_out_in_all_its_steps(recorded, sample):
    """Between two steps the consumer's context is its own; in each step what is saved belongs to the trace that was left out."""
    sample("parentbased_traceidratio", 0.5)
    for _ in range(100):
        for _step in listing():
            assert not trace.get_current_span().get_span_context().is_valid
    found = names_by_trace(recorded)
    assert 0 < len(found) < 100
    assert {len(names) for names in found.values()} == {5}, "a list with two saves of one phase each"


def test_others_see_the_decision(recorded, sample):
    """Somebody's own span beneath an operation that was left out is of the same trace, and is left out by a parent-based sampler."""
    sample("parentbased_always_off")
    tracer = TracerProvider().get_tracer("host")
    with ckpt_observe.checkpoint("save"):
        root = trace.get_current_span().get_span_context()
        with tracer.start_as_current_span("PUT") as put:
            assert not put.is_recording()
            assert put.get_span_context().trace_id == root.trace_id
    assert not trace.get_current_span().get_span_context().is_valid, "nothing of it stays current"
    assert recorded.pages == []


@pytest.mark.parametrize(
    ("name", "recorded_beneath"),
    [
        ("always_on", {"sampled", "unsampled"}),
        ("always_off", set()),
        ("parentbased_always_off", {"sampled"}),
        ("parentbased_always_on", {"sampled"}),
    ],
)
@pytest.mark.parametrize("once", [save, ckpt_observe.checkpoint("save")(lambda: None)], ids=["scope", "patched"])
def test_foreign_parents(recorded, sample, name, recorded_beneath, once):
    """A parent-based sampler keeps the parent's decision; one that is not decides by itself. A patched call, which looks first, too."""
    sample(name, 1.0 if name.endswith("_on") else 0.0)
    found = set()
    for kind, provider in (("sampled", TracerProvider()), ("unsampled", TracerProvider(sampler=ALWAYS_OFF))):
        before = len(recorded.pages)
        with provider.get_tracer("host").start_as_current_span("host"):
            once()
        if len(recorded.pages) > before:
            found.add(kind)
    assert found == recorded_beneath


def test_one_scope_in_many_tasks(recorded, sample):
    """A scope that several tasks are in at once is left by each as it was entered, also where it is left out: nothing stays current."""
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
        left = []
        for event, task in zip(leave, tasks, strict=True):  # the first that came is the first to go
            event.set()
            left.append(await task)
        return left

    assert asyncio.run(together()) == [False, False]


def test_not_recorded_has_no_traceparent(recorded, sample):
    """A checkpoint does not point to a save that is nowhere."""
    sample("always_off")
    with ckpt_observe.checkpoint("save") as operation:
        assert operation.traceparent() == ""


@pytest.mark.parametrize("key", [_SUPPRESS_INSTRUMENTATION_KEY, "suppress_instrumentation"], ids=["key", "name"])
def test_suppressed(recorded, key):
    """While OpenTelemetry's context says so nothing is recorded, also within a task; false is not so."""
    with ckpt_observe.task("run"):
        for value in (True, False):
            token = attach(set_value(key, value))
            save()
            detach(token)
    assert sorted(span.name for span in recorded.spans()) == ["checkpoint.save", "checkpoint.write", "task run"]
    assert contexts.get_current() == {}
