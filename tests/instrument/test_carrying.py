"""`carry`: a function runs in the task in which it was handed over, wherever it is called."""

from __future__ import annotations

import asyncio
import inspect
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from opentelemetry import baggage, trace
from opentelemetry.context import attach, get_current

import ckpt_observe
from ckpt_observe.instrument import carrying
from ckpt_observe.record.guard import faults
from ckpt_observe.record.recorder import recorder
from ckpt_observe.semconv import attributes as names
from ckpt_observe.testing.spans import outline


def save(name="x", *, fails=False):
    """Save a checkpoint."""
    with ckpt_observe.checkpoint("save", id=name):
        if fails:
            raise ValueError(name)
    return name


async def save_later(name):
    await asyncio.sleep(0)
    return save(name)


def saves_of(name):
    yield save(name)
    yield save(name)


def task_names(recording):
    return [(span.attributes[names.ID], span.attributes.get(names.TASK_NAME)) for span in recording.spans() if names.ID in span.attributes]


def test_two_tasks_share_a_pool(recording):
    """With two tasks at the same time, each save is in the trace of the task that submitted it. Without `carry`, it is a root."""
    barrier = threading.Barrier(2)

    def train(name, pool):
        with ckpt_observe.task(name):
            barrier.wait()
            assert pool.submit(ckpt_observe.carry(save), name).result() == name
            assert pool.submit(save, "bare").result() == "bare"
            barrier.wait()

    with ThreadPoolExecutor(1) as pool, ThreadPoolExecutor(2) as trainers:
        for future in [trainers.submit(train, name, pool) for name in ("a", "b")]:
            future.result()
    assert sorted(task_names(recording), key=str) == [("a", "a"), ("b", "b"), ("bare", None), ("bare", None)]
    assert not any(names.TASK_INFERRED in span.attributes for span in recording.spans())


def test_thread_has_its_own_context_afterwards(recording):
    """The context of the thread is the same after the call, also after an exception, which is the one of the function."""
    contexts = []

    def call(function):
        with pytest.raises(ValueError, match="x"):
            function(fails=True)
        contexts.append(get_current())

    with ckpt_observe.task("t"):
        thread = threading.Thread(target=call, args=(ckpt_observe.carry(save),))
        thread.start()
        thread.join()
    assert contexts == [{}]


def test_phases_of_the_operation(recording):
    """A function that is carried out of an operation adds phases to it."""

    def write():
        with ckpt_observe.phase("write"):
            pass

    with ckpt_observe.checkpoint("save"), ThreadPoolExecutor(1) as pool:
        pool.submit(ckpt_observe.carry(write)).result()
    assert outline(recording.spans()) == "checkpoint.save\n  checkpoint.write"


def test_one_function_many_calls(recording):
    """A carried function may be called concurrently."""
    barrier = threading.Barrier(4)

    def save_together(name):
        with ckpt_observe.checkpoint("save", id=name):
            barrier.wait()

    with ckpt_observe.task("t"), ThreadPoolExecutor(4) as pool:
        list(pool.map(ckpt_observe.carry(save_together), "abcd"))
    assert sorted(task_names(recording)) == [(name, "t") for name in "abcd"]


def test_coroutines_and_generators(recording):
    """The context holds while a coroutine or generator runs, and not while its caller does."""
    with ckpt_observe.task("t"):
        coroutine, generator = ckpt_observe.carry(save_later), ckpt_observe.carry(saves_of)

    async def main():
        assert await coroutine("a") == "a"
        save("b")

    asyncio.run(main())
    for name in generator("c"):
        save(f"after {name}")
    assert task_names(recording) == [("a", "t"), ("b", None), ("c", "t"), ("after c", None), ("c", "t"), ("after c", None)]


def test_looks_like_the_function(recording):
    """Name, signature, documentation and kind are those of the function."""
    with ckpt_observe.task("t"):
        carried, later = ckpt_observe.carry(save), ckpt_observe.carry(save_later)
    assert (carried.__name__, carried.__doc__, inspect.signature(carried)) == ("save", "Save a checkpoint.", inspect.signature(save))
    assert inspect.iscoroutinefunction(later)


def test_pickled_function_brings_its_context(recording):
    """In another process, a pickled function runs in the same trace. If that process is not observed, it is the function itself."""
    with ckpt_observe.task("t", id="1") as task:
        data = pickle.dumps(ckpt_observe.carry(save))
    pickle.loads(data)("a")
    [span] = [span for span in recording.spans() if span.name == "checkpoint.save"]
    assert (span.trace_id, span.parent_span_id) == (task.trace_id, task.span_id)
    assert (span.attributes[names.TASK_NAME], span.attributes[names.TASK_ID]) == ("t", "1")
    recorder.on = False
    assert pickle.loads(data) is save


def test_carried_function_carries_another(recording):
    """A function that was carried from another process carries the same task on."""

    with ckpt_observe.task("t"):
        carried = pickle.loads(pickle.dumps(ckpt_observe.carry(carry_save)))
    pickle.loads(pickle.dumps(carried()))("a")
    assert task_names(recording) == [("a", "t")]


def carry_save():
    return ckpt_observe.carry(save)


def test_unsampled_context_is_carried(recording, monkeypatch):
    """A function that is carried out of a trace that is not recorded records nothing, here and in other processes."""
    monkeypatch.setattr(recorder, "samples", lambda _trace, parent: bool(parent))
    with ckpt_observe.task("t"):
        carried = ckpt_observe.carry(save)
    monkeypatch.setattr(recorder, "samples", None)
    carried("a")
    pickle.loads(pickle.dumps(carried))("b")
    assert recording.spans() == []


def test_nothing_to_carry(recording, monkeypatch):
    """Outside a task, without observation, and if something of ours fails, `carry` returns the function itself."""
    fault_count = faults.total()
    assert ckpt_observe.carry(save) is save
    with ckpt_observe.task("t"):
        assert ckpt_observe.carry(5) == 5  # as a pool gets it from a program with an error
        assert faults.total() == fault_count
        monkeypatch.setattr(carrying, "pack", lambda _context: 1 / 0)
        assert ckpt_observe.carry(save) is save
        monkeypatch.setattr(recorder, "on", False)
        assert ckpt_observe.carry(save) is save


def test_host_program_keeps_its_context(recording):
    """A carried function keeps the baggage of its thread. A span of the host program is not current there, but the parent of saves."""
    observations = []
    host_span = trace.NonRecordingSpan(trace.SpanContext(1, 2, is_remote=False, trace_flags=trace.TraceFlags(1)))

    def look():
        observations.append((trace.get_current_span(), baggage.get_baggage("tenant")))
        save()

    with ThreadPoolExecutor(1, initializer=lambda: attach(baggage.set_baggage("tenant", "a"))) as pool:
        with ckpt_observe.task("t") as task:
            pool.submit(ckpt_observe.carry(look)).result()
        with trace.use_span(host_span):
            pool.submit(ckpt_observe.carry(look)).result()
    assert observations == [(task, "a"), (trace.INVALID_SPAN, "a")]
    assert [span.parent_span_id for span in recording.spans() if names.OPERATION in span.attributes] == [task.span_id, f"{2:016x}"]
