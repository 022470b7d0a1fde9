"""Plain functions and futures: values pass through unchanged, and an operation ends once, when the work is done."""

import asyncio
import gc
import logging
import traceback
from concurrent.futures import CancelledError, Future
from unittest.mock import Mock

import pytest

from ckpt_observe.instrument import wrappers
from ckpt_observe.instrument.wrappers import ObservedCall


@pytest.fixture
def toy(modules):
    instrumentor = modules.toy.ToyInstrumentor()
    instrumentor.instrument()
    yield modules.toy
    instrumentor.uninstrument()


@pytest.fixture
def lib(toy, modules):
    return modules.lib


def only(operations):
    (operation,) = operations
    return operation


def test_function_call_is_one_operation(lib, toy):
    """One call is one operation, which receives the result."""
    state = object()
    result = lib.save(state)
    operation = only(toy.operations)
    assert result["saved"] is state
    assert operation.result is result
    assert operation.events == ["enter", "exit"]
    assert toy.current == []


def test_exception_is_the_same_object_with_one_more_frame(lib, toy):
    """The host program catches its own exception; the traceback has one frame of ours, that of the wrapper."""
    error = KeyError("the host's own")
    with pytest.raises(KeyError) as caught:
        lib.save(1, fail=error)
    assert caught.value is error
    assert error.__context__ is None
    frames = traceback.extract_tb(error.__traceback__)
    assert [frame.name for frame in frames][-2:] == ["wrapper", "save"]
    assert sum(frame.filename == wrappers.__file__ for frame in frames) == 1
    assert only(toy.operations).error is error


def test_interrupts_end_the_operation(lib, toy):
    """KeyboardInterrupt and SystemExit pass through, and the operation ends."""
    for kind in (KeyboardInterrupt, SystemExit):
        with pytest.raises(kind):
            lib.save(1, fail=kind())
    assert [operation.events for operation in toy.operations] == [["enter", "exit"]] * 2


def test_wrong_arguments_fail_at_the_call(lib):
    """Wrong arguments raise TypeError at the call, also for coroutines and generators, which have not started."""
    for call in (lib.save, lib.Store().asave, lib.Store().parts, lib.Store().aparts):
        with pytest.raises(TypeError, match="unexpected keyword"):
            call(nonsense=1)


def test_call_is_unobserved_if_begin_returns_none(modules):
    """If `begin` returns None, none of our other functions is called."""
    wrapper = ObservedCall(lambda instance, args, kwargs: None, pytest.fail, pytest.fail).wrapper_for(modules.lib.save)
    assert wrapper(modules.lib.save, None, (1,), {}) == {"saved": 1}


@pytest.mark.parametrize("is_future", [True, False], ids=["future", "value"])
@pytest.mark.parametrize("step", ["__enter__", "__exit__", "suspend"])
def test_operation_that_fails_is_a_fault(modules, monkeypatch, step, is_future):
    """If a method of the operation raises, the host program still gets its result, and `fault` receives the exception."""
    our_error, calls, result = RuntimeError("ours"), [], Future() if is_future else object()
    monkeypatch.setattr(modules.toy.Operation, step, Mock(side_effect=our_error))
    if is_future:
        result.set_result(1)

    def work():
        calls.append(1)
        return result

    assert modules.toy.observed.wrapper_for(work)(work, None, (), {}) is result
    assert modules.toy.faults == ([our_error] if is_future or step != "suspend" else [])
    assert calls == [1]


def test_future_ends_the_operation_when_done(lib, toy):
    """The operation stops being current when the call returns, and ends with the result of the future."""
    future = Future()
    assert lib.later(future) is future
    operation = only(toy.operations)
    assert operation.events == ["enter", "suspend"]
    future.set_result("value")
    assert operation.events == ["enter", "suspend", "exit"]
    assert operation.result == "value"


def test_future_that_fails_or_is_cancelled(lib, toy):
    """The operation gets the exception of the future; a cancelled future ends it as cancelled."""
    failed, cancelled, error = Future(), Future(), OSError("disk")
    lib.later(failed)
    lib.later(cancelled)
    failed.set_exception(error)
    cancelled.cancel()
    assert toy.operations[0].error is error
    assert isinstance(toy.operations[1].error, CancelledError)


def test_asyncio_still_logs_an_exception_never_retrieved(lib, toy, caplog):
    """Our reading of a future's exception does not suppress asyncio's "exception was never retrieved"."""

    async def main():
        future = asyncio.get_running_loop().create_future()
        lib.later(future)
        future.set_exception(OSError("disk"))
        await asyncio.sleep(0)

    with caplog.at_level(logging.ERROR, "asyncio"):
        asyncio.run(main())
        gc.collect()
    assert isinstance(only(toy.operations).error, OSError)
    toy.operations.clear()
    gc.collect()
    assert "never retrieved" in caplog.text


def test_mock_is_not_treated_as_a_future(lib, toy):
    """An object that has every attribute, such as a Mock, is a plain result."""
    mock = Mock()
    assert lib.later(mock) is mock
    assert only(toy.operations).events == ["enter", "exit"]
    assert mock.mock_calls == []


def test_result_with_an_unhashable_type(lib, toy):
    """If the type of a result cannot be examined, the host still gets its result, the operation ends, and a fault is recorded."""

    class UnhashableType(type):
        __hash__ = None

    class Result(metaclass=UnhashableType):
        pass

    result = Result()
    assert lib.later(result) is result
    assert only(toy.operations).events == ["enter", "exit"]
    assert len(toy.faults) == 1
