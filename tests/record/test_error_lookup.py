"""Causes, contexts, groups, phases, tables of libraries and control flow: which exception explains a failure."""

from __future__ import annotations

import asyncio
import errno
import json
from typing import ClassVar

import pytest

from ckpt_observe.record.failures import classify
from ckpt_observe.record.operation import Operation
from ckpt_observe.record.task import Task

FULL = OSError(errno.ENOSPC, "full")


class StoreError(Exception):
    """An exception that no table has."""


class Pause(Exception):  # noqa: N818
    """Control flow of a library."""


PAUSE = f"{Pause.__module__}.{Pause.__qualname__}"


def raised(function):
    with pytest.raises(BaseException) as caught:
        function()
    return caught.value


def caused_by(error, *, outer=StoreError):
    def fail():
        raise outer("failed") from error

    return raised(fail)


def while_handling(error, *, outer=StoreError):
    def fail():
        try:
            raise error
        except BaseException:
            raise outer("failed")  # noqa: B904

    return raised(fail)


def cycle():
    first, second = StoreError("first"), StoreError("second")
    first.__cause__, second.__cause__ = second, first
    return first


def chain(length, last):
    for _ in range(length):
        last = caused_by(last)
    return last


def to_json(state):
    """Save the state as CrewAI does, which hides the reason in a RuntimeError."""
    try:
        json.dumps(state)
    except TypeError as error:
        raise RuntimeError(f"Failed to save state: {error}") from error


@pytest.mark.parametrize(
    ("error", "code", "cause"),
    [
        (caused_by(FULL), "storage.no_space", "OSError"),
        (caused_by(caused_by(FULL)), "storage.no_space", "OSError"),
        (while_handling(FULL), "storage.no_space", "OSError"),
        (raised(lambda: to_json({1, 2})), "serialization.unsupported_type", "TypeError"),
        (ExceptionGroup("two", [StoreError(), FULL]), "storage.no_space", "OSError"),
        (ExceptionGroup("outer", [ExceptionGroup("inner", [caused_by(FULL)])]), "storage.no_space", "OSError"),
        (caused_by(ExceptionGroup("inner", [FULL])), "storage.no_space", "OSError"),
        (BaseExceptionGroup("one failed", [asyncio.CancelledError(), FULL]), "storage.no_space", "OSError"),
        (caused_by(FULL, outer=OSError), "storage.no_space", "OSError"),
        (while_handling(FULL, outer=OSError), "storage.no_space", "OSError"),
        (caused_by(FULL, outer=TimeoutError), "timeout.deadline", None),
        (caused_by(StoreError(), outer=OSError), "storage.io", None),
        (caused_by(KeyError("x")), "unknown.exception", None),
        (cycle(), "unknown.exception", None),
        (chain(30, FULL), "storage.no_space", "OSError"),
        (chain(500, FULL), "unknown.exception", None),
        (ExceptionGroup("many", [StoreError()] * 100_000), "unknown.exception", None),
    ],
    ids=[
        *("cause", "cause of a cause", "context", "CrewAI", "group", "nested groups", "group as cause", "group with a cancelled task"),
        *("general error with a cause", "general error with a context", "specific error with a cause", "general error", "unknown cause"),
        *("cycle", "long chain", "too long chain", "large group"),
    ],
)
def test_exception_that_explains_the_failure(error, code, cause):
    """The first exception that a table knows gives the code. It is named if it is not the raised exception, which stays `error.type`."""
    failure = classify(error)
    assert (failure.code, failure.cause, failure.error_type) == (code, cause, type(error).__qualname__)
    assert failure.attributes(None).get("checkpoint.error.cause") == cause


def test_suppressed_context():
    """After `raise ... from None` the context does not explain anything."""

    def fail():
        try:
            raise FULL
        except OSError:
            raise StoreError from None

    assert classify(raised(fail)).code == "unknown.exception"


@pytest.mark.parametrize("stop", [asyncio.CancelledError(), KeyboardInterrupt(), Pause()], ids=lambda error: type(error).__name__)
def test_failure_while_something_else_stops(stop):
    """A failure while a cancellation or pause is handled is a failure, and so is a group with an unknown failure."""
    for error in (while_handling(stop), BaseExceptionGroup("both", [stop, StoreError()])):
        failure = classify(error, codes={PAUSE: "ok"})
        assert (failure.outcome, failure.code) == ("error", "unknown.exception")


def test_cancellation_as_cause():
    """A library may translate a cancellation; a group of cancelled tasks is cancelled."""
    for error in (caused_by(asyncio.CancelledError()), BaseExceptionGroup("all", [asyncio.CancelledError(), KeyboardInterrupt()])):
        assert classify(error).outcome == "cancelled"


def test_attributes_of_the_cause():
    """Retryability, recovery and impact come from the raised exception or else from the one that explains it."""

    class ServerError(Exception):
        code, retryable, recovery, impact = "unavailable.connection", False, "start it", "no save"

    error = caused_by(ServerError())
    failure = classify(error)
    assert (failure.retryable, failure.recovery, failure.impact) == (False, "start it", "no save")
    error.recovery = "retry"
    assert classify(error).recovery == "retry"


