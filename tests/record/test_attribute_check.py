"""Attributes that a program has probably not meant."""

from __future__ import annotations

import pytest

import ckpt_observe
from ckpt_observe.record import attribute_check, redact
from ckpt_observe.semconv.attributes import ATTRIBUTES
from ckpt_observe.support.logs import WarningLog


@pytest.fixture(autouse=True)
def forget_checks(monkeypatch):
    """Let every test be the first that uses an attribute."""
    monkeypatch.setattr(attribute_check, "_checked", set())
    monkeypatch.setattr(attribute_check, "_warnings", WarningLog())
    monkeypatch.setattr(redact, "_safe_keys", {})


def save(**arguments):
    with ckpt_observe.checkpoint("save", **arguments):
        pass


def save_and_set(attributes):
    with ckpt_observe.checkpoint("save") as operation:
        operation.set(attributes)


def save_with_phase(attributes):
    with ckpt_observe.checkpoint("save") as operation, operation.phase("write") as phase:
        phase.set(attributes)


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (lambda: save(step="3"), "checkpoint.step is recorded as a str, but metrics and dashboards expect the type int"),
        (lambda: save(id=3), "checkpoint.id is recorded as a int, but metrics and dashboards expect the type string"),
        (lambda: save(attributes={"checkpoint.size.store": 5}), "did you mean checkpoint.size.stored?"),
        (lambda: save_and_set({"checkpoint.stpe": 3}), "did you mean checkpoint.step?"),
        (lambda: save_and_set({"checkpoint.size.stored": True}), "checkpoint.size.stored is recorded as a bool"),
        (lambda: save_and_set({"checkpoint.state.key_names": "a"}), "expect the type string[]"),
        (lambda: save_with_phase({"checkpoint.phase.byte_in": 3}), "did you mean checkpoint.phase.bytes_in?"),
        (lambda: ckpt_observe.task("t", interval="600").__enter__().__exit__(None, None, None), "checkpoint.interval is recorded as a str"),
    ],
    ids=["step", "id", "argument", "set", "boolean", "list", "phase", "task"],
)
def test_wrong_attribute_is_logged_once(recording, caplog, act, words):
    """A name close to one of the reference, and a value of another type, are recorded and logged, once for each."""
    act()
    act()
    [record] = caplog.records
    assert words in record.getMessage()
    assert recording.spans()


def test_type_is_checked_after_a_right_value(recording, caplog):
    """A wrong value is noticed even if a library has set the same attribute correctly before."""
    save(step=3)
    assert caplog.records == []
    save(step="4")
    assert len(caplog.records) == 1


def test_own_attributes_are_not_questioned(recording, caplog):
    """Names of your own, numbers for a double, NumPy's numbers and None are fine."""
    numpy = pytest.importorskip("numpy")
    own_attributes = {"model.name": "x", "checkpoint.shard": 3, "checkpoint.size.total": 5, "my.password": "x", "": 1, "checkpoint": "x"}
    save(step=numpy.int64(3), attributes=own_attributes)
    save_and_set({"checkpoint.interval": 600, "checkpoint.id": None, "checkpoint.size.stored": numpy.int32(7)})
    assert caplog.records == []


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_names_of_the_reference_are_not_redacted(name):
    """A name of the reference that looks like that of a secret, such as `key_names`, is none."""
    assert redact.attributes({name: 3}) == {name: 3}


def test_many_names_take_bounded_memory(monkeypatch):
    """A program that invents a name for each save is not remembered without end."""
    monkeypatch.setattr(attribute_check, "_MAX_CHECKED", 50)
    monkeypatch.setattr(redact, "_MAX_KEYS", 50)
    for number in range(500):
        redact.attributes({f"number.{number}": number})
    assert len(attribute_check._checked) <= 50
    assert len(redact._safe_keys) <= 50
