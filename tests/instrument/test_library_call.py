"""Rows of a library's table: calls that turn out to be nothing are dropped, and a call inside the same kind of operation is its phase."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

import pytest
from opentelemetry import trace
from opentelemetry.context import Context

import ckpt_observe
from ckpt_observe.instrument.library_call import LibraryCall
from ckpt_observe.instrument.phase_calls import OperationOrPhase, SummedPhase
from ckpt_observe.record import guard
from ckpt_observe.record.recorder import recorder
from ckpt_observe.record.trace_context import SPAN_KEY, CarriedSpan, Parent
from ckpt_observe.semconv import attributes as names
from ckpt_observe.semconv import events
from ckpt_observe.testing.spans import outline


def observe(row, function):
    """The function, observed by a row."""
    wrapper = row.wrapper_for(function)
    return lambda *args, **kwargs: wrapper(function, None, args, kwargs)


def describe(_instance, arguments):
    return {names.ID: arguments.get("name")}


def names_of(recording):
    return [line.strip() for line in outline(recording.spans()).splitlines()]


@pytest.fixture
def look_up():
    """An observed lookup that returns None if it finds nothing."""
    row = LibraryCall(
        "toy", "load", describe, lambda operation, result: operation.set({names.STEP: result}), is_nothing=lambda result: result is None
    )
    return observe(row, lambda name, value: value() if callable(value) else value)


def test_lookup_that_finds_nothing_is_dropped(recording, look_up):
    """Only the lookup that found something is recorded, with its result; the page of the other is free again."""
    assert look_up("a", None) is None
    assert look_up("b", 7) == 7
    [span] = recording.spans()
    assert (span.attributes[names.ID], span.attributes[names.STEP]) == ("b", 7)
    assert [page.ended for page in recording.pages] == [1, 1]


def test_result_of_an_unrecorded_operation_is_not_looked_at(recording, monkeypatch):
    """In a trace that is not sampled, without metrics: looking for the tensors of a loaded state takes milliseconds, all for nothing."""
    results = []
    load = observe(LibraryCall("toy", "load", describe, lambda _operation, result: results.append(result)), lambda name: name)
    monkeypatch.setattr(recorder, "samples", lambda trace_id, parent_sampled: False)
    assert load("a") == "a"
    monkeypatch.setattr(recorder, "unsampled", events.NOTHING)
    assert load("b") == "b"
    assert results == ["b"]


@pytest.fixture
def prepared_save():
    """An observed save, and the steps for which it was prepared."""
    steps = []
    row = LibraryCall("toy", "save", describe, prepare=lambda _operation, _instance, arguments: steps.append(arguments["step"]))
    return observe(row, lambda name, step: trace.get_current_span()), steps


def test_unrecorded_operation_is_not_prepared(recording, monkeypatch, prepared_save):
    """A save is prepared if and only if its trace is recorded: looking for the tensors of a state takes milliseconds."""
    save, steps = prepared_save
    monkeypatch.setattr(recorder, "samples", lambda trace_id, parent_sampled: trace_id < "8")
    for step in range(100):
        save("run", step)
    assert len(recording.spans()) == len(steps)
    assert 0 < len(steps) < 100
    monkeypatch.setattr(recorder, "unsampled", events.NOTHING)
    for step in range(100):
        save("run", step)
    assert len(recording.spans()) - 100 == len(steps) - 100 > 0


@pytest.mark.parametrize("rule", [None, lambda _trace_id, parent_sampled: parent_sampled])
@pytest.mark.parametrize("parent", ["current span", "of the process"])
def test_operation_below_an_unsampled_parent_is_not_prepared(recording, monkeypatch, prepared_save, parent, rule):
    """If the parent's decision holds, no save below an unsampled parent is prepared, and each below a sampled one is."""
    save, steps = prepared_save
    monkeypatch.setattr(recorder, "samples", rule)
    for step, flags in enumerate((trace.TraceFlags.DEFAULT, trace.TraceFlags.SAMPLED)):
        if parent == "current span":
            span = trace.NonRecordingSpan(trace.SpanContext(1, 2, is_remote=True, trace_flags=trace.TraceFlags(flags)))
            with trace.use_span(span):
                save("run", step)
        else:
            monkeypatch.setattr(recorder, "process_parent", Parent("1" * 32, "2" * 16, sampled=bool(flags)))
            save("run", step)
    assert (len(recording.spans()), steps) == (1, [1])


CARRIED = Parent("f" * 32, "2" * 16, sampled=False)


def test_call_inside_an_unsampled_operation_of_another_process(recording, monkeypatch):
    """If the parent that a row finds in another process is not sampled, a call of another library inside does not start a trace of its own."""
    monkeypatch.setattr(recorder, "samples", lambda trace_id, parent_sampled: trace_id != CARRIED.trace)
    row = LibraryCall("toy", "save", describe, find_parent=lambda operation: Context({SPAN_KEY: CarriedSpan(CARRIED)}))
    row = replace(row, prepare=lambda operation, *_call: setattr(operation, "trace_id", CARRIED.trace))
    write = observe(LibraryCall("other", "save", describe), lambda name: trace.get_current_span().get_span_context())
    span_context = observe(row, write)("run")
    assert (f"{span_context.trace_id:032x}", span_context.trace_flags.sampled) == (CARRIED.trace, False)
    assert not trace.get_current_span().get_span_context().is_valid
    write("later")
    assert names_of(recording) == ["checkpoint.save"]


