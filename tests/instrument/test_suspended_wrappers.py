"""Coroutines and generators: timed from their first step to their last, current only while their own code runs."""

import asyncio
import types

import pytest

from ckpt_observe.instrument.wrappers import ObservedCall


@pytest.fixture
def toy(world):
    instrumentor = world.toy.ToyInstrumentor()
    instrumentor.instrument()
    yield world.toy
    instrumentor.uninstrument()


@pytest.fixture
def store(toy, world):
    return world.lib.Store()


def observe(toy, function):
    """The function as the host would call it, observed."""
    wrapper = toy.observed.wrapper_for(function)
    return lambda *args: wrapper(function, None, args, {})


def the(operations):
    (operation,) = operations
    return operation


def test_coroutine_is_current_while_awaited(store, toy):
    """Nothing begins before it is awaited; the result is noted; it is over when the coroutine is."""
    seen = []

    async def gate():
        seen.extend(toy.current)

    coroutine = store.asave("state", gate)
    assert toy.operations == []
    assert coroutine.__qualname__ == "Store.asave"
    assert asyncio.run(coroutine) == "state"
    operation = the(toy.operations)
    assert seen == [operation]
    assert operation.life == ["enter", "exit"]
    assert operation.noted == "state"


def test_cancelled_coroutine_ends_as_cancelled(store, toy):
    """The cancellation reaches the host's code and the operation alike."""

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
    assert isinstance(the(toy.operations).error, asyncio.CancelledError)


def test_generator_is_not_current_between_steps(store, toy):
    """The consumer's own work is not put under the generator's operation; values sent and returned are kept."""
    parts = store.parts(2)
    assert toy.operations == []
    assert next(parts) == 0
    assert toy.current == []
    assert parts.send(5) == 1
    with pytest.raises(StopIteration) as stop:
        parts.send(6)
    assert stop.value.value == 11
    operation = the(toy.operations)
    assert operation.life == ["enter", "suspend", "resume", "suspend", "resume", "exit"]
    assert operation.noted == 11


def test_generator_body_runs_as_current(toy):
    """At each step the body sees its operation."""

    def body():
        yield list(toy.current)
        yield list(toy.current)

    steps = list(observe(toy, body)())
    assert steps == [toy.operations, toy.operations]


def test_generator_that_is_closed_is_no_failure(store, toy):
    """A consumer that had enough ends the operation without an error, and the body is closed."""
    parts = store.parts()
    next(parts)
    parts.close()
    operation = the(toy.operations)
    assert operation.life == ["enter", "suspend", "resume", "exit"]
    assert operation.error is None


def test_generator_never_begun_makes_no_operation(store, toy):
    """Made and dropped: nothing happened."""
    store.parts().close()
    assert toy.operations == []


def test_exception_thrown_in_reaches_the_body(toy):
    """The body may answer it; one that leaves the body is the same object."""

    def body():
        try:
            yield "first"
        except KeyError as error:
            got = error
        yield got

    steps, answered, fatal = observe(toy, body)(), KeyError("answered"), OSError("fatal")
    next(steps)
    assert steps.throw(answered) is answered
    with pytest.raises(OSError, match="fatal") as caught:
        steps.throw(fatal)
    assert caught.value is fatal
    assert caught.value.__context__ is None
    assert the(toy.operations).error is fatal


def test_generator_that_refuses_to_close(toy):
    """Python's own complaint comes as always."""

    def body():
        try:
            yield
        except GeneratorExit:
            yield

    steps = observe(toy, body)()
    next(steps)
    with pytest.raises(RuntimeError, match="ignored GeneratorExit"):
        steps.close()


def test_unobserved_generators_run_bare(world):
    """When `begin` gives None, sending and returning work all the same."""
    declined = ObservedCall(lambda instance, args, kwargs: None, pytest.fail, pytest.fail)
    store = world.lib.Store()
    steps = declined.wrapper_for(store.parts)(store.parts, store, (1,), {})
    assert next(steps) == 0
    with pytest.raises(StopIteration) as stop:
        steps.send(3)
    assert stop.value.value == 3

    async def collect():
        return [part async for part in declined.wrapper_for(store.aparts)(store.aparts, store, (2,), {})]

    assert asyncio.run(collect()) == [0, 1]


def test_async_generator_is_not_current_between_steps(store, toy):
    """As with generators; exhausted, it is over."""
    outside = []

    async def consume():
        outside.extend([list(toy.current) async for _ in store.aparts(2)])

    asyncio.run(consume())
    assert outside == [[], []]
    assert the(toy.operations).life == ["enter", "suspend", "resume", "suspend", "resume", "exit"]


def test_async_generator_sends_throws_and_closes(toy):
    """asend, athrow and aclose reach the body."""
    closed = []

    async def body():
        try:
            got = yield "first"
            try:
                yield got
            except KeyError as error:
                yield error
        finally:
            closed.append(True)

    async def main():
        steps, error = observe(toy, body)(), KeyError("answered")
        assert await anext(steps) == "first"
        assert await steps.asend("sent") == "sent"
        assert await steps.athrow(error) is error
        await steps.aclose()

    asyncio.run(main())
    assert closed == [True]
    assert the(toy.operations).error is None
    assert the(toy.operations).life[-1] == "exit"


def test_wrapper_below_that_gives_something_else(toy):
    """If somebody made the coroutine function plain, or the generator one to be awaited, the host gets what it got."""

    async def coroutine():
        raise AssertionError

    assert toy.observed.wrapper_for(coroutine)(lambda: 5, None, (), {}) == 5

    @types.coroutine
    def awaited():
        yield

    assert toy.observed.wrapper_for(awaited)(awaited, None, (), {}).gi_code is awaited.__code__
