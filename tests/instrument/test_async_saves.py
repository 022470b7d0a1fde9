"""Async saves: an operation outlives its call, says when its caller was free and when the checkpoint was durable, and gets late errors."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from ckpt_observe.instrument.library_call import LibraryCall, current_library_operation
from ckpt_observe.instrument.phase_calls import SummedPhase
from ckpt_observe.instrument.thread_handover import ThreadHandover
from ckpt_observe.instrument.wrappers import ObservedCall
from ckpt_observe.record.guard import record_fault
from ckpt_observe.record.operation import Operation
from ckpt_observe.record.task import Task
from ckpt_observe.semconv import attributes as names
from ckpt_observe.testing.spans import outline

TIMES = {names.ASYNC_BLOCKED, names.ASYNC_RELEASED, names.ASYNC_DURABLE}


def observe(row, function):
    """The function, observed by a row."""
    wrapper = row.wrapper_for(function) if hasattr(row, "wrapper_for") else row
    return lambda *args, **kwargs: wrapper(function, None, args, kwargs)


def describe(_instance, arguments):
    return {names.ID: arguments["name"]}


class GatedLibrary:
    """A library that stages in the call and writes in a thread, when the test opens the gate."""

    def __init__(self, **row):
        self.gate = threading.Event()
        self.pool = ThreadPoolExecutor(1)
        self.error = None
        handover = ThreadHandover(lambda _instance, args, _kwargs: args[0], lambda _instance, args, _kwargs: args[0])
        self.stage = observe(SummedPhase("gated", "stage"), lambda name: None)
        self.write = observe(handover.run, observe(SummedPhase("gated", "write"), self._write))
        self.submit = observe(handover.hand_over, lambda name: self.pool.submit(self.write, name))
        self.save = observe(LibraryCall("gated", "save", describe, **row), self._save)

    def _write(self, name):
        self.gate.wait()
        if self.error is not None:
            raise self.error
        return name

    def _save(self, name):
        self.stage(name)
        return self.submit(name)


@pytest.fixture
def library():
    library = GatedLibrary()
    yield library
    library.gate.set()
    library.pool.shutdown()


def operations_of(recording):
    return [span for span in recording.spans() if names.OPERATION in span.attributes]


def test_three_times_of_a_gated_save(recording, library):
    """The caller is blocked within its own call and not while the writer waits at the gate; the save is durable after the gate opens."""
    before = time.perf_counter()
    future = library.save("a")
    returned = time.perf_counter()
    assert current_library_operation("gated") is None
    assert operations_of(recording) == []
    opened = time.perf_counter()
    library.gate.set()
    assert future.result() == "a"
    library.pool.shutdown()
    [span] = operations_of(recording)
    blocked, released, durable = (span.attributes[name] for name in (names.ASYNC_BLOCKED, names.ASYNC_RELEASED, names.ASYNC_DURABLE))
    assert 0 < blocked == released <= returned - before
    assert durable >= opened - returned
    assert durable == span.seconds
    assert outline(recording.spans()).split() == ["checkpoint.save", "checkpoint.stage", "checkpoint.write"]


def test_late_error_belongs_to_its_save(recording, library):
    """The call returned; the error is on that save, in its phase, and not on the next one. A failed save is not durable."""
    library.error = OSError(28, "No space left on device")
    future = library.save("a")
    library.gate.set()
    assert isinstance(future.exception(), OSError)
    library.error = None
    library.save("b").result()
    library.pool.shutdown()
    failed, good = operations_of(recording)
    assert (failed.attributes[names.ID], failed.attributes[names.ERROR_CODE]) == ("a", "storage.no_space")
    assert failed.attributes[names.ERROR_PHASE] == "write"
    assert TIMES & failed.attributes.keys() == TIMES - {names.ASYNC_DURABLE}
    assert (good.attributes[names.ID], good.attributes[names.OUTCOME]) == ("b", "ok")
    assert good.attributes.keys() >= TIMES


def test_future_inside_the_result(recording):
    """A save whose result contains the future ends with that future; the result is unchanged."""
    upload = Future()
    response = SimpleNamespace(upload=upload)
    row = LibraryCall(
        "toy", "save", describe, lambda operation, result: operation.set({names.STEP: result}), find_future=lambda r: r.upload
    )
    assert observe(row, lambda name: response)("a") is response
    assert operations_of(recording) == []
    upload.set_result(7)
    [span] = operations_of(recording)
    assert span.attributes[names.STEP] == 7
    assert span.attributes.keys() >= TIMES


@pytest.mark.parametrize("operation", ["load", "delete"])
def test_only_saves_are_async_saves(recording, operation):
    """A load that returns a future has a duration, and no time at which it was durable. A task has none either."""
    future, loaded = Future(), Future()
    observe(LibraryCall("toy", operation, describe), lambda name: future)("a")
    call = ObservedCall(lambda *_: Task("save", {}), record_fault)
    observe(call, lambda: loaded)()
    future.set_result(1)
    loaded.set_result(1)
    assert len(recording.spans()) == 2
    assert not [span for span in recording.spans() if TIMES & span.attributes.keys()]


def test_waiting_later_adds_to_the_blocked_time(recording):
    """A method that waits for the save adds to the time for which it held up the program. When the caller was first free stays."""
    future, operations = Future(), []

    def begin(*_):
        operations.append(Operation("save"))
        return operations[0]

    observe(ObservedCall(begin, record_fault), lambda: future)()
    operations[0].add_blocked(5)
    future.set_result(None)
    operations[0].add_blocked(7)
    [span] = operations_of(recording)
    assert span.attributes[names.ASYNC_BLOCKED] == span.attributes[names.ASYNC_RELEASED] + 5


# Libraries that tell nobody when they are done: the instrumentor knows the thread that does the work.


def save_in_thread(complete_first, error=None, call_error=None):
    """An observed save that hands its operation to a thread, which completes it before or after the call returns."""
    operations = []

    def save(name):
        operation = current_library_operation("toy")
        operation.outlive_call()
        operations.append(operation)
        if complete_first:
            thread = threading.Thread(target=operation.complete, args=(error,))
            thread.start()
            thread.join()
        if call_error:
            raise call_error
        return name

    assert observe(LibraryCall("toy", "save", describe), save)("a") == "a"
    return operations[0]


def test_operation_that_outlives_its_call(recording):
    """It ends when its work is complete, and only once."""
    operation = save_in_thread(complete_first=False)
    assert operations_of(recording) == []
    operation.complete()
    operation.complete(OSError("too late"))
    [span] = operations_of(recording)
    assert span.attributes[names.OUTCOME] == "ok"
    assert 0 < span.attributes[names.ASYNC_RELEASED] <= span.attributes[names.ASYNC_DURABLE] <= span.seconds


def test_work_that_is_complete_before_the_call_returns(recording):
    """The operation ends with the call, but it was durable before."""
    save_in_thread(complete_first=True)
    [span] = operations_of(recording)
    assert 0 < span.attributes[names.ASYNC_DURABLE] <= span.attributes[names.ASYNC_RELEASED] <= span.seconds


@pytest.mark.parametrize("complete_first", [True, False])
def test_error_of_the_work(recording, complete_first):
    """The error ends the operation, whether or not the call has returned by then."""
    error = OSError(28, "No space left on device")
    operation = save_in_thread(complete_first, error)
    operation.complete(error)
    [span] = operations_of(recording)
    assert span.attributes[names.ERROR_CODE] == "storage.no_space"
    assert names.ASYNC_DURABLE not in span.attributes


def test_error_of_the_call(recording):
    """If the call fails, the operation ends with its error at once: nobody will complete it."""
    with pytest.raises(TimeoutError):
        save_in_thread(complete_first=False, call_error=TimeoutError())
    [span] = operations_of(recording)
    assert span.attributes[names.ERROR_CLASS] == "timeout"
    assert not TIMES & span.attributes.keys()


def test_return_and_completion_at_the_same_time(recording):
    """Whichever is first, there is one span with all three times."""
    pool = ThreadPoolExecutor(1)

    def save(name):
        operation = current_library_operation("toy")
        operation.outlive_call()
        done.append(pool.submit(operation.complete))

    done = []
    observed = observe(LibraryCall("toy", "save", describe), save)
    for number in range(500):
        observed(str(number))
    pool.shutdown()
    assert [future.exception() for future in done] == [None] * 500
    spans = operations_of(recording)
    assert [span.attributes[names.ID] for span in spans] == [str(number) for number in range(500)]
    assert all(span.attributes.keys() >= TIMES for span in spans)
    assert {page.ended for page in recording.pages} == {1}


def test_manager_that_mostly_skips(recording):
    """A manager is called after every step and saves some of them, in the background: only those are recorded."""
    operations = []

    def save(name):
        if int(name) % 100:
            return False
        operation = current_library_operation("toy")
        operation.outlive_call()
        operations.append(operation)
        return True

    row = LibraryCall("toy", "save", describe, is_nothing=lambda saved: not saved)
    assert sum(observe(row, save)(str(number)) for number in range(1000)) == 10
    for operation in operations:
        operation.complete()
    assert [span.attributes[names.ID] for span in operations_of(recording)] == [str(number) for number in range(0, 1000, 100)]
    assert {page.ended for page in recording.pages} == {1}


def test_handed_over_work_of_two_operations_is_not_mixed(recording):
    """The phases of each operation are those of its own work, also if several threads share it; other work is in no operation."""
    handover = ThreadHandover(lambda _instance, args, _kwargs: args[0], lambda _instance, args, _kwargs: args[0], waits=True)
    write = observe(handover.run, observe(SummedPhase("toy", "write", lambda _o, args, _k, _r: (len(args[0]), None)), lambda data: None))

    def save_in_threads(data):
        threads = [threading.Thread(target=write, args=(data,)) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    save = observe(LibraryCall("toy", "save", lambda *_: {}), observe(handover.hand_over, save_in_threads))
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(save, [b"1", b"22"]))
    save_in_threads(b"333")
    phases = [span.attributes for span in recording.spans() if names.PHASE in span.attributes]
    assert sorted(attributes[names.PHASE_BYTES_IN] for attributes in phases) == [3, 6]
    assert handover._waiting == []


def test_same_work_several_times(recording):
    """Work on the same object is done in the order in which it was handed over, and each save ends with its own work."""
    library, name = GatedLibrary(), "last.ckpt"
    futures = [library.save(name) for _ in range(3)]
    library.gate.set()
    assert [future.result(60) for future in futures] == [name] * 3
    library.pool.shutdown()
    saves = operations_of(recording)
    assert [save.attributes[names.OUTCOME] for save in saves] == ["ok"] * 3
    writes = [span for span in recording.spans() if span.attributes.get(names.PHASE) == "write"]
    assert [write.parent_span_id for write in writes] == [save.span_id for save in saves]


def test_work_that_never_begins_is_forgotten(recording):
    """Contexts of calls that failed, and of operations that have ended, are not kept; of others only a limited number."""
    handover = ThreadHandover(lambda _instance, args, _kwargs: args[0], lambda _instance, args, _kwargs: args[0])

    def fail(name):
        raise OSError("no thread")

    with pytest.raises(OSError, match="no thread"):
        observe(LibraryCall("toy", "save", lambda *_: {}), observe(handover.hand_over, fail))("a")
    assert handover._waiting == []
    submit = observe(handover.hand_over, lambda name: name)
    for name in "abc":
        observe(LibraryCall("toy", "save", lambda *_: {}), submit)(name)
    assert len(handover._waiting) == 1
    observe(LibraryCall("toy", "save", lambda *_: {}), lambda: [submit("a") for _ in range(500)])()
    assert len(handover._waiting) <= 100