@pytest.mark.parametrize(
    ("phase", "error", "code"),
    [
        ("serialize", TypeError("x"), "serialization.unsupported_type"),
        ("serialize", RecursionError(), "serialization.unsupported_type"),
        ("serialize", UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogate"), "serialization.unsupported_type"),
        ("serialize", caused_by(AttributeError("x"), outer=RuntimeError), "serialization.unsupported_type"),
        ("serialize", FULL, "storage.no_space"),
        ("serialize", while_handling(FULL, outer=TypeError), "serialization.unsupported_type"),
        ("deserialize", ValueError("x"), "serialization.malformed"),
        ("deserialize", KeyError("x"), "serialization.malformed"),
        ("deserialize", EOFError(), "serialization.malformed"),
        ("deserialize", UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid"), "serialization.malformed"),
        ("decompress", OSError("Invalid data stream"), "compression.malformed"),
        ("decrypt", ValueError("x"), "encryption.wrong_key"),
        ("write", ValueError("x"), "unknown.exception"),
        (None, TypeError("x"), "unknown.exception"),
    ],
)
def test_common_types_in_a_phase(phase, error, code):
    """What no table knows means what it usually means in the phase that failed."""
    assert classify(error, phase).code == code


def test_table_of_a_library():
    """It has precedence over every other source, also for causes; a function may decide, and a subclass is found by its base."""

    class SpecialError(StoreError):
        code = "storage.io"

    name = f"{StoreError.__module__}.{StoreError.__qualname__}"
    assert classify(SpecialError(), codes={name: "conflict.locked"}).code == "conflict.locked"
    assert classify(caused_by(FULL), codes={name: "conflict.locked"}).code == "conflict.locked"
    assert classify(caused_by(SpecialError(), outer=RuntimeError), codes={name: "conflict.locked"}).code == "conflict.locked"
    by_message = {name: lambda error: "conflict.locked" if "busy" in str(error) else None}
    assert classify(StoreError("busy"), codes=by_message).code == "conflict.locked"
    assert classify(StoreError("other"), codes=by_message).code == "unknown.exception"


@pytest.mark.parametrize("value", ["no.such_code", 7, [], lambda _: 1 / 0, lambda _: "no.such_code", lambda _: []])
def test_faulty_table_of_a_library(value):
    """Whatever is in the table of a library, the general tables still apply."""
    assert classify(FULL, codes={"builtins.OSError": value}).code == "storage.no_space"


def test_control_flow():
    """An exception that is not an error gives that outcome and its type, and none of the attributes of an error."""
    failure = classify(Pause(), "write", {PAUSE: "ok"})
    assert failure.attributes("write") == {"checkpoint.outcome": "ok", "checkpoint.control_flow": "Pause"}
    assert classify(Pause(), codes={PAUSE: "skipped"}).outcome == "skipped"
    assert classify(ExceptionGroup("all", [Pause(), Pause()]), codes={PAUSE: "ok"}).outcome == "ok"
    assert classify(caused_by(Pause()), codes={PAUSE: "ok"}).code == "unknown.exception"


def test_hostile_exceptions():
    """Properties, texts and classes that raise or lie do not break the classification, nor are those read that no table asks for."""

    class Meta(type):
        __module__ = property(lambda _: 1 / 0)

    class NamelessError(OSError, metaclass=Meta):
        pass

    class HostileError(ValueError):
        def __getattribute__(self, name):
            raise RuntimeError(name)

        def __str__(self):
            raise RuntimeError

    class LyingError(StoreError):
        reads = 0

        @property
        def __cause__(self):
            type(self).reads += 1
            return FULL

        sqlstate = errno = response = __context__ = __cause__

    assert classify(NamelessError(errno.ENOSPC, "full")).code == "storage.no_space"
    assert classify(HostileError(), "serialize").code == "serialization.unsupported_type"
    assert classify(LyingError()).code == "unknown.exception"
    assert LyingError.reads == 0


class PausingOperation(Operation):
    __slots__ = ()
    error_codes: ClassVar = {PAUSE: "ok", f"{StoreError.__module__}.{StoreError.__qualname__}": "conflict.locked"}


class PausingTask(Task):
    __slots__ = ()
    error_codes = PausingOperation.error_codes


def test_pause_through_task_operation_and_phase(recording):
    """A pause leaves spans without an error: outcome ok, the type of the exception, no exception event."""
    with pytest.raises(Pause), PausingTask("agent", {}), PausingOperation("save") as operation, operation.phase("write"):
        raise Pause
    assert len(recording.spans()) == 3
    for span in recording.spans():
        assert span.status == "ok"
        assert span.events == ()
        assert (span.attributes["checkpoint.outcome"], span.attributes["checkpoint.control_flow"]) == ("ok", "Pause")
        assert not [name for name in span.attributes if "error" in name]


def test_failure_of_an_operation_with_a_table(recording):
    """Operation and phase use the table of the library; the failed phase and the cause are on the spans."""
    with pytest.raises(RuntimeError), PausingOperation("save") as operation, operation.phase("serialize"):
        raise RuntimeError from StoreError()
    for span in recording.spans():
        assert span.attributes["checkpoint.error.code"] == "conflict.locked"
        assert span.attributes["error.type"] == "RuntimeError"
        assert span.attributes["checkpoint.error.cause"].endswith(".StoreError")
        assert span.attributes["checkpoint.error.phase"] == "serialize"


def test_failed_phase_gives_the_code_of_the_operation(recording):
    """A TypeError in the phase serialize is an unsupported type, on the phase and on its operation."""
    with pytest.raises(TypeError), Operation("save") as operation, operation.phase("serialize"):
        raise TypeError
    assert {span.attributes["checkpoint.error.code"] for span in recording.spans()} == {"serialization.unsupported_type"}
