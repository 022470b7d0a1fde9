"""Whatever object the host program passes, nothing is raised into it, and the operation is recorded."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

import ckpt_observe
from ckpt_observe.errors import ConfigError
from ckpt_observe.journal.pages import HEADER_SIZE, PAGE_SIZE
from ckpt_observe.record import guard
from ckpt_observe.semconv import attributes as names


def fail(*_arguments):
    raise RuntimeError


class Unprintable:
    __str__ = __repr__ = __format__ = fail


class Unhashable(Unprintable):
    __hash__ = __eq__ = __bool__ = fail


class BrokenText(str):
    __slots__ = ()
    __str__ = __format__ = __len__ = __hash__ = __eq__ = encode = lower = isascii = fail


class BrokenMapping(Mapping):
    __getitem__ = __iter__ = __len__ = __bool__ = items = fail


class BrokenDict(dict):
    __iter__ = __len__ = keys = items = fail


ARGUMENTS = [
    Unprintable(), Unhashable(), BrokenText("text"), BrokenMapping(), BrokenDict(), [Unhashable()], {Unprintable(): 1}, {"key": Unhashable()},
    {"key": BrokenText("text")}, {"ä" * 2000: 1}, {"状" * 2000: "状" * 2000}, {"x" * 100_000: 1}, {5: 5}, "状" * 2000, "\ud800", b"x", 5, None,
]  # fmt: skip


def enter_phase(scope):
    with scope:
        pass


def set_in_phase(operation, argument):
    with operation.phase("write") as phase:
        phase.set(argument)


CALLS = {
    "set": lambda operation, argument: operation.set(argument),
    "set_attribute key": lambda operation, argument: operation.set_attribute(argument, 1),
    "set_attribute value": lambda operation, argument: operation.set_attribute("key", argument),
    "set_attributes": lambda operation, argument: operation.set_attributes(argument),
    "add_event name": lambda operation, argument: operation.add_event(argument),
    "add_event attributes": lambda operation, argument: operation.add_event("event", argument),
    "add_event time": lambda operation, argument: operation.add_event("event", {}, argument),
    "link trace": lambda operation, argument: operation.link(argument, "b" * 16),
    "link span": lambda operation, argument: operation.link("a" * 32, argument),
    "link attributes": lambda operation, argument: operation.link("a" * 32, "b" * 16, argument),
    "add_link": lambda operation, argument: operation.add_link(argument),
    "record_exception": lambda operation, argument: operation.record_exception(argument),
    "record_exception attributes": lambda operation, argument: operation.record_exception(ValueError("x"), argument),
    "operation.phase": lambda operation, argument: enter_phase(operation.phase(argument)),
    "phase": lambda _operation, argument: enter_phase(ckpt_observe.phase(argument)),
    "phase.set": set_in_phase,
}
SCOPES = {
    **{f"task {name}": lambda argument, name=name: ckpt_observe.task(**{"name": "t", name: argument})
       for name in ("name", "id", "user", "session", "interval", "attributes")},
    **{f"checkpoint {name}": lambda argument, name=name: ckpt_observe.checkpoint("save", **{name: argument})
       for name in ("id", "step", "attributes")},
}  # fmt: skip


def check_record(recording):
    for page in recording.pages:
        assert page.ended == 1
        assert max(map(len, page.lines)) <= PAGE_SIZE - HEADER_SIZE
    spans = [span for span in recording.spans() if names.PHASE not in span.attributes]
    assert [span.attributes[names.OUTCOME] for span in spans] == ["ok"] * len(ARGUMENTS)


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_methods(recording, call):
    """No method of an operation raises or loses the operation."""
    for argument in ARGUMENTS:
        with ckpt_observe.checkpoint("save") as operation:
            call(operation, argument)
    check_record(recording)


@pytest.mark.parametrize("scope", SCOPES.values(), ids=SCOPES)
def test_scopes(recording, scope):
    """No argument of a task or checkpoint raises or loses the operation."""
    for argument in ARGUMENTS:
        with scope(argument):
            pass
    check_record(recording)


def test_task_ids_in_another_task(recording, monkeypatch):
    """No id of a task raises or loses the task while tasks with other ids are running."""
    monkeypatch.setattr(guard, "faults", type(guard.faults)())
    for argument in ARGUMENTS:
        with ckpt_observe.task("outer", id="1"), ckpt_observe.task("inner", id=argument):
            pass
    assert [span.attributes[names.OUTCOME] for span in recording.spans()] == ["ok"] * 2 * len(ARGUMENTS)
    assert not guard.faults


@pytest.mark.parametrize("argument", [Unprintable(), Unhashable(), [], None], ids=lambda argument: type(argument).__name__)
def test_operation_that_is_not_a_name(argument):
    """An operation that is not one of the fixed names raises ConfigError, as documented, and nothing else."""
    with pytest.raises(ConfigError, match="is not a checkpoint operation"):
        ckpt_observe.checkpoint(argument)
