"""Runs: operations in threads that lost the context find the run that they belong to."""

from __future__ import annotations

import asyncio
import gc
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from opentelemetry import baggage
from opentelemetry.context import attach, detach, get_current

import ckpt_observe
from ckpt_observe.instrument.library_call import LibraryCall
from ckpt_observe.instrument.runs import LibraryRun, RunCall
from ckpt_observe.record import running_tasks
from ckpt_observe.record.packed_context import unpack
from ckpt_observe.record.running_tasks import find_by_id
from ckpt_observe.semconv import attributes as names
from ckpt_observe.testing.spans import outline

ROW = LibraryCall("toy", "append", lambda _instance, arguments: {names.TASK_ID: arguments["task"]})


def append(task):
    wrapper = ROW.wrapper_for(lambda task: task)
    return wrapper(lambda task: task, None, (task,), {})


def run(task_id, **attributes):
    return LibraryRun("toy", {names.TASK_NAME: "graph", names.TASK_ID: task_id, **attributes}, {})


def in_bare_thread(function, *args):
    thread = threading.Thread(target=function, args=args)
    thread.start()
    thread.join()


def traces(recording):
    """Return the trace of each task id of the appends, and of each task."""
    spans = [span for span in recording.spans() if span.attributes.get(names.TASK_ID)]
    return {(span.name.partition(" ")[0], span.attributes[names.TASK_ID]): span.trace_id for span in spans}


def test_bare_thread_joins_its_run(recording):
    """With two runs at the same time, each operation joins the run with its task id, and no other."""
    with run("a"), ThreadPoolExecutor(1) as pool:
        other = pool.submit(lambda: run("b").__enter__()).result()
        for task in ("a", "b", "unknown"):
            in_bare_thread(append, task)
        pool.submit(other.__exit__, None, None, None).result()
    trace_ids = traces(recording)
    assert trace_ids["checkpoint.append", "a"] == trace_ids["task", "a"]
    assert trace_ids["checkpoint.append", "b"] == trace_ids["task", "b"]
    assert len(set(trace_ids.values())) == 3


def test_current_span_has_precedence(recording):
    """A thread that has a context keeps it, whatever runs elsewhere."""
    with run("a"), ckpt_observe.task("mine", id="mine") as task:
        append("a")
    assert traces(recording)["checkpoint.append", "a"] == task.trace_id


def test_ended_run_is_forgotten(recording):
    """After the end of a run nothing is remembered about it, also if it failed."""
    with pytest.raises(ValueError, match="node"), run("a"):
        raise ValueError("node")
    assert find_by_id("toy", "a") is None
    assert not running_tasks._by_id
    assert not running_tasks._outermost


def test_abandoned_run_is_forgotten(recording, monkeypatch):
    """A run that nobody can end any more is not found: after its event loop was closed, a stream cannot wait for its own end.

    The thread that collects it keeps its own context."""
    monkeypatch.setattr("sys.unraisablehook", lambda _error: None)  # Python reports that the stream ignored its end

    async def stream():
        try:
            yield 1
        finally:
            await asyncio.sleep(0)

    row = RunCall("toy", lambda *_call: {names.TASK_NAME: "graph", names.TASK_ID: "a"})
    generator = row.wrapper_for(stream)(stream, None, (), {})
    loop = asyncio.new_event_loop()
    loop.run_until_complete(anext(generator))
    assert find_by_id("toy", "a") is not None
    loop.close()
    del generator
    gc.collect()
    assert get_current() == {}
    assert find_by_id("toy", "a") is None
    assert not running_tasks._by_id
    assert not running_tasks._outermost


def test_run_in_a_run(recording):
    """A run with the same task id, or none, is part of the outer run; one with an id of its own is a task in the same trace."""
    with run("a"), run("a"), run(None), run("b"):
        append("b")
    assert outline(recording.spans()) == "task graph\n  task graph\n    checkpoint.append"


def test_run_within_a_task_is_no_task(recording):
    """If the program has begun a task, the run belongs to it; threads without a context still find it."""
    with ckpt_observe.task("mine", id="mine") as task, run("a"):
        assert find_by_id("toy", "a") == get_current()
        in_bare_thread(append, "a")
    assert [span.name for span in recording.spans()] == ["task mine", "checkpoint.append"]
    assert traces(recording)["checkpoint.append", "a"] == task.trace_id


def test_run_in_a_carried_function(recording):
    """A run in a function that was carried from another process is in the task of that function, also for threads without a context."""
    with ckpt_observe.task("mine", id="mine") as task:
        carried = pickle.loads(pickle.dumps(ckpt_observe.carry(append_in_thread_of_run)))
    carried("a")
    assert traces(recording) == {("task", "mine"): task.trace_id, ("checkpoint.append", "a"): task.trace_id}


def test_run_in_a_process_that_was_started_in_a_task(recording):
    """Threads without a context find the task in which the process was started, also if the run has baggage of the host program."""
    running_tasks.set_process_context(unpack({"parent": ("3" * 32, "4" * 16, True, None, {}), "task": {names.TASK_NAME: "train"}}))
    token = attach(baggage.set_baggage("tenant", "a"))
    try:
        append_in_thread_of_run("a")
    finally:
        detach(token)
        running_tasks.set_process_context(None)
    assert traces(recording) == {("checkpoint.append", "a"): "3" * 32}


def append_in_thread_of_run(task_id):
    with run(task_id):
        in_bare_thread(append, task_id)


def test_unsampled_run_records_nothing_in_bare_threads(recording, monkeypatch):
    """Threads that lost the context follow the sampling decision of their run."""
    monkeypatch.setattr("ckpt_observe.record.recorder.recorder.samples", lambda _trace, parent: bool(parent))
    with run("a"):
        in_bare_thread(append, "a")
    assert recording.spans() == []


def test_operations_get_the_attributes_of_the_run(recording):
    """Run id, session and task name are on every operation, also in a bare thread."""
    with run("a", **{names.RUN_ID: "run-1", names.SESSION_ID: "s"}):
        in_bare_thread(append, "a")
    [span] = [span for span in recording.spans() if span.name == "checkpoint.append"]
    assert (span.attributes[names.RUN_ID], span.attributes[names.SESSION_ID], span.attributes[names.TASK_NAME]) == ("run-1", "s", "graph")


async def swallow():
    try:
        yield
    except GeneratorExit:
        await asyncio.sleep(0)


async def fail():
    try:
        yield
    finally:
        await asyncio.sleep(0)
        raise ValueError("node")


@pytest.mark.parametrize("stream", [swallow, fail])
def test_closing_a_stream_has_the_same_effect(recording, stream):
    """Whatever a stream does when it is closed, the host program sees the same as without observation, and the run ends."""

    async def close(generator):
        await anext(generator)
        try:
            await generator.aclose()
        except Exception as error:
            return repr(error)

    row = RunCall("toy", lambda *_call: {names.TASK_NAME: "graph", names.TASK_ID: "a"})
    observed = row.wrapper_for(stream)(stream, None, (), {})
    assert asyncio.run(close(observed)) == asyncio.run(close(stream()))
    assert [span.name for span in recording.spans()] == ["task graph"]
