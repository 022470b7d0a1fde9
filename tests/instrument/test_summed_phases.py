"""Phases of a library's operations: many calls in one phase, coroutines, context managers, failures and deaths."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import copy
import gc
import pickle
import sqlite3
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
from opentelemetry import trace

from ckpt_observe.instrument.library_call import LibraryCall
from ckpt_observe.instrument.managed_phases import ManagedPhases
from ckpt_observe.instrument.observed_locks import ObservedLocks
from ckpt_observe.instrument.phase_calls import SummedPhase
from ckpt_observe.record.operation import current_operation
from ckpt_observe.semconv import attributes as names
from ckpt_observe.semconv.events import PHASE_CODES
from ckpt_observe.testing.spans import outline

SERIALIZE = SummedPhase("toy", "serialize", lambda _operation, _args, _kwargs, result: (None, len(result)))
CURSOR = ManagedPhases("toy", {"save": ("wait", "write", "commit"), "load": ("wait", "read", "read")})


def observe(row, function):
    """The function, observed by a row."""
    wrapper = row.wrapper_for(function)
    return lambda *args, **kwargs: wrapper(function, None, args, kwargs)


def observe_operation(function, operation="save", system="toy"):
    return observe(LibraryCall(system, operation, lambda _instance, _arguments: {}), function)


def phase(recording, name):
    [span] = [span for span in recording.spans() if span.attributes.get(names.PHASE) == name]
    return span


def test_calls_are_summed(recording):
    """A thousand calls are one phase, with their number and their bytes; the size of the operation is what was serialized."""
    serialize = observe(SERIALIZE, lambda value: b"x" * value)
    observe_operation(lambda: [serialize(3) for _ in range(1000)])()
    assert outline(recording.spans()) == "checkpoint.save\n  checkpoint.serialize"
    attributes = phase(recording, "serialize").attributes
    assert (attributes[names.PHASE_CALLS], attributes[names.PHASE_BYTES_OUT]) == (1000, 3000)
    assert recording.spans()[-1].attributes[names.SIZE_SERIALIZED] == 3000


def test_duration_is_the_time_in_the_calls(recording, monkeypatch):
    """What happens between the calls does not count."""
    clock = [0]
    monkeypatch.setattr("ckpt_observe.instrument.phase_calls._monotonic", lambda: clock[0])

    def pass_time(nanoseconds):
        clock[0] += nanoseconds
        return b""

    serialize = observe(SERIALIZE, pass_time)
    observe_operation(lambda: [(serialize(5), pass_time(1000)) for _ in range(3)])()
    span = phase(recording, "serialize")
    assert span.end_unix_nano - span.start_unix_nano == 15


def test_call_within_a_call_counts_once(recording):
    """A serializer that calls another one is one call, with the bytes of the outer one."""
    inner = observe(SERIALIZE, lambda: b"12345")
    outer = observe(SERIALIZE, lambda: inner() + b"6")
    observe_operation(outer)()
    attributes = phase(recording, "serialize").attributes
    assert names.PHASE_CALLS not in attributes
    assert attributes[names.PHASE_BYTES_OUT] == 6


@pytest.mark.parametrize("system", ["other", None])
def test_other_operations_are_left_alone(recording, system):
    """Outside an operation of its own library, a patched driver records nothing."""
    serialize = observe(SERIALIZE, lambda: b"1")
    assert (serialize if system is None else observe_operation(serialize, system=system))() == b"1"
    assert not [span for span in recording.spans() if names.PHASE in span.attributes]


def test_coroutine_is_timed_while_it_waits(recording):
    """The phase of a coroutine lasts until it has returned, not until it was created."""

    async def main():
        gate = asyncio.Event()

        async def execute():
            await gate.wait()
            marks = recording.pages[0].marks
            assert marks[2] & 0xFF == PHASE_CODES["write"]
            assert not marks.get(3)
            return 7

        observed = observe(SummedPhase("toy", "write"), execute)

        async def save():
            return await observed()

        task = asyncio.ensure_future(observe_operation(save)())
        await asyncio.sleep(0)
        gate.set()
        return await task

    assert asyncio.run(main()) == 7
    assert recording.pages[0].marks[3]


def test_wait_for_a_lock(recording):
    """An operation that waits for an observed lock is in the phase `wait` meanwhile; outside an operation, the lock records nothing."""
    locks = ObservedLocks()

    async def main():
        lock = asyncio.Lock()
        locks.observe(lock)

        async def save():
            async with lock:
                return lock.locked()

        async with lock:
            task = asyncio.ensure_future(observe_operation(save)())
            await asyncio.sleep(0)
            waiting = dict(recording.pages[0].marks)
        assert await task
        locks.release()
        return waiting, type(lock), lock.locked()

    waiting, lock_type, is_locked = asyncio.run(main())
    assert (waiting[2] & 0xFF, waiting.get(3)) == (PHASE_CODES["wait"], None)
    assert [span.attributes.get(names.PHASE) for span in recording.spans()] == ["wait", None]
    assert (lock_type, is_locked) == (asyncio.Lock, False)


def test_lock_is_released_from_observation_before_a_task_waits_for_it():
    """The task called `acquire`, which was ours, and runs when the lock is an ordinary one again."""
    locks = ObservedLocks()

    async def main():
        lock = asyncio.Lock()
        locks.observe(lock)
        waiting = asyncio.ensure_future(lock.acquire())
        locks.release()
        return await waiting, lock.locked()

    assert asyncio.run(main()) == (True, True)


def test_lock_that_another_thread_observes_meanwhile():
    """A call in another thread may observe the lock of its saver while all locks become ordinary ones again."""
    locks, late = ObservedLocks(), asyncio.Lock()

    class ReleasedLock(asyncio.Lock):
        def __setattr__(self, name, value):
            super().__setattr__(name, value)
            if name == "__class__":
                locks.observe(late)

    lock = asyncio.Lock()
    locks.observe(lock)
    lock.__class__ = ReleasedLock
    locks.release()
    assert (type(lock), type(late)) == (asyncio.Lock, asyncio.Lock)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_observed_lock_pickles_and_copies_like_any_other(protocol):
    """A saver with a lock that nobody has waited for yet can be pickled, and loaded where this package is not installed."""
    lock = asyncio.Lock()
    ObservedLocks().observe(lock)
    data = pickle.dumps(lock, protocol)
    assert b"ckpt_observe" not in data
    for other in (pickle.loads(data), copy.copy(lock), copy.deepcopy(lock)):
        assert type(other) is asyncio.Lock
        assert vars(other) == vars(asyncio.Lock())


def test_locks_of_other_types_stay_as_they_are(recording):
    """A saver's `lock` may be anything."""

    class OwnLock(asyncio.Lock):
        pass

    locks, values = ObservedLocks(), [None, threading.RLock(), OwnLock()]
    types = [type(value) for value in values]
    for value in values:
        locks.observe(value)
    assert [type(value) for value in values] == types


