"""One operation that consists of several calls within an enclosing one."""

from __future__ import annotations

import pytest

from ckpt_observe.instrument.library_call import LibraryCall
from ckpt_observe.instrument.phase_calls import SummedPhase
from ckpt_observe.instrument.runs import RunCall
from ckpt_observe.instrument.split_calls import EnclosingCall, PartCall
from ckpt_observe.record.operation import current_operation
from ckpt_observe.semconv import attributes as names

RESTORE = LibraryCall("toy", "restore", lambda _instance, arguments: {names.SYSTEM: "toy", names.ID: arguments["path"]})
READ = SummedPhase("toy", "read")


def wrap(row, function):
    wrapper = row.wrapper_for(function)
    return lambda *args: wrapper(function, None, args, {})


def read(path):
    assert current_operation() is not None
    if path == "corrupt":
        raise OSError(path)
    return path


def between(path):
    assert current_operation() is None
    return path


read_first = wrap(PartCall(RESTORE, READ, is_first=True), read)
read_next = wrap(PartCall(RESTORE, READ), read)
read_last = wrap(PartCall(RESTORE, READ, is_last=True), read)
ENCLOSING = EnclosingCall(RunCall("toy", lambda _instance, _args, _kwargs: {names.TASK_NAME: "train"}))
train = wrap(ENCLOSING, lambda *steps: [step(path) for step, path in steps])


@pytest.fixture
def restores(recording):
    return lambda: [span.attributes for span in recording.spans() if names.OPERATION in span.attributes]


def phases(recording):
    return [span.attributes for span in recording.spans() if names.PHASE in span.attributes]


def test_calls_are_phases_of_one_operation(recording, restores):
    """What runs between the calls does not see the operation, and the last call ends it: a second restore is another one."""
    calls = [(read_first, "a"), (between, "-"), (read_next, "a"), (read_last, "a"), (between, "-")]
    assert train(*calls, *calls) == ["a", "-", "a", "a", "-"] * 2
    assert [each[names.ID] for each in restores()] == ["a", "a"]
    assert [each[names.PHASE_CALLS] for each in phases(recording)] == [3, 3]


def test_failed_call_ends_the_operation_in_its_phase(restores):
    """The caller gets the exception, and what follows is not part of the restore."""
    with pytest.raises(OSError, match="corrupt"):
        train((read_first, "a"), (read_next, "corrupt"))
    [restore] = restores()
    assert (restore[names.OUTCOME], restore[names.ERROR_PHASE]) == ("error", "read")


def test_enclosing_call_ends_what_is_unfinished(restores):
    """A run without the last call, or one that fails between two calls, restored what it read."""
    train((read_first, "a"))
    with pytest.raises(ZeroDivisionError):
        train((read_first, "b"), (lambda _path: 1 / 0, ""))
    assert [(each[names.ID], each[names.OUTCOME]) for each in restores()] == [("a", "ok"), ("b", "ok")]


def test_without_an_enclosing_call_the_first_call_is_the_operation(restores):
    """A later call that belongs to no operation is not recorded."""
    assert read_first("a") == "a"
    with pytest.raises(AssertionError):  # raised by `read`, which looks for an operation
        read_next("a")
    assert [each[names.ID] for each in restores()] == ["a"]
