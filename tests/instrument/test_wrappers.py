"""Plain functions and futures: the host's values pass unchanged, and an operation ends once, when the work is done."""

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
def toy(world):
    instrumentor = world.toy.ToyInstrumentor()
    instrumentor.instrument()
    yield world.toy
    instrumentor.uninstrument()


@pytest.fixture
def lib(toy, world):
    return world.lib


def the(operations):
    (operation,) = operations
    return operation


def test_function_is_entered_noted_and_left(lib, toy):
    """One call, one operation, which sees the result."""
    state = object()
    result = lib.save(state)
    operation = the(toy.operations)
    assert result["saved"] is state
    assert operation.noted is result
    assert operation.life == ["enter", "exit"]
    assert toy.current == []


def test_exception_is_the_same_object_with_one_more_frame(lib, toy):
    """The host catches its own exception; its traceback has our wrapper's frame and no other of ours."""
    error = KeyError("mine")
    with pytest.raises(KeyError) as caught:
        lib.save(1, fail=error)
    assert caught.value is error
    assert error.__context__ is None
    frames = traceback.extract_tb(error.__traceback__)
    assert [frame.name for frame in frames][-2:] == ["wrapper", "save"]
    assert sum(frame.filename == wrappers.__file__ for frame in frames) == 1
    assert the(toy.operations).error is error


def test_interrupts_end_it_too(lib, toy):
    """KeyboardInterrupt and SystemExit pass, and the operation is over."""
    for kind in (KeyboardInterrupt, SystemExit):
        with pytest.raises(kind):
            lib.save(1, fail=kind())
    assert [operation.life for operation in toy.operations] == [["enter", "exit"]] * 2


def test_wrong_arguments_fail_at_the_call(lib):
    """Also for coroutines and generators, which have not begun."""
    for call in (lib.save, lib.Store().asave, lib.Store().parts, lib.Store().aparts):
        with pytest.raises(TypeError, match="unexpected keyword"):
            call(nonsense=1)


def test_declined_call_runs_bare(world):
    """When `begin` gives None nothing else of ours is called."""
    wrapper = ObservedCall(lambda instance, args, kwargs: None, pytest.fail, pytest.fail).wrapper_for(world.lib.save)
    assert wrapper(world.lib.save, None, (1,), {}) == {"saved": 1}


@pytest.mark.parametrize("done", [True, False], ids=["future", "value"])
@pytest.mark.parametrize("step", ["__enter__", "__exit__", "suspend"])
def test_operation_that_fails_is_a_fault(world, monkeypatch, step, done):
    """Whichever of the operation's own steps raises, the host has its result, and `fault` the exception."""
    own, ran, result = RuntimeError("ours"), [], Future() if done else object()
    monkeypatch.setattr(world.toy.Operation, step, Mock(side_effect=own))
    if done:
        result.set_result(1)

    def work():
        ran.append(1)
        return result

    assert world.toy.observed.wrapper_for(work)(work, None, (), {}) is result
    assert world.toy.faults == ([own] if done or step != "suspend" else [])
    assert ran == [1]


def test_future_ends_it_when_done(lib, toy):
    """At return it stops being current, and ends with the future's result."""
    future = Future()
    assert lib.later(future) is future
    operation = the(toy.operations)
    assert operation.life == ["enter", "suspend"]
    future.set_result("value")
    assert operation.life == ["enter", "suspend", "exit"]
    assert operation.noted == "value"


def test_future_that_fails_or_is_cancelled(lib, toy):
    """The future's exception is the operation's; a cancelled one ends it as cancelled."""
    failed, cancelled, error = Future(), Future(), OSError("disk")
    lib.later(failed)
    lib.later(cancelled)
    failed.set_exception(error)
    cancelled.cancel()
    assert toy.operations[0].error is error
    assert isinstance(toy.operations[1].error, CancelledError)


def test_asyncio_future_keeps_its_complaint(lib, toy, caplog):
    """Reading its exception does not silence asyncio's "exception was never retrieved"."""

    async def main():
        future = asyncio.get_running_loop().create_future()
        lib.later(future)
        future.set_exception(OSError("disk"))
        await asyncio.sleep(0)

    with caplog.at_level(logging.ERROR, "asyncio"):
        asyncio.run(main())
        gc.collect()
    assert isinstance(the(toy.operations).error, OSError)
    toy.operations.clear()
    gc.collect()
    assert "never retrieved" in caplog.text


def test_mock_is_not_taken_for_a_future(lib, toy):
    """An object that answers to any name is a result like others."""
    mock = Mock()
    assert lib.later(mock) is mock
    assert the(toy.operations).life == ["enter", "exit"]
    assert mock.mock_calls == []


def test_result_of_a_strange_type(lib, toy):
    """A type that cannot be asked is our trouble: the host has its object, and the operation its end."""

    class Strange(type):
        __hash__ = None

    class Result(metaclass=Strange):
        pass

    result = Result()
    assert lib.later(result) is result
    assert the(toy.operations).life == ["enter", "exit"]
    assert len(toy.faults) == 1