def test_running_call_has_no_end_mark(recording):
    """A process that dies during the second call of a phase is reported in that phase; between two calls it is not."""
    marks = []
    serialize = observe(SERIALIZE, lambda: marks.append(dict(recording.pages[0].marks)) or b"")
    observe_operation(lambda: (serialize(), marks.append(dict(recording.pages[0].marks)), serialize()))()
    assert [bool(each.get(3)) for each in marks] == [False, True, False]


@pytest.fixture(params=["sync", "async"])
def use_cursor(request):
    """A function that uses an observed context manager with a body, in a synchronous or asynchronous operation."""

    @contextlib.contextmanager
    def cursor(on_enter=None, on_exit=None):
        on_enter and on_enter()
        yield "cursor"
        on_exit and on_exit()

    @contextlib.asynccontextmanager
    async def async_cursor(on_enter=None, on_exit=None):
        on_enter and on_enter()
        yield "cursor"
        on_exit and on_exit()

    def use(operation="save", body=lambda: None, **steps):
        def run():
            with observe(CURSOR, cursor)(**steps) as value:
                body()
            return value

        async def run_async():
            async with observe(CURSOR, async_cursor)(**steps) as value:
                body()
            return value

        if request.param == "sync":
            return observe_operation(run, operation)()
        return asyncio.run(observe_operation(run_async, operation)())

    return use


