"""What runs in a forked child, and in which order."""

from __future__ import annotations

import gc
import os
import sys

import pytest

from ckpt_observe.support import forks
from ckpt_observe.support.forks import Order


@pytest.fixture(autouse=True)
def registry(monkeypatch):
    """Registrations of a test end with it, and those of the package are out of the way."""
    monkeypatch.setattr(forks, "_functions", {})
    monkeypatch.setattr(forks, "_objects", type(forks._objects)())


class Recorder:
    """Writes its name into a pipe when it is reset."""

    def __init__(self, name, pipe):
        self.name, self.pipe = name, pipe

    def reset_after_fork(self):
        os.write(self.pipe, self.name)


def fork_child():
    """Fork a child that does nothing but reset, and wait for its end."""
    pid = os.fork()
    if not pid:
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0


@pytest.fixture
def pipe():
    reader, writer = os.pipe()
    yield reader, writer
    os.close(reader)
    os.close(writer)


def test_resets_run_by_order_and_then_by_registration(pipe):
    """Descriptors before objects before the program; functions and objects take turns as they were registered."""
    reader, writer = pipe
    objects = [Recorder(b"4", writer), Recorder(b"1", writer), Recorder(b"2", writer)]
    forks.register(objects[0], Order.PROGRAM)
    forks.register(objects[1], Order.DESCRIPTORS)
    forks.register(objects[2])
    forks.run_in_child(lambda: os.write(writer, b"3"))
    fork_child()
    os.write(writer, b".")
    assert os.read(reader, 100) == b"1234."


def test_objects_are_referenced_weakly(pipe):
    """A registration does not keep an object alive."""
    reader, writer = pipe
    forks.register(Recorder(b"x", writer))
    gc.collect()
    fork_child()
    os.write(writer, b".")
    assert os.read(reader, 100) == b"."


def test_equal_objects_are_both_reset(pipe):
    """Objects are distinguished by identity, and need no hash."""
    reader, writer = pipe

    class Equal(Recorder):
        __hash__ = None

        def __eq__(self, other):
            return True

    objects = [Equal(b"a", writer), Equal(b"b", writer)]
    for each in objects:
        forks.register(each)
    fork_child()
    assert os.read(reader, 100) == b"ab"


def test_a_failing_reset_does_not_stop_the_others(pipe, monkeypatch):
    """The child goes on, and Python reports the failure like that of any hook."""
    reader, writer = pipe

    def fail():
        raise ValueError("broken reset")

    forks.run_in_child(fail)
    forks.run_in_child(lambda: os.write(writer, b"next "))
    monkeypatch.setattr(sys, "unraisablehook", lambda report: os.write(writer, repr(report.exc_value).encode()))
    fork_child()
    output = os.read(reader, 1000)
    assert output.startswith(b"next ")
    assert b"broken reset" in output


def test_the_parent_is_not_reset(pipe):
    """Resets run in the child only."""
    calls = []
    forks.run_in_child(lambda: calls.append(1))
    fork_child()
    assert calls == []
