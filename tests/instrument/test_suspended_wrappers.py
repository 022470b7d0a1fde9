"""Coroutines and generators are timed from their first step to their last, and current only while their own code runs."""

import asyncio
import types

import pytest

from ckpt_observe.instrument.wrappers import ObservedCall


@pytest.fixture
def toy(modules):
    instrumentor = modules.toy.ToyInstrumentor()
    instrumentor.instrument()
    yield modules.toy
    instrumentor.uninstrument()


@pytest.fixture
def store(toy, modules):
    return modules.lib.Store()


def observe(toy, function):
    """Return the observed function as the host program would call it."""
    wrapper = toy.observed.wrapper_for(function)
    return lambda *args: wrapper(function, None, args, {})


def only(operations):
    (operation,) = operations
    return operation


def test_coroutine_is_current_while_awaited(store, toy):
    """The operation begins when the coroutine is first awaited, ends with it, and records its result."""
    current = []

    async def gate():
        current.extend(toy.current)

    coroutine = store.asave("state", gate)
    assert toy.operations == []
    assert coroutine.__qualname__ == "Store.asave"
    assert asyncio.run(coroutine) == "state"
    operation = only(toy.operations)
    assert current == [operation]
    assert operation.events == ["enter", "exit"]
    assert operation.result == "state"


def test_cancelled_coroutine_ends_as_cancelled(store, toy):
    """The cancellation reaches the host's code and the operation."""

    async def main():
        started = asyncio.Event()

        async def gate():
            started.set()
            await asyncio.Event().wait()

        task = asyncio.create_task(store.asave(1, gate))
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert isinstance(only(toy.operations).error, asyncio.CancelledError)


def test_generator_is_not_current_between_steps(store, toy):
    """The consumer's own code does not run under the generator's operation; sent and returned values are unchanged."""
    parts = store.parts(2)
    assert toy.operations == []
    assert next(parts) == 0
    assert toy.current == []
    assert parts.send(5) == 1
    with pytest.raises(StopIteration) as stop:
        parts.send(6)
    assert stop.value.value == 11
    operation = only(toy.operations)
    assert operation.events == ["enter", "suspend", "resume", "suspend", "resume", "exit"]
    assert operation.result == 11


def test_generator_body_runs_as_current(toy):
    """The operation is current in each step of the body."""

    def body():
        yield list(toy.current)
        yield list(toy.current)

    steps = list(observe(toy, body)())
    assert steps == [toy.operations, toy.operations]


def test_closing_a_generator_is_not_a_failure(store, toy):
    """A consumer that stops early ends the operation without an error, and the body is closed."""
    parts = store.parts()
    next(parts)
    parts.close()
    operation = only(toy.operations)
    assert operation.events == ["enter", "suspend", "resume", "exit"]
    assert operation.error is None


def test_generator_that_never_starts_creates_no_operation(store, toy):
    """A generator that is closed before its first step creates no operation."""
    store.parts().close()
    assert toy.operations == []


def test_exception_thrown_in_reaches_the_body(toy):
    """The body may handle the exception; one that leaves the body is the same object."""

    def body():
        try:
            yield "first"
        except KeyError as error:
            caught = error
        yield caught

    steps, handled, fatal = observe(toy, body)(), KeyError("handled"), OSError("fatal")
    next(steps)
    assert steps.throw(handled) is handled
    with pytest.raises(OSError, match="fatal") as caught:
        steps.throw(fatal)
    assert caught.value is fatal
    assert caught.value.__context__ is None
    assert only(toy.operations).error is fatal


def test_generator_that_refuses_to_close(toy):
    """Python raises its usual RuntimeError."""

    def body():
        try:
            yield
        except GeneratorExit:
            yield

    steps = observe(toy, body)()
    next(steps)
    with pytest.raises(RuntimeError, match="ignored GeneratorExit"):
        steps.close()


def test_generators_are_unobserved_if_begin_returns_none(modules):
    """If `begin` returns None, sending and returning values still work."""
    declined = ObservedCall(lambda instance, args, kwargs: None, pytest.fail, pytest.fail)
    store = modules.lib.Store()
    steps = declined.wrapper_for(store.parts)(store.parts, store, (1,), {})
    assert next(steps) == 0
    with pytest.raises(StopIteration) as stop:
        steps.send(3)
    assert stop.value.value == 3

    async def collect():
        return [part async for part in declined.wrapper_for(store.aparts)(store.aparts, store, (2,), {})]

    assert asyncio.run(collect()) == [0, 1]


def test_async_generator_is_not_current_between_steps(store, toy):
    """The consumer's own code does not run under the operation, which ends when the generator is exhausted."""
    outside = []

    async def consume():
        outside.extend([list(toy.current) async for _ in store.aparts(2)])

    asyncio.run(consume())
    assert outside == [[], []]
    assert only(toy.operations).events == ["enter", "suspend", "resume", "suspend", "resume", "exit"]


def test_async_generator_sends_throws_and_closes(toy):
    """asend, athrow and aclose reach the body."""
    closed = []

    async def body():
        try:
            value = yield "first"
            try:
                yield value
            except KeyError as error:
                yield error
        finally:
            closed.append(True)

    async def main():
        steps, error = observe(toy, body)(), KeyError("handled")
        assert await anext(steps) == "first"
        assert await steps.asend("sent") == "sent"
        assert await steps.athrow(error) is error
        await steps.aclose()

    asyncio.run(main())
    assert closed == [True]
    assert only(toy.operations).error is None
    assert only(toy.operations).events[-1] == "exit"


def test_inner_wrapper_that_changes_the_kind_of_callable(toy):
    """If another wrapper turned a coroutine function into a plain one, or a generator into an awaitable, the result is passed through."""

    async def coroutine():
        raise AssertionError

    assert toy.observed.wrapper_for(coroutine)(lambda: 5, None, (), {}) == 5

    @types.coroutine
    def awaitable_generator():
        yield

    assert toy.observed.wrapper_for(awaitable_generator)(awaitable_generator, None, (), {}).gi_code is awaitable_generator.__code__