def test_context_manager_is_three_phases(recording, use_cursor):
    """Entering, the body and leaving are phases; a reader does not commit."""
    assert use_cursor() == "cursor"
    assert use_cursor("load") == "cursor"
    assert outline(recording.spans()) == (
        "checkpoint.save\n  checkpoint.wait\n  checkpoint.write\n  checkpoint.commit\ncheckpoint.load\n  checkpoint.wait\n  checkpoint.read"
    )


@pytest.mark.parametrize(("step", "expected"), [("on_enter", "wait"), ("body", "write"), ("on_exit", "commit")])
def test_failure_is_in_its_phase(recording, use_cursor, step, expected):
    """An exception is in the phase that raised it, and reaches the host program unchanged."""
    error = OSError(28, "No space left on device")

    def fail():
        raise error

    with pytest.raises(OSError, match="No space") as caught:
        use_cursor(**{step: fail})
    assert caught.value is error
    operation = recording.spans()[-1].attributes
    assert (operation[names.ERROR_PHASE], operation[names.ERROR_CODE]) == (expected, "storage.no_space")
    assert phase(recording, expected).attributes[names.OUTCOME] == "error"


def test_handled_failure_is_not_the_failed_phase(recording):
    """An exception that the library recovers from is not blamed for a later one."""

    def fail():
        raise TypeError

    def save():
        with contextlib.suppress(TypeError):
            observe(SERIALIZE, fail)()
        raise ConnectionError

    with pytest.raises(ConnectionError):
        observe_operation(save)()
    assert phase(recording, "serialize").attributes[names.ERROR_PHASE] == "serialize"
    assert names.ERROR_PHASE not in recording.spans()[-1].attributes


@pytest.mark.parametrize(("column", "outcome"), [("known", "ok"), ("unknown", "error")])
def test_expected_exception_is_no_failure(recording, column, outcome):
    """An exception by which the library asks a question is not a failure of the phase; any other one is."""

    def ask(column):
        raise LookupError(column)

    def save():
        with contextlib.suppress(LookupError):
            observe(SummedPhase("toy", "write", is_expected=lambda error: str(error) == "known"), ask)(column)

    observe_operation(save)()
    assert phase(recording, "write").attributes.get(names.OUTCOME) == outcome


@pytest.mark.parametrize("drop", [False, True])
def test_exceptions_are_not_kept(recording, drop):
    """After the operation has ended, an exception and what its frames refer to are freed at once, not by the garbage collector."""

    class Value:
        """A value of the host program's state."""

    value = Value()
    reference = weakref.ref(value)

    def fail(value):
        raise TypeError

    def save(value):
        try:
            observe(SERIALIZE, fail)(value)
        except TypeError:
            if not drop:
                raise

    row = LibraryCall("toy", "load", lambda _instance, _arguments: {}, is_nothing=lambda _result: drop)
    gc.collect()
    gc.disable()
    try:
        with contextlib.suppress(TypeError):
            observe(row, save)(value)
        del value
        assert reference() is None
    finally:
        gc.enable()


def test_operation_is_freed_without_the_garbage_collector(recording):
    """An operation and its phases do not refer to each other in a cycle: it would cost the host program time in its collector."""
    operations = []
    serialize = observe(SERIALIZE, lambda: b"1")
    write = observe(CURSOR, contextlib.contextmanager(lambda: iter([1])))

    def save():
        operations.append(weakref.ref(current_operation()))
        serialize()
        with write():
            pass

    gc.disable()
    try:
        observe_operation(save)()
        assert operations[0]() is None
    finally:
        gc.enable()
    assert len(recording.spans()) == 5


