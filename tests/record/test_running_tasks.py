"""Operations in threads that lost the context: they belong to the only running task, and are marked; tasks are never mixed."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from opentelemetry import baggage, trace
from opentelemetry.context import Context, attach, detach, get_current

import ckpt_observe
from ckpt_observe.instrument.runs import RunTask
from ckpt_observe.record import running_tasks
from ckpt_observe.record.operation import Operation
from ckpt_observe.record.packed_context import unpack
from ckpt_observe.record.recorder import recorder
from ckpt_observe.semconv import attributes as names
from ckpt_observe.testing.spans import outline


def save(**attributes):
    with ckpt_observe.checkpoint("save", attributes=attributes or None):
        pass


def in_bare_thread(function, *args, **kwargs):
    thread = threading.Thread(target=function, args=args, kwargs=kwargs)
    thread.start()
    thread.join()


def in_fork(function):
    """Call a function in a forked child. Return the repr of its result, or of the exception."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(write, repr(function()).encode())
        except BaseException as error:
            os.write(write, repr(error).encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as stream:
        result = stream.read()
    os.waitpid(child, 0)
    return result


def saves(recording):
    return [span for span in recording.spans() if span.name == "checkpoint.save"]


@pytest.fixture(autouse=True)
def check_nothing_is_left():
    """Check that no task is left in the registry, whatever a test did."""
    yield
    gc.collect()
    assert not running_tasks._by_id
    assert not running_tasks._outermost
    assert not running_tasks.candidates
    assert running_tasks.process_context() is None


def test_only_task_gets_saves_of_bare_threads(recording):
    """A raw thread and an executor: the save is in the trace of the task, has its name and id, and is marked as inferred."""
    with ckpt_observe.task("train", id="run-1") as task, ThreadPoolExecutor(1) as pool:
        in_bare_thread(save)
        pool.submit(save).result()
        save()
    assignments = [(span.trace_id, span.attributes[names.TASK_NAME], span.attributes[names.TASK_ID]) for span in saves(recording)]
    assert assignments == [(task.trace_id, "train", "run-1")] * 3
    assert [span.attributes.get(names.TASK_INFERRED) for span in saves(recording)] == [True, True, None]
    assert {span.parent_span_id for span in saves(recording)} == {task.span_id}


def test_operations_in_an_inferred_operation(recording):
    """An operation inside an inferred one is its child, has the name of the task, and is marked like it."""

    def copy():
        with ckpt_observe.checkpoint("copy"):
            save()

    with ckpt_observe.task("train"):
        in_bare_thread(copy)
    assert outline(recording.spans()) == "task train\n  checkpoint.copy\n    checkpoint.save"
    [span] = saves(recording)
    assert (span.attributes[names.TASK_NAME], span.attributes[names.TASK_INFERRED]) == ("train", True)


def test_several_tasks_get_nothing(recording):
    """With two tasks at the same time, a save without a context could belong to either: it is a root without a task."""
    with ThreadPoolExecutor(1) as pool, ckpt_observe.task("a"):
        other = pool.submit(lambda: ckpt_observe.task("b").__enter__()).result()
        in_bare_thread(save)
        pool.submit(other.__exit__, None, None, None).result()
        in_bare_thread(save)
    root, inferred = saves(recording)
    assert (root.parent_span_id, root.attributes.get(names.TASK_NAME)) == ("", None)
    assert inferred.attributes[names.TASK_NAME] == "a"


def test_nested_tasks_are_one(recording):
    """If the running tasks are inside each other, the save belongs to the outermost: it is certain that it is not outside of it."""
    with ckpt_observe.task("outer") as outer, ckpt_observe.task("inner"):
        in_bare_thread(save)
    assert [(span.parent_span_id, span.attributes[names.TASK_NAME]) for span in saves(recording)] == [(outer.span_id, "outer")]


def test_task_with_the_id_of_the_operation(recording):
    """With several tasks, an operation that names its task id belongs to the task with this id. That is certain, not inferred."""
    with ThreadPoolExecutor(1) as pool, ckpt_observe.task("a", id="1") as first:
        other = pool.submit(lambda: ckpt_observe.task("b", id="2").__enter__()).result()
        for number in ("1", "2", "3"):
            in_bare_thread(save, **{names.TASK_ID: number})
        pool.submit(other.__exit__, None, None, None).result()
    assert [span.trace_id for span in saves(recording)][:2] == [first.trace_id, other.trace_id]
    assert [span.attributes.get(names.TASK_NAME) for span in saves(recording)] == ["a", "b", None]
    assert not any(names.TASK_INFERRED in span.attributes for span in saves(recording))


def test_task_is_found_while_another_with_its_id_ends():
    """Other threads look for tasks at any moment, and the removal of one must not hide the others."""

    class Running:
        context = Context()

    first, second, key, contexts = Running(), Running(), ("toy", "1"), []

    def look(frame, _event, _argument):
        if frame.f_code.co_filename == running_tasks.__file__:
            contexts.append(running_tasks.find_by_id(*key))
        return look

    running_tasks.add(first, key)
    running_tasks.add(second, key)
    previous = sys.gettrace()
    sys.settrace(look)
    try:
        running_tasks.remove(second, key)
    finally:
        sys.settrace(previous)
    running_tasks.remove(first, key)
    assert contexts
    assert all(each is Running.context for each in contexts)


def test_run_of_a_library_contains_no_other_ids(recording):
    """The run of a library has one task id. A save with another one belongs to somebody else, although nothing else is running."""
    with RunTask({names.TASK_NAME: "graph", names.TASK_ID: "a"}):
        in_bare_thread(save, **{names.TASK_ID: "b"})
        in_bare_thread(save)
    assert [span.attributes.get(names.TASK_NAME) for span in saves(recording)] == [None, "graph"]


def test_task_in_a_bare_thread_is_a_root(recording):
    """A task that begins in a thread without a context is a run of its own, as in a server with a thread per request."""
    with ckpt_observe.task("a"):
        in_bare_thread(lambda: ckpt_observe.task("b").__enter__().__exit__(None, None, None))
    assert outline(recording.spans()) in ("task a\ntask b", "task b\ntask a")


def test_coroutine_outside_the_task(recording):
    """Asyncio passes the context on: a coroutine without it, in the thread of the task, is not part of the task."""

    async def save_after(event):
        await event.wait()
        save()

    async def main():
        event = asyncio.Event()
        outside = asyncio.create_task(save_after(event))
        await asyncio.sleep(0)
        async with ckpt_observe.task("t"):
            inside = asyncio.create_task(save_after(event))
            event.set()
            await asyncio.gather(inside, outside)
            await asyncio.get_running_loop().run_in_executor(None, save)

    asyncio.run(main())
    assert sorted(str(span.attributes.get(names.TASK_NAME)) for span in saves(recording)) == ["None", "t", "t"]
    assert [span.attributes[names.TASK_NAME] for span in saves(recording) if names.TASK_INFERRED in span.attributes] == ["t"]


def test_current_span_has_precedence(recording):
    """A thread that has a span of the host program keeps it as the parent."""
    context = trace.SpanContext(1, 2, is_remote=False, trace_flags=trace.TraceFlags(1))

    def save_in_span():
        token = attach(trace.set_span_in_context(trace.NonRecordingSpan(context)))
        save()
        detach(token)

    with ckpt_observe.task("t"):
        in_bare_thread(save_in_span)
    [span] = saves(recording)
    assert (span.parent_span_id, span.attributes.get(names.TASK_NAME)) == (f"{2:016x}", None)


def test_instrumented_threads_pass_the_context_on(recording):
    """With OpenTelemetry's instrumentation of threads, the saves of two tasks in one pool are in their own traces. Nothing is inferred."""
    threading_instrumentation = pytest.importorskip("opentelemetry.instrumentation.threading")
    barrier = threading.Barrier(2)

    def train(name, pool):
        with ckpt_observe.task(name):
            barrier.wait()
            pool.submit(save).result()
            barrier.wait()

    instrumentor = threading_instrumentation.ThreadingInstrumentor()
    instrumentor.instrument()
    try:
        with ThreadPoolExecutor(1) as pool:
            threads = [threading.Thread(target=train, args=(name, pool)) for name in ("a", "b")]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    finally:
        instrumentor.uninstrument()
    assert sorted(span.attributes[names.TASK_NAME] for span in saves(recording)) == ["a", "b"]
    assert not any(names.TASK_INFERRED in span.attributes for span in saves(recording))


def test_context_of_the_thread_is_unchanged(recording):
    """After an inferred operation, the thread has no context again."""
    contexts = []

    def save_and_look():
        save()
        contexts.append(get_current())

    with ckpt_observe.task("t"):
        in_bare_thread(save_and_look)
    assert contexts == [{}]


def test_baggage_of_the_thread_in_an_inferred_operation(recording):
    """An operation that finds its task without a context does not take the host program's baggage away."""
    tenants = []

    def save_with_baggage():
        attach(baggage.set_baggage("tenant", "a"))
        with ckpt_observe.checkpoint("save"):
            tenants.append(baggage.get_baggage("tenant"))

    with ckpt_observe.task("t"):
        in_bare_thread(save_with_baggage)
    assert tenants == ["a"]
    assert saves(recording)[0].attributes[names.TASK_NAME] == "t"


def test_unsampled_task_records_nothing_in_bare_threads(recording, monkeypatch):
    """Threads that lost the context follow the sampling decision of their task."""
    monkeypatch.setattr(recorder, "samples", lambda _trace, parent: bool(parent))
    with ckpt_observe.task("t"):
        in_bare_thread(save)
    in_bare_thread(save)
    assert recording.spans() == []
    monkeypatch.setattr(recorder, "samples", None)
    save()
    assert len(recording.spans()) == 1


def test_inside_an_operation_of_an_unsampled_task(recording, monkeypatch):
    """With two running tasks, an operation finds its own by id. What begins inside it, without an id, is not recorded either."""
    decisions = iter((False, True))
    monkeypatch.setattr(recorder, "samples", lambda _trace, parent: next(decisions, True) if parent is None else parent)

    def save_in_parts():
        with ckpt_observe.checkpoint("save", attributes={names.TASK_ID: "1"}):
            save()

    with ThreadPoolExecutor(1) as pool, ckpt_observe.task("a", id="1"):
        other = pool.submit(lambda: ckpt_observe.task("b", id="2").__enter__()).result()
        in_bare_thread(save_in_parts)
        pool.submit(other.__exit__, None, None, None).result()
    assert saves(recording) == []


def test_ended_and_failed_tasks_are_forgotten(recording):
    """After the end of a task, also by an exception, a save without a context is a root again."""
    with pytest.raises(ValueError, match="x"), ckpt_observe.task("t", id="1"):
        raise ValueError("x")
    in_bare_thread(save)
    assert saves(recording)[0].parent_span_id == ""


def test_abandoned_task_is_forgotten(recording):
    """A task that was begun and never ended does not get saves any more once it does not exist."""
    in_bare_thread(lambda: ckpt_observe.task("t", id="1").__enter__())
    gc.collect()
    in_bare_thread(save)
    assert saves(recording)[0].parent_span_id == ""


def test_threads_of_a_forked_child(recording):
    """In a forked child, a save in any thread belongs to the task in whose context the fork happened, and not to tasks of other threads."""

    def save_in_child():
        recording.pages.clear()
        in_bare_thread(save)
        save()
        return [(span.trace_id, span.attributes.get(names.TASK_NAME), names.TASK_INFERRED in span.attributes) for span in saves(recording)]

    with ThreadPoolExecutor(1) as pool, ckpt_observe.task("a") as task:
        other = pool.submit(lambda: ckpt_observe.task("b").__enter__()).result()
        assert in_fork(save_in_child) == repr([(task.trace_id, "a", False)] * 2)
        pool.submit(other.__exit__, None, None, None).result()


def test_span_of_laminar_has_precedence(recording, monkeypatch):
    """Laminar's context reaches threads that OpenTelemetry's does not: it is certain, and what we infer is not."""
    context = trace.SpanContext(1, 2, is_remote=False, trace_flags=trace.TraceFlags(1))
    monkeypatch.setattr("ckpt_observe.record.trace_context._laminar_span", lambda: trace.NonRecordingSpan(context))
    monkeypatch.setitem(sys.modules, "lmnr", None)
    with running_in(unpack({"parent": ("3" * 32, "4" * 16, True, None, {}), "task": None})):
        save()
        with ckpt_observe.task("t"):
            in_bare_thread(save)
    assert {span.parent_span_id for span in recording.spans()} == {f"{2:016x}"}


@contextmanager
def running_in(context):
    running_tasks.set_process_context(context)
    try:
        yield
    finally:
        running_tasks.set_process_context(None)


def test_process_that_was_started_in_a_task(recording):
    """Operations and tasks of a process that was started in a task are in the trace of that task, and operations have its attributes."""
    with running_in(unpack({"parent": ("3" * 32, "4" * 16, True, None, {}), "task": {names.TASK_NAME: "train"}})):
        save()
        with ckpt_observe.task("inner"):
            in_bare_thread(save)
    assert {span.trace_id for span in recording.spans()} == {"3" * 32}
    assert [(span.parent_span_id == "4" * 16, span.attributes[names.TASK_NAME]) for span in saves(recording)] == [
        (True, "train"),
        (False, "inner"),
    ]


def test_lookup_fails_for_nobody(recording, monkeypatch):
    """Control: without the registry, the save in a bare thread is a root. This is what the other tests would see."""
    monkeypatch.setattr(Operation, "_find_task_context", lambda _operation: None)
    with ckpt_observe.task("t"):
        in_bare_thread(save)
    assert saves(recording)[0].parent_span_id == ""