def test_agreed_trace_is_prepared(recording, monkeypatch):
    """If the row finds a parent in another process, its preparation agrees with that process on the trace: it is never left out."""
    steps = []
    row = LibraryCall("toy", "save", describe, prepare=lambda *_: steps.append(1), find_parent=lambda _operation: None)
    monkeypatch.setattr(recorder, "samples", lambda trace_id, parent_sampled: False)
    observe(row, lambda name: name)("run")
    assert (recording.spans(), steps) == ([], [1])


def test_failed_lookup_is_recorded(recording, look_up):
    """An exception is never dropped."""

    def fail():
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        look_up("a", fail)
    [span] = recording.spans()
    assert span.attributes[names.ERROR_CODE] == "storage.no_space"


def test_dropped_operation_has_no_children(recording, look_up):
    """While it runs, the current OpenTelemetry span is the enclosing one, so nothing refers to a span that does not exist."""
    inner = []
    with ckpt_observe.task("agent"):
        outside = trace.get_current_span()
        look_up("a", lambda: inner.append(trace.get_current_span()))
        assert trace.get_current_span() is outside
    assert inner == [outside]
    assert names_of(recording) == ["task agent"]


@pytest.fixture
def write():
    """An observed write of bytes to a store."""
    phase = SummedPhase("toy", "write", lambda _operation, args, _kwargs, _result: (len(args[1]), None))
    return observe(OperationOrPhase(LibraryCall("toy", "save", describe), phase), lambda name, data: None)


def test_call_inside_the_same_kind_of_operation_is_its_phase(recording, write):
    """A save that writes to a store is one save, however often it writes; a write without such a save is a save."""
    save = observe(LibraryCall("toy", "save", describe), lambda name: (write("part 1", b"12"), write("part 2", b"345")))
    save("whole")
    write("alone", b"1")
    phase, whole, alone = recording.spans()
    assert [span.name for span in (whole, phase, alone)] == ["checkpoint.save", "checkpoint.write", "checkpoint.save"]
    assert (phase.attributes[names.PHASE_BYTES_IN], phase.attributes[names.PHASE_CALLS]) == (5, 2)
    assert alone.attributes[names.ID] == "alone"


def test_call_inside_another_kind_of_operation_is_its_own(recording, write):
    """A prune that saves is a prune and a save."""
    prune = observe(LibraryCall("toy", "prune", describe), lambda name: write("rest", b"1"))
    prune("all")
    assert sorted(span.name for span in recording.spans()) == ["checkpoint.prune", "checkpoint.save"]


def test_result_of_a_phase_of_another_library_is_not_recorded(recording):
    """A call that is only a phase of another library's operation adds no attribute of an operation to it."""
    row = LibraryCall("toy", "save", describe, lambda operation, result: operation.set({names.SIZE_STORED: result}), inside="phase")
    with ckpt_observe.checkpoint("save"):
        observe(row, lambda name: 7)("a")
    assert sorted(span.name for span in recording.spans()) == ["checkpoint.save", "checkpoint.write"]
    assert not [span for span in recording.spans() if names.SIZE_STORED in span.attributes]


def test_generator_of_another_function_is_one_operation(recording):
    """A list that hands on to the list of another saver is one operation, with all items."""
    row = LibraryCall("toy", "list", describe)

    def produce(name):
        yield from (1, 2, 3)

    inner = observe(row, produce)

    def hand_on(name):
        return inner(name)

    items = observe(row, hand_on)("a")
    assert items.__name__ == "produce"
    assert list(items) == [1, 2, 3]
    assert names_of(recording) == ["checkpoint.list"]
    assert recording.spans()[0].attributes[names.COUNT] == 3


@pytest.mark.parametrize("part", ["describe", "prepare", "shared", "record_result", "is_nothing", "before_end"])
@pytest.mark.parametrize("error", [None, OSError(28, "No space left on device")], ids=["success", "failure"])
def test_fault_of_an_instrumentor_costs_only_attributes(recording, part, error):
    """The call is recorded with its outcome, whichever function of its row raises, and the fault is counted."""

    def fail(*_):
        raise LookupError(f"in {part}")

    def save(name):
        if error is not None:
            raise error
        return name

    faults_before = guard.faults.total()
    observed = observe(LibraryCall("toy", "save", **{"describe": describe, part: fail}), save)
    with pytest.raises(OSError, match="No space") if error else nullcontext():
        assert observed("a") == "a"
    [span] = recording.spans()
    assert (span.attributes[names.OPERATION], span.attributes[names.OUTCOME]) == ("save", "error" if error else "ok")
    assert span.attributes.get(names.ERROR_CODE) == ("storage.no_space" if error else None)
    is_called = error is None or part not in ("record_result", "is_nothing")
    assert guard.faults.total() - faults_before == is_called