def test_details_are_not_kept(recording):
    """What an instrumentor remembers about the state is freed with the end, although the host program still has the context."""
    contexts, details = [], []

    def remember(operation, _instance, _arguments):
        operation.details = {1}
        details.append(weakref.ref(operation.details))

    row = LibraryCall("toy", "save", lambda _instance, _arguments: {}, prepare=remember)
    observe(row, lambda: contexts.append(contextvars.copy_context()))()
    assert details[0]() is None


def test_phases_within_phases(recording):
    """A phase starts within the one that runs then, also in the thread of the operation. After it, the outer one goes on."""
    encrypt = observe(SummedPhase("toy", "encrypt"), lambda: None)
    serialize = observe(SERIALIZE, lambda: encrypt() or b"1")

    def span_id():
        return f"{trace.get_current_span().get_span_context().span_id:016x}"

    @contextlib.contextmanager
    def cursor():
        yield

    open_cursor = observe(CURSOR, cursor)
    span_ids = []

    def save():
        span_ids.append(span_id())
        for _ in range(2):
            with open_cursor():
                span_ids.append(span_id())
                serialize()
                span_ids.append(span_id())
        span_ids.append(span_id())

    observe_operation(save)()
    lines = ["checkpoint.save", "  checkpoint.wait", "  checkpoint.write", "    checkpoint.serialize", "      checkpoint.encrypt"]
    assert outline(recording.spans()) == "\n".join([*lines, "  checkpoint.commit"])
    operation, write = recording.spans()[-1].span_id, phase(recording, "write")
    assert span_ids == [operation, *[write.span_id] * 4, operation]
    assert write.attributes[names.PHASE_CALLS] == 2


def test_phase_of_a_suspended_generator(recording):
    """Between two items of a generator, its cursor stays open, but what its consumer does is not part of the phase."""

    @contextlib.contextmanager
    def cursor():
        yield

    open_cursor = observe(ManagedPhases("toy", {"list": ("wait", "read", "read")}), cursor)

    def read():
        with open_cursor():
            yield from range(2)

    save = observe_operation(lambda: None)
    for _ in observe_operation(read, "list")():
        save()
    assert outline(recording.spans()) == "checkpoint.list\n  checkpoint.wait\n  checkpoint.read\ncheckpoint.save\ncheckpoint.save"


def test_manager_within_another_one(recording):
    """A cursor that is used within the body of another one is below its phase, so that no time counts twice."""
    open_cursor = observe(CURSOR, contextlib.contextmanager(lambda: iter([None])))

    def save():
        with open_cursor(), open_cursor():
            pass

    observe_operation(save)()
    inner = ["    checkpoint.wait", "    checkpoint.write", "    checkpoint.commit"]
    lines = ["checkpoint.save", "  checkpoint.wait", "  checkpoint.write", *inner, "  checkpoint.commit"]
    assert outline(recording.spans()) == "\n".join(lines)
    assert not any(names.PHASE_CALLS in span.attributes for span in recording.spans())


def test_first_call_of_an_object(recording):
    """The first call may have other phases. If the row cannot tell which one it is, the call has the usual phases."""
    answers = iter([lambda: True, lambda: False, lambda: 1 / 0])
    row = ManagedPhases("toy", {"load": ("wait", "read", "read")}, {"load": ("write", "read", "read")}, lambda _: next(answers)())
    open_cursor = observe(row, contextlib.contextmanager(lambda: iter([None])))

    def load():
        with open_cursor():
            pass

    for _ in range(3):
        observe_operation(load, "load")()
    first_phases = [line.strip() for line in outline(recording.spans()).splitlines()][1::3]
    assert first_phases == ["checkpoint.write", "checkpoint.wait", "checkpoint.wait"]


def test_manager_without_a_value(recording):
    """A context manager that yields nothing raises the error of `contextlib`."""

    @contextlib.contextmanager
    def cursor():
        yield from ()

    open_cursor = observe(CURSOR, cursor)

    def save():
        with open_cursor():
            pass

    with pytest.raises(RuntimeError, match="generator didn't yield"):
        observe_operation(save)()


