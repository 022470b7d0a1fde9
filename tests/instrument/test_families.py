"""Classes of a family are patched: those that exist, those that are defined later, and those that only implement a protocol."""

import logging

import pytest

from ckpt_observe.instrument.patching import PatchedCallable
from ckpt_observe.instrument.targets import Family


@pytest.fixture
def instrumentor(modules):
    instrumentor = modules.toy.ToyInstrumentor()
    instrumentor.instrument()
    yield instrumentor
    instrumentor.uninstrument()


def test_subclass_defined_later(modules, instrumentor):
    """A class that is defined in a function is patched, and forgotten with it."""

    class Late(modules.lib.DictBackend):
        def put(self, key, value):
            return super().put(key, value)

    assert type(vars(Late)["put"]) is PatchedCallable
    assert "get" not in vars(Late), "an inherited method looks like an override"
    instrumentor.uninstrument()
    assert type(vars(Late)["put"]) is not PatchedCallable


def test_implementation_of_a_protocol_is_observed_when_it_is_used(modules, instrumentor):
    """A class without a base class is patched when an object of it is handed to the library, by position or by name."""

    class Upper:
        def encode(self, value):
            return value.upper()

    class Lower:
        def encode(self, value):
            return value.lower()

    assert modules.lib.Pipe(Upper()).send("a") == "A"
    assert modules.lib.Pipe(codec=Lower()).send("A") == "a"
    assert [type(vars(kind)["encode"]) for kind in (Upper, Lower)] == [PatchedCallable] * 2
    assert len(modules.toy.operations) == 2
    instrumentor.uninstrument()
    assert modules.lib.Pipe(Upper()).send("a") == "A"
    assert len(modules.toy.operations) == 2


def test_base_class_is_not_patched(modules, instrumentor):
    """The methods of the base class only raise."""
    assert type(vars(modules.lib.Backend)["put"]) is not PatchedCallable


def test_missing_member_is_reported_and_warned_about_once(modules, caplog):
    """A class that implements a protocol and was renamed is reported; the others are observed."""

    class Other(modules.toy.ToyInstrumentor):
        def targets(self):
            return ()

        def families(self):
            return (Family("toylib", "Codec", {"encode": modules.toy.observed}, members=("JsonCodec", "GoneCodec")),)

    other = Other()
    with caplog.at_level(logging.WARNING):
        other.instrument()
        other.instrument()
    assert {report.target: report.state for report in other.report()} == {
        "toylib.JsonCodec.encode": "patched",
        "toylib.GoneCodec": "renamed",
    }
    assert [record.args[1] for record in caplog.records] == ["toylib.GoneCodec"]
    modules.lib.JsonCodec().encode("a")
    assert len(modules.toy.operations) == 1
    other.uninstrument()


def test_renamed_method_of_the_base_class_is_reported(modules):
    """Without the report, no class would have the method, and all that are left would be patched."""

    class Other(modules.toy.ToyInstrumentor):
        def targets(self):
            return ()

        def families(self):
            rows = {"put": modules.toy.observed, "put_many": modules.toy.observed, "vacuum": modules.toy.observed}
            return (Family("toylib", "Backend", rows, declared=("put", "put_many")),)

    other = Other()
    other.instrument()
    try:
        assert [report.target for report in other.report() if report.state == "renamed"] == ["toylib.Backend.put_many"]
    finally:
        other.uninstrument()