def test_manager_of_another_observed_method(recording):
    """A `cursor` that hands on what `super().cursor()` or `_cursor` returns is one use of one cursor."""

    @contextlib.contextmanager
    def cursor():
        yield 1

    open_inner = observe(CURSOR, cursor)
    open_cursor = observe(CURSOR, open_inner)

    def save():
        with open_cursor() as value:
            return value

    assert observe_operation(save)() == 1
    assert outline(recording.spans()) == "checkpoint.save\n  checkpoint.wait\n  checkpoint.write\n  checkpoint.commit"
    assert names.PHASE_CALLS not in phase(recording, "commit").attributes


def test_other_objects_are_handed_on_as_they_are(recording):
    """A method with the name of an observed one may return something else than a context manager made by contextlib: a cursor, say."""
    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        open_cursor = observe(CURSOR, connection.cursor)
        assert observe_operation(lambda: list(open_cursor().execute("SELECT 1")))() == [(1,)]
        assert observe_operation(lambda: list(open_cursor()))() == []


def test_calls_in_other_threads_belong_to_the_operation(recording):
    """A call in a thread that has the context of the operation is part of its phase; one in a bare thread is not."""
    serialize = observe(SERIALIZE, lambda: b"12")

    def save():
        with ThreadPoolExecutor(1) as pool:
            pool.submit(contextvars.copy_context().run, serialize).result()
        bare = threading.Thread(target=serialize)
        bare.start()
        bare.join()

    observe_operation(save)()
    assert phase(recording, "serialize").attributes[names.PHASE_BYTES_OUT] == 2


def test_dropped_phases_are_counted(watch, stored_spans):
    """An operation with more phases than fit into its record says how many are missing."""
    import ckpt_observe  # noqa: PLC0415

    with ckpt_observe.checkpoint("save") as operation:
        for number in range(3000):
            with operation.phase(f"custom-{number:04d}"):
                pass
    assert watch.flush(60)
    spans = stored_spans()
    [save] = [span for span in spans if span.name == "checkpoint.save"]
    assert save.attributes[names.PHASES_DROPPED] == 3000 - (len(spans) - 1)
    assert save.attributes[names.PHASES_DROPPED] > 0


@pytest.mark.parametrize("ending", ["passes on", "suppresses", "replaces", "does not stop"])
@pytest.mark.parametrize("error", [None, ValueError("body"), RuntimeError("body"), StopIteration("body"), GeneratorExit("body")], ids=repr)
def test_context_manager_ends_as_if_unobserved(recording, ending, error):
    """Whatever the body raises and the context manager makes of it, the caller gets the same as without us, and the manager is its own."""

    @contextlib.contextmanager
    def cursor():
        try:
            yield 1
        except BaseException as raised:
            if ending == "passes on":
                raise
            if ending == "replaces":
                raise LookupError("manager") from raised
        if ending == "does not stop":
            yield 2

    def use(open_cursor):
        manager = open_cursor()
        try:
            with manager as value:
                if error is not None:
                    raise error
        except BaseException as raised:
            return type(manager), type(raised), str(raised), raised is error, raised.__cause__ is error
        return type(manager), value

    observed = []
    observe_operation(lambda: observed.append(use(observe(CURSOR, cursor))))()
    assert observed == [use(cursor)]
    assert {"wait", "write"} < {span.attributes.get(names.PHASE) for span in recording.spans()}


def test_times_of_phases_are_within_their_operation(recording):
    """Phases are stored from the start of their operation, and have Unix time in the end."""
    serialize, cursor = observe(SERIALIZE, lambda: b"1"), observe(CURSOR, contextlib.contextmanager(lambda: iter([None])))

    def save():
        serialize()
        with cursor():
            serialize()

    observe_operation(save)()
    *phases, operation = recording.spans()
    times = [(span.start_unix_nano, span.end_unix_nano) for span in phases[-4:]]
    assert all(operation.start_unix_nano <= start <= end <= operation.end_unix_nano for start, end in times)
    _, wait, write, commit = times
    assert wait[1] == write[0]
    assert write[1] == commit[0]
